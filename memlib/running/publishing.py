"""Publication of a run's results: tables below results/, page and figures below runs/<run>/, the manifest last."""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from memlib.audits import AUDITS, audit_of, tables_of
from memlib.audits.last_stages import REPORT_FILE, run_id
from memlib.data.read_beside import read_beside_data
from memlib.errors import RunError
from memlib.findings import Findings
from memlib.identity import file_digest
from memlib.pipeline import sources
from memlib.pipeline.provenance import software, source_state, who
from memlib.pipeline.stage import NO_CELLS, AnyArtifact, Artifact, Ended
from memlib.pipeline.tables import Tables
from memlib.running.freezing import followed, said_of_plan
from memlib.runs import ledger
from memlib.runs.erasures import erasures, still_read
from memlib.runs.index import (
    ENVELOPE,
    HISTORY,
    SIGNATURE,
    findings_of,
    has_row,
    list_runs,
    publish_row,
    read_run,
    refs_of,
    results_path,
)
from memlib.runs.pins import is_pinned, pins_of
from memlib.runs.plans import PLAN, content_of, parse_plan
from memlib.runs.records import FindingRecord, HistoryRecord, Ledger, PlanFile, Publication, RunRecord, VerdictRecord
from memlib.runs.vouching import past_of
from memlib.specs import Resources
from memlib.specs.question import asks_digest
from memlib.store import MANIFEST, Ref, Store
from memlib.store.permissions import scratch
from memlib.store.records import DIGEST, Unreadable, parse, sealed
from memlib.tables import copy_table
from memlib.version import VERSION


@dataclass
class Work:
    """Resources and artifacts that a run has used so far."""

    resources: Resources = field(default_factory=Resources)  #: machines and limits of the run.
    started: float = field(default_factory=time.time)  #: start time, in seconds since 1970.
    #: computed, reused: addresses of the artifacts that were computed, and of those that were already in the store.
    computed: list[str] = field(default_factory=list)
    reused: list[str] = field(default_factory=list)
    look: str = ""  #: id of the sweep whose cell the run is; "" for a run of its own.
    plan: PlanFile | None = None  #: the frozen plan that the run was given, if any.


def publish_audit(
    store: Store,
    work: Work,
    recipe: Any,
    scores: Artifact[Tables],
    report: Artifact[Path],
    artifacts: Mapping[str, AnyArtifact],
    *,
    cells: Ended = NO_CELLS,
) -> RunRecord:
    """Publish the tables below results/, the page and figures below runs/<run>/, and the run's manifest last.

    Args:
        work: resources and artifacts that the run has used.
        artifacts: the run's other artifacts, by their names in the manifest.
        cells: manifest or error of each cell that the run compares; a comparison that was published before, of the same
            runs, is not published again.

    Returns:
        the manifest.
    """
    run, done = run_id(recipe, scores), _completed(cells)
    if done and (before := publish_again(store, work, run, recipe, cells)) is not None:
        return before
    named = {**artifacts, "scores": scores, "report": report}
    results, published = _publish_tables(store, recipe.audit, run, scores)
    table = scores.content["summary"]
    findings = Findings.read(table)
    record = RunRecord(
        run=run,
        audit=recipe.audit,
        title=recipe.title,
        finished=time.time(),
        recipe=recipe.model_dump(mode="json"),
        verdict=VerdictRecord(**asdict(findings.verdict)),
        ledger=_ledger(store, work, run, recipe, named.values()),
        findings=[FindingRecord(**row) for row in findings_of(table.to_pylist())],
        results=results,
        artifacts={f"{cell}: {name}": ref for cell, one in done.items() for name, ref in one.artifacts.items()}
        | {name: str(artifact) for name, artifact in named.items()},
        scores=str(scores),
        cells={cell: done[cell].run if cell in done else None for cell in cells},
        cell_digests=_digests(cells),
        problems={cell: one for cell, one in cells.items() if isinstance(one, str)},
        computed=_all("computed", work, done),
        reused=_all("reused", work, done),
        software=dict(software()),
        source=dict(source_state()),
    )
    record = _with_plan(store, work, record, done)
    pages, digests = _publish_page(store, run, report, said_at_publication(record, findings, done))
    if (file := _plan_of(store, work, run)) is not None:
        store.publish(f"runs/{run}/{PLAN}", content_of(file), secret=True)
        digests[f"runs/{run}/{PLAN}"] = hashlib.sha256(content_of(file)).hexdigest()
    return publish_run(store, work, record.model_copy(update={"published": published | digests, "report": pages}))


