"""Whether a store, or a run, is what it says it is: every byte, every digest, and every number that follows from another.

Whoever may write to a store can change a run and everything that it rests on, so that all agrees again. Against that helps
a signature by a key that is kept elsewhere.
"""

import base64
import hashlib
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.audits import published_tables
from memlib.errors import CorruptArtifact, MissingArtifact, RunError, UserError
from memlib.findings import verdict_of
from memlib.identity import canonical_json
from memlib.records import ArtifactRecord, RunRecord, SignatureRecord, Unreadable, parse
from memlib.results import Tables
from memlib.runs import asks_digest, findings_of, pin_of, results_path, run_name
from memlib.stage import Identity
from memlib.store import Ref, Store
from memlib.tables import RUNS, read_table

SIGNATURE = "signature.json"
SUMMARY_FILE = "summary.parquet"
ROWS = 10_000


@dataclass(frozen=True)
class Problem:
    """Something that is not as it was committed, or that nobody can check.

    Attributes:
        what: an artifact, a file below the store's root, or a run.
        problem: in words.
    """

    what: str
    problem: str


def check_artifacts(store: Store, refs: Iterable[Ref]) -> Iterator[Problem]:
    """Compares every byte of artifacts, read where they are, with what was committed, and keys with what they stand for."""
    for ref in refs:
        try:
            manifest = store.artifacts.manifest(ref)
            problems = [*store.artifacts.problems(ref), *_unlike_its_key(ref, manifest)]
        except CorruptArtifact as error:
            problems = [str(error)]
        for problem in problems:
            yield Problem(str(ref), problem)


def _unlike_its_key(ref: Ref, manifest: ArtifactRecord) -> Iterator[str]:
    """The key is a digest of stage, version, spec and inputs; of artifacts from before versions were noted nobody knows."""
    try:
        identity = Identity.recorded(ref, manifest)
        same = identity is None or identity.ref == ref
    except (TypeError, ValueError):
        same = False
    if not same:
        yield "its spec, inputs or version are not those of its key"


def check_run(store: Store, run: RunRecord, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Problem]:
    """Compares what a run says with what it was made from: artifacts, tables, page, findings, verdict, its own name.

    Args:
        store: of the run.
        run: its manifest.
        rows: of all runs of the store, see `runs.rows_of`.
    """
    name = f"run {run.run}"
    if not run.pins and run.digest is None:
        return  # of a memlib before 0.2; see is_checkable
    yield from _check_row(store, run, rows.get(run.run))
    yield from (Problem(name, problem) for problem in _unlike_itself(store, run))
    for ref_name, pin in run.pins.items():
        try:
            found = store.artifacts.manifest(Ref.parse(ref_name))
        except MissingArtifact:
            yield Problem(ref_name, "is not there any more")
            continue
        except CorruptArtifact:
            continue  # named by check_artifacts
        here = pin_of(found)
        if here.facts != (pin.facts or here.facts) and here.files == pin.files:
            yield Problem(ref_name, f"has a manifest that was changed since {name} was published; run its audit again")
        if here.files != pin.files:
            yield Problem(ref_name, f"was made again with another content since {name} was published; run its audit again")
    for path, digest in run.published.items():
        content = store.published(path)
        if content is None:
            yield Problem(path, "is missing")
        elif hashlib.sha256(content).hexdigest() != digest:
            yield Problem(path, "was changed since it was published")


def is_checkable(run: RunRecord) -> bool:
    """Whether it says what it was made from: runs of before 0.2 do not."""
    return bool(run.pins) and run.digest is not None


def _unlike_itself(store: Store, run: RunRecord) -> Iterator[str]:
    """What a run says of itself against its recipe and its scores."""
    if run.asks != asks_digest(run.recipe):
        yield "its recipe is not the one that it was published with"
    if run.scores is None:  # a sweep
        return
    scores = Ref.parse(run.scores)
    if run_name(run.recipe, scores.key) != run.run:
        yield "its name is not that of its recipe and scores"
    try:
        summary = read_table(store.artifacts.local_path(scores, SUMMARY_FILE))
    except CorruptArtifact as error:
        yield f"its findings cannot be checked: {error}"
        return
    rows = summary.to_pylist()
    if not _alike([finding.model_dump() for finding in run.findings], findings_of(rows)):
        yield "its findings are not those of its scores"
    said = run.verdict
    expected = verdict_of(rows)
    if said is None or (said.word, said.sentence, said.explanation) != astuple(expected):
        yield "its verdict is not that of its scores"
    published = published_tables()
    for table in published.keys() & run.results.keys():
        try:
            parts = list(Tables(store, scores).paths(table))
        except (CorruptArtifact, KeyError, ValueError):  # named by check_artifacts; else not its table
            continue
        for number, part in enumerate(parts):
            path = results_path(table, run.audit, run.run, number)
            if path in run.published and not _same_table(store, path, part):
                yield f"{path} is not what its scores say"


