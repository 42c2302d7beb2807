"""Records of erased persons: which artifacts and files of which runs were deleted, and when, but never whose they were.

A person is recorded by the HMAC of the id that was given. Its key lies beside the records, as private as they are: whoever
holds both can test whether a certain id was erased, as the erasure itself does.
"""

import contextlib
import hashlib
import hmac
import json
import re
import uuid
from collections.abc import Iterable, Mapping
from datetime import datetime

from memlib.errors import RunError
from memlib.runs import vouching
from memlib.runs.index import ERASED
from memlib.runs.records import ErasedRunRecord, ErasureRecord, RunRecord
from memlib.runs.vouching import key_of
from memlib.sanitize import count_of, folded
from memlib.store import Store
from memlib.store.records import Unreadable, parse, sealed

REMOVED = "[erased]"  # in place of an id
PLACE = re.compile(r"((document|window|group) )?\d+( (window|canary) \d+)*")


def is_place(example: str) -> bool:
    """Return whether an example id only counts rows, so that after a deletion the next example of the source gets it."""
    return PLACE.fullmatch(example) is not None


def pseudonym(store: Store, name: str) -> str:
    """Return the HMAC of an id, with the key of the store, which is made when it is first needed."""
    return hmac.new(key_of(store), name.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def pseudonyms(store: Store, name: str) -> set[str]:
    """Return the HMACs of an id as it is compared, and as it is written, as earlier versions recorded it."""
    return {pseudonym(store, folded(name)), pseudonym(store, name)}


def erasures(store: Store) -> dict[str, ErasureRecord]:
    """Return the records of all erasures by path.

    Raises:
        RunError: when a record cannot be read.
    """
    found = {}
    for path in sorted(path for path in store.listing(vouching.ERASED) if path.endswith(".json")):
        try:
            found[path] = parse(ErasureRecord, store.published(path) or b"")
        except Unreadable as error:
            raise RunError(f"the record of an erasure, {store.uri}/{path}, cannot be read ({error}); restore it") from error
    return found


def new_record() -> str:
    """Return the path of a new record of an erasure."""
    return f"{vouching.ERASED}/{uuid.uuid4().hex[:12]}.json"


def write_record(store: Store, path: str, record: ErasureRecord) -> None:
    """Write the record of an erasure."""
    vouching.write(store, path, record)


def erased_part(store: Store, run: str) -> ErasedRunRecord | None:
    """Return what was erased of a run; None if nothing was since it was last published, or the record cannot be read."""
    content = store.published(f"runs/{run}/{ERASED}")
    with contextlib.suppress(Unreadable):
        return None if content is None else parse(ErasedRunRecord, content)
    return None


def mark_erased(store: Store, part: ErasedRunRecord) -> None:
    """Record what is erased of a run, in addition to what was erased of it before."""
    before = erased_part(store, part.run)
    if before is not None:
        artifacts, files = {*before.artifacts, *part.artifacts}, {*before.files, *part.files}
        more = {"artifacts": sorted(artifacts), "files": sorted(files), "redacted": before.redacted or part.redacted}
        part = part.model_copy(update=more)
    store.publish(f"runs/{part.run}/{ERASED}", json.dumps(sealed(part.model_dump()), indent=1).encode())


def erased_runs(listing: Iterable[str]) -> set[str]:
    """Return the ids of the runs of which something was erased, given the paths below runs/."""
    return {path.split("/")[1] for path in listing if path.endswith(f"/{ERASED}")}


def erased_on(part: ErasedRunRecord) -> str:
    """Return a clause that says when a part of a run was erased."""
    return f"erased in part on {datetime.fromtimestamp(part.when):%Y-%m-%d}"


def in_words(part: ErasedRunRecord) -> str:
    """Return a clause that says when which artifacts and files of a run were erased; the record lists them in full."""
    gone = (
        [f"{count_of(len(part.artifacts), 'artifact')} ({', '.join(map(_brief, part.artifacts))})"] if part.artifacts else []
    )
    gone += [count_of(len(part.files), "published file")] if part.files else []
    gone += ["ids in its manifest"] if part.redacted else []
    return f"{erased_on(part)}: {', '.join(gone)}; see runs/{part.run}/{ERASED}"


def _brief(address: str) -> str:
    stage, _, key = address.rpartition("/")
    return f"{stage}/{key[:8]}"


def check_recipe(part: ErasedRunRecord | None, run: RunRecord) -> None:
    """Check that the recipe of a run is still the one that was published.

    Raises:
        RunError: when ids were replaced in it.
    """
    if part is not None and part.redacted and REMOVED in json.dumps(run.recipe):
        raise RunError(f"the recipe of run {run.run} named an erased example; run the audit again with a recipe of your own")


def still_read(store: Store, examples: Mapping[str, Iterable[str]]) -> str:
    """Return a warning if a source still holds examples that were erased from the store; "" otherwise.

    Args:
        examples: ids of the examples of each decoded source, by address of its artifact.
    """
    known = erasures(store)
    artifacts = {name for record in known.values() for name in record.artifacts}
    persons = {digest for record in known.values() for digest in record.examples}
    for name, ids in examples.items():
        if name in artifacts or any(pseudonyms(store, example) & persons for example in ids if not is_place(example)):
            return (
                f"the source of {name} still holds examples that memlib forget has erased from {store.uri}; delete them from "
                "the source, and erase them again"
            )
    return ""
