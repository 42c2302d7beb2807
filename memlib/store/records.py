"""Records of a store: JSON of fixed shape, checked when it is read."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from memlib.sanitize import plain

MANIFEST = "manifest.json"  # manifest of an artifact, a resume state or a run; it names the other files and is written last
FORMER = "former.json"  # record of a discarded attempt, beside the manifest, until the artifact is computed again
MOST_BYTES = 256 * 2**20  # size limit of JSON files; memlib writes no larger ones
NAME = re.compile(r"\w[\w.-]*", re.ASCII)
DIGEST = "digest"


class Unreadable(ValueError):
    """A file that violates its schema; the message says how, without quoting its content."""


def is_inside(name: str) -> bool:
    """Return whether a relative file name stays inside its folder."""
    path = PurePosixPath(name)
    inside = bool(name) and not path.is_absolute() and ".." not in path.parts
    return inside and "\\" not in name and "\0" not in name and name == str(path) != "."


def _inside(name: str) -> str:
    if not is_inside(name):
        raise ValueError("names a file outside its folder")
    return name


def _address(text: str) -> str:
    if not all(NAME.fullmatch(part) for part in text.split("/")) or "/" not in text:
        raise ValueError("names no artifact")
    return text


def _json_object(text: str) -> str:
    if not isinstance(json.loads(text), dict):
        raise ValueError("is not a JSON object")
    return text


JsonObject = Annotated[str, AfterValidator(_json_object)]
Shown = Annotated[str, AfterValidator(plain)]
Inside = Annotated[str, AfterValidator(_inside)]
Address = Annotated[str, AfterValidator(_address)]
Seconds = Annotated[FiniteFloat, Field(ge=0, lt=2.5e11)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^\w[\w.-]*$", max_length=200)]


class Record(BaseModel):
    """A JSON object with some known fields; unknown fields are kept."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=(), defer_build=True)


class FileRecord(Record):
    """One file of an artifact, as it was committed."""

    size: int = Field(ge=0, lt=2**60, strict=True)
    sha256: Sha256


class Metrics(Record):
    """Resources spent on computing an artifact."""

    seconds: Seconds = 0.0
    cpu_seconds: Seconds = 0.0
    bytes_in: Seconds = 0.0
    bytes_out: Seconds = 0.0
    units: FiniteFloat = 1.0
    peak_memory_bytes: FiniteFloat | None = None
    gpu_peak_memory_bytes: FiniteFloat | None = None


class ArtifactRecord(Record):
    """The manifest of an artifact."""

    attempt: Name  #: name of the attempt whose files form the artifact.
    files: Annotated[dict[Inside, FileRecord], Field(min_length=1)]  #: size and digest of each file, by path.
    version: int | None = None  #: version of the stage's code; None for artifacts from before versions were recorded.
    #: digest of the definitions that the stage's code reaches, see memlib.pipeline.definitions.
    definitions: str | None = None
    code: str | None = None  #: digest of whole modules, in artifacts from before `definitions`.
    named: dict[str, str] = Field(default_factory=dict)  #: identities of the code that the recipe names.
    spec: Any = None  #: configuration of the stage.
    inputs: dict[str, Any] = Field(default_factory=dict)  #: keys of the artifacts that the stage read, by role.
    facts: dict[str, Any] = Field(default_factory=dict)  #: facts that the stage recorded.
    metrics: Metrics = Field(default_factory=Metrics)  #: resources spent on computing the artifact.
    reads: dict[str, str] = Field(default_factory=dict)  #: content digests of the artifacts that the stage read, by key.
    content: str | None = None  #: the artifact's own content digest, see memlib.store.content.contents.
    rounded: str | None = None  #: digest of the content without the values of floats, if files may be evicted.
    log: str | None = None  #: path of the log below the store's root.
    finished: Seconds | None = None  #: time of the commit; None in older manifests.

    @property
    def libraries(self) -> dict[str, str]:
        """Versions of the libraries of the process that computed it; empty in manifests from before they were recorded."""
        given = (self.model_extra or {}).get("software"), self.facts.get("software")
        return {name: str(version) for one in given if isinstance(one, dict) for name, version in one.items()}


class FormerRecord(Record):
    """The content of an attempt that was discarded and is to be computed again."""

    exact: str  #: digest of all files that stages read, see memlib.store.content.exact_digest.
    content: str  #: content, rounded, reads, named: as in the manifest of the attempt.
    rounded: str | None = None
    reads: dict[str, str] = Field(default_factory=dict)
    named: dict[str, str] = Field(default_factory=dict)
    evicted: bool = False  #: whether it is computed again because its files were evicted.


class ResumeRecord(Record):
    """The manifest of a resume state."""

    files: Annotated[dict[Inside, FileRecord], Field(min_length=1)]


class MarkerRecord(Record):
    """The marker file of a store: its format, id and access mode."""

    format: int = Field(ge=1, strict=True)
    id: Name
    mode: str = "private"


Kind = TypeVar("Kind", bound=Record)
Valid = TypeVar("Valid")


def parse(kind: type[Kind], content: bytes) -> Kind:
    """Parse the content of a file as a record of the given kind.

    Raises:
        Unreadable: when the content violates the schema, or its digest does not match the other fields.
    """
    return _validated(kind.model_validate, content)


def _validated(validate: Callable[[Any], Valid], content: bytes) -> Valid:
    try:
        value = json_once(content)
    except Unreadable:
        raise
    except (ValueError, RecursionError) as error:  # includes UnicodeDecodeError
        raise Unreadable("it is not JSON") from error
    if not isinstance(value, dict):
        raise Unreadable("it is not a JSON object")
    try:
        if DIGEST in value and value[DIGEST] != digest_of(value):
            raise Unreadable("it has been changed since it was written (its digest differs)")
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:3])[:80]
        is_of_form = first["type"] != "string_pattern_mismatch"  # whose message is a regular expression
        message = first["msg"].removeprefix("Value error, ") if is_of_form else "not a text of the form that memlib writes"
        raise Unreadable(f"{where or 'it'}: {message}") from error
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def json_once(content: str | bytes) -> Any:
    """Parse JSON of which no object names a key twice.

    Raises:
        Unreadable: when an object names a key twice.
        ValueError: when the content is not JSON; Unreadable is a subclass of it.
        RecursionError: when the content is nested too deeply.
    """
    return json.loads(content, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; refuse repeated keys, of which some readers keep the first and others the last."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise Unreadable("it names a key twice")
    return value


def digest_of(value: Mapping[str, Any]) -> str:
    """Return the sha256 of a JSON object without its digest field; NaN, which findings may hold, is written as `NaN`."""
    plain = {name: item for name, item in value.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a JSON object with its digest added."""
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return {**plain, DIGEST: digest_of(plain)}
