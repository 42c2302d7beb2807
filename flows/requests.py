"""What was asked of a store and has not ended: enough to go on without the recipe at hand."""

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterator

from flows.supervised import tell
from memlib.errors import ResourcesError, UserError
from memlib.heartbeat import SILENT_SECONDS, beating
from memlib.identity import content_key
from memlib.records import RequestRecord, Unreadable, parse
from memlib.specs import Resources, Spec
from memlib.store import Store
from memlib.upkeep import wait_for_clearing

FOLDER = "requests"


@contextlib.contextmanager
def announced(
    store: Store,
    audit: str,
    recipe: Spec,
    resources: Resources,
    computed: Collection[str],
    *,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[str]:
    """Notes what is asked for while it is under way, and yields its id; what ends well or is refused is forgotten.

    Each driver has a note of its own, which beats while the driver lives.

    Args:
        store: where it runs.
        audit: its name on the command line.
        recipe, resources: what is asked for.
        computed: what it has made so far; what machines cannot do is worth going on with, with others, once it has begun.
        say: told when it has to wait.
    """
    asked = {"audit": audit, "recipe": recipe.model_dump(mode="json")}
    key = content_key("request", version=1, spec=asked, inputs={})[:12]
    note = asked | {
        "run": key, "title": str(getattr(recipe, "title", "")), "resources": resources.model_dump(mode="json"),
        "started": time.time(), "began": store.clock(), "host": socket.gethostname(), "pid": os.getpid(), "finished": None,
    }  # fmt: skip
    path = f"{FOLDER}/{key}-{uuid.uuid4().hex[:8]}.json"
    try:
        tell(store.uri, key)
        with beating(store, path, json.dumps(note, indent=1).encode()):
            wait_for_clearing(store, say)
            yield key
    except UserError as error:  # a recipe that is refused will be refused again
        if not computed or not isinstance(error, ResourcesError):
            store.drop(path)
        raise
    store.drop(path)
    _forget_dead(store, key)


def _forget_dead(store: Store, key: str) -> None:
    """Drops the notes of drivers that died over the same run, which has ended well by now."""
    now = store.clock()
    for path, (_, beaten) in store.listing(FOLDER).items():
        if path.startswith(f"{FOLDER}/{key}") and (beaten < now - SILENT_SECONDS or _has_died(store.published(path))):
            store.drop(path)


def _has_died(note: bytes | None) -> bool:
    """Whether a note is of a process of this machine that is not there any more."""
    try:
        said = parse(RequestRecord, note or b"")
    except Unreadable:
        return False
    return said.host == socket.gethostname() and said.pid > 0 and not _lives(said.pid)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's
        return True
    return True


def unfinished(store: Store) -> list[RequestRecord]:
    """What was asked for and has not ended, or is under way, once each; the newest first."""
    found: dict[str, RequestRecord] = {}
    paths = sorted(path for path in store.listing(FOLDER) if path.endswith(".json"))
    for content in store.published_together(paths).values():
        with contextlib.suppress(Unreadable):  # not written by us, or damaged: nothing that can be gone on with
            note = parse(RequestRecord, content)
            if note.started >= found.get(note.run, note).started:
                found[note.run] = note
    return sorted(found.values(), key=lambda note: -note.started)
