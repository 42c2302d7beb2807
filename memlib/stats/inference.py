"""Intervals and tests for proportions and paired comparisons: t, bootstrap, sign flips, McNemar, beta-binomial."""

import math
from collections.abc import Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

FEW = 10  # units that are too few for a bootstrap
_CELLS = 2**23  # weights drawn at a time
_ROUNDING = 1e-3  # of sums of bootstrap weights, in units


def mcnemar_p(wins: int, losses: int) -> float:
    """Exact one-sided McNemar test: P(Binomial(wins + losses, 1/2) >= wins); 1 when there is nothing to compare."""
    return float(scipy.stats.binom.sf(wins - 1, wins + losses, 0.5)) if wins + losses else 1.0


def paired_t(differences: NDArray[np.floating]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Many paired one-sided t-tests at once: is the mean difference above 0?

    Differences that do not vary have no t: p is 1 unless they are all above 0, when it is 0.

    Args:
        differences: (..., num_pairs), at least two pairs, finite.

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
    """A bootstrap interval of a mean of independent units, widened for few of them; Student's t below 10 units.

    The percentiles are those of Hesterberg's expanded bootstrap (2015, section 5.1): as far out as Student's t and
    the bootstrap's own narrowness by (n - 1) / n ask for. Fewer units than 10 cannot be resampled so far out.

    Args:
        values: (num_units,), at least 2.
        replicates: bootstrap replicates.
        seed: of the draws.
        level: coverage.
    """
    count = len(values)
    assert count >= 2, "an interval needs two units"
    if count < FEW:
        t = scipy.stats.t.interval(level, count - 1, values.mean(), scipy.stats.sem(values)) if np.ptp(values) else values[:2]
        return float(t[0]), float(t[1])
    counts = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=replicates)
    half = math.sqrt(count / (count - 1)) * float(scipy.stats.t.ppf((1 + level) / 2, count - 1))
    tail = float(scipy.stats.norm.cdf(-half))
    low, high = np.quantile(counts @ values / count, [tail, 1 - tail])
    return float(low), float(high)


