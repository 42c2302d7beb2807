"""Base class of all stages: frozen values, each of which declares its inputs and fills one artifact.

A stage derives its artifact's key from its spec and inputs, so that equal stages share one artifact, which is computed once.
Stages of one class are the parts of one step of an audit. Stages hold references to the artifacts that they read, but no
runner, so that they can be sent to workers.

`Runner` is the interface between an audit's flow and the code that runs its stages. `PlainRunner` (memlib.running) runs them
one by one in this process, for notebooks and tests; the runner in `tasks` uses Prefect and a Ray cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar

from memlib.errors import CorruptArtifact, RunError
from memlib.identity import as_json, content_key
from memlib.pipeline.arithmetic import exact
from memlib.pipeline.definitions import code_of
from memlib.pipeline.provenance import Declared, check_code, made_here, provenance_of
from memlib.pipeline.user_code import identity_of as code_of_user
from memlib.pipeline.user_code import modules_in
from memlib.runs.records import RunRecord
from memlib.store import Attempt, Facts, Making, RangeFile, Ref, Store
from memlib.store.records import ArtifactRecord, FileRecord

if TYPE_CHECKING:
    import torch

    from memlib.pipeline.tables import Tables
    from memlib.specs import Resources, Spec

Out = TypeVar("Out")
Other = TypeVar("Other")
Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")
Place = Literal["driver", "cores", "anywhere", "fleet"]
UNKEYED = {"keyed": False}
"""Metadata of a stage's field that changes nothing but speed, memory or rounding: `field(default=..., metadata=UNKEYED)`."""


@dataclass(frozen=True)
class Identity:
    """The values that determine an artifact's key; the manifest records them, so that the key can be recomputed."""

    stage: str  #: the stage's name.
    version: int  #: version of the stage's code, raised when results change.
    spec: Mapping[str, Any]  #: configuration of this stage alone, as plain JSON.
    inputs: Mapping[str, Any]  #: keys of the artifacts that the stage reads, by role.

    @classmethod
    def recorded(cls, ref: Ref, manifest: ArtifactRecord) -> Identity | None:
        """Return the identity that a manifest records; None for manifests from before versions were recorded."""
        version = manifest.version
        return None if version is None else cls(ref.stage, version, manifest.spec, manifest.inputs)

    @cached_property
    def ref(self) -> Ref:
        """The address of the artifact."""
        return Ref(self.stage, content_key(self.stage, version=self.version, spec=self.spec, inputs=self.inputs))


@dataclass(frozen=True)
class Artifact(Generic[Out]):
    """A typed reference to a stage's output, which exists once the stage has run.

    Attributes:
        store: store of the artifact.
        ref: address of the artifact.
        stage: class of the stage that writes the artifact and can open it.

    Example:
        >>> from memlib.data.stages import Decode
        >>> from memlib.running.runners import PlainRunner
        >>> from memlib.specs import DataSpec
        >>> from memlib.store import Store
        >>> stage = Decode(DataSpec.model_validate({"source": {"kind": "two_moons", "num_examples": 60}}))
        >>> shard = PlainRunner(Store("memlib-store")).run(stage)
        >>> shard.key == stage.identity.ref.key, shard.content.index.num_rows, "index.parquet" in shard.files
        (True, 60, True)
    """

    store: Store = field(compare=False, repr=False)
    ref: Ref
    stage: type[Stage[Out]] = field(compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Artifact, (self.store, self.ref, self.stage))  # without cached content

    def __str__(self) -> str:
        return str(self.ref)

    @property
    def key(self) -> str:
        """The artifact's key, which dependent stages list among their inputs."""
        return self.ref.key

    def open(self) -> Out:
        """Read and return the artifact's content, without caching.

        Raises:
            MissingArtifact: when the artifact is not committed.
            CorruptArtifact: when the artifact is damaged.
        """
        return self.stage.open(self)

    @cached_property
    def content(self) -> Out:
        """The artifact's content, read once and cached for the lifetime of this reference; see `open`."""
        return self.open()

    @property
    def facts(self) -> Facts:
        """The facts that its stage recorded about the work."""
        return Facts(self.store.artifacts.manifest(self.ref).facts, self.ref)

    @property
    def files(self) -> Mapping[str, FileRecord]:
        """The size and digest of each of the artifact's files, by name."""
        return self.store.artifacts.manifest(self.ref).files

    def seen_as(self, stage: type[Stage[Other]]) -> Artifact[Other]:
        """Return the same artifact, typed as the output of another stage, whose files it must contain."""
        return Artifact(self.store, self.ref, stage)

    def opened(self, name: str) -> RangeFile:
        """Open one of the artifact's files for reading byte ranges, which are not verified."""
        return self.store.artifacts.opened(self.ref, name)

    def path(self, name: str) -> Path:
        """Return the path of a verified local copy of one of the artifact's files; it is safe to memory-map."""
        return self.store.artifacts.local_path(self.ref, name)


