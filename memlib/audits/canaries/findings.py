"""The findings of an audit of canaries: the test at planned looks, the AUC of each look, epsilon, and one verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy.stats
from numpy.typing import NDArray

from memlib.audits.asked import SERVICE, VOID, is_void, said_of_service, service_row
from memlib.audits.canaries.recipe import CLAIM, HEADLINE, HEADLINES, PrivacySpec, Recipe
from memlib.audits.canaries.tables import LOOKS
from memlib.data.canaries.losses import CanaryScores, Recorded, score_canaries
from memlib.data.canaries.plan import Coins
from memlib.findings import (
    DESCRIPTIVE,
    INCONCLUSIVE,
    SHOWN,
    Finding,
    Findings,
    Interval,
    Verdict,
    diagnostic,
    estimate,
    settle,
    tested,
    untested,
    voided,
)
from memlib.report.format import format_interval, say_p
from memlib.sanitize import count_of
from memlib.stats.canaries import CanaryResult, Plan, audit_canaries
from memlib.stats.randomization import detectable
from memlib.tables import CURVES, point

MOST_PARTS, FEWEST_IN_PART = 10, 20  # of the curve of scores
FEWEST_RETURNED = 5  # whole endings with which 2^-h is below .05


@dataclass(frozen=True)
class Evidence:
    """The coins, the recorded losses and the result of an audit."""

    coins: Coins
    recorded: Recorded
    looks: Mapping[int, int]  #: step of each look that was made.
    scores: CanaryScores  #: scores of these steps.
    result: CanaryResult
    plan: Plan
    is_planned: bool  #: False if the step was chosen in the recipe, so that nothing is tested.
    service: Finding | None  #: what is known of a service that was asked.
    names: Sequence[str]  #: the canaries as they are named in the losses.
    claim: PrivacySpec | None  #: what the owner claims.

    @classmethod
    def of(cls, recipe: Recipe, coins: Coins, names: Sequence[str], recorded: Recorded) -> Evidence:
        """Audit recorded losses.

        Args:
            names: the canaries as they are named in the losses, in the order of the coins.

        Raises:
            UserError: for losses of other canaries, without a planned look, or of a training that diverged.
        """
        plan = coins.plan if recipe.step is None else Plan()
        looks = recorded.looks_in(plan) if recipe.step is None else {1: recipe.step}
        scores = score_canaries(recorded.table, names, steps=set(looks.values()))
        result = audit_canaries(
            {look: scores.values[step] for look, step in looks.items()}, coins.inside, plan, guesses=coins.guesses,
            repeats=coins.repeats, seed=coins.seed, **recipe.claim,
        )  # fmt: skip
        spread = float(np.nanstd(scores.values[looks[result.decisive]] / _tokens(recorded, names, looks[result.decisive])))
        asked, n = recorded.asked, len(names)
        service = None if asked is None else service_row(
            host=asked.host, model=asked.model, level=asked.level, requests=asked.requests, noise=asked.noise, spread=spread,
            changed=asked.changed, when=asked.when, n=n, forced=asked.forced,
        )  # fmt: skip
        return cls(coins, recorded, looks, scores, result, plan, recipe.step is None, service, names, recipe.privacy)

    @property
    def final(self) -> NDArray[np.float64]:
        """Scores at the decisive look, (num_canaries,)."""
        return self.scores.values[self.looks[self.result.decisive]]


def looks_of(found: Evidence) -> pa.Table:
    """Return tables.LOOKS."""
    shares = np.diff([0.0, *found.plan.cumulative])
    rows = []
    for look in range(1, found.plan.looks + 1):
        step = found.looks.get(look)
        scores = None if step is None else found.scores.values[step]
        rows.append({
            "look": look, "step": step, "auc": found.result.aucs.get(look), "p_alone": found.result.p_values.get(look),
            "share": float(shares[look - 1]), "repeated": look in found.recorded.repeated,
            "missing": None if scores is None else int((~np.isfinite(scores)).sum()),
            "stopped": found.result.looked.stopped == look and found.is_planned,
        })  # fmt: skip
    return pa.Table.from_pylist(rows, schema=LOOKS.arrow)


def summarize(found: Evidence) -> pa.Table:
    """Return the findings, the test first, and the verdict: tables.SUMMARY.

    Memory has the level alpha of the plan over all looks. A claim is tested at a level of its own, as the same training may
    be asked both questions.
    """
    rows = [_memory(found), *_bounds(found), *_by_look(found)]
    if is_void(found.service):
        rows = [voided(row) for row in rows if row.metric in ("canary_auc", "auc_at_look")]
    if not found.is_planned:  # nothing is tested, and nothing bounded, at a step that was chosen afterwards
        rows = [untested(row) for row in rows if row.metric in ("canary_auc", "auc_at_look")]
    rows += [*([] if found.service is None else [found.service]), *_returns(found)]
    settled = settle(rows, alpha=found.plan.alpha, headlines=HEADLINES)
    judged = Findings(_judged(row, found.plan.alpha) if row.is_test and row.family == CLAIM else row for row in settled)
    return judged.table(verdict(judged))


def _judged(row: Finding, alpha: float) -> Finding:
    return replace(row, verdict=SHOWN if (row.p_adjusted or 0.0) <= alpha else INCONCLUSIVE)


def _memory(found: Evidence) -> Finding:
    result, plan = found.result, found.plan
    params: dict[str, Any] = {
        "look": result.decisive, "looks": plan.looks, "made": len(result.made), "step": found.looks[result.decisive],
        "inserted": result.num_inserted, "statistic": plan.statistic, "relative": found.scores.relative,
    }  # fmt: skip
    if result.looked.stopped is not None:
        params["stopped"] = result.looked.stopped
        params["few"] = result.stands_out
    if plan.looks > 1:
        params["spending"] = plan.spending
    if found.coins.repeats > 1:
        params["repeats"] = found.coins.repeats
    if plan.looks not in result.made:
        params["unfinished"] = True
    if missing := int((~np.isfinite(found.final)).sum()):
        params["missing"] = missing
    if why := _not_compared(found):
        params["not_compared"] = why
    if found.recorded.stopped is not None:
        params["ended_by"] = found.recorded.stopped
    if found.recorded.asked is not None and found.recorded.asked.draws:
        params["draws"] = found.recorded.asked.draws
    inside = result.num_inserted
    deviation = math.sqrt((result.num_canaries + 1) / (12 * inside * (result.num_canaries - inside)))
    share = result.looked.spent[result.made[-1] - 1]
    can_stop = math.floor(plan.alpha * sum(result.looked.spent) * (plan.redraws + 1)) >= 1
    return tested(
        "canary_auc", params, result.auc, n=result.num_canaries, p_value=result.looked.p_value, family=HEADLINE,
        null_value=0.5, interval=Interval(*result.auc_interval, "canaries"), either_direction=True,
        detectable=_shifted(detectable(deviation, plan.alpha * share)) if can_stop else None,
        smallest_p=1 / (plan.redraws + 1) if can_stop else 1.0,
    )  # fmt: skip


def _tokens(recorded: Recorded, names: Sequence[str], step: int) -> NDArray[np.float64]:
    """Return the number of tokens of each canary at a step, (num_canaries,); 1 where it is not known."""
    rows = recorded.table.filter(pc.equal(recorded.table["step"], step))
    known = dict(zip(rows["canary"].to_pylist(), rows["tokens"].to_pylist(), strict=True))
    return np.maximum(1.0, [known.get(name, 1) for name in names])


def _returns(found: Evidence) -> Iterator[Finding]:
    """Yield how many endings came back whole, and the share of inserted canaries of which one did, beside the test."""
    asked = found.recorded.asked
    if asked is None or not asked.returned:
        return
    came = np.array([asked.returned[name] > 0 for name in found.names])
    inside, hits = found.coins.inside, int((came & found.coins.inside).sum())
    params: dict[str, Any] = {"draws": asked.draws, "of_inserted": hits}
    if found.is_planned and not is_void(found.service):
        params["alone"] = round(returned_p(came, inside), 6)
    yield diagnostic("endings_returned", params, int(came.sum()), n=len(came))
    low, high = scipy.stats.binomtest(hits, int(inside.sum())).proportion_ci(0.95, method="exact")
    yield estimate(
        "inserted_returned", {"draws": asked.draws}, hits / inside.sum(), n=int(inside.sum()),
        interval=Interval(float(low), float(high), "canaries"),
    )  # fmt: skip


def _not_compared(found: Evidence) -> str:
    """Return why a claim is not compared, in a sentence; "" without one, or if it is."""
    if found.claim is None or found.claim.epsilon is None or not found.is_planned or found.result.claim is not None:
        return ""
    claim = f"The claim of epsilon {found.claim.epsilon:g} at delta {found.claim.delta:g} is not compared"
    if found.claim.adjacency != "add-remove":
        return f"{claim}: it is about replacements, and the coins put records in or leave them out."
    if found.coins.repeats > 1 and found.claim.delta > 0:
        return f"{claim}: {found.coins.repeats} copies change delta; state it at delta 0."
    return f"{claim}, as none of the looks at which epsilon is bounded was made."


def _shifted(effect: float | None) -> float | None:
    """Return the AUC of a shift that is detected with a power of 80 %."""
    return None if effect is None or effect >= 0.5 else 0.5 + effect


def _bounds(found: Evidence) -> Iterator[Finding]:
    """Yield the lower bound of epsilon, and the test of the claim."""
    result, bound = found.result, found.result.bound
    if bound is None or result.bound_at is None:
        return
    params: dict[str, Any] = {
        "delta": bound.delta, "look": result.bound_at, "guesses": bound.guesses, "correct": bound.correct,
        "ceiling": round(bound.ceiling, 4), "repeats": found.coins.repeats,
    }  # fmt: skip
    yield estimate(
        "epsilon_lower_bound", params, bound.epsilon, n=result.num_canaries,
        interval=Interval(bound.epsilon, None, "canaries"),
    )  # fmt: skip
    if result.epsilon_per_record is not None and found.coins.repeats > 1:
        yield estimate("epsilon_per_record", {"delta": bound.delta}, result.epsilon_per_record, n=result.num_canaries)
    if result.claim is not None and found.claim is not None and found.claim.epsilon is not None:
        claimed = found.claim.epsilon
        yield tested(
            "privacy_claim", {"epsilon": claimed, "delta": bound.delta}, result.epsilon_per_record or 0.0,
            n=result.num_canaries, p_value=result.claim.p_value, family=CLAIM, null_value=claimed,
            either_direction=True, smallest_p=result.claim.smallest_p,
        )  # fmt: skip


def _by_look(found: Evidence) -> Iterator[Finding]:
    """Yield the AUC and the p-value of each look alone, which allows for no other look."""
    if found.plan.looks == 1:
        return
    for look, value in found.result.aucs.items():
        params = {"look": look, "step": found.looks[look], "alone": round(found.result.p_values[look], 6)}
        yield diagnostic("auc_at_look", params, value, n=found.result.num_canaries)


def curves(found: Evidence) -> pa.Table:
    """Return the AUC by look, and the share of inserted canaries in parts of equal size by score, at the look that decides.

    A part has twenty canaries or more: who has the losses would learn the coin of a canary that stood alone.
    """
    rows = [
        point("auc_by_look", "AUC", {"step": found.looks[look]}, look, value) for look, value in found.result.aucs.items()
    ]
    order = np.argsort(np.nan_to_num(found.final, nan=-np.inf, neginf=-np.inf), kind="stable")
    parts = np.array_split(found.coins.inside[order], min(MOST_PARTS, max(1, len(order) // FEWEST_IN_PART)))
    for number, part in enumerate(parts):
        rows.append(point("inserted_by_score", "inserted", {}, (number + 0.5) / len(parts), part.mean()))
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def verdict(rows: Findings) -> Verdict:
    """Return the verdict of the run."""
    head = rows.head
    claim = _of_claim(rows.get("privacy_claim")) or head.params.get("not_compared", "")
    said = " ".join(filter(None, (_numbers(head), *_of_looks(head), *said_of_service(rows), *_of_answers(rows), claim)))
    if is_void(rows.get(SERVICE)):
        return Verdict(INCONCLUSIVE, f"That the training remembers its canaries was not shown. {VOID}", said)
    if not head.is_test:
        sentence = "Nothing was tested: the step was chosen after the plan of the looks was made."
        return Verdict(DESCRIPTIVE, sentence, said)
    if head.verdict == SHOWN:
        few = " A few of them stand out; on the whole, inserted ones do not." if head.params.get("few") else ""
        sentence = f"The training remembers some of the canaries that were inserted into its data.{few}"
        return Verdict(SHOWN, sentence, said)
    missed = "no size" if head.detectable is None else f"an AUC of {head.detectable:.2f}"
    text = f"{said} {missed[0].upper()}{missed[1:]} would have been found with a power of 80 %, were all canaries alike."
    return Verdict(INCONCLUSIVE, "That the training remembers its canaries was not shown.", text)


def _numbers(head: Finding) -> str:
    params = head.params
    statistic = "the AUC and the highest scores together" if params["statistic"] != "auc" else "the AUC alone"
    score = "the base model's loss minus the trained model's" if params["relative"] else "minus the loss of the trained model"
    if params.get("draws"):
        score = f"how near {count_of(params['draws'], 'answer comes', 'answers come')} to its ending"
    p = f"; {statistic}: {say_p(head.p_adjusted)}, level {head.alpha:g}" if head.is_test else ""
    return (
        f"{params['inserted']:,} of {head.n:,} canaries were inserted. At step {params['step']:,}, an inserted one had the "
        f"better score ({score}) with probability {head.value:.3f} (95 % interval {format_interval(head)}{p})."
    )


def returned_p(returned: NDArray[np.bool_], inside: NDArray[np.bool_]) -> float:
    """Return the probability that as many of the canaries whose ending came back were inserted, if coins decide: exact.

    Example:
        >>> came, inside = np.array([True] * 5 + [False] * 5), np.array([True] * 6 + [False] * 4)
        >>> returned_p(came, inside)  # 2^-5
        0.03125
    """
    count, hits = int(returned.sum()), int((returned & inside).sum())
    return float(scipy.stats.binom.sf(hits - 1, count, 0.5))


def _of_answers(rows: Findings) -> Iterator[str]:
    """Yield what endings a service returned."""
    came = rows.get("endings_returned")
    if came is not None:
        few = "" if came.value >= FEWEST_RETURNED else f" Below {FEWEST_RETURNED}, nothing can be shown by these alone."
        alone = f" ({say_p(came.params['alone'])} by itself)" if "alone" in came.params else ""
        yield (
            f"{count_of(int(came.value), 'ending', 'endings')} came back whole, {came.params['of_inserted']} of them of "
            f"inserted canaries{alone}.{few}"
        )


def _of_looks(head: Finding) -> Iterator[str]:
    """Yield what the plan of the looks means for the result."""
    params = head.params
    if params["looks"] > 1 and head.is_test:
        stopped = params.get("stopped")
        made = count_of(params["made"], "look was made", "looks were made")
        at = f"the test stopped at look {stopped} of {params['looks']}" if stopped else made
        yield (
            f"{params['looks']} looks were planned with the coins, and {at}; the p-value allows for all of them."
            + (" Looks that were missed spent their share of the level." if params["made"] < params["look"] else "")
        )
    if params.get("unfinished") and head.is_test:
        yield "The training ended before its planned end, so that the last look is missing."
    if params.get("ended_by"):
        yield f"The training was ended by its own test at look {params['ended_by']}."
    if params.get("missing"):
        yield f"{count_of(params['missing'], 'canary has', 'canaries have')} no finite loss and the lowest rank."
    if params.get("repeats"):
        yield f"Each was inserted {params['repeats']} times."


def _of_claim(row: Finding | None) -> str:
    if row is None:
        return ""
    claim = f"the claim of epsilon {row.params['epsilon']:g} at delta {row.params['delta']:g} for one record"
    if not row.is_test:
        return ""
    if (row.smallest_p or 0.0) > (row.alpha or 0.0):
        return f"{claim[0].upper()}{claim[1:]} cannot be tested: a perfect attack would have p = {row.smallest_p:.3g}."
    word = "refuted" if row.verdict == SHOWN else "not refuted"
    return f"At a level of its own, {claim} is {word} ({say_p(row.p_adjusted)})."
