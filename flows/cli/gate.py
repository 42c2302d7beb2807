"""A run as a gate in a build: the build passes only if a model remembers no more than agreed limits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from xml.etree import ElementTree

from cyclopts import Parameter
from rich.console import Console

from flows.cli.store import JsonOption, StoreOption, opened_store
from memlib.audits.gates import Judged, Outcome, decide
from memlib.errors import UserError
from memlib.runs.index import find_run
from memlib.runs.records import RunRecord
from memlib.runs.run import Run
from memlib.store import DEFAULT_STORE

STATUS: Mapping[Outcome, int] = {"passed": 0, "failed": 1, "undecided": 3}
console = Console(highlight=False, markup=False)


def check(
    run_id: str,
    /,
    *,
    fail_above: Annotated[Sequence[str], Parameter(negative="")] = (),
    fail_on: Literal["shown"] | None = None,
    junit: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    json_: JsonOption = False,
) -> int:
    """Decide from a finished run whether a build passes: by its verdict, or by limits on its findings.

    Exits with status 0 if every gate is passed, 1 if one is failed, and 3 if the run cannot tell, for example because it has
    too few examples. Only a test can pass or fail a gate, and a run that is inconclusive or descriptive passes no gate on its
    verdict.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it.
    fail_above
        METRIC=VALUE, as in share_excess=0.05: the headline of that metric decides. METRIC[KEY=VALUE,...]=VALUE asks for the
        findings with these params instead, as listed by `memlib show`. May be given several times.
    fail_on
        shown: fail if the run shows memorization, pass only if its verdict is bounded.
    junit
        Also write the outcome to this file, as JUnit XML.
    store
        Folder or s3:// prefix that the run was written to.
    json_
        Print the outcome as JSON.
    """
    opened = opened_store(store)
    run = Run(opened, find_run(opened, run_id))
    decision = decide(run, fail_above=fail_above, fail_on=fail_on)
    if junit is not None:
        try:
            junit.write_bytes(_junit(run.record, decision.findings))
        except OSError as error:
            raise UserError(f"cannot write {junit} ({error.strerror})") from error
    if json_:
        print(json.dumps(decision.as_json(), indent=1))
    for judged in decision.findings if not json_ else ():
        console.print(f"{judged.outcome}: {judged.gate}: {judged.reason}", soft_wrap=True)
    return STATUS[decision.outcome]


def _junit(run: RunRecord, found: Sequence[Judged]) -> bytes:
    """Return the outcome as JUnit XML; undecided findings become errors, so that no build takes them for a pass."""
    counts = {kind: str(sum(judged.outcome == kind for judged in found)) for kind in STATUS}
    suite = ElementTree.Element(
        "testsuite", name=f"memlib {run.audit} {run.run}", tests=str(len(found)), failures=counts["failed"],
        errors=counts["undecided"],
    )  # fmt: skip
    for judged in found:
        name = f"{judged.gate} {json.dumps(judged.params)}"
        case = ElementTree.SubElement(suite, "testcase", classname=f"memlib.{run.audit}", name=name)
        if judged.outcome != "passed":
            kind = "failure" if judged.outcome == "failed" else "error"
            ElementTree.SubElement(case, kind, message=judged.reason, type=judged.outcome)
    return bytes(ElementTree.tostring(suite, encoding="utf-8", xml_declaration=True))
