"""Lower bounds of epsilon from the coins, and the test of the owner's claim."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from memlib.audits.membership.rankings import Rankings, survey_halves
from memlib.audits.membership.recipe import PRIVACY, ClaimSpec, Recipe
from memlib.audits.membership.units import Units
from memlib.findings import Finding, Interval, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.epsilon import Bound, audit_one_run, exceeds, gaussian_one_run, most_in_pairs, per_record, split_epsilon
from memlib.stats.operating import auc

GUESSED = (0.02, 0.1, 0.3)  # shares of the units that are guessed, fixed beforehand; the rest is abstained from
FEWEST_GUESSES = 10
FEWEST_RUNS = 20  # models on either side in each half, for the bound of many runs


def guesses_of(count: int) -> tuple[int, ...]:
    """Return the even numbers of guesses about `count` units, fixed before any score is seen."""
    numbers = {max(FEWEST_GUESSES, 2 * round(share * count / 2)) for share in GUESSED}
    return tuple(sorted(number for number in numbers if number <= count))


@dataclass(frozen=True)
class Comparison:
    """The comparison of a bound with a claim."""

    claimed: float  #: the claimed epsilon in terms of the coins' units, which the bound is about.
    problem: str = ""  #: reason why bound and claim cannot be compared; "" if they can.


def compare(claim: ClaimSpec, units: Units) -> Comparison:
    """Return the claim in terms of the coins: one unit is put in or left out."""
    claimed = claim.epsilon * (2 if claim.adjacency == "replace" else 1)
    if claim.unit == "person" or not units.are_persons:
        return Comparison(claimed)
    most = int(units.sizes.max())
    if per_record(1.0, most, delta=claim.delta) is None:
        return Comparison(
            claimed,
            f"the coins are of {units.noun} with up to {most} examples each, and the claim is about examples with a delta",
        )
    return Comparison(claimed * most)


def privacy_findings(rankings: Rankings, recipe: Recipe) -> Iterator[Finding]:
    """Yield lower bounds of epsilon and the test of the claim; nothing unless every unit had a fair coin of its own.

    Args:
        recipe: coins and claim.
    """
    units, count = rankings.units, len(rankings.units)
    most = most_in_pairs(units.strata)
    if recipe.coins != 0.5 or not guesses_of(most):
        return
    delta = recipe.privacy.delta if recipe.privacy is not None else 0.0
    error, seed = recipe.score.error, derive_seed(recipe.score.seed, "epsilon")
    scores, guesses = rankings.head.scores, guesses_of(most)
    bound = audit_one_run(scores, units.member, guesses=guesses, delta=delta, level=error, seed=seed, strata=units.strata)
    params = {
        "attack": rankings.head.attack, "unit": units.noun[:-1], "delta": delta, "guesses": bound.guesses,
        "correct": bound.correct, "ceiling": round(bound.ceiling, 4), "adjacency": "add_remove",
    }  # fmt: skip
    yield estimate("epsilon_lower_bound", params, bound.epsilon, n=count, interval=Interval(bound.epsilon, None, "coins"))
    if recipe.privacy is not None:
        yield from _claim(bound, recipe.privacy, units)
    yield from _gaussian(bound, units)
    yield from _many_runs(rankings, delta=delta, error=error, seed=seed)


def _claim(bound: Bound, claim: ClaimSpec, units: Units) -> Iterator[Finding]:
    """Yield the test of the claim, if the bound can be compared with it."""
    comparison = compare(claim, units)
    if comparison.problem:
        return
    test = exceeds(bound, comparison.claimed)
    params = {
        "epsilon": claim.epsilon, "delta": claim.delta, "claimed_unit": claim.unit, "claimed_adjacency": claim.adjacency,
        "compared_with": round(comparison.claimed, 6), "chosen_among": claim.chosen_among,
    }  # fmt: skip
    yield tested(
        "privacy_claim", params, bound.epsilon, n=len(units), p_value=test.p_value, family=PRIVACY, either_direction=True,
        null_value=comparison.claimed, smallest_p=test.smallest_p,
    )  # fmt: skip


def _gaussian(bound: Bound, units: Units) -> Iterator[Finding]:
    """Yield the lower bound of epsilon that holds if the mechanism is Gaussian, and for no other mechanism."""
    delta = bound.delta or 1 / (10 * len(units))
    found = gaussian_one_run(bound.correct, bound.guesses, len(units), delta=delta, level=bound.level / len(bound.tried))
    params = {
        "assumes": "a Gaussian mechanism", "delta": delta, "guesses": found.guesses, "correct": found.correct,
        "ceiling": round(found.ceiling, 4),
    }  # fmt: skip
    yield estimate(
        "epsilon_if_gaussian", params, found.epsilon, n=len(units), interval=Interval(found.epsilon, None, "coins")
    )


def _many_runs(rankings: Rankings, *, delta: float, error: float, seed: int) -> Iterator[Finding]:
    """Yield the bound for the single unit whose membership the attack recognizes best in the first half of the shadow models.

    The bound is computed from the other half. It is about the way in which the models are trained, not about the target.
    """
    inside = rankings.units.shadows.inside
    half = len(inside) // 2
    enough = np.minimum(inside[half:].sum(axis=0), (~inside[half:]).sum(axis=0)) >= FEWEST_RUNS
    chosen = [unit for unit in np.flatnonzero(enough).tolist() if 0 < inside[:half, unit].sum() < half]
    if not chosen:
        return
    first, second = survey_halves(rankings, half)
    best = max(chosen, key=lambda unit: auc(first[:, unit], inside[:half, unit]))
    rest, member = second[:, best], inside[half:, best]
    bound = split_epsilon(rest[member], rest[~member], delta=delta, level=error, seed=seed)
    params = {
        "unit_id": rankings.units.names[best], "delta": delta, "models": len(rest), "ceiling": round(bound.ceiling, 4)
    }  # fmt: skip
    yield estimate(
        "epsilon_of_training", params, bound.epsilon, n=len(rest), interval=Interval(bound.epsilon, None, "trainings")
    )
