"""Verification of stores and runs: every byte, every digest, and every number that is derived from another.

Anyone with write access to a store can consistently change a run and everything on which it is based. Only a signature made
with a key that is kept outside the store reveals such changes.
"""

import contextlib
import itertools
import math
import re
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.pipeline.definitions import pinned_codes
from memlib.running.absences import Problem, absences_of, excuses_of
from memlib.running.checks import and_more, check_artifacts, check_run, known_of, with_members
from memlib.running.freezing import said_of_plan
from memlib.runs.erasures import erased_part
from memlib.runs.garbage import committed, under_way, unexpected
from memlib.runs.index import (
    ENVELOPE,
    INDEX,
    OWN_FILES,
    SIGNATURE,
    find_run,
    list_runs,
    read_run,
    refs_of,
    results_path,
    rows_of,
)
from memlib.runs.plans import frozen_in
from memlib.runs.records import PlanFile, RunRecord
from memlib.runs.signatures import (
    envelope,
    private_key,
    signature_file,
    trusted_key,
    unlike_enveloped,
    unlike_signed,
)
from memlib.sanitize import count_of
from memlib.specs.cores import cores
from memlib.store import MANIFEST, Ref, Store
from memlib.tables import RUNS

OF_RUN = re.compile(rf"runs/[0-9a-f]{{12}}/{re.escape(MANIFEST)}")


@dataclass(frozen=True)
class Verification:
    """The result of verifying a store, or one run in it.

    Attributes:
        artifacts, runs: numbers of artifacts and runs that were checked.
        of_no_run: number of these artifacts that belong to no run; 0 if one run was verified.
        problems: deviations from the committed state, and items that cannot be checked.
        plans: what each run says of the frozen plan that it was given, by run.
        other_code: stages, and number of their artifacts, that other code than that of this memlib computed.
        recomputed: what came of computing the run again; "" if it was only verified.
    """

    artifacts: int
    runs: int
    of_no_run: int
    problems: list[Problem]
    plans: dict[str, str] = field(default_factory=dict)
    other_code: list[str] = field(default_factory=list)
    recomputed: str = ""

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
        self.paths |= {f"runs/{run.run}/{name}" for name in OWN_FILES}
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


def check_plan(run: RunRecord, plan: PlanFile) -> Iterator[Problem]:
    """Check that a run was given a frozen plan."""
    wanted, given = frozen_in(plan).digest, run.plan
    if given is None:
        yield Problem(f"run {run.run}", "was given no frozen plan")
    elif given.digest != wanted:
        yield Problem(f"run {run.run}", f"was given another plan ({given.digest}) than this one ({wanted})")


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


def check_ancestors(found: _Found, excused: Collection[str]) -> Iterator[Problem]:
    """Check that the runs which others name as published before are still there, or were deleted as garbage."""
    there = {*found.previous, *excused}
    for run, previous in found.previous.items():
        for name in sorted(set(previous) - there):
            problem = f"is gone, though run {run} names it, and no record says that it was deleted"
            yield Problem(f"run {name}", f"{problem}; if you deleted it, memlib gc --lost {name} --delete records that")
        if lost := sorted(set(found.earlier[run]) - there):
            problem = f"names earlier run {lost[0]}{and_more(lost)}, which is gone; if it was deleted on purpose"
            yield Problem(f"run {run}", f"{problem}, memlib gc --lost {lost[0]} --delete records that", is_unchecked=True)


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
    manifest = store.published(f"runs/{run.run}/{MANIFEST}") or b""
    store.publish(f"runs/{run.run}/{ENVELOPE}", envelope(run, manifest, private))
    return store.publish(f"runs/{run.run}/{SIGNATURE}", signature_file(run, private))


def check_signature(store: Store, run: RunRecord, trusted: Path) -> Iterator[Problem]:
    """Check that a run's manifest was signed by the holder of a trusted key.

    Args:
        trusted: file with the Ed25519 public key (PEM), from outside the store.

    Raises:
        UserError: when the file does not hold such a key, or lies in the store.
    """
    key, folder = trusted_key(trusted, store.root if store.is_local else None), f"runs/{run.run}"
    if problem := unlike_signed(run, store.published(f"{folder}/{SIGNATURE}"), key):
        yield Problem(f"run {run.run}", problem)
    other = store.published(f"{folder}/{ENVELOPE}")  # absent for runs that an earlier memlib signed
    if other is None and ENVELOPE in store.names(folder):
        yield Problem(f"{folder}/{ENVELOPE}", "is not a regular file")
    if other is not None and (problem := unlike_enveloped(run, store.published(f"{folder}/{MANIFEST}") or b"", other, key)):
        yield Problem(f"{folder}/{ENVELOPE}", problem)
