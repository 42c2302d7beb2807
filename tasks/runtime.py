"""What a run carries from task to task: its store, resources, journal, and what it found and made."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console

from memlib.errors import CorruptArtifact, RunError
from memlib.planning import Plan
from memlib.specs import Resources
from memlib.store import Ref, Store
from tasks.progress import Bars, Journal, Mover, bars


@dataclass
class Shared:
    """What the cells of a sweep have in common, so that no cell does again what another one does."""

    turns: dict[str, threading.Lock] = field(default_factory=lambda: defaultdict(threading.Lock))
    stopped: threading.Event = field(default_factory=threading.Event)
    renewed: set[Ref] = field(default_factory=set)
    known: dict[str, Ref] = field(default_factory=dict)
    contents: dict[str, str] = field(default_factory=dict)
    old_code: set[str] = field(default_factory=set)


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
        plan: where it is noted what would be done, instead of doing it.
        shared: with the other cells of a sweep.
        reused, computed: artifacts.
    """

    store: Store
    resources: Resources = field(default_factory=Resources)
    quiet: bool = False
    run: str = ""
    title: str = ""
    forced: frozenset[str] = frozenset()
    cascade: bool = False
    plan: Plan | None = None
    shared: Shared = field(default_factory=Shared)
    reused: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        self._console = Console(stderr=True, markup=False)
        self.live = self._console.is_terminal and not self.quiet
        self.journal = Journal(self.store, self.run, {"title": self.title, "started": self.started})

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

    def knows(self, ref: Ref) -> Ref:
        """Notes an artifact of this run, by whose key later stages will name it."""
        self.shared.known[ref.key] = ref
        return ref

    def refs_in(self, inputs: Any) -> list[Ref]:
        """The artifacts of this run that a stage's inputs name by their keys, however deep."""
        if isinstance(inputs, str):
            return [self.shared.known[inputs]] if inputs in self.shared.known else []
        inner = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, list | tuple) else ()
        return list(dict.fromkeys(ref for value in inner for ref in self.refs_in(value)))

    def contents_of(self, inputs: Any) -> dict[str, str]:
        """Content digests of the artifacts that a stage's inputs name, by key; of those from before there were any, none."""
        found = {ref.key: self._content_of(ref) for ref in self.refs_in(inputs)}
        return {key: content for key, content in found.items() if content is not None}

    def changed_inputs(self, manifest: Mapping[str, Any]) -> list[Ref]:
        """Artifacts of this run that an artifact was made from, and whose content is another one now."""
        changed = []
        for key, content in manifest["reads"].items():
            ref = self.shared.known.get(key)
            if ref is not None and self._content_of(ref) not in (None, content):
                changed.append(ref)
        return changed

    def _content_of(self, ref: Ref) -> str | None:
        if ref.key not in self.shared.contents:
            try:
                content = self.store.manifest(ref)["content"]
            except CorruptArtifact:  # not there (yet), or not to be trusted
                return None
            if content is None:
                return None
            self.shared.contents[ref.key] = content
        return self.shared.contents[ref.key]

    def discard(self, ref: Ref) -> None:
        """Takes an artifact out of the store; its content is not known before it is made again."""
        self.store.discard(ref)
        self.shared.contents.pop(ref.key, None)

    def say(self, text: str) -> None:
        """A line about what is going on, for someone who watches."""
        if self.live:
            self._console.print(text, style="dim", highlight=False)

    def warn(self, text: str) -> None:
        """A line that must be seen, also in a log."""
        self._console.print(f"warning: {text}", style="yellow" if self.live else None, highlight=False, soft_wrap=True)

    def bars(self, stage: str) -> AbstractContextManager[Bars]:
        """Progress bars on a terminal; elsewhere only the journal and Prefect are told."""
        return bars(self._console if self.live else None, stage, self.journal)

    @contextmanager
    def counter(self, stage: str) -> Iterator[Mover]:
        """A bar for one loop, moved by calling it with (done, total)."""
        with self.bars(stage) as shown:
            yield lambda done, total: shown.move(stage, done, total)
