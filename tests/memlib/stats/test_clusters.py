"""The intraclass correlation by hand, by a slow plain twin, and of simulated clusters whose correlation is known."""

import math

import numpy as np
import pytest

from memlib.stats.clusters import intraclass_correlation


def plain(values: list[list[float]]) -> float:
    """Return the ANOVA estimator of one stratum, in loops."""
    count, number = sum(map(len, values)), len(values)
    grand = sum(map(sum, values)) / count
    between = sum(len(one) * (sum(one) / len(one) - grand) ** 2 for one in values) / (number - 1)
    within = sum((x - sum(one) / len(one)) ** 2 for one in values for x in one) / (count - number)
    size = (count - sum(len(one) ** 2 for one in values) / count) / (number - 1)
    return (between - within) / (between + (size - 1) * within)


def test_intraclass_correlation_of_unequal_clusters_equals_a_plain_version() -> None:
    clusters = [[1.0, 2.0], [4.0, 3.5, 7.0], [0.0], [2.0, 2.5, 9.0, 1.0]]
    number = np.repeat(np.arange(4), [len(one) for one in clusters])
    assert intraclass_correlation(np.concatenate(clusters), number) == pytest.approx(plain(clusters), abs=1e-12)


def test_one_pair_beside_a_single_unit_is_enough() -> None:
    clusters = [[1.0, 2.0], [4.0]]
    assert intraclass_correlation(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1])) == pytest.approx(plain(clusters), abs=1e-12)


def test_intraclass_correlation_ignores_differences_between_strata() -> None:
    rng = np.random.default_rng(0)
    values, clusters, strata = rng.normal(size=2000), np.arange(2000) // 5, np.arange(2000) // 1000
    plain_value = intraclass_correlation(values, clusters, strata)
    assert intraclass_correlation(values + 100 * strata, clusters, strata) == pytest.approx(plain_value, abs=1e-9)
    assert intraclass_correlation(values + 100 * strata, clusters) > 0.9


@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.8])
def test_intraclass_correlation_is_near_the_simulated_one(correlation: float) -> None:
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(600), rng.integers(1, 12, 600))
    shared = math.sqrt(correlation) * rng.normal(size=600)[clusters]
    values = shared + math.sqrt(1 - correlation) * rng.normal(size=len(clusters))
    assert abs(intraclass_correlation(values, clusters) - correlation) < 0.07


@pytest.mark.parametrize("clusters", [[0, 1, 2, 3], [0, 0, 0, 0]])
def test_intraclass_correlation_is_nan_without_variation_or_clusters(clusters: list[int]) -> None:
    assert math.isnan(intraclass_correlation(np.arange(4.0), np.array(clusters)))
    assert math.isnan(intraclass_correlation(np.zeros(4), np.array([0, 0, 1, 1])))


def test_the_intraclass_correlation_does_not_depend_on_the_unit_of_values() -> None:
    values, clusters = np.random.default_rng(0).normal(size=40) + np.repeat(np.arange(10), 4) / 3, np.repeat(np.arange(10), 4)
    assert intraclass_correlation(1e-3 * values, clusters) == pytest.approx(intraclass_correlation(values, clusters))