def remembered(
    work: Callable[Concatenate[Artifact[Out], Arguments], Found],
) -> Callable[Concatenate[Artifact[Out], Arguments], Found]:
    """Cache a function's results on its first argument, an artifact reference; all other arguments must be hashable.

    Results are kept for the lifetime of the reference: they are not shared with other stores or with recomputed artifacts.
    """

    @wraps(work)
    def cached(artifact: Artifact[Out], /, *others: Arguments.args, **named: Arguments.kwargs) -> Found:
        results: dict[Any, Found] = artifact.__dict__.setdefault("_remembered", {})
        call = (work, others, tuple(named.items()))
        if call not in results:
            results[call] = work(artifact, *others, **named)
        return results[call]

    return cached


def _keys_of(value: Any) -> Any:
    """Return a value's key (such as an artifact's), or the keys in a list, tuple or mapping of such values; else None."""
    if isinstance(value, Mapping):
        return {name: one.key for name, one in value.items()} if _have_keys(value.values()) else None
    if isinstance(value, list | tuple):
        return [one.key for one in value] if _have_keys(value) else None
    return getattr(value, "key", None)


def _have_keys(values: Collection[Any]) -> bool:
    return bool(values) and all(hasattr(value, "key") for value in values)


def _is_described(value: Any) -> bool:
    return isinstance(getattr(value, "inputs", None), Mapping)


