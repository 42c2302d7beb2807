"""Records that excuse absences: of runs that were deleted, and of what was erased of a person.

A store vouches for them with its key, and whoever signs its runs signs them as well: an absence without such a record is a
loss, and whoever deletes a run cannot excuse it without the key.
"""

import contextlib
import hashlib
import hmac
import json
import secrets
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from memlib.errors import RunError
from memlib.identity import canonical_json
from memlib.runs.fingerprints import without
from memlib.runs.ledger import Past
from memlib.runs.records import DeletedRun, DeletionRecord, ErasureRecord, RunEntry, Vouched
from memlib.runs.signatures import is_signed, private_key, sign_text, trusted_key
from memlib.store import Store
from memlib.store.records import Unreadable, parse, sealed

ERASED, DELETED = "erased", "deleted"  # folders of the records
KEY = f"{ERASED}/key"
LENGTH = 32
KINDS: dict[str, type[Vouched]] = {ERASED: ErasureRecord, DELETED: DeletionRecord}
Kind = TypeVar("Kind", bound=Vouched)


def key_of(store: Store) -> bytes:
    """Return the key of a store, which is made when it is first needed.

    Raises:
        RunError: when it cannot be read.
    """
    key = store.published(KEY)
    if key is None:
        store.begin()
        store.make_folder(ERASED)
        store.create(KEY, secrets.token_bytes(LENGTH))
        key = store.published(KEY)
    if key is None or len(key) != LENGTH:
        raise RunError(f"{store.uri}/{KEY} cannot be read; restore it, as records of erasures are worthless without it")
    return key


def write(store: Store, path: str, record: Vouched) -> None:
    """Write a record, vouched for by the store; a signature that it had is void."""
    whole = record.model_copy(update={"mac": _mac(key_of(store), record), "signature": None})
    store.publish(path, json.dumps(sealed(whole.model_dump()), indent=1).encode(), secret=True)


def _mac(key: bytes, record: Vouched) -> str:
    content = record.model_dump(exclude={"mac", "signature", "digest"})
    for run in content["runs"] if isinstance(record, DeletionRecord) else ():
        if run["fingerprints"] is None:
            del run["fingerprints"]  # records of earlier versions had none
    return hmac.new(key, canonical_json(content).encode(), hashlib.sha256).hexdigest()


def paths_of(store: Store, kind: str) -> list[str]:
    """Return the paths of the records of one kind: ERASED or DELETED."""
    return sorted(path for path in store.listing(kind) if path.endswith(".json"))


def read(store: Store, path: str) -> Vouched:
    """Read a record.

    Raises:
        Unreadable: when it cannot be read.
    """
    return parse(KINDS[path.partition("/")[0]], store.published(path) or b"")


def problem_of(store: Store, record: Vouched, trust: Path | None) -> tuple[str, bool]:
    """Return why a record excuses nothing, and whether that is only unknown; "" if it does.

    Args:
        trust: file with the public key that must have signed it, if any.
    """
    if record.mac is None:
        return "is of an earlier memlib, which did not vouch for such records; sign it (memlib sign --records)", True
    key = store.published(KEY)
    if key is None or not hmac.compare_digest(_mac(key, record), record.mac):
        return "was not written by this store, or has been changed", False
    if trust is not None:
        public = trusted_key(trust, store.root if store.is_local else None)
        with contextlib.suppress(ValueError):
            if record.signature is not None and is_signed(_text(record), record.signature, public):
                return "", False
        return "is not signed with the trusted key; check it, and sign it (memlib sign --records)", True
    return "", False


def _text(record: Vouched) -> str:
    return f"memlib absences {record.mac}"


def sign_records(store: Store, key: Path) -> int:
    """Sign all records of absences in a store that are not signed; return their number.

    Raises:
        UserError: when the file does not hold an Ed25519 private key, or others can read it.
        RunError: when a record cannot be read, or was not written by this store.
    """
    private, count = private_key(key), 0
    public = private.public_key()
    for path in (path for kind in KINDS for path in paths_of(store, kind)):
        try:
            record = read(store, path)
        except Unreadable as error:
            raise RunError(f"{store.uri}/{path} cannot be read ({error}); restore it") from error
        problem, is_unknown = problem_of(store, record, None)
        if problem and not is_unknown:
            raise RunError(f"{store.uri}/{path} {problem}; nothing more was signed")
        whole = record.model_copy(update={"mac": _mac(key_of(store), record)})
        with contextlib.suppress(ValueError):
            if whole.signature is not None and is_signed(_text(whole), whole.signature, public):
                continue
        whole = whole.model_copy(update={"signature": sign_text(_text(whole), private)})
        store.publish(path, json.dumps(sealed(whole.model_dump(exclude={"digest"})), indent=1).encode(), secret=True)
        count += 1
    return count


def record_deletion(store: Store, runs: Iterable[DeletedRun]) -> None:
    """Record that runs are deleted as garbage, before they are."""
    write(store, f"{DELETED}/{uuid.uuid4().hex[:12]}.json", DeletionRecord(when=time.time(), runs=list(runs)))


def forget_fingerprints(store: Store, forgotten: Collection[str]) -> None:
    """Remove fingerprints of examples from the records of runs that were deleted; signatures of these records are void."""
    for path in paths_of(store, DELETED):
        with contextlib.suppress(Unreadable):
            record = read(store, path)
            if not isinstance(record, DeletionRecord):
                continue
            runs = [run.model_copy(update={"fingerprints": without(run.fingerprints, forgotten)}) for run in record.runs]
            if runs != record.runs and not problem_of(store, record, None)[0]:
                write(store, path, record.model_copy(update={"runs": runs}))


def past_of(store: Store, listed: Iterable[RunEntry]) -> list[Past]:
    """Return the runs that a store holds or remembers, each once.

    Args:
        listed: the runs that it holds.
    """
    there = {entry["run"]: Past.of(entry) for entry in listed}
    gone = {run.run: Past.of_deleted(run) for run in _deleted(store)}
    return [*there.values(), *(one for name, one in gone.items() if name not in there)]


def _deleted(store: Store) -> Iterator[DeletedRun]:
    """Yield the runs that were deleted; records that cannot be read are left to memlib verify."""
    for path in paths_of(store, DELETED):
        with contextlib.suppress(Unreadable):
            record = read(store, path)
            if isinstance(record, DeletionRecord):
                yield from record.runs
