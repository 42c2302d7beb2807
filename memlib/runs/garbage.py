"""Store maintenance: eviction of transient files, resource metrics, and garbage collection of unreferenced items."""

import contextlib
import json
import re
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memlib.errors import CorruptArtifact, RunError
from memlib.identity import KEY
from memlib.runs.heartbeat import SILENT_SECONDS, beating
from memlib.runs.index import list_runs, publish_rows, refs_of
from memlib.runs.ledger import Past
from memlib.runs.records import DeletedRun, RequestRecord, RunRecord, StatusRecord
from memlib.runs.vouching import record_deletion
from memlib.store import MANIFEST, MARKER, Ref, Store
from memlib.store.artifacts import LET_GO
from memlib.store.records import FORMER, FormerRecord, Unreadable, parse

SUMMED = ("seconds", "cpu_seconds", "bytes_in", "bytes_out", "units")
HIGHEST = ("peak_memory_bytes", "gpu_peak_memory_bytes")
ENDED = ("failed", "stopped")  # states of a run that will not continue by itself
DAY = 86_400.0
SILENCE_SECONDS = DAY  # a run without a sign of life for this long is dead
CLEARING = "clearing"
LOOK_SECONDS = 1.0
ATTEMPT = re.compile(r"[0-9a-f]{12}")
STATE = re.compile(r"\d{12}-[0-9a-f]{12}")
PART = re.compile(r".+\.[0-9a-f]{32}\.part|[0-9a-f]{32}\.part")
# all names that memlib creates, by folder; files with other names are not memlib's and are kept
PATTERNS = {
    "resume": re.compile(r"resume/(\w+/)?[0-9a-f]{32}/\d{12}-[0-9a-f]{12}/.+"),
    "ray": re.compile(r"ray/memlib-[0-9a-f]{12}/.+"),
    "logs": re.compile(r"logs/(\w+/)+[0-9a-f]{32}/(failed-)?[0-9a-f]{12}\.log"),
    "requests": re.compile(r"requests/[0-9a-f]{12}(-[0-9a-f]{8})?\.json"),
    "status": re.compile(r"status/[0-9a-f]{12}\.json"),
    "runs": re.compile(r"runs/[0-9a-f]{12}/(figures/)?[^/]+"),
    "results": re.compile(r"results/table=\w+/audit=\w+/run=[0-9a-f]{12}/part-\d+\.parquet"),
    "tmp": re.compile(r"tmp/[0-9a-f]{32}\.part"),
    "index": re.compile(r"index/(runs\.json|index\.html)"),
    "machines": re.compile(r"machines/[0-9a-f]{12}\.json"),
    "erased": re.compile(r"erased/([0-9a-f]{12}\.json|key)"),
    "deleted": re.compile(r"deleted/[0-9a-f]{12}\.json"),
    "clearing": re.compile(r"clearing/[0-9a-f]{12}\.json"),
}
Kind = Literal["artifact", "attempt", "resume", "ray", "log", "request", "status", "run", "part"]
Facts = tuple[int, float]  # size in bytes, and modification time


@dataclass(frozen=True)
class Garbage:
    """An item in a store that no kept run refers to."""

    #: artifact: a committed artifact that no kept run refers to; attempt: files that are not named in any manifest; resume:
    #: resume states of an unfinished stage; ray: Ray's files of a training attempt; log: a worker's log of an artifact that
    #: no kept run refers to, or of a failed attempt; request: the request file of a run that never ended; status: the status
    #: of such a run; run: results and report of a run that is not kept; part: an incomplete file whose writer was killed.
    kind: Kind
    path: str  #: path of the item below the store's root.
    size: int  #: size of the item in bytes.


