"""One way to write a stage: a frozen value that says what it is made from, and fills one artifact.

A stage names its artifact by what it asks for, so two equal stages are one piece of work, done once, by whoever comes first.
Stages of one class are the parts of one step of an audit. They hold the artifacts they read, never a runner: they travel.

`Runner` is what an audit's flow needs of whoever runs stages. `PlainRunner` runs them one after another in this process, for
notebooks and tests (memlib.running); `tasks` has the one that arranges them with Prefect and spreads them over a Ray cluster.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar

from memlib.errors import CorruptArtifact
from memlib.identity import content_key
from memlib.provenance import Declared
from memlib.records import ArtifactRecord, FileRecord, RunRecord
from memlib.store import Attempt, Facts, Making, RangeFile, Ref, Store

if TYPE_CHECKING:
    import torch

    from memlib.results import Tables
    from memlib.specs import Resources, Spec

Out = TypeVar("Out")
Other = TypeVar("Other")
Asked = ParamSpec("Asked")
Found = TypeVar("Found")
Place = Literal["driver", "cores", "anywhere", "fleet"]


@dataclass(frozen=True)
class Identity:
    """What an artifact's key is a digest of; its manifest records the same, so that anyone can compute the key again.

    Attributes:
        stage: the stage's name.
        version: of its code, raised when results change.
        spec: what this stage itself is configured by, plain JSON.
        inputs: the keys of what it reads, by role.
    """

    stage: str
    version: int
    spec: Mapping[str, Any]
    inputs: Mapping[str, Any]

    @classmethod
    def recorded(cls, ref: Ref, manifest: ArtifactRecord) -> Identity | None:
        """Return the identity that a manifest records; None where it is from before versions were recorded."""
        version = manifest.version
        return None if version is None else cls(ref.stage, version, manifest.spec, manifest.inputs)

    @cached_property
    def ref(self) -> Ref:
        """The address of the artifact."""
        return Ref(self.stage, content_key(self.stage, version=self.version, spec=self.spec, inputs=self.inputs))


@dataclass(frozen=True)
class Artifact(Generic[Out]):
    """A typed reference to what a stage has made, or will have made once it is run.

    Attributes:
        store: where it is.
        ref: its address.
        stage: the class that made it, which knows how to open it.
    """

    store: Store = field(compare=False, repr=False)
    ref: Ref
    stage: type[Stage[Out]] = field(compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Artifact, (self.store, self.ref, self.stage))  # without what was read of it here

    def __str__(self) -> str:
        return str(self.ref)

    @property
    def key(self) -> str:
        """The key by which stages that read it name it."""
        return self.ref.key

    def open(self) -> Out:
        """Return what it holds, read anew.

        Raises:
            MissingArtifact: when it has not been made.
            CorruptArtifact: when it is damaged.
        """
        return self.stage.open(self)

    @cached_property
    def content(self) -> Out:
        """What it holds, read once and kept as long as this reference is; see `open`."""
        return self.open()

    @property
    def facts(self) -> Facts:
        """What its stage noted about the work."""
        return Facts(self.store.artifacts.manifest(self.ref).facts, self.ref)

    @property
    def files(self) -> Mapping[str, FileRecord]:
        """Size and digest of its files, by name."""
        return self.store.artifacts.manifest(self.ref).files

    def seen_as(self, stage: type[Stage[Other]]) -> Artifact[Other]:
        """Return the same artifact as that of another stage, whose files it also has."""
        return Artifact(self.store, self.ref, stage)

    def opened(self, name: str) -> RangeFile:
        """Return one of its files to read parts of, which nobody has verified."""
        return self.store.artifacts.opened(self.ref, name)

    def path(self, name: str) -> Path:
        """Return a local file with the verified bytes of one of its files, safe to memory-map."""
        return self.store.artifacts.local_path(self.ref, name)


def remembered(
    work: Callable[Concatenate[Artifact[Out], Asked], Found],
) -> Callable[Concatenate[Artifact[Out], Asked], Found]:
    """Have a function of an artifact, and of whatever else has a hash, work out each answer once.

    Answers are kept as long as the reference is: not for another store, nor for what is made anew under the same key.
    """

    @wraps(work)
    def asked(artifact: Artifact[Out], /, *others: Asked.args, **named: Asked.kwargs) -> Found:
        known: dict[Any, Found] = artifact.__dict__.setdefault("_remembered", {})
        question = (work, others, tuple(named.items()))
        if question not in known:
            known[question] = work(artifact, *others, **named)
        return known[question]

    return asked


class Stage(ABC, Generic[Out]):
    """A step of an audit, or a part of one, that fills one artifact. Subclasses are frozen dataclasses.

    Attributes:
        declared: the name in keys, the version, and the modules whose code decides the results.
        title: what people read; no other stage of any audit has the same.
        place: where it is computed: by the driver; anywhere, as parts of a step side by side, or there on cores alone, as
            no GPU would help; or by a fleet of workers that train together.
        passing: a pattern of file names; such files may be let go once those who read them are done.
    """

    declared: ClassVar[Declared]
    title: ClassVar[str]
    place: ClassVar[Place] = "driver"
    passing: ClassVar[str] = ""

    @property
    @abstractmethod
    def spec(self) -> Mapping[str, Any]:
        """What the stage itself is configured by, as plain JSON; machines do not enter."""

    @property
    @abstractmethod
    def inputs(self) -> Mapping[str, Any]:
        """The keys of what it reads, by role."""

    @property
    def units(self) -> float:
        """How much work it is, in what the stage counts; relates its cost to that of others."""
        return 1.0

    @property
    def label(self) -> str:
        """Which model, checkpoint or setting this part is about, for people; empty where there is but one."""
        return ""

    @property
    def where(self) -> Place:
        """Where this part of the step is computed: as `place` says, unless the part knows better."""
        return self.place

    @property
    def near(self) -> Ref | None:
        """The largest artifact that it alone reads: the node that made it has a copy."""
        return None

    @property
    def reads_passing(self) -> Sequence[AnyArtifact]:
        """Artifacts of which it reads files that may have been let go."""
        return ()

    @abstractmethod
    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fill the artifact.

        Args:
            attempt: the folder to fill, where to note facts, and whom to tell about progress.
            device: where to compute.
        """

    @classmethod
    @abstractmethod
    def open(cls, artifact: Artifact[Out]) -> Out:
        """Return what an artifact of this stage holds."""

    @classmethod
    def described(cls, artifact: Artifact[Out]) -> list[str]:
        """Return lines about what an artifact holds, for people who want to know whether it is what they meant."""
        return []

    def preview(self) -> list[str]:
        """Return the same of an artifact that is not there yet, as far as a look at what it would read tells."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]  # nothing it worked out

    @cached_property
    def identity(self) -> Identity:
        """What its key is made from."""
        return Identity(self.declared.name, self.declared.version, self.spec, self.inputs)

    def record(self, reads: Mapping[str, str]) -> Making:
        """Return what the artifact's manifest says of its making, as arguments of Artifacts.write.

        Args:
            reads: content digests of the artifacts it reads, by key.
        """
        identity = self.identity
        provenance = self.declared.provenance(reads)
        return {"spec": identity.spec, "inputs": identity.inputs, "units": self.units, "provenance": provenance}


AnyStage = Stage[Any]
AnyArtifact = Artifact[Any]


class Runner(Protocol):
    """Whoever runs the stages of an audit."""

    @property
    def store(self) -> Store:
        """Where artifacts are."""
        ...

    @property
    def resources(self) -> Resources:
        """Machines, which change no result."""
        ...

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a stage unless its artifact is there."""
        ...

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run the parts of one step, in whatever order, and return their artifacts in the order given."""
        ...

    def warn(self, text: str) -> None:
        """Say a line that must be seen."""
        ...

    def let_go(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Take files away that nobody will read, once the run has ended, where the resources say so."""
        ...

    def publish(
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> RunRecord | None:
        """Publish a run's tables and page, and return its manifest; None where nothing is computed, as in a plan.

        Args:
            recipe: what was run.
            scores, report: its tables, its page.
            artifacts: what else it made, by what people call it.
        """
        ...


class Known:
    """The artifacts of a run, by whose keys later stages name them, and what they hold."""

    def __init__(self) -> None:
        self._refs: dict[str, Ref] = {}
        self._contents: dict[str, str] = {}

    def add(self, ref: Ref) -> None:
        """Note an artifact of this run."""
        self._refs[ref.key] = ref

    def forget_content(self, ref: Ref) -> None:
        """Look again at what an artifact holds once it has been made again."""
        self._contents.pop(ref.key, None)

    def named_in(self, inputs: Any) -> list[Ref]:
        """Return the artifacts of this run that a stage's inputs name, however deep."""
        return list(dict.fromkeys(self._named_in(inputs)))

    def _named_in(self, inputs: Any) -> Iterator[Ref]:
        if isinstance(inputs, str):
            if inputs in self._refs:
                yield self._refs[inputs]
        elif isinstance(inputs, Mapping | list | tuple):
            for inner in inputs.values() if isinstance(inputs, Mapping) else inputs:
                yield from self._named_in(inner)

    def contents_of(self, store: Store, inputs: Any) -> dict[str, str]:
        """Return content digests of the artifacts that inputs name, by key; those from before there were any have none."""
        found = {ref.key: self._content_of(store, ref) for ref in self.named_in(inputs)}
        return {key: content for key, content in found.items() if content is not None}

    def changed_since(self, store: Store, manifest: ArtifactRecord) -> list[Ref]:
        """Return artifacts of this run that an artifact was made from, and which hold something else now."""
        known = [(self._refs[key], content) for key, content in manifest.reads.items() if key in self._refs]
        return [ref for ref, content in known if self._content_of(store, ref) not in (None, content)]

    def _content_of(self, store: Store, ref: Ref) -> str | None:
        if ref.key not in self._contents:
            try:
                content = store.artifacts.manifest(ref).content
            except CorruptArtifact:  # not there (yet), or not to be trusted
                return None
            if content is None:
                return None
            self._contents[ref.key] = content
        return self._contents[ref.key]


def has_changed_code(store: Store, ref: Ref, declared: Declared) -> bool:
    """Whether an artifact that is there was made by other code of the same version."""
    with contextlib.suppress(CorruptArtifact):
        code = store.artifacts.manifest(ref).code
        return code is not None and code != declared.code
    return False


def in_words(changed: Collection[str]) -> str:
    """Return a line about stages whose artifacts are reused though their code has changed.

    Args:
        changed: their names, as --force-stage takes them.
    """
    first, *others = changed
    whose = "its code has changed since what is there was made, its version has not"
    if others:
        whose = "their code has changed since what is there was made, their versions have not"
    return f"{', '.join(changed)}: {whose}; reused (--force-stage {first} computes it again)"
