"""What an artifact is called, and what is known of one while and after it is made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, TypedDict

from memlib.errors import CorruptArtifact
from memlib.records import NAME


@dataclass(frozen=True)
class Ref:
    """The address of a committed artifact: which stage made it, and its content key."""

    stage: str
    key: str

    def __post_init__(self) -> None:
        if not all(NAME.fullmatch(part) for part in (*self.stage.split("/"), self.key)):
            raise CorruptArtifact(f"{self.stage!r}/{self.key!r} names no artifact")

    @classmethod
    def parse(cls, name: str) -> "Ref":
        """Return the reference whose text this is.

        Raises:
            CorruptArtifact: when it is none.
        """
        stage, _, key = str(name).rpartition("/")
        return cls(stage, key)

    def __str__(self) -> str:
        return f"{self.stage}/{self.key}"

    @property
    def stage_name(self) -> str:
        """The stage without the folder that it may lie in."""
        return self.stage.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """Where the artifact is, below the store's root."""
        return f"artifacts/{self.stage}/{self.key}"


class Facts(dict[str, Any]):
    """What was noted of an artifact; what is not there is damage, as only its maker writes here."""

    def __init__(self, content: Mapping[str, Any], ref: Ref) -> None:
        super().__init__(content)
        self._ref = ref

    def __missing__(self, name: str) -> NoReturn:
        raise CorruptArtifact(f"the manifest of artifact {self._ref} lacks {name!r}; it must be computed again", self._ref)


class Making(TypedDict):
    """What an artifact's manifest says of its making.

    `spec` is what the stage was configured by, `inputs` the keys of what it read by role, `units` how much work it is, in
    what the stage counts; `provenance` is what else is said, see memlib.provenance.
    """

    spec: Mapping[str, Any]
    inputs: Mapping[str, Any]
    units: float
    provenance: Mapping[str, Any]


@dataclass
class Attempt:
    """One attempt at making an artifact: a local folder to fill, and facts worth keeping about the work."""

    folder: Path
    ref: Ref
    facts: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    """Whether states to resume from are saved under the artifact's key; they go once it is committed."""
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with (done, total) as the work goes on; whoever runs the stage shows it."""
    warn: Callable[[str], None] = print
    """Called with a line that must be seen."""

    def path(self, name: str) -> Path:
        """Return where to write the file called `name` (sub-folders are made)."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
