"""Finished runs as gates in a build: it passes only if a model remembers no more than agreed limits."""

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal
from xml.etree import ElementTree

from cyclopts import Parameter

import memlib
from flows.cli.completing import finished
from flows.cli.files import write_again
from flows.cli.store import JsonOption, RunId, StoreOption, TrustOption, opened_store
from memlib.audits.judging import Judged, Outcome, decide
from memlib.console import console, show_json
from memlib.recipes.request import AuditRequest
from memlib.running.baseline import planned_margins
from memlib.running.gate import AuditDecision, GateDecision, read_policy
from memlib.runs.index import find_run
from memlib.runs.run import Run
from memlib.sanitize import plain
from memlib.store import DEFAULT_STORE, Store

STATUS: Mapping[Outcome, int] = {"passed": 0, "failed": 1, "undecided": 3}


def check(
    run_id: RunId,
    /,
    *,
    fail_above: Annotated[Sequence[str], Parameter(negative="")] = (),
    fail_on: Literal["shown"] | None = None,
    junit: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
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
        findings with these params instead, as listed by `memlib show --all`. May be given several times.
    fail_on
        shown: fail if the run shows memorization, pass only if its verdict is bounded.
    junit
        Also write the outcome to this file, as JUnit XML.
    store
        Folder or s3:// prefix that the run was written to.
    json_
        Print the outcome as JSON.
    """
    opened = opened_store(store, trust)
    run = Run(opened, find_run(opened, run_id))
    decision = decide(run, fail_above=fail_above, fail_on=fail_on)
    if junit is not None:
        write_again(junit, _xml(_suite(f"memlib {run.audit} {run.id}", run.audit, decision.findings)))
    if json_:
        show_json(decision.as_json())
    for judged in decision.findings if not json_ else ():
        console.print(f"{judged.outcome}: {judged.gate}: {judged.reason}", soft_wrap=True)
    return STATUS[decision.outcome]


def gate(
    *run_ids: RunId,
    policy: Path,
    baseline: Annotated[str | None, Parameter(completer=finished)] = None,
    data: str | None = None,
    junit: Path | None = None,
    summary: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    trust: TrustOption = None,
    json_: JsonOption = False,
) -> int:
    """Decide by a policy whether a build passes: required audits and their power, ceilings, no more memory than a baseline.

    Exits with status 0 if every rule is passed, 1 if one is failed, 3 if one is undecided, and 2 for a mistake. An audit that
    is missing, stale or underpowered is undecided. Only manifests and published tables are read; nothing is computed again.

    Parameters
    ----------
    run_ids
        Ids of the runs to judge, or unique prefixes; by default the newest run of each audit that the policy requires.
    policy
        The policy, a YAML file; docs/reference/recipes/policy.md lists its keys.
    baseline
        Id of the run with which the policy's non_inferiority rules compare, or a unique prefix of it. Runs of its audit must
        have the same data.
    data
        Digest of the data, or its first digits, on which the newest runs are looked for; by default, that of the policy.
    junit
        Also write the outcome to this file, as JUnit XML.
    summary
        Also write the outcome to this file, as Markdown.
    store
        Folder or s3:// prefix that the runs were written to.
    json_
        Print the outcome as JSON.
    """
    decision = memlib.gate(policy, runs=run_ids, baseline=baseline, data=data, store=store, trust=trust)
    if junit is not None:
        suites = ElementTree.Element("testsuites", name=f"memlib {decision.policy.title}")
        for audit in decision.audits:
            suites.append(_suite(f"memlib {_named(audit)}", audit.rules.audit, audit.findings))
        write_again(junit, _xml(suites))
    if summary is not None:
        write_again(summary, "\n".join(_markdown(decision)).encode())
    if json_:
        show_json(decision.as_json())
        return STATUS[decision.outcome]
    for audit in decision.audits:
        console.print(f"{_named(audit)}: {audit.outcome}", style="bold", soft_wrap=True)
        for judged in audit.findings:
            console.print(f"  {judged.outcome}: {judged.gate}: {judged.reason}", soft_wrap=True)
    console.print(decision.outcome, style="bold")
    return STATUS[decision.outcome]


def margins_of(request: AuditRequest, policy: Path, store: Store, baseline: str) -> list[str]:
    """Return a line for each comparison of a policy: which margins the planned trainings can decide."""
    return [*planned_margins(request, read_policy(policy), Run(store, find_run(store, baseline)))]


def _named(audit: AuditDecision) -> str:
    """Return the audit with its run and title, or as the policy names it if the run is missing."""
    run = audit.run
    return audit.rules.named if run is None else plain(f"{audit.rules.audit} {run.run} {run.title}")


def _suite(name: str, audit: str, found: Sequence[Judged]) -> ElementTree.Element:
    """Return the outcome as a JUnit suite; undecided findings become errors, so that no build takes them for a pass."""
    counts = {kind: str(sum(judged.outcome == kind for judged in found)) for kind in STATUS}
    suite = ElementTree.Element(
        "testsuite", name=name, tests=str(len(found)), failures=counts["failed"], errors=counts["undecided"]
    )
    for judged in found:
        name = f"{judged.gate} {json.dumps(judged.params)}"
        case = ElementTree.SubElement(suite, "testcase", classname=f"memlib.{audit}", name=name)
        if judged.outcome != "passed":
            kind = "failure" if judged.outcome == "failed" else "error"
            ElementTree.SubElement(case, kind, message=judged.reason, type=judged.outcome)
    return suite


def _xml(element: ElementTree.Element) -> bytes:
    return bytes(ElementTree.tostring(element, encoding="utf-8", xml_declaration=True))


def _markdown(decision: GateDecision) -> Iterator[str]:
    """Yield the lines of a summary in Markdown: the outcome, and a table of all rules."""
    yield f"# {_escaped(decision.policy.title)}: {decision.outcome}"
    yield ""
    yield "| audit | rule | outcome | reason |"
    yield "|---|---|---|---|"
    for audit in decision.audits:
        for judged in audit.findings:
            cells = (_named(audit), judged.gate, judged.outcome, judged.reason)
            yield f"| {' | '.join(map(_escaped, cells))} |"
    yield ""


def _escaped(text: str) -> str:
    """Return a text in which Markdown and HTML find nothing to interpret."""
    return re.sub(r"([\\`*_\[\]|~#!@:])", r"\\\1", html.escape(" ".join(plain(text).split()), quote=False))
