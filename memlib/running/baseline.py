"""Non-inferiority of a run to a baseline's run of the same audit, tested on independently trained models.

Welch's interval takes the trainings of each run as its sample. Both runs have to audit the same units: the difference is one
of the ways of training, on these units.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memlib.audits import audit_of
from memlib.audits.base import Trainings
from memlib.audits.judging import Judged, Outcome, audit_by, findings_of, selected
from memlib.audits.policy import NonInferiority, Policy, Selected
from memlib.errors import UserError
from memlib.findings import Finding
from memlib.recipes.request import AuditRequest
from memlib.runs.index import refs_of
from memlib.runs.ledger import trained_in
from memlib.runs.run import Run
from memlib.sanitize import count_of
from memlib.stats.noninferiority import FEWEST, decidable_margin, welch_difference


def check_baseline(policy: Policy, baseline: Run | None) -> None:
    """Raise a UserError if rules compare with a baseline that is not given, or is of another audit."""
    for rules in policy.audits:
        if rules.non_inferiority and (baseline is None or audit_of(baseline.audit) != rules.audit):
            given = "" if baseline is None else f"; run {baseline.id} is of {audit_of(baseline.audit)}"
            raise UserError(f"the policy compares {rules.audit} with a baseline: give --baseline, a run of that audit{given}")


def compared(run: Run, baseline: Run, rule: NonInferiority) -> Iterator[Judged]:
    """Yield the tested difference of every finding that a rule names from that of the baseline."""
    name, wanted = f"{rule.metric}<baseline+{rule.margin:g}", Selected.of(rule.metric)
    theirs = _by_setting(baseline, selected(baseline, findings_of(baseline), wanted), rule)
    for row in selected(run, findings_of(run), wanted):
        ours = _trainings(run, row, rule)
        outcome, reason = _tested(run, baseline, ours, theirs.get(_key(ours.setting)), rule.margin)
        yield Judged(name, row.metric, row.params, outcome, reason)


def _by_setting(run: Run, rows: Iterable[Finding], rule: NonInferiority) -> dict[str, Trainings]:
    found = [_trainings(run, row, rule) for row in rows]
    return {_key(one.setting): one for one in found}


def _key(setting: Mapping[str, Any]) -> str:
    return json.dumps(dict(setting), sort_keys=True)


def _trainings(run: Run, row: Finding, rule: NonInferiority) -> Trainings:
    values_of = audit_by(run).trainings
    assert values_of is not None, "refused when the policy is read"
    found = values_of(run, row)
    if found is None:
        raise UserError(
            f"non_inferiority of {rule.metric}: run {run.id} has no values of independent trainings for {row.metric} "
            f"{json.dumps(row.params)}; name a metric of the headline"
        )
    return found


def _tested(run: Run, baseline: Run, ours: Trainings, theirs: Trainings | None, margin: float) -> tuple[Outcome, str]:
    """Return the outcome of a comparison, with its numbers."""
    if theirs is None:
        return "undecided", f"the baseline {baseline.id} has no such finding at {_key(ours.setting)}"
    if problem := _incomparable(run, baseline, ours, theirs):
        return "undecided", problem
    found = welch_difference(ours.values, theirs.values)
    count, planned = len(theirs.values), len(ours.values)
    decidable = decidable_margin(float(theirs.values.std(ddof=1)), count, planned)
    outcome = found.outcome(margin, decidable=decidable)
    reason = (
        f"{found.value:+.4g} from the baseline {baseline.id} (one-sided 95 % limits {found.low:.4g} and {found.high:.4g}; "
        f"{planned} and {count} trainings)"
    )
    if outcome == "undecided":
        small = f"; underpowered: these numbers of trainings decide margins from {decidable:.4g} up"
        reason += small if margin < decidable else "; neither below the margin nor above the baseline"
    return outcome, reason


def _incomparable(run: Run, baseline: Run, ours: Trainings, theirs: Trainings) -> str:
    """Return the reason why two runs are no independent samples of trainings on the same units; "" if they are."""
    if run.id == baseline.id:
        return "the run is the baseline itself"
    trained = [trained_in(map(str, refs_of(one.record))) for one in (run, baseline)]
    if not all(trained):
        return "one of the runs trained no models, and nothing shows that its models are independent of the other's"
    if shared := trained[0] & trained[1]:
        return f"both runs rest on the same {count_of(len(shared), 'training')}, so that they are not independent"
    if ours.audited != theirs.audited:
        return (
            "the runs audit different units of the data, and the spread of trainings does not show how their choice matters"
        )
    return _too_few(len(ours.values), "run") or _too_few(len(theirs.values), "baseline") or _too_equal(theirs, baseline)


def _too_few(count: int, whose: str) -> str:
    return f"the {whose} has {count_of(count, 'training')}; a comparison needs at least {FEWEST}" if count < FEWEST else ""


def _too_equal(theirs: Trainings, baseline: Run) -> str:
    equal = not float(theirs.values.max() - theirs.values.min())
    return (
        f"all trainings of the baseline {baseline.id} have the same value, so that no margin can be computed" if equal else ""
    )


def planned_margins(recipe: AuditRequest, policy: Policy, baseline: Run) -> Iterator[str]:
    """Yield a line for each comparison that a policy makes of an audit: the margins that the planned trainings can decide.

    Args:
        baseline: the run with which the planned one will be compared.

    Raises:
        UserError: if the policy compares the audit with a baseline of another one.
    """
    planned = recipe.audit.planned_trainings(recipe.recipe)
    title = recipe.recipe.model_dump()["title"]
    applied = [rules for rules in policy.audits if rules.audit == recipe.audit.name and rules.title in (None, title)]
    own = policy.model_copy(update={"audits": tuple(applied)})
    check_baseline(own, baseline)
    for rule in (rule for rules in own.audits for rule in rules.non_inferiority):
        for row in selected(baseline, findings_of(baseline), Selected.of(rule.metric)):
            yield f"non-inferiority of {rule.metric}: {_plannable(_trainings(baseline, row, rule), planned, baseline, rule)}"


def _plannable(theirs: Trainings, planned: int, baseline: Run, rule: NonInferiority) -> str:
    count = len(theirs.values)
    if problem := _too_few(planned, "recipe") or _too_few(count, "baseline") or _too_equal(theirs, baseline):
        return problem
    margin = decidable_margin(float(theirs.values.std(ddof=1)), count, planned)
    can = "can" if rule.margin >= margin else "cannot"
    return (
        f"{planned} trainings, against {count} of the baseline {baseline.id}, decide margins from {margin:.4g} up with a "
        f"power of 95 %, so the policy's {rule.margin:g} {can} be passed"
    )
