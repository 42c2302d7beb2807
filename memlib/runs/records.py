"""Schemas of all JSON files that memlib reads back; a file that violates its schema is reported as damaged.

Unknown fields are kept unchanged, as later versions may add some.
"""

from typing import Annotated, Any, Literal, NotRequired, final

from pydantic import Field, FiniteFloat, TypeAdapter
from typing_extensions import TypedDict

from memlib.store.records import Address, Inside, JsonObject, Name, Record, Seconds, Sha256, Shown, _validated


class FindingRecord(Record):
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


class Fingerprints(TypedDict):
    """The fingerprints of a data set, see memlib.runs.fingerprints: its number of different examples, and the smallest of
    their digests, sorted.
    """

    count: Annotated[int, Field(ge=1)]
    smallest: Annotated[list[str], Field(min_length=1)]


class Ledger(Record):
    """The data that a run audits, and the earlier audits of the same data."""

    data: str = ""  #: digest of the sources.
    #: the smallest digests of single examples as they were decoded, by which runs of earlier versions recognize data in
    #: other files.
    examples: list[str] = Field(default_factory=list)
    fingerprints: Fingerprints | None = None  #: fingerprints of its examples as they are in the sources.
    look: str = ""  #: the sweep whose cell the run is, else the run; cells of one sweep are one look at the data.
    planned: int = 1  #: number of looks that the recipe plans.
    #: the runs of the store, on any data, that were published before and that no other run names: a run that was deleted is
    #: missed by the run that names it.
    previous: list[Name] = Field(default_factory=list)
    #: number, is_paid_for: see memlib.runs.ledger.Look; None in older manifests, which list all earlier audits instead.
    number: int | None = None
    is_paid_for: bool | None = None
    #: audits, tests, shown: number of earlier audits of the same data, of those with a test, and of those that show memory.
    audits: int = 0
    tests: int = 0
    shown: int = 0
    #: number of earlier audits that cannot be compared, as an earlier version recorded no fingerprints of their examples.
    unknown: int = 0
    earlier: list[EarlierAudit] = Field(default_factory=list)  #: the earlier audits of the same data, in older manifests.


class Pin(Record):
    """The exact content of an artifact on which a run is based: its attempt, and digests of its files and facts.

    `made` is a digest of its making: spec, inputs, content of inputs, code, commit and libraries; `sealed` is the digest of
    its whole manifest. Both are None in older pins.
    """

    attempt: Name
    files: Sha256
    facts: Sha256 | None = None
    made: Sha256 | None = None
    sealed: Sha256 | None = None


class Publication(Record):
    """One publication of a run: user and host, time, duration, and numbers of computed and reused artifacts."""

    who: str = ""
    started: Seconds = 0.0
    seconds: Seconds = 0.0
    computed: int = 0
    reused: int = 0


class PlanSignature(Record):
    """A signature of a frozen plan."""

    algorithm: Literal["Ed25519"]
    key: Sha256  #: the Ed25519 public key, as 64 hexadecimal digits.
    #: time of the signature, as stated by the signer, in whole seconds; it is covered by the signature.
    signed: int = Field(ge=0, lt=2**38, strict=True)
    signature: str = Field(max_length=200)  #: the signature, in base64.


class FrozenPlan(Record):
    """A plan that was fixed before a run."""

    audit: Name  #: audit, title: name of the audit, and title of the recipe.
    title: Shown
    frozen: Seconds  #: time at which the plan was frozen, as stated by the machine that did so.
    #: recipe, asks: the recipe with its defaults but without data locations, title and report, and its digest, see
    #: memlib.specs.question.
    recipe: dict[str, Any]
    asks: Sha256
    looks: int = Field(ge=1, strict=True)  #: number of looks at the data that the recipe plans.
    thresholds: dict[str, float | None] = Field(default_factory=dict)  #: levels and bounds of the recipe, by dotted key.
    data: str = ""  #: digest of the data sources as in `Ledger.data`; "" if it was not known.
    #: digests of the files and sources that stages read, by stage and role, as far as they were known.
    reads: dict[Shown, list[Shown]] = Field(default_factory=dict)
    #: versions and digests of the code of stages, and of modules that the recipe names; the first one of each was current,
    #: and the others were declared to give the same results.
    code: dict[Shown, list[Shown]] = Field(default_factory=dict)
    unknown: list[Shown] = Field(default_factory=list)  #: stages of which it was not known what they read.
    held: list[Shown] = Field(default_factory=list)  #: stages of which the store already held artifacts.
    earlier: list[Name] = Field(default_factory=list)  #: runs on the same data that the store already held.
    memlib: Shown = ""  #: memlib, source: version of memlib, and the commit that it ran from.
    source: dict[str, Any] = Field(default_factory=dict)
    digest: Sha256  #: digest of all other fields.


class PlanFile(Record):
    """A file with a frozen plan, see `FrozenPlan`, and its signatures, which its digest does not cover."""

    format: Literal[1]
    plan: dict[str, Any]
    signatures: list[PlanSignature] = Field(default_factory=list)


