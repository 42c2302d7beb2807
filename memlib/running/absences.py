"""Deviations from what a store committed, and the absences that its records of erasures and deletions excuse."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memlib.runs import vouching
from memlib.runs.erasures import erased_part
from memlib.runs.records import DeletionRecord, ErasureRecord, RunRecord
from memlib.store import Ref, Store
from memlib.store.records import Unreadable


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
