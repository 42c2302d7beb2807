"""Checking a store, and clearing it of what no run refers to."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memlib.errors import CorruptArtifact
from memlib.store import MANIFEST, Ref, Store

KEY = re.compile(r"[0-9a-f]{32}")
Kind = Literal["artifact", "attempt", "resume", "ray", "request", "run"]


@dataclass(frozen=True)
class Garbage:
    """Something in a store that nothing kept refers to.

    Attributes:
        kind: artifact: committed, but of no kept run; attempt: files that no manifest names; resume: the state of an
            unfinished stage; ray: Ray's notes of an attempt at training; request: what was asked for and never ended;
            run: results and report of a run that is not kept.
        path: below the store's root.
        size: bytes.
    """

    kind: Kind
    path: str
    size: int


@dataclass(frozen=True)
class Damaged:
    """An artifact that is not as it was committed."""

    ref: Ref
    problem: str


def refs_of(run: Mapping[str, Any]) -> set[Ref]:
    """All artifacts that a run's manifest names."""
    named = [*run.get("artifacts", {}).values(), *run.get("computed", []), *run.get("reused", [])]
    return {Ref(*str(ref).rsplit("/", 1)) for ref in named}


def committed(store: Store) -> list[Ref]:
    """All artifacts that have a manifest, in order."""
    return sorted((ref for ref, files in _by_artifact(store).items() if MANIFEST in files), key=str)


def verify(store: Store, refs: Iterable[Ref]) -> Iterator[Damaged]:
    """Reads every byte of artifacts and compares it with what was committed; nothing is taken from a cache."""
    for ref in refs:
        try:
            problems = store.problems(ref)
        except CorruptArtifact as error:
            problems = [str(error)]
        for problem in problems:
            yield Damaged(ref, problem)


def garbage(store: Store, kept: Sequence[Mapping[str, Any]], *, before: float) -> list[Garbage]:
    """What no kept run refers to and nobody has touched since a time, so that it is nobody's work under way.

    Args:
        store: which.
        kept: manifests of the runs that stay.
        before: seconds since 1970.
    """
    wanted = {ref for run in kept for ref in refs_of(run)}
    found = [item for ref, files in _by_artifact(store).items() for item in _of_artifact(store, ref, files, wanted, before)]
    for kind in ("resume", "ray"):
        found += _folders(store, kind, before)
    found += [
        Garbage("request", path, size) for path, (size, when) in sorted(store.listing("requests").items()) if when < before
    ]
    ids = {run["run"] for run in kept}
    for path, (size, _) in sorted(store.listing("runs").items()):
        if path.split("/")[1] not in ids:
            found.append(Garbage("run", path, size))
    for path, (size, _) in sorted(store.listing("results").items()):
        run = next((part.removeprefix("run=") for part in path.split("/") if part.startswith("run=")), None)
        if run is not None and run not in ids:
            found.append(Garbage("run", path, size))
    return found


def delete(store: Store, found: Sequence[Garbage]) -> None:
    """Removes it; manifests first, so that nothing half removed is trusted."""
    for item in sorted(found, key=lambda item: not item.path.endswith(MANIFEST)):
        if item.kind == "artifact":
            store.drop(f"{item.path}/{MANIFEST}")
        store.drop(item.path)


def _by_artifact(store: Store) -> dict[Ref, dict[str, tuple[int, float]]]:
    """Files of every artifact by their path below it: (bytes, when they were written)."""
    found: dict[Ref, dict[str, tuple[int, float]]] = {}
    for path, facts in store.listing("artifacts").items():
        parts = path.split("/")[1:]
        place = next((n for n, part in enumerate(parts) if KEY.fullmatch(part)), None)
        if place is not None:
            ref = Ref("/".join(parts[:place]), parts[place])
            found.setdefault(ref, {})["/".join(parts[place + 1 :])] = facts
    return found


def _of_artifact(
    store: Store, ref: Ref, files: Mapping[str, tuple[int, float]], wanted: set[Ref], before: float
) -> Iterator[Garbage]:
    attempts: dict[str, list[tuple[int, float]]] = {}
    for name, facts in files.items():
        attempts.setdefault(name.split("/")[0], []).append(facts)
    whole = MANIFEST in files
    named = str(store.manifest(ref)["attempt"]) if whole and len(attempts) > 2 else None  # else there is only one
    base = f"artifacts/{ref.stage}/{ref.key}"
    if whole and ref not in wanted and max(when for _, when in files.values()) < before:
        yield Garbage("artifact", base, sum(size for size, _ in files.values()))
        return
    for attempt, parts in sorted(attempts.items()):
        old = max(when for _, when in parts) < before
        orphan = attempt != MANIFEST and (not whole or (named is not None and attempt != named))
        if orphan and old:
            yield Garbage("attempt", f"{base}/{attempt}", sum(size for size, _ in parts))


def _folders(store: Store, kind: Literal["resume", "ray"], before: float) -> Iterator[Garbage]:
    """The state of each unfinished stage, or Ray's folder of each attempt."""
    found: dict[str, list[tuple[int, float]]] = {}
    for path, facts in store.listing(kind).items():
        parts = path.split("/")
        place = next((n for n, part in enumerate(parts) if KEY.fullmatch(part)), 1)
        found.setdefault("/".join(parts[: place + 1]), []).append(facts)
    for path, every in sorted(found.items()):
        if max(when for _, when in every) < before:
            yield Garbage(kind, path, sum(size for size, _ in every))
