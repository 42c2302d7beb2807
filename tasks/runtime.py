"""What a run carries from task to task: its store, resources, journal, and what it found and made."""

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

import torch
from rich.console import Console

from memlib.errors import RunError
from memlib.journal import LOG_VARIABLE, Journal
from memlib.publishing import Work
from memlib.specs import Resources
from memlib.stage import AnyArtifact, AnyStage, Known
from memlib.store import Ref, Store
from tasks.progress import Bars, Mover, bars


@dataclass
class Shared:
    """What the cells of a sweep have in common, so that no cell does again what another one does."""

    known: Known = field(default_factory=Known)
    turns: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    stopped: threading.Event = field(default_factory=threading.Event)
    renewed: set[Ref] = field(default_factory=set)
    old_code: set[str] = field(default_factory=set)
    stages: dict[Ref, AnyStage] = field(default_factory=dict)  # those that make what may be let go
    passing: list[AnyArtifact] = field(default_factory=list)
    spent: float = 0.0  # seconds of workers
    spending: threading.Lock = field(default_factory=threading.Lock)


@dataclass
class Context:
    """A run's store, resources and display; and what it found and made, for its manifest.

    Attributes:
        store: where everything is.
        resources: machines.
        quiet: no progress.
        run: the id under which it was asked for.
        forced: stages that are computed again, though they are there.
        cascade: whether models are trained again whose inputs were made again with another content.
        shared: with the other cells of a sweep.
        computed: artifacts it has made, as text.
        work: what it has taken so far.
    """

    store: Store
    resources: Resources = field(default_factory=Resources)
    quiet: bool = False
    run: str = ""
    title: str = ""
    forced: frozenset[str] = frozenset()
    cascade: bool = False
    shared: Shared = field(default_factory=Shared)
    computed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = Work(self.resources, computed=self.computed)
        self._console = Console(stderr=True, markup=False)
        self.live = self._console.is_terminal and not self.quiet
        self.journal = Journal(self.store, self.run, {"title": self.title, "started": self.work.started})

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return torch.device("cuda" if torch.cuda.is_available() and self.resources.gpu is not False else "cpu")

    @contextmanager
    def turn(self, stage: str) -> Iterator[None]:
        """One cell of a sweep at a time in a stage: what the next one shares with it, it finds done."""
        with self.shared.turns[stage]:
            self.check_going()
            yield

    def check_going(self) -> None:
        """Ends this cell where its sweep was stopped."""
        if self.shared.stopped.is_set():
            raise RunError("stopped with its sweep")

    def spend(self, workers: int, seconds: float) -> None:
        """Count what workers have taken for what is done, of all cells together.

        Raises:
            RunError: when that is more than the run may take.
        """
        with self.shared.spending:
            self.shared.spent += workers * seconds
        limit, hours = self.resources.max_hours, self.shared.spent / 3600
        if limit is not None and hours > limit:
            raise RunError(
                f"workers have taken {hours:.3g} hours, and resources.max_hours allows {limit:g}; what is done is kept: "
                "run the same command again, or allow more"
            )

    def changed_inputs(self, ref: Ref) -> list[Ref]:
        """Artifacts of this run that an artifact was made from, and which hold something else now."""
        return self.shared.known.changed_since(self.store, self.store.artifacts.manifest(ref))

    def discard(self, ref: Ref) -> None:
        """Takes an artifact out of the store; its content is not known before it is made again."""
        self.store.artifacts.discard(ref)
        self.shared.known.forget_content(ref)

    def say(self, text: str) -> None:
        """A line about what is going on, for someone who watches."""
        if self.live:
            self._console.print(text, style="dim", highlight=False)

    def note(self, text: str) -> None:
        """A line for who reads a log; there are bars on a terminal, and events in a log of JSON."""
        if not (self.live or self.quiet or os.environ.get(LOG_VARIABLE)):
            self._console.print(text, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """A line that must be seen, also in a log."""
        self._console.print(f"warning: {text}", style="yellow" if self.live else None, highlight=False, soft_wrap=True)

    def bars(self, stage: str) -> AbstractContextManager[Bars]:
        """Progress bars on a terminal, lines elsewhere; the journal and Prefect are told anyway."""
        return bars(self._console if self.live else None, stage, self.journal, self.note)

    @contextmanager
    def counter(self, stage: str) -> Iterator[Mover]:
        """A bar for one loop, moved by calling it with (done, total)."""
        with self.bars(stage) as shown:
            yield lambda done, total: shown.move(stage, done, total)