def exact_interval(hits: float, count: int, *, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a proportion of `count` independent units.

    Units may be proportions themselves, of which `hits` is the sum: within 0 and 1 nothing varies more than hits do, so that
    the interval is wide enough, also where all units are alike.
    """
    tail = (1 - level) / 2
    low = float(scipy.stats.beta.ppf(tail, hits, count - hits + 1)) if hits > 0 else 0.0
    high = float(scipy.stats.beta.isf(tail, hits + 1, count - hits)) if hits < count else 1.0
    return low, high


def exchanges(num_units: int, permutations: int, *, seed: int) -> NDArray[np.int8]:
    """Signs of units under exchanges of their two sides: all but the identity where these are few, random ones otherwise.

    Together with the observed signs, (1 + b) / (1 + len) is then an exact p-value.

    Args:
        num_units: whose sides may be exchanged.
        permutations: at most so many.
        seed: of the draws.

    Returns:
        (num_exchanges, num_units) of 1 and -1.
    """
    if num_units < 62 and 2**num_units - 1 <= permutations:
        bits = np.arange(1, 2**num_units)[:, None] >> np.arange(num_units) & 1
        return (1 - 2 * bits).astype(np.int8)
    draws = np.random.default_rng(seed).integers(0, 2, size=(permutations, num_units), dtype=np.int8)
    return np.asarray(1 - 2 * draws, dtype=np.int8)


def threshold_rank(num_controls: int, alpha: float) -> int:
    """The k for which a new score exceeds the k-th largest of exchangeable controls with probability k / (n + 1) <= alpha.

    0 where even the largest is exceeded more often: there are fewer than 1 / alpha - 1 controls.
    """
    return math.floor(alpha * (num_controls + 1) * (1 + 1e-12))


def exceedance_p(hits: int, count: int, *, rank: int, num_controls: int) -> float:
    """P-value of how many of `count` new scores exceed the `rank`-th largest of the controls' scores.

    The threshold is itself estimated: when all scores are exchangeable the number is
    BetaBinomial(count, rank, num_controls + 1 - rank), which is wider than a binomial.
    """
    return float(scipy.stats.betabinom.sf(hits - 1, count, rank, num_controls + 1 - rank))


def bootstrap_weights(strata: NDArray[np.int64], replicates: int, *, seed: int) -> Iterator[NDArray[np.float32]]:
    """The weight of each unit in each replicate of a stratified bootstrap.

    A stratum of n units draws n - 1 with weight n / (n - 1) each, so that the variance is not too small by
    (n - 1) / n, which counts where classes are small (Rao and Wu 1988). A stratum of one keeps its unit.

    Args:
        strata: (num_units,), units of a stratum are resampled among themselves.
        replicates: how many replicates in all.
        seed: of the draws.

    Yields:
        (some replicates, num_units) float32, summing to each stratum's size.
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


def sign_flips(num_units: int, permutations: int, *, seed: int) -> Iterator[NDArray[np.float32]]:
    """Which units have the two sides of their pair exchanged: (some permutations, num_units) of 0 and 1."""
    rng = np.random.default_rng(seed)
    for size in _chunks(permutations, num_units):
        yield rng.integers(0, 2, size=(size, num_units)).astype(np.float32)


def _chunks(total: int, width: int) -> Iterator[int]:
    size = max(1, _CELLS // max(1, width))
    for start in range(0, total, size):
        yield min(size, total - start)


def permutation_p(observed: float, null: NDArray[np.float64]) -> float:
    """One-sided p-value of a value at least as large: (1 + how many of the null reach it) / (1 + their number)."""
    reached = int((null >= observed - 1e-12).sum())
    return (1 + reached) / (1 + len(null))


def percentile_interval(replicates: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """The central `level` of the bootstrap replicates."""
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def widened_interval(
    replicates: NDArray[np.float64], repeats: NDArray[np.float64], *, level: float = 0.95
) -> tuple[float, float]:
    """An interval over examples and over repeated trainings together.

    The half widths of the bootstrap over examples and of the mean's spread between repeats are added in squares; only the
    latter pays Student's quantile, with len(repeats) - 1 degrees of freedom.

    Args:
        replicates: (num_replicates,) bootstrap values of the mean over repeats.
        repeats: (num_repeats,) the value of each repeat, at least 3.
        level: coverage.
    """
    half, centre = _widened_half(replicates, repeats, 1 - level), float(repeats.mean())
    return centre - half, centre + half


def widened_p(replicates: NDArray[np.float64], repeats: NDArray[np.float64]) -> float:
    """The two-sided p-value of a mean of 0: one minus the level at which `widened_interval` just excludes it.

    Args:
        replicates, repeats: as there.
    """
    centre, least = abs(float(repeats.mean())), 1e-300

    def excess(p: float) -> float:
        return _widened_half(replicates, repeats, p) - centre

    if excess(1.0) >= 0:  # both spreads are 0 and so is the mean, or there is no mean
        return 1.0
    return least if excess(least) < 0 else float(scipy.optimize.brentq(excess, least, 1.0, xtol=1e-12))


def _widened_half(replicates: NDArray[np.float64], repeats: NDArray[np.float64], p: float) -> float:
    """Half the width of an interval that leaves out p."""
    assert len(repeats) >= 3
    examples = float(scipy.stats.norm.isf(p / 2)) * math.sqrt(replicates.var(ddof=1))
    between = float(scipy.stats.t.isf(p / 2, len(repeats) - 1)) * math.sqrt(repeats.var(ddof=1) / len(repeats))
    return math.hypot(examples, between)


def paired_interval(gains: NDArray[np.float64], *, level: float = 0.95) -> tuple[float, float]:
    """An interval of the mean of paired differences in [-1, 1] that is never degenerate (Agresti and Min 2005).

    Half a unit is added to each cell of the paired table, that is, two units with the gains +-1/sqrt(2).
    """
    count = len(gains) + 2
    centre = gains.sum() / count
    spread = math.sqrt(max(0.0, np.square(gains).sum() + 1 - gains.sum() ** 2 / count)) / count
    half = float(scipy.stats.norm.ppf((1 + level) / 2)) * spread
    return max(-1.0, float(centre) - half), min(1.0, float(centre) + half)


def difference_interval(
    first: NDArray[np.float64], second: NDArray[np.float64], *, level: float = 0.95
) -> tuple[float, float]:
    """An interval of the difference of the means of two samples of paired differences in [-1, 1], never degenerate.

    Each mean's own interval, put together as Zou and Donner (2008) do for independent samples.
    """
    means = [float(values.mean()) for values in (first, second)]
    (low_1, high_1), (low_2, high_2) = (paired_interval(values, level=level) for values in (first, second))
    apart = means[0] - means[1]
    down, up = math.hypot(means[0] - low_1, high_2 - means[1]), math.hypot(high_1 - means[0], means[1] - low_2)
    return max(-2.0, apart - down), min(2.0, apart + up)


class CutOff(Exception):
    """The cut-off of a share lies beyond the levels of confidence that are told apart."""


class TopShare:
    """Accuracy among the share of most confident units under many weightings, from totals of few columns.

    Far from the cut-off, levels of confidence need not be told apart: those above it are one column, those below it none.

    Args:
        confidences: (num_units,) float64; equal numbers are ties.
        hits: (num_units,) bool, whether the unit's prediction is right.
        share: in (0, 1]; the number chosen is round(share * weight of all units), at least 1.
        weight: of all units under a weighting, about; the fewer, the further cut-offs spread.
        width: how far from the share levels are told apart, in standard deviations of the share of so many units.

    Attributes:
        columns: (num_units, 2 * num_levels) float32, the wrong and the right units of each level, the highest first.
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
        start = max(0, first - 1)  # the level that those above are joined with
        units = np.flatnonzero(level <= last)
        place = 2 * np.maximum(0, level[units] - start) + hits[units]
        entries = (np.ones(len(units), dtype=np.float32), (units, place))
        self.columns = scipy.sparse.csr_array(entries, shape=(len(hits), 2 * (last - start + 1)))

    def accuracy(self, totals: NDArray[np.float64], weight: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Return the accuracy under each weighting; ties at the cut-off count in expectation.

        Args:
            totals: (num_weightings, num_columns) of the columns.
            weight: of all units, of each weighting or of all alike.

        Returns:
            (num_weightings,) float64.

        Raises:
            CutOff: where a wider range of levels is needed.
        """
        right = totals[:, 1::2]
        count = totals[:, ::2] + right
        above = np.cumsum(count, axis=1)
        chosen = np.minimum(np.maximum(1.0, np.round(self._share * weight)), weight)
        last = (above < np.reshape(chosen, (-1, 1)) - _ROUNDING).sum(axis=1)  # the level in which the cut falls
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
    """Accuracy of the n most confident units for every n, ties in expectation.

    Returns:
        shares (num_units,) n / num_units and accuracies (num_units,).
    """
    num_units = len(hits)
    levels, place, count = np.unique(-confidences, return_inverse=True, return_counts=True)
    right = np.bincount(place, weights=hits, minlength=len(levels))
    rate = np.repeat(right / count, count)  # each unit of a level is right with the level's rate
    n = np.arange(1, num_units + 1)
    return n / num_units, np.cumsum(rate) / n
