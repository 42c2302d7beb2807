"""Record of a run in progress: a structured log, and a status file in the store."""

import contextlib
import json
import logging
import os
import threading
import time
from typing import Any

from memlib.errors import RunError, StoreRefused, StoreUnreachable, UserError
from memlib.runs.records import StatusRecord
from memlib.store import Store
from memlib.store.records import Unreadable, parse

STATUS = "status"
LOG_VARIABLE = "MEMLIB_LOG"
LOCAL_SECONDS, REMOTE_SECONDS = 2.0, 10.0  # minimum time between two writes of a status
OUTAGE_SECONDS = 60.0  # pause before the next attempt after an outage
TELLING_SECONDS = 5.0  # patience with the store: the longest delay of a run if an outage occurs while its status is written
log = logging.getLogger("memlib")


class Journal:
    """The events of a run, stage by stage.

    Events go to the logger `memlib` (each record carries run, stage, key, event) and to `status/<run>.json` in the
    store, which `memlib status` reads. A failure to write the status never stops a run.

    Args:
        store: store of the status file.
        run: the run's id; "" to write no status.
        about: additional fields of the status.
    """

    def __init__(self, store: Store, run: str, about: dict[str, Any]) -> None:
        self._store, self._run = (store if store.is_local else store.waiting(TELLING_SECONDS)), run
        self._status: dict[str, Any] = {"run": run, **about, "state": "running", "stages": {}}
        self._seconds = LOCAL_SECONDS if store.is_local else REMOTE_SECONDS
        self._due = 0.0
        self._lock = threading.Lock()

    def note(self, event: str, stage: str, key: str = "", **facts: Any) -> None:
        """Record an event of a stage: computing, computed, cached, progress, waiting, or failed."""
        details = " ".join(f"{name}={value}" for name, value in facts.items())
        extra = {"run": self._run, "stage": stage, "key": key, "event": event, "facts": facts}
        level = logging.DEBUG if event == "progress" else logging.INFO
        log.log(level, "%s %s %s", stage, event, " ".join(filter(None, [key[:8], details])), extra=extra)
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
            row |= {name: facts[name] for name in ("done", "total", "note", "left", "waits") if name in facts}
            row["updated"] = time.time()
        self.publish()

    def end(self, state: str, problem: str = "") -> None:
        """Record the end of the run: completed, failed, or stopped."""
        with self._lock:
            self._status |= {"state": state, "problem": problem}
        log.info("run %s%s", state, f": {problem}" if problem else "", extra={"run": self._run, "event": state})
        if state == "completed":  # its manifest replaces the status
            with contextlib.suppress(OSError, RunError):
                self._store.drop(f"{STATUS}/{self._run}.json")
        else:
            self.publish(now=True)

    def publish(self, *, now: bool = False) -> None:
        """Write the status unless it was written moments ago; with `now`, write it in any case."""
        with self._lock:
            if not self._run or not (now or time.monotonic() >= self._due):
                return
            self._due = time.monotonic() + self._seconds
            text = json.dumps(self._status | {"updated": time.time()}, indent=1)
        try:
            self._store.publish(f"{STATUS}/{self._run}.json", text.encode(), secret=True)
        except (StoreUnreachable, StoreRefused):
            self._due = time.monotonic() + OUTAGE_SECONDS  # do not slow the run down by constant retries
        except OSError:
            pass


def read_status(store: Store, run: str) -> StatusRecord | None:
    """Return the latest status of a run; None if it is missing or unreadable."""
    content = store.published(f"{STATUS}/{run}.json")
    with contextlib.suppress(Unreadable):
        return None if content is None else parse(StatusRecord, content)
    return None


def log_as_asked() -> None:
    """Log to standard error (on a Ray worker: to its log) as lines of JSON if MEMLIB_LOG is json.

    Raises:
        UserError: when MEMLIB_LOG has any other value.
    """
    setting = os.environ.get(LOG_VARIABLE, "")
    if setting not in ("", "json"):
        raise UserError(f"{LOG_VARIABLE} is {setting!r}; set it to json, or leave it unset")
    if setting:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """A formatter that writes each log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level and message, with run, stage, key, event, facts and traceback where the record has them."""
        line = {"time": round(record.created, 3), "level": record.levelname, "message": record.getMessage()}
        line |= {name: getattr(record, name) for name in ("run", "stage", "key", "event", "facts") if hasattr(record, name)}
        line |= {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return json.dumps(line, default=str)
