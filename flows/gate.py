"""A run as a gate: a build that goes on only while a model remembers less than was agreed."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from xml.etree import ElementTree

from cyclopts import Parameter
from rich.console import Console

from flows.store_commands import DEFAULT_STORE, JsonOption, StoreOption, find_run, opened_store
from memlib.errors import UserError
from memlib.records import Finding, RunRecord

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
    """Compare a run's findings with what was agreed, for a build that stops where a model remembers more.

    Ends with status 0 where the upper end of every interval is at most the value, 1 where the lower end of one lies above it,
    and 3 where the run cannot tell, as with too few examples, or a finding without an interval.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning.
    fail_above
        METRIC=VALUE, or METRIC[KEY=VALUE,...]=VALUE for the settings with these params alone, as `memlib show` lists them:
        share_excess=0.05, 'deja_vu_score[p=0.2]=0.1'. May be given several times.
    junit
        Also write the outcome to this file as JUnit XML.
    store
        Folder or s3:// prefix that the run was written to.
    json_
        Print the outcome as JSON.
    """
    run = find_run(opened_store(store), run_id)
    found = [
        (gate, finding, judged(finding, value)) for gate, findings, value in _asked(run, fail_above) for finding in findings
    ]
    if junit is not None:
        try:
            junit.write_bytes(_junit(run, found))
        except OSError as error:
            raise UserError(f"cannot write {junit} ({error.strerror})") from error
    if json_:
        rows = [
            {"gate": gate, "metric": one.metric, "params": json.loads(one.params), "outcome": outcome, **_ends(one)}
            for gate, one, outcome in found
        ]
        print(json.dumps({"run": run.run, "findings": rows}, indent=1))
    for gate, finding, outcome in found if not json_ else ():
        console.print(f"{outcome}: {gate}: {_said(finding)}", soft_wrap=True)
    outcomes = {outcome for _, _, outcome in found}
    return STATUS["failed" if "failed" in outcomes else "undecided" if "undecided" in outcomes else "passed"]


def judged(finding: Finding, value: float) -> Outcome:
    """Return whether a finding lies below a value, above it, or cannot tell; both by its 95 % interval."""
    low, high = finding.ci_low, finding.ci_high
    if low is not None and low > value:
        return "failed"
    if low is not None and high is not None and high <= value:
        return "passed"
    return "undecided"


def _asked(run: RunRecord, gates: Sequence[str]) -> list[tuple[str, list[Finding], float]]:
    """Return each gate with the findings it is about and its value.

    Raises:
        UserError: for one that is none, or about nothing that the run found.
    """
    found = []
    for gate in gates:
        match = GATE.fullmatch(gate)
        try:
            value = float(match["value"]) if match else math.nan
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise UserError(f"--fail-above {gate!r} is not METRIC=VALUE")
        wanted = [part.partition("=") for part in (match["params"] or "").split(",") if part]
        alike = [row for row in run.findings if row.metric == match["metric"]]
        chosen = [row for row in alike if all(str(json.loads(row.params).get(key)) == said for key, _, said in wanted)]
        if not chosen:
            metrics = ", ".join(dict.fromkeys(row.metric for row in run.findings))
            seen = f"at these params; it has {'; '.join(row.params for row in alike[:3])}" if alike else f"; it has {metrics}"
            raise UserError(f"run {run.run} has no {match['metric']} {seen}")
        found.append((gate, chosen, value))
    return found


def _ends(finding: Finding) -> dict[str, float | None]:
    return {"value": finding.value, "ci_low": finding.ci_low, "ci_high": finding.ci_high}


def _said(finding: Finding) -> str:
    low, high = ("unknown" if end is None else f"{end:.4g}" for end in (finding.ci_low, finding.ci_high))
    value = "no value" if finding.value is None else f"{finding.value:.4g}"
    return f"{finding.metric} {finding.params} is {value}, 95 % interval {low} to {high}"


def _junit(run: RunRecord, found: Sequence[tuple[str, Finding, Outcome]]) -> bytes:
    """Return the outcome as JUnit XML: what is undecided is an error there, so that no build takes it for a pass."""
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
