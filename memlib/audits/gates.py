"""Gates for builds: decide from a finished run whether a model stays within agreed limits."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from memlib.audits import AUDITS, audit_of
from memlib.audits.base import Judgement
from memlib.errors import UserError
from memlib.findings import Finding, Findings
from memlib.runs.run import Run

Outcome = Literal["passed", "failed", "undecided"]
GATE = re.compile(r"(?P<metric>\w+)(\[(?P<params>[^\]]*)\])?=(?P<value>[^=]+)")


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
        outcomes = {judged.outcome for judged in self.findings}
        return "failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"

    def as_json(self) -> dict[str, Any]:
        """Return the decision as plain JSON."""
        return {"run": self.run, "findings": [judged._asdict() for judged in self.findings]}


def decide(run: Run, *, fail_above: Sequence[str] = (), fail_on: Literal["shown"] | None = None) -> Decision:
    """Decide from a finished run whether a build passes: by its verdict, or by limits on its findings.

    Args:
        run: the run.
        fail_above: gates METRIC=VALUE, or METRIC[KEY=VALUE,...]=VALUE for the findings with these params.
        fail_on: "shown": fail if the run shows memorization, pass only if its verdict is bounded.

    Raises:
        UserError: if no gate is given, or if a gate is malformed or matches no finding of the run.
    """
    if not fail_above and fail_on is None:
        raise UserError("no gate is given; add --fail-on shown, or --fail-above METRIC=VALUE")
    judgements = [_of_verdict(run)] if fail_on is not None else []
    judgements += [_of_finding(run, gate, row, value) for gate, rows, value in _selected(run, fail_above) for row in rows]
    return Decision(run.id, judgements)


def _of_verdict(run: Run) -> Judged:
    outcomes: Mapping[str, Outcome] = {"shown": "failed", "bounded": "passed"}
    return Judged("--fail-on shown", "verdict", {}, outcomes.get(run.verdict.word, "undecided"), run.verdict.sentence)


def _of_finding(run: Run, gate: str, row: Finding, limit: float) -> Judged:
    audit = AUDITS[audit_of(run.audit)]
    found = audit.gate(run, row, limit) or judge(row, limit, decides=row.family in audit.headlines)
    return Judged(gate, row.metric, row.params, found.outcome, f"{_said(row)}; {found.reason}")


def judge(row: Finding, limit: float, *, decides: bool) -> Judgement:
    """Judge a finding for which its audit has no rule of its own.

    Args:
        row: the finding.
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


def _selected(run: Run, gates: Sequence[str]) -> list[tuple[str, list[Finding], float]]:
    """Return each gate with the findings to which it applies and its limit.

    Raises:
        UserError: if a gate is malformed or matches no finding of the run.
    """
    selected = []
    every = _findings(run) if gates else Findings([])
    for gate in gates:
        match = GATE.fullmatch(gate)
        try:
            value = float(match["value"]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise UserError(f"--fail-above {gate!r} is not METRIC=VALUE or METRIC[PARAM=...]=VALUE with a finite number")
        wanted = [part.partition("=") for part in (match["params"] or "").split(",") if part]
        rows = every.all(match["metric"])
        chosen = [row for row in rows if all(str(row.params.get(key)) == text for key, _, text in wanted)]
        if not wanted:
            heads = [row for row in rows if row.family in AUDITS[audit_of(run.audit)].headlines]
            chosen = heads or list(rows[:1])
        if not chosen:
            metrics = ", ".join(dict.fromkeys(row.metric for row in every))
            shown = "; ".join(json.dumps(row.params) for row in rows[:3])
            hint = f" at these params; it has {shown}" if rows else f"; it has {metrics}"
            raise UserError(f"run {run.id} has no {match['metric']}{hint}")
        selected.append((gate, chosen, value))
    return selected


def _findings(run: Run) -> Findings:
    """Return the findings of a run's summary; for a sweep, the headlines of its cells, read from its manifest."""
    return Findings.read(run.summary) if "summary" in run.tables else Findings.of_run(run.record)


def _said(row: Finding) -> str:
    value = "no value" if math.isnan(row.value) else f"{row.value:.4g}"
    return f"{row.metric} {json.dumps(row.params)} is {value}"
