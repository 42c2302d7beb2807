"""Randomization tests: the assignment of units to two sides was drawn at random, so the null is simulated by redrawing it.

The null hypothesis is that a unit's side changes no answer. All draws of the design are then equally likely, so the level
holds for any statistic and any model, however it was trained (Fisher 1935; Rosenbaum 2002, section 2.4).
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.stats.inference import permutation_p

_CELLS = 2**23  # sides drawn at a time
POWER = 0.8
MOST_WORK = 3e8  # largest number of steps of an exact computation
SIGNED_WORK = 10.0  # steps per pair (number of 1s, number of -1s) in `signed_distribution`
MOST_REDRAWN = 2**28  # largest number of sides that are redrawn individually
MANY = 5.0  # standard deviation of a sum of answers from which on the normal law is close enough for a simulation
MANY_GROUPS = (
    100  # number of equal groups, as precise as unequal ones, from which on the same holds for a difference of means
)
QUICK_DRAWS = 199
POWER_DRAWS, FEW_UNITS = 60, 20_000  # draws of a simulated power, and units up to which all are used
LEAST = 1e-300  # smaller probabilities are dropped


@dataclass(frozen=True)
class Design:
    """A random assignment of groups of units to two sides; each stratum has a fixed number of groups on the first side.

    Example:
        >>> import numpy as np
        >>> first = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
        >>> design = Design.of(first, labels=np.zeros(8, dtype=int))  # 4 of 8 units were drawn
        >>> gains = np.array([1, 1, 1, 1, 0, 0, 0, 0])
        >>> design.difference(gains)
        1.0
        >>> round(design.tail_p(gains, permutations=999, seed=0), 4)  # one of 70 draws
        0.0143
    """

    first: NDArray[np.bool_]  #: (num_units,) bool, the units on the first side.
    stratum: NDArray[np.int64]  #: (num_units,) int, constant within a group.
    group: NDArray[np.int64]  #: (num_units,) int; units of one group are always on the same side.
    #: (num_redraws, num_units) bool, redraws to use instead of random ones, whatever their number and seed; if all draws but
    #: the observed one are given, every test by redraws is exact. None: redraws are random.
    given: NDArray[np.bool_] | None = dataclasses.field(default=None, kw_only=True)

    @classmethod
    def of(cls, first: NDArray[np.bool_], labels: NDArray[np.int64], groups: NDArray[np.int64] | None = None) -> "Design":
        """Return the design of a split that draws groups within the most frequent class of their units.

        Args:
            first: (num_units,) bool, the units on the first side.
            labels: (num_units,) classes.
            groups: (num_units,) int; by default each unit is a separate group.
        """
        if groups is None:
            return cls(first, labels, np.arange(len(labels)))
        numbers = np.unique(groups, return_inverse=True)[1]
        return cls(first, home_labels(labels, numbers)[numbers], numbers)

    def __post_init__(self) -> None:
        for name, values in (("side", self.first), ("stratum", self.stratum)):
            if not (values[self._start][self.number] == values).all():
                raise ValueError(f"a group has units in more than one {name}: groups are redrawn as wholes")

    @functools.cached_property
    def num_groups(self) -> int:
        """Number of groups."""
        return int(self.number.max(initial=-1)) + 1

    @property
    def has_groups(self) -> bool:
        """True if some units belong together."""
        return self.num_groups < len(self.group)

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64]:
        """Number of units of each group, (num_groups,)."""
        return np.bincount(self.number)

    @functools.cached_property
    def first_of_groups(self) -> NDArray[np.bool_]:
        """Mask of the groups on the first side, (num_groups,)."""
        return self.first[self._start]

    @functools.cached_property
    def membership(self) -> scipy.sparse.csr_array:
        """Indicators of each unit's group: (num_units, num_groups) of ones."""
        entries = (np.ones(len(self.group), dtype=np.float32), (np.arange(len(self.group)), self.number))
        return scipy.sparse.csr_array(entries, shape=(len(self.group), self.num_groups))

    @functools.cached_property
    def strata_of_groups(self) -> NDArray[np.int64]:
        """Index of each group's stratum, (num_groups,) from 0."""
        return np.unique(self.stratum[self._start], return_inverse=True)[1]

    @functools.cached_property
    def chosen_by_stratum(self) -> NDArray[np.int64]:
        """Number of groups of each stratum on the first side, (num_strata,)."""
        counts: NDArray[np.int64] = np.bincount(self.strata_of_groups, weights=self.first_of_groups).astype(np.int64)
        return counts

    def redraws(self, count: int, *, seed: int) -> Iterator[NDArray[np.bool_]]:
        """Yield (some redraws, num_units) bool, the units on the first side in each redraw.

        Args:
            count: total number of redraws.
        """
        for sides in self._group_redraws(count, seed=seed):
            yield sides[:, self.number]

    def redrawn_sums(self, values: NDArray[np.float64], count: int, *, seed: int) -> NDArray[np.float64]:
        """Return the sums of the values on the first side under redraws of the design.

        Args:
            values: (num_units,) or (num_units, num_statistics).

        Returns:
            (num_redraws,) or (num_redraws, num_statistics).
        """
        table = values.reshape(len(values), -1)
        by_group = np.stack([np.bincount(self.number, weights=column) for column in table.T], axis=1).astype(np.float64)
        return self._redrawn(by_group, count, seed=seed).reshape(-1, *values.shape[1:])

    def _redrawn(self, by_group: NDArray[np.float64], count: int, *, seed: int) -> NDArray[np.float64]:
        return np.concatenate([sides.astype(np.float64) @ by_group for sides in self._group_redraws(count, seed=seed)])

    @functools.cached_property
    def is_even(self) -> bool:
        """True if all groups of a stratum are equally large, so that no redraw changes the numbers of units on the sides."""
        return all(np.ptp(self.sizes[members]) == 0 for members, _ in self._strata)

    @property
    def is_drawn(self) -> NDArray[np.bool_]:
        """Mask of the units whose stratum has groups on both sides, (num_units,); no draw changes the side of the others."""
        chosen, sizes = self.chosen_by_stratum, np.bincount(self.strata_of_groups)
        mask: NDArray[np.bool_] = ((chosen > 0) & (chosen < sizes))[self.strata_of_groups][self.number]
        return mask

    @functools.cached_property
    def balance(self) -> float:
        """Sum over strata of n1 n2 / (n1 + n2), where n1 and n2 are the numbers of units on the two sides."""
        return float(self._balances(self.first_of_groups[None])[0])

    def difference(self, values: NDArray[np.floating | np.integer]) -> float:
        """Return the mean on the first side minus the mean on the second side, within strata.

        A stratum counts by n1 n2 / (n1 + n2), where n1 and n2 are its numbers of units on the two sides (Mantel and Haenszel
        1959), so that one with units on a single side does not count; 0 if all strata are such.

        Args:
            values: (num_units,).
        """
        return float(self._centred(values)[self.first_of_groups].sum() / self.balance) if self.balance else 0.0

    def redrawn_differences(self, values: NDArray[np.floating | np.integer], count: int, *, seed: int) -> NDArray[np.float64]:
        """Return `difference` under redraws, each with its own numbers of units on the sides: (num_redraws,).

        Args:
            values: (num_units,).
        """
        centred = self._centred(values)
        return np.concatenate([self._differences(centred, sides) for sides in self._group_redraws(count, seed=seed)])

    def _differences(self, centred: NDArray[np.float64], sides: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return `difference` for the first sides (num_draws, num_groups) of several draws, (num_draws,)."""
        weight = np.full(len(sides), self.balance) if self.is_even else self._balances(sides)
        sums = sides.astype(np.float64) @ centred
        return np.divide(sums, weight, out=np.zeros(len(sums)), where=weight > 0)

    def _every_draw(self) -> NDArray[np.bool_]:
        """Return the first side of every draw, (num_draws, num_groups)."""
        draws = list(itertools.product(*(itertools.combinations(members, chosen) for members, chosen in self._strata)))
        sides = np.zeros((len(draws), self.num_groups), dtype=bool)
        for row, parts in zip(sides, draws, strict=True):
            row[list(itertools.chain.from_iterable(parts))] = True
        return sides

    def _centred(self, values: NDArray[np.floating | np.integer]) -> NDArray[np.float64]:
        """Return each group's sum of the values minus the mean of its stratum, (num_groups,)."""
        sums, strata = np.bincount(self.number, weights=values), self.strata_of_groups
        mean = np.bincount(strata, weights=sums) / np.bincount(strata, weights=self.sizes)
        centred: NDArray[np.float64] = sums - self.sizes * mean[strata]
        return centred

    def _balances(self, sides: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return `balance` for the first sides (num_draws, num_groups) of several draws, (num_draws,)."""
        entries = (self.sizes.astype(np.float64), (np.arange(self.num_groups), self.strata_of_groups))
        by_stratum = scipy.sparse.csr_array(entries, shape=(self.num_groups, len(self._strata)))
        ours = np.asarray((by_stratum.T @ sides.T.astype(np.float64)).T)
        total = np.bincount(self.strata_of_groups, weights=self.sizes)
        balances: NDArray[np.float64] = (ours * (1 - ours / total)).sum(axis=1)
        return balances

    def tail_p(self, values: NDArray[np.int64], *, permutations: int, seed: int) -> float:
        """Return the share of all draws whose `difference` is at least the observed one.

        It is exact where groups are equally large within strata, as the sum on the first side then decides, and where there
        are few draws. Else, or if its computation would take more than a few seconds, return (1 + b) / (1 + permutations)
        from random draws.

        Args:
            values: (num_units,) integers.
            permutations: number of random draws if the share is not computed exactly.
            seed: seed of the random draws.
        """
        if not self.is_even:
            if math.prod(math.comb(len(members), chosen) for members, chosen in self._strata) <= permutations:
                every = self._differences(self._centred(values), self._every_draw())
                return float((every >= self.difference(values) - 1e-12).mean())
            return permutation_p(self.difference(values), self.redrawn_differences(values, permutations, seed=seed))
        observed = int(values[self.first].sum())
        by_group = np.rint(np.bincount(self.number, weights=values)).astype(np.int64)
        strata = [(by_group[members], chosen) for members, chosen in self._strata]
        if sum(_work(own, chosen) for own, chosen in strata) > MOST_WORK:
            return permutation_p(observed - 1e-9, self._null_of(by_group, permutations, seed=seed))
        total, lowest = _convolved([_distribution(own, chosen) for own, chosen in strata])
        return float(min(1.0, total[max(0, observed - lowest) :].sum()))

    def quick_p(self, values: NDArray[np.int64], *, draws: int, seed: int) -> float:
        """Approximate `tail_p` for simulations: by the normal law if many answers and groups vary, else by few draws."""
        deviation = self.null_deviation(values)
        many = self.is_even or float(self.sizes.sum()) ** 2 >= MANY_GROUPS * float((self.sizes**2).sum())
        if not many or deviation < MANY:
            return self.tail_p(values, permutations=draws, seed=seed)
        centred = self._centred(values)
        return float(scipy.stats.norm.sf((centred[self.first_of_groups].sum() - 0.5) / deviation))

    def _null_of(self, by_group: NDArray[np.int64], permutations: int, *, seed: int) -> NDArray[np.float64]:
        """Return sums of integers on the first side under redraws; for many groups, draw only the count of each integer."""
        if self.given is not None or permutations * self.num_groups <= MOST_REDRAWN:
            return self._redrawn(by_group[:, None].astype(np.float64), permutations, seed=seed)[:, 0]
        rng, null = np.random.default_rng(seed), np.zeros(permutations)
        for members, chosen in self._strata:
            distinct, counts = np.unique(by_group[members], return_counts=True)
            null += rng.multivariate_hypergeometric(counts, chosen, size=permutations, method="marginals") @ distinct
        return null

    def smallest_p(self, values: NDArray[np.floating | np.integer]) -> float:
        """Return the share of all draws that maximize the sum of the centred values on the first side.

        It is the smallest possible p-value. Values are centred by stratum.

        Args:
            values: (num_units,).
        """
        by_group = self._centred(values)
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

    def null_deviation(self, values: NDArray[np.floating | np.integer]) -> float:
        """Return the exact standard deviation, over redraws, of one side's sum of the values, centred within strata.

        Args:
            values: (num_units,).
        """
        by_group = self._centred(values)
        variance = 0.0
        for members, chosen in self._strata:
            count = len(members)
            if count > 1:
                variance += chosen * (count - chosen) / count * float(by_group[members].var(ddof=1))
        return math.sqrt(variance)

    @functools.cached_property
    def number(self) -> NDArray[np.int64]:
        """Index of each unit's group, (num_units,) from 0; not in the order of the units."""
        return np.unique(self.group, return_inverse=True)[1]

    @functools.cached_property
    def _start(self) -> NDArray[np.int64]:
        """Index of the first unit of each group, (num_groups,)."""
        return np.unique(self.group, return_index=True)[1]

    @functools.cached_property
    def _strata(self) -> tuple[tuple[NDArray[np.int64], int], ...]:
        """Groups of each stratum, and the number of them on the first side."""
        strata, chosen = self.strata_of_groups, self.chosen_by_stratum.tolist()
        if not len(strata):
            return ()
        members = np.split(np.argsort(strata, kind="stable"), np.cumsum(np.bincount(strata))[:-1])
        return tuple(zip(members, chosen, strict=True))

    def _group_redraws(self, count: int, *, seed: int) -> Iterator[NDArray[np.bool_]]:
        """Yield (some redraws, num_groups) bool, the groups on the first side in each redraw."""
        if self.given is not None:
            yield self.given[:, self._start]
            return
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
    """Return the distribution of the sum of some of the values, drawn without replacement.

    The values are visited one by one; each is drawn with its probability given how many were drawn before. Zeros come last
    and change nothing.

    Args:
        values: (count,) integers.
        chosen: number of values that are drawn.

    Returns:
        probabilities of the sums in ascending order, and the lowest of these sums.
    """
    moving = values[values != 0]
    low, high = int(moving[moving < 0].sum()), int(moving[moving > 0].sum())
    most = min(chosen, len(moving))
    table = np.zeros((most + 1, high - low + 1))
    table[0, -low] = 1.0
    taken = np.arange(most + 1)
    for place, value in enumerate(moving.tolist()):
        likely = np.clip((chosen - taken) / (len(values) - place), 0.0, 1.0)[:, None]
        moved = np.roll(table * likely, value, axis=1)  # wraps around only zeros, as the table is wide enough for every sum
        table = table * (1 - likely)
        table[1:] += moved[:-1]
    return table.sum(axis=0), low


def _distribution(values: NDArray[np.int64], chosen: int) -> tuple[NDArray[np.float64], int]:
    """Return the same as `sum_distribution`; values in -1, 0, 1 use the faster `signed_distribution`."""
    if np.abs(values).max(initial=0) > 1:
        return sum_distribution(values, chosen)
    return signed_distribution(len(values), int((values > 0).sum()), int((values < 0).sum()), chosen)


@functools.lru_cache(maxsize=4096)
def signed_distribution(count: int, ones: int, minus: int, chosen: int) -> tuple[NDArray[np.float64], int]:
    """Return the distribution of the sum of `chosen` values drawn without replacement from `count` entries 1, -1 and 0.

    Each probability is a sum of hypergeometric terms.

    Args:
        ones, minus: numbers of entries 1 and of entries -1.
        chosen: number of entries that are drawn.

    Returns:
        the same as `sum_distribution`.
    """
    up, down = _likely(count, ones, chosen)[:, None], _likely(count, minus, chosen)[None]
    logs = _log_binomials(ones, up) + _log_binomials(minus, down) - _log_binomials(count, np.array(chosen))
    logs = logs + _log_binomials(count - ones - minus, chosen - up - down)
    sums = (up - down + minus).ravel()
    probabilities = np.bincount(sums, weights=np.exp(logs).ravel(), minlength=ones + minus + 1)
    return probabilities.astype(np.float64), -minus


@functools.lru_cache(maxsize=4096)
def _likely(count: int, marked: int, chosen: int) -> NDArray[np.int64]:
    """Return the possible numbers of marked units among the chosen ones, except those of negligible probability."""
    taken = np.arange(marked + 1)
    logs = _log_binomials(marked, taken) + _log_binomials(count - marked, chosen - taken)
    return taken[logs - _log_binomials(count, np.array(chosen)) > math.log(LEAST)]


def _log_binomials(total: int, taken: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the logarithms of binomial coefficients; minus infinity where these are 0."""
    possible = (taken >= 0) & (taken <= total)
    inside = np.where(possible, taken, 0)
    log_factorial = scipy.special.gammaln
    logs = log_factorial(total + 1) - log_factorial(inside + 1) - log_factorial(total - inside + 1)
    return np.where(possible, logs, -np.inf)


def _convolved(parts: list[tuple[NDArray[np.float64], int]]) -> tuple[NDArray[np.float64], int]:
    """Return the distribution of a sum of independent terms, convolved in pairs; tails of negligible probability are cut."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)  # the last one may remain
        joined = [_trimmed(np.convolve(a, b), low + start) for (a, low), (b, start) in pairs]
        parts = joined + parts[len(joined) * 2 :]
    return parts[0] if parts else (np.ones(1), 0)


def _trimmed(probabilities: NDArray[np.float64], lowest: int) -> tuple[NDArray[np.float64], int]:
    kept = np.flatnonzero(probabilities > LEAST)
    return probabilities[kept[0] : kept[-1] + 1], lowest + int(kept[0])


def _work(values: NDArray[np.int64], chosen: int) -> float:
    if np.abs(values).max(initial=0) <= 1:
        up, down = (len(_likely(len(values), int(side.sum()), chosen)) for side in (values > 0, values < 0))
        return SIGNED_WORK * up * down
    moving = values[values != 0]
    return float(len(moving) * (min(chosen, len(moving)) + 1) * (np.abs(moving).sum() + 1))


def attributable_bound(
    design: Design, gains: NDArray[np.int64], right: NDArray[np.int64], *, permutations: int, seed: int, level: float = 0.05
) -> int | None:
    """Return a one-sided upper bound on the number of right answers that are due to a unit's side (Rosenbaum 2001).

    If `a` right answers were due to the side, the sums without them would look like a draw of the design. Answers are
    removed in an order that leaves a wide null distribution: group by group, first those of units that the other side's
    models answer correctly as well. The bound is the largest `a` whose lower tail is not rejected. (Without groups no order
    gives a wider null; with groups this one comes close.)

    Return None if no answer is right. Also return None if significantly fewer answers are right than random draws explain:
    this contradicts the assumption that a side can only add right answers. Right answers in strata with a single side, which
    no draw can test, all count as due to it.

    Args:
        design: the design.
        gains: (num_units,) right answers of the first side's models minus those of the second side's.
        right: (num_units,) right answers of the models of the unit's own side, summed over pairs.
        permutations, seed: number and seed of the random draws for tails that are not computed exactly.
        level: one minus the confidence level.

    Example:
        >>> import numpy as np
        >>> first = np.arange(40) < 20
        >>> design, right = Design.of(first, labels=np.zeros(40, dtype=int)), (first & (np.arange(40) % 2 == 0)).astype(int)
        >>> most = attributable_bound(design, right, right, permutations=999, seed=0)
        >>> least = attributable_least(design, right, right, permutations=999, seed=0, level=0.05)
        >>> 0 < least < most == int(right.sum())  # all ten right answers may be due to the side, and some are
        True
    """
    testable = design.is_drawn
    untested, right = int(right[~testable].sum()), right * testable
    without = _without(design, gains, right)

    def rejects(removed: int) -> bool:
        return design.tail_p(-without(removed), permutations=permutations, seed=seed) <= level

    low, high = 0, int(right.sum())  # the tail falls as more answers are removed
    if high == 0:
        return untested or None
    if rejects(0):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if rejects(middle) else (middle, high)
    return low + untested


def attributable_least(
    design: Design, gains: NDArray[np.int64], right: NDArray[np.int64], *, permutations: int, seed: int, level: float
) -> int:
    """Return a one-sided lower bound on the number of right answers that are due to a unit's side (Rosenbaum 2001).

    It is the smallest number of removed answers that leaves the sums looking like a draw of the design, in the same order of
    removal as for `attributable_bound`; 0 if nothing has to be removed.

    Args:
        design, gains, right, permutations, seed, level: as for `attributable_bound`.
    """
    without = _without(design, gains, right)

    def rejects(removed: int) -> bool:
        return design.tail_p(without(removed), permutations=permutations, seed=seed) <= level

    low, high = 0, int(right.sum())  # the tail grows as more answers are removed
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if rejects(middle) else (low, middle)
    return low


def detectable_answers(
    design: Design,
    gains: NDArray[np.int64],
    wrong: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    alpha: float,
    seed: int,
) -> int | None:
    """Return the number of right answers due to the sides that is detected with a power of 80 %; None if all are too few.

    Simulated at this design: the sides are drawn again, memory turns the wrong answers of random units into right ones, and
    the test is carried out. (A normal approximation from the null alone promises too much, as memory widens the null, too.)

    Args:
        gains: (num_units,) right answers of the first side's models minus those of the second side's.
        wrong: wrong answers of the first and of the second side's models on each unit, (num_units,) each; memory can turn
            those of the models of the unit's own side into right ones.
    """
    count = len(gains)
    draws = POWER_DRAWS if count <= FEW_UNITS else POWER_DRAWS // 3
    rng, needed = np.random.default_rng(seed), []
    for first in itertools.chain.from_iterable(design.redraws(draws, seed=seed)):
        drawn = dataclasses.replace(design, first=first)
        order = rng.permutation(count)
        own, sign = np.where(first, *wrong)[order], np.where(first, 1, -1)[order]
        total = np.cumsum(own)

        planted = np.zeros(count, dtype=np.int64)
        planted[order] = sign * own
        units = _fewest_found(drawn, gains, planted, order, alpha=alpha, seed=seed + 1)
        needed.append(math.inf if units is None else float(total[units - 1]) if units else 0.0)
    found = sorted(needed)[math.ceil(POWER * len(needed)) - 1]
    return None if math.isinf(found) else max(1, int(found))


def _fewest_found(
    design: Design,
    gains: NDArray[np.int64],
    planted: NDArray[np.int64],
    order: NDArray[np.int64],
    *,
    alpha: float,
    seed: int,
) -> int | None:
    """Return the number of units, in order, that must gain `planted` for the test to reject; None if all are too few."""

    draws, place = max(QUICK_DRAWS, math.ceil(5 / alpha)), np.argsort(order)

    def is_found(units: int) -> bool:
        return design.quick_p(gains + planted * (place < units), draws=draws, seed=seed) <= alpha

    low, high = 0, len(gains)  # fewer units are not enough, more are
    if not is_found(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_found(middle) else (middle + 1, high)
    return low


def _without(design: Design, gains: NDArray[np.int64], right: NDArray[np.int64]) -> Callable[[int], NDArray[np.int64]]:
    """Return a function that returns the gains after a number of right answers is removed, see `attributable_bound`."""
    sign = np.where(design.first, 1, -1)
    ordered = _least_favourable(design, sign * gains)
    order = np.repeat(ordered, right[ordered])

    def lowered(removed: int) -> NDArray[np.int64]:
        return np.asarray(gains - sign * np.bincount(order[:removed], minlength=len(gains)), dtype=np.int64)

    return lowered


def _least_favourable(design: Design, own: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the order of units in which `attributable_bound` removes their answers.

    Groups are sorted by ascending mean of `own`, the right answers of a unit under the models of its own side minus the
    right answers under the models of the other side. Ties are sorted by stratum, with groups of the two sides alternating.
    """
    numbers = np.unique(design.group, return_inverse=True)[1]
    mean = (np.bincount(numbers, weights=own) / np.bincount(numbers))[numbers]
    _, start = np.unique(numbers, return_index=True)
    place = np.lexsort((np.arange(len(start)), design.first[start], design.stratum[start]))
    changes = np.diff(design.stratum[start][place]).astype(bool) | np.diff(design.first[start][place])
    begins = np.flatnonzero(np.concatenate([[True], changes]))
    turns = np.empty(len(start), dtype=np.int64)  # rank of each group within its stratum and side
    turns[place] = np.arange(len(start)) - np.repeat(begins, np.diff([*begins, len(start)]))
    return np.lexsort((own, numbers, turns[numbers], design.stratum, mean))


def home_labels(labels: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the most frequent class of each group's units; the lowest one in case of a tie.

    Args:
        labels: (num_units,) classes.
        groups: (num_units,) int from 0.

    Returns:
        (num_groups,) classes.
    """
    order = np.lexsort((labels, groups))
    changes = np.diff(groups[order]).astype(bool) | np.diff(labels[order]).astype(bool)
    begins = np.flatnonzero(np.concatenate([[True], changes]))  # starts of runs of units of one group and class
    group, label, counts = groups[order][begins], labels[order][begins], np.diff([*begins, len(labels)])
    best = np.lexsort((label, -counts, group))
    homes: NDArray[np.int64] = label[best][np.unique(group[best], return_index=True)[1]]
    return homes


def two_sided_p(observed: float, null: NDArray[np.float64]) -> float:
    """Return twice the smaller of the two one-sided permutation p-values (1 + b) / (1 + B), at most 1.

    Example:
        >>> import numpy as np
        >>> two_sided_p(3.0, np.array([-1.0, 0.0, 1.0]))
        0.5
    """
    slack = 1e-9 * max(1.0, float(np.abs(null).max(initial=0.0)))
    above = (1 + int((null >= observed - slack).sum())) / (1 + len(null))
    below = (1 + int((null <= observed + slack).sum())) / (1 + len(null))
    return min(1.0, 2 * min(above, below))


def detectable(
    deviation: float, alpha: float, *, two_sided: bool = False, freedom: int | None = None, smallest_p: float = 0.0
) -> float | None:
    """Return the effect, in units of the statistic, that a test detects with a power of 80 %; None if it can detect none.

    It depends only on the null distribution, never on the observed effect. If the deviation is estimated from few units, it
    is by chance too small as often as too large, here and in the test that is to find the effect: quantiles are Student's t,
    and that of the power is wider by what the other estimate adds.

    Args:
        deviation: standard deviation of the statistic under the null.
        two_sided: whether the test is two-sided.
        freedom: degrees of freedom of the deviation; None: it is known.
        smallest_p: the step of the test's p-values, of which `alpha` may hold a few only.

    Example:
        >>> round(detectable(deviation=2.0, alpha=0.05), 2)  # (1.645 + 0.842) standard deviations
        4.97
        >>> round(detectable(deviation=2.0, alpha=0.05, freedom=4, smallest_p=1 / 32), 2)  # five pairs; a level of 1/32
        8.18
    """
    if deviation <= 0 or freedom == 0 or smallest_p > alpha:
        return None
    level = math.floor(alpha / smallest_p * (1 + 1e-12)) * smallest_p if smallest_p else alpha
    law = scipy.stats.norm() if freedom is None else scipy.stats.t(freedom)
    needed = law.isf(level / 2 if two_sided else level)
    wider = 1.0 if freedom is None else math.sqrt(1 + needed**2 / freedom)
    return float((needed + law.ppf(POWER) * wider) * deviation)


def smallest_two_class_p(first: int, second: int) -> float:
    """Return the smallest possible p-value of a one-sided test that redraws the sides of examples within two classes.

    With more than 1,000 examples on both sides it underflows to 0; the number is capped to keep the integers small.

    Args:
        first, second: number of examples of each class on the first and on the second side, at least 1.

    Example:
        >>> round(1 / smallest_two_class_p(2, 2))  # (4 choose 2) draws of each class
        36
    """
    return 1 / math.comb(first + second, min(first, second, 1000)) ** 2


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)
