"""Checks of a finished run and of its artifacts: every byte, every digest, and every number that is derived from another."""

import contextlib
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits import AUDITS, PACKAGES, audit_of, published_tables, tables_of
from memlib.audits.last_stages import REPORT_FILE
from memlib.audits.sweep.recipe import Recipe
from memlib.errors import CorruptArtifact, MissingArtifact, RunError
from memlib.findings import Findings, Verdict, verdict_of
from memlib.identity import KEY
from memlib.pipeline.stage import Identity, Known
from memlib.pipeline.tables import Tables
from memlib.report.page import said_on_page
from memlib.running.absences import Absences, Excuses, Problem, absences_of
from memlib.running.freezing import departures, said_of_plan
from memlib.running.publishing import said_of_looks, said_of_number
from memlib.runs import ledger, vouching
from memlib.runs.erasures import erased_part, in_words
from memlib.runs.garbage import committed
from memlib.runs.index import (
    ERASED,
    cells_of,
    findings_of,
    fits_row,
    read_run,
    results_path,
    row_bytes,
)
from memlib.runs.pins import unlike_pin
from memlib.runs.plans import PLAN, frozen_in, parse_plan
from memlib.runs.records import Departure, Pin, RunRecord
from memlib.sanitize import plain
from memlib.specs.question import asks_digest
from memlib.store import Ref, Store
from memlib.store.records import ArtifactRecord, Unreadable
from memlib.tables import RUNS, read_bytes, read_table

SUMMARY_FILE = "summary.parquet"
ROWS = 10_000
SWEEP = Recipe.model_fields["audit"].default
FREE = frozenset({"source", "prefix", "suffix"})  # inputs that are no keys, but which a user may choose to look like one


def with_members(store: Store, run: RunRecord) -> list[RunRecord]:
    """Return a run, and the runs that it compares or joins, directly or not; what cannot be read is left to `check_run`."""
    found = {run.run: run}
    waiting = [run]
    while waiting:
        members = [one for one in cells_of(store, waiting.pop()).values() if one.run not in found]
        found |= {one.run: one for one in members}
        waiting += members
    return list(found.values())


def check_artifacts(store: Store, refs: Iterable[Ref]) -> Iterator[Problem]:
    """Check artifacts byte by byte, in the store itself, against their manifests, and their keys against their identities."""
    for ref in refs:
        try:
            manifest = store.artifacts.manifest(ref)
            problems = [*store.artifacts.problems(ref), *_unlike_its_key(ref, manifest)]
        except CorruptArtifact as error:
            problems = [str(error)]
        for problem in problems:
            yield Problem(str(ref), problem)


def _unlike_its_key(ref: Ref, manifest: ArtifactRecord) -> Iterator[str]:
    """Yield a problem if the key is not the digest of stage, version, spec and inputs; manifests without a version pass."""
    try:
        identity = Identity.recorded(ref, manifest)
        same = identity is None or identity.ref == ref
    except (TypeError, ValueError):
        same = False
    if not same:
        yield "its spec, inputs or version do not match its key"


def check_run(
    store: Store,
    run: RunRecord,
    rows: Mapping[str, Mapping[str, Any]],
    *,
    known: Known | None = None,
    excuses: Excuses = Excuses(),
    made: bool = False,
) -> Iterator[Problem]:
    """Check a run's manifest against its sources: artifacts, tables, page, findings, verdict, and its own id.

    Args:
        rows: rows of all runs of the store, see `memlib.runs.index.rows_of`.
        known: all committed artifacts of the store; listed if not given.
        excuses: what was deleted on purpose.
        made: whether to check as well how the artifacts were made.
    """
    name = f"run {run.run}"
    if not is_checkable(run):
        yield Problem(name, "has a manifest without pins or digest, so nothing of it can be checked; run its audit again")
        return
    if audit_of(run.audit) not in PACKAGES:
        yield Problem(name, f"is of an audit that this memlib does not have ({plain(run.audit)})", is_unchecked=True)
        return
    absent = absences_of(store, run, excuses)
    known = known_of(committed(store)) if known is None else known
    yield from _check_row(store, run, rows.get(run.run))
    yield from _check_erased(store, run, absent)
    yield from (Problem(name, problem) for problem in _incomplete(store, run, known, absent))
    yield from (Problem(name, problem) for problem in _unlike_itself(store, run, absent))
    yield from (Problem(name, problem) for problem in _unlike_its_plan(store, run, absent))
    if run.cells or run.audit == SWEEP:
        yield from _unlike_its_cells(store, run, absent)
    pins = {name: pin for name, pin in run.pins.items() if name not in absent.artifacts}
    yield from _check_pins(store, run, pins, made=made)
    yield from _check_reads(store, run, known)
    published = {path: digest for path, digest in run.published.items() if path not in absent.files}
    yield from _check_published(store, published)


