"""Skew-normal distribution of log-perplexities, and exposures extrapolated from its tail (Carlini 2019, section 4.3).

The distribution is fitted by maximum likelihood. Its tail is computed by quadrature of the log density, since the
distribution function underflows below 2^-1074. Goodness of fit is tested by refitting samples of the fitted distribution
(parametric bootstrap), because the published KS test ignores that the parameters were fitted and gives inflated p-values.
A good fit does not validate the far tail, which contains no data: at 26 bits, intervals of extrapolated values covered the
truth in 3 of 100 cases, so no intervals are given.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

LN2 = float(np.log(2))
NODES, WEIGHTS = np.polynomial.laguerre.laggauss(64)
MOST_SKEWED = 0.99  # share of the largest skewness possible for a skew-normal distribution


@dataclass(frozen=True)
class SkewNormal:
    """The skew-normal distribution with density 2/s phi(z) Phi(a z), where z = (x - location) / s.

    Example:
        >>> import numpy as np
        >>> law = SkewNormal(location=0.0, scale=1.0, shape=0.0)  # the normal law
        >>> np.round(law.exposures(np.array([0.0, -40.0]))).tolist()  # in bits; the law itself underflows at the second
        [1.0, 1161.0]
    """

    location: float  #: location, scale, shape: location, s and a, as in scipy.stats.skewnorm.
    scale: float
    shape: float

    def log_density(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the natural logarithm of the density."""
        z = (np.asarray(x, dtype=np.float64) - self.location) / self.scale
        logs = LN2 - np.log(self.scale) - 0.5 * z**2 - 0.5 * np.log(2 * np.pi) + scipy.special.log_ndtr(self.shape * z)
        return np.asarray(logs)

    def cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the distribution function."""
        values: NDArray[np.float64] = np.clip(
            scipy.stats.skewnorm.cdf(x, self.shape, loc=self.location, scale=self.scale), 0, 1
        )
        return values

    def log2_cdf(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the binary logarithm of the distribution function, even where the function itself underflows to 0."""
        values = np.atleast_1d(np.asarray(x, dtype=np.float64))
        plain = self.cdf(values)
        with np.errstate(divide="ignore"):
            logs = np.log2(plain)
        deep = plain < 1e-6
        if deep.any():
            logs[deep] = self._tail(values[deep]) / LN2
        return logs

    def exposures(self, canaries: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return extrapolated exposures -log2 F(x), in bits, of log-perplexities (num_canaries,).

        They are not bounded by the number of candidates.
        """
        bits: NDArray[np.float64] = np.maximum(0, -self.log2_cdf(canaries))
        return bits

    def _tail(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the natural log of the density's integral up to x, where the log density is concave and rising."""
        z = (x - self.location) / self.scale
        hazard = np.exp(-0.5 * (self.shape * z) ** 2 - 0.5 * np.log(2 * np.pi) - scipy.special.log_ndtr(self.shape * z))
        slope = (-z + self.shape * hazard) / self.scale
        steps = NODES[None, :] / slope[:, None]
        logs = self.log_density(x[:, None] - steps) + NODES[None, :] + np.log(WEIGHTS)[None, :]
        tails: NDArray[np.float64] = scipy.special.logsumexp(logs, axis=1) - np.log(slope)
        return tails

    def sample(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Draw a sample, (count,)."""
        delta = self.shape / np.sqrt(1 + self.shape**2)
        one, other = rng.standard_normal((2, count))
        drawn: NDArray[np.float64] = delta * np.abs(one) + np.sqrt(1 - delta**2) * other
        return self.location + self.scale * drawn


def fit_skew_normal(values: NDArray[np.float64]) -> SkewNormal:
    """Fit a skew-normal distribution by maximum likelihood, starting from the fit by moments.

    Args:
        values: (num_values,), at least 20, not all equal.

    Raises:
        ValueError: for fewer, equal or non-finite values.

    Example:
        >>> import numpy as np
        >>> law = fit_skew_normal(np.random.default_rng(0).normal(loc=100, scale=5, size=2000))
        >>> 0.45 < float(law.cdf(np.array([100.0]))[0]) < 0.55
        True
    """
    if len(values) < 20 or not np.isfinite(values).all() or np.ptp(values) == 0:
        raise ValueError(f"a skew-normal fit needs at least 20 finite values that are not all equal; got {len(values)}")
    mean, deviation = float(values.mean()), float(values.std())
    z = (values - mean) / deviation
    start = _by_moments(z)

    def loss(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        location, log_scale, shape = at
        scale = np.exp(log_scale)
        u = (z - location) / scale
        log_phi = scipy.special.log_ndtr(shape * u)
        ratio = np.exp(-0.5 * (shape * u) ** 2 - 0.5 * np.log(2 * np.pi) - log_phi)
        value = log_scale + np.mean(0.5 * u**2 - log_phi)
        by_u = u - shape * ratio
        gradient = np.array([-by_u.mean() / scale, 1 - (by_u * u).mean(), -(u * ratio).mean()])
        return float(value), gradient

    best = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", bounds=[(-10, 10), (-10, 5), (-50, 50)])
    location, log_scale, shape = best.x
    return SkewNormal(mean + deviation * float(location), deviation * float(np.exp(log_scale)), float(shape))


def _by_moments(z: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (location, log scale, shape) of the distribution with the skewness of standardized values."""
    largest = (4 - np.pi) / 2 * (2 / (np.pi - 2)) ** 1.5
    skew = float(np.clip((z**3).mean(), -MOST_SKEWED * largest, MOST_SKEWED * largest))
    part = np.abs(skew) ** (2 / 3)
    delta = np.sign(skew) * np.sqrt(np.pi / 2 * part / (part + ((4 - np.pi) / 2) ** (2 / 3)))
    scale = 1 / np.sqrt(1 - 2 * delta**2 / np.pi)
    return np.array([-scale * delta * np.sqrt(2 / np.pi), np.log(scale), delta / np.sqrt(1 - delta**2)])


def goodness_of_fit(references: NDArray[np.float64], *, replicates: int, seed: int) -> float:
    """Return the parametric-bootstrap p-value of the Kolmogorov-Smirnov distance from a fitted skew-normal distribution.

    Args:
        references: (num_references,) log-perplexities of random candidates.
        replicates: number of samples of the fitted distribution, each of which is refitted.

    Example:
        >>> import numpy as np
        >>> two_humps = np.concatenate([np.linspace(-9, -8, 50), np.linspace(8, 9, 50)])
        >>> goodness_of_fit(two_humps, replicates=19, seed=0)  # no sample of a fitted law is as far away
        0.05
    """
    law, rng = fit_skew_normal(references), np.random.default_rng(seed)
    distance, further = _distance(references, law), 0
    for _ in range(replicates):
        sample = law.sample(len(references), rng)
        further += _distance(sample, fit_skew_normal(sample)) >= distance
    return (1 + further) / (1 + replicates)


def _distance(values: NDArray[np.float64], law: SkewNormal) -> float:
    """Return the Kolmogorov-Smirnov distance of a sample from a distribution."""
    below = law.cdf(np.sort(values))
    steps = np.arange(len(values) + 1) / len(values)
    return float(max((steps[1:] - below).max(), (below - steps[:-1]).max()))
