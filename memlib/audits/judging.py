"""Gates for builds: decide from a finished run whether a model stays within agreed limits."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from memlib.audits import AUDITS, audit_of
from memlib.audits.base import Audit, Judgement
from memlib.audits.policy import Ceiling, RunRules, Selected
from memlib.errors import UserError
from memlib.findings import SHOWN, Finding, Findings
from memlib.runs.ledger import look_of
from memlib.runs.run import Run

Outcome = Literal["passed", "failed", "undecided"]


class Judged(NamedTuple):
    """The decision of one gate on one finding: the gate as given, metric and params of the finding, outcome and reason."""

    gate: str
    metric: str
    params: Mapping[str, Any]
    outcome: Outcome
    reason: str


@dataclass(frozen=True)
class Decision:
    """The decision of a build.

    Attributes:
        run: id of the run.
        findings: the decision of every gate on each finding to which the gate applies.
    """

    run: str
    findings: list[Judged]

    @property
    def outcome(self) -> Outcome:
        """Outcome of the build: failed if any gate failed, passed if all gates passed, otherwise undecided."""
        return joint_outcome(judged.outcome for judged in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain JSON."""
        return {"run": self.run, "findings": [judged._asdict() for judged in self.findings]}


def joint_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Return failed if any outcome is, passed if all are, otherwise undecided."""
    found = set(outcomes)
    return "failed" if "failed" in found else "undecided" if "undecided" in found else "passed"


def decide(run: Run, *, fail_above: Sequence[str] = (), fail_on: Literal["shown"] | None = None) -> Decision:
    """Decide from a finished run whether a build passes: by its verdict, or by limits on its findings.

    This is a policy for one run that accepts the verdict `bounded`, or sets ceilings, and takes no account of earlier looks.

    Args:
        run: the run.
        fail_above: gates METRIC=VALUE, or METRIC[KEY=VALUE,...]=VALUE for the findings with these params.
        fail_on: "shown": fail if the run shows memorization, pass only if its verdict is bounded.

    Raises:
        UserError: if no gate is given, or if a gate is malformed or matches no finding of the run.
    """
    if not fail_above and fail_on is None:
        raise UserError("no gate is given; add --fail-on shown, or --fail-above METRIC=VALUE")
    try:
        for gate in fail_above:
            Ceiling.of(gate)
    except ValueError as error:
        raise UserError(f"--fail-above {error}") from error
    rules = RunRules(verdicts=() if fail_on is None else ("bounded",), ceilings=tuple(fail_above))
    return Decision(run.id, list(judged_by(run, rules, is_lost=False, on_verdict="--fail-on shown")))


def judged_by(run: Run, rules: RunRules, *, is_lost: bool, on_verdict: str = "") -> Iterator[Judged]:
    """Yield the decision of every rule about a run: its verdict, its power, and its ceilings.

    Args:
        is_lost: whether the run shows something only because earlier looks at its data are not allowed for; it then fails
            no rule.
        on_verdict: name of the rule on the verdict; by default the accepted verdicts.

    Raises:
        UserError: if a ceiling matches no finding of the run.
    """
    needed = is_lost or rules.ceilings or any(one is not None for one in (rules.detectable, rules.bound, rules.n))
    findings = findings_of(run) if needed else Findings([])
    if rules.verdicts:
        yield _of_verdict(run, rules, findings, is_lost=is_lost, name=on_verdict or f"verdicts={','.join(rules.verdicts)}")
    yield from _of_power(run, rules, findings)
    for ceiling in map(Ceiling.of, rules.ceilings):
        for row in selected(run, findings, ceiling.selected):
            judged = _of_finding(run, ceiling, row)
            yield _withheld(run, judged, findings) if is_lost and judged.outcome == "failed" else judged


def _of_verdict(run: Run, rules: RunRules, findings: Findings, *, is_lost: bool, name: str) -> Judged:
    word = run.verdict.word
    outcome: Outcome = "passed" if word in rules.verdicts else "failed" if word == SHOWN else "undecided"
    judged = Judged(name, "verdict", {}, outcome, run.verdict.sentence)
    if is_lost:
        return _withheld(run, judged, findings)
    look = look_of(run.record.ledger, run.audit).in_words()
    return judged._replace(reason=f"{judged.reason} {look}".rstrip())


def _withheld(run: Run, judged: Judged, findings: Findings) -> Judged:
    """Return a decision about a run whose result is lost by earlier looks: undecided, with the reason."""
    said = audit_by(run).said_of_look(look_of(run.record.ledger, run.audit), findings)
    return judged._replace(outcome="undecided", reason=f"{judged.reason} {said}")


def _of_power(run: Run, rules: RunRules, findings: Findings) -> Iterator[Judged]:
    """Yield whether every headline test has the required power, and whether the headline rests on enough units."""
    heads = findings.tests(*audit_by(run).headlines) if audit_by(run).headlines else Findings([])
    if rules.detectable is not None:
        lacking = [row for row in heads if row.detectable is None or row.detectable > rules.detectable]
        said = "; ".join(_power_of(row) for row in (lacking or heads)) or "the run tests nothing"
        yield Judged(f"detectable={rules.detectable:g}", "power", {}, "undecided" if lacking or not heads else "passed", said)
    if rules.bound is not None:
        loose = [row for row in heads if row.bound is None or row.bound > rules.bound]
        bounds = "; ".join(f"{row.metric}: {'none' if row.bound is None else f'{row.bound:.4g}'}" for row in (loose or heads))
        outcome: Outcome = "undecided" if loose or not heads else "passed"
        yield Judged(f"bound={rules.bound:g}", "power", {}, outcome, f"bounds of the recipe: {bounds or 'none'}")
    if rules.n is not None:
        fewest = min((row.n for row in heads), default=findings.head.n)
        fewest = min(fewest, _independent(run) or fewest)
        outcome = "undecided" if fewest < rules.n else "passed"
        yield Judged(f"n={rules.n}", "power", {}, outcome, f"the headline rests on {fewest} independent units")


def _independent(run: Run) -> int | None:
    """Return the number of persons (groups) and of single examples among a run's units; None if these have no groups."""
    units = run.tables.get("units")
    if units is None or "group" not in units.column_names or "example_id" not in units.column_names:
        return None
    alone = units.filter(units["group"].is_null())
    return len(units["group"].drop_null().unique()) + len(alone["example_id"].unique())