class Departure(Record):
    """A difference between a frozen plan and a run, with the value of each; None if it has none."""

    what: Shown
    planned: Any = None
    found: Any = None


class FollowedPlan(Record):
    """The frozen plan that a run was given."""

    digest: Sha256  #: digest, frozen, signatures: those of the plan.
    frozen: Seconds
    #: time since when results of the run may have been known: when it was first started, or when its scores were computed if
    #: that was earlier.
    began: Seconds
    signatures: list[PlanSignature] = Field(default_factory=list)
    #: runs on the same data that existed when the plan was frozen, as the plan says.
    earlier: list[Name] = Field(default_factory=list)
    fixes_data: bool = True  #: whether the plan holds a digest of the data.
    #: before, between: number of audits of the same data before the plan was frozen, and between then and the run; None in
    #: older manifests.
    before: int | None = None
    between: int | None = None
    departures: list[Departure] = Field(default_factory=list)  #: differences between plan and run.


class HistoryRecord(Record):
    """The publications of a run since its manifest was written."""

    publications: list[Publication] = Field(default_factory=list)


class RunRecord(Record):
    """The manifest of a finished run."""

    run: Name  #: run, audit, title: id of the run, name of its audit, title from its recipe.
    audit: Name
    title: Shown
    finished: Seconds  #: finished, seconds: time of its last publication, and the seconds that the publishing run took.
    seconds: Seconds = 0.0
    findings: Annotated[list[FindingRecord], Field(min_length=1)]  #: rows of its summary, the headline first.
    recipe: dict[str, Any] = Field(default_factory=dict)  #: recipe, resources: recipe and machines, as plain JSON.
    resources: dict[str, Any] = Field(default_factory=dict)
    verdict: VerdictRecord | None = None  #: the verdict in words; None for runs from before verdicts were recorded.
    ledger: Ledger = Field(default_factory=Ledger)  #: digest of the data, and earlier audits of the same data.
    results: dict[str, str] = Field(default_factory=dict)  #: results, report: URIs of its tables by name, and of its page.
    report: str = ""
    artifacts: dict[str, Address] = Field(default_factory=dict)  #: addresses of its artifacts by readable names.
    #: computed, reused: addresses of the artifacts that were computed for the run, and of those already committed.
    computed: list[Address] = Field(default_factory=list)
    reused: list[Address] = Field(default_factory=list)
    #: cells, problems: for a sweep: the run of each cell, or None if the cell failed; and the reasons for failures.
    cells: dict[str, Name | None] = Field(default_factory=dict)
    cell_digests: dict[Name, Sha256] = Field(default_factory=dict)  #: for a sweep: digest of each cell's manifest, by run.
    problems: dict[str, str] = Field(default_factory=dict)
    history: list[Publication] = Field(default_factory=list)  #: its publications, oldest first.
    scores: Address | None = None  #: address of its scores; None for sweeps of earlier versions.
    asks: str = ""  #: digest of its recipe without data locations and presentation, see memlib.specs.question.asks_digest.
    #: software, source: versions of libraries, and the commit that memlib ran from.
    software: dict[str, Any] = Field(default_factory=dict)
    source: dict[str, Any] = Field(default_factory=dict)
    pins: dict[Address, Pin] = Field(default_factory=dict)  #: pin of each artifact on which the run is based, by address.
    published: dict[Inside, Sha256] = Field(default_factory=dict)  #: sha256 of each published file, by path.
    plan: FollowedPlan | None = None  #: the frozen plan with which it was first published; None if it was given none.
    digest: str | None = None  #: digest of all other fields; None for runs from before manifests were sealed.


class Headline(TypedDict):
    """A finding of a run, as stored in the index of runs; earlier versions stored no interval and no adjusted p-value."""

    metric: Shown
    params: JsonObject
    value: float | None
    p_value: float | None
    verdict: Shown | None
    role: NotRequired[str | None]
    ci_low: NotRequired[float | None]
    ci_high: NotRequired[float | None]
    family: NotRequired[str | None]
    p_adjusted: NotRequired[float | None]
    alpha: NotRequired[float | None]


class VerdictEntry(TypedDict):
    """A run's verdict, as stored in the index of runs."""

    word: Shown
    sentence: Shown


class LedgerEntry(TypedDict):
    """A run's data from the ledger, as stored in the index of runs.

    `number` and `is_paid_for` are those of its `memlib.runs.ledger.Look`, without the list of all earlier audits.
    """

    data: str
    examples: NotRequired[list[str]]
    look: NotRequired[str]
    planned: NotRequired[int]
    number: NotRequired[int]
    is_paid_for: NotRequired[bool]
    previous: NotRequired[list[str]]


class SubjectEntry(TypedDict):
    """The names of a run's data and model, see memlib.runs.index, as stored in the index of runs."""

    data: str
    model: str


