"""Records of the runs that were started in a store and have not ended; they suffice to resume a run without its recipe."""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator

from memlib.errors import ResourcesError, UserError
from memlib.identity import content_key
from memlib.runs.garbage import under_way, wait_for_clearing
from memlib.runs.heartbeat import SILENT_SECONDS, beating
from memlib.runs.records import PlanFile, RequestRecord
from memlib.specs import Resources, Spec
from memlib.store import Store
from memlib.store.records import Unreadable, parse

FOLDER = "requests"
listeners: list[Callable[[str, str], None]] = []  # called with the store and the id of each run that begins in this process


@contextlib.contextmanager
def announced(
    store: Store,
    audit: str,
    recipe: Spec,
    resources: Resources,
    computed: Collection[str],
    *,
    say: Callable[[str], None] = lambda text: None,
    plan: PlanFile | None = None,
    look: str = "",
) -> Iterator[str]:
    """Record a run in the store while it is under way, and yield its id; delete the record if it succeeds or is refused.

    Each driver has its own record, with a heartbeat while the driver lives.

    Args:
        store: store to which the run writes.
        audit: the audit's name on the command line.
        recipe, resources: recipe and machine settings of the run.
        computed: the artifacts computed so far. A run that fails for lack of resources keeps its record once it has computed
            an artifact, as it can be resumed with other resources.
        say: called with a message if the run has to wait.
        plan: the frozen plan that the run was given, if any; a run that is resumed keeps it.
        look: id of the sweep whose cell the run is, if any; likewise.
    """
    request = {"audit": audit, "recipe": recipe.model_dump(mode="json")}
    key = content_key("request", version=1, spec=request, inputs={})[:12]
    note = request | {
        "run": key, "title": str(getattr(recipe, "title", "")), "resources": resources.model_dump(mode="json"),
        "started": time.time(), "began": store.clock(), "host": socket.gethostname(), "pid": os.getpid(), "finished": None,
        "plan": None if plan is None else plan.model_dump(), "look": look,
    }  # fmt: skip
    path = f"{FOLDER}/{key}-{uuid.uuid4().hex[:8]}.json"
    try:
        for listener in listeners:
            listener(store.uri, key)
        with beating(store, path, json.dumps(note, indent=1).encode()):
            wait_for_clearing(store, say)
            yield key
    except UserError as error:  # a refused recipe would be refused again
        if not computed or not isinstance(error, ResourcesError):
            store.drop(path)
        raise
    store.drop(path)
    _forget_dead(store, key)


def _forget_dead(store: Store, key: str) -> None:
    """Delete the records of dead drivers of a run that has now succeeded."""
    now = store.clock()
    for path, (_, beaten) in store.listing(FOLDER).items():
        if path.startswith(f"{FOLDER}/{key}") and (beaten < now - SILENT_SECONDS or has_died(store.published(path))):
            store.drop(path)


def has_died(note: bytes | None) -> bool:
    """Return whether a record belongs to a process of this machine that no longer exists."""
    try:
        record = parse(RequestRecord, note or b"")
    except Unreadable:
        return False
    return record.host == socket.gethostname() and record.pid > 0 and not _lives(record.pid)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True


def unfinished(store: Store) -> list[RequestRecord]:
    """Return the runs that have not ended, one record per run, newest first."""
    records: dict[str, RequestRecord] = {}
    paths = sorted(path for path in store.listing(FOLDER) if path.endswith(".json"))
    for content in store.published_together(paths).values():
        with contextlib.suppress(Unreadable):  # foreign or damaged: cannot be resumed
            record = parse(RequestRecord, content)
            if record.started >= records.get(record.run, record).started:
                records[record.run] = record
    return sorted(records.values(), key=lambda record: -record.started)


def at_work(store: Store) -> list[str]:
    """Return the ids of the runs whose drivers may be at work: not ended, heard within a day, and not known to have died."""
    alive = [path for path in under_way(store, days=0) if not has_died(store.published(path))]
    return sorted({path.removeprefix(f"{FOLDER}/").removesuffix(".json").partition("-")[0] for path in alive})
