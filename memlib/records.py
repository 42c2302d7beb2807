"""Schemas of all JSON files that memlib reads back; a file that violates its schema is reported as damaged.

Unknown fields are kept unchanged, as later versions may add some.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, NotRequired, TypeVar, final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from memlib.plain import plain

MANIFEST = "manifest.json"  # manifest of an artifact, a resume state or a run; it names the other files and is written last
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
    """The manifest of an artifact.

    Attributes:
        attempt: name of the attempt whose files form the artifact.
        files: size and digest of each file, by path.
        version: version of the stage's code; None for artifacts from before versions were recorded.
        definitions: digest of the definitions that the stage's code reaches, see memlib.definitions.
        code: digest of whole modules, in artifacts from before `definitions`.
        named: identities of the code that the recipe names.
        spec: configuration of the stage.
        inputs: keys of the artifacts that the stage read, by role.
        facts: facts that the stage recorded.
        metrics: resources spent on computing the artifact.
        reads: content digests of the artifacts that the stage read, by key.
        content: the artifact's own content digest, see memlib.provenance.content_digest.
        log: path of the log below the store's root.
    """

    attempt: Name
    files: Annotated[dict[Inside, FileRecord], Field(min_length=1)]
    version: int | None = None
    definitions: str | None = None
    code: str | None = None
    named: dict[str, str] = Field(default_factory=dict)
    spec: Any = None
    inputs: dict[str, Any] = Field(default_factory=dict)
    facts: dict[str, Any] = Field(default_factory=dict)
    metrics: Metrics = Field(default_factory=Metrics)
    reads: dict[str, str] = Field(default_factory=dict)
    content: str | None = None
    log: str | None = None


class ResumeRecord(Record):
    """The manifest of a resume state."""

    files: Annotated[dict[Inside, FileRecord], Field(min_length=1)]


class Finding(Record):
    """A row of the summary; tables.SUMMARY documents its columns."""

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
    """An earlier audit of the same data, as listed in the ledger."""

    run: str
    audit: str = ""
    finished: Seconds = 0.0
    headline: str = ""
    p_value: FiniteFloat | None = None
    verdict: str | None = None
    look: str = ""
    planned: int = 1


class Ledger(Record):
    """The data that a run audits, and the earlier audits of the same data.

    Attributes:
        data: digest of the sources.
        examples: the smallest digests of single examples, by which data in other files are recognized.
        look: the sweep whose cell the run is, else the run; cells of one sweep are one look at the data.
        planned: number of looks that the recipe plans.
        earlier: audits that were published before.
    """

    data: str = ""
    examples: list[str] = Field(default_factory=list)
    look: str = ""
    planned: int = 1
    earlier: list[EarlierAudit] = Field(default_factory=list)


class Pin(Record):
    """The exact content of an artifact on which a run is based: its attempt, and digests of its files and facts.

    `made` is a digest of how it was made: spec, inputs, what it read, code, commit and libraries; None in older pins.
    """

    attempt: Name
    files: Sha256
    facts: Sha256 | None = None
    made: Sha256 | None = None


class Publication(Record):
    """One publication of a run: user and host, time, duration, and numbers of computed and reused artifacts."""

    who: str = ""
    started: Seconds = 0.0
    seconds: Seconds = 0.0
    computed: int = 0
    reused: int = 0


class HistoryRecord(Record):
    """The publications of a run since its manifest was written."""

    publications: list[Publication] = Field(default_factory=list)


class RunRecord(Record):
    """The manifest of a finished run.

    Attributes:
        run, audit, title: id of the run, name of its audit, title from its recipe.
        finished, seconds: time of its last publication, and the seconds that the publishing run took.
        recipe, resources: recipe and machines, as plain JSON.
        findings: rows of its summary, the headline first.
        verdict: the verdict in words; None for runs from before verdicts were recorded.
        ledger: digest of the data, and earlier audits of the same data.
        results, report: URIs of its tables by name, and of its page.
        artifacts: addresses of its artifacts by readable names.
        scores: address of its scores; None for a sweep.
        computed, reused: addresses of the artifacts that were computed for the run, and of those already committed.
        cells, problems: for a sweep: the run of each cell, or None if the cell failed; and the reasons for failures.
        cell_digests: for a sweep: digest of each cell's manifest, by run.
        history: its publications, oldest first.
        asks: digest of its recipe without data locations and presentation, see memlib.runs.asks_digest.
        software, source: versions of libraries, and the commit that memlib ran from.
        pins: pin of each artifact on which the run is based, by address.
        published: sha256 of each published file, by path.
        digest: digest of all other fields; None for runs from before manifests were sealed.
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
    cell_digests: dict[Name, Sha256] = Field(default_factory=dict)
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
    """A run's first finding, as stored in the index of runs."""

    metric: Shown
    params: JsonObject
    value: float | None
    p_value: float | None
    verdict: Shown | None


class VerdictEntry(TypedDict):
    """A run's verdict, as stored in the index of runs."""

    word: Shown
    sentence: Shown


class LedgerEntry(TypedDict):
    """A run's data from the ledger, as stored in the index of runs."""

    data: str
    examples: NotRequired[list[str]]
    look: NotRequired[str]
    planned: NotRequired[int]


@final
class RunEntry(TypedDict):
    """An entry of the list of runs, with the fields that listings and garbage collection need.

    `refs` holds the addresses of all artifacts of the run; `mark` is the size and modification time of the run's manifest.
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
    """A `RunEntry` as stored in the index of runs; artifacts are given as positions in the index's list of addresses."""

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
    """The index of runs, with one list of artifact addresses for all entries, as runs share most of their artifacts.

    Entries are dictionaries: pydantic models of 10,000 runs take three times as long to validate.
    """

    format: int
    refs: list[Address]
    entries: dict[Name, Annotated[IndexedRun | DamagedEntry, Field(union_mode="left_to_right")]]


class RequestRecord(Record):
    """The request file of a run that has not ended.

    Attributes:
        started, began: start time of its driver, by the driver's clock and by the store's clock.
        host, pid: host and process id of the driver.
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
    """Progress of a stage."""

    state: Shown
    note: Shown = ""
    computed: int = 0
    cached: int = 0
    done: int = 0
    total: int | None = None


class StatusRecord(Record):
    """Progress of a run."""

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


def parse_index(content: bytes) -> IndexRecord:
    """Parse the content of a file as the index of runs.

    Raises:
        Unreadable: when the content violates the schema.
    """
    return _validated(TypeAdapter(IndexRecord).validate_python, content)


def _validated(validate: Callable[[Any], Valid], content: bytes) -> Valid:
    try:
        value = json.loads(content, object_pairs_hook=_once)
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
        raise Unreadable(f"{where or 'it'}: {first['msg'].removeprefix('Value error, ')}") from error
    except RecursionError as error:
        raise Unreadable("it is nested too deeply") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object whose keys occur once: of equal keys, readers keep the first or the last."""
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
