"""The skew-normal law against scipy, mpmath-like integration by hand, and its own bootstrap."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

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
