"""Verification of stores and runs: every byte, every digest, and every number that is derived from another.

Anyone with write access to a store can consistently change a run and everything on which it is based. Only a signature made
with a key that is kept outside the store reveals such changes.
"""

import contextlib
import hashlib
import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits import AUDITS, audit_of, published_tables, tables_of
from memlib.audits.last_stages import REPORT_FILE
from memlib.audits.sweep.recipe import Recipe
from memlib.errors import CorruptArtifact, MissingArtifact, RunError, UserError
from memlib.findings import Findings, Verdict, verdict_of
from memlib.identity import KEY, canonical_json
from memlib.pipeline.definitions import pinned_codes
from memlib.pipeline.stage import Identity, Known
from memlib.pipeline.tables import Tables
from memlib.report.page import said_on_page
from memlib.running.freezing import departures, said_of_plan
from memlib.running.publishing import said_of_looks
from memlib.runs import ledger, vouching
from memlib.runs.erasures import erased_part, in_words
from memlib.runs.garbage import committed, under_way, unexpected
from memlib.runs.index import (
    ERASED,
    HISTORY,
    INDEX,
    SIGNATURE,
    cells_of,
    find_run,
    findings_of,
    list_runs,
    read_run,
    refs_of,
    results_path,
    row_bytes,
    rows_of,
)
from memlib.runs.pins import unlike_pin
from memlib.runs.plans import PLAN, frozen_in, parse_plan
from memlib.runs.records import DeletionRecord, Departure, ErasureRecord, Pin, PlanFile, RunRecord
from memlib.runs.signatures import private_key, sign_text, signed_text, trusted_key, unlike_signed
from memlib.sanitize import count_of
from memlib.specs.cores import cores
from memlib.specs.question import asks_digest
from memlib.store import MANIFEST, Ref, Store
from memlib.store.records import ArtifactRecord, Unreadable
from memlib.tables import RUNS, read_bytes, read_table

SUMMARY_FILE = "summary.parquet"
OF_RUN = re.compile(rf"runs/[0-9a-f]{{12}}/{re.escape(MANIFEST)}")
ROWS = 10_000
MOST_ROW_BYTES = 2**20  # of a run's row of the table of runs
SWEEP = Recipe.model_fields["audit"].default
FREE = frozenset({"source", "prefix", "suffix"})  # inputs that are no keys, but which a user may choose to look like one


@dataclass(frozen=True)
class Problem:
    """A deviation from the committed state, or an item that cannot be checked.

    Attributes:
        what: the artifact, file below the store's root, or run.
        problem: description of the problem.
        is_unchecked: whether the item could not be checked, so that no deviation was found.
    """

    what: str
    problem: str
    is_unchecked: bool = False


