"""Audit of canaries that fair coins put into a training set: a test of memory at planned looks, a bound of epsilon, a claim.

Two questions are asked, each at its own level: whether the scores depend on the coins at all (see `memlib.stats.looks`),
and whether the training can have been as private as its owner claims (one run, Steinke 2023). The coins put canaries in or
leave them out, which is add/remove adjacency. The bound of epsilon has no joint redraw over looks, as at epsilon > 0 only
the law of each look is bounded: it has few looks of its own, among which the level is divided.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.epsilon import Bound, ClaimTest, audit_one_run, exceeds, per_record
from memlib.stats.inference import permutation_p
from memlib.stats.looks import (
    FEWEST_REDRAWS,
    Looked,
    Spending,
    Statistic,
    assignments,
    fewest_redraws,
    looked,
    shares,
    statistics_of,
)
from memlib.stats.operating import auc, auc_interval

FEWEST_OF_EACH = 2  # for an interval of the AUC
REDRAWS = 9999
EPSILON_LOOKS = 4
Scope = Literal["checkpoints", "last"]


@dataclass(frozen=True)
class Plan:
    """The plan of the looks at a training, fixed with the coins."""

    looks: int = 1  #: number of looks; the last is at the end of the training.
    every_epochs: int | None = None  #: number of epochs between looks; None: they are equally spaced over the training.
    spending: Spending = "late"  #: see `memlib.stats.looks.shares`.
    alpha: float = 0.05  #: level of all looks together.
    statistic: Statistic = "auc and top"  #: see `memlib.stats.looks.statistics_of`.
    epsilon_looks: int = 1  #: number of looks at which epsilon is bounded, equally spaced, the last one included.
    redraws: int = REDRAWS  #: number of redraws of the coins.

    def __post_init__(self) -> None:
        if self.looks < 1 or not 1 <= self.epsilon_looks <= self.looks:
            raise UserError(f"{self.looks} looks, {self.epsilon_looks} of them at epsilon; give at least 1 of each")
        if not 0 < self.alpha < 1:
            raise UserError(f"alpha is {self.alpha}; give a level between 0 and 1, such as .05")
        if self.every_epochs is not None and self.every_epochs < 1:
            raise UserError(f"every_epochs is {self.every_epochs}; give a number of at least 1")
        least = FEWEST_REDRAWS if self.looks == 1 else fewest_redraws(self.looks, self.alpha)
        if self.redraws < least:
            raise UserError(f"{self.redraws} redraws are too few for {self.looks} looks at {self.alpha:g}; give {least}")

    @classmethod
    def of(cls, looks: int, *, alpha: float = 0.05, epsilon_looks: int | None = None, **more: object) -> "Plan":
        """Return a plan with as many redraws as its looks need, and with epsilon bounded at four of the looks."""
        if not 0 < alpha < 1 or looks < 1:
            return cls(looks, alpha=alpha)  # which says what is wrong
        few = min(EPSILON_LOOKS, looks) if epsilon_looks is None else epsilon_looks
        redraws = max(REDRAWS, fewest_redraws(looks, alpha))
        return cls(looks, alpha=alpha, epsilon_looks=few, redraws=redraws, **more)  # type: ignore[arg-type]

    @property
    def cumulative(self) -> tuple[float, ...]:
        """Share of the level that may be spent by each look."""
        return shares(self.looks, self.spending)

    def epsilon_shares(self, scope: Scope) -> dict[int, float]:
        """Return the share of the level at each of epsilon's looks, half of it at the last.

        Args:
            scope: what the claim is about: the training with all its checkpoints, or its last model alone.

        Example:
            >>> Plan.of(8).epsilon_shares("checkpoints")
            {2: 0.16666666666666666, 4: 0.16666666666666666, 6: 0.16666666666666666, 8: 0.5}
        """
        if scope == "last" or self.epsilon_looks == 1:
            return {self.looks: 1.0}
        places = sorted({math.ceil(self.looks * number / self.epsilon_looks) for number in range(1, self.epsilon_looks + 1)})
        return {place: 0.5 if place == self.looks else 0.5 / (len(places) - 1) for place in places}

    def step_of(self, look: int, steps: int) -> int:
        """Return the optimizer step of a look in a training of some steps; looks by epochs have none of their own."""
        return max(1, round(steps * look / self.looks))


@dataclass(frozen=True)
class CanaryResult:
    """The result of an audit of canaries."""

    num_canaries: int  #: num_canaries, num_inserted: numbers of canaries, and of those given to the trainer.
    num_inserted: int
    looked: Looked  #: the test that the scores depend on the coins.
    decisive: int  #: number of the look that stopped the training, else of the last one that was made.
    made: tuple[int, ...]  #: numbers of the looks that were made.
    p_values: Mapping[int, float]  #: p-value of each look alone, which allows for no other look.
    aucs: Mapping[int, float]  #: area under the ROC at each look.
    auc_interval: tuple[float, float]  #: 95 % confidence interval of the AUC at the decisive look.
    bound: (
        Bound | None
    )  #: the largest lower bound of epsilon for a canary with all its repeats; None if no look was epsilon's.
    bound_at: int | None  #: the look of the bound.
    epsilon_per_record: float | None  #: the bound for a single record; None if there are repeats and delta is positive.
    #: the test of the claimed epsilon per record, adjusted for all looks at epsilon; None without a claim, or if it cannot be
    #: compared.
    claim: ClaimTest | None

    @property
    def auc(self) -> float:
        """Area under the ROC at the decisive look."""
        return self.aucs[self.decisive]

    @property
    def stands_out(self) -> bool:
        """True if a few inserted canaries stand out, while the AUC's interval includes one half."""
        return self.looked.stopped is not None and self.auc_interval[0] <= 0.5


