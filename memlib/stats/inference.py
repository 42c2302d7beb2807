"""Intervals and tests for proportions and paired comparisons: t, bootstrap, sign flips, McNemar, beta-binomial."""

import functools
import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

FEW = 10  # minimum number of units for a bootstrap
_CELLS = 2**23  # weights drawn at a time
_KEPT = 2**24  # largest number of weights that are kept for the next interval
_ROUNDING = 1e-3  # rounding error of sums of bootstrap weights, in units


def mcnemar_p(wins: int, losses: int) -> float:
    """Return the p-value of the exact one-sided McNemar test, P(Binomial(wins + losses, 1/2) >= wins); 1 if both are 0.

    Example:
        >>> mcnemar_p(wins=4, losses=0)  # (1/2)^4
        0.0625
    """
    return float(scipy.stats.binom.sf(wins - 1, wins + losses, 0.5)) if wins + losses else 1.0


def paired_t(differences: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute many paired one-sided t-tests at once: is the mean difference above 0?

    If all differences are equal, t is undefined: p is then 0 if they are above 0, else 1.

    Args:
        differences: (..., num_pairs), finite, at least two pairs.

    Returns:
        means and p-values, each (...).

    Raises:
        ValueError: for fewer than two pairs.
    """
    count = differences.shape[-1]
    if count < 2:
        raise ValueError(f"a paired test needs at least two pairs, not {count}")
    mean = differences.mean(axis=-1, dtype=np.float64)
    error = np.sqrt(differences.var(axis=-1, ddof=1, dtype=np.float64) / count)
    varies = error > 1e-12 * np.abs(mean)
    t = np.divide(mean, error, out=np.where(mean > 0, np.inf, -np.inf), where=varies)
    p: NDArray[np.float64] = np.where(varies, scipy.special.stdtr(count - 1, -t), np.where(mean > 0, 0.0, 1.0))
    return mean, p


def mean_interval(values: NDArray[np.float64], *, replicates: int, seed: int, level: float = 0.95) -> tuple[float, float]:
    """Return a bootstrap confidence interval of the mean of independent units, widened for small samples.

    The percentiles are those of Hesterberg's expanded bootstrap (2015, section 5.1), which uses Student's t and
    corrects for the bootstrap variance being too small by a factor of (n - 1) / n. Fewer than 10 units have too few distinct
    resamples for such percentiles; for them, Student's t interval is returned.

    Args:
        values: (num_units,), at least 2.
        replicates: number of bootstrap replicates.
        level: coverage.

    Example:
        >>> import numpy as np
        >>> values = np.random.default_rng(0).normal(size=200)
        >>> low, high = mean_interval(values, replicates=999, seed=0)
        >>> bool(low < values.mean() < high), 0.2 < high - low < 0.4
        (True, True)
    """
    count = len(values)
    assert count >= 2, "an interval needs two units"
    if count < FEW:
        t = scipy.stats.t.interval(level, count - 1, values.mean(), scipy.stats.sem(values)) if np.ptp(values) else values[:2]
        return float(t[0]), float(t[1])
    resamples = (_kept_resamples if replicates * count <= _KEPT else _resamples)(count, replicates, seed)
    half = math.sqrt(count / (count - 1)) * float(scipy.stats.t.ppf((1 + level) / 2, count - 1))
    tail = float(scipy.stats.norm.cdf(-half))
    low, high = np.quantile(resamples @ values / count, [tail, 1 - tail])
    return float(low), float(high)


def _resamples(count: int, replicates: int, seed: int) -> NDArray[np.unsignedinteger]:
    """Return how often each of `count` units is drawn in each replicate of a bootstrap, (replicates, count)."""
    rng, shares = np.random.default_rng(seed), np.full(count, 1 / count)
    drawn = (rng.multinomial(count, shares, size=size) for size in _chunks(replicates, count))
    parts = [part.astype(np.min_scalar_type(part.max())) for part in drawn]
    found = np.concatenate(parts)
    found.setflags(write=False)  # several intervals share it
    return found


# several scores of the same models are resampled alike; a multinomial costs fifty times as much as its use
_kept_resamples = functools.lru_cache(maxsize=8)(_resamples)


def largest_mean(values: NDArray[np.float64], *, level: float = 0.05) -> float:
    """Return a one-sided upper bound of the mean of independent values in [-1, 1], valid for any distribution.

    Values below 0 count as 0, which can only raise the mean; of values in [0, 1], binary ones vary most, so that Chernoff's
    inequality with the Kullback-Leibler divergence of binary variables holds (Hoeffding 1963, Theorem 1). Where all values
    are 0 or less, the bound is 1 - level^(1/n): memory that is rare and strong may have been missed by all n.

    Args:
        values: (num_units,), at least 1, none above 1.
        level: one minus the confidence level.

    Example:
        >>> import numpy as np
        >>> round(largest_mean(np.zeros(59)), 2)  # 1 - .05^(1/59)
        0.05
    """
    mean, limit = float(np.clip(values, 0, 1).mean()), -math.log(level) / len(values)

    def excess(bound: float) -> float:
        divergence = scipy.special.rel_entr(mean, bound) + scipy.special.rel_entr(1 - mean, 1 - bound)
        return float(divergence) - limit

    highest = 1 - 1e-12
    return 1.0 if excess(highest) <= 0 else float(scipy.optimize.brentq(excess, mean, highest, xtol=1e-9))


def exact_interval(hits: float, count: float, *, level: float = 0.95) -> tuple[float, float]:
    """Return the Clopper-Pearson confidence interval of a proportion of `count` independent units.

    Units may also be proportions themselves, with `hits` as their sum: no variable in [0, 1] varies more than binary hits, so
    the interval is wide enough even if all units are equal.

    Example:
        >>> [round(end, 3) for end in exact_interval(0, 10)]
        [0.0, 0.308]
    """
    tail = (1 - level) / 2
    low = float(scipy.stats.beta.ppf(tail, hits, count - hits + 1)) if hits > 0 else 0.0
    high = float(scipy.stats.beta.isf(tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def exchanges(num_units: int, permutations: int, *, seed: int) -> NDArray[np.int8]:
    """Return signs that exchange the two sides of units: all patterns but the identity if they are few, else random ones.

    If b of the exchanges reach the observed statistic, (1 + b) / (1 + num_exchanges) is an exact p-value.

    Args:
        permutations: largest number of exchanges.

    Returns:
        (num_exchanges, num_units) of 1 and -1.
    """
    if num_units < 62 and 2**num_units - 1 <= permutations:
        bits = np.arange(1, 2**num_units)[:, None] >> np.arange(num_units) & 1
        return (1 - 2 * bits).astype(np.int8)
    draws = np.random.default_rng(seed).integers(0, 2, size=(permutations, num_units), dtype=np.int8)
    return np.asarray(1 - 2 * draws, dtype=np.int8)


def threshold_rank(num_controls: int, alpha: float) -> int:
    """Return the largest k for which a score exceeds the k-th largest of exchangeable controls with probability <= alpha.

    With n controls the probability is k / (n + 1). k is 0 if even the largest control is exceeded more often, that is,
    with fewer than 1 / alpha - 1 controls.

    Example:
        >>> threshold_rank(99, alpha=0.05), threshold_rank(18, alpha=0.05)  # 18 controls are too few
        (5, 0)
    """
    return math.floor(alpha * (num_controls + 1) * (1 + 1e-12))


def exceedance_p(hits: int, count: int, *, rank: int, num_controls: int) -> float:
    """Return the p-value of `hits` out of `count` new scores exceeding the `rank`-th largest score of the controls.

    As this threshold is itself estimated, the number of exceedances of exchangeable scores is distributed as
    BetaBinomial(count, rank, num_controls + 1 - rank), which is wider than a binomial.

    Example:
        >>> round(exceedance_p(1, 1, rank=5, num_controls=99), 2)  # 5 / 100
        0.05
    """
    return float(scipy.stats.betabinom.sf(hits - 1, count, rank, num_controls + 1 - rank))


def bootstrap_weights(strata: NDArray[np.int64], replicates: int, *, seed: int) -> Iterator[NDArray[np.float32]]:
    """Yield the weight of each unit in each replicate of a stratified bootstrap.

    From a stratum of n units, n - 1 are drawn with weight n / (n - 1) each; otherwise the variance would be too small by a
    factor of (n - 1) / n, which matters in small strata (Rao and Wu 1988). A unit alone in its
    stratum keeps weight 1.

    Args:
        strata: (num_units,); units are resampled within their stratum.
        replicates: total number of replicates.

    Yields:
        (some replicates, num_units) float32; the weights in each stratum sum to its size.
    """
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    for size in _chunks(replicates, len(strata)):
        weights = np.empty((size, len(strata)), dtype=np.float32)
        for rows in members:
            draws = max(1, len(rows) - 1)
            counts = rng.multinomial(draws, np.full(len(rows), 1 / len(rows)), size=size)
            weights[:, rows] = counts * (len(rows) / draws)
        yield weights


def _chunks(total: int, width: int) -> Iterator[int]:
    size = max(1, _CELLS // max(1, width))
    for start in range(0, total, size):
        yield min(size, total - start)


def permutation_p(observed: float, null: NDArray[np.float64]) -> float:
    """Return the one-sided permutation p-value (1 + b) / (1 + B), where b of the B null values are at least as large.

    Example:
        >>> import numpy as np
        >>> permutation_p(3.0, np.arange(9))  # 6 of the 9 reach 3
        0.7
    """
    reached = int((null >= observed - 1e-12).sum())
    return (1 + reached) / (1 + len(null))


def percentile_interval(replicates: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile interval that contains the central `level` of the bootstrap replicates."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def widened_interval(
    replicates: NDArray[np.float64], repeats: NDArray[np.float64], *, level: float = 0.95, freedom: float = math.inf
) -> tuple[float, float]:
    """Return a confidence interval that covers the variation over both examples and repeated training runs.

    The half-widths from the bootstrap over examples and from the variation of the mean between repeats are added in
    quadrature. For the variation between repeats, Student's quantile with len(repeats) - 1 degrees of freedom is used.

    Args:
        replicates: (num_replicates,) bootstrap values of the mean over repeats.
        repeats: (num_repeats,) value of each repeat, at least 3.
        level: coverage.
        freedom: degrees of freedom of the variation over examples; finite where few groups of examples were resampled.
    """
    half, centre = _widened_half(replicates, repeats, 1 - level, freedom), float(repeats.mean())
    return centre - half, centre + half


def widened_p(replicates: NDArray[np.float64], repeats: NDArray[np.float64], *, freedom: float = math.inf) -> float:
    """Return the two-sided p-value of a mean of 0: one minus the level at which `widened_interval` just excludes 0.

    Args:
        replicates, repeats, freedom: as in `widened_interval`.
    """
    centre, least = abs(float(repeats.mean())), 1e-300

    def excess(p: float) -> float:
        return _widened_half(replicates, repeats, p, freedom) - centre

    if excess(1.0) >= 0:  # the mean is 0
        return 1.0
    return least if excess(least) < 0 else float(scipy.optimize.brentq(excess, least, 1.0, xtol=1e-12))


def _widened_half(replicates: NDArray[np.float64], repeats: NDArray[np.float64], p: float, freedom: float) -> float:
    """Return half the width of the interval of level 1 - p."""
    assert len(repeats) >= 3
    quantile = scipy.stats.norm.isf(p / 2) if math.isinf(freedom) else scipy.stats.t.isf(p / 2, freedom)
    examples = float(quantile) * math.sqrt(replicates.var(ddof=1))
    between = float(scipy.stats.t.isf(p / 2, len(repeats) - 1)) * math.sqrt(repeats.var(ddof=1) / len(repeats))
    return math.hypot(examples, between)


def paired_interval(gains: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the mean of paired differences in [-1, 1] that is never degenerate (Agresti, Min 2005).

    Half a unit is added to each cell of the paired table, which amounts to two units with gains of +-1/sqrt(2).
    """
    count = len(gains) + 2
    centre = gains.sum() / count
    spread = math.sqrt(max(0.0, np.square(gains).sum() + 1 - gains.sum() ** 2 / count)) / count
    half = float(scipy.stats.norm.ppf((1 + level) / 2)) * spread
    return max(-1.0, float(centre) - half), min(1.0, float(centre) + half)


def difference_interval(
    first: NDArray[np.float64], second: NDArray[np.float64], *, level: float = 0.95
) -> tuple[float, float]:
    """Return a confidence interval of the difference between the means of two samples of paired differences in [-1, 1].

    The interval is never degenerate: the intervals of the two means are combined as in Zou and Donner (2008) for independent
    samples.
    """
    means = [float(values.mean()) for values in (first, second)]
    (low_1, high_1), (low_2, high_2) = (paired_interval(values, level=level) for values in (first, second))
    apart = means[0] - means[1]
    down, up = math.hypot(means[0] - low_1, high_2 - means[1]), math.hypot(high_1 - means[0], means[1] - low_2)
    return max(-2.0, apart - down), min(2.0, apart + up)


class CutOff(Exception):
    """Error for a cut-off of a share that lies outside the range of distinguished confidence levels."""


class TopShare:
    """Accuracy among the share of most confident units under many weightings, computed from the totals of a few columns.

    Only confidence levels near the cut-off are distinguished: all higher levels are merged into one, and lower ones are
    dropped.

    Args:
        confidences: (num_units,) float64; equal numbers are ties.
        hits: (num_units,) bool, whether the unit's prediction is right.
        share: in (0, 1]; the number of chosen units is round(share * total weight), at least 1.
        weight: approximate total weight of a weighting; cut-offs vary more if it is small.
        width: distance from `share` up to which levels are distinguished, in standard deviations of a share of `weight`
            units.

    Attributes:
        columns: (num_units, 2 * num_levels) float32, indicators of the wrong and the right units of each level, the
            highest level first.
    """

    def __init__(
        self, confidences: NDArray[np.float64], hits: NDArray[np.bool_], share: float, *, weight: float, width: float
    ) -> None:
        _, level, count = np.unique(-confidences, return_inverse=True, return_counts=True)
        ends = np.cumsum(count) / len(hits)
        beside = width * (math.sqrt(share * (1 - share) / weight) + 1 / weight)
        first = int(np.searchsorted(ends, share - beside))
        last = min(len(ends) - 1, int(np.searchsorted(ends, share + beside)))
        self._joined, self._whole, self._share = first > 1, last == len(ends) - 1, share
        start = max(0, first - 1)  # the level into which all higher ones are merged
        units = np.flatnonzero(level <= last)
        place = 2 * np.maximum(0, level[units] - start) + hits[units]
        entries = (np.ones(len(units), dtype=np.float32), (units, place))
        self.columns = scipy.sparse.csr_array(entries, shape=(len(hits), 2 * (last - start + 1)))

    def accuracy(self, totals: NDArray[np.float64], weight: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Return the accuracy under each weighting; ties at the cut-off count with their expected value.

        Args:
            totals: (num_weightings, num_columns) weighted sums of the columns.
            weight: total weight of all units, either per weighting or one number for all.

        Returns:
            (num_weightings,) float64.

        Raises:
            CutOff: when a wider range of levels is needed.
        """
        right = totals[:, 1::2]
        count = totals[:, ::2] + right
        above = np.cumsum(count, axis=1)
        chosen = np.minimum(np.maximum(1.0, np.round(self._share * weight)), weight)
        last = (above < np.reshape(chosen, (-1, 1)) - _ROUNDING).sum(axis=1)  # the level that contains the cut-off
        if self._whole:
            last = np.minimum(last, count.shape[1] - 1)
        if (last == count.shape[1]).any() or (self._joined and (last == 0).any()):
            raise CutOff
        rows = np.arange(len(count))
        before = above[rows, last] - count[rows, last]
        right_before = np.cumsum(right, axis=1)[rows, last] - right[rows, last]
        accuracy: NDArray[np.float64] = (right_before + (chosen - before) * right[rows, last] / count[rows, last]) / chosen
        return accuracy


def accuracy_curve(
    confidences: NDArray[np.float64], hits: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the accuracy of the n most confident units for every n; ties count with their expected value.

    Returns:
        shares (num_units,), n / num_units, and accuracies (num_units,).
    """
    num_units = len(hits)
    levels, place, count = np.unique(-confidences, return_inverse=True, return_counts=True)
    right = np.bincount(place, weights=hits, minlength=len(levels))
    rate = np.repeat(right / count, count)  # each unit counts with the accuracy of its level
    n = np.arange(1, num_units + 1)
    return n / num_units, np.cumsum(rate) / n