@dataclass(frozen=True)
class Verification:
    """The result of verifying a store, or one run in it.

    Attributes:
        artifacts, runs: numbers of artifacts and runs that were checked.
        of_no_run: number of these artifacts that belong to no run; 0 if one run was verified.
        problems: deviations from the committed state, and items that cannot be checked.
        plans: what each run says of the frozen plan that it was given, by run.
        other_code: stages, and number of their artifacts, that other code than that of this memlib computed.
    """

    artifacts: int
    runs: int
    of_no_run: int
    problems: list[Problem]
    plans: dict[str, str] = field(default_factory=dict)
    other_code: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> Literal["unchanged", "changed", "unchecked"]:
        """The result in one word; unchecked if nothing has changed, but something cannot be checked."""
        return "changed" if self.changed else "unchecked" if self.problems else "unchanged"

    @property
    def changed(self) -> set[str]:
        """Artifacts, files and runs that deviate from the committed state."""
        return {problem.what for problem in self.problems if not problem.is_unchecked}

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain JSON."""
        return asdict(self)


def verified(
    store: Store, run: str | None = None, *, trust: Path | None = None, plan: PlanFile | None = None
) -> Verification:
    """Check that a store, or one run in it, is unchanged since it was committed: every byte, digest and number.

    Args:
        run: name of a run, or a unique prefix of it; by default all runs and artifacts are checked.
        trust: file with an Ed25519 public key (PEM) from outside the store; runs must be signed with its private key.
        plan: a frozen plan from outside the store that the runs must have been given.

    Raises:
        UserError: when there is nothing to verify, no run or more than one matches, or the key cannot be used.
    """
    trust, store = trust or store.trust, store.trusting(None)
    problems: list[Problem] = []
    links = store.links() if run is None else []  # before the index of runs is read, which puts a new one in its place
    listed, whole, excuses = list_runs(store, indexed=False), committed(store), excuses_of(store, trust)
    if list_runs(store, described=True) != listed:
        problems.append(Problem(INDEX, "does not match the runs; delete it, and it will be rebuilt"))
    if run is None:
        problems += [Problem(f"run {name}", problem) for name, problem in listed.damaged.items()]
        names, refs = [entry["run"] for entry in listed.entries], whole
        if not (names or refs or problems):
            raise UserError(f"{store.uri} is empty: there is nothing to verify")
    else:
        runs = with_members(store, find_run(store, run))
        gone = {Ref.parse(name) for one in runs for name in absences_of(store, one, excuses).artifacts}
        names, refs = [one.run for one in runs], sorted(refs_of(*runs) - gone, key=str)
    if trust is not None and not names:
        raise UserError(f"there is no finished run in {store.uri} that could be signed with the key of {trust}")
    found, rows, known = _Found(), rows_of(listed.entries), known_of(whole)

    def check(name: str) -> list[Problem]:
        one = read_run(store, name)
        found.add(one)
        problems = [*check_run(store, one, rows, known=known, excuses=excuses, made=trust is not None)]
        problems += check_signature(store, one, trust) if trust is not None else ()
        return [*problems, *(check_plan(one, plan) if plan is not None else ())]

    with ThreadPoolExecutor(cores()) as threads:  # digests are computed beside one another
        problems += itertools.chain.from_iterable(threads.map(lambda ref: list(check_artifacts(store, [ref])), refs))
        problems += itertools.chain.from_iterable(threads.map(check, names))
    if run is None:
        since = min(under_way(store, days=1).values(), default=math.inf)
        problems += [Problem(path, "is a link, or no regular file: put the file or folder itself there") for path in links]
        problems += [*check_layout(store, found.paths, since=since), *excuses.problems]
        problems += check_ancestors(found, {*excuses.runs, *listed.damaged})
    unused = len(set(refs) - found.refs) if run is None else 0
    plans = {name: found.plans[name] for name in names if name in found.plans}
    return Verification(len(refs), len(names), unused, list(dict.fromkeys(problems)), plans, found.other_code(store))


@dataclass
class _Found:
    """Names in the manifests of all runs, without the manifests themselves."""

    paths: set[str] = field(default_factory=set)  #: paths of the files of the runs.
    refs: set[Ref] = field(default_factory=set)  #: artifacts of the runs.
    plans: dict[str, str] = field(default_factory=dict)  #: what runs say of their frozen plans.
    previous: dict[str, list[str]] = field(default_factory=dict)  #: runs that each run names as published before.
    earlier: dict[str, list[str]] = field(default_factory=dict)  #: earlier runs of the same data, in older manifests.

    def add(self, run: RunRecord) -> None:
        """Add a run."""
        self.paths |= {*run.published, results_path(RUNS.name, run.audit, run.run)}
        self.paths |= {f"runs/{run.run}/{name}" for name in (MANIFEST, SIGNATURE, HISTORY, ERASED)}
        self.refs |= refs_of(run)
        self.previous[run.run], self.earlier[run.run] = run.ledger.previous, [one.run for one in run.ledger.earlier]
        if run.plan is not None:
            self.plans[run.run] = said_of_plan(run)

    def other_code(self, store: Store) -> list[str]:
        """Return a line for each stage whose artifacts were computed by other code than that of this release of memlib."""
        known, counts = pinned_codes(), dict[str, int]()
        for ref in self.refs:
            with contextlib.suppress(CorruptArtifact):
                made = store.artifacts.manifest(ref)
                if ref.stage_name in known and (made.version, made.definitions) not in known[ref.stage_name]:
                    counts[ref.stage_name] = counts.get(ref.stage_name, 0) + 1
        return [f"{name}: {count_of(count, 'artifact')}" for name, count in sorted(counts.items())]


def with_members(store: Store, run: RunRecord) -> list[RunRecord]:
    """Return a run, and the runs that it compares or joins, directly or not; what cannot be read is left to `check_run`."""
    found = {run.run: run}
    waiting = [run]
    while waiting:
        members = [one for one in cells_of(store, waiting.pop()).values() if one.run not in found]
        found |= {one.run: one for one in members}
        waiting += members
    return list(found.values())


def check_plan(run: RunRecord, plan: PlanFile) -> Iterator[Problem]:
    """Check that a run was given a frozen plan."""
    wanted, given = frozen_in(plan).digest, run.plan
    if given is None:
        yield Problem(f"run {run.run}", "was given no frozen plan")
    elif given.digest != wanted:
        yield Problem(f"run {run.run}", f"was given another plan ({given.digest}) than this one ({wanted})")


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


def check_layout(store: Store, named: Collection[str], *, since: float) -> Iterator[Problem]:
    """Check that a store holds the files that memlib wrote and no others.

    Readers of the tables count every part that they find, so a part of no run is as bad as a changed one. What lies elsewhere
    is read by nothing.

    Args:
        named: paths of the files of all runs whose manifests can be read.
        since: files written after this time may be those of a run under way, which publishes its manifest last.
    """
    for path in unexpected(store):
        yield Problem(path, "is not memlib's: nothing reads it, and nothing vouches for it", is_unchecked=True)
    for folder in ("runs", "results"):
        for path, (_, written) in sorted(store.listing(folder).items()):
            if path in named or OF_RUN.fullmatch(path):  # damaged manifests of runs are reported
                continue
            if written < since:
                problem = "belongs to no run whose manifest can be read; run its audit again, or memlib gc --lost RUN"
                yield Problem(path, problem)
            else:
                problem = "belongs to no finished run; a run under way may be publishing it: verify again when it has ended"
                yield Problem(path, problem, is_unchecked=True)


@dataclass(frozen=True)
class Excuses:
    """Artifacts, files and runs that were deleted on purpose, according to the records of a store."""

    artifacts: frozenset[str] = frozenset()  #: addresses of artifacts that were erased.
    paths: frozenset[str] = frozenset()  #: other files that were erased.
    runs: frozenset[str] = frozenset()  #: runs that were deleted as garbage.
    problems: Sequence[Problem] = ()  #: records that excuse nothing, and erasures that were interrupted.


def excuses_of(store: Store, trust: Path | None = None) -> Excuses:
    """Return what the records of erasures and deletions excuse: those that the store, and the trusted key, vouch for."""
    artifacts, paths, runs, problems = set[str](), set[str](), set[str](), list[Problem]()
    for path in (*vouching.paths_of(store, vouching.ERASED), *vouching.paths_of(store, vouching.DELETED)):
        try:
            record = vouching.read(store, path)
        except Unreadable as error:
            problems.append(Problem(path, f"cannot be read ({error}), so that it excuses nothing; restore it"))
            continue
        problem, is_unknown = vouching.problem_of(store, record, trust)
        if problem:
            problems.append(Problem(path, problem, is_unchecked=is_unknown))
        if problem and not (is_unknown and trust is None):
            continue
        if isinstance(record, ErasureRecord):
            artifacts.update(record.artifacts)
            paths.update(record.paths)
            if not record.complete:
                interrupted = "is an erasure that was interrupted; repeat memlib forget --delete"
                problems.append(Problem(path, interrupted, is_unchecked=True))
        elif isinstance(record, DeletionRecord):
            runs.update(one.run for one in record.runs)
    return Excuses(frozenset(artifacts), frozenset(paths), frozenset(runs), problems)


@dataclass(frozen=True)
class Absences:
    """The artifacts and files of a run that are absent because they were erased."""

    artifacts: frozenset[str] = frozenset()  #: addresses of artifacts.
    files: frozenset[str] = frozenset()  #: paths of published files.
    redacted: bool = False  #: whether ids were replaced in its manifest.


def absences_of(store: Store, run: RunRecord, excuses: Excuses) -> Absences:
    """Return what was erased of a run and has not been made again, as far as a record of the store excuses it."""
    erased = erased_part(store, run.run)
    if erased is None:
        return Absences()
    artifacts = {name for name in erased.artifacts if not store.artifacts.has(Ref.parse(name))}
    there = {**store.listing(f"runs/{run.run}"), **store.listing("results")}
    files = set(erased.files) - there.keys()
    return Absences(frozenset(artifacts & excuses.artifacts), frozenset(files & excuses.paths), erased.redacted)


def check_ancestors(found: _Found, excused: Collection[str]) -> Iterator[Problem]:
    """Check that the runs which others name as published before are still there, or were deleted as garbage."""
    there = {*found.previous, *excused}
    for run, previous in found.previous.items():
        for name in sorted(set(previous) - there):
            problem = f"is gone, though run {run} names it, and no record says that it was deleted"
            yield Problem(f"run {name}", f"{problem}; if you deleted it, memlib gc --lost {name} --delete records that")
        if lost := sorted(set(found.earlier[run]) - there):
            problem = f"names earlier run {lost[0]}{_and_more(lost)}, which is gone; if it was deleted on purpose"
            yield Problem(f"run {run}", f"{problem}, memlib gc --lost {lost[0]} --delete records that", is_unchecked=True)


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
        problem = f"says that {lost[0]}{_and_more(lost)} was erased, which no record in {vouching.ERASED}/ confirms"
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
        yield f"rests on artifact {key}, which {absent_keys[key]} read and which no longer exists{_and_more(absent_keys)}"
    if unpinned := sorted(str(ref) for ref in closure if str(ref) not in run.pins):
        yield f"does not pin {unpinned[0]}, on which it rests{_and_more(unpinned)}"
    with contextlib.suppress(CorruptArtifact):
        page = {f"runs/{run.run}/{name}" for name in store.artifacts.manifest(ends[1]).files}
        held = Tables(store, ends[0])
        tables = [name for name, table in tables_of(run.audit).items() if not table.optional or held.has(name)]
        expected = page | {results_path(name, run.audit, run.run) for name in tables}
        if unnamed := sorted(expected - run.published.keys()):
            yield f"does not name {unnamed[0]} among its published files{_and_more(unnamed)}"


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


def _and_more(names: Collection[str]) -> str:
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
                said = said_of_looks(run.audit, run.ledger, Findings.of_run(run), cells_of(store, run))
                for text in ("", said, ledger.formerly_in_words(run.ledger, run.audit)):
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
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if expected is None or metadata.num_rows != 1 or sum(group.total_byte_size for group in groups) > MOST_ROW_BYTES:
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
    of_theirs = (groups[0].column(number).statistics for number in range(metadata.num_columns))
    same = all(theirs is None or theirs == mine for theirs, mine in zip(of_theirs, of_ours, strict=True))
    return "" if same else "has the values of {run}, but statistics of others, by which readers filter; run its audit again"


def sign(store: Store, name: str, key: Path) -> str:
    """Sign a run's manifest, which pins everything on which the run is based, and return the URI of the signature.

    The run, and the runs that it joins or compares, are verified first. Of a run that was erased in part, what remains is
    signed; its absences are excused by records that are signed by themselves (`memlib.runs.vouching.sign_records`).

    Args:
        name: the run's id, or a unique prefix of it.
        key: file with an Ed25519 private key (PEM) that only its owner can read.

    Raises:
        UserError: when the file does not hold such a key, or others can read it.
        RunError: when the run is not as it was published, or joins runs that the key has not signed.
    """
    private, store = private_key(key), store.trusting(None)
    run = find_run(store, name)
    runs = with_members(store, run)
    rows, known, excuses = rows_of(list_runs(store, indexed=False).entries), known_of(committed(store)), excuses_of(store)
    gone = {Ref.parse(ref) for one in runs for ref in absences_of(store, one, excuses).artifacts}
    problems = [*check_artifacts(store, sorted(refs_of(*runs) - gone, key=str))]
    for one in runs:
        found = check_run(store, one, rows, known=known, excuses=excuses, made=True)
        is_erased = erased_part(store, one.run) is not None
        problems += [problem for problem in found if not (problem.is_unchecked and is_erased)]
    if problems:
        raise RunError(f"{problems[0].what}: {problems[0].problem}; nothing was signed, see memlib verify {run.run}")
    public = private.public_key()
    unsigned = [one.run for one in runs[1:] if unlike_signed(one, store.published(f"runs/{one.run}/{SIGNATURE}"), public)]
    if unsigned:
        raise RunError(
            f"run {run.run} joins {count_of(len(unsigned), 'run')} that this key has not signed; sign first: "
            f"{', '.join(sorted(unsigned))}"
        )
    signature = sign_text(signed_text(run), private)
    record = {"algorithm": "Ed25519", "run": run.run, "manifest": run.digest, "signature": signature}
    return store.publish(f"runs/{run.run}/{SIGNATURE}", canonical_json(record).encode())


def check_signature(store: Store, run: RunRecord, trusted: Path) -> Iterator[Problem]:
    """Check that a run's manifest was signed by the holder of a trusted key.

    Args:
        trusted: file with the Ed25519 public key (PEM), from outside the store.

    Raises:
        UserError: when the file does not hold such a key, or lies in the store.
    """
    key = trusted_key(trusted, store.root if store.is_local else None)
    if problem := unlike_signed(run, store.published(f"runs/{run.run}/{SIGNATURE}"), key):
        yield Problem(f"run {run.run}", problem)
