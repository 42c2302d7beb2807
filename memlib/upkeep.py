"""Checking a store, and clearing it of what no run refers to."""

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any, Literal

from memlib.errors import CorruptArtifact, RunError
from memlib.heartbeat import SILENT_SECONDS, beating
from memlib.records import RequestRecord, RunRecord, StatusRecord, Unreadable, parse
from memlib.runs import list_runs, publish_rows, refs_of
from memlib.specs import Resources
from memlib.stage import AnyArtifact
from memlib.store import MANIFEST, Ref, Store

SUMMED = ("seconds", "cpu_seconds", "bytes_in", "bytes_out", "units")
HIGHEST = ("peak_memory_bytes", "gpu_peak_memory_bytes")
ENDED = ("failed", "stopped")  # what a status says of a run that will not go on by itself
DAY = 86_400.0
SILENCE_SECONDS = DAY  # after which a run that is not heard of is dead
CLEARING = "clearing"
LOOK_SECONDS = 1.0
KEY = re.compile(r"[0-9a-f]{32}")
ATTEMPT = re.compile(r"[0-9a-f]{12}")
STATE = re.compile(r"\d{12}-[0-9a-f]{12}")
PART = re.compile(r".+\.[0-9a-f]{32}\.part|[0-9a-f]{32}\.part")
# below its folder, every name that memlib gives; all else is somebody else's, and stays
PATTERNS = {
    "resume": re.compile(r"resume/(\w+/)?[0-9a-f]{32}/\d{12}-[0-9a-f]{12}/.+"),
    "ray": re.compile(r"ray/memlib-[0-9a-f]{12}/.+"),
    "logs": re.compile(r"logs/(\w+/)+[0-9a-f]{32}/(failed-)?[0-9a-f]{12}\.log"),
    "requests": re.compile(r"requests/[0-9a-f]{12}(-[0-9a-f]{8})?\.json"),
    "status": re.compile(r"status/[0-9a-f]{12}\.json"),
    "runs": re.compile(r"runs/[0-9a-f]{12}/[^/]+"),
    "results": re.compile(r"results/table=\w+/audit=\w+/run=[0-9a-f]{12}/part-\d+\.parquet"),
    "tmp": re.compile(r"tmp/[0-9a-f]{32}\.part"),
}
Kind = Literal["artifact", "attempt", "resume", "ray", "log", "request", "status", "run", "part"]
Facts = tuple[int, float]  # bytes, and when it was written


@dataclass(frozen=True)
class Garbage:
    """Something in a store that nothing kept refers to.

    Attributes:
        kind: artifact: committed, but of no kept run; attempt: files that no manifest names; resume: the state of an
            unfinished stage; ray: Ray's notes of an attempt at training; log: what a worker printed while it made an
            artifact that is gone, or failed; request: what was asked for and never ended; status: how far that was;
            run: results and report of a run that is not kept; part: half of a file, whose writer was killed.
        path: below the store's root.
        size: bytes.
    """

    kind: Kind
    path: str
    size: int


def let_go(store: Store, artifacts: Sequence[AnyArtifact], resources: Resources, *, say: Callable[[str], None]) -> None:
    """Take the passing files of artifacts away, where the resources say so and no run is under way that may read them.

    Args:
        store: of the artifacts.
        artifacts: of a run that has ended; their stages say which of their files pass.
        resources: of that run.
        say: told what went.
    """
    if resources.keep_embeddings or not artifacts:
        return
    if under_way(store, days=1):
        say("embeddings stay, as other runs are under way (resources.keep_embeddings)")
        return
    freed = 0
    for artifact in dict.fromkeys(artifacts):
        names = [name for name in artifact.files if artifact.stage.passing and fnmatch(name, artifact.stage.passing)]
        freed += store.artifacts.let_go(artifact.ref, names)
    if freed:
        say(f"{freed / 2**20:.1f} MiB of embeddings were let go (resources.keep_embeddings)")


