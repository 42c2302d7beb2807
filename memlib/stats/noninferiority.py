"""Non-inferiority of one sample to another: Welch's one-sided limits, and the margin that a design can decide.

Gates import this module, so it computes Student's t with the standard library and numpy: scipy is slow to load.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05  # of each of the two one-sided limits
PASSES = 0.95  # probability with which a model like the baseline passes at the margin that can be decided
FEWEST = 3  # values on each side
_NODES = 60  # of each standard deviation in a numerical integral, and of the degrees of freedom
_TINY = 1e-300


@dataclass(frozen=True)
class Difference:
    """A difference of two means."""

    value: float  #: mean of the first sample minus that of the second.
    low: float  #: low, high: its one-sided 95 % limits.
    high: float
    error: float  #: its standard error.

    def outcome(self, margin: float, *, decidable: float) -> Literal["passed", "failed", "undecided"]:
        """Return failed if the first mean is shown to be the larger one and not shown to lie within the margin.

        Passed needs a margin that can be decided, and an upper limit below it.

        Args:
            margin: largest difference that does not matter.
            decidable: smallest margin that has power, see `decidable_margin`.
        """
        if self.high < margin and margin >= decidable:
            return "passed"
        return "failed" if self.low > 0 and self.high >= margin else "undecided"


def welch_difference(first: NDArray[np.float64], second: NDArray[np.float64]) -> Difference:
    """Return the difference between the means of two independent samples, with Welch's one-sided 95 % limits.

    Args:
        first, second: values, at least three each; some must differ from the others of their sample.

    Example:
        >>> import numpy as np
        >>> found = welch_difference(np.array([2.0, 3, 4]), np.array([1.0, 2, 3]))
        >>> found.value, round(found.low, 2), round(found.high, 2)  # 1 -+ 2.13 * .816
        (1.0, -0.74, 2.74)
    """
    assert min(len(first), len(second)) >= FEWEST, "fewer than three values have no spread to speak of"
    parts = [float(side.var(ddof=1)) / len(side) for side in (first, second)]
    assert sum(parts) > 0, "equal values have no standard error"
    value, error = float(first.mean() - second.mean()), math.sqrt(sum(parts))
    freedom = sum(parts) ** 2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    half = t_quantile(1 - LEVEL, freedom) * error
    return Difference(value, value - half, value + half, error)


def decidable_margin(deviation: float, count: int, planned: int) -> float:
    """Return the margin at which a sample of the baseline's own distribution passes with a probability of 95 %.

    It depends on the baseline and on the number of new values alone, so that it is known before the new values are. Both
    samples are taken as normal with one standard deviation, of which the given one is an estimate: the probability is over
    both samples, and over the error of this estimate. Memory differs between trainings with a longer tail than the normal
    law's, from which this error is larger: it is taken as that of half the values, as for an excess kurtosis of 2. The margin
    is 3.3 standard errors for many values, and more for few.

    Args:
        deviation: standard deviation of the baseline's values.
        count, planned: numbers of values of the baseline and of the new sample, at least three each.

    Example:
        >>> [round(decidable_margin(1.0, n, n) / (2 / n) ** 0.5, 1) for n in (3, 10, 1000)]  # in standard errors
        [28.9, 4.5, 3.3]
    """
    assert min(count, planned) >= FEWEST
    (theirs, weights), (ours, other) = _deviations((count - 1) / 2), _deviations(planned - 1)
    parts = np.square(theirs)[:, None] / count, np.square(ours)[None] / planned
    error = np.sqrt(parts[0] + parts[1])
    freedom = error**4 / (parts[0] ** 2 / (count - 1) + parts[1] ** 2 / (planned - 1))
    limit = _quantiles(freedom, min(count, planned) - 1, count + planned - 2) * error
    joint, spread = weights[:, None] * other[None], math.sqrt(1 / count + 1 / planned)

    def passes(factor: float) -> float:
        """Return the probability that the upper limit lies below the factor times the baseline's standard deviation."""
        return float((joint * _normal((factor * theirs[:, None] - limit) / spread)).sum())

    return deviation * _root(passes, PASSES, 0.0, 1000 * spread)


def t_cdf(t: float, freedom: float) -> float:
    """Return P(T <= t) of Student's t with any number of degrees of freedom.

    Example:
        >>> round(t_cdf(1.0, 1), 4)  # Cauchy: 1/2 + arctan(1) / pi
        0.75
    """
    tail = _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t)) / 2
    return 1 - tail if t > 0 else tail


def t_quantile(share: float, freedom: float) -> float:
    """Return the t with P(T <= t) = share, for a share between 1/2 and 1.

    Example:
        >>> round(t_quantile(0.95, 4), 3)
        2.132
    """
    assert 0.5 <= share < 1
    most = 1.0
    while t_cdf(most, freedom) < share:
        most *= 2
    return _root(lambda t: t_cdf(t, freedom), share, 0.0, most)


def _root(rising: Callable[[float], float], value: float, low: float, high: float) -> float:
    """Return where a rising function reaches a value between two ends, by bisection to the last digit."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < value else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function I_x(a, b) by Lentz's continued fraction (Press 2007, 6.4)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    fraction = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = _away(1 + term / c), 1 / _away(1 + term * d)
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a


def _away(value: float) -> float:
    """Return the value, moved away from 0, by which it will be divided."""
    return value if abs(value) > _TINY else _TINY


def _deviations(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return estimated standard deviations of a standard normal sample, and the probability of each: (num_nodes,) each."""
    reach = 6 / math.sqrt(freedom)
    ends = np.linspace(max(0.0, 1 - reach), 1 + reach, _NODES + 1)
    nodes = (ends[1:] + ends[:-1]) / 2
    logs = (freedom - 1) * np.log(nodes) - freedom * np.square(nodes) / 2
    weights = np.exp(logs - logs.max())
    return nodes, weights / weights.sum()


def _quantiles(freedom: NDArray[np.float64], least: float, most: float) -> NDArray[np.float64]:
    """Return `t_quantile` of the level for many degrees of freedom between two ends, interpolated in their inverse."""
    inverse = np.linspace(1 / most, 1 / least, _NODES)
    return np.interp(1 / freedom, inverse, [t_quantile(1 - LEVEL, 1 / one) for one in inverse])


def _normal(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the standard normal distribution function."""
    erf: NDArray[np.float64] = np.vectorize(math.erf, otypes=[np.float64])(values / math.sqrt(2))
    return np.asarray((1 + erf) / 2)