def metrics_by_stage(store: Store, run: RunRecord) -> list[dict[str, Any]]:
    """Return the resources spent on a run's artifacts, one row per stage: totals, and maxima for memory.

    `gpu_seconds` sums the seconds of artifacts that were computed on a GPU. Artifacts that the store already held when the
    run first began are counted as `reused`, and nothing is charged for them again.
    """
    rows: dict[str, dict[str, Any]] = {}
    begun = min((one.started for one in run.history), default=0.0)
    for ref in sorted(refs_of(run), key=str):
        with contextlib.suppress(CorruptArtifact):
            manifest = store.artifacts.manifest(ref)
            row = rows.setdefault(ref.stage, {"stage": ref.stage, "artifacts": 0, "reused": 0})
            if manifest.finished is not None and manifest.finished < begun:
                row["reused"] += 1
                continue
            metrics = manifest.metrics.model_dump()
            row["artifacts"] += 1
            row["gpu_seconds"] = row.get("gpu_seconds", 0) + (metrics["seconds"] if metrics["gpu_peak_memory_bytes"] else 0)
            for name in SUMMED:
                row[name] = row.get(name, 0) + metrics[name]
            for name in HIGHEST:
                row[name] = max((v for v in (row.get(name), metrics[name]) if v is not None), default=None)
    nothing = dict.fromkeys((*SUMMED, *HIGHEST, "gpu_seconds"), 0) | {"gpu_peak_memory_bytes": None}
    return [nothing | row for row in rows.values()]


def committed(store: Store) -> list[Ref]:
    """Return all artifacts that have a manifest, sorted by address."""
    found = (_placed(path) for path, _ in store.walk("artifacts"))
    return sorted({ref for ref, inner in filter(None, found) if inner == [MANIFEST]}, key=str)


def garbage(store: Store, *, keep: Collection[str] | None = None, days: float, lost: Collection[str] = ()) -> list[Garbage]:
    """Return the items that no kept run refers to and that are too old for a run to be working on them.

    Times are those of the store's own clock. Only files with names that memlib creates are listed, and links are not
    followed. While runs are in progress, all committed artifacts and resume states are kept: a run may read any of them
    before a manifest records it.

    Args:
        keep: ids of the runs to keep; by default all.
        days: minimum age, in days of 86,400 seconds.
        lost: ids of runs without a manifest, of which what remains is garbage.

    Raises:
        RunError: when a run's manifest cannot be read or is gone, or part of the store is a link, so that the artifacts that
            are needed are unknown.
    """
    if links := store.links():
        raise RunError(
            f"{links[0]} in {store.uri} is a link, so what it holds is unknown and nothing is deleted; put the file or "
            "folder itself in its place"
        )
    artifacts = by_artifact(store)  # slowest, so listed first; runs that start in the meantime appear in the requests below
    requests, statuses = store.listing("requests"), store.listing("status")
    now = store.clock()
    alive = _alive(store, requests, statuses, now, days)
    listed = {"runs": store.listing("runs"), "requests": requests, "status": statuses}
    runs = list_runs(
        store.trusting(None), listing=listed["runs"]
    )  # listed after the requests, so that a run that ends in the meantime is in at least one of the two
    if runs.damaged:
        raise RunError(
            f"{runs.warning()}, so the artifacts that this run needs are unknown; run its audit again, or remove its folder "
            f"from {store.uri}/runs"
        )
    kept = [run for run in runs.entries if keep is None or run["run"] in keep]
    results = store.listing("results")
    gone = sorted(_named_runs(listed["runs"], results) - {run["run"] for run in runs.entries} - set(lost))
    if gone and not alive:  # a run under way publishes its manifest last
        raise RunError(
            f"run {gone[0]} has files in {store.uri} but no manifest, so the artifacts that it needs are unknown; run its "
            f"audit again, or give it up with memlib gc --lost {gone[0]}"
        )
    before = min([now - days * DAY, *alive.values()])  # protects attempts and logs of runs in progress
    whole_before = float("-inf") if alive else before
    wanted = refs_of(*kept)
    items: list[Garbage] = []
    for ref, files in artifacts.items():
        items += _of_artifact(store, ref, files, wanted, before=before, whole_before=whole_before)
    items += [*_folders(store, "resume", whole_before), *_folders(store, "ray", before)]
    listed |= {folder: store.listing(folder) for folder in ("tmp", "logs")} | {"results": results}
    old = {folder: _old(files, before) for folder, files in listed.items()}
    old[CLEARING] = _old(store.listing(CLEARING), min(before, now - SILENT_SECONDS))  # of a gc that was killed
    kinds: tuple[tuple[Kind, str], ...] = (
        ("request", "requests"), ("status", "status"), ("part", "tmp"), ("part", CLEARING),
    )  # fmt: skip
    for kind, folder in kinds:
        items += [Garbage(kind, path, size) for path, size in _ours(old, folder) if path not in alive]
    named = {f"logs/{ref.stage}/{ref.key}/" for ref in wanted}
    for path, size in _ours(old, "logs"):
        if f"{path.rpartition('/')[0]}/" not in named or path.rpartition("/")[2].startswith("failed-"):
            items.append(Garbage("log", path, size))
    ids = {run["run"] for run in kept} | {cell for run in kept for cell in run["cells"].values()} | set(gone)
    items += [Garbage("run", path, size) for path, size in _ours(old, "runs") if path.split("/")[1] not in ids]
    for path, size in _ours(old, "results"):
        if _run_of(path) not in ids:
            items.append(Garbage("run", path, size))
    for folder in (
        "requests",
        "status",
        "runs",
        "results",
        "logs",
    ):  # folders where earlier versions wrote files before renaming them
        items += [Garbage("part", path, size) for path, size in old[folder] if PART.fullmatch(path)]
    return items