def metrics_by_stage(store: Store, run: RunRecord) -> list[dict[str, Any]]:
    """What the artifacts of a run took, a row a stage: sums, and of memory the most that any of them took.

    `gpu_seconds` are those of artifacts that were made on a GPU.
    """
    rows: dict[str, dict[str, Any]] = {}
    for ref in sorted(refs_of(run), key=str):
        with contextlib.suppress(CorruptArtifact):
            taken = store.artifacts.manifest(ref).metrics.model_dump()
            row = rows.setdefault(ref.stage, {"stage": ref.stage, "artifacts": 0})
            row["artifacts"] += 1
            row["gpu_seconds"] = row.get("gpu_seconds", 0) + (taken["seconds"] if taken["gpu_peak_memory_bytes"] else 0)
            for name in SUMMED:
                row[name] = row.get(name, 0) + taken[name]
            for name in HIGHEST:
                row[name] = max((v for v in (row.get(name), taken[name]) if v is not None), default=None)
    return list(rows.values())


def committed(store: Store) -> list[Ref]:
    """All artifacts that have a manifest, in order."""
    return sorted((ref for ref, files in _by_artifact(store).items() if MANIFEST in files), key=str)


def garbage(store: Store, *, keep: Collection[str] | None = None, days: float) -> list[Garbage]:
    """What no kept run refers to and nobody has touched for some days, so that it is nobody's work under way.

    Times are those of the store's own clock. Only what has a name that memlib gives is listed, and nothing behind a link.
    While runs are under way, all that is whole and all states to resume from stay: any of them may be read, and no manifest
    says so yet.

    Args:
        store: which.
        keep: ids of the runs that stay; by default all.
        days: of 86,400 seconds.

    Raises:
        RunError: when a run cannot be read, so that nobody knows what it refers to.
    """
    artifacts = _by_artifact(store)  # takes longest; who has begun meanwhile is seen below
    requests, statuses = store.listing("requests"), store.listing("status")
    now = store.clock()
    alive = _alive(store, requests, statuses, now, days)
    listed = {"runs": store.listing("runs"), "requests": requests, "status": statuses}
    runs = list_runs(store, listing=listed["runs"])  # listed after the requests: who ends is in one
    if runs.damaged:
        raise RunError(
            f"{runs.warning()}, so nobody knows which artifacts it needs; run its audit again, or take its folder out of "
            f"{store.uri}/runs"
        )
    kept = [run for run in runs.entries if keep is None or run["run"] in keep]
    before = min([now - days * DAY, *alive.values()])  # attempts and logs of runs under way
    whole_before = float("-inf") if alive else before
    wanted = refs_of(*kept)
    found: list[Garbage] = []
    for ref, files in artifacts.items():
        found += _of_artifact(store, ref, files, wanted, before=before, whole_before=whole_before)
    found += [*_folders(store, "resume", whole_before), *_folders(store, "ray", before)]
    listed |= {folder: store.listing(folder) for folder in ("tmp", "logs", "results")}
    old = {folder: _old(files, before) for folder, files in listed.items()}
    kinds: tuple[tuple[Kind, str], ...] = (("request", "requests"), ("status", "status"), ("part", "tmp"))
    for kind, folder in kinds:
        found += [Garbage(kind, path, size) for path, size in _ours(old, folder) if path not in alive]
    named = {f"logs/{ref.stage}/{ref.key}/" for ref in wanted}
    for path, size in _ours(old, "logs"):
        if f"{path.rpartition('/')[0]}/" not in named or path.rpartition("/")[2].startswith("failed-"):
            found.append(Garbage("log", path, size))
    ids = {run["run"] for run in kept} | {cell for run in kept for cell in run["cells"].values()}
    found += [Garbage("run", path, size) for path, size in _ours(old, "runs") if path.split("/")[1] not in ids]
    for path, size in _ours(old, "results"):
        if path.split("/")[3].removeprefix("run=") not in ids:
            found.append(Garbage("run", path, size))
    for folder in ("requests", "status", "runs", "results", "logs"):  # where earlier versions wrote before they renamed
        found += [Garbage("part", path, size) for path, size in old[folder] if PART.fullmatch(path)]
    return found