class Stage(ABC, Generic[Out]):
    """A step of an audit, or a part of one, that fills one artifact. Subclasses are frozen dataclasses.

    Attributes:
        declared: name in keys, and version.
        title: name shown to users, unique among the stages of all audits.
        place: where the stage is computed: "driver"; "anywhere", with the parts of a step in parallel; "cores", the same but
            on CPU cores only, for work that a GPU would not speed up; or "fleet", a group of workers that train together.
        transient: pattern of the names of transient files, which may be evicted once all stages that read them are done.

    Example:
        >>> from memlib.data.stages import Decode
        >>> from memlib.specs import DataSpec
        >>> data = DataSpec.model_validate({"source": {"kind": "two_moons", "num_examples": 60}})
        >>> stage = Decode(data)
        >>> stage.declared.name, stage.place, stage.spec["source"]["num_examples"]
        ('decode', 'driver', 60)
        >>> Decode(data).identity.ref == stage.identity.ref  # equal stages share one artifact
        True
    """

    declared: ClassVar[Declared]
    title: ClassVar[str]
    place: ClassVar[Place] = "driver"
    transient: ClassVar[str] = ""

    @property
    def spec(self) -> Mapping[str, Any]:
        """The configuration of this stage, as plain JSON: by default all fields but its inputs and those marked UNKEYED.

        A field that has `spec` and `inputs` of its own contributes these.
        """
        spec = {name: as_json(value) for name, value in self._keyed() if _keys_of(value) is None}
        return {**spec, **{name: part for value in self._described() for name, part in value.spec.items()}}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The keys of the artifacts that the stage reads, by role: by default those of all fields that have keys."""
        inputs = {name: keys for name, value in self._keyed() if (keys := _keys_of(value)) is not None}
        return {**inputs, **{name: key for value in self._described() for name, key in value.inputs.items()}}

    def _keyed(self) -> Iterator[tuple[str, Any]]:
        """Yield name and value of the fields that are part of the key as they are."""
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            if one.metadata != UNKEYED and not _is_described(value):
                yield one.name, value

    def _described(self) -> Iterator[Any]:
        """Yield the fields that have spec and inputs of their own."""
        values = (getattr(self, one.name) for one in fields(self) if one.metadata != UNKEYED)  # type: ignore[arg-type]
        return filter(_is_described, values)

    @property
    def units(self) -> float:
        """The amount of work in the stage's own units, from which costs are estimated."""
        return 1.0

    @property
    def label(self) -> str:
        """The model, checkpoint or setting of this part, shown to users; empty if the step has only one part."""
        return ""

    @property
    def where(self) -> Place:
        """The place where this part of the step is computed: `place`, unless a subclass overrides it."""
        return self.place

    @property
    def near(self) -> Ref | None:
        """The largest artifact that only this part reads, if any; the node that made the artifact has a copy."""
        return None

    @property
    def reads_transient(self) -> Sequence[AnyArtifact]:
        """The artifacts from which the stage reads transient files, which may have been evicted."""
        return ()

    @abstractmethod
    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fill the artifact.

        Args:
            attempt: the folder to fill, with methods for recording facts and reporting progress.
        """

    def fill(self, attempt: Attempt, device: torch.device, threads: int) -> None:
        """Fill the artifact, and check that the code that ran and what it read are still what its manifest names.

        Raises:
            RunError: when code, data or models outside of the store were replaced meanwhile.
        """
        with exact(threads):
            self.write(attempt, device)
        self.check_made(attempt.ref, attempt.provenance)
        attempt.facts |= made_here(attempt.provenance, device, threads)

    def check_made(self, ref: Ref, provenance: Mapping[str, Any]) -> None:
        """Compare what this process ran, and what the stage reads outside of the store, with what is recorded of them.

        Digests that the stage was given, as those of encoders and of blocks, are not evaluated again.

        Args:
            ref: address of the stage's artifact.
            provenance: what its manifest will record, from the driver of the run.

        Raises:
            RunError: when they differ.
        """
        if replace(self).identity.ref != ref:  # type: ignore[type-var]
            raise RunError(f"what {ref.stage} {ref.key[:8]} reads changed while it was read; run the same command again")
        check_code(provenance)

    @classmethod
    @abstractmethod
    def open(cls, artifact: Artifact[Out]) -> Out:
        """Return the content of an artifact of this stage."""

    @classmethod
    def described(cls, artifact: Artifact[Out]) -> list[str]:
        """Return lines that describe an artifact's content, so that users can check that it is what they intended."""
        return []

    def preview(self) -> list[str]:
        """Return lines like those of `described` before the artifact is computed, as far as its inputs reveal them."""
        return []

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}  # type: ignore[arg-type]  # no cached properties

    @cached_property
    def identity(self) -> Identity:
        """The identity from which the artifact's key is derived."""
        return Identity(self.declared.name, self.declared.version, self.spec, self.inputs)

    @classmethod
    def code(cls) -> str:
        """Return a digest of the definitions that determine the results, see `memlib.pipeline.definitions`."""
        return code_of(cls.__module__, cls.__qualname__)

    @property
    def named_code(self) -> dict[str, str]:
        """The identities of the code that the recipe names and this stage may run, by module."""
        modules = modules_in([self.identity.spec, self.identity.inputs], in_json=True)
        return {module: code_of_user(module) for module in sorted(set(modules))}

    def record(self, reads: Mapping[str, str]) -> Making:
        """Return the description of the work for the artifact's manifest, as arguments of Artifacts.write.

        Args:
            reads: content digests of the artifacts that the stage reads, by key.
        """
        identity = self.identity
        provenance = provenance_of(identity.version, self.code(), reads, self.named_code)
        return {
            "spec": identity.spec, "inputs": identity.inputs, "units": self.units, "provenance": provenance,
            "transient": bool(self.transient),
        }  # fmt: skip


AnyStage = Stage[Any]
AnyArtifact = Artifact[Any]


@dataclass(frozen=True)
class CellRequest:
    """An audit that runs as a cell of another run."""

    audit: str  #: the audit's name on the command line.
    recipe: Spec  #: its recipe.
    changes: Mapping[str, Any]  #: settings in which the recipe differs from those of other cells, by dotted key.


Ended = Mapping[str, "RunRecord | str"]
"""Manifest of each cell's run, or the text of its error, by name of the cell."""
NO_CELLS: Ended = MappingProxyType({})


