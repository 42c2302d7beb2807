"""The schema of every JSON file that memlib reads back: what does not fit it is damage, said in words, never a traceback.

Fields that are not named here are kept as they are: later versions add some, and what reads them says what it needs.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, TypeVar, final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from memlib.plain import plain

MANIFEST = "manifest.json"  # of an artifact, a state to resume from, a run: it is written last, and names the rest
MOST_BYTES = 256 * 2**20  # of any JSON file: beyond that it is none of ours
NAME = re.compile(r"\w[\w.-]*", re.ASCII)
DIGEST = "digest"


class Unreadable(ValueError):
    """A file that is not what it should be; the message says in what, without its content."""


def is_inside(name: str) -> bool:
    """Whether a file's name stays in the folder it is given for."""
    path = PurePosixPath(name)
    inside = bool(name) and not path.is_absolute() and ".." not in path.parts
    return inside and "\\" not in name and "\0" not in name and name == str(path) != "."


def _inside(name: str) -> str:
    if not is_inside(name):
        raise ValueError("names a file outside of its folder")
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
    """A JSON object of which some fields are known."""

    model_config = ConfigDict(extra="allow", frozen=True, protected_namespaces=(), defer_build=True)


class FileRecord(Record):
    """One file of an artifact, as it was committed."""

    size: int = Field(ge=0, lt=2**60, strict=True)
    sha256: Sha256


class Metrics(Record):
    """Resources that were spent on making an artifact."""

    seconds: Seconds = 0.0
    cpu_seconds: Seconds = 0.0
    bytes_in: Seconds = 0.0
    bytes_out: Seconds = 0.0
    units: FiniteFloat = 1.0
    peak_memory_bytes: FiniteFloat | None = None
    gpu_peak_memory_bytes: FiniteFloat | None = None


class ArtifactRecord(Record):
    """The manifest of an artifact.

    Attributes:
        attempt: whose files it is made of.
        files: size and digest of each, by path.
        version: of the stage's code; None of artifacts from before it was noted.
        code: a digest of the stage's code.
        spec: what the stage was configured by.
        inputs: keys of what it read, by role.
        facts: what the stage noted.
        metrics: what it took.
        reads: content digests of what it read, by key.
        content: its own, see memlib.provenance.content_digest.
        log: where what was printed is kept, below the store's root.
    """

    attempt: Name
    files: Annotated[dict[Inside, FileRecord], Field(min_length=1)]
    version: int | None = None
    code: str | None = None
    spec: Any = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    metrics: Metrics = Field(default_factory=Metrics)
    reads: dict[str, str] = Field(default_factory=dict)
    content: str | None = None
    log: str | None = None


class ResumeRecord(Record):
    """The manifest of a state to resume from."""

    files: Annotated[dict[Inside, FileRecord], Field(min_length=1)]


class Finding(Record):
    """A row of the summary; tables.SUMMARY says what its columns mean."""

    metric: Shown
    params: JsonObject
    role: str | None = None
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    null_value: float | None = None
    p_value: float | None = None
    family: str | None = None
    p_adjusted: float | None = None
    alpha: float | None = None
    verdict: Shown | None = None
    n: int | None = None


class VerdictRecord(Record):
    """The run's verdict in one word and one sentence."""

    word: Shown
    sentence: Shown
    explanation: Shown = ""


class EarlierAudit(Record):
    """A line of the ledger."""

    run: str
    audit: str = ""
    finished: Seconds = 0.0
    headline: str = ""
    p_value: FiniteFloat | None = None
    verdict: str | None = None


class Ledger(Record):
    """The data that a run audits, and the earlier audits of them."""

    data: str = ""
    earlier: list[EarlierAudit] = Field(default_factory=list)


class Pin(Record):
    """The attempt at an artifact that a run was made from."""

    attempt: Name
    files: Sha256
    facts: Sha256 | None = None


class Publication(Record):
    """Who published a run when, and what that took."""

    who: str = ""
    started: Seconds = 0.0
    seconds: Seconds = 0.0
    computed: int = 0
    reused: int = 0


class RunRecord(Record):
    """The manifest of a finished run.

    Attributes:
        run, audit, title: its name, the audit's, what its recipe calls it.
        finished, seconds: when it was published last, and what that run took.
        recipe, resources: what was asked for, and on which machines, as plain JSON.
        findings: rows of its summary, the headline first.
        verdict: in words; None of runs from before there were any.
        ledger: the data, and what was audited before on them.
        results, report: URIs of its tables by name, and of its page.
        artifacts: addresses by what people call them.
        scores: that of the numbers; None of a sweep.
        computed, reused: addresses of what was made for it, and of what was there.
        cells, problems: of a sweep: the run of each cell, None where it broke; and why it did.
        history: its publications, the first one first.
        asks: digest of what its recipe asks for.
        software, source: versions, and the commit that memlib ran from.
        pins: by address, which attempt it rests on.
        published: sha256 of what it published, by path.
        digest: of all the rest; None of runs from before manifests were sealed.
    """

    run: Name
    audit: Name
    title: Shown
    finished: Seconds
    seconds: Seconds = 0.0
    findings: Annotated[list[Finding], Field(min_length=1)]
    recipe: dict[str, Any] = Field(default_factory=dict)
    resources: dict[str, Any] = Field(default_factory=dict)
    verdict: VerdictRecord | None = None
    ledger: Ledger = Field(default_factory=Ledger)
    results: dict[str, str] = Field(default_factory=dict)
    report: str = ""
    artifacts: dict[str, Address] = Field(default_factory=dict)
    computed: list[Address] = Field(default_factory=list)
    reused: list[Address] = Field(default_factory=list)
    cells: dict[str, Name | None] = Field(default_factory=dict)
    problems: dict[str, str] = Field(default_factory=dict)
    history: list[Publication] = Field(default_factory=list)
    scores: Address | None = None
    asks: str = ""
    software: dict[str, Any] = Field(default_factory=dict)
    source: dict[str, Any] = Field(default_factory=dict)
    pins: dict[Address, Pin] = Field(default_factory=dict)
    published: dict[Inside, Sha256] = Field(default_factory=dict)
    digest: str | None = None


