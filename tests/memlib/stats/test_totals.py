"""Totals under many weightings: unchanged draws for small sizes, draws with the same distribution for large ones."""

import itertools

import numpy as np
import pytest
import scipy

from memlib.stats import totals
from memlib.stats.inference import bootstrap_weights
from memlib.stats.randomization import Design
from memlib.stats.totals import (
    freedom_of,
    grouped_interval,
    redrawn_totals,
    resampled_by_group,
    resampled_differences,
    resampled_totals,
)
from tests.chance import least_of

RNG = np.random.default_rng(0)
LABELS = np.repeat(np.arange(12), 25)
FIRST = np.tile(np.arange(25) < 10, 12)
COLUMNS = scipy.sparse.csr_array((RNG.random((300, 7)) < 0.3).astype(np.float32))


def test_totals_of_few_units_use_the_same_draws_as_weights() -> None:
    weights = np.concatenate(list(bootstrap_weights(LABELS, 200, seed=5)))
    assert np.allclose(resampled_totals(COLUMNS, LABELS, 200, seed=5), weights @ COLUMNS.toarray())
    sides = np.concatenate(list(Design.of(FIRST, LABELS).redraws(200, seed=5)))
    assert np.allclose(redrawn_totals(COLUMNS, Design.of(FIRST, LABELS), 200, seed=5), sides @ COLUMNS.toarray())


@pytest.mark.parametrize("block", [2**23, 30_000])
def test_totals_drawn_in_blocks_are_distributed_like_those_drawn_at_once(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
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


def test_redraws_of_totals_keep_groups_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "KEPT", 0)
    groups = np.arange(300) // 5
    design = Design.of(groups % 5 < 2, LABELS, groups)
    own = scipy.sparse.csr_array(np.eye(300, dtype=np.float32))
    sides = redrawn_totals(own, design, 50, seed=0)
    assert (sides.reshape(50, 60, 5) == sides.reshape(50, 60, 5)[:, :, :1]).all()
    assert (sides.reshape(50, 12, 25).sum(axis=2) == 10).all()


@pytest.mark.parametrize("law", ["alike", "unequal"])
def test_intervals_by_group_cover_where_those_by_unit_do_not(law: str) -> None:
    rng, covered, by_unit = np.random.default_rng(0), 0, 0
    for draw in range(100):
        sizes = np.full(24, 12) if law == "alike" else rng.integers(1, 61, 24)
        persons = np.repeat(np.arange(24), sizes)
        sides = rng.permutation(np.arange(24) % 2 == 0)[persons]
        values = rng.choice([-1.0, 0.0, 1.0], 24)[persons][:, None]
        for grouped in (True, False):
            design = Design.of(sides, np.zeros(len(persons), dtype=np.int64), persons if grouped else None)
            low, high = grouped_interval(resampled_differences(values, design, 200, seed=draw)[:, 0], design)
            covered, by_unit = (covered + (low <= 0 <= high), by_unit) if grouped else (covered, by_unit + (low <= 0 <= high))
    assert covered >= least_of(100, 0.9)
    assert by_unit < 70


def test_a_difference_is_resampled_as_its_definition_says() -> None:
    rng = np.random.default_rng(1)
    values, labels = rng.normal(size=(40, 2)), np.arange(40) % 3
    design = Design.of(np.arange(40) < 25, labels)
    replicates = resampled_differences(values, design, 2000, seed=0)
    assert replicates.mean(axis=0) == pytest.approx([design.difference(column) for column in values.T], abs=0.06)
    (part,) = bootstrap_weights(2 * labels + ~design.first, 1, seed=0)
    one = resampled_differences(values, design, 1, seed=0)[0]
    for place, column in enumerate(values.T):
        sums = []
        for label in range(3):
            a, b = (part[0] * (labels == label) * side for side in (design.first, ~design.first))
            sums.append((a.sum() * b.sum() / (a + b).sum(), (a @ column) / a.sum() - (b @ column) / b.sum()))
        weights, means = zip(*sums, strict=True)
        assert one[place] == pytest.approx(np.average(means, weights=weights), abs=1e-5)


def test_freedom_counts_groups_of_equal_weight_less_strata() -> None:
    persons = np.repeat(np.arange(8), [5, 5, 5, 5, 5, 5, 5, 5])
    design = Design.of(persons < 4, np.zeros(40, dtype=np.int64), persons)
    assert freedom_of(design) == pytest.approx(3)
    uneven = np.repeat(np.arange(4), [10, 1, 5, 5])
    assert freedom_of(Design.of(uneven < 2, np.zeros(21, dtype=np.int64), uneven)) == 1.0
    assert freedom_of(Design.of(np.arange(4) < 2, np.zeros(4, dtype=np.int64))) == np.inf


def test_one_person_on_a_side_gives_no_finite_interval_and_no_nan() -> None:
    persons = np.repeat(np.arange(4), [3, 5, 2, 4])
    labels, sides = np.array([0, 0, 1, 1])[persons], np.array([True, False, True, False])[persons]
    values = np.arange(14.0)[:, None]
    replicates = resampled_differences(values, Design.of(sides, labels, persons), 500, seed=0)
    assert np.isfinite(replicates).all()
    one = Design.of(persons < 1, np.zeros(14, dtype=np.int64), persons)
    assert grouped_interval(resampled_differences(values, one, 200, seed=0)[:, 0], one) == (-np.inf, np.inf)


def test_intervals_of_means_of_one_side_cover_where_some_units_form_groups() -> None:
    """A few equal captions made the interval of the paper's gap, a mean over the pairs of one side, infinite."""
    rng, persons, covered = np.random.default_rng(0), np.minimum(np.arange(60), 55), 0
    design = Design.of(np.ones(60, dtype=np.bool_), np.zeros(60, dtype=np.int64), persons)
    for draw in range(100):
        values = rng.normal(0.4, 1.0, 56)[persons]
        columns = scipy.sparse.csr_array(np.stack([values, np.ones(60)], axis=1).astype(np.float32))
        totals = resampled_by_group(columns, design, 200, seed=draw)
        low, high = grouped_interval(totals[:, 0] / totals[:, 1], design, of_mean=True)
        assert high - low < 1
        covered += low <= 0.4 <= high
    assert covered >= least_of(100, 0.9)
    alone = Design.of(np.ones(3, dtype=np.bool_), np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert grouped_interval(np.ones(200), alone, of_mean=True) == (-np.inf, np.inf)
    assert grouped_interval(np.zeros(200), design) == (-np.inf, np.inf)  # of a difference: the other side is empty


@pytest.mark.parametrize("numbered", ["in order", "by name"])
def test_units_are_resampled_within_their_own_stratum_and_side(numbered: str) -> None:
    by_name = np.unique(np.arange(40).astype(str), return_inverse=True)[1]  # 0, 1, 10, 11, ...
    labels, first = np.arange(40) % 4, np.arange(40) < 20
    cells = np.eye(8, dtype=np.float32)[2 * labels + ~first]
    design = Design.of(first, labels, by_name if numbered == "by name" else np.arange(40))
    totals = resampled_by_group(scipy.sparse.csr_array(cells), design, 50, seed=0)
    assert np.allclose(totals, cells.sum(axis=0))