def _power_of(row: Finding) -> str:
    found = "no effect would have been found" if row.detectable is None else f"finds effects from {row.detectable:.4g} up"
    return f"{row.metric} {json.dumps(row.params)}: {found}"


def _of_finding(run: Run, ceiling: Ceiling, row: Finding) -> Judged:
    audit = audit_by(run)
    found = audit.gate(run, row, ceiling.limit) or judge(row, ceiling.limit, decides=row.family in audit.headlines)
    return Judged(ceiling.text, row.metric, row.params, found.outcome, f"{_said(row)}; {found.reason}")


def judge(row: Finding, limit: float, *, decides: bool) -> Judgement:
    """Judge a finding for which its audit has no rule of its own.

    Args:
        limit: largest accepted value.
        decides: whether the finding is of a headline family; other tests are adjusted among themselves and decide nothing.
    """
    if not row.is_test:
        return Judgement("undecided", "it is not tested, so it can neither pass nor fail a gate")
    if not decides:
        return Judgement("undecided", "it is not the headline, so it can neither pass nor fail a gate")
    if row.verdict == "shown" and row.low is not None and row.low > limit:
        return Judgement("failed", "it is shown, and its interval lies above the limit")
    if row.verdict == "bounded" and row.upper_bound is not None and row.upper_bound <= limit:
        return Judgement("passed", f"its upper bound is {row.upper_bound:.4g}")
    return Judgement("undecided", "neither a bound below the limit nor a shown effect above it")


def selected(run: Run, findings: Findings, wanted: Selected) -> list[Finding]:
    """Return the findings of a run that a rule names: the headlines of the metric, or those with the given params.

    Raises:
        UserError: if there are none.
    """
    rows = findings.all(wanted.metric)
    chosen = [row for row in rows if all(str(row.params.get(key)) == text for key, text in wanted.params.items())]
    if not wanted.params:
        heads = [row for row in rows if row.family in audit_by(run).headlines]
        chosen = heads or list(rows[:1])
    if not chosen:
        metrics = ", ".join(dict.fromkeys(row.metric for row in findings))
        shown = "; ".join(json.dumps(row.params) for row in rows[:3])
        hint = f" at these params; it has {shown}" if rows else f"; it has {metrics}"
        raise UserError(f"run {run.id} has no {wanted.metric}{hint}")
    return chosen


def has(run: Run, findings: Findings, ceiling: str) -> bool:
    """Return whether a run, of which these are the findings, has any to which a ceiling applies."""
    try:
        return bool(selected(run, findings, Ceiling.of(ceiling).selected))
    except UserError:
        return False


def findings_of(run: Run) -> Findings:
    """Return the findings of a run's summary; for a sweep, the headlines of its cells, read from its manifest."""
    return Findings.read(run.summary) if "summary" in run.tables else Findings.of_run(run.record)


def audit_by(run: Run) -> Audit:
    """Return the audit that a run carries out."""
    return AUDITS[audit_of(run.audit)]


def _said(row: Finding) -> str:
    value = "no value" if math.isnan(row.value) else f"{row.value:.4g}"
    return f"{row.metric} {json.dumps(row.params)} is {value}"