def _alike(said: Any, expected: Any) -> bool:
    """Equal as JSON would have it, where NaN equals NaN."""
    return repr(_plain(said)) == repr(_plain(expected))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in sorted(value.items()) if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**53
    return float(value) if is_number else value


def _same_table(store: Store, path: str, part: Path) -> bool:
    content = store.published(path)
    if content is None:
        return True  # named as missing
    try:
        said = pq.read_table(pa.BufferReader(content))
        expected = read_table(part).select(said.column_names)
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return False
    if said.num_rows != expected.num_rows:
        return False
    return all(
        repr(said.slice(start, ROWS).to_pylist()) == repr(expected.slice(start, ROWS).to_pylist())
        for start in range(0, said.num_rows, ROWS)
    )


def _check_row(store: Store, run: RunRecord, expected: Mapping[str, Any] | None) -> Iterator[Problem]:
    """Compares a run's row of the table of runs, by which its other tables count, with what the runs of the store say."""
    path = results_path(RUNS.name, run.audit, run.run)
    content = store.published(path)
    if content is None:
        yield Problem(path, "is missing, so that the tables of its run do not count; run its audit again")
        return
    try:
        said = pq.read_table(pa.BufferReader(content))
        said.validate(full=True)
    except (pa.ArrowException, OSError, ValueError):
        yield Problem(path, "is no readable Parquet file")
        return
    row = None if expected is None else pa.Table.from_pylist([expected], schema=RUNS.arrow)
    if row is None or not said.schema.equals(row.schema) or not _alike(said.to_pylist(), row.to_pylist()):
        yield Problem(path, f"says otherwise than run {run.run}")


def sign(store: Store, run: RunRecord, key: Path) -> str:
    """Signs a run's manifest, which pins all that it rests on; returns where the signature is.

    Args:
        store: of the run.
        run: its manifest.
        key: a file with an Ed25519 private key (PEM), which only its owner can read.

    Raises:
        UserError: when the file holds none, or others can read it.
        RunError: for a run of before 0.2, which says too little to be signed.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not is_checkable(run):
        raise RunError(f"run {run.run} is of an earlier memlib and says too little to be signed; run its audit again")
    try:
        mode, content = key.stat().st_mode, key.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the key {key} ({error.strerror})") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UserError(f"others can read the key {key} (mode {stat.S_IMODE(mode):o}); say chmod 600 {key}")
    try:
        private = load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        said = f"{key} holds no private key (PEM, without a password); openssl genpkey -algorithm ed25519 makes one"
        raise UserError(said) from error
    if not isinstance(private, Ed25519PrivateKey):
        raise UserError(f"{key} holds another kind of key; openssl genpkey -algorithm ed25519 makes the right one")
    signature = base64.b64encode(private.sign(_signed(run))).decode()
    record = {"algorithm": "Ed25519", "run": run.run, "manifest": run.digest, "signature": signature}
    return store.publish(f"runs/{run.run}/{SIGNATURE}", canonical_json(record).encode())


def check_signature(store: Store, run: RunRecord, trusted: Path) -> Iterator[Problem]:
    """Whether a run's manifest was signed by the holder of a key that is trusted.

    Args:
        store: of the run.
        run: its manifest.
        trusted: a file with the public key (PEM), from outside the store.

    Raises:
        UserError: when the file holds none.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        public = load_pem_public_key(trusted.read_bytes())
    except OSError as error:
        raise UserError(f"cannot read the public key {trusted} ({error.strerror})") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UserError(f"{trusted} holds no public key in PEM; openssl pkey -in KEY -pubout makes it") from error
    if not isinstance(public, Ed25519PublicKey):
        raise UserError(f"{trusted} holds another kind of key than Ed25519")
    name, content = f"run {run.run}", store.published(f"runs/{run.run}/{SIGNATURE}")
    if content is None:
        yield Problem(name, "is not signed")
        return
    try:
        record = parse(SignatureRecord, content)
        public.verify(base64.b64decode(record.signature, validate=True), _signed(run))
    except (Unreadable, ValueError) as error:
        yield Problem(name, f"has a signature that cannot be read ({error})")
    except InvalidSignature:
        yield Problem(name, "is not what was signed, or was signed with another key")


def _signed(run: RunRecord) -> bytes:
    """The bytes that are signed: the manifest's digest, which is of all the rest, with its purpose and run."""
    return f"memlib run {run.run} {run.digest}".encode()
