"""Heartbeat files, which are rewritten in the store at intervals while a process is alive."""

import contextlib
import threading
from collections.abc import Iterator

from memlib.errors import RunError
from memlib.store import Store

BEAT_SECONDS = 30.0
SILENT_SECONDS = 120.0  # without a beat for this long, the process is dead or its machine is asleep
TELLING_SECONDS = 5.0  # patience with the store: the longest delay of a beat during an outage


@contextlib.contextmanager
def beating(store: Store, path: str, content: bytes) -> Iterator[None]:
    """Rewrite a file in the store every BEAT_SECONDS while the block runs; the file stays when the block ends.

    The file's modification time, by the store's clock, is the last time at which the process was known to be alive.
    """
    store.publish(path, content, secret=True)
    patient, done = (store if store.is_local else store.waiting(TELLING_SECONDS)), threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError, RunError):  # an outage must not end the run
                patient.publish(path, content, secret=True)

    thread = threading.Thread(target=beat, daemon=True, name="memlib-heartbeat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
