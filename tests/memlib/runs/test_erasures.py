"""Records of erasures name artifacts and times, never a person, and last until the run is published again."""

import json

import pytest

from memlib.errors import RunError
from memlib.runs.erasures import (
    erased_part,
    erased_runs,
    erasures,
    in_words,
    is_place,
    mark_erased,
    new_record,
    pseudonym,
    still_read,
    write_record,
)
from memlib.runs.records import ErasedRunRecord, ErasureRecord
from memlib.runs.vouching import KEY
from memlib.store import Store

RUN, OTHER = "0123456789ab", "ba9876543210"
SHARD, MODEL = f"decode/{'a' * 32}", f"train/{'b' * 32}"


def test_a_pseudonym_is_the_same_within_a_store_and_differs_between_stores(
    store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first = pseudonym(store, "ann")
    assert first == pseudonym(store, "ann") != pseudonym(store, "bob")
    assert first != pseudonym(Store(str(tmp_path_factory.mktemp("other") / "store")), "ann")
    store.publish(KEY, b"short", secret=True)
    with pytest.raises(RunError, match="restore it"):
        pseudonym(store, "ann")


def test_marks_of_a_run_add_up_and_say_what_is_missing(store: Store) -> None:
    assert erased_part(store, RUN) is None
    mark_erased(store, ErasedRunRecord(run=RUN, when=86_400.0, artifacts=[SHARD], files=["results/a"], redacted=True))
    mark_erased(store, ErasedRunRecord(run=RUN, when=2 * 86_400.0, artifacts=[MODEL], files=["runs/b"]))
    part = erased_part(store, RUN)
    assert part is not None
    assert (part.artifacts, part.files, part.redacted) == ([SHARD, MODEL], ["results/a", "runs/b"], True)
    assert in_words(part).startswith("erased in part on 1970-01-0")
    assert "2 artifacts (decode/aaaaaaaa, train/bbbbbbbb), 2 published files, ids in its manifest" in in_words(part)
    assert erased_runs(store.listing("runs")) == {RUN}


def test_a_changed_record_is_refused(store: Store) -> None:
    path = new_record()
    write_record(store, path, ErasureRecord(when=1.0, subject="0" * 64))
    assert erasures(store)[path].when == 1.0
    store.publish(path, json.dumps(json.loads(store.published(path) or b"") | {"complete": True}).encode(), secret=True)
    with pytest.raises(RunError, match="cannot be read"):
        erasures(store)


def test_a_source_that_still_holds_an_erased_example_is_recognized_by_id_or_artifact(store: Store) -> None:
    record = ErasureRecord(when=1.0, subject="0" * 64, artifacts=[SHARD], examples=[pseudonym(store, "ann/1")], complete=True)
    write_record(store, new_record(), record)
    assert "still holds examples" in still_read(store, {f"decode/{'c' * 32}": ["bob/1", "ann/1"]})
    assert "still holds examples" in still_read(store, {SHARD: []})
    assert still_read(store, {f"decode/{'c' * 32}": ["bob/1", "ann/2"]}) == ""


@pytest.mark.parametrize(
    "name", ["0000012", "document 00000012", "document 00000012 window 000003", "window 00000007 canary 000001"]
)
def test_numbers_of_rows_are_places(name: str) -> None:
    assert is_place(name)
    assert not is_place(f"ann/{name}")
