"""The skew-normal law against scipy, mpmath-like integration by hand, and its own bootstrap."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from numpy.typing import NDArray

from memlib.stats import tails
from memlib.stats.tails import SkewNormal, fit_skew_normal, goodness_of_fit


@pytest.mark.parametrize("shape", [-6.0, -1.0, 0.0, 0.7, 4.0])
def test_skew_normal_density_and_cdf_equal_those_of_scipy(shape: float) -> None:
    law = SkewNormal(30.0, 4.0, shape)
    x = np.linspace(18, 45, 50)
    scipys = scipy.stats.skewnorm(shape, loc=30, scale=4)
    np.testing.assert_allclose(law.log_density(x), scipys.logpdf(x), rtol=1e-9)
    np.testing.assert_allclose(2 ** law.log2_cdf(x), scipys.cdf(x), rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("shape", [-3.0, 0.0, 2.0])
@pytest.mark.parametrize("sigmas", [6.0, 12.0, 60.0])
def test_deep_tail_of_the_skew_normal_equals_a_numerical_integral(shape: float, sigmas: float) -> None:
    """This includes probabilities below 2^-1074."""
    law = SkewNormal(0.0, 2.0, shape)
    x = -2.0 * sigmas
    top = float(law.log_density(np.array([x]))[0])
    width = 2.0 / sigmas
    found, _ = scipy.integrate.quad(lambda u: float(np.exp(law.log_density(np.array(x - u)) - top)), 0, 40 * width)
    expected = (top + np.log(found)) / np.log(2)
    np.testing.assert_allclose(law.log2_cdf(np.array([x])), [expected], rtol=1e-6)
    if sigmas == 60:
        assert expected < -1074


def test_the_fit_is_of_largest_likelihood() -> None:
    rng = np.random.default_rng(0)
    values = SkewNormal(100.0, 5.0, 3.0).sample(4000, rng)
    law = fit_skew_normal(values)
    shape, location, scale = scipy.stats.skewnorm.fit(values, 3, loc=100, scale=5)
    assert law.log_density(values).sum() >= scipy.stats.skewnorm(shape, location, scale).logpdf(values).sum() - 0.01
    assert law.location == pytest.approx(100, abs=0.5)
    assert law.shape == pytest.approx(3, abs=0.7)


def test_the_fit_matches_the_gradient_of_the_likelihood_at_its_top() -> None:
    """At the largest likelihood no small change of location, scale or shape raises it."""
    values = SkewNormal(3.0, 2.0, 1.5).sample(400, np.random.default_rng(5))
    law = fit_skew_normal(values)
    best = law.log_density(values).sum()
    for change in (0.02, -0.02):
        for moved in (
            SkewNormal(law.location + change, law.scale, law.shape),
            SkewNormal(law.location, law.scale * (1 + change), law.shape),
            SkewNormal(law.location, law.scale, law.shape + 5 * change),
        ):
            assert moved.log_density(values).sum() < best


@pytest.mark.parametrize("shape", [-4.0, -0.5, 2.0])
def test_the_fit_by_moments_has_the_moments(shape: float) -> None:
    """Standardized values have mean 0 and variance 1; the third moment of the law is theirs."""
    z = scipy.stats.skewnorm(shape).ppf((np.arange(20_000) + 0.5) / 20_000)
    z = (z - z.mean()) / z.std()
    location, log_scale, found = tails._by_moments(z)
    law = scipy.stats.skewnorm(found, loc=location, scale=np.exp(log_scale))
    assert [float(x) for x in law.stats("mvs")] == pytest.approx([0, 1, (z**3).mean()], abs=1e-6)
    assert found == pytest.approx(shape, rel=0.02)


@pytest.mark.parametrize(
    ("values", "distance"),
    [
        ([0.2, 0.5, 0.6], 0.4),  # below the last value the law has .6, the sample jumps from 2/3 to 1: 1 - .6
        ([0.4, 0.5, 0.8], 0.4),  # before the first value the sample has 0, the law .4
        ([1 / 6, 3 / 6, 5 / 6], 1 / 6),  # the closest that three values can be
        ([0.8, 0.4, 0.5], 0.4),  # in any order
    ],
)
def test_the_distance_of_three_values_from_the_uniform_law_by_hand(values: list[float], distance: float) -> None:
    class Uniform(SkewNormal):
        def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
            return np.clip(x, 0, 1)

    assert tails._distance(np.array(values), Uniform(0.0, 1.0, 0.0)) == pytest.approx(distance)
    mirrored = 1 - np.array(values)
    assert tails._distance(mirrored, Uniform(0.0, 1.0, 0.0)) == pytest.approx(distance)


@pytest.mark.parametrize("replicates", [1, 4, 19])
def test_goodness_of_fit_is_one_more_than_the_samples_that_are_as_far_away(
    replicates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(3).normal(size=60)
    law, rng = fit_skew_normal(values), np.random.default_rng(7)
    samples = [law.sample(60, rng) for _ in range(replicates)]
    further = sum(
        scipy.stats.kstest(sample, fit_skew_normal(sample).cdf).statistic >= scipy.stats.kstest(values, law.cdf).statistic
        for sample in samples
    )
    assert goodness_of_fit(values, replicates=replicates, seed=7) == (1 + further) / (1 + replicates)
    monkeypatch.setattr(tails, "_distance", lambda *_: 0.5)  # as far away: samples that tie count
    assert goodness_of_fit(values, replicates=replicates, seed=7) == 1.0


@pytest.mark.slow
def test_goodness_of_fit_rejects_a_wrong_law_and_accepts_the_right_one() -> None:
    rng = np.random.default_rng(1)
    law = SkewNormal(60.0, 4.0, -1.5)
    p_values = []
    for repeat in range(40):
        p_values.append(goodness_of_fit(law.sample(1000, rng), replicates=40, seed=repeat))
    assert np.mean(np.array(p_values) < 0.1) <= 0.25
    two_humps = np.concatenate([rng.normal(50, 1, 500), rng.normal(60, 1, 500)])
    assert goodness_of_fit(two_humps, replicates=40, seed=0) < 0.05


def test_fit_skew_normal_refuses_constant_values() -> None:
    with pytest.raises(ValueError, match="20 finite values that are not all equal"):
        fit_skew_normal(np.zeros(100))
    with pytest.raises(ValueError, match="got 19"):
        fit_skew_normal(np.arange(19.0))
    assert 5 < fit_skew_normal(np.arange(20.0)).scale < 15