def _named_runs(runs: Mapping[str, Facts], results: Mapping[str, Facts]) -> set[str]:
    """Return the ids of all runs that have files below runs/ or results/."""
    named = {path.split("/")[1] for path in runs if PATTERNS["runs"].fullmatch(path)}
    return named | {_run_of(path) for path in results if PATTERNS["results"].fullmatch(path)}


def _old(files: Mapping[str, Facts], before: float) -> list[tuple[str, int]]:
    """Return the files last modified before a time, with their sizes, sorted by path."""
    return sorted((path, size) for path, (size, when) in files.items() if when < before)


def _ours(old: Mapping[str, Sequence[tuple[str, int]]], folder: str) -> list[tuple[str, int]]:
    """Return the files in one of memlib's folders whose names memlib creates."""
    return [(path, size) for path, size in old[folder] if PATTERNS[folder].fullmatch(path)]


def under_way(store: Store, *, days: float) -> dict[str, float]:
    """Return the start time of each run in progress, by the path of its request file.

    A run without a sign of life for `days` days counts as dead; a run that has not recorded its end counts as dead only
    after at least one day of silence.
    """
    return _alive(store, store.listing("requests"), store.listing("status"), store.clock(), days)


def _alive(
    store: Store, requests: Mapping[str, Facts], statuses: Mapping[str, Facts], now: float, days: float
) -> dict[str, float]:
    starts, since, lately = {}, now - days * DAY, now - SILENCE_SECONDS
    for path, (_, beaten) in requests.items():
        if not PATTERNS["requests"].fullmatch(path):
            continue
        status = f"status/{path.rpartition('/')[2].removesuffix('.json').partition('-')[0]}.json"
        heard = max(beaten, statuses.get(status, (0, 0.0))[1])
        if heard >= since or (heard >= lately and not _has_ended(store.published(status))):
            starts[path] = min(beaten, _began(store.published(path), beaten))
    return starts


def _began(note: bytes | None, beaten: float) -> float:
    """Return when a run began, by the store's clock; if that is not recorded, return the time of the last heartbeat."""
    with contextlib.suppress(Unreadable):
        began = parse(RequestRecord, note or b"").began
        return beaten if began is None else began
    return beaten


def _has_ended(status: bytes | None) -> bool:
    with contextlib.suppress(Unreadable):
        return status is not None and parse(StatusRecord, status).state in ENDED
    return False


def clear(store: Store, *, keep: Collection[str] | None = None, days: float, lost: Collection[str] = ()) -> list[Garbage]:
    """Delete the items that `garbage` finds, and return those that were deleted.

    Runs that start in the meantime wait (see `wait_for_clearing`). Each item is checked again just before it is deleted, and
    kept if it was modified. Manifests are deleted first, so that no partly deleted artifact is trusted.

    Raises:
        RunError: when a run's manifest cannot be read, another process is clearing the store, or a run has started without
            waiting.
    """
    with clearing(store):
        return list(_clear(store, keep, days, lost))


