"""Non-inferiority: Student's t against scipy, Welch's limits, and the margin that a design can decide."""

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from memlib.stats.noninferiority import (
    PASSES,
    Difference,
    decidable_margin,
    t_cdf,
    t_quantile,
    welch_difference,
)


@pytest.mark.parametrize("freedom", [1.0, 2.0, 2.5, 7.3, 18.0, 400.0, 1e5])
def test_student_t_agrees_with_scipy(freedom: float) -> None:
    for t in (-50.0, -2.0, -1e-3, 0.0, 0.7, 3.0, 40.0):
        assert t_cdf(t, freedom) == pytest.approx(scipy.stats.t.cdf(t, freedom), rel=1e-7, abs=1e-12)
    for share in (0.5, 0.9, 0.95, 0.999):
        assert t_quantile(share, freedom) == pytest.approx(scipy.stats.t.ppf(share, freedom), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("sizes", [(3, 3), (4, 30), (50, 7)])
def test_welch_limits_agree_with_scipy_and_change_sign_with_the_samples(sizes: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 3, size=sizes[0]), rng.normal(0, 1, size=sizes[1])
    found, back = welch_difference(first, second), welch_difference(second, first)
    ends = scipy.stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))


def test_welch_limits_use_the_spread_of_one_sample_if_the_other_has_none() -> None:
    found = welch_difference(np.array([1.0, 2, 3]), np.array([1.0, 1, 1]))
    assert found.high - found.value == pytest.approx(scipy.stats.t.ppf(0.95, 2) / np.sqrt(3))


def upper_limits(old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upper limits of many comparisons (num_comparisons, num_values), in standard deviations of the baseline's sample."""
    parts = new.var(axis=1, ddof=1) / new.shape[1], old.var(axis=1, ddof=1) / old.shape[1]
    error = np.sqrt(parts[0] + parts[1])
    freedom = error**4 / (parts[0] ** 2 / (new.shape[1] - 1) + parts[1] ** 2 / (old.shape[1] - 1))
    limits: NDArray[np.float64] = new.mean(axis=1) - old.mean(axis=1) + scipy.stats.t.ppf(0.95, freedom) * error
    return limits / old.std(axis=1, ddof=1)


@pytest.mark.parametrize(("count", "planned"), [(9, 9), (21, 5)])
def test_95_percent_pass_at_the_decidable_margin_if_the_spread_has_half_its_degrees_of_freedom(
    count: int, planned: int
) -> None:
    """The baseline's mean is that of `count` values and its spread that of half as many: as the margin assumes."""
    rng, draws = np.random.default_rng(0), 40_000
    spread = rng.normal(size=(draws, (count + 1) // 2)).std(axis=1, ddof=1)
    new = rng.normal(size=(draws, planned))
    parts = new.var(axis=1, ddof=1) / planned, spread**2 / count
    error = np.sqrt(parts[0] + parts[1])
    freedom = error**4 / (parts[0] ** 2 / (planned - 1) + parts[1] ** 2 / (count - 1))
    apart = new.mean(axis=1) - rng.normal(size=draws) / np.sqrt(count)
    passed = apart + scipy.stats.t.ppf(0.95, freedom) * error < decidable_margin(1.0, count, planned) * spread
    assert passed.mean() == pytest.approx(PASSES, abs=0.0055)  # five standard errors of a simulated share


@pytest.mark.parametrize(("count", "planned"), [(5, 5), (10, 10), (8, 40)])
def test_runs_like_their_baseline_pass_at_the_decidable_margin_even_if_few_trainings_remember_much(
    count: int, planned: int
) -> None:
    """At least 95 % of normal samples, and 90 % of samples of a Gamma law with shape 3, whose excess kurtosis is 2."""
    rng, margin = np.random.default_rng(0), decidable_margin(1.0, count, planned)
    normal = upper_limits(rng.normal(size=(20_000, count)), rng.normal(size=(20_000, planned)))
    skewed = upper_limits(rng.gamma(3, size=(20_000, count)), rng.gamma(3, size=(20_000, planned)))
    assert np.mean(normal < margin) > PASSES
    assert np.mean(skewed < margin) > 0.9


def test_decidable_margins_scale_with_the_spread_fall_with_trainings_and_approach_3_3_standard_errors() -> None:
    assert decidable_margin(0.2, 5, 7) == pytest.approx(0.2 * decidable_margin(1.0, 5, 7))
    by_count = [decidable_margin(1.0, n, n) for n in (3, 4, 8, 100)]
    assert by_count == sorted(by_count, reverse=True)
    quantiles = scipy.stats.norm.ppf(0.95) + scipy.stats.norm.ppf(PASSES)
    assert decidable_margin(1.0, 20_000, 20_000) / np.sqrt(2 / 20_000) == pytest.approx(quantiles, rel=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "margin", "decidable", "outcome"),
    [
        (-0.1, 0.1, 0.2, 0.15, "passed"),
        (0.01, 0.1, 0.2, 0.15, "passed"),  # shown to be larger, but not by the margin
        (-0.1, 0.1, 0.2, 0.25, "undecided"),  # underpowered
        (-0.1, 0.2, 0.2, 0.15, "undecided"),
        (0.01, 0.3, 0.2, 0.15, "failed"),
        (0.01, 0.3, 0.2, 0.25, "failed"),  # shown to be larger, at whatever margin
        (0.01, 0.1, 0.2, 0.25, "undecided"),
    ],
)
def test_outcome_passes_only_at_decidable_margins(
    low: float, high: float, margin: float, decidable: float, outcome: str
) -> None:
    assert Difference((low + high) / 2, low, high, 1.0).outcome(margin, decidable=decidable) == outcome
