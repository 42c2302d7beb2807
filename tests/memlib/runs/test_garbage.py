"""Checks and cleaning of a store spare all that a kept run refers to and all that is under way."""

import errno
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli.app import main
from memlib.errors import RunError
from memlib.running.checks import check_artifacts
from memlib.runs import garbage, index
from memlib.runs.garbage import Garbage
from memlib.runs.index import list_runs
from memlib.store import Ref, Store, local

USED, UNUSED, SECRET = Ref("train", "a" * 32), Ref("train", "b" * 32), Ref("secret/corpus", "c" * 32)
LATER, EARLIER = -1.0, 1e4  # days of age: all is older than -1, nothing as old as 10,000
FIRST, SECOND, SWEEP, THIRD = "1" * 12, "2" * 12, "3" * 12, "4" * 12


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
        fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    uri = str(tmp_path / "store") if request.param == "local" else "memory://bucket/store"
    found = Store(uri, cache=str(tmp_path / "cache"))
    for ref in (USED, UNUSED, SECRET):
        with found.artifacts.write(ref) as attempt:
            attempt.path("data.bin").write_bytes(b"12345")
            attempt.path("sub/more.txt").write_text("more")
    run_of(found, FIRST, [USED], tmp_path)
    run_of(found, SECOND, [SECRET], tmp_path)
    return found


def run_of(store: Store, run: str, refs: list[Ref], folder: Path, **more: Any) -> None:
    finding = {"metric": "m", "params": "{}", "value": 1.0, "p_value": None}
    manifest = {"run": run, "audit": "exposure", "title": "t", "findings": [finding], "finished": time.time()}
    manifest |= {"artifacts": {}, "computed": [str(ref) for ref in refs[:1]], "reused": [str(ref) for ref in refs[1:]]} | more
    (folder / "manifest.json").write_text(json.dumps(manifest))
    store.publish(f"runs/{run}/manifest.json", folder / "manifest.json")
    store.publish(f"results/table=summary/audit=exposure/run={run}/part-0.parquet", folder / "manifest.json")


def paths(found: list[Garbage]) -> set[tuple[str, str]]:
    return {(item.kind, item.path) for item in found}


def test_garbage_finds_and_clear_deletes_only_old_unreferenced_artifacts(store: Store) -> None:
    assert garbage.committed(store) == [SECRET, USED, UNUSED]
    assert garbage.garbage(store, days=EARLIER) == []  # somebody may be at it
    found = garbage.garbage(store, days=LATER)
    assert paths(found) == {("artifact", f"artifacts/train/{UNUSED.key}")}
    assert found[0].size > 9
    assert garbage.clear(store, days=LATER) == found
    assert garbage.committed(store) == [SECRET, USED]
    assert store.artifacts.lookup(USED.stage, USED.key) == USED
    assert garbage.garbage(store, days=LATER) == []


def test_clear_deletes_runs_that_are_not_kept_with_their_exclusive_artifacts(store: Store) -> None:
    found = garbage.garbage(store, keep=[FIRST], days=LATER)
    assert ("run", f"runs/{SECOND}/manifest.json") in paths(found)
    assert ("run", f"results/table=summary/audit=exposure/run={SECOND}/part-0.parquet") in paths(found)
    assert garbage.clear(store, keep=[FIRST], days=LATER) == found
    assert [run["run"] for run in list_runs(store).entries] == [FIRST]
    assert garbage.committed(store) == [USED]


def test_garbage_finds_broken_attempts_ray_notes_and_resume_states(store: Store, tmp_path: Path) -> None:

    def put(path: str, data: bytes) -> None:
        store.file_system.makedirs(path.rpartition("/")[0], exist_ok=True)
        store.file_system.pipe_file(path, data)

    put(f"{store.root}/artifacts/train/{USED.key}/{'9' * 12}/half.bin", b"123")  # lost a race, or was killed
    put(f"{store.root}/artifacts/decode/{'d' * 32}/{'8' * 12}/half.bin", b"1234")  # never committed
    put(f"{store.root}/ray/memlib-{'7' * 12}/notes.json", b"12")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.pt").write_bytes(b"123456")
    store.resume.save("e" * 32, 7, tmp_path / "state")
    store.resume.save(f"secret/{'f' * 32}", 7, tmp_path / "state")
    found = garbage.garbage(store, days=LATER)
    assert paths(found) - {("artifact", f"artifacts/train/{UNUSED.key}")} == {
        ("attempt", f"artifacts/train/{USED.key}/{'9' * 12}"),
        ("attempt", f"artifacts/decode/{'d' * 32}/{'8' * 12}"),
        ("ray", f"ray/memlib-{'7' * 12}"),
        ("resume", f"resume/{'e' * 32}"),
        ("resume", f"resume/secret/{'f' * 32}"),
    }
    assert {item.size for item in found if item.kind == "attempt"} == {3, 4}
    assert garbage.clear(store, days=LATER) == found
    assert store.artifacts.lookup(USED.stage, USED.key) == USED
    assert not store.resume.load("e" * 32, tmp_path / "state")