@final
class RunEntry(TypedDict):
    """An entry of the list of runs, with the fields that listings and garbage collection need.

    `findings` holds the first finding, and then the strongest test of each family. Entries without a `subject` were written
    by an earlier version, and hold the first finding alone. `refs` holds the addresses of all artifacts of the run;
    `mark` is the size and modification time of the run's manifest.
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
    subject: NotRequired[SubjectEntry]
    fingerprints: NotRequired[Fingerprints]


@final
class IndexedRun(TypedDict):
    """A `RunEntry` as stored in the index of runs; artifacts and fingerprints are given as positions in the index's lists."""

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
    subject: NotRequired[SubjectEntry]
    fingerprints: NotRequired[Annotated[int, Field(ge=0, strict=True)]]


@final
class DamagedEntry(TypedDict):
    """A run whose manifest could not be read."""

    problem: Shown
    mark: tuple[int, FiniteFloat]


class IndexRecord(TypedDict):
    """The index of runs, with one list of artifact addresses and one of fingerprints for all entries, as runs share them.

    Entries are dictionaries: pydantic models of 10,000 runs take three times as long to validate.
    """

    format: int
    refs: list[Address]
    fingerprints: NotRequired[list[Fingerprints]]
    entries: dict[Name, Annotated[IndexedRun | DamagedEntry, Field(union_mode="left_to_right")]]


class RequestRecord(Record):
    """The request file of a run that has not ended."""

    run: Name
    audit: Name
    title: Shown
    started: Seconds  #: started, began: start time of its driver, by the driver's clock and by the store's clock.
    look: str = Field(default="", pattern="^[0-9a-f]{0,64}$")  #: the sweep whose cell the run is; "" for a run of its own.
    began: Seconds | None = None
    host: str = ""  #: host, pid: host and process id of the driver.
    pid: int = -1
    finished: None = None
    recipe: dict[str, Any]
    resources: dict[str, Any] = Field(default_factory=dict)
    plan: PlanFile | None = None  #: the file with the frozen plan that the run was given; None if it was given none.


class StageStatus(Record):
    """Progress of a stage."""

    state: Shown  #: running, done or failed.
    note: Shown = ""  #: news from the stage, such as a loss.
    #: started, updated: time of the first and the last news, in seconds since 1970; 0 if the stage only reused parts.
    started: Seconds = 0.0
    updated: Seconds = 0.0
    left: float | None = None  #: estimated seconds until the stage ends; None if there is too little to go by.
    waits: Shown = ""  #: what the stage waits for, "" while it works.
    computed: int = 0  #: computed, cached: parts that this run computed, and that it found in the store.
    cached: int = 0
    done: int = 0  #: done, total: units of the parts that are under way.
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

    algorithm: str
    run: Name
    manifest: Sha256
    signature: str = Field(max_length=1000)


class Vouched(Record):
    """A record that excuses absences. It is vouched for by the store, and by whoever signs the runs."""

    mac: Sha256 | None = None  #: HMAC of all else with the key of the store; None in older records.
    signature: str | None = Field(default=None, max_length=200)  #: Ed25519 signature of the HMAC, in base64.


class DeletedRun(EarlierAudit):
    """The record of a run that was deleted: its look at its data."""

    run: Name
    data: str = ""
    fingerprints: Fingerprints | None = None
    asks: str = ""
    previous: list[Name] = Field(default_factory=list)


class DeletionRecord(Vouched):
    """The record of runs that were deleted as garbage."""

    when: Seconds  #: time of the deletion.
    runs: list[DeletedRun]  #: the runs.


class ErasureRecord(Vouched):
    """The private record of the erasure of a person or an example; it outlives all that was deleted."""

    when: Seconds  #: time of the erasure.
    subject: Sha256  #: HMAC of the id that was given; the id itself is recorded nowhere.
    #: HMACs of the ids of her examples, except those that are mere places in a source.
    examples: list[Sha256] = Field(default_factory=list)
    artifacts: list[Address] = Field(default_factory=list)  #: addresses of the deleted artifacts.
    kept: list[Address] = Field(default_factory=list)  #: addresses of the models that were computed from her and not deleted.
    paths: list[Inside] = Field(default_factory=list)  #: other deleted files and folders, by path below the store's root.
    complete: bool = False  #: whether all of it is deleted; an erasure that was interrupted is completed by repeating it.


class ErasedRunRecord(Record):
    """The part of a run that was deleted to erase a person."""

    run: Name  #: id of the run.
    when: Seconds  #: time of the last erasure.
    #: addresses of the artifacts on which the run rests and which were deleted.
    artifacts: list[Address] = Field(default_factory=list)
    files: list[Inside] = Field(default_factory=list)  #: paths of its published files that were deleted.
    redacted: bool = False  #: whether ids were replaced in its manifest, which is then no longer the one that was published.


def parse_index(content: bytes) -> IndexRecord:
    """Parse the content of a file as the index of runs.

    Raises:
        Unreadable: when the content violates the schema.
    """
    return _validated(TypeAdapter(IndexRecord).validate_python, content)