class Headline(TypedDict):
    """A run's first finding, as the index of runs keeps it."""

    metric: Shown
    params: JsonObject
    value: float | None
    p_value: float | None
    verdict: Shown | None


class VerdictEntry(TypedDict):
    """A run's verdict, as the index of runs keeps it."""

    word: Shown
    sentence: Shown


class LedgerEntry(TypedDict):
    """A run's data digest from the ledger, as the index of runs keeps it."""

    data: str


@final
class RunEntry(TypedDict):
    """A run in the list of runs: what lists of runs and the search for garbage need of it.

    `refs` are all its artifacts, `mark` is size and time of the manifest that it was made from.
    """

    run: Name
    audit: Name
    title: Shown
    finished: Seconds
    verdict: VerdictEntry | None
    findings: Annotated[list[Headline], Field(min_length=1)]
    ledger: LedgerEntry
    cells: dict[str, Name | None]
    scores: Address | None
    asks: str
    memlib: str
    refs: list[Address]
    mark: tuple[int, FiniteFloat]


@final
class IndexedRun(TypedDict):
    """The same as the index of runs keeps it: artifacts by their places in its list."""

    run: Name
    audit: Name
    title: Shown
    finished: Seconds
    verdict: VerdictEntry | None
    findings: Annotated[list[Headline], Field(min_length=1)]
    ledger: LedgerEntry
    cells: dict[str, Name | None]
    scores: Address | None
    asks: str
    memlib: str
    refs: list[Annotated[int, Field(ge=0, strict=True)]]
    mark: tuple[int, FiniteFloat]


@final
class DamagedEntry(TypedDict):
    """A run whose manifest could not be read."""

    problem: Shown
    mark: tuple[int, FiniteFloat]


class IndexRecord(TypedDict):
    """The index of runs; their artifacts by place in a list, as they share most of them.

    Dictionaries, as models of 10,000 runs take three times as long to validate.
    """

    format: int
    refs: list[Address]
    entries: dict[Name, Annotated[IndexedRun | DamagedEntry, Field(union_mode="left_to_right")]]


class RequestRecord(Record):
    """The note of a run that has not ended.

    Attributes:
        started, began: when its driver began, by the driver's clock, and by the store's.
        host, pid: where the driver is.
    """

    run: Name
    audit: Name
    title: Shown
    started: Seconds
    began: Seconds | None = None
    host: str = ""
    pid: int = -1
    finished: None = None
    recipe: dict[str, Any]
    resources: dict[str, Any] = Field(default_factory=dict)


class StageStatus(Record):
    """How far a stage is."""

    state: Shown
    note: Shown = ""
    computed: int = 0
    cached: int = 0
    done: int = 0
    total: int | None = None


class StatusRecord(Record):
    """How far a run is."""

    run: Name
    state: Shown
    title: Shown = ""
    updated: Seconds
    started: Seconds = 0.0
    problem: Shown | None = None
    stages: dict[Shown, StageStatus] = Field(default_factory=dict)


class SignatureRecord(Record):
    """A signature of a run's manifest."""

    run: Name
    manifest: Sha256
    signature: str = Field(max_length=1000)


class MarkerRecord(Record):
    """What a store says of itself."""

    format: int = Field(ge=1, strict=True)
    id: Name
    mode: str = "private"


Kind = TypeVar("Kind", bound=Record)
Valid = TypeVar("Valid")


def parse(kind: type[Kind], content: bytes) -> Kind:
    """The record that a file holds.

    Raises:
        Unreadable: when it holds none, or its digest is not that of the rest.
    """
    return _validated(kind.model_validate, content)


def parse_index(content: bytes) -> IndexRecord:
    """The index of runs that a file holds.

    Raises:
        Unreadable: when it holds none.
    """
    return _validated(TypeAdapter(IndexRecord).validate_python, content)


def _validated(validate: Callable[[Any], Valid], content: bytes) -> Valid:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is one
        raise Unreadable("it is not JSON") from error
    if not isinstance(value, dict):
        raise Unreadable("it is not a JSON object")
    try:
        if DIGEST in value and value[DIGEST] != digest_of(value):
            raise Unreadable("it was changed since it was written (its digest differs)")
        return validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"][:3])[:80]
        raise Unreadable(f"{where or 'it'}: {first['msg'].removeprefix('Value error, ')}") from error
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def digest_of(value: Mapping[str, Any]) -> str:
    """sha256 of a JSON object but for its digest. Findings may be NaN, which is written as Python writes it."""
    plain = {name: item for name, item in value.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(value: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with its digest."""
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return {**plain, DIGEST: digest_of(plain)}
