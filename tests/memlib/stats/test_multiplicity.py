"""Adjusted p-values by hand, against scipy, and their levels under dependence."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from memlib.stats.multiplicity import benjamini_hochberg, combined_p, critical_deviation, holm, holm_over_families, max_t_p
from tests.assignments import assert_exact


def test_holm_equals_values_computed_by_hand() -> None:
    np.testing.assert_allclose(holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(holm([0.5, 0.9]), [1.0, 1.0])
    assert len(holm([])) == 0


def test_benjamini_hochberg_equals_values_computed_by_hand() -> None:
    np.testing.assert_allclose(benjamini_hochberg([0.01, 0.02, 0.9]), [0.03, 0.03, 0.9])
    assert len(benjamini_hochberg([])) == 0


def test_combined_p_equals_the_method_of_fisher_in_scipy() -> None:
    p = [0.2, 0.03, 0.5]
    assert combined_p(p) == pytest.approx(scipy.stats.combine_pvalues(p, method="fisher").pvalue)
    assert combined_p([1.0, 1.0]) == 1.0


def plain_max_t(observed: list[float], null: list[list[float]]) -> list[float]:
    """The single-step adjustment, one statistic and one permutation at a time."""
    columns = list(zip(*null, strict=True))
    means = [sum(column) / len(column) for column in columns]
    scales = [
        (sum((x - mean) ** 2 for x in column) / len(column)) ** 0.5 for column, mean in zip(columns, means, strict=True)
    ]
    largest = [max((x - mean) / scale for x, mean, scale in zip(row, means, scales, strict=True)) for row in null]
    return [
        (1 + sum(top >= (x - mean) / scale - 1e-9 for top in largest)) / (1 + len(null))
        for x, mean, scale in zip(observed, means, scales, strict=True)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_max_t_equals_a_plain_version_for_scores_that_move_together(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gains = rng.normal(size=(20, 1)) + rng.normal(size=(20, 6)) * np.array([0.1, 1, 1, 2, 3, 9]) + [0, 0, 2, 0, 0, 5]
    null = (1 - 2 * rng.integers(0, 2, size=(99, 20))) @ gains / 20
    found = max_t_p(gains.mean(axis=0), null)
    assert found.tolist() == pytest.approx(plain_max_t(gains.mean(axis=0).tolist(), null.tolist()))
    alone = [float(max_t_p(gains.mean(axis=0)[[place]], null[:, [place]])[0]) for place in range(6)]
    assert (found >= np.array(alone) - 1e-12).all()


@pytest.mark.parametrize("sizes", [[1.0, 2, 4, 8, 16], [1.0, 1, 2, 2, 3], [0.0, 1, 1, 1, 5]])
def test_max_t_of_statistics_that_rank_alike_is_exact_for_every_pattern_of_signs(sizes: list[float]) -> None:
    patterns = np.array(list(itertools.product((1, -1), repeat=5)))
    sums = patterns @ np.array(sizes)
    alike = np.stack([sums, 7 * sums - 3, sums / 9], axis=1)
    found = [max_t_p(alike[place], np.delete(alike, place, axis=0)) for place in range(32)]
    assert_exact([float(p.min()) for p in found])
    assert all(np.ptp(p) == 0 for p in found)


def test_holm_over_families_equals_values_computed_by_hand() -> None:
    """Smallest p-values .01, .02 and .5: times 3, 2 and 1; none falls below the smallest of an earlier family."""
    found = holm_over_families([[0.02, 0.03], [0.5, 0.9], [0.01, 0.4]])
    assert [p.tolist() for p in found] == [[pytest.approx(0.04), pytest.approx(0.06)], [0.5, 0.9], [pytest.approx(0.03), 1.0]]
    near = holm_over_families([[0.010], [0.011]])
    assert [p.tolist() for p in near] == [[0.02], [0.02]]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fishers_combination_is_exact_by_its_closed_form(count: int) -> None:
    """P(product of m uniform numbers <= w) is w times the sum of (ln 1/w)^k / k! below m."""
    for w in (0.9, 0.2, 1e-3):
        expected = w * sum((-math.log(w)) ** k / math.factorial(k) for k in range(count))
        assert combined_p([w, *[1.0] * (count - 1)]) == pytest.approx(expected)


def test_a_constant_statistic_is_not_significant() -> None:
    null = np.random.default_rng(0).normal(size=(99, 2)) * np.array([1.0, 0.0])
    found = max_t_p(np.array([9.0, 0.0]), null)
    assert found.tolist() == [0.01, 1.0]
    assert max_t_p(np.zeros(2), np.zeros((9, 2))).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("level", [0.05, 0.011, 0.005])
def test_the_critical_deviation_separates_p_values_above_the_level_from_others(level: float) -> None:
    null = np.random.default_rng(0).normal(size=(199, 3)) * [1.0, 5.0, 0.2] + [0.0, 9.0, 1.0]
    needed = critical_deviation(null, level)
    for place in range(3):
        observed = null.mean(axis=0) - 9 * null.std(axis=0)
        for sign in (1, -1):
            observed[place] = null.mean(axis=0)[place] + (needed + sign * 1e-6) * null.std(axis=0)[place]
            assert (max_t_p(observed, null)[place] <= level) == (sign == 1)
    assert critical_deviation(null, 0.004) == math.inf  # of 199 redraws no p-value lies below .005
    assert critical_deviation(np.zeros((199, 1)), level) == math.inf
