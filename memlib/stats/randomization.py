"""Tests by redrawing a random design: which units were on the first side was drawn, so it can be drawn again.

The null says that the side changes no answer. Under it every draw of the design is as likely as the one that was made, so
the level holds for any statistic and any model, however it was trained (Fisher 1935; Rosenbaum 2002, section 2.4).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import NDArray

_CELLS = 2**23  # sides drawn at a time
POWER = 0.8


@dataclass(frozen=True)
class Design:
    """A draw of sides within strata, whole groups together; each stratum keeps its number of groups on the first side.

    Attributes:
        first: (num_units,) bool, who is on the first side.
        stratum: (num_units,) int, constant within a group.
        group: (num_units,) int; units of one group are always on one side.
    """

    first: NDArray[np.bool_]
    stratum: NDArray[np.int64]
    group: NDArray[np.int64]

    @classmethod
    def of(cls, first: NDArray[np.bool_], labels: NDArray[np.int64], groups: NDArray[np.int64] | None = None) -> "Design":
        """The design of a split that draws groups within the class that most of their units have.

        Args:
            first: (num_units,) bool.
            labels: (num_units,) classes.
            groups: (num_units,) int; by default each unit is a group of its own.
        """
        if groups is None:
            return cls(first, labels, np.arange(len(labels)))
        numbers = np.unique(groups, return_inverse=True)[1]
        return cls(first, home_labels(labels, numbers)[numbers], numbers)

    def __post_init__(self) -> None:
        _, start = np.unique(self.group, return_index=True)
        for name, values in (("side", self.first), ("stratum", self.stratum)):
            if not (values[start][np.unique(self.group, return_inverse=True)[1]] == values).all():
                raise ValueError(f"a group has more than one {name}")

    @property
    def num_groups(self) -> int:
        """Groups that are drawn as one."""
        return len(np.unique(self.group))

    def redraws(self, count: int, *, seed: int) -> Iterator[NDArray[np.bool_]]:
        """Yield (some redraws, num_units) bool, who would be on the first side.

        Args:
            count: redraws in all.
            seed: of the draws.
        """
        for sides in self._group_redraws(count, seed=seed):
            yield sides[:, self._number]

    def redrawn_sums(self, values: NDArray[np.float64], count: int, *, seed: int) -> NDArray[np.float64]:
        """Sums of the values on the first side under redraws of the design.

        Args:
            values: (num_units,) or (num_units, num_statistics).
            count: redraws.
            seed: of the draws.

        Returns:
            (count,) or (count, num_statistics).
        """
        table = values.reshape(len(values), -1)
        by_group = np.stack([np.bincount(self._number, weights=column) for column in table.T], axis=1)
        drawn = [sides.astype(np.float64) @ by_group for sides in self._group_redraws(count, seed=seed)]
        return np.concatenate(drawn).reshape(count, *values.shape[1:])

    def smallest_p(self, values: NDArray[np.float64]) -> float:
        """The share of all draws that make the sum on the first side largest: no p-value can lie below.

        Args:
            values: (num_units,).
        """
        by_group = np.bincount(self._number, weights=values)
        logs = 0.0
        for members, chosen in self._strata():
            ordered = np.sort(by_group[members])[::-1]
            if chosen in (0, len(ordered)):
                continue
            cut = ordered[chosen - 1]
            ties = np.isclose(ordered, cut)
            free = int(ties.sum())
            taken = chosen - int((ordered > cut)[~ties].sum())
            logs += _log_choose(free, taken) - _log_choose(len(ordered), chosen)
        return math.exp(logs)

    def null_deviation(self, values: NDArray[np.float64]) -> float:
        """Standard deviation of the sum on the first side under redraws, exactly.

        Args:
            values: (num_units,).
        """
        by_group = np.bincount(self._number, weights=values)
        variance = 0.0
        for members, chosen in self._strata():
            count = len(members)
            if count > 1:
                variance += chosen * (count - chosen) / count * float(by_group[members].var(ddof=1))
        return math.sqrt(variance)

    @property
    def _number(self) -> NDArray[np.int64]:
        return np.unique(self.group, return_inverse=True)[1]

    def _strata(self) -> Iterator[tuple[NDArray[np.int64], int]]:
        """The groups of each stratum, and how many of them are on the first side."""
        _, start = np.unique(self.group, return_index=True)
        stratum, first = self.stratum[start], self.first[start]
        for which in np.unique(stratum):
            members = np.flatnonzero(stratum == which)
            yield members, int(first[members].sum())

    def _group_redraws(self, count: int, *, seed: int) -> Iterator[NDArray[np.bool_]]:
        rng = np.random.default_rng(seed)
        strata, total = list(self._strata()), self.num_groups
        size = max(1, _CELLS // max(1, total))
        for start in range(0, count, size):
            rows = min(size, count - start)
            sides = np.zeros((rows, total), dtype=bool)
            for members, chosen in strata:
                row = np.zeros(len(members), dtype=bool)
                row[:chosen] = True
                sides[:, members] = rng.permuted(np.broadcast_to(row, (rows, len(members))), axis=1)
            yield sides


def home_labels(labels: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class that most units of each group have, the lowest of equals.

    Args:
        labels: (num_units,) classes.
        groups: (num_units,) int from 0.

    Returns:
        (num_groups,).
    """
    classes, place = np.unique(labels, return_inverse=True)
    counts = np.zeros((int(groups.max()) + 1, len(classes)), dtype=np.int64)
    np.add.at(counts, (groups, place), 1)
    found: NDArray[np.int64] = classes[counts.argmax(axis=1)]
    return found


def two_sided_p(observed: float, null: NDArray[np.float64]) -> float:
    """Twice the smaller of both one-sided permutation p-values, (1 + b) / (1 + B) each, at most 1."""
    slack = 1e-9 * max(1.0, float(np.abs(null).max(initial=0.0)))
    above = (1 + int((null >= observed - slack).sum())) / (1 + len(null))
    below = (1 + int((null <= observed + slack).sum())) / (1 + len(null))
    return min(1.0, 2 * min(above, below))


def detectable(deviation: float, alpha: float, *, two_sided: bool = False) -> float | None:
    """The effect that a test of this null deviation finds with a power of 80 %, in the statistic's unit.

    It rests on the size of the data alone, never on the effect that was observed. None when nothing varies.

    Args:
        deviation: standard deviation of the statistic under the null.
        alpha: level.
        two_sided: whether the test is.
    """
    if deviation <= 0:
        return None
    quantile = scipy.stats.norm.isf(alpha / 2 if two_sided else alpha) + scipy.stats.norm.ppf(POWER)
    return float(quantile * deviation)


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