@pytest.mark.parametrize("damage", ["gone", "of another artifact"])
def test_an_artifact_whose_manifest_is_lost_keeps_its_files_while_a_run_rests_on_it(store: Store, damage: str) -> None:
    """The manifest may be restored from a copy; nothing else names the valid attempt."""
    folder = f"artifacts/{USED}"
    if damage == "gone":
        store.drop(f"{folder}/manifest.json")
    else:
        store.publish(f"{folder}/{'9' * 12}/data.bin", b"12")  # another attempt
        store.publish(f"{folder}/manifest.json", store.published(f"artifacts/{UNUSED}/manifest.json") or b"")
    before = [path for path in store.listing(folder) if path.endswith("data.bin")]
    assert before
    garbage.clear(store, days=LATER)
    assert set(before) <= set(store.listing(folder))


def test_check_artifacts_names_every_damaged_file(store: Store) -> None:
    assert list(check_artifacts(store, garbage.committed(store))) == []

    def at(ref: Ref, name: str) -> str:
        return f"{store.root}/artifacts/{ref.stage}/{ref.key}/{store.artifacts.manifest(ref).attempt}/{name}"

    store.file_system.pipe_file(at(USED, "data.bin"), b"12346")
    store.file_system.rm_file(at(USED, "sub/more.txt"))
    store.file_system.pipe_file(f"{store.root}/artifacts/{SECRET}/manifest.json", b"{")
    said = {item.what: item.problem for item in check_artifacts(store, [SECRET])}
    assert "manifest" in said[str(SECRET)]
    problems = [item.problem for item in check_artifacts(store, [USED])]
    assert problems == ["file data.bin is damaged (its sha256 differs from the manifest)", "file sub/more.txt is missing"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_verify_and_gc_report_problems_and_delete_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path / "store"))
    for ref in (USED, UNUSED):
        with store.artifacts.write(ref) as attempt:
            attempt.path("data.bin").write_bytes(b"12345")
    run_of(store, FIRST, [USED], tmp_path)
    where = ("--store", store.uri)
    status, said, wrong = call(capsys, "verify", *where)
    assert status == 2
    assert "without pins or digest" in said
    assert "2 artifacts and 1 run were checked" in wrong
    assert call(capsys, "gc", *where)[1] == "found 0 unreferenced items; all runs kept; --delete deletes the items\n"
    status, said, _ = call(capsys, "gc", "--days", "0", *where)
    assert status == 0
    assert "artifact      1" in said
    assert garbage.committed(store) == [USED, UNUSED]  # nothing was deleted
    found: dict[str, Any] = json.loads(call(capsys, "gc", "--days", "0", "--delete", "--json", *where)[1])
    assert found["deleted"]
    assert [item["path"] for item in found["found"]] == [f"artifacts/train/{UNUSED.key}"]
    assert garbage.committed(store) == [USED]
    os.truncate(store.artifacts.local_path(USED, "data.bin"), 2)
    status, said, wrong = call(capsys, "verify", FIRST[:3], *where)
    assert status == 2
    assert "file data.bin is damaged" in said
    assert "1 artifact and 1 run were checked" in wrong
    found = json.loads(call(capsys, "verify", "--json", *where)[1])
    assert str(USED) in [problem["what"] for problem in found["problems"]]
    assert call(capsys, "gc", "--keep", "nobody", *where)[0] == 2
    assert "--days -1 is negative" in call(capsys, "gc", "--days=-1", *where)[2]


