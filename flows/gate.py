"""A run as a gate in a build: the build passes only if a model remembers no more than agreed limits."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from xml.etree import ElementTree

from cyclopts import Parameter
from rich.console import Console

from flows.store_commands import JsonOption, StoreOption, opened_store
from memlib.errors import UserError
from memlib.records import Finding, RunRecord
from memlib.runs import find_run
from memlib.store import DEFAULT_STORE

Outcome = Literal["passed", "failed", "undecided"]
STATUS: Mapping[Outcome, int] = {"passed": 0, "failed": 1, "undecided": 3}
GATE = re.compile(r"(?P<metric>\w+)(\[(?P<params>[^\]]*)\])?=(?P<value>[^=]+)")
console = Console(highlight=False, markup=False)


def check(
    run_id: str,
    /,
    *,
    fail_above: Annotated[Sequence[str], Parameter(negative="")],
    junit: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> int:
    """Compare a run's findings with limits, for a build that must fail if a model remembers too much.

    Exits with status 0 if the upper end of every 95 % interval is at most the limit, 1 if the lower end of any interval lies
    above the limit, and 3 if the run cannot tell, for example because it has too few examples or a finding has no interval.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it.
    fail_above
        METRIC=VALUE, or METRIC[KEY=VALUE,...]=VALUE for the findings with these params only, as listed by `memlib show`:
        share_excess=0.05, 'deja_vu_score[p=0.2]=0.1'. May be given several times.
    junit
        Also write the outcome to this file, as JUnit XML.
    store
        Folder or s3:// prefix that the run was written to.
    json_
        Print the outcome as JSON.
    """
    run = find_run(opened_store(store), run_id)
    judgements = [
        (gate, finding, judged(finding, value)) for gate, findings, value in _asked(run, fail_above) for finding in findings
    ]
    if junit is not None:
        try:
            junit.write_bytes(_junit(run, judgements))
        except OSError as error:
            raise UserError(f"cannot write {junit} ({error.strerror})") from error
    if json_:
        rows = [
            {"gate": gate, "metric": one.metric, "params": json.loads(one.params), "outcome": outcome, **_ends(one)}
            for gate, one, outcome in judgements
        ]
        print(json.dumps({"run": run.run, "findings": rows}, indent=1))
    for gate, finding, outcome in judgements if not json_ else ():
        console.print(f"{outcome}: {gate}: {_said(finding)}", soft_wrap=True)
    outcomes = {outcome for _, _, outcome in judgements}
    return STATUS["failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"]


def judged(finding: Finding, value: float) -> Outcome:
    """Return whether a finding passes or fails a limit; it is undecided if its 95 % interval straddles the limit."""
    low, high = finding.ci_low, finding.ci_high
    if low is not None and low > value:
        return "failed"
    if low is not None and high is not None and high <= value:
        return "passed"
    return "undecided"


def _asked(run: RunRecord, gates: Sequence[str]) -> list[tuple[str, list[Finding], float]]:
    """Return each gate with the findings that it applies to and its limit.

    Raises:
        UserError: for a malformed gate, or one that matches no finding of the run.
    """
    selected = []
    for gate in gates:
        match = GATE.fullmatch(gate)
        try:
            value = float(match["value"]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise UserError(f"--fail-above {gate!r} does not have the form METRIC=VALUE")
        wanted = [part.partition("=") for part in (match["params"] or "").split(",") if part]
        rows = [row for row in run.findings if row.metric == match["metric"]]
        chosen = [row for row in rows if all(str(json.loads(row.params).get(key)) == text for key, _, text in wanted)]
        if not chosen:
            metrics = ", ".join(dict.fromkeys(row.metric for row in run.findings))
            hint = f" at these params; it has {'; '.join(row.params for row in rows[:3])}" if rows else f"; it has {metrics}"
            raise UserError(f"run {run.run} has no {match['metric']}{hint}")
        selected.append((gate, chosen, value))
    return selected


def _ends(finding: Finding) -> dict[str, float | None]:
    return {"value": finding.value, "ci_low": finding.ci_low, "ci_high": finding.ci_high}


def _said(finding: Finding) -> str:
    low, high = ("unknown" if end is None else f"{end:.4g}" for end in (finding.ci_low, finding.ci_high))
    value = "no value" if finding.value is None else f"{finding.value:.4g}"
    return f"{finding.metric} {finding.params} is {value}, 95 % interval {low} to {high}"


def _junit(run: RunRecord, found: Sequence[tuple[str, Finding, Outcome]]) -> bytes:
    """Return the outcome as JUnit XML; undecided findings become errors, so that no build takes them for a pass."""
    counts = {kind: str(sum(outcome == kind for _, _, outcome in found)) for kind in STATUS}
    suite = ElementTree.Element(
        "testsuite", name=f"memlib {run.audit} {run.run}", tests=str(len(found)), failures=counts["failed"],
        errors=counts["undecided"],
    )  # fmt: skip
    for gate, finding, outcome in found:
        case = ElementTree.SubElement(suite, "testcase", classname=f"memlib.{run.audit}", name=f"{gate} {finding.params}")
        if outcome != "passed":
            kind = "failure" if outcome == "failed" else "error"
            ElementTree.SubElement(case, kind, message=_said(finding), type=outcome)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
