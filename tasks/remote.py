"""A stage's work inside a Ray task; apart from the tasks, so that its process loads neither Prefect nor FAISS."""

import contextlib
import os
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.exact import be_exact
from memlib.journal import log, log_as_asked
from memlib.logs import recorded, recording
from memlib.store import Attempt, Ref, Store

REACH_SECONDS = 10.0  # that a store is given to answer


def compute_there(
    store: Store, ref: Ref, record: Mapping[str, Any], compute: Callable[[Attempt, torch.device], None], threads: int
) -> tuple[list[str], float]:
    """Fills an artifact that is not there; what it makes goes to the store from there, and so does what it prints.

    Returns:
        lines that must be seen, and seconds that it took.
    """
    said: list[str] = []
    if store.artifacts.has(ref):
        return said, 0.0  # made by another driver meanwhile, or by a worker that was lost before it could say so
    started = time.monotonic()
    import ray  # here, as who imports this module may still have to say how Ray is to start

    granted = bool(ray.get_runtime_context().get_accelerator_ids().get("GPU"))  # Ray hides none from who asked for none
    device = torch.device("cuda" if granted and torch.cuda.is_available() else "cpu")
    torch.set_num_threads(threads)
    be_exact()
    with telling(ref), log_kept(store, ref), store.artifacts.write(ref, **record) as attempt:
        attempt.facts["worker"], attempt.warn = whereabouts(), said.append
        compute(attempt, device)
    return said, time.monotonic() - started


@contextlib.contextmanager
def telling(ref: Ref) -> Iterator[None]:
    """Log on this worker which artifact it begins, and how that ended."""
    log_as_asked()
    event, started = "failed", time.monotonic()
    _log(ref, "computing", {})
    try:
        yield
        event = "computed"
    finally:
        _log(ref, event, {"seconds": round(time.monotonic() - started, 3)})


def _log(ref: Ref, event: str, facts: Mapping[str, Any]) -> None:
    about = {"stage": ref.stage, "key": ref.key, "event": event, "facts": {**whereabouts(), **facts}}
    log.info("%s %s %s", ref.stage, event, ref.key[:8], extra=about)


def reach(store: Store) -> str:
    """Says why the store cannot be read from here, "" where it can: other nodes may lack credentials, or the folder."""
    try:
        there = store.waiting(REACH_SECONDS).marker() is not None
    except Exception as error:  # whatever a client of S3 raises
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"{type(error).__name__}: {said}"
    return "" if there else "there is no store at that place"


@contextlib.contextmanager
def log_kept(store: Store, ref: Ref) -> Iterator[None]:
    """Records what is printed; where the work fails, the record goes to the store, and the error names it."""
    with recording():
        try:
            yield
        except Exception as error:
            said = isinstance(error, UserError | RunError)
            if not said:
                traceback.print_exc()
            if not recorded():
                raise
            path = None
            with contextlib.suppress(Exception):  # the error matters more than its log
                path = store.artifacts.keep_log(ref, f"failed-{uuid.uuid4().hex[:12]}")
            if path is None or not said or isinstance(error, CorruptArtifact):
                raise
            kind = UserError if isinstance(error, UserError) else RunError
            raise kind(f"{error} (what it printed: {store.uri}/{path})") from error


def whereabouts() -> dict[str, Any]:
    """Which process of which node this is, as Ray's own logs name it."""
    import ray.util

    return {
        "node": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        "node_id": ray.get_runtime_context().get_node_id(),
        "pid": os.getpid(),
    }
