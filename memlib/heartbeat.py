"""Notes in a store that are written again and again while what they speak of lives."""

import contextlib
import threading
from collections.abc import Iterator

from memlib.errors import RunError
from memlib.store import Store

BEAT_SECONDS = 30.0
SILENT_SECONDS = 120.0  # after so many beats that failed, it is dead, or its machine sleeps
TELLING_SECONDS = 5.0  # that an outage of the store may hold up a beat


@contextlib.contextmanager
def beating(store: Store, path: str, content: bytes) -> Iterator[None]:
    """Keeps a file in a store fresh while the block runs; it stays when the block ends.

    Its time, by the store's clock, is when the process was last alive.
    """
    store.publish(path, content, secret=True)
    patient, done = (store if store.is_local else store.waiting(TELLING_SECONDS)), threading.Event()

    def beat() -> None:
        while not done.wait(BEAT_SECONDS):
            with contextlib.suppress(OSError, RunError):  # an outage; the run has worse to do than to end for this
                patient.publish(path, content, secret=True)

    thread = threading.Thread(target=beat, daemon=True, name="memlib-heartbeat")
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
