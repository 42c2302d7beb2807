"""Display of a run's progress: bars on a terminal, and progress artifacts in Prefect; memlib.journal keeps the record."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from memlib.journal import Journal
from tasks.display import is_gone

PREFECT_SECONDS = 5.0  # between two updates of a task's progress
LINE_SECONDS = 30.0  # between two lines of output if there is no terminal


class Bars:
    """Named progress bars that appear when they first move; their sum is shown as the progress of the Prefect task."""

    def __init__(self, progress: Progress | None, stage: str, journal: Journal, say: Callable[[str], None]) -> None:
        self._progress, self._stage, self._journal, self._say = progress, stage, journal, say
        self._started = self._said = time.monotonic()
        self._tasks: dict[str, TaskID] = {}
        self._moved: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._prefect = _PrefectProgress(stage)

    def move(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` units are finished."""
        with self._lock:
            if self._progress is not None and name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total, note=note)
            if self._moved.get(name) == (done, total):
                return
            self._moved[name] = (done, total)
            all_done, all_total = (sum(moved[side] for moved in self._moved.values()) for side in (0, 1))
        if self._progress is not None:
            self._progress.update(self._tasks[name], completed=done, total=total, note=note)
        elif (now := time.monotonic()) >= self._said + LINE_SECONDS:
            self._said, left = now, (now - self._started) * (all_total - all_done) / max(all_done, 1)
            self._say(
                f"{self._stage}: {all_done:,} of {all_total:,}" + (f", about {left / 60:.0f} min left" if left > 60 else "")
            )
        self._journal.note("progress", self._stage, done=all_done, total=all_total, note=note)
        self._prefect.move(all_done / max(all_total, 1))


class _PrefectProgress:
    """Progress artifact of the task run in which this object was created; updates to the server are rate-limited."""

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._artifact: UUID | None = None
        self._told = time.monotonic()  # a short task needs no progress artifact
        self._inside = TaskRunContext.get() is not None

    def move(self, share: float) -> None:
        late = time.monotonic() - self._told >= PREFECT_SECONDS
        if not self._inside or not (late or (share >= 1 and self._artifact is not None)):
            return
        self._told = time.monotonic()
        with contextlib.suppress(Exception):  # a failure to show progress must not end an audit
            if is_gone():
                return
            if self._artifact is None:
                self._artifact = create_progress_artifact(100 * share, description=self._stage)  # type: ignore[assignment]
            else:
                update_progress_artifact(self._artifact, progress=100 * share)


@contextmanager
def bars(
    console: Console | None, stage: str, journal: Journal, say: Callable[[str], None] = lambda line: None
) -> Iterator[Bars]:
    """Yield progress bars; without a terminal, they print occasional lines for a log.

    Args:
        console: the terminal, or None.
        stage: stage whose progress is shown.
        journal: journal that records the progress as well.
        say: prints a line.
    """
    if console is None:
        yield Bars(None, stage, journal, say)
        return
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=28),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield Bars(progress, stage, journal, say)


Mover = Callable[[int, int], None]