def audit_canaries(
    scores: Mapping[int, NDArray[np.floating]],
    inside: NDArray[np.bool_],
    plan: Plan,
    *,
    guesses: Sequence[int],
    repeats: int = 1,
    claimed: float | None = None,
    delta: float = 0.0,
    scope: Scope = "checkpoints",
    seed: int = 0,
) -> CanaryResult:
    """Test for memory of canaries at planned looks, bound epsilon, and test the claimed epsilon if there is one.

    Args:
        scores: by number of the look, (num_canaries,), higher for canaries that the model knows; missing (NaN) ones rank
            lowest.
        inside: (num_canaries,) bool, independent fair coins.
        plan: the looks, as they were fixed with the coins.
        guesses: numbers of guesses of the bound, fixed before the scores were seen.
        repeats: number of times that each inserted canary was given to the trainer.
        claimed: claimed epsilon for one record, under add/remove adjacency and at `delta`.
        delta: delta of the bound and of the claim.
        scope: what the claim is about: the training with all its checkpoints, or its last model alone.
        seed: seed of redraws and of the order of ties.

    Raises:
        UserError: when nearly all coins are equal, no planned look was made, or a number is out of bounds.

    Example:
        >>> import numpy as np
        >>> coins = np.random.default_rng(0).integers(0, 2, 100).astype(bool)
        >>> audit = audit_canaries({1: coins * 1.0}, coins, Plan(), guesses=(80,), claimed=1.0)
        >>> audit.looked.p_value, round(audit.bound.epsilon, 2), audit.claim.p_value < 1e-6
        (0.0001, 3.27, True)
    """
    check_coins(inside)
    made = tuple(sorted(scores))
    if not made or not set(made) <= set(range(1, plan.looks + 1)):
        raise UserError(f"no losses at any of the {plan.looks} planned looks; record them at the looks of the canaries' plan")
    assigned = assignments(inside, plan.redraws, seed=seed)
    found = {look: statistics_of(scores[look], assigned, plan.statistic) for look in made}
    outcome = looked([found.get(look) for look in range(1, plan.looks + 1)], plan.cumulative, alpha=plan.alpha)
    decisive = outcome.stopped or made[-1]
    filled = {look: _filled(scores[look]) for look in made}
    bounds = {
        look: audit_one_run(filled[look], inside, guesses=guesses, delta=delta, level=plan.alpha * share, seed=seed)
        for look, share in plan.epsilon_shares(scope).items()
        if look in made
    }
    best = max(bounds, key=lambda look: bounds[look].epsilon) if bounds else None
    bound = None if best is None else bounds[best]
    return CanaryResult(
        num_canaries=len(inside),
        num_inserted=int(inside.sum()),
        looked=outcome,
        decisive=decisive,
        made=made,
        p_values={look: permutation_p(float(values[0]), values[1:]) for look, values in found.items()},
        aucs={look: auc(values, inside) for look, values in filled.items()},
        auc_interval=auc_interval(filled[decisive], inside),
        bound=bound,
        bound_at=best,
        epsilon_per_record=None if bound is None else per_record(bound.epsilon, repeats, delta=delta),
        claim=_tested(bounds, plan.epsilon_shares(scope), claimed, repeats),
    )


def check_coins(inside: NDArray[np.bool_]) -> None:
    """Raise UserError if nearly all coins are equal."""
    inserted = int(inside.sum())
    if min(inserted, len(inside) - inserted) < FEWEST_OF_EACH:
        raise UserError(f"{inserted} of {len(inside)} canaries were inserted; draw more, so that there are some of each kind")


def _filled(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return scores of which missing and infinite ones are below, or above, all others."""
    known = scores[np.isfinite(scores)]
    low, high = (float(known.min()) - 1, float(known.max()) + 1) if len(known) else (-1.0, 1.0)
    return np.nan_to_num(scores.astype(np.float64), nan=low, neginf=low, posinf=high)


def _tested(
    bounds: Mapping[int, Bound], of_looks: Mapping[int, float], claimed: float | None, repeats: int
) -> ClaimTest | None:
    """Test a claim for one record: at delta 0, epsilon for all repeats is at most `repeats` times epsilon for one record.

    The p-value is the smallest over epsilon's looks, each divided by the look's share of the level.
    """
    if claimed is None or not bounds or (repeats > 1 and any(bound.delta > 0 for bound in bounds.values())):
        return None
    tests = {look: exceeds(bound, claimed * repeats) for look, bound in bounds.items()}
    p, smallest = (
        min(1.0, min(getattr(test, name) / of_looks[look] for look, test in tests.items()))
        for name in ("p_value", "smallest_p")
    )
    return ClaimTest(p, smallest)
