"""Adjusted p-values (Holm, Benjamini-Hochberg, max-T) and the combination of independent p-values."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Adjust p-values so that, with probability 1 - alpha, no adjusted p-value <= alpha is a false alarm (Holm 1979).

    Args:
        p_values: (num_tests,) p-values of one family, with any dependence.

    Returns:
        (num_tests,) adjusted p-values in the given order.

    Example:
        >>> holm([0.01, 0.04, 0.03]).round(2).tolist()  # 3, 2 and 1 times; none falls below a smaller one's
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, steps)
    return adjusted


def holm_over_families(families: Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    """Adjust p-values of several families, each already adjusted within itself, so that all families share one level.

    A family is as significant as its smallest p-value, and these are adjusted by Holm's steps: every p-value of the family
    with the smallest one is multiplied by the number of families, every p-value of the next one by one less, and none falls
    below the smallest p-value of an earlier family.

    Args:
        families: (num_tests,) p-values of each family, at least one.

    Returns:
        the adjusted p-values of each family, in the given order.

    Example:
        >>> [p.round(2).tolist() for p in holm_over_families([[0.01, 0.2], [0.03]])]
        [[0.02, 0.4], [0.03]]
    """
    adjusted = [np.asarray(values, dtype=np.float64) for values in families]
    reached = 0.0
    for step, place in enumerate(np.argsort([values.min() for values in adjusted], kind="stable")):
        adjusted[place] = np.minimum(1.0, np.maximum(reached, adjusted[place] * (len(families) - step)))
        reached = float(adjusted[place].min())
    return adjusted


def holm_in_groups(groups: Sequence[Sequence[float]]) -> list[NDArray[np.float64]]:
    """Adjust the p-values of two groups, each by Holm's method at half of the level; a group rejected whole passes it on.

    This is a graphical procedure (Bretz et al. 2009): all false alarms in both groups together have at most the level. An
    empty group takes no share.

    Args:
        groups: (num_tests,) p-values of the first and of the second group.

    Returns:
        the adjusted p-values of each group.

    Example:
        >>> [p.round(3).tolist() for p in holm_in_groups([[0.02], [0.03, 0.04]])]  # the first passes its half on
        [[0.04], [0.06, 0.06]]
    """
    alone = [holm(values) for values in groups]
    if any(not len(values) for values in alone):
        return alone
    first, second = alone
    return [
        np.minimum(np.minimum(1.0, 2 * own), np.maximum(2 * other.max(), own))
        for own, other in ((first, second), (second, first))
    ]


def benjamini_hochberg(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Adjust p-values so that the expected share of false alarms among adjusted p-values <= alpha is at most alpha (1995).

    Args:
        p_values: (num_tests,) p-values of one family, independent or positively dependent.

    Example:
        >>> benjamini_hochberg([0.01, 0.02, 0.5]).round(2).tolist()
        [0.03, 0.03, 0.5]
    """
    if not len(p_values):
        return np.zeros(0)
    import scipy  # imported late, as gates, which read findings, do without

    adjusted: NDArray[np.float64] = scipy.stats.false_discovery_control(np.asarray(p_values, dtype=np.float64), method="bh")
    return adjusted


ADJUSTMENTS = {"holm": holm, "benjamini-hochberg": benjamini_hochberg}


def max_t_p(observed: NDArray[np.float64], null: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjust one-sided permutation tests by the maximum of all statistics (Westfall and Young 1993, single step).

    Each statistic is standardized by its mean and standard deviation under the null, so that all share one scale.

    Args:
        observed: (num_tests,) statistics.
        null: (num_permutations, num_tests), all statistics under the same permutations.

    Returns:
        (num_tests,) p-values, (1 + b) / (1 + num_permutations); 1 for a statistic that no permutation changes.

    Example:
        >>> import numpy as np
        >>> null = np.random.default_rng(0).normal(size=(999, 3))
        >>> max_t_p(np.array([9.0, 0.0, -9.0]), null).round(3)[[0, 2]].tolist()
        [0.001, 1.0]
    """
    scale = null.std(axis=0)
    moves = scale > 1e-12 * np.maximum(1.0, np.abs(observed))
    if not moves.any():
        return np.ones(len(observed))
    centre = null[:, moves].mean(axis=0)
    top = ((null[:, moves] - centre) / scale[moves]).max(axis=1)
    reached = (top[:, None] >= (observed[moves] - centre) / scale[moves] - 1e-9).sum(axis=0)
    p = np.ones(len(observed))
    p[moves] = (1 + reached) / (1 + len(null))
    return p


def critical_deviation(null: NDArray[np.float64], level: float) -> float:
    """Return how many standard deviations a statistic must lie above its mean for a p-value of `max_t_p` up to a level.

    Args:
        null: as in `max_t_p`.

    Example:
        >>> import numpy as np
        >>> null = np.random.default_rng(0).normal(size=(99999, 1))
        >>> round(critical_deviation(null, 0.05), 1), round(critical_deviation(np.repeat(null, 3, axis=1), 0.05), 1)
        (1.6, 1.6)
    """
    scale = null.std(axis=0)
    moves = scale > 1e-12 * np.maximum(1.0, np.abs(null).max(axis=0))
    if not moves.any():
        return float("inf")
    top = np.sort(((null[:, moves] - null[:, moves].mean(axis=0)) / scale[moves]).max(axis=1))
    above = math.floor(level * (1 + len(null)) + 1e-9) - 1  # redraws that may reach a statistic which is significant
    return float(top[len(top) - above - 1]) if above >= 0 else float("inf")


def largest_p(statistics: NDArray[np.float64]) -> float:
    """Return the p-value of the largest of several standardized statistics, one-sided.

    The observed row enters mean and standard deviation like all others, so that the test is exact for few redraws, too.

    Args:
        statistics: (1 + num_redraws, num_statistics), the first row observed.

    Example:
        >>> import numpy as np
        >>> largest_p(np.array([[0.0, 9.0], [1.0, 0.0], [2.0, 1.0], [3.0, 2.0]]))
        0.25
    """
    spread = statistics.std(axis=0)
    moves = spread > 1e-12 * np.maximum(1.0, np.abs(statistics).max(axis=0))
    if not moves.any():
        return 1.0
    largest = ((statistics - statistics.mean(axis=0))[:, moves] / spread[moves]).max(axis=1)
    return float((largest >= largest[0] - 1e-9).mean())


def combined_p(p_values: Sequence[float]) -> float:
    """Combine independent p-values: the sum of ln(1 / p) is Gamma(m, 1) under the null (Fisher 1932).

    The result is conservative if the p-values are ranks among finitely many candidates. p-values from the same models or the
    same references are not independent and must not be combined in this way.

    Args:
        p_values: (m,) in (0, 1].

    Example:
        >>> round(combined_p([0.5]), 2), combined_p([0.01, 0.01]) < 0.01
        (0.5, True)
    """
    import scipy

    total = -float(np.log(np.asarray(p_values, dtype=np.float64)).sum())
    return float(scipy.stats.gamma.sf(total, len(p_values)))
