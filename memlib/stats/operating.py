"""Quality of an attack's scores: AUC with its interval, ROC, and the share of members found at a controlled false alarm.

Units are independent examples or persons. A threshold is an order statistic of the non-members' scores, never a nominal
quantile of a fitted law, so that the expected false positive rate holds for exchangeable scores of any distribution.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.inference import exact_interval, threshold_rank

LARGE, MANY = 4, 10  # units of either side of a stratum, and small strata, from which their own spread is known


@dataclass(frozen=True)
class OperatingPoint:
    """Members and non-members above the k-th largest score of n non-members."""

    rank: int  #: k.
    num_members: int  #: num_members, num_nonmembers: numbers of units; the latter is n.
    num_nonmembers: int
    threshold: float  #: the k-th largest score of the non-members; only scores strictly above it count.
    hits: int  #: number of members above the threshold.
    #: tpr, tpr_interval: share of members above the threshold, and its 95 % Clopper-Pearson interval given the threshold.
    tpr: float
    tpr_interval: tuple[float, float]
    expected_fpr: float  #: k / (n + 1), the probability that a new non-member's score is above the threshold.
    #: central 95 % of Beta(k, n + 1 - k), the distribution of the threshold's true false positive rate.
    fpr_interval: tuple[float, float]


def auc(scores: NDArray[np.floating], member: NDArray[np.bool_], *, blocks: NDArray[np.int64] | None = None) -> float:
    """Return the probability that a member's score is above a non-member's, ties counted one half.

    Args:
        scores: (num_units,), higher for members.
        member: (num_units,) bool.
        blocks: (num_units,); only pairs of units of one block are compared. None: all pairs are.

    Returns:
        the AUC; .5 if there is no pair.

    Example:
        >>> import numpy as np
        >>> auc(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True]))  # 3 1/2 of 4 pairs
        0.875
    """
    assert scores.shape == member.shape, "one score for each unit"
    assert not np.isnan(scores).any(), "scores are numbers"
    wins, pairs = 0.0, 0
    for rows in _rows_of(blocks, len(scores)):
        inside, count = member[rows], int(member[rows].sum())
        ranks = scipy.stats.rankdata(scores[rows])
        wins += float(ranks[inside].sum()) - count * (count + 1) / 2
        pairs += count * (len(inside) - count)
    return wins / pairs if pairs else 0.5


def even_shares(member: NDArray[np.bool_], strata: NDArray[np.int64], *, seed: int) -> NDArray[np.bool_]:
    """Return units of which every stratum has the same share of members, as many as possible, chosen at random.

    One threshold for all units otherwise tells members by their stratum alone. A fraction of a member is drawn by lot, so
    that shares of small strata are equal on average.

    Args:
        member, strata: (num_units,), with units on both sides.

    Example:
        >>> import numpy as np
        >>> member = np.array([True, True, True, False, True, False, False, False])
        >>> kept = even_shares(member, np.repeat([0, 1], 4), seed=0)  # 3 of 4, and 1 of 4
        >>> kept.sum(), (kept & member).reshape(2, 4).sum(axis=1).tolist()
        (4, [1, 1])
    """
    ratio, rng = member.sum() / (~member).sum(), np.random.default_rng(seed)
    kept = np.zeros(len(member), dtype=bool)
    for rows in _rows_of(strata, len(member)):
        shuffled = rng.permutation(rows)
        inside, outside = shuffled[member[shuffled]], shuffled[~member[shuffled]]
        most = min(len(outside), math.floor(len(inside) / ratio + 1e-9))
        wanted = most * ratio
        kept[outside[:most]] = True
        kept[inside[: math.floor(wanted + 1e-9) + (rng.random() < wanted - math.floor(wanted + 1e-9))]] = True
    return kept


def auc_interval(
    scores: NDArray[np.floating],
    member: NDArray[np.bool_],
    *,
    groups: NDArray[np.int64] | None = None,
    blocks: NDArray[np.int64] | None = None,
    inflation: float = 1.0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Return a confidence interval of `auc` over groups of units; it is never degenerate.

    The wider ends of two intervals count: one with the variance of DeLong et al. (1988), for groups summed over their units
    (Obuchowski 1997), and one with that of Hanley and McNeil (1982) as a function of the AUC, inverted as a score interval
    (Newcombe 2006, method 5), with the numbers of units divided by the ratio of DeLong's variances with and without groups.
    The latter does not shrink to a point where every member scores above every non-member.

    Args:
        scores, member, blocks: as for `auc`.
        groups: (num_units,) int; units of one group are dependent. None: all units are independent.
        inflation: factor of the variance, for scores that are not independent of the membership of other units.
        level: coverage.

    Example:
        >>> import numpy as np
        >>> low, high = auc_interval(np.arange(20.0), np.arange(20) >= 10)  # a perfect order of 10 and 10
        >>> 0.7 < low < 0.9, high
        (True, 1.0)
    """
    value = auc(scores, member, blocks=blocks)
    if not 0 < member.sum() < len(member):
        return 0.0, 1.0
    influence = _influence(scores, member, blocks)
    alone = _clustered_variance(influence, np.arange(len(scores)))
    together = alone if groups is None else _clustered_variance(influence, groups)
    quantile = float(scipy.stats.norm.ppf((1 + level) / 2))
    half = quantile * math.sqrt(together * inflation)
    wider = 1.0 if groups is None else together / alone if alone > 0 else len(groups) / len(np.unique(groups))
    sizes = [max(1.0, float(side.sum()) / (max(1.0, wider) * inflation)) for side in (member, ~member)]
    low, high = _score_interval(value, sizes[0], sizes[1], quantile)
    return max(0.0, min(low, value - half)), min(1.0, max(high, value + half))


