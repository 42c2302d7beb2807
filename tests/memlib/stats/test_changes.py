"""Tests of changes between two variants: by hand, their null, and a plant."""

import numpy as np
import pytest

from memlib.stats.changes import flipped_p, welch_p
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


def test_welch_p_equals_all_exchanges_of_three_and_three() -> None:
    """2 of the 20 ways to choose 3 of 6 values separate them as much."""
    p = welch_p(np.array([1.0, 2, 3]), np.array([7.0, 8, 9]), permutations=9999, seed=0)
    assert p == pytest.approx(2 / 20, abs=0.02)
    assert welch_p(np.ones(3), np.ones(4), permutations=99, seed=0) == 1


@pytest.mark.parametrize("kind", ["paired", "unpaired", "unequal"])
def test_exchangeable_units_are_told_apart_at_most_at_the_level(kind: str) -> None:
    """Scores have heavy tails; unequal: 10 units against 30 with three times their deviation and the same mean."""
    rng, tries, hits = np.random.default_rng(0), 400, 0
    for seed in range(tries):
        if kind == "paired":
            seed_effect = rng.normal(size=10)
            a, b = (np.exp(seed_effect + 0.5 * rng.normal(size=10)) for _ in range(2))
            hits += flipped_p(a - b, permutations=999, seed=seed) <= 0.05
        else:
            a, b = rng.standard_t(4, size=10), rng.standard_t(4, size=30) * (3 if kind == "unequal" else 1)
            hits += welch_p(a, b, permutations=199, seed=seed) <= 0.05
    assert 0 < hits <= most_of(tries, 0.05)


def test_a_planted_change_is_found_and_pairing_finds_smaller_ones() -> None:
    rng = np.random.default_rng(0)
    seed_effect = rng.normal(size=12)
    a, b = seed_effect + 0.4 + 0.1 * rng.normal(size=12), seed_effect + 0.1 * rng.normal(size=12)
    assert flipped_p(a - b, permutations=9999, seed=0) < 0.01
    assert welch_p(a, b, permutations=999, seed=0) > 0.05
    assert welch_p(a + 5, b, permutations=999, seed=0) < 0.01
