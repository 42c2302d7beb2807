"""Data sets are recognized by their examples, in whatever file, if they share a tenth of the smaller one."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from memlib.runs.fingerprints import KEPT, fingerprint_of, fingerprints_of, have_common, in_common, without
from memlib.runs.records import DeletedRun, DeletionRecord, Fingerprints
from memlib.runs.vouching import DELETED, forget_fingerprints, paths_of, problem_of, read, record_deletion, write
from memlib.store import Store


def of(numbers: Iterable[int]) -> Fingerprints:
    found = fingerprints_of(map(str, numbers))
    assert found is not None
    return found


def test_small_sets_are_compared_exactly() -> None:
    assert in_common(of(range(100)), of(range(90, 190))) == (10, 100)
    assert have_common(of(range(100)), of(range(90, 190)))
    assert not have_common(of(range(100)), of(range(91, 191)))
    assert not have_common(of(range(5)), of(range(10, 15)))


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (range(5_000), range(1, 5_001), True),  # a row less, and another one more
        (range(5_000), range(4_500, 9_500), True),  # a tenth
        (range(5_000), range(4_950, 9_950), False),  # a hundredth
        (range(5_000), range(5_000, 10_000), False),
        (range(50_000), range(600), True),  # a part of a larger set
        (range(50_000), range(60_000, 60_600), False),
    ],
)
def test_large_sets_are_compared_by_the_smallest_digests(first: range, second: range, expected: bool) -> None:
    assert len(of(first)["smallest"]) == KEPT
    assert have_common(of(first), of(second)) is expected
    assert have_common(of(second), of(first)) is expected


def test_sets_that_share_a_tenth_are_rarely_missed() -> None:
    found = [have_common(of(range(at, at + 1_000)), of(range(at + 900, at + 1_900))) for at in range(0, 1_000_000, 10_000)]
    assert sum(found) >= 95  # of 100; the rule misses fewer than one in forty


def test_fingerprints_can_be_forgotten() -> None:
    kept = of(range(3))
    assert without(kept, {fingerprint_of("1")}) == {"count": 3, "smallest": sorted(map(fingerprint_of, "02"))}
    assert without(kept, set(map(fingerprint_of, "012"))) is None
    assert without(None, {"a"}) is None
    assert fingerprints_of([]) is None


def test_records_of_deleted_runs_forget_fingerprints_and_are_still_vouched_for(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.begin()
    runs = [DeletedRun(run="a" * 12, data="d", fingerprints=of(range(3))), DeletedRun(run="b" * 12, data="d")]
    record_deletion(store, runs)
    hers = fingerprint_of("1")
    forget_fingerprints(store, {hers})
    (path,) = paths_of(store, DELETED)
    found = read(store, path)
    assert problem_of(store, found, None) == ("", False)
    assert isinstance(found, DeletionRecord)
    assert [one.fingerprints and hers in one.fingerprints["smallest"] for one in found.runs] == [False, None]
    content = json.loads(store.published(path) or b"")
    for run in content["runs"]:
        run.pop("fingerprints")  # as written by an earlier version
    content["runs"] = content["runs"][1:]
    earlier = DeletionRecord.model_validate(content)
    write(store, path, earlier)
    assert problem_of(store, read(store, path), None) == ("", False)
