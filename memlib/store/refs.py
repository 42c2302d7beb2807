"""Addresses of artifacts, and records of how an artifact is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from memlib.errors import CorruptArtifact
from memlib.store.records import NAME


@dataclass(frozen=True)
class Ref:
    """The address of an artifact: the stage that makes it, and its content key."""

    stage: str
    key: str

    def __post_init__(self) -> None:
        if not all(NAME.fullmatch(part) for part in (*self.stage.split("/"), self.key)):
            raise CorruptArtifact(f"{self.stage!r}/{self.key!r} does not name an artifact")

    @classmethod
    def parse(cls, name: str) -> "Ref":
        """Parse a reference from its text, <stage>/<key>.

        Raises:
            CorruptArtifact: when the text is not a valid reference.
        """
        stage, _, key = str(name).rpartition("/")
        return cls(stage, key)

    def __str__(self) -> str:
        return f"{self.stage}/{self.key}"

    @property
    def stage_name(self) -> str:
        """Name of the stage, without the folder if it has one."""
        return self.stage.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The artifact's folder, relative to the store's root."""
        return f"artifacts/{self.stage}/{self.key}"


class Facts(dict[str, Any]):
    """Facts recorded in an artifact's manifest; a missing key indicates damage, since only the stage itself writes facts."""

    def __init__(self, content: Mapping[str, Any], ref: Ref) -> None:
        super().__init__(content)
        self._ref = ref

    def __missing__(self, name: str) -> NoReturn:
        raise CorruptArtifact(f"the manifest of artifact {self._ref} lacks {name!r}; it must be computed again", self._ref)


class Making(TypedDict):
    """The part of an artifact's manifest that records how it was made.

    `spec` is the configuration of the stage, `inputs` the keys of the artifacts that the stage read, by role, and `units` the
    amount of work in the stage's unit; `provenance` holds further entries, see memlib.pipeline.provenance. `transient` tells
    whether files of the artifact may be evicted.
    """

    spec: Mapping[str, Any]
    inputs: Mapping[str, Any]
    units: float
    provenance: Mapping[str, Any]
    transient: bool


@dataclass
class Attempt:
    """One attempt to make an artifact: a local folder to fill, and facts to record about the work."""

    folder: Path
    ref: Ref
    facts: dict[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Entries of the manifest that record how the artifact is made, see memlib.pipeline.provenance."""
    resumes: bool = False
    """True if resume states are saved under the artifact's key; they are deleted once it is committed."""
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with (done, total) as the work proceeds; the runner of the stage displays the progress."""
    warn: Callable[[str], None] = print
    """Called with a message that the user must see."""
    resume_seconds: float | None = None
    """Seconds between two saves of a state from which interrupted work resumes, if the runner sets them."""

    def path(self, name: str) -> Path:
        """Return the path at which to write the file called `name`; missing sub-folders are created."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