def _old(files: Mapping[str, Facts], before: float) -> list[tuple[str, int]]:
    """Files that nobody has written to since a time, with their sizes."""
    return sorted((path, size) for path, (size, when) in files.items() if when < before)


def _ours(old: Mapping[str, Sequence[tuple[str, int]]], folder: str) -> list[tuple[str, int]]:
    """Those in one of memlib's folders that have names that it gives."""
    return [(path, size) for path, size in old[folder] if PATTERNS[folder].fullmatch(path)]


def under_way(store: Store, *, days: float) -> dict[str, float]:
    """When each run was asked for that has not ended, by the path of its note; those not heard of for some days are dead.

    One that did not say how it ended is not dead before a day of silence, whatever the days.
    """
    return _alive(store, store.listing("requests"), store.listing("status"), store.clock(), days)


def _alive(
    store: Store, requests: Mapping[str, Facts], statuses: Mapping[str, Facts], now: float, days: float
) -> dict[str, float]:
    found, since, lately = {}, now - days * DAY, now - SILENCE_SECONDS
    for path, (_, beaten) in requests.items():
        if not PATTERNS["requests"].fullmatch(path):
            continue
        status = f"status/{path.rpartition('/')[2].removesuffix('.json').partition('-')[0]}.json"
        heard = max(beaten, statuses.get(status, (0, 0.0))[1])
        if heard >= since or (heard >= lately and not _has_ended(store.published(status))):
            found[path] = min(beaten, _began(store.published(path), beaten))
    return found


def _began(note: bytes | None, beaten: float) -> float:
    """When a run began, by the store's clock; its note's own time is when it was last alive."""
    with contextlib.suppress(Unreadable):
        began = parse(RequestRecord, note or b"").began
        return beaten if began is None else began
    return beaten


def _has_ended(status: bytes | None) -> bool:
    with contextlib.suppress(Unreadable):
        return status is not None and parse(StatusRecord, status).state in ENDED
    return False


def clear(store: Store, *, keep: Collection[str] | None = None, days: float) -> list[Garbage]:
    """Deletes what `garbage` finds, and returns it.

    Runs that begin meanwhile wait (see `wait_for_clearing`). Just before it is deleted, each item is looked at again: what
    somebody has written to stays. Manifests go first, so that nothing half removed is trusted.

    Raises:
        RunError: when a run cannot be read, another process is clearing, or a run has begun all the same.
    """
    if _clearing(store):
        raise RunError(f"another memlib gc is clearing {store.uri}; try again when it has ended")
    path = f"{CLEARING}/{uuid.uuid4().hex[:12]}.json"
    with beating(store, path, json.dumps({"started": time.time()}).encode()):
        try:
            return list(_clear(store, keep, days))
        finally:
            store.drop(path)


def _clear(store: Store, keep: Collection[str] | None, days: float) -> Iterator[Garbage]:
    alive, looked = set(store.listing("requests")), time.monotonic()
    before, gone = store.clock() - days * DAY, set()
    found = garbage(store, keep=keep, days=days)
    runs = list_runs(store).entries if any(item.kind == "run" for item in found) else ()
    for item in found:
        if time.monotonic() - looked > LOOK_SECONDS:
            if set(store.listing("requests")) - alive:  # by a memlib that does not wait
                raise RunError(f"a run has begun in {store.uri}; what is left of the garbage stays until it has ended")
            looked = time.monotonic()
        if any(when >= before for _, when in store.listing(item.path).values()):
            continue
        _delete(store, item)
        gone |= {item.path.split("/")[1]} if item.kind == "run" else set()
        yield item
    if gone:
        publish_rows(store, [run for run in runs if run["run"] in gone])