def interval_within(
    scores: NDArray[np.floating], member: NDArray[np.bool_], strata: NDArray[np.int64], *, level: float = 0.95
) -> tuple[float, float]:
    """Return a confidence interval of the AUC of pairs within strata, `auc(..., blocks=strata)`, for strata of any size.

    The variance is that of DeLong et al. (1988) inside strata with four units or more on both sides. Other strata count
    as clusters: the squares of their wins less the expected ones, times k / (k - 1), or, if there are fewer than ten, all
    pairs of a stratum as one. It gives an effective number of pairs, AUC (1 - AUC) / variance, with which the Clopper-
    Pearson interval is taken. (`auc_interval` with blocks misses in a fifth to a third of cases where strata have one to
    three units.)

    Args:
        scores, member: as in `auc`.
        strata: (num_units,).
        level: coverage.

    Returns:
        (0, 1) if no stratum has units on both sides.

    Example:
        >>> import numpy as np
        >>> scores, member = np.array([1.0, 0.0] * 20), np.arange(40) % 2 == 0
        >>> [round(end, 2) for end in interval_within(scores, member, np.arange(40) // 2)]  # 20 of 20 pairs won
        [0.83, 1.0]
    """
    wins, pairs, variance, most, largest = [], [], 0.0, 0, 0.0
    small = []
    for rows in _rows_of(strata, len(scores)):
        inside = member[rows]
        count, rest = int(inside.sum()), int((~inside).sum())
        if not count or not rest:
            continue
        wins.append(auc(scores[rows], inside) * count * rest)
        pairs.append(count * rest)
        most += min(count, rest)
        largest += 3 * count * rest / (count + rest)  # as many as at an AUC of one half: beyond it, the spread is ill known
        if min(count, rest) >= LARGE:
            spread = np.square(_influence(scores[rows], inside, None)).sum()
            variance += pairs[-1] ** 2 * float(spread)
        else:
            small.append(len(pairs) - 1)
    if not pairs:
        return 0.0, 1.0
    won, of = np.array(wins), np.array(pairs, dtype=float)
    value = float(won.sum() / of.sum())
    if len(small) >= MANY:
        variance += float(np.square(won[small] - value * of[small]).sum()) * len(small) / (len(small) - 1)
    else:
        variance += float(np.square(of[small]).sum()) * value * (1 - value)
    variance /= of.sum() ** 2
    certain = variance <= 1e-12 or not 0 < value < 1
    effective = float(most) if certain else min(float(of.sum()), largest, value * (1 - value) / variance)
    return exact_interval(value * effective, effective, level=level)


