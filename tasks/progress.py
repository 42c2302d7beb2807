"""Display of a run's progress: bars on a terminal, and progress artifacts in Prefect; the journal keeps the record."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.context import TaskRunContext
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from memlib.console import PlainConsole
from memlib.runs.journal import Journal
from tasks.display import is_gone

PREFECT_SECONDS = 5.0  # between two updates of a task's progress
LINE_SECONDS = 30.0  # between two lines of output if there is no terminal
LEAST_SECONDS = 10.0  # of measured work before a time left is estimated
WIDE = 110  # columns; narrower terminals show no notes
MOST_ROWS = 8  # parts that a terminal shows below their stage
REFRESHES = 4.0  # of the display, per second


class TimeLeft:
    """An estimate of the time that a stage still needs, from its pace since it first moved.

    What comes before the first move is mostly start-up (Ray, workers, libraries), which is not repeated. There is no estimate
    until the pace has been measured for LEAST_SECONDS, and for as long as the first move took.
    """

    def __init__(self, now: float) -> None:
        self._began, self._first, self._last = now, 0.0, now
        self._moved: int | None = None
        self._remaining = 0

    def update(self, moved: int, remaining: int, now: float) -> None:
        """Record progress.

        Args:
            moved: units finished since the first move, without that move itself.
            remaining: units that are not finished.
            now: time in seconds.
        """
        if self._moved is None:
            self._first = now
        self._moved, self._remaining, self._last = moved, remaining, now

    def seconds(self, now: float) -> float | None:
        """Return the estimated seconds left; None if there is too little to go by, or if the estimate has run out."""
        measured = self._last - self._first
        if not self._moved or measured < max(LEAST_SECONDS, self._first - self._began):
            return None
        left = measured / self._moved * self._remaining - (now - self._last)
        return left if left > 0 else None

    def sentence(self, now: float) -> str:
        """Return the estimate in words, "" if there is none."""
        left = self.seconds(now)
        return "" if left is None else f"about {duration(left)} left"


def duration(seconds: float) -> str:
    """Return a duration in words, in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{max(seconds, 0.1):.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Bars:
    """Progress of a stage and its parts, shown as rows of a terminal or as lines, and in Prefect as progress of the task.

    Args:
        progress: rows of the terminal, or None.
        stage: name of the stage in the journal.
        title: title of the stage.
        journal: journal that records the progress.
        say: prints a line if there is no terminal.
    """

    def __init__(
        self, progress: Progress | None, stage: str, title: str, journal: Journal, say: Callable[[str], None]
    ) -> None:
        self._stage, self._title, self._journal, self._say = stage, title, journal, say
        self._said = time.monotonic()
        self._left = TimeLeft(self._said)
        self._rows = None if progress is None else _Rows(progress, title, self._left)
        self._moved: dict[str, tuple[int, int]] = {}
        self._first: dict[str, int] = {}  # units of each part that its first move showed: start-up, or finished earlier
        self._parts = 1
        self._lock = threading.Lock()
        self._prefect = _PrefectProgress(title)

    def expect(self, parts: int) -> None:
        """Count parts that have yet to begin in the total, as if they were as large as the others."""
        self._parts = parts

    def move(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show that `done` of `total` units of a part are finished."""
        with self._lock:
            if self._moved.get(name) == (done, total):
                return
            self._moved[name] = (done, total)
            all_done, all_total = (sum(moved[side] for moved in self._moved.values()) for side in (0, 1))
            all_total = max(all_total, all_total * self._parts // len(self._moved))
            if done:
                self._first.setdefault(name, done)
                self._left.update(all_done - sum(self._first.values()), all_total - all_done, time.monotonic())
            if self._rows is not None:
                is_only = self._parts == len(self._moved) == 1
                self._rows.show_stage(all_done, all_total, note if is_only else "")
                if not is_only:
                    self._rows.show_part(name, done, total, note)
        if self._rows is None and (now := time.monotonic()) >= self._said + LINE_SECONDS:
            self._said = now
            self._say(", ".join(filter(None, [f"{self._title}: {all_done:,} of {all_total:,}", self._left.sentence(now)])))
        now = time.monotonic()
        left = self._left.seconds(now)
        self._journal.note("progress", self._stage, done=all_done, total=all_total, note=note, left=left)
        self._prefect.move(all_done / max(all_total, 1), self._left.sentence(now))


class _Rows:
    """Rows of a terminal for a stage and, below it, those of its parts that are under way."""

    def __init__(self, progress: Progress, title: str, left: TimeLeft) -> None:
        self._progress = progress
        self._stage = progress.add_task(title, total=None, count="", note="", left=left)
        self._parts: dict[str, TaskID] = {}

    def show_stage(self, done: int, total: int, note: str) -> None:
        self._progress.update(self._stage, completed=done, total=total, count=f"{done:,}/{total:,}", note=note)

    def show_part(self, name: str, done: int, total: int, note: str) -> None:
        if done >= total:
            if name in self._parts:
                self._progress.remove_task(self._parts.pop(name))
            return
        if name not in self._parts and len(self._parts) < MOST_ROWS:
            self._parts[name] = self._progress.add_task(f"  {name}", count="", note="", left=None)
        if name in self._parts:
            self._progress.update(self._parts[name], completed=done, total=total, count=f"{done:,}/{total:,}", note=note)


class _TimeColumn(TimeElapsedColumn):
    """The time that a stage still needs or, if there is no estimate, the time that it has taken."""

    def render(self, task: Task) -> Text:
        """Return the time in words; none for a part."""
        left: TimeLeft | None = task.fields["left"]
        if left is None:
            return Text()
        sentence = left.sentence(time.monotonic())
        return Text(sentence) if sentence else super().render(task)


class _PrefectProgress:
    """Progress artifact of the task run in which this object was created; updates to the server are rate-limited."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._artifact: UUID | None = None
        self._told = time.monotonic()  # a short task needs no progress artifact
        self._inside = TaskRunContext.get() is not None

    def move(self, share: float, left: str) -> None:
        late = time.monotonic() - self._told >= PREFECT_SECONDS
        if not self._inside or not (late or (share >= 1 and self._artifact is not None)):
            return
        self._told = time.monotonic()
        said = ", ".join(filter(None, (self._title, left)))
        with contextlib.suppress(Exception):  # a failure to show progress must not end an audit
            if is_gone():
                return
            if self._artifact is None:
                self._artifact = create_progress_artifact(100 * share, description=said)  # type: ignore[assignment]
            else:
                update_progress_artifact(self._artifact, progress=100 * share, description=said)


class StderrConsole(PlainConsole):
    """A console on standard error; what is printed while bars are shown appears above them.

    A pipe gets no control characters, whatever FORCE_COLOR says. The cursor is never hidden, as a process that is killed
    could not show it again.
    """

    def __init__(self) -> None:
        is_terminal = None if sys.stderr.isatty() else False
        super().__init__(stderr=True, markup=False, highlight=False, force_terminal=is_terminal)

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is."""
        return False


@contextmanager
def bars(
    console: Console | None,
    stage: str,
    journal: Journal,
    say: Callable[[str], None] = lambda line: None,
    *,
    title: str = "",
) -> Iterator[Bars]:
    """Yield the progress of a stage, shown until the block ends; without a terminal, lines appear now and then.

    Args:
        console: the terminal, or None.
        stage: name of the stage in the journal.
        journal: journal that records the progress as well.
        title: title of the stage, by default its name.
    """
    if console is None:
        yield Bars(None, stage, title or stage, journal, say)
        return
    columns: list[ProgressColumn] = [
        SpinnerColumn(),
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=min(28, console.width // 5)),
        TextColumn("{task.fields[count]}"),
        _TimeColumn(),
    ]
    columns += [TextColumn("{task.fields[note]}", style="dim")] if console.width >= WIDE else []
    progress = Progress(*columns, console=console, transient=True, refresh_per_second=REFRESHES)
    progress.start()
    shown = sys.stderr
    try:
        yield Bars(progress, stage, title or stage, journal, say)
    finally:
        now = sys.stderr
        progress.stop()
        if now is not shown:  # replaced by a signal handler, for the last lines of the run
            sys.stderr = now


Mover = Callable[[int, int], None]
