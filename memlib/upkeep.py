"""Checking a store, and clearing it of what no run refers to."""

import contextlib
import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memlib.errors import CorruptArtifact
from memlib.store import MANIFEST, Ref, Store

SUMMED = ("seconds", "cpu_seconds", "bytes_in", "bytes_out", "units")
HIGHEST = ("peak_memory_bytes", "gpu_peak_memory_bytes")
ENDED = ("failed", "stopped")  # what a status says of a run that will not go on by itself
SILENCE_SECONDS = 86_400.0  # after which a run that is not heard of is dead
KEY = re.compile(r"[0-9a-f]{32}")
Kind = Literal["artifact", "attempt", "resume", "ray", "log", "request", "status", "run"]


@dataclass(frozen=True)
class Garbage:
    """Something in a store that nothing kept refers to.

    Attributes:
        kind: artifact: committed, but of no kept run; attempt: files that no manifest names; resume: the state of an
            unfinished stage; ray: Ray's notes of an attempt at training; log: what a worker printed while it made an
            artifact that is gone, or failed; request: what was asked for and never ended; status: how far that was;
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


def metrics_by_stage(store: Store, run: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the artifacts of a run took, a row a stage: sums, and of memory the most that any of them took."""
    rows: dict[str, dict[str, Any]] = {}
    for ref in sorted(refs_of(run), key=str):
        with contextlib.suppress(CorruptArtifact):
            taken = store.manifest(ref)["metrics"]
            row = rows.setdefault(ref.stage, {"stage": ref.stage, "artifacts": 0})
            row["artifacts"] += 1
            for name in SUMMED:
                row[name] = row.get(name, 0) + taken[name]
            for name in HIGHEST:
                row[name] = max((v for v in (row.get(name), taken[name]) if v is not None), default=None)
    return list(rows.values())


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


def garbage(store: Store, *, keep: Collection[str] | None = None, before: float) -> list[Garbage]:
    """What no kept run refers to and nobody has touched since a time, so that it is nobody's work under way.

    While runs are under way, all that is whole and all states to resume from stay: any of them may be read, and no manifest
    says so yet.

    Args:
        store: which.
        keep: ids of the runs that stay; by default all.
        before: seconds since 1970.
    """
    artifacts = _by_artifact(store)  # takes longest; who has begun meanwhile is seen below
    requests, statuses = store.listing("requests"), store.listing("status")
    alive = _alive(store, requests, statuses, before)
    kept = [run for run in store.runs() if keep is None or run["run"] in keep]  # after the requests: who ends is in one
    before = min([before, *alive.values()])  # attempts and logs of runs under way
    whole_before = float("-inf") if alive else before
    wanted = {ref for run in kept for ref in refs_of(run)}
    found: list[Garbage] = []
    for ref, files in artifacts.items():
        found += _of_artifact(store, ref, files, wanted, before=before, whole_before=whole_before)
    found += [*_folders(store, "resume", whole_before), *_folders(store, "ray", before)]
    listed: tuple[tuple[Kind, dict[str, tuple[int, float]]], ...] = (("request", requests), ("status", statuses))
    for kind, files in listed:
        found += [
            Garbage(kind, path, size) for path, (size, when) in sorted(files.items()) if when < before and path not in alive
        ]
    named = {f"logs/{ref.stage}/{ref.key}/" for ref in wanted}
    for path, (size, when) in sorted(store.listing("logs").items()):
        kept_log = f"{path.rpartition('/')[0]}/" in named and not path.rpartition("/")[2].startswith("failed-")
        if when < before and not kept_log:
            found.append(Garbage("log", path, size))
    ids = {run["run"] for run in kept} | {cell for run in kept for cell in run.get("cells", {}).values()}
    for path, (size, when) in sorted(store.listing("runs").items()):
        if path.split("/")[1] not in ids and when < before:
            found.append(Garbage("run", path, size))
    for path, (size, when) in sorted(store.listing("results").items()):
        run = next((part.removeprefix("run=") for part in path.split("/") if part.startswith("run=")), None)
        if run is not None and run not in ids and when < before:
            found.append(Garbage("run", path, size))
    return found


def under_way(store: Store, *, since: float) -> dict[str, float]:
    """When each run was asked for that has not ended, by the path of its request; those not heard of since a time are dead.

    One that did not say how it ended is not dead before a day of silence, whatever the time.
    """
    return _alive(store, store.listing("requests"), store.listing("status"), since)


def _alive(
    store: Store, requests: Mapping[str, tuple[int, float]], statuses: Mapping[str, tuple[int, float]], since: float
) -> dict[str, float]:
    found = {}
    for path, (_, asked) in requests.items():
        status = f"status/{path.rpartition('/')[2]}"
        heard = max(asked, statuses.get(status, (0, 0.0))[1])
        if heard >= since or (heard >= time.time() - SILENCE_SECONDS and not _has_ended(store.published(status))):
            found[path] = asked
    return found


def _has_ended(status: bytes | None) -> bool:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return status is not None and json.loads(status)["state"] in ENDED
    return False


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
    store: Store,
    ref: Ref,
    files: Mapping[str, tuple[int, float]],
    wanted: set[Ref],
    *,
    before: float,
    whole_before: float,
) -> Iterator[Garbage]:
    attempts: dict[str, list[tuple[int, float]]] = {}
    for name, facts in files.items():
        attempts.setdefault(name.split("/")[0], []).append(facts)
    whole = MANIFEST in files
    named = None
    if whole and len(attempts) > 2:  # else there is only one
        with contextlib.suppress(CorruptArtifact):  # the next run that needs it makes it anew
            named = str(store.manifest(ref)["attempt"])
    base = f"artifacts/{ref.stage}/{ref.key}"
    if whole and ref not in wanted and max(when for _, when in files.values()) < whole_before:
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
