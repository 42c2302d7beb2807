"""Totals under many weightings: unchanged draws for small sizes, draws with the same distribution for large ones."""

import itertools

import numpy as np
import pytest
import scipy

from memlib.stats import totals
from memlib.stats.inference import bootstrap_weights
from memlib.stats.randomization import Design
from memlib.stats.totals import (
    effective_groups,
    freedom_of,
    grouped_interval,
    groups_on_smaller_side,
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


@pytest.mark.parametrize(("persons", "freedom"), [(8, 3.0), (40, 19.0)])
def test_grouped_intervals_have_students_quantiles(persons: int, freedom: float) -> None:
    """Quantiles of 95 %: 3.182446 for 3 degrees of freedom and 2.093024 for 19, which the normal law reaches at 1.8173 %."""
    groups = np.repeat(np.arange(persons), 5)
    design = Design.of(groups < persons // 2, np.zeros(len(groups), dtype=np.int64), groups)
    replicates = np.random.default_rng(0).normal(0.2, 0.3, 2000)
    assert freedom_of(design) == pytest.approx(freedom)
    low, high = grouped_interval(replicates, design)
    if freedom < 10:
        half = 3.182446 * replicates.std()
        expected = replicates.mean() - half, replicates.mean() + half
    else:
        expected = tuple(np.quantile(replicates, [0.018173, 1 - 0.018173]))
    assert (low, high) == pytest.approx(expected, abs=1e-4)
    narrow = grouped_interval(replicates, design, level=0.5)
    assert low < narrow[0] < narrow[1] < high


def test_intervals_of_means_of_one_side_are_finite_where_some_units_form_groups() -> None:
    """A few equal captions made the interval of the paper's gap, a mean over the pairs of one side, infinite."""
    persons = np.minimum(np.arange(60), 55)  # one group of 5: 60^2 / (55 + 25) groups of equal weight
    design = Design.of(np.ones(60, dtype=np.bool_), np.zeros(60, dtype=np.int64), persons)
    assert freedom_of(design) == pytest.approx(45 - 1)
    replicates = np.random.default_rng(0).normal(size=2000)
    tail = scipy.stats.norm.sf(scipy.stats.t.isf(0.025, 44))
    assert grouped_interval(replicates, design, of_mean=True) == pytest.approx(
        tuple(np.quantile(replicates, [tail, 1 - tail]))
    )
    alone = Design.of(np.ones(3, dtype=np.bool_), np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert grouped_interval(np.ones(200), alone, of_mean=True) == (-np.inf, np.inf)
    assert grouped_interval(np.zeros(200), design) == (-np.inf, np.inf)  # of a difference: the other side is empty


def test_groups_count_on_the_smaller_side_and_by_their_sizes() -> None:
    groups = np.repeat(np.arange(5), [4, 1, 1, 2, 2])
    design = Design.of(groups < 2, np.zeros(10, dtype=np.int64), groups)
    assert groups_on_smaller_side(design) == 2
    assert groups_on_smaller_side(Design.of(groups > 0, np.zeros(10, dtype=np.int64), groups)) == 1
    assert effective_groups(design) == pytest.approx(100 / 26)
    assert effective_groups(design, np.arange(5) > 1) == pytest.approx(25 / 9)


@pytest.mark.parametrize("numbered", ["in order", "by name"])
def test_units_are_resampled_within_their_own_stratum_and_side(numbered: str) -> None:
    by_name = np.unique(np.arange(40).astype(str), return_inverse=True)[1]  # 0, 1, 10, 11, ...
    labels, first = np.arange(40) % 4, np.arange(40) < 20
    cells = np.eye(8, dtype=np.float32)[2 * labels + ~first]
    design = Design.of(first, labels, by_name if numbered == "by name" else np.arange(40))
    totals = resampled_by_group(scipy.sparse.csr_array(cells), design, 50, seed=0)
    assert np.allclose(totals, cells.sum(axis=0))