@contextlib.contextmanager
def clearing(store: Store) -> Iterator[None]:
    """Make runs that start in the meantime wait (see `wait_for_clearing`) while the block deletes items of the store.

    Raises:
        RunError: when another process is clearing the store.
    """
    _check_alone(store)
    path = f"{CLEARING}/{uuid.uuid4().hex[:12]}.json"
    with beating(store, path, json.dumps({"started": time.time()}).encode()):
        try:
            _check_alone(store, but=path)  # of two that begin at once, neither deletes anything
            yield
        finally:
            store.drop(path)


def _clear(store: Store, keep: Collection[str] | None, days: float, lost: Collection[str]) -> Iterator[Garbage]:
    alive, looked = set(store.listing("requests")), time.monotonic()
    before, deleted = store.clock() - days * DAY, set()
    items = garbage(store, keep=keep, days=days, lost=lost)
    runs = list_runs(store.trusting(None)).entries if any(item.kind == "run" for item in items) else ()
    doomed = {_run_of(item.path) for item in items if item.kind == "run"} | set(lost)
    if doomed:
        listed = {run["run"]: Past.of(run).deleted for run in runs}
        record_deletion(store, [listed.get(name, DeletedRun(run=name)) for name in sorted(doomed)])
    for item in items:
        if time.monotonic() - looked > LOOK_SECONDS:
            if set(store.listing("requests")) - alive:  # a run of an earlier memlib, which does not wait
                raise RunError(f"a run has started in {store.uri}; run memlib gc again when that run has ended")
            looked = time.monotonic()
        if any(when >= before for _, when in store.listing(item.path).values()):
            continue
        delete(store, item)
        deleted |= {_run_of(item.path)} if item.kind == "run" else set()
        yield item
    if deleted:
        publish_rows(store, [run for run in runs if run["run"] in deleted])


def _run_of(path: str) -> str:
    """Return the id of the run to which a file below runs/ or results/ belongs."""
    parts = path.split("/")
    return parts[1] if parts[0] == "runs" else parts[3].removeprefix("run=")


def delete(store: Store, item: Garbage) -> None:
    """Delete an item; in a folder that may also hold other files, delete only memlib's files."""
    inner = {"artifact": ATTEMPT, "resume": STATE}.get(item.kind)
    if inner is None:
        store.drop(item.path)
    else:
        names = [name for name in store.names(item.path) if inner.fullmatch(name) or PART.fullmatch(name)]
        for name in [MANIFEST, FORMER, *names]:
            store.drop(f"{item.path}/{name}")
    store.drop_empty(item.path)


def _check_alone(store: Store, *, but: str = "") -> None:
    """Raise RunError if another process is clearing the store."""
    if _clearing(store, but=but):
        raise RunError(
            f"another memlib gc or forget is clearing {store.uri}; try again when it has ended, or, if it was killed, "
            f"after {SILENT_SECONDS:.0f} s"
        )


def _clearing(store: Store, *, but: str = "") -> bool:
    now = None
    for path, (_, beaten) in store.listing(CLEARING).items():
        if path == but:
            continue
        now = store.clock() if now is None else now
        if now - beaten < SILENT_SECONDS:
            return True
    return False


def wait_for_clearing(store: Store, say: Callable[[str], None]) -> None:
    """Wait for a `memlib gc` or `memlib forget` that is deleting to end: it may delete artifacts that a run would reuse."""
    announced = False
    while _clearing(store):
        if not announced:
            say(f"waiting for memlib gc or forget, which is clearing {store.uri}")
            announced = True
        time.sleep(LOOK_SECONDS)


def by_artifact(store: Store) -> dict[Ref, dict[str, Facts]]:
    """Return each artifact's files by path below its folder, without files whose names memlib does not create."""
    artifacts: dict[Ref, dict[str, Facts]] = {}
    for path, facts in store.listing("artifacts").items():
        if (placed := _placed(path)) is not None:
            artifacts.setdefault(placed[0], {})["/".join(placed[1])] = facts
    return artifacts


