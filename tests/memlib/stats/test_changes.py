"""Tests of changes between two variants: by hand, their null, and a plant."""

import itertools

import numpy as np
import pytest
import scipy.stats

from memlib.stats.changes import _welch_t, flipped_p, welch_p
from tests.assignments import assert_exact
from tests.chance import most_of


def test_flipped_p_equals_values_computed_by_hand() -> None:
    assert flipped_p(np.array([1.0, 2, 3, 4]), permutations=99, seed=0) == 2 / 16
    assert flipped_p(np.array([-1.0, -2, -3, -4]), permutations=99, seed=0) == 2 / 16
    assert flipped_p(np.array([3.0, -1, -2]), permutations=99, seed=0) == 1  # the sum is 0
    assert flipped_p(np.zeros(5), permutations=99, seed=0) == 1


def test_p_values_depend_neither_on_scale_nor_on_the_order_of_sides() -> None:
    a, b = np.random.default_rng(0).normal(size=(2, 12))
    for scale in (1e-9, 1e6):
        assert welch_p(scale * a, scale * b, permutations=499, seed=1) == welch_p(a, b, permutations=499, seed=1)
        assert flipped_p(scale * a, permutations=499, seed=1) == flipped_p(a, permutations=499, seed=1)
    assert flipped_p(-a, permutations=9999, seed=1) == flipped_p(a, permutations=9999, seed=1)


VALUES = {
    "distinct": np.array([0.0, 1.0, 2.5, 7.0, 7.5, 11.0, 20.0, 23.0]),
    "tied": np.array([0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 5.0, 5.0]),
    "of two values": np.array([0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("count", [4, 3])
def test_welch_p_is_exact_for_every_assignment_to_two_samples(kind: str, count: int) -> None:
    values = VALUES[kind]
    orders = np.array([
        [*first, *sorted(set(range(8)) - set(first))] for first in itertools.combinations(range(8), count)
    ])  # fmt: skip
    if count == 4 or kind == "distinct":  # else the law of t is not symmetric, and twice a tail can be too much
        found = []
        for order in orders:
            pooled = values[order]
            places = np.argsort(order)  # of each unit in the observed order
            others = places[orders[(orders != order).any(axis=1)]]
            p = welch_p(pooled[:count], pooled[count:], permutations=1, seed=0, orders=others)
            found.append(p)
        assert_exact(found)
    assert welch_p(np.ones(3), np.ones(4), permutations=99, seed=0) == 1


def test_welch_p_ranks_the_statistic_of_scipy() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=5) + 1, 2 * rng.normal(size=9)
    orders = np.array([rng.permutation(14) for _ in range(60)])
    pooled = np.concatenate([first, second])
    null = np.array([scipy.stats.ttest_ind(*np.split(pooled[order], [5]), equal_var=False).statistic for order in orders])
    observed = scipy.stats.ttest_ind(first, second, equal_var=False).statistic
    expected = 2 * min(1 + (null >= observed).sum(), 1 + (null <= observed).sum()) / 61
    assert welch_p(first, second, permutations=1, seed=0, orders=orders) == pytest.approx(min(1, expected))
    scaled = pooled / 10  # within [-1, 1]
    assert _welch_t(np.stack([scaled, scaled[orders[0]]]), 5) == pytest.approx([observed, null[0]])


@pytest.mark.parametrize("sizes", [[1.0, 2, 4, 8, 16], [1.0, 1, 2, 2, 3, 3], [1.0, 1, 1, 1], [0.0, 0, 1, 2]])
def test_flipped_p_is_exact_for_every_pattern_of_signs(sizes: list[float]) -> None:
    """All patterns but the observed one are exchanged, as they are few."""
    patterns = [np.array(signs) for signs in itertools.product((1, -1), repeat=len(sizes))]
    assert_exact([flipped_p(signs * np.array(sizes), permutations=99, seed=0) for signs in patterns])


def test_samples_with_equal_means_and_unequal_variances_are_told_apart_at_most_at_the_level() -> None:
    """Welch's t holds for many units that share only their mean: 10 against 30 with three times their deviation."""
    rng, tries, hits = np.random.default_rng(0), 200, 0
    for seed in range(tries):
        a, b = rng.standard_t(4, size=10), rng.standard_t(4, size=30) * 3
        hits += welch_p(a, b, permutations=199, seed=seed) <= 0.05
    assert 0 < hits <= most_of(tries, 0.05)


def test_a_planted_change_is_found_and_pairing_finds_smaller_ones() -> None:
    rng = np.random.default_rng(0)
    seed_effect = rng.normal(size=12)
    a, b = seed_effect + 0.4 + 0.1 * rng.normal(size=12), seed_effect + 0.1 * rng.normal(size=12)
    assert flipped_p(a - b, permutations=9999, seed=0) < 0.01
    assert welch_p(a, b, permutations=999, seed=0) > 0.05
    assert welch_p(a + 5, b, permutations=999, seed=0) < 0.01