def _publish_tables(store: Store, audit: str, run: str, scores: Artifact[Tables]) -> tuple[dict[str, str], dict[str, str]]:
    """Publish the tables of a run; return the URI of each by name, and the digest of each file by path."""
    metadata = {"memlib.run": run, "memlib.stage_key": scores.key, "memlib.software": VERSION}
    results: dict[str, str] = {}
    published: dict[str, str] = {}
    with scratch("publish") as folder:
        for name, schema in tables_of(audit).items():
            if schema.optional and not scores.content.has(name):
                continue
            for number, source in enumerate(scores.content.paths(name)):
                part = folder / f"{name}.parquet"
                copy_table(source, schema, part, metadata=metadata)
                path = results_path(name, audit, run, number)
                place, published[path] = store.publish(path, part), file_digest(part)
                results.setdefault(name, place)
    return results, published


def _publish_page(store: Store, run: str, report: Artifact[Path], said: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Publish the page of a run, with notes below its verdict, and its figures; return its URI, and digests by path."""
    place, published = "", {}
    for name, file in report.files.items():
        path, content = f"runs/{run}/{name}", None
        if name == REPORT_FILE and said:
            from memlib.report.page import said_on_page

            content = said_on_page(report.path(name).read_bytes(), *said)
        uri = store.publish(path, report.path(name) if content is None else content, secret=True)
        published[path] = file.sha256 if content is None else hashlib.sha256(content).hexdigest()
        place = uri if name == REPORT_FILE else place
    return place, published


def _with_plan(store: Store, work: Work, run: RunRecord, cells: Mapping[str, RunRecord]) -> RunRecord:
    """Return a run's manifest with the frozen plan that the run was given, and its departures from it."""
    file, before = _plan_of(store, work, run.run), _published_before(store, run.run)
    if file is None:
        return run
    plan = followed(file, store, run, cells, before=before, started=work.started)
    return run.model_copy(update={"plan": plan})


def _plan_of(store: Store, work: Work, run: str) -> PlanFile | None:
    """Return the frozen plan of a run: that of its first publication with one, else the given one.

    Raises:
        RunError: when the plan of an earlier publication is missing or damaged.
    """
    before = _published_before(store, run)
    if before is None or before.plan is None:
        return work.plan
    if work.plan is not None and work.plan.plan[DIGEST] == before.plan.digest:
        return work.plan
    path = f"runs/{run}/{PLAN}"
    with contextlib.suppress(Unreadable):
        file = parse_plan(store.published(path) or b"")
        if file.plan[DIGEST] == before.plan.digest:
            return file
    raise RunError(
        f"{path}, the plan of run {run}, is missing or damaged; run again with --plan and the plan {before.plan.digest}"
    )


def said_at_publication(run: RunRecord, findings: Findings, cells: Mapping[str, RunRecord]) -> list[str]:
    """Return the notes that a page and a terminal add to a run's verdict, and which depend on the store and on its plan."""
    said = said_of_looks(run.audit, run.ledger, findings, cells), said_of_plan(run)
    return [text for text in said if text]


def said_of_erased(store: Store, artifacts: Iterable[AnyArtifact]) -> str:
    """Return a warning if a source of a run still holds examples that were erased from the store; "" otherwise."""
    decoded = {str(artifact): artifact for artifact in artifacts if artifact.ref.stage in sources.DATA_STAGES}
    if not decoded or not erasures(store):
        return ""
    return still_read(store, {name: sources.ids_in(artifact) for name, artifact in decoded.items()})


def said_of_looks(audit: str, looked: Ledger, findings: Findings, cells: Mapping[str, RunRecord]) -> str:
    """Return the note on repeated looks at the data, for page and terminal; for a sweep, the cells whose results they void.

    Args:
        audit: the audit's name in recipes.
        looked, findings: ledger and findings of the run.
    """
    if not cells:
        return f"{said_of_number(audit, looked, findings)} {ledger.beside_in_words(looked, audit)}".strip()
    return lost_in_words([cell for cell, one in cells.items() if AUDITS[audit_of(one.audit)].is_lost_by_looks(one)])


def said_of_number(audit: str, looked: Ledger, findings: Findings) -> str:
    """Return the note on the number of a run's look alone, as on pages of earlier versions."""
    return AUDITS[audit_of(audit)].said_of_look(ledger.look_of(looked, audit), findings)


def lost_in_words(cells: Sequence[str]) -> str:
    """Describe the effect of earlier looks at the data on cells of a sweep that they leave without a result."""
    if not cells:
        return ""
    return (
        f"Not the first looks at their data: {', '.join(cells)}. Allowing for the earlier looks, as their own pages do, "
        "these cells show nothing."
    )


def publish_again(store: Store, work: Work, name: str, recipe: Any, cells: Ended = NO_CELLS) -> RunRecord | None:
    """Record that a run was already finished; return None if it must be republished because it has changed or lacks files.

    The record is a file of its own: the run's manifest, which may be signed, stays as it is. In a local store the published
    files are compared by digest; in a remote store only their presence is checked.

    Args:
        work: resources and artifacts that the run has used; none of the artifacts was computed.
        cells: manifest or error of each cell that the run compares.

    Returns:
        the manifest, or None.
    """
    run = _published_before(store, name)
    if run is None or (run.plan is None and work.plan is not None):
        return None
    if run.recipe != recipe.model_dump(mode="json") or not _are_pinned(store, run):
        return None
    if run.problems or run.cell_digests != _digests(cells):
        return None
    folders = {path.rpartition("/")[0] for path in run.published}
    existing = {path for folder in folders for path in store.listing(folder)}
    if not run.published or not run.published.keys() <= existing:
        return None
    if store.is_local and any(_digest(store, path) != digest for path, digest in run.published.items()):
        return None
    if not has_row(store, run):
        publish_row(store, run.run)
    later = [*_later(store, run.run), _publication(work)]
    store.publish(f"runs/{run.run}/{HISTORY}", json.dumps({"publications": [one.model_dump() for one in later]}).encode())
    history, seconds = [*run.history, *later], later[-1].seconds
    reused = _all("reused", work, _completed(cells))
    return run.model_copy(update={"computed": [], "reused": reused, "history": history, "seconds": seconds})


def _digests(cells: Ended) -> dict[str, str]:
    """Return the digest of each cell's manifest, by run."""
    return {one.run: one.digest for one in _completed(cells).values() if one.digest is not None}


def _completed(cells: Ended) -> dict[str, RunRecord]:
    return {cell: one for cell, one in cells.items() if isinstance(one, RunRecord)}


def _all(which: str, work: Work, cells: Mapping[str, RunRecord]) -> list[str]:
    """Return the artifacts that a run computed or reused (`which`: "computed" or "reused"), including those of the cells it
    compares.
    """
    own = getattr(work, which)
    if which == "reused":  # a run that went on after an interruption found what it had computed before
        computed = set(work.computed)
        own = [ref for ref in dict.fromkeys(own) if ref not in computed]
    return sorted({*own, *(ref for one in cells.values() for ref in getattr(one, which))}) if cells else own


def _are_pinned(store: Store, run: RunRecord) -> bool:
    """Return whether a run's artifacts are those that it pins."""
    now = {str(ref): manifest for ref, manifest in store.artifacts.manifests_of(refs_of(run)).items()}
    return now.keys() == run.pins.keys() and all(is_pinned(pin, now[name]) for name, pin in run.pins.items())


def _digest(store: Store, path: str) -> str:
    return hashlib.sha256(store.published(path) or b"").hexdigest()


def _ledger(store: Store, work: Work, run: str, recipe: Any, artifacts: Iterable[AnyArtifact]) -> Ledger:
    """Return the ledger of a run: its data, and the audits of the same data that were published before it.

    A ledger that was recorded for the same data by an earlier publication of the run is kept. A run of the same recipe, as of
    an earlier version of memlib, is the same look if no model was trained since and the same models, outputs and lists were
    read: what the recipe names may have been replaced.
    """
    used, before = list(artifacts), _published_before(store, run)
    data = sources.data_digest(used)
    if before is not None and before.ledger.data == data:
        return before.ledger
    runs, again = list_runs(store.trusting(None)).entries, set[str]()
    past = past_of(store, runs)
    if not data:
        return ledger.entry(past, run, recipe.audit, Ledger())
    planned = ledger.planned_looks(recipe.model_dump(mode="json"))
    now = Ledger(
        data=data,
        examples=sources.examples_of(used),
        fingerprints=sources.fingerprints_in(used),
        look=work.look or run,
        planned=planned,
    )
    refs = {*(artifact.ref for artifact in used), *map(Ref.parse, [*work.computed, *work.reused])}
    if not ledger.trained_in(work.computed):
        asks, read = asks_digest(recipe.model_dump(mode="json")), read_beside_data(store, refs)
        again = {one["run"] for one in runs if one["asks"] == asks and read_beside_data(store, refs_of(one)) == read}
    return ledger.entry(past, run, recipe.audit, now, again=again)


def _published_before(store: Store, run: str) -> RunRecord | None:
    """Return the manifest of an earlier publication of the run; None if it is missing or unreadable."""
    with contextlib.suppress(RunError):
        return read_run(store.trusting(None), run)
    return None


def publish_run(store: Store, work: Work, run: RunRecord) -> RunRecord:
    """Complete a run's manifest with its history, pins and machines, publish it, and return it."""
    whole = run.model_copy(
        update={
            "asks": asks_digest(run.recipe),
            "ledger": _as_published(run.ledger),
            "pins": pins_of(store, refs_of(run)),
            "resources": work.resources.model_dump(mode="json"),
            "history": _history(store, work, run.run),
            "seconds": max(0.0, round(time.time() - work.started, 1)),  # the clock may have been set back
            "finished": time.time(),
        }
    )
    written = sealed(whole.model_dump())
    store.publish(f"runs/{run.run}/{MANIFEST}", json.dumps(written, indent=1).encode())
    folder = f"runs/{run.run}"
    store.drop(f"{folder}/{HISTORY}")  # the manifest holds it all
    own = {f"{folder}/{name}" for name in (MANIFEST, SIGNATURE, ENVELOPE)}
    for path in store.listing(folder).keys() - run.published.keys() - own:
        store.drop(path)  # of an earlier publication, whose page had other figures
    publish_row(store, run.run)
    return whole.model_copy(update={DIGEST: written[DIGEST]})


def _as_published(looked: Ledger) -> Ledger:
    """Return a ledger without the list of earlier audits, which a new one only sums up."""
    return looked if looked.number is None else looked.model_copy(update={"earlier": []})


def _history(store: Store, work: Work, run: str) -> list[Publication]:
    """Return all publications of the run, oldest first, including this one even if it computed nothing."""
    before = _published_before(store, run)
    return [*([] if before is None else [*before.history, *_later(store, run)]), _publication(work)]


def _publication(work: Work) -> Publication:
    return Publication(
        who=who(),
        started=work.started,
        seconds=max(0.0, round(time.time() - work.started, 1)),
        computed=len(work.computed),
        reused=len(work.reused),
    )


def _later(store: Store, run: str) -> list[Publication]:
    """Return the publications of a run after its manifest was written; none if their file is missing or damaged."""
    with contextlib.suppress(Unreadable):
        return parse(HistoryRecord, store.published(f"runs/{run}/{HISTORY}") or b"{}").publications
    return []
