"""Audit of canaries that fair coins put into a training set: a test of memory at planned looks, a bound of epsilon, a claim.

Two questions are asked, each at its own level: whether the scores depend on the coins at all (see `memlib.stats.looks`),
and whether the training can have been as private as its owner claims (one run, Steinke 2023). The coins put canaries in or
leave them out, which is add/remove adjacency. The bound of epsilon has no joint redraw over looks, as at epsilon > 0 only
the law of each look is bounded: it has few looks of its own, among which the level is divided.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.epsilon import Bound, ClaimTest, audit_one_run, exceeds, per_record
from memlib.stats.inference import permutation_p
from memlib.stats.looks import (
    FEWEST_REDRAWS,
    SPENDINGS,
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
MOST_LOOKS, MOST_REDRAWS, LEAST_ALPHA = 1000, 100_000, 1e-4
STATISTICS: tuple[Statistic, ...] = ("auc_and_top", "auc")
Scope = Literal["checkpoints", "last"]


@dataclass(frozen=True)
class Plan:
    """The plan of the looks at a training, fixed with the coins."""

    looks: int = 1  #: number of looks; the last is at the end of the training.
    every_epochs: int | None = None  #: number of epochs between looks; None: they are equally spaced over the training.
    spending: Spending = "late"  #: see `memlib.stats.looks.shares`.
    alpha: float = 0.05  #: level of all looks together.
    statistic: Statistic = "auc_and_top"  #: see `memlib.stats.looks.statistics_of`.
    epsilon_looks: int = 1  #: number of looks at which epsilon is bounded, equally spaced, the last one included.
    redraws: int = REDRAWS  #: number of redraws of the coins.

    def __post_init__(self) -> None:
        whole = (self.looks, self.epsilon_looks, self.redraws, 1 if self.every_epochs is None else self.every_epochs)
        if any(type(number) is not int for number in whole) or type(self.alpha) is not float:
            raise UserError("a plan has whole numbers of looks, epochs and redraws, and a level")
        if self.spending not in SPENDINGS or self.statistic not in STATISTICS:
            raise UserError(
                f"spending is {self.spending!r} and statistic {self.statistic!r}; choose from {SPENDINGS}, {STATISTICS}"
            )
        if not 1 <= self.looks <= MOST_LOOKS or not 1 <= self.epsilon_looks <= self.looks:
            raise UserError(f"{self.looks} looks, {self.epsilon_looks} of them at epsilon; give 1 to {MOST_LOOKS} of each")
        if not LEAST_ALPHA <= self.alpha < 1:
            raise UserError(f"alpha is {self.alpha}; give a level from {LEAST_ALPHA:g} to 1, such as .05")
        if self.every_epochs is not None and self.every_epochs < 1:
            raise UserError(f"every_epochs is {self.every_epochs}; give a number of at least 1")
        least = FEWEST_REDRAWS if self.looks == 1 else fewest_redraws(self.looks, self.alpha)
        if not least <= self.redraws <= MOST_REDRAWS:
            raise UserError(
                f"{self.looks} looks at level {self.alpha:g} need {least:,} redraws, and {self.redraws:,} are planned; at "
                f"most {MOST_REDRAWS:,} are made: plan fewer looks, or a larger level"
            )

    @classmethod
    def of(cls, looks: int, *, alpha: float = 0.05, epsilon_looks: int | None = None, **more: object) -> "Plan":
        """Return a plan with as many redraws as its looks need, and with epsilon bounded at four of the looks."""
        if not LEAST_ALPHA <= alpha < 1 or not 1 <= looks <= MOST_LOOKS:
            return cls(looks, alpha=float(alpha))  # which says what is wrong
        few = min(EPSILON_LOOKS, looks) if epsilon_looks is None else epsilon_looks
        redraws = max(REDRAWS, fewest_redraws(looks, alpha))
        return cls(looks, alpha=float(alpha), epsilon_looks=few, redraws=redraws, **more)  # type: ignore[arg-type]

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

    def look_at_end(self, step: int | None, steps: int | None, epoch: int | None) -> int:
        """Return the number of the look at the end of a training: the last one, or the next one if it ended earlier.

        A training that ends early may have been ended for what was seen, so that it has only the share of the level that is
        planned for the place where it ended.

        Args:
            step, steps: optimizer steps that were made, and that were planned; None: not known.
            epoch: number of epochs that were finished, where looks are made by epochs.

        Example:
            >>> Plan.of(10).look_at_end(100, 100, None), Plan.of(10).look_at_end(41, 100, None)
            (10, 5)
        """
        if self.every_epochs is not None:
            return min(self.looks, -(-(epoch or 0) // self.every_epochs)) if epoch is not None else self.looks
        if step is None or steps is None or step >= steps:
            return self.looks
        return next(look for look in range(1, self.looks + 1) if self.step_of(look, steps) >= step)

    @property
    def digest(self) -> str:
        """A digest of the plan, by which losses that were recorded by another one are recognized."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


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
            lowest, and a look at which all are missing was missed.
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
    check_claim(claimed, delta)
    made = tuple(sorted(look for look, values in scores.items() if np.isfinite(values).sum() > 1))
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


def check_claim(claimed: float | None, delta: float) -> None:
    """Raise UserError for a claim that is none."""
    if claimed is not None and not 0 <= claimed < math.inf:
        raise UserError(f"the claimed epsilon is {claimed}; give a number of at least 0")
    if not 0 <= delta < 1:
        raise UserError(f"delta is {delta}; give a number of at least 0 and below 1")


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
