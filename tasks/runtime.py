"""Context that a run carries from task to task: store, resources, journal, and the artifacts reused and computed."""

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from rich.console import Console

from memlib.errors import RunError
from memlib.pipeline.old_code import OldCode
from memlib.pipeline.stage import AnyArtifact, AnyStage, Known
from memlib.running.limits import check_hours
from memlib.running.publishing import Work
from memlib.runs.journal import LOG_VARIABLE, Journal
from memlib.runs.plans import given_plan
from memlib.specs import Resources
from memlib.specs.resources import RunOptions
from memlib.store import Making, Ref, Store
from tasks.display import tell
from tasks.progress import Bars, Mover, StderrConsole, bars


@dataclass
class Shared:
    """State that the cells of a sweep share, so that no cell repeats the work of another."""

    known: Known = field(default_factory=Known)
    turns: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    stopped: threading.Event = field(default_factory=threading.Event)
    renewed: set[Ref] = field(default_factory=set)
    old_code: OldCode = field(default_factory=OldCode)
    stages: dict[Ref, AnyStage] = field(default_factory=dict)  # stages whose files may be evicted
    parts: dict[Ref, int] = field(default_factory=dict)  # of the steps of these stages
    transient: list[AnyArtifact] = field(default_factory=list)
    look: str = ""  # id of the sweep
    spent: float = 0.0  # worker seconds
    spending: threading.Lock = field(default_factory=threading.Lock)
    console: Console = field(default_factory=StderrConsole)


@dataclass
class Context:
    """Store, resources and display of a run, and the artifacts it reused and computed, for its manifest.

    Attributes:
        work: artifacts and time of the run so far.
    """

    store: Store  #: store of all artifacts.
    resources: Resources = field(default_factory=Resources)  #: machine settings.
    options: RunOptions = field(default_factory=RunOptions)  #: settings of what the run prints and recomputes.
    run: str = ""  #: id under which the run was requested.
    title: str = ""  #: title of the run.
    shared: Shared = field(default_factory=Shared)  #: state shared with the other cells of a sweep.
    computed: list[str] = field(default_factory=list)  #: artifacts that the run has computed, as text.

    def __post_init__(self) -> None:
        self.work = Work(self.resources, computed=self.computed, look=self.shared.look, plan=given_plan(self.options))
        self._console = self.shared.console
        self._prints = not (self.options.quiet or os.environ.get(LOG_VARIABLE))  # else a log of JSON has the events
        self.live = self._prints and self._console.is_terminal and not self._console.is_dumb_terminal
        self.journal = Journal(self.store, self.run, {"title": self.title, "started": self.work.started})

    @property
    def device(self) -> torch.device:
        """Device on which this process computes."""
        return torch.device("cuda" if torch.cuda.is_available() and self.resources.gpu is not False else "cpu")

    @contextmanager
    def turn(self, stage: str) -> Iterator[None]:
        """Hold the sweep's lock on a stage: one cell computes it at a time, and the next cell reuses shared artifacts."""
        with self.shared.turns[stage]:
            self.check_going()
            yield

    def check_going(self) -> None:
        """Raise RunError if the sweep of this cell was stopped."""
        if self.shared.stopped.is_set():
            raise RunError("stopped because its sweep was stopped")

    def spend(self, workers: int, seconds: float) -> None:
        """Add worker time to the total of all cells.

        Raises:
            RunError: if the total exceeds resources.max_hours.
        """
        with self.shared.spending:
            self.shared.spent += workers * seconds
        check_hours(self.resources, self.shared.spent)

    def record_of(self, stage: AnyStage) -> Making:
        """Return the provenance that an artifact's manifest records, as arguments of Artifacts.write."""
        return self.shared.known.record(self.store, stage)

    def discard(self, ref: Ref, *, evicted: bool = False) -> None:
        """Discard an artifact that is computed again, see `Known.discard`."""
        self.shared.known.discard(self.store, ref, evicted=evicted)

    def begin(self, text: str) -> None:
        """Print that work on a stage begins, which a terminal shows by bars, and add it to the logs of the Prefect run."""
        tell(text)
        if not self.live:
            self._print(text)

    def note(self, text: str, level: int = logging.INFO) -> None:
        """Print a line about a stage, and add it to the logs of the Prefect run."""
        tell(text, level)
        self._print(text)

    def say(self, text: str) -> None:
        """Print a detail, if the run is verbose."""
        if self.options.verbose:
            self._print(text)

    def _print(self, text: str) -> None:
        if self._prints:
            self._console.print(text, style="dim" if self.live else None, soft_wrap=True)

    def warn(self, text: str, *, names_data: bool = False) -> None:
        """Print a warning, and add it to the logs of the Prefect run.

        Args:
            names_data: whether it may name examples, which Prefect must not store.
        """
        tell(
            "a warning was printed that may name examples; see the output of the run" if names_data else text, logging.WARNING
        )
        self._console.print(f"warning: {text}", style="yellow" if self.live else None, soft_wrap=True)

    def bars(self, stage: str, title: str = "") -> AbstractContextManager[Bars]:
        """Return progress bars for a terminal, or lines elsewhere; the journal and Prefect get the progress in any case."""
        return bars(self._console if self.live else None, stage, self.journal, self._print, title=title)

    @contextmanager
    def counter(self, stage: str) -> Iterator[Mover]:
        """Yield a function that moves a progress bar for one loop; call it with (done, total)."""
        with self.bars(stage) as shown:
            yield lambda done, total: shown.move(stage, done, total)
