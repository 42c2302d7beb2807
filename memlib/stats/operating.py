"""Quality of an attack's scores: AUC with DeLong's interval, ROC, and the share of members found at a controlled false alarm.

Units are independent examples or persons. A threshold is an order statistic of the non-members' scores, never a nominal
quantile of a fitted law, so that the expected false positive rate holds for exchangeable scores of any distribution.
"""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.inference import exact_interval, threshold_rank


@dataclass(frozen=True)
class Roc:
    """The receiver operating characteristic, a point for each distinct score, from (0, 0) to (1, 1).

    Attributes:
        fpr, tpr: (num_points,) shares of non-members and of members with scores >= threshold, ascending.
        thresholds: (num_points,) descending; the first is infinite.
    """

    fpr: NDArray[np.float64]
    tpr: NDArray[np.float64]
    thresholds: NDArray[np.float64]


@dataclass(frozen=True)
class OperatingPoint:
    """Members and non-members above the k-th largest score of n non-members.

    Attributes:
        rank: k.
        num_members, num_nonmembers: numbers of units; the latter is n.
        threshold: the k-th largest score of the non-members; only scores strictly above it count.
        hits: number of members above the threshold.
        tpr, tpr_interval: share of members above the threshold, and its 95 % Clopper-Pearson interval given the threshold.
        expected_fpr: k / (n + 1), the probability that a new non-member's score is above the threshold.
        fpr_interval: central 95 % of Beta(k, n + 1 - k), the distribution of the threshold's true false positive rate.
    """

    rank: int
    num_members: int
    num_nonmembers: int
    threshold: float
    hits: int
    tpr: float
    tpr_interval: tuple[float, float]
    expected_fpr: float
    fpr_interval: tuple[float, float]


def auc(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> float:
    """Return the probability that a member's score is above a non-member's, ties counted half.

    Args:
        scores: (num_units,), higher for members.
        member: (num_units,) bool, some of each.

    Example:
        >>> import numpy as np
        >>> auc(np.array([3.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]))  # pairs: 1, 1, 1/2, 1
        0.875
    """
    return float(_placements(scores, member)[0].mean())


def auc_interval(scores: NDArray[np.floating], member: NDArray[np.bool_], *, level: float = 0.95) -> tuple[float, float]:
    """Return a confidence interval of the AUC for independent units (DeLong, DeLong and Clarke-Pearson 1988).

    Where every member's score is above (or below) every non-member's, the estimated variance is 0. The interval is then that
    of Clopper and Pearson for min(members, non-members) disjoint pairs, which are independent trials with the AUC as chance.

    Args:
        scores, member: as in `auc`, with at least two units of each kind.
        level: coverage.

    Example:
        >>> import numpy as np
        >>> member = np.arange(400) < 200
        >>> scores = np.random.default_rng(0).normal(size=400) + member  # true AUC: Phi(1 / sqrt 2) = .760
        >>> low, high = auc_interval(scores, member)
        >>> bool(low < 0.76 < high), 0.05 < high - low < 0.15
        (True, True)
    """
    value, error = _auc_and_error(scores, member)
    if error == 0:
        return _perfect(value, member, level)
    half = float(scipy.stats.norm.isf((1 - level) / 2)) * error
    return max(0.0, value - half), min(1.0, value + half)


def auc_upper(scores: NDArray[np.floating], member: NDArray[np.bool_], *, level: float = 0.95) -> float:
    """Return a one-sided upper confidence bound of the AUC, by DeLong's standard error.

    Args:
        scores, member: as in `auc_interval`.
        level: confidence of the bound.

    Example:
        >>> import numpy as np
        >>> member, scores = np.arange(400) < 200, np.random.default_rng(0).normal(size=400)
        >>> 0.5 < auc_upper(scores, member) < 0.6
        True
    """
    return auc_interval(scores, member, level=2 * level - 1)[1]


def roc(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> Roc:
    """Return the ROC; tied scores share a point, so that the area under the connected points is the AUC.

    Args:
        scores, member: as in `auc`.

    Example:
        >>> import numpy as np
        >>> curve = roc(np.array([3.0, 1.0, 1.0, 0.0]), np.array([True, True, False, False]))
        >>> curve.fpr.tolist(), curve.tpr.tolist()
        ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    levels, place = np.unique(-scores.astype(np.float64), return_inverse=True)
    above = [np.cumsum(np.bincount(place[side], minlength=len(levels))) / side.sum() for side in (~member, member)]
    fpr, tpr = (np.concatenate([[0.0], shares]) for shares in above)
    return Roc(fpr, tpr, np.concatenate([[math.inf], -levels]))


def operating_point(scores: NDArray[np.floating], member: NDArray[np.bool_], fpr: float) -> OperatingPoint:
    """Return the share of members above the k-th largest score of n non-members, k = floor(fpr (n + 1)).

    A new non-member's score is above the threshold with probability k / (n + 1) <= fpr if it is exchangeable with theirs.

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


def calibrated_p(scores: NDArray[np.floating], nonmember_scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return (1 + b) / (1 + n) of each unit, where b of n non-members have scores at least as large.

    It is a p-value of "this unit is not a member" if its score is then exchangeable with those of the n non-members, to which
    the unit itself must not belong.

    Args:
        scores: (num_units,).
        nonmember_scores: (n,).

    Example:
        >>> import numpy as np
        >>> calibrated_p(np.array([9.0, 1.0, -1.0]), np.array([0.0, 1.0, 2.0])).tolist()
        [0.25, 0.75, 1.0]
    """
    ordered = np.sort(nonmember_scores)
    reached = len(ordered) - np.searchsorted(ordered, scores, side="left")
    p_values: NDArray[np.float64] = (1 + reached) / (1 + len(ordered))
    return p_values


def _placements(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of non-members below each member and of members above each non-member, ties counted half."""
    assert scores.shape == member.shape, "one score for each unit"
    assert 0 < member.sum() < len(member), "the AUC compares members with non-members"
    assert not np.isnan(scores).any(), "scores are numbers"
    own, others = scores[member], scores[~member]
    return _share_below(own, others), 1 - _share_below(others, own)


def _share_below(values: NDArray[np.floating], others: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the share of the others below each value, ties counted half."""
    ordered = np.sort(others)
    twice = np.searchsorted(ordered, values, side="left") + np.searchsorted(ordered, values, side="right")
    shares: NDArray[np.float64] = twice / (2 * len(ordered))
    return shares


def _auc_and_error(scores: NDArray[np.floating], member: NDArray[np.bool_]) -> tuple[float, float]:
    """Return the AUC and DeLong's standard error."""
    sides = _placements(scores, member)
    assert min(map(len, sides)) >= 2, "an interval needs two members and two non-members"
    return float(sides[0].mean()), math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in sides))


def _perfect(value: float, member: NDArray[np.bool_], level: float) -> tuple[float, float]:
    """Return the interval of an AUC whose estimated variance is 0."""
    pairs = int(min(member.sum(), (~member).sum()))
    return exact_interval(value * pairs, pairs, level=level)


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
