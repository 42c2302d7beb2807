"""Totals under many weightings: unchanged draws for small sizes, draws with the same distribution for large ones."""

import itertools

import numpy as np
import pytest
import scipy

from memlib.stats import totals
from memlib.stats.inference import bootstrap_weights
from memlib.stats.randomization import Design
from memlib.stats.totals import redrawn_totals, resampled_totals

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(12), 25)
FIRST = np.tile(np.arange(25) < 10, 12)
COLUMNS = scipy.sparse.csr_array((RNG.random((300, 7)) < 0.3).astype(np.float32))


def test_few_weights_are_drawn_as_they_always_were() -> None:
    weights = np.concatenate(list(bootstrap_weights(LABELS, 200, seed=5)))
    assert np.allclose(resampled_totals(COLUMNS, LABELS, 200, seed=5), weights @ COLUMNS.toarray())
    sides = np.concatenate(list(Design.of(FIRST, LABELS).redraws(200, seed=5)))
    assert np.allclose(redrawn_totals(COLUMNS, Design.of(FIRST, LABELS), 200, seed=5), sides @ COLUMNS.toarray())


@pytest.mark.parametrize("block", [2**23, 30_000])
def test_many_weights_have_the_same_distribution(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    design, count = Design.of(FIRST, LABELS), 4000
    few = resampled_totals(COLUMNS, LABELS, count, seed=1), redrawn_totals(COLUMNS, design, count, seed=1)
    monkeypatch.setattr(totals, "KEPT", 0)
    monkeypatch.setattr(totals, "_BLOCK", block)
    many = resampled_totals(COLUMNS, LABELS, count, seed=2), redrawn_totals(COLUMNS, design, count, seed=2)
    for one, other in zip(few, many, strict=True):
        assert one.shape == other.shape
        assert np.allclose(one.mean(axis=0), other.mean(axis=0), atol=6 * one.std() / np.sqrt(count))
        assert np.cov(other.T) == pytest.approx(np.cov(one.T), abs=0.12 * np.cov(one.T).max())
        for column in range(one.shape[1]):
            assert scipy.stats.ks_2samp(*(np.round(values[:, column], 2) for values in (one, other))).pvalue > 1e-4
    again = resampled_totals(COLUMNS, LABELS, count, seed=2)
    assert np.array_equal(again, many[0])


def test_every_subset_is_as_likely_as_any_other() -> None:
    found = totals._subsets(np.random.default_rng(0), 5, 2, 20_000)
    assert (found.sum(axis=1) == 2).all()
    seen = [tuple(np.flatnonzero(row)) for row in found]
    counts = [seen.count(pair) for pair in itertools.combinations(range(5), 2)]
    assert scipy.stats.chisquare(counts).pvalue > 1e-3
    assert totals._subsets(np.random.default_rng(0), 4, 0, 10).sum() == 0
    assert totals._subsets(np.random.default_rng(0), 4, 4, 10).all()


def test_groups_are_redrawn_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "KEPT", 0)
    groups = np.arange(300) // 5
    design = Design.of(groups % 5 < 2, LABELS, groups)
    own = scipy.sparse.csr_array(np.eye(300, dtype=np.float32))
    sides = redrawn_totals(own, design, 50, seed=0)
    assert (sides.reshape(50, 60, 5) == sides.reshape(50, 60, 5)[:, :, :1]).all()
    assert (sides.reshape(50, 12, 25).sum(axis=2) == 10).all()
