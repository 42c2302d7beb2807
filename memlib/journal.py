"""What happens in a run, kept for whoever looks: a structured log, and a status in the store."""

import contextlib
import json
import logging
import os
import threading
import time
from typing import Any

from memlib.errors import RunError, StoreRefused, StoreUnreachable, UserError
from memlib.records import StatusRecord, Unreadable, parse
from memlib.store import Store

STATUS = "status"
LOG_VARIABLE = "MEMLIB_LOG"
LOCAL_SECONDS, REMOTE_SECONDS = 2.0, 10.0  # between two writes of a status
OUTAGE_SECONDS = 60.0  # until it is tried again after an outage
TELLING_SECONDS = 5.0  # that an outage may hold up a run which only tells how far it is
log = logging.getLogger("memlib")


class Journal:
    """What happens in a run, stage by stage.

    Events go to the logger `memlib` (each record carries run, stage, key, event), and into `status/<run>.json` of the
    store, which `memlib status` reads. Failing to tell never stops a run.

    Args:
        store: where the status goes.
        run: the run's id; "" for no status.
        about: what else the status says of the run.
    """

    def __init__(self, store: Store, run: str, about: dict[str, Any]) -> None:
        self._store, self._run = (store if store.is_local else store.waiting(TELLING_SECONDS)), run
        self._status: dict[str, Any] = {"run": run, **about, "state": "running", "stages": {}}
        self._seconds = LOCAL_SECONDS if store.is_local else REMOTE_SECONDS
        self._due = 0.0
        self._lock = threading.Lock()

    def note(self, event: str, stage: str, key: str = "", **facts: Any) -> None:
        """An event of a stage: computing, computed, cached, progress, failed."""
        said = " ".join(f"{name}={value}" for name, value in facts.items())
        extra = {"run": self._run, "stage": stage, "key": key, "event": event, "facts": facts}
        level = logging.DEBUG if event == "progress" else logging.INFO
        log.log(level, "%s %s %s", stage, event, " ".join(filter(None, [key[:8], said])), extra=extra)
        with self._lock:
            row = self._status["stages"].setdefault(stage, {"computed": 0, "cached": 0, "state": "running"})
            if event in ("computed", "cached"):
                row[event] += facts.get("count", 1)
                row["state"] = "done"
            elif event == "failed":
                row["state"] = "failed"
            else:
                row["state"] = "running"
                row.setdefault("started", time.time())
            row |= {name: facts[name] for name in ("done", "total", "note") if name in facts}
            row["updated"] = time.time()
        self.publish()

    def end(self, state: str, problem: str = "") -> None:
        """The run has ended: completed, failed, stopped."""
        with self._lock:
            self._status |= {"state": state, "problem": problem}
        log.info("run %s%s", state, f": {problem}" if problem else "", extra={"run": self._run, "event": state})
        if state == "completed":  # the run's manifest says it all
            with contextlib.suppress(OSError, RunError):
                self._store.drop(f"{STATUS}/{self._run}.json")
        else:
            self.publish(now=True)

    def publish(self, *, now: bool = False) -> None:
        """Writes the status, not too often."""
        with self._lock:
            if not self._run or not (now or time.monotonic() >= self._due):
                return
            self._due = time.monotonic() + self._seconds
            text = json.dumps(self._status | {"updated": time.time()}, indent=1)
        try:
            self._store.publish(f"{STATUS}/{self._run}.json", text.encode(), secret=True)
        except (StoreUnreachable, StoreRefused):
            self._due = time.monotonic() + OUTAGE_SECONDS  # the run has worse to do than to try this again and again
        except OSError:
            pass


def read_status(store: Store, run: str) -> StatusRecord | None:
    """How far a run is, or was when it ended; None where nothing is known."""
    content = store.published(f"{STATUS}/{run}.json")
    with contextlib.suppress(Unreadable):
        return None if content is None else parse(StatusRecord, content)
    return None


def log_as_asked() -> None:
    """Write what happens as lines of JSON on standard error where MEMLIB_LOG is json; on workers, into Ray's log of each.

    Raises:
        UserError: where it is anything else.
    """
    asked = os.environ.get(LOG_VARIABLE, "")
    if asked not in ("", "json"):
        raise UserError(f"{LOG_VARIABLE} is {asked!r}; it can be json, or not set")
    if asked:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """A log record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """time, level, message; run, stage, key, event and facts where the record has them."""
        line = {"time": round(record.created, 3), "level": record.levelname, "message": record.getMessage()}
        line |= {name: getattr(record, name) for name in ("run", "stage", "key", "event", "facts") if hasattr(record, name)}
        line |= {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps(line, default=str)