def _check_erased(store: Store, run: RunRecord, absent: Absences) -> Iterator[Problem]:
    """Name what was erased of a run, and what only its own file says was erased."""
    name, path = f"run {run.run}", f"runs/{run.run}/{ERASED}"
    erased = erased_part(store, run.run)
    if erased is None:
        if store.published(path) is not None:
            yield Problem(path, "cannot be read, so that it excuses nothing; restore it")
        return
    yield Problem(name, in_words(erased), is_unchecked=True)
    named = {one for one in erased.artifacts if not store.artifacts.has(Ref.parse(one))}
    named |= {one for one in erased.files if store.published(one) is None}
    if lost := sorted(named - absent.artifacts - absent.files):
        problem = f"says that {lost[0]}{and_more(lost)} was erased, which no record in {vouching.ERASED}/ confirms"
        yield Problem(path, problem)
    if not named and not erased.redacted:
        yield Problem(path, "says that a part of the run was erased, but all of it is there", is_unchecked=True)


def _check_reads(store: Store, run: RunRecord, known: Known) -> Iterator[Problem]:
    """Check that the artifacts of a run were computed from each other as they are now."""
    for name in run.pins:
        ref = Ref.parse(name)
        with contextlib.suppress(CorruptArtifact):  # reported elsewhere
            if changed := known.changed_since(store, store.artifacts.manifest(ref)):
                yield Problem(
                    name, f"was computed from another {changed[0].stage} than the one in the store; run its audit again"
                )


def _check_pins(store: Store, run: RunRecord, pins: Mapping[str, Pin], *, made: bool) -> Iterator[Problem]:
    """Check that artifacts of a run are those that it pins."""
    name = f"run {run.run}"
    for ref_name, pin in pins.items():
        try:
            manifest = store.artifacts.manifest(Ref.parse(ref_name))
        except MissingArtifact:
            yield Problem(ref_name, "no longer exists")
            continue
        except CorruptArtifact as error:
            yield Problem(ref_name, str(error))
            continue
        if problem := unlike_pin(pin, manifest, made=made):
            yield Problem(ref_name, f"{problem} since {name} was published; run its audit again")


def _check_published(store: Store, published: Mapping[str, str]) -> Iterator[Problem]:
    """Check published files against their digests."""
    for path, digest in published.items():
        if (found := _digest(store, path)) is None:
            yield Problem(path, "is missing")
        elif found != digest:
            yield Problem(path, "has been changed since it was published")


def _is_published(store: Store, run: RunRecord, path: str) -> bool:
    """Return whether a file is the one that a run published: its bytes are compared before they are decoded."""
    return path in run.published and _digest(store, path) == run.published[path]


