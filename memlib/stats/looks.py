"""A test that is carried out while a training goes on: planned looks, each of which may stop it, at one level in all.

The coins that were tossed are one of R + 1 assignments: themselves, and R redraws of them. If the training does not depend on
the coins, each of these is as likely to be the actual one. At every look, those with the largest statistics are stopped while
their number in all, over all looks so far, stays within the share of the level that is spent by then; equal statistics are
stopped together or not at all. So at most floor(alpha (R + 1)) of the assignments are ever stopped, and the actual one is
among them with probability alpha at most, however the looks depend on one another; which looks are made must not depend on
the coins.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from memlib.stats.coins import ranks_within, statistics

Spending = Literal["late", "equal", "last_half"]
Statistic = Literal["auc_and_top", "auc"]
SPENDINGS: tuple[Spending, ...] = ("late", "equal", "last_half")
FEWEST_REDRAWS = 999
SLACK = 1e-9  # of numbers of assignments that rounding makes smaller
DECIMALS = 9  # of standardized statistics: what differs beyond is equal but for rounding


@dataclass(frozen=True)
class Looked:
    """The outcome of the looks so far."""

    stopped: int | None  #: number of the look, from 1, at which the test stopped the training; None: it did not.
    #: share of the assignments that were stopped earlier, or at the same look with a statistic as large; of a test that did
    #: not stop, at least so many that it exceeds alpha.
    p_value: float
    #: (num_looks,) share of the level spent by each look; 0 for looks that were missed, whose share is lost.
    spent: tuple[float, ...]


def shares(looks: int, spending: Spending) -> tuple[float, ...]:
    """Return the cumulative share of the level that may be spent by each look, the last always 1.

    Args:
        spending: late: the cube of the look's share, as memory grows with training; equal; or last_half: one half at the
            last look, and the other equally at the others.

    Example:
        >>> [round(share, 3) for share in shares(4, "late")], shares(2, "last_half")
        ([0.016, 0.125, 0.422, 1.0], (0.5, 1.0))
    """
    if looks == 1:
        return (1.0,)
    rules: Mapping[Spending, Callable[[int], float]] = {
        "late": lambda look: (look / looks) ** 3,
        "equal": lambda look: look / looks,
        "last_half": lambda look: 0.5 * look / (looks - 1),
    }
    return (*(rules[spending](look) for look in range(1, looks)), 1.0)


def fewest_redraws(looks: int, alpha: float) -> int:
    """Return the smallest number of redraws that a plan needs: 999, or 2 looks / alpha if larger."""
    return max(FEWEST_REDRAWS, int(np.ceil(2 * looks / alpha)))


def assignments(inside: NDArray[np.bool_], redraws: int, *, seed: int) -> NDArray[np.bool_]:
    """Return the coins and their redraws, (1 + redraws, num_canaries) bool: random orders of the coins, themselves first."""
    rng = np.random.default_rng(seed)
    return np.concatenate([inside[None], rng.permuted(np.tile(inside, (redraws, 1)), axis=1)])


def statistics_of(
    scores: NDArray[np.floating], assigned: NDArray[np.bool_], statistic: Statistic = "auc_and_top"
) -> NDArray[np.float64]:
    """Return the statistic of each assignment, larger for members that score higher: (num_assignments,).

    It is the largest of the standardized sums over members of ranks, and of the numbers of members among the 10, 20, 40, ...
    highest scores; or the rank sum alone. Missing scores (NaN) rank lowest.

    Args:
        scores: (num_canaries,).
        assigned: (num_assignments, num_canaries) bool, as from `assignments`.
    """
    known = np.where(np.isnan(scores), -np.inf, scores)
    columns = statistics(ranks_within(known, np.zeros(len(known), dtype=np.int64)))
    sums = assigned.astype(np.float64) @ (columns if statistic == "auc_and_top" else columns[:, :1])
    spread = sums.std(axis=0)
    moves = spread > 10.0**-DECIMALS
    if not moves.any():
        return np.zeros(len(assigned))
    largest: NDArray[np.float64] = ((sums - sums.mean(axis=0))[:, moves] / spread[moves]).max(axis=1)
    return largest.round(DECIMALS)


def looked(found: Sequence[NDArray[np.floating] | None], cumulative: Sequence[float], *, alpha: float) -> Looked:
    """Carry out the looks of a plan, the actual assignment being the first.

    The share of a look that was missed is lost: carried over, it would reward whoever removes looks.

    Args:
        found: statistics (num_assignments,) at each of the planned looks, as from `statistics_of`; None for a missed look,
            and for looks that are still to come.
        cumulative: share of the level that may be spent by each look, as from `shares`.
        alpha: level of all looks together.

    Example:
        >>> import numpy as np
        >>> rest = np.arange(99.0)
        >>> early, late = np.concatenate([[50.0], rest]), np.concatenate([[200.0], rest])
        >>> looked([early, late], (0.125, 1.0), alpha=0.05)
        Looked(stopped=2, p_value=0.01, spent=(0.125, 0.875))
        >>> looked([None, late], (0.5, 1.0), alpha=0.05).spent  # a look that was missed
        (0.0, 0.5)
        >>> looked([early, early], (0.125, 1.0), alpha=0.05).p_value
        0.5
    """
    assert len(found) == len(cumulative), "one entry for each planned look"
    steps = np.diff([0.0, *cumulative])
    made = [share if values is not None else 0.0 for share, values in zip(steps.tolist(), found, strict=True)]
    budgets = np.cumsum(made)
    open_, p_value = np.ones(max((len(values) for values in found if values is not None), default=1), dtype=bool), 1.0
    for place, values in enumerate(found):
        if values is None:
            continue
        before = int((~open_).sum())
        allowed = int(np.floor(alpha * budgets[place] * len(open_) + SLACK)) - before
        as_large = int((values[open_] >= values[0]).sum())
        p = (before + as_large) / len(open_)
        if as_large <= allowed:
            return Looked(place + 1, p, tuple(made))
        p_value = min(1.0, p / budgets[place])
        open_ &= values < _cut(np.sort(values[open_])[::-1], allowed)
    return Looked(None, float(p_value), tuple(made))


def _cut(order: NDArray[np.floating], allowed: int) -> float:
    """Return the smallest statistic that is stopped, given the largest ones first; infinity if none is."""
    while 0 < allowed < len(order) and order[allowed - 1] == order[allowed]:
        allowed -= 1  # equal statistics are stopped together, or not at all
    return float(order[allowed - 1]) if allowed > 0 else float("inf")
