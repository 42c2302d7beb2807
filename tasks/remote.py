"""Work of a stage inside a Ray task; a separate module, so that the task's process loads neither Prefect nor FAISS."""

import contextlib
import errno
import os
import time
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.runs.journal import log, log_as_asked
from memlib.store import Attempt, Making, Ref, Store
from memlib.store.logs import recorded, recording
from memlib.training.fit import Train
from memlib.training.loop import Worker
from tasks.news import Told

REACH_SECONDS = 10.0  # time within which a store must answer
FREE_SPACE = "free some space and run the same command again to resume"


def compute_there(
    store: Store,
    ref: Ref,
    record: Mapping[str, Any],
    compute: Callable[[Attempt, torch.device, int], None],
    told: Told,
    threads: int,
) -> tuple[list[str], float]:
    """Compute an artifact that the store lacks, on this worker; its files and its printed output go to the store.

    Returns:
        warnings, and the seconds that the computation took.
    """
    warnings: list[str] = []
    if store.artifacts.has(ref):
        return warnings, 0.0  # computed meanwhile by another driver, or by a worker that was lost before it could report
    started = time.monotonic()
    with telling(ref), log_kept(store, ref), store.artifacts.write(ref, **record) as attempt:
        attempt.facts["worker"], attempt.warn, attempt.progress = whereabouts(), warnings.append, told.reporter()
        compute(attempt, granted_device(), threads)
    return warnings, time.monotonic() - started


def train_there(job: Train, making: Making, resume_seconds: float, told: Told, threads: int) -> tuple[list[str], float]:
    """Train a model that the store lacks with this worker alone; it resumes where an earlier worker left it.

    Returns:
        no warnings, and the seconds that it took.
    """
    started, tell, epochs = time.monotonic(), told.reporter(), job.training.epochs

    def progress(news: Mapping[str, Any]) -> None:
        tell(news["epoch"], epochs, in_words(news))

    try:
        with telling(job.identity.ref), log_kept(job.store, job.identity.ref):
            worker = Worker(device=granted_device())
            job.into_store(
                making, worker=worker, threads=threads, resume_seconds=resume_seconds, progress=progress, where=whereabouts()
            )
    except OSError as error:
        if is_full(error):
            raise RunError(f"OSError: {error}; {FREE_SPACE}") from error
        raise
    return [], time.monotonic() - started


def saved_step(job: Train) -> int:
    """Return the step at which a model would resume; 0 if nothing is saved."""
    return max((int(name.partition("-")[0]) for name in job.store.names(f"resume/{job.identity.ref.key}")), default=0)


def is_full(error: OSError) -> bool:
    """Return whether an error means that a disk or a quota is full, so that a retry would not help."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def in_words(news: Mapping[str, Any]) -> str:
    """Return the speed and the loss of an epoch as a note beside a progress bar."""
    return f"{news['images_per_second']:.0f} images/s, loss {news['loss']:.3g}"


def granted_device() -> torch.device:
    """Return the device that Ray has granted to this task; it hides no GPU from tasks that need none."""
    import ray  # imported late: importers of this module may still have to configure Ray's start

    granted = bool(ray.get_runtime_context().get_accelerator_ids().get("GPU"))
    return torch.device("cuda" if granted and torch.cuda.is_available() else "cpu")


@contextlib.contextmanager
def telling(ref: Ref) -> Iterator[None]:
    """Log on this worker that the computation of an artifact begins, and how it ends."""
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
    """Return the reason why this node cannot read the store, or "" if it can; a node may lack credentials or the folder."""
    try:
        exists = store.waiting(REACH_SECONDS).marker() is not None
    except Exception as error:  # S3 clients raise errors of many types
        cause = (str(error).strip() or type(error).__name__).splitlines()[0]
        return f"{type(error).__name__}: {cause}"
    return "" if exists else "no store exists at this address"


@contextlib.contextmanager
def log_kept(store: Store, ref: Ref) -> Iterator[None]:
    """Record the printed output of a block; if the block fails, keep the record in the store and name it in the error."""
    with recording():
        try:
            yield
        except Exception as error:
            expected = isinstance(error, UserError | RunError)
            if not expected:
                traceback.print_exc()
            if not recorded():
                raise
            path = None
            with contextlib.suppress(Exception):  # the error matters more than its log
                path = store.artifacts.keep_log(ref, f"failed-{uuid.uuid4().hex[:12]}")
            if path is None or not expected or isinstance(error, CorruptArtifact):
                raise
            kind = UserError if isinstance(error, UserError) else RunError
            raise kind(f"{error} (its output: {store.uri}/{path})") from error


def whereabouts() -> dict[str, Any]:
    """Return the node and process id of this worker, as Ray's logs name them."""
    import ray.util

    return {
        "node": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        "node_id": ray.get_runtime_context().get_node_id(),
        "pid": os.getpid(),
    }
