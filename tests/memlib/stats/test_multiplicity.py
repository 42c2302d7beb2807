"""Adjusted p-values by hand, against scipy, and their levels under dependence."""

import numpy as np
import pytest
import scipy.stats

from memlib.stats.multiplicity import benjamini_hochberg, combined_p, holm, max_t_p


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


def test_max_t_holds_its_level_for_scores_that_move_together() -> None:
    wrong = plain = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        common = rng.normal(size=(20, 1))
        gains = common + rng.normal(size=(20, 8)) * np.array([0.1, 1, 1, 1, 2, 2, 3, 9])
        flips = 1 - 2 * rng.integers(0, 2, size=(199, 20))
        null, observed = flips @ gains / 20, gains.mean(axis=0)
        wrong += bool((max_t_p(observed, null) <= 0.05).any())
        plain += bool((((1 + (null >= observed).sum(axis=0)) / 200) <= 0.05).any())
    assert wrong <= scipy.stats.binom.ppf(0.999, 300, 0.05)
    assert plain > 30


def test_a_constant_statistic_is_not_significant() -> None:
    null = np.random.default_rng(0).normal(size=(99, 2)) * np.array([1.0, 0.0])
    found = max_t_p(np.array([9.0, 0.0]), null)
    assert found.tolist() == [0.01, 1.0]
    assert max_t_p(np.zeros(2), np.zeros((9, 2))).tolist() == [1.0, 1.0]