def _delete(store: Store, item: Garbage) -> None:
    """Removes it, and of a folder that it shares with other people's files just what is memlib's."""
    inner = {"artifact": ATTEMPT, "resume": STATE}.get(item.kind)
    if inner is None:
        store.drop(item.path)
    else:
        names = [name for name in store.names(item.path) if inner.fullmatch(name) or PART.fullmatch(name)]
        for name in [MANIFEST, *names]:
            store.drop(f"{item.path}/{name}")
    store.drop_empty(item.path)


def _clearing(store: Store) -> bool:
    now = None
    for _, beaten in store.listing(CLEARING).values():
        now = store.clock() if now is None else now
        if now - beaten < SILENT_SECONDS:
            return True
    return False


def wait_for_clearing(store: Store, say: Callable[[str], None]) -> None:
    """Waits for the end of a `memlib gc --delete` under way, which may be about to delete what a run would find."""
    said = False
    while _clearing(store):
        if not said:
            say(f"waiting for memlib gc, which is clearing {store.uri}")
            said = True
        time.sleep(LOOK_SECONDS)


def _by_artifact(store: Store) -> dict[Ref, dict[str, Facts]]:
    """Files of every artifact by their path below it; names that memlib does not give are left out."""
    found: dict[Ref, dict[str, Facts]] = {}
    for path, facts in store.listing("artifacts").items():
        parts = path.split("/")[1:]
        place = next((n for n, part in enumerate(parts) if KEY.fullmatch(part)), None)
        if not place or len(parts) == place + 1:
            continue
        inner = parts[place + 1 :]
        if inner == [MANIFEST] or (len(inner) > 1 and ATTEMPT.fullmatch(inner[0])) or PART.fullmatch("/".join(inner)):
            with contextlib.suppress(CorruptArtifact):
                found.setdefault(Ref("/".join(parts[:place]), parts[place]), {})["/".join(inner)] = facts
    return found


def _of_artifact(
    store: Store, ref: Ref, files: Mapping[str, Facts], wanted: set[Ref], *, before: float, whole_before: float
) -> Iterator[Garbage]:
    attempts: dict[str, list[Facts]] = {}
    for name, facts in files.items():
        attempts.setdefault(name.split("/")[0], []).append(facts)
    whole = MANIFEST in files
    named = None
    if whole and len(attempts) > 2:  # else there is only one
        with contextlib.suppress(CorruptArtifact):  # the next run that needs it makes it anew
            named = str(store.artifacts.manifest(ref).attempt)
    base = f"artifacts/{ref.stage}/{ref.key}"
    if whole and ref not in wanted and max(when for _, when in files.values()) < whole_before:
        yield Garbage("artifact", base, sum(size for size, _ in files.values()))
        return
    for attempt, parts in sorted(attempts.items()):
        old = max(when for _, when in parts) < before
        size = sum(size for size, _ in parts)
        if old and PART.fullmatch(attempt):
            yield Garbage("part", f"{base}/{attempt}", size)
        elif old and attempt != MANIFEST and (not whole or (named is not None and attempt != named)):
            yield Garbage("attempt", f"{base}/{attempt}", size)


def _folders(store: Store, kind: Literal["resume", "ray"], before: float) -> Iterator[Garbage]:
    """The state of each unfinished stage, or Ray's folder of each attempt."""
    found: dict[str, list[Facts]] = {}
    for path, facts in store.listing(kind).items():
        if PATTERNS[kind].fullmatch(path):
            parts = path.split("/")
            place = next((n for n, part in enumerate(parts) if KEY.fullmatch(part)), 1)
            found.setdefault("/".join(parts[: place + 1]), []).append(facts)
    for path, every in sorted(found.items()):
        if max(when for _, when in every) < before:
            yield Garbage(kind, path, sum(size for size, _ in every))
