"""Tests by redrawing a random design: which units were on the first side was drawn, so it can be drawn again.

The null says that the side changes no answer. Under it every draw of the design is as likely as the one that was made, so
the level holds for any statistic and any model, however it was trained (Fisher 1935; Rosenbaum 2002, section 2.4).
"""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

_CELLS = 2**23  # sides drawn at a time
POWER = 0.8
MOST_WORK = 3e8  # steps of an exact count
SIGNED_WORK = 10.0  # steps of a count of ones and minus ones, for each pair of their numbers
MOST_REDRAWN = 2**28  # sides that are redrawn one by one
LEAST = 1e-300  # a probability below which nothing is kept


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
        for name, values in (("side", self.first), ("stratum", self.stratum)):
            if not (values[self._start][self._number] == values).all():
                raise ValueError(f"a group has more than one {name}")

    @functools.cached_property
    def num_groups(self) -> int:
        """Groups that are drawn as one."""
        return int(self._number.max(initial=-1)) + 1

    @functools.cached_property
    def membership(self) -> scipy.sparse.csr_array:
        """Which group each unit is in: (num_units, num_groups) of ones."""
        entries = (np.ones(len(self.group), dtype=np.float32), (np.arange(len(self.group)), self._number))
        return scipy.sparse.csr_array(entries, shape=(len(self.group), self.num_groups))

    @functools.cached_property
    def strata_of_groups(self) -> NDArray[np.int64]:
        """The number of each group's stratum, (num_groups,) from 0."""
        return np.unique(self.stratum[self._start], return_inverse=True)[1]

    @functools.cached_property
    def chosen_by_stratum(self) -> NDArray[np.int64]:
        """How many groups of each stratum are on the first side, (num_strata,)."""
        found: NDArray[np.int64] = np.bincount(self.strata_of_groups, weights=self.first[self._start]).astype(np.int64)
        return found

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
        by_group = np.stack([np.bincount(self._number, weights=column) for column in table.T], axis=1).astype(np.float64)
        return self._redrawn(by_group, count, seed=seed).reshape(count, *values.shape[1:])

    def _redrawn(self, by_group: NDArray[np.float64], count: int, *, seed: int) -> NDArray[np.float64]:
        return np.concatenate([sides.astype(np.float64) @ by_group for sides in self._group_redraws(count, seed=seed)])

    def tail_p(self, values: NDArray[np.int64], *, permutations: int, seed: int) -> float:
        """The share of all draws whose sum on the first side is at least the observed one, counted exactly.

        Where counting would take more than some seconds, (1 + b) / (1 + permutations) of random draws.

        Args:
            values: (num_units,) integers.
            permutations: draws when they are not counted.
            seed: of those.
        """
        observed = int(values[self.first].sum())
        by_group = np.rint(np.bincount(self._number, weights=values)).astype(np.int64)
        strata = [(by_group[members], chosen) for members, chosen in self._strata]
        if sum(_work(own, chosen) for own, chosen in strata) > MOST_WORK:
            null = self._null_of(by_group, permutations, seed=seed)
            return (1 + int((null >= observed - 1e-9).sum())) / (1 + permutations)
        total, lowest = _convolved([_distribution(own, chosen) for own, chosen in strata])
        return float(min(1.0, total[max(0, observed - lowest) :].sum()))

    def _null_of(self, by_group: NDArray[np.int64], permutations: int, *, seed: int) -> NDArray[np.float64]:
        """Sums of integers on the first side under redraws; where these are many, of how often each integer is drawn."""
        if permutations * self.num_groups <= MOST_REDRAWN:
            return self._redrawn(by_group[:, None].astype(np.float64), permutations, seed=seed)[:, 0]
        rng, null = np.random.default_rng(seed), np.zeros(permutations)
        for members, chosen in self._strata:
            distinct, counts = np.unique(by_group[members], return_counts=True)
            null += rng.multivariate_hypergeometric(counts, chosen, size=permutations, method="marginals") @ distinct
        return null

    def smallest_p(self, values: NDArray[np.float64]) -> float:
        """The share of all draws that make the sum on the first side largest: no p-value can lie below.

        Args:
            values: (num_units,).
        """
        by_group = np.bincount(self._number, weights=values)
        logs = 0.0
        for members, chosen in self._strata:
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
        for members, chosen in self._strata:
            count = len(members)
            if count > 1:
                variance += chosen * (count - chosen) / count * float(by_group[members].var(ddof=1))
        return math.sqrt(variance)

    @functools.cached_property
    def _number(self) -> NDArray[np.int64]:
        return np.unique(self.group, return_inverse=True)[1]

    @functools.cached_property
    def _start(self) -> NDArray[np.int64]:
        """The first unit of each group."""
        return np.unique(self.group, return_index=True)[1]

    @functools.cached_property
    def _strata(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        """The groups of each stratum, and how many of them are on the first side."""
        strata, chosen = self.strata_of_groups, self.chosen_by_stratum.tolist()
        if not len(strata):
            return ()
        members = np.split(np.argsort(strata, kind="stable"), np.cumsum(np.bincount(strata))[:-1])
        return tuple(zip(members, chosen, strict=True))

    def _group_redraws(self, count: int, *, seed: int) -> Iterator[NDArray[np.bool_]]:
        rng = np.random.default_rng(seed)
        strata, total = self._strata, self.num_groups
        size = max(1, _CELLS // max(1, total))
        for start in range(0, count, size):
            rows = min(size, count - start)
            sides = np.zeros((rows, total), dtype=bool)
            for members, chosen in strata:
                row = np.zeros(len(members), dtype=bool)
                row[:chosen] = True
                sides[:, members] = rng.permuted(np.broadcast_to(row, (rows, len(members))), axis=1)
            yield sides


def sum_distribution(values: NDArray[np.int64], chosen: int) -> tuple[NDArray[np.float64], int]:
    """The distribution of the sum of some of the values, drawn without replacement.

    One value after the other is taken with the probability that it has, given how many were taken before; zeros come last
    and change nothing.

    Args:
        values: (count,) integers.
        chosen: how many are drawn.

    Returns:
        probabilities of the sums from the lowest possible on, and that lowest sum.
    """
    moving = values[values != 0]
    low, high = int(moving[moving < 0].sum()), int(moving[moving > 0].sum())
    most = min(chosen, len(moving))
    table = np.zeros((most + 1, high - low + 1))
    table[0, -low] = 1.0
    taken = np.arange(most + 1)
    for place, value in enumerate(moving.tolist()):
        likely = np.clip((chosen - taken) / (len(values) - place), 0.0, 1.0)[:, None]
        moved = np.roll(table * likely, value, axis=1)  # the ends are wide enough for every sum
        table = table * (1 - likely)
        table[1:] += moved[:-1]
    return table.sum(axis=0), low


def _distribution(values: NDArray[np.int64], chosen: int) -> tuple[NDArray[np.float64], int]:
    """As `sum_distribution`; where no value is beyond 1, from how many are above and below 0 alone."""
    if np.abs(values).max(initial=0) > 1:
        return sum_distribution(values, chosen)
    return signed_distribution(len(values), int((values > 0).sum()), int((values < 0).sum()), chosen)


@functools.lru_cache(maxsize=4096)
def signed_distribution(count: int, ones: int, minus: int, chosen: int) -> tuple[NDArray[np.float64], int]:
    """The distribution of a sum of ones, minus ones and zeros drawn without replacement: a sum of hypergeometric terms."""
    up, down = _likely(count, ones, chosen)[:, None], _likely(count, minus, chosen)[None]
    logs = _log_binomials(ones, up) + _log_binomials(minus, down) - _log_binomials(count, np.array(chosen))
    logs = logs + _log_binomials(count - ones - minus, chosen - up - down)
    sums = (up - down + minus).ravel()
    found = np.bincount(sums, weights=np.exp(logs).ravel(), minlength=ones + minus + 1)
    return found.astype(np.float64), -minus


@functools.lru_cache(maxsize=4096)
def _likely(count: int, marked: int, chosen: int) -> NDArray[np.int64]:
    """How many marked units may be among those chosen of all, but for what is next to impossible."""
    taken = np.arange(marked + 1)
    logs = _log_binomials(marked, taken) + _log_binomials(count - marked, chosen - taken)
    return taken[logs - _log_binomials(count, np.array(chosen)) > math.log(LEAST)]


def _log_binomials(total: int, taken: NDArray[np.int64]) -> NDArray[np.float64]:
    """The logarithms of binomial coefficients, minus infinity where they are 0."""
    possible = (taken >= 0) & (taken <= total)
    inside = np.where(possible, taken, 0)
    log_factorial = scipy.special.gammaln
    found = log_factorial(total + 1) - log_factorial(inside + 1) - log_factorial(total - inside + 1)
    return np.where(possible, found, -np.inf)


def _convolved(parts: list[tuple[NDArray[np.float64], int]]) -> tuple[NDArray[np.float64], int]:
    """The distribution of a sum of independent terms, two by two, without ends that have no probability."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)  # the last one may be left
        joined = [_trimmed(np.convolve(a, b), low + start) for (a, low), (b, start) in pairs]
        parts = joined + parts[len(joined) * 2 :]
    return parts[0] if parts else (np.ones(1), 0)


def _trimmed(probabilities: NDArray[np.float64], lowest: int) -> tuple[NDArray[np.float64], int]:
    there = np.flatnonzero(probabilities > LEAST)
    return probabilities[there[0] : there[-1] + 1], lowest + int(there[0])


def _work(values: NDArray[np.int64], chosen: int) -> float:
    if np.abs(values).max(initial=0) <= 1:
        up, down = (len(_likely(len(values), int(side.sum()), chosen)) for side in (values > 0, values < 0))
        return SIGNED_WORK * up * down
    moving = values[values != 0]
    return float(len(moving) * (min(chosen, len(moving)) + 1) * (np.abs(moving).sum() + 1))


def attributable_bound(
    design: Design, gains: NDArray[np.int64], right: NDArray[np.int64], *, permutations: int, seed: int, level: float = 0.05
) -> int | None:
    """A one-sided upper bound on how many right answers are due to the side that their unit is on (Rosenbaum 2001).

    If a answers were, then without them the sums would look like a draw of the design. They are taken from where they leave
    a wide null: group by group, units whose other answer is right as well first; the bound is the largest a whose lower tail
    is not rejected. (Without groups this order is the widest; with them it is close to it.) None where no answer is right,
    so that nothing could have been due to anything, and where fewer are right than any draw explains, so that the model of
    answers that a side only adds is refuted.

    Args:
        design: the draw.
        gains: (num_units,) right answers of the first side's models minus those of the second's.
        right: (num_units,) right answers under the models of the unit's own side, over pairs.
        permutations, seed: for tails that are not counted exactly.
        level: one minus the confidence.
    """
    total = int(right.sum())
    if total == 0:
        return None
    sign = np.where(design.first, 1, -1)
    ordered = _least_favourable(design, sign * gains)
    order = np.repeat(ordered, right[ordered])

    def tail(removed: int) -> float:
        lowered = np.asarray(gains - sign * np.bincount(order[:removed], minlength=len(gains)), dtype=np.int64)
        return design.tail_p(-lowered, permutations=permutations, seed=seed)

    low, high = 0, total  # the tail falls as more is removed
    if tail(0) <= level:
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if tail(middle) > level else (low, middle - 1)
    return low


def _least_favourable(design: Design, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """The order in which answers are taken: other answers right too first, by stratum, groups of each side in turn."""
    numbers = np.unique(design.group, return_inverse=True)[1]
    mean = (np.bincount(numbers, weights=own) / np.bincount(numbers))[numbers]
    _, start = np.unique(numbers, return_index=True)
    place = np.lexsort((np.arange(len(start)), design.first[start], design.stratum[start]))
    changes = np.diff(design.stratum[start][place]).astype(bool) | np.diff(design.first[start][place])
    begins = np.flatnonzero(np.concatenate([[True], changes]))
    turns = np.empty(len(start), dtype=np.int64)  # of each group among those of its stratum and side
    turns[place] = np.arange(len(start)) - np.repeat(begins, np.diff([*begins, len(start)]))
    return np.lexsort((own, numbers, turns[numbers], design.stratum, mean))


def home_labels(labels: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class that most units of each group have, the lowest of equals.

    Args:
        labels: (num_units,) classes.
        groups: (num_units,) int from 0.

    Returns:
        (num_groups,).
    """
    order = np.lexsort((labels, groups))
    changes = np.diff(groups[order]).astype(bool) | np.diff(labels[order]).astype(bool)
    begins = np.flatnonzero(np.concatenate([[True], changes]))  # of the units of a group that are of one class
    group, label, counts = groups[order][begins], labels[order][begins], np.diff([*begins, len(labels)])
    best = np.lexsort((label, -counts, group))
    found: NDArray[np.int64] = label[best][np.unique(group[best], return_index=True)[1]]
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


def smallest_two_class_p(first: int, second: int) -> float:
    """Return the smallest p-value that a one-sided test can give which redraws who is on which side in two classes.

    With more than 1,000 examples on both sides it is 0, being smaller than any float; the integers are kept small.

    Args:
        first, second: examples of a class on either side, from 1.
    """
    return 1 / math.comb(first + second, min(first, second, 1000)) ** 2


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