def roc(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ROC; tied scores share a point, so that the area under the connected points is the AUC.

    Args:
        scores, member: as in `auc`.

    Returns:
        (num_points,) shares of non-members and of members with scores at or above a threshold that falls from infinity.

    Example:
        >>> import numpy as np
        >>> fpr, tpr = roc(np.array([3.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]))
        >>> fpr.tolist(), tpr.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    levels, place = np.unique(-scores.astype(np.float64), return_inverse=True)
    above = [np.cumsum(np.bincount(place[side], minlength=len(levels))) / side.sum() for side in (~member, member)]
    fpr, tpr = (np.concatenate([[0.0], shares]) for shares in above)
    return fpr, tpr


def operating_point(scores: NDArray[np.floating], member: NDArray[np.bool_], fpr: float) -> OperatingPoint:
    """Return the share of members above the k-th largest score of n non-members, k = floor(fpr (n + 1)).

    A new non-member's score is above the threshold with probability k / (n + 1) <= fpr if all n + 1 scores are exchangeable.

    Args:
        scores, member: as in `auc`.
        fpr: the false positive rate to keep.

    Raises:
        UserError: where k is 0, that is, with fewer than 1 / fpr - 1 non-members.

    Example:
        >>> import numpy as np
        >>> scores, member = np.arange(198.0), np.arange(198) >= 99  # 99 non-members below 99 members
        >>> point = operating_point(scores, member, 0.05)
        >>> point.rank, point.threshold, point.hits, point.expected_fpr
        (5, 94.0, 99, 0.05)
    """
    count = int((~member).sum())
    rank = threshold_rank(count, fpr)
    if rank == 0:
        raise UserError(
            f"a false positive rate of {fpr:g} cannot be controlled with {count} non-members: provide at least "
            f"{math.ceil(1 / fpr - 1 - 1e-9)}, or report the members above all {count} non-members"
        )
    return _point(scores, member, rank)


def most_alarms(scores: NDArray[np.floating], member: NDArray[np.bool_], fpr: float, *, error: float = 0.05) -> float:
    """Return an upper confidence limit of the share of members that are named at a true false positive rate.

    The threshold that non-members exceed at this rate is not known: where an order statistic of theirs stands for it, the
    members above it are too few whenever it lies too high. The k-th largest of n non-members has a rate below `fpr` with
    probability delta = P(Beta(k, n + 1 - k) < fpr). Otherwise at most the members above it are named at `fpr`, and the
    Clopper-Pearson limit of their share at the error b holds; delta + (1 - delta) b = `error`. k is the rank that makes
    the limit smallest where members rank as non-members do; it follows from the numbers alone, never from scores. Tied
    units are put in an order at random, as whoever attacks has to do who keeps the rate.

    Args:
        scores, member: as in `auc`.
        fpr: the false positive rate.
        error: largest probability that the share is above the limit.

    Returns:
        the limit; 1 if no rank can keep the error.

    Example:
        >>> import numpy as np
        >>> scores, member = np.arange(500.0), np.arange(500) % 2 == 0  # members rank as non-members
        >>> round(most_alarms(scores, member, 0.01), 3)
        0.049
    """
    own, others = _in_order(scores, member)
    rank, _ = rank_above(len(others), len(own), fpr, error)
    if rank == 0:
        return 1.0
    return alarms_limit(int((own > others[-rank]).sum()), len(own), len(others), fpr, error=error)


def _in_order(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the places of members, and of non-members in rising order, in an order of all units; ties are drawn."""
    drawn = np.random.default_rng(0).random(len(scores))  # independent of membership, whatever the order of the units
    places = np.empty(len(scores), dtype=np.int64)
    places[np.lexsort((drawn, scores))] = np.arange(len(scores))
    return places[member], np.sort(places[~member])


def innocent_limit(num_members: int, num_nonmembers: int, fpr: float, *, error: float, tries: int, chance: float) -> float:
    """Return the limit of `most_alarms` below which all of some attacks stay where members rank as non-members do.

    Args:
        fpr, error: as in `most_alarms`.
        tries: number of attacks, taken as independent, which errs on the side of a larger limit.
        chance: probability with which the limits of all attacks are at most this one.

    Example:
        >>> round(innocent_limit(250, 250, 0.01, error=0.05, tries=7, chance=0.8), 3)
        0.094
    """
    rank, _ = rank_above(num_nonmembers, num_members, fpr, error)
    if rank == 0:
        return 1.0
    hits = int(scipy.stats.betabinom.ppf(chance ** (1 / tries), num_members, rank, num_nonmembers + 1 - rank))
    return alarms_limit(hits, num_members, num_nonmembers, fpr, error=error)


def alarms_limit(hits: int, num_members: int, num_nonmembers: int, fpr: float, *, error: float) -> float:
    """Return the limit of `most_alarms` where so many members are above the rank that it takes."""
    rank, beta = rank_above(num_nonmembers, num_members, fpr, error)
    if rank == 0 or hits >= num_members:
        return 1.0
    return float(scipy.stats.beta.isf(beta, hits + 1, num_members - hits))


@cache
def rank_above(num_nonmembers: int, num_members: int, fpr: float, error: float) -> tuple[int, float]:
    """Return the rank of the non-member whose rate stands for an upper limit, and the error left for the members' share.

    Returns:
        (0, 0) if no rank can keep the error.
    """
    ranks = np.arange(1, num_nonmembers + 1)
    missed = scipy.stats.beta.cdf(fpr, ranks, num_nonmembers + 1 - ranks)
    ranks, missed = ranks[missed < error], missed[missed < error]
    if not len(ranks) or not num_members:
        return 0, 0.0
    left = (error - missed) / (1 - missed)
    hits = num_members * ranks / (num_nonmembers + 1)  # of members who rank as non-members
    best = int(np.argmin(scipy.stats.beta.isf(left, hits + 1, num_members - hits)))
    return int(ranks[best]), float(left[best])


def above_all(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> OperatingPoint:
    """Return the share of members above all n non-members, where the expected false positive rate is 1 / (n + 1).

    Args:
        scores, member: as in `auc`.

    Example:
        >>> import numpy as np
        >>> point = above_all(np.array([5.0, 2.0, 3.0, 1.0]), np.array([True, True, False, False]))
        >>> point.tpr, point.threshold
        (0.5, 3.0)
    """
    return _point(scores, member, 1)


def _rows_of(blocks: NDArray[np.int64] | None, count: int) -> list[NDArray[np.int64]]:
    """Return the units of each block."""
    return [np.arange(count)] if blocks is None else [np.flatnonzero(blocks == block) for block in np.unique(blocks)]


def _influence(
    scores: NDArray[np.floating], member: NDArray[np.bool_], blocks: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """Return each unit's share of the error of the AUC: its placement less the mean of its side, times its weight in the AUC.

    The placement of a unit is the share of the other side's units of its block that it wins against (DeLong et al. 1988).
    """
    influence = np.zeros(len(scores))
    weights, parts = [], []
    for rows in _rows_of(blocks, len(scores)):
        inside = member[rows]
        count, rest = int(inside.sum()), int((~inside).sum())
        if not count or not rest:
            continue
        ranks = scipy.stats.rankdata(scores[rows])
        placed = np.empty(len(rows))
        placed[inside] = (ranks[inside] - scipy.stats.rankdata(scores[rows][inside])) / rest
        placed[~inside] = 1 - (ranks[~inside] - scipy.stats.rankdata(scores[rows][~inside])) / count
        error = placed - placed[inside].mean()
        for side, size in ((inside, count), (~inside, rest)):
            error[side] *= math.sqrt(size / max(1, size - 1)) / size  # unbiased, as in DeLong
        weights.append(count * rest)
        parts.append((rows, error))
    for weight, (rows, error) in zip(weights, parts, strict=True):
        influence[rows] = error * weight / sum(weights)
    return influence


def _clustered_variance(influence: NDArray[np.float64], groups: NDArray[np.int64]) -> float:
    """Return the sum over groups of the squared sums of their units' influence."""
    sums = np.bincount(np.unique(groups, return_inverse=True)[1], weights=influence)
    count = len(sums)
    finite = count / (count - 1) if len(groups) > count > 1 else 1.0  # few groups would look too alike
    return float(np.square(sums).sum()) * finite


def _score_interval(value: float, first: float, second: float, quantile: float) -> tuple[float, float]:
    """Return the AUCs at which Hanley and McNeil's law, with these numbers on the two sides, just reaches the estimate."""
    mean = (first + second) / 2 - 1

    def excess(theta: float) -> float:
        tails = 1 + mean * (1 - theta) / (2 - theta) + mean * theta / (1 + theta)
        return quantile * math.sqrt(max(0.0, theta * (1 - theta) * tails / (first * second))) - abs(theta - value)

    edge = 1e-9  # the law is degenerate at 0 and 1
    low = scipy.optimize.brentq(excess, 0.0, min(value, 1 - edge)) if value > edge else 0.0
    high = scipy.optimize.brentq(excess, max(value, edge), 1.0) if value < 1 - edge else 1.0
    return float(low), float(high)


def _point(scores: NDArray[np.floating], member: NDArray[np.bool_], rank: int) -> OperatingPoint:
    """Return the operating point at the `rank`-th largest score of the non-members."""
    own, others = scores[member], np.sort(scores[~member])
    threshold, count = float(others[-rank]), len(others)
    hits = int((own > threshold).sum())
    low, high = scipy.stats.beta.ppf([0.025, 0.975], rank, count + 1 - rank)
    return OperatingPoint(
        rank=rank,
        num_members=len(own),
        num_nonmembers=count,
        threshold=threshold,
        hits=hits,
        tpr=hits / len(own),
        tpr_interval=exact_interval(hits, len(own)),
        expected_fpr=rank / (count + 1),
        fpr_interval=(float(low), float(high)),
    )