def _placed(path: str) -> tuple[Ref, list[str]] | None:
    """Return the artifact to which a file belongs, and its path below the artifact's folder; None if it is not memlib's."""
    parts = path.split("/")[1:]
    place = next((n for n, part in enumerate(parts) if KEY.fullmatch(part)), None)
    if not place or len(parts) == place + 1:
        return None
    inner = parts[place + 1 :]
    attempt = len(inner) > 1 and ATTEMPT.fullmatch(inner[0])
    if not (attempt or inner in ([MANIFEST], [FORMER]) or PART.fullmatch("/".join(inner))):
        return None
    try:
        return Ref("/".join(parts[:place]), parts[place]), inner
    except CorruptArtifact:
        return None


def unexpected(store: Store) -> Iterator[str]:
    """Yield the files and folders of a store that memlib did not write, but for those of runs and results.

    What an interrupted run left behind is memlib's own, see `leftovers`.
    """
    for name in sorted(store.names("")):
        if name in ("runs", "results", MARKER, "lost+found") or name.startswith("."):
            continue
        if name == "artifacts":
            yield from _unexpected_in_artifacts(store)
        elif name in PATTERNS:
            yield from (path for path, _ in store.walk(name) if not PATTERNS[name].fullmatch(path))
        else:
            yield name


def _unexpected_in_artifacts(store: Store) -> Iterator[str]:
    """Yield the files below artifacts/ of other names, and those that the manifest of their attempt does not name."""
    for path, _ in store.walk("artifacts"):
        placed = _placed(path)
        if placed is None:
            yield path
            continue
        ref, inner = placed
        with contextlib.suppress(CorruptArtifact):
            manifest = store.artifacts.manifest(ref)
            name = "/".join(inner[1:])
            is_other = inner[0] == manifest.attempt and name not in manifest.files and name != LET_GO
            if is_other or (inner == [FORMER] and not _is_former(store.published(path))):
                yield path


def _is_former(content: bytes | None) -> bool:
    """Return whether a file is one that a driver wrote when it discarded an artifact, and could not remove again."""
    with contextlib.suppress(Unreadable):
        parse(FormerRecord, content or b"")
        return True
    return False


def leftovers(store: Store) -> list[Garbage]:
    """Return the items that no manifest names, whatever their age: attempts, resume states, Ray's and incomplete files."""
    always = float("inf")
    items = [
        item
        for ref, files in by_artifact(store).items()
        for item in _of_artifact(store, ref, files, set(), before=always, whole_before=-always)
    ]
    items += [*_folders(store, "resume", always), *_folders(store, "ray", always)]
    return items + [Garbage("part", path, size) for path, size in _ours({"tmp": _old(store.listing("tmp"), always)}, "tmp")]


def _of_artifact(
    store: Store, ref: Ref, files: Mapping[str, Facts], wanted: set[Ref], *, before: float, whole_before: float
) -> Iterator[Garbage]:
    attempts: dict[str, list[Facts]] = {}
    for name, facts in files.items():
        attempts.setdefault(name.split("/")[0], []).append(facts)
    whole = MANIFEST in files
    is_lost = not whole and ref in wanted  # a run rests on one of the attempts, and its manifest may be put back
    named = None
    if whole and len(attempts) > 2:  # otherwise there is only one attempt
        with contextlib.suppress(CorruptArtifact):  # a damaged artifact is recomputed by the next run that needs it
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
        elif old and attempt != MANIFEST and not is_lost and (not whole or (named in attempts and attempt != named)):
            yield Garbage("attempt", f"{base}/{attempt}", size)


def _folders(store: Store, kind: Literal["resume", "ray"], before: float) -> Iterator[Garbage]:
    """Yield the old resume states of each unfinished stage, or the old Ray folder of each training attempt."""
    folders: dict[str, list[Facts]] = {}
    for path, facts in store.listing(kind).items():
        if PATTERNS[kind].fullmatch(path):
            parts = path.split("/")
            place = next((n for n, part in enumerate(parts) if KEY.fullmatch(part)), 1)
            folders.setdefault("/".join(parts[: place + 1]), []).append(facts)
    for path, every in sorted(folders.items()):
        if max(when for _, when in every) < before:
            yield Garbage(kind, path, sum(size for size, _ in every))