@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_gc_lists_a_store_that_can_only_be_read(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same holds for a copy without its empty folders and its index."""
    where = ("--store", store.uri, "--days", "0")
    expected = json.loads(call(capsys, "gc", "--json", *where)[1])
    assert expected["found"]
    for name in ("index", "tmp"):
        shutil.rmtree(Path(store.root) / name)
    before = {path: path.stat().st_mtime_ns for path in Path(store.root).rglob("*")}

    def refused(*_: Any, **__: Any) -> Any:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("write_file", "copy_file", "make_folder"):
        monkeypatch.setattr(local, name, refused)
    time.sleep(0.01)  # nothing is younger than the listing
    status, said, wrong = call(capsys, "gc", "--json", *where)
    assert wrong == ""
    assert status == 0
    assert json.loads(said) == expected
    assert {path: path.stat().st_mtime_ns for path in Path(store.root).rglob("*")} == before


def test_clear_keeps_the_cells_of_a_kept_sweep(store: Store, tmp_path: Path) -> None:
    run_of(store, SWEEP, [USED, SECRET], tmp_path, cells={"a": FIRST, "b": None})
    found = paths(garbage.garbage(store, keep=[SWEEP], days=LATER))
    assert ("run", f"runs/{SECOND}/manifest.json") in found
    assert not [path for _, path in found if FIRST in path]


def test_clearing_the_newest_of_equal_runs_makes_the_one_before_current(store: Store, tmp_path: Path) -> None:
    for run, asks in ((FIRST, "q"), (SECOND, "other"), (THIRD, "q")):
        run_of(store, run, [USED], tmp_path, asks=asks)
    index.publish_rows(store, list_runs(store).entries)

    def current() -> dict[str, bool]:
        files = {path: store.published(path) for path in store.listing("results") if "table=runs" in path}
        return {
            path.split("run=")[1][:12]: pq.read_table(pa.BufferReader(f))["current"][0].as_py() for path, f in files.items()
        }

    assert current() == {FIRST: False, SECOND: True, THIRD: True}
    garbage.clear(store, keep=[FIRST, SECOND], days=LATER)
    assert current() == {FIRST: True, SECOND: True}


def test_garbage_leaves_new_files_even_of_runs_that_are_not_kept(store: Store) -> None:
    assert garbage.garbage(store, keep=[], days=EARLIER) == []  # another driver may be publishing it


def note_of(run: str, **more: Any) -> bytes:
    note = {"run": run, "audit": "exposure", "title": "t", "started": 1.0, "recipe": {}, "finished": None}
    return json.dumps(note | more).encode()


REQUEST, STATUS = f"requests/{THIRD}-0123abcd.json", f"status/{THIRD}.json"


def test_garbage_leaves_old_artifacts_of_a_run_whose_heartbeat_is_recent(tmp_path: Path) -> None:
    store, day, now = Store(str(tmp_path / "store")), 86_400, time.time()
    with store.artifacts.write(UNUSED) as attempt:
        attempt.path("data.bin").write_text("made by the run")
    store.publish(REQUEST, note_of(THIRD, began=now - 20 * day))
    store.publish(STATUS, b"{}")
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (now - 10 * day, now - 10 * day))
    gone = paths(garbage.garbage(store, keep=[], days=7))
    assert gone == {("artifact", f"artifacts/{UNUSED}"), ("request", REQUEST), ("status", STATUS)}
    os.utime(tmp_path / "store" / REQUEST, (now, now))  # it says nothing of how far it is, but its heart beats
    assert garbage.garbage(store, keep=[], days=7) == []


def test_garbage_leaves_all_artifacts_and_resume_states_while_a_run_is_under_way(store: Store, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "note").write_text("{}")
    store.resume.save("e" * 32, 7, tmp_path / "state")
    store.publish(REQUEST, note_of(THIRD))
    kept = garbage.garbage(store, keep=[], days=LATER)
    assert not {item.kind for item in kept} & {"artifact", "resume"}
    store.drop(REQUEST)
    assert {"artifact", "resume"} <= {item.kind for item in garbage.garbage(store, keep=[], days=LATER)}


def test_garbage_leaves_artifacts_of_a_run_that_ends_while_the_store_is_listed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.publish(REQUEST, note_of(THIRD))
    listing = Store.listing

    def ends_meanwhile(self: Store, folder: str) -> dict[str, tuple[int, float]]:
        found = listing(self, folder)
        if folder == "artifacts":
            run_of(store, THIRD, [UNUSED], tmp_path)
            store.drop(REQUEST)
        return found

    monkeypatch.setattr(Store, "listing", ends_meanwhile)
    assert garbage.garbage(store, days=LATER) == []


@pytest.mark.parametrize(("state", "alive"), [(None, True), ("running", True), ("failed", False)])
def test_a_run_with_a_sign_of_life_today_is_under_way_for_any_number_of_days(
    store: Store, state: str | None, alive: bool
) -> None:
    store.publish(REQUEST, note_of(THIRD))
    store.publish(STATUS, json.dumps({"run": THIRD, "state": state, "updated": 1.0}).encode() if state else b"{}")
    assert bool(garbage.under_way(store, days=LATER)) is alive
    found = {item.kind for item in garbage.garbage(store, keep=[], days=LATER)}
    assert ({"artifact", "request"} & found == set()) is alive


def test_garbage_leaves_files_with_foreign_names(store: Store) -> None:
    foreign = [
        "runs/Nov01/events.out", "logs/app.log", "ray/notes.txt", "resume/mine.bin", "tmp/mine.txt", "requests/todo.json",
        "status/all.json", f"runs/{THIRD}/deeper/file", "results/mine.csv", "results/table=summary/mine.parquet",
        "artifacts/mine.bin", f"artifacts/train/{'a' * 31}/{'1' * 12}/x", f"artifacts/{'a' * 32}/x/y", f"artifacts/{USED}/mine/x",
    ]  # fmt: skip
    for path in foreign:
        store.publish(path, b"mine")
    garbage.clear(store, keep=[], days=LATER)
    left = {
        path
        for folder in ("runs", "logs", "ray", "resume", "tmp", "status", "results", "artifacts")
        for path in store.listing(folder)
    }
    assert left == set(foreign) - {"requests/todo.json"}
    assert "requests/todo.json" in store.listing("requests")


def test_garbage_deletes_nothing_while_a_run_cannot_be_read(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    store.publish(f"runs/{FIRST}/manifest.json", b"")
    before = garbage.committed(store)
    with pytest.raises(RunError, match=f"run {FIRST} cannot be read"):
        garbage.clear(store, days=LATER)
    assert garbage.committed(store) == before
    if store.is_local:
        assert main(["runs", "--store", store.uri]) == 0
        said = capsys.readouterr()
        assert f"the manifest of run {FIRST} cannot be read" in said.err
        assert SECOND in said.out


def test_a_run_that_begins_waits_for_the_end_of_the_clearing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    store.publish("clearing/0123456789ab.json", b"{}")
    with pytest.raises(RunError, match="another memlib gc"):
        garbage.clear(store, days=LATER)
    monkeypatch.setattr(garbage.time, "sleep", lambda _: store.drop("clearing"))
    garbage.wait_for_clearing(store, said.append)
    assert len(said) == 1
    garbage.wait_for_clearing(store, said.append)
    assert len(said) == 1


def test_clear_keeps_an_artifact_that_is_written_to_just_before_deletion(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = garbage.garbage(store, keep=[], days=LATER)
    assert len(found) > 2
    written = store.listing("artifacts")
    listing, later = Store.listing, time.time() + 10 * 86_400

    def touched(self: Store, folder: str) -> dict[str, tuple[int, float]]:
        there = listing(self, folder)
        if folder == f"artifacts/{UNUSED}":  # looked at alone, just before
            return {path: (size, later) for path, (size, _) in there.items()}
        return there

    monkeypatch.setattr(Store, "listing", touched)
    gone = garbage.clear(store, keep=[], days=LATER)
    assert [item for item in found if item not in gone] == [item for item in found if item.path == f"artifacts/{UNUSED}"]
    monkeypatch.undo()
    assert set(store.listing("artifacts")) == {path for path in written if str(UNUSED) in path}


def test_of_two_that_begin_to_clear_at_once_neither_deletes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    own = garbage.beating

    def beside_another(store: Store, path: str, content: bytes) -> Any:
        store.publish("clearing/0123456789ab.json", b"{}")
        return own(store, path, content)

    monkeypatch.setattr(garbage, "beating", beside_another)
    with pytest.raises(RunError, match="another memlib gc or forget is clearing .* if it was killed, after 120 s"):
        garbage.clear(store, days=LATER)
    assert list(store.listing("clearing")) == ["clearing/0123456789ab.json"]


def test_the_mark_of_a_gc_that_was_killed_is_garbage(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.publish("clearing/0123456789ab.json", b"{}")
    mark = Garbage("part", "clearing/0123456789ab.json", 2)
    assert mark not in garbage.garbage(store, days=LATER)  # it may be at work
    monkeypatch.setattr(garbage, "SILENT_SECONDS", -1.0)
    assert mark in garbage.garbage(store, days=LATER)


def test_a_run_that_begins_without_waiting_ends_the_clearing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_SECONDS", 0.0)
    real = garbage.garbage

    def begins(*arguments: Any, **named: Any) -> list[Garbage]:
        found = real(*arguments, **named)
        store.publish(f"requests/{THIRD}.json", note_of(THIRD))
        return found

    monkeypatch.setattr(garbage, "garbage", begins)
    with pytest.raises(RunError, match="a run has started"):
        garbage.clear(store, keep=[], days=LATER)
    assert UNUSED in garbage.committed(store)


def test_garbage_measures_ages_by_the_clock_of_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = time.time() + 9 * 86_400
    monkeypatch.setattr(time, "time", lambda: ahead)  # this machine's clock is wrong
    assert garbage.garbage(store, keep=[], days=7) == []


def test_a_damaged_manifest_does_not_stop_garbage_collection(store: Store) -> None:
    base = f"{store.root}/artifacts/{USED}"
    store.file_system.makedirs(f"{base}/{'9' * 12}", exist_ok=True)
    store.file_system.pipe_file(f"{base}/{'9' * 12}/half.bin", b"123")
    store.file_system.pipe_file(f"{base}/manifest.json", b"{")
    found = paths(garbage.garbage(store, days=LATER))
    assert ("artifact", f"artifacts/{UNUSED}") in found
    assert not [path for _, path in found if str(USED) in path]  # which attempt is the good one nobody knows