def _digest(store: Store, path: str) -> str | None:
    """Return the sha256 of a file; None if there is none. What is no regular file has none of any other file."""
    try:
        return store.backend.digest(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        if not store.is_local:
            raise
        return ""


def is_checkable(run: RunRecord) -> bool:
    """Return whether a run's manifest records its artifacts and its own digest."""
    return bool(run.pins) and run.digest is not None


def known_of(refs: Iterable[Ref]) -> Known:
    """Index artifacts by the keys under which the inputs of stages refer to them."""
    known = Known()
    for ref in refs:
        known.add(ref)
    return known


def _incomplete(store: Store, run: RunRecord, known: Known, absent: Absences) -> Iterator[str]:
    """Yield the omissions of a run's manifest: artifacts on which the run rests, its tables, its page."""
    if run.scores is None:
        if run.audit != SWEEP:
            yield "names no scores"
        return
    ends = [Ref.parse(run.artifacts[name]) for name in ("scores", "report") if name in run.artifacts]
    if len(ends) < 2 or str(ends[0]) != run.scores:
        yield "names no scores or no report among its artifacts"
        return
    waiting, closure, absent_keys = list(ends), set[Ref](), dict[str, Ref]()
    erased = {Ref.parse(name).key for name in absent.artifacts}
    while waiting:
        ref = waiting.pop()
        if ref in closure:
            continue
        closure.add(ref)
        with contextlib.suppress(CorruptArtifact):  # reported elsewhere
            manifest = store.artifacts.manifest(ref)
            keys = {*manifest.reads, *keys_in(manifest.inputs)}
            found = known.named_in(sorted(keys))
            waiting += found
            absent_keys |= dict.fromkeys(keys - {one.key for one in found} - erased, ref)
    if absent_keys:
        key = min(absent_keys)
        yield f"rests on artifact {key}, which {absent_keys[key]} read and which no longer exists{and_more(absent_keys)}"
    if unpinned := sorted(str(ref) for ref in closure if str(ref) not in run.pins):
        yield f"does not pin {unpinned[0]}, on which it rests{and_more(unpinned)}"
    with contextlib.suppress(CorruptArtifact):
        page = {f"runs/{run.run}/{name}" for name in store.artifacts.manifest(ends[1]).files}
        held = Tables(store, ends[0])
        tables = [name for name, table in tables_of(run.audit).items() if not table.optional or held.has(name)]
        expected = page | {results_path(name, run.audit, run.run) for name in tables}
        if unnamed := sorted(expected - run.published.keys()):
            yield f"does not name {unnamed[0]} among its published files{and_more(unnamed)}"


def _named(run: RunRecord, scores: str) -> str | None:
    """Return the name that a run's recipe and scores give it; None if the recipe cannot be read."""
    try:
        return AUDITS[audit_of(run.audit)].run_of(run.recipe, scores)
    except ValueError:
        return None


def keys_in(inputs: Any) -> Iterator[str]:
    """Yield the keys of artifacts among a stage's inputs, at any depth; longer texts are digests of content."""
    if isinstance(inputs, str):
        if KEY.fullmatch(inputs):
            yield inputs
    elif isinstance(inputs, Mapping):
        for role, inner in inputs.items():
            if role not in FREE:
                yield from keys_in(inner)
    elif isinstance(inputs, list | tuple):
        for inner in inputs:
            yield from keys_in(inner)


def and_more(names: Collection[str]) -> str:
    """Return how many more names there are than the first, in brackets; "" for none."""
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _unlike_itself(store: Store, run: RunRecord, absent: Absences) -> Iterator[str]:
    """Yield the contradictions between a run's manifest, its recipe and its scores."""
    try:
        asked = asks_digest(run.recipe)
    except ValueError as error:
        yield f"its recipe cannot be read: {error}"
        return
    if run.asks != asked and not absent.redacted:
        yield "its recipe differs from the recipe with which it was published"
    if run.title != run.recipe.get("title", run.title):
        yield "its title differs from its recipe's"
    named = [(uri, results_path(table, run.audit, run.run)) for table, uri in run.results.items()]
    for uri, place in (*named, (run.report, f"runs/{run.run}/{REPORT_FILE}")):
        if not f"/{uri}".endswith(f"/{place}"):
            yield f"it names {uri or 'nothing'} in place of {place}"
    if run.scores is None:
        return
    yield from _unlike_its_page(store, run, absent)
    scores = Ref.parse(run.scores)
    if _named(run, scores.key) != run.run and not absent.redacted:
        yield "its name does not match its recipe and scores"
    if run.scores in absent.artifacts:
        return
    try:
        summary = read_table(store.artifacts.local_path(scores, SUMMARY_FILE))
    except (CorruptArtifact, KeyError) as error:  # or the manifest is another artifact's
        yield f"its findings cannot be checked: {error}"
        return
    yield from _said_otherwise(run, findings_of(summary.to_pylist()), verdict_of(summary), "scores")
    published = published_tables()
    for table in published.keys() & run.results.keys():
        try:
            parts = list(Tables(store, scores).paths(table))
        except (CorruptArtifact, KeyError, ValueError):  # reported by check_artifacts, or not a table of the scores
            continue
        for number, part in enumerate(parts):
            path = results_path(table, run.audit, run.run, number)
            if _is_published(store, run, path) and not _same_table(store, path, part):
                yield f"{path} differs from its scores"


def _said_otherwise(run: RunRecord, findings: Sequence[Mapping[str, Any]], verdict: Verdict, source: str) -> Iterator[str]:
    """Yield the differences between a manifest's findings and verdict and those of their `source`."""
    if not _alike([finding.model_dump() for finding in run.findings], findings):
        yield f"its findings differ from its {source}"
    said = run.verdict
    if said is None or (said.word, said.sentence, said.explanation) != astuple(verdict):
        yield f"its verdict differs from its {source}"


def _unlike_its_page(store: Store, run: RunRecord, absent: Absences) -> Iterator[str]:
    """Yield the published files of a page that differ from the report artifact, apart from the lines about looks and plan."""
    report = Ref.parse(run.artifacts.get("report", run.scores or ""))
    try:
        manifest = store.artifacts.manifest(report)
        is_other = isinstance(manifest.spec, Mapping) and manifest.spec.get("recipe", run.recipe) != run.recipe
        if is_other and not absent.redacted:
            yield "its recipe differs from that of its report"
        for name, file in manifest.files.items():
            expected = {file.sha256}
            if name == REPORT_FILE:
                page = store.artifacts.local_path(report, name).read_bytes()
                looked, findings = run.ledger, Findings.of_run(run)
                said = [said_of_looks(run.audit, looked, findings, cells_of(store, run))]
                said += [] if run.cells else [said_of_number(run.audit, looked, findings)]  # as in earlier versions
                for text in ("", *said, ledger.formerly_in_words(looked, run.audit)):
                    expected.add(hashlib.sha256(said_on_page(page, text, said_of_plan(run))).hexdigest())
            if run.published.get(f"runs/{run.run}/{name}", file.sha256) not in expected:
                yield f"runs/{run.run}/{name} differs from its report"
    except (CorruptArtifact, KeyError):  # reported by check_artifacts
        return


def _unlike_its_plan(store: Store, run: RunRecord, absent: Absences) -> Iterator[str]:
    """Yield the contradictions between a run and the frozen plan that it was given."""
    path, said = f"runs/{run.run}/{PLAN}", run.plan
    if said is None or path in absent.files:
        return
    if path not in run.published:
        yield f"does not name {path}, the plan that it was given, among its published files"
        return
    try:
        file = parse_plan(store.published(path) or b"")
        plan = frozen_in(file)
    except Unreadable as error:
        yield f"the plan that it was given cannot be read ({error})"
        return
    known = {"digest": plan.digest, "frozen": plan.frozen, "earlier": plan.earlier, "fixes_data": bool(plan.data)}
    if known != {name: getattr(said, name) for name in known} or file.signatures != said.signatures:
        yield "it names another plan than the one that it was given"
    if said.began > min((one.started for one in run.history), default=math.inf):
        yield "its plan is said to be older than the run, which had begun before"
    if absent.artifacts or absent.redacted:
        return  # what is gone would count as departures
    try:
        found = departures(plan, store, run, cells_of(store, run))
    except (KeyError, TypeError, ValueError) as error:
        yield f"cannot be compared with its plan ({type(error).__name__})"
        return
    if not _alike(_as_json(said.departures), _as_json(found)):
        yield "its departures from its plan are not those that it records"


def _as_json(listed: Iterable[Departure]) -> list[dict[str, Any]]:
    return [one.model_dump() for one in listed]


def _unlike_its_cells(store: Store, run: RunRecord, absent: Absences) -> Iterator[Problem]:
    """Yield contradictions between the cells of a run and its recipe or scores, and cells that were published again since."""
    name = f"run {run.run}"
    if run.scores is None:
        problem = "was published before the comparison of cells was an artifact; run it again, or verify each of its cells"
        yield Problem(name, problem, is_unchecked=True)
        return
    if run.scores in absent.artifacts:
        return
    try:
        spec: Any = store.artifacts.manifest(Ref.parse(run.scores)).spec
        compared = {cell["cell"]: cell for cell in spec["cells"]}
        named = {cell for cell, *_ in Recipe.model_validate(run.recipe).changes()} if run.audit == SWEEP else set(compared)
    except CorruptArtifact:  # reported by check_artifacts
        return
    except (KeyError, TypeError, ValueError) as error:
        yield Problem(name, f"has a recipe or scores that cannot be read ({str(error).splitlines()[0]})")
        return
    said = {cell: (one.get("run"), one.get("problem", "")) for cell, one in compared.items()}
    if said != {cell: (one, run.problems.get(cell, "")) for cell, one in run.cells.items()} or named != said.keys():
        yield Problem(name, "its cells do not match its recipe and scores")
    for cell, one in run.cells.items():
        try:
            found = None if one is None else read_run(store, one)
        except RunError as error:
            yield Problem(name, f"{error} (cell {cell})")
            continue
        if found is not None and found.digest != run.cell_digests.get(found.run):
            yield Problem(name, f"its cell {cell}, run {one}, has been published again since; run the audit again")


def _alike(said: Any, expected: Any) -> bool:
    """Return whether two values are equal as JSON; NaN equals NaN."""
    return repr(_plain(said)) == repr(_plain(expected))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in sorted(value.items()) if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
    return float(value) if is_number else value


def _same_table(store: Store, path: str, part: Path) -> bool:
    content = store.published(path)
    if content is None:
        return True  # reported as missing by check_run
    try:
        table = read_bytes(content)
        expected = read_table(part).select(table.column_names)
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return False
    if table.num_rows != expected.num_rows:
        return False
    return table.equals(expected) or all(  # NaN equals no NaN
        repr(table.slice(start, ROWS).to_pylist()) == repr(expected.slice(start, ROWS).to_pylist())
        for start in range(0, table.num_rows, ROWS)
    )


def _check_row(store: Store, run: RunRecord, expected: Mapping[str, Any] | None) -> Iterator[Problem]:
    """Check a run's row of the table of runs, without which its other tables are not counted."""
    path = results_path(RUNS.name, run.audit, run.run)
    content = store.published(path)
    if content is None:
        yield Problem(path, "is missing, so the tables of its run are not counted; run its audit again")
    elif expected is None or content != row_bytes(expected):
        try:
            file = pq.ParquetFile(pa.BufferReader(content))
            if problem := _unlike_row(file, expected):
                yield Problem(path, problem.format(run=f"run {run.run}"))
        except (pa.ArrowException, OSError, ValueError):
            yield Problem(path, "is not a readable Parquet file")


def _unlike_row(file: pq.ParquetFile, expected: Mapping[str, Any] | None) -> str:
    """Return how a file differs from the one with a run's row that this or another version of Arrow would write; "" if not.

    Readers filter by the statistics in a file, which its values do not show.
    """
    unlike, metadata = "does not match {run}", file.metadata
    if expected is None or not fits_row(metadata):
        return unlike
    table = file.read(use_threads=False)
    table.validate(full=True)
    row = pa.Table.from_pylist([expected], schema=RUNS.arrow)
    if not table.schema.equals(row.schema) or not _alike(table.to_pylist(), row.to_pylist()):
        return unlike
    ours = pq.ParquetFile(pa.BufferReader(row_bytes(expected))).metadata
    if metadata.created_by == ours.created_by:
        return "has the values of {run}, but other bytes than were written; run its audit again"
    of_ours = (ours.row_group(0).column(number).statistics for number in range(ours.num_columns))
    of_theirs = (metadata.row_group(0).column(number).statistics for number in range(metadata.num_columns))
    same = all(theirs is None or theirs == mine for theirs, mine in zip(of_theirs, of_ours, strict=True))
    return "" if same else "has the values of {run}, but statistics of others, by which readers filter; run its audit again"