class Runner(Protocol):
    """Interface of the code that runs the stages of an audit."""

    @property
    def store(self) -> Store:
        """The store of the artifacts."""
        ...

    @property
    def resources(self) -> Resources:
        """The machines and limits, which do not affect results."""
        ...

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a stage unless its artifact is committed, and return the artifact."""
        ...

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run the parts of one step in any order, and return their artifacts in the given order."""
        ...

    def warn(self, text: str) -> None:
        """Show the user a warning."""
        ...

    def evict(self, artifacts: Sequence[AnyArtifact]) -> None:
        """After the run, evict transient files of artifacts that no stage will read again, if the resources allow it."""
        ...

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord | None:
        """Publish a run's tables and page, and return its manifest; None if nothing is published, as in a plan.

        Args:
            artifacts: the run's other artifacts, by their names in the manifest.
            cells: manifest or error of each cell that the run compares.
        """
        ...

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> Ended | None:
        """Run audits that share their stages, each as a run of its own; None in a plan. A failure does not stop the others.

        The result has the order of `cells`, whichever ends first: the key of what joins them depends on it.

        Args:
            cells: the audits by name of the cell.
            look: id of the run that compares the cells, which together count as one look at the data.
            at_once: number of cells that may run concurrently.
        """
        ...


class Known:
    """The artifacts of a run by key, with cached digests of their content, used to trace the inputs of later stages."""

    def __init__(self) -> None:
        self._refs: dict[str, Ref] = {}
        self._contents: dict[str, str] = {}

    def add(self, ref: Ref) -> None:
        """Register an artifact of this run."""
        self._refs[ref.key] = ref

    def discard(self, store: Store, ref: Ref, *, evicted: bool = False) -> None:
        """Discard an artifact that is computed again.

        Args:
            store: store of the artifact.
            ref: the artifact.
            evicted: whether it is computed again because its files were evicted.
        """
        store.artifacts.discard(ref, evicted=evicted)
        self._contents.pop(ref.key, None)

    def look_again(self) -> None:
        """Forget the content of all artifacts, which other drivers may have changed."""
        self._contents.clear()

    def record(self, store: Store, stage: AnyStage) -> Making:
        """Return the description of a stage's work for its artifact's manifest, see `Stage.record`."""
        return stage.record(self.contents_of(store, stage.identity.inputs))

    def named_in(self, inputs: Any) -> list[Ref]:
        """Return the artifacts of this run that a stage's inputs name, at any depth."""
        return list(dict.fromkeys(self._named_in(inputs)))

    def _named_in(self, inputs: Any) -> Iterator[Ref]:
        if isinstance(inputs, str):
            if inputs in self._refs:
                yield self._refs[inputs]
        elif isinstance(inputs, Mapping | list | tuple):
            for inner in inputs.values() if isinstance(inputs, Mapping) else inputs:
                yield from self._named_in(inner)

    def contents_of(self, store: Store, inputs: Any) -> dict[str, str]:
        """Return the content digests of the artifacts named in `inputs`, by key; artifacts without a digest are left out."""
        contents = {ref.key: self._content_of(store, ref) for ref in self.named_in(inputs)}
        return {key: content for key, content in contents.items() if content is not None}

    def changed_since(self, store: Store, manifest: ArtifactRecord) -> list[Ref]:
        """Return the inputs of an artifact, among those of this run, whose content has changed since it was computed."""
        known = [(self._refs[key], content) for key, content in manifest.reads.items() if key in self._refs]
        return [ref for ref, content in known if self._content_of(store, ref) not in (None, content)]

    def _content_of(self, store: Store, ref: Ref) -> str | None:
        if ref.key not in self._contents:
            try:
                content = store.artifacts.manifest(ref).content
            except CorruptArtifact:  # missing or damaged
                return None
            if content is None:
                return None
            self._contents[ref.key] = content
        return self._contents[ref.key]


def in_words(ref: Ref, changed: Sequence[Ref]) -> str:
    """Return the beginning of a line on an artifact some of whose inputs (`changed`) were recomputed."""
    names = " and ".join(sorted({other.stage for other in changed}))
    return f"inputs of {ref.stage} {ref.key[:8]} have changed: {names} was recomputed with different content"
