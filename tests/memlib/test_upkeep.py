"""What a store is checked for and cleared of: nothing that a kept run refers to, nothing that is under way."""

import json
import os
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from flows.cli import main
from memlib import upkeep
from memlib.store import Ref, Store
from memlib.upkeep import Garbage

USED, UNUSED, SECRET = Ref("train", "a" * 32), Ref("train", "b" * 32), Ref("secret/corpus", "c" * 32)
LATER, EARLIER = float("inf"), 0.0  # whenever the tests were collected


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        fsspec.filesystem("memory").store.clear()
    uri = str(tmp_path / "store") if request.param == "local" else "memory://bucket/store"
    found = Store(uri, cache=str(tmp_path / "cache"))
    for ref in (USED, UNUSED, SECRET):
        with found.write(ref, secret=ref is SECRET) as attempt:
            attempt.path("data.bin").write_bytes(b"12345")
            attempt.path("sub/more.txt").write_text("more")
    run_of(found, "first", [USED], tmp_path)
    run_of(found, "second", [SECRET], tmp_path)
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


def test_what_no_run_refers_to_is_found_when_it_is_old(store: Store) -> None:
    assert upkeep.committed(store) == [SECRET, USED, UNUSED]
    assert upkeep.garbage(store, before=EARLIER) == []  # somebody may be at it
    found = upkeep.garbage(store, before=LATER)
    assert paths(found) == {("artifact", f"artifacts/train/{UNUSED.key}")}
    assert found[0].size > 9
    upkeep.delete(store, found)
    assert upkeep.committed(store) == [SECRET, USED]
    assert store.lookup(USED.stage, USED.key) == USED
    assert upkeep.garbage(store, before=LATER) == []


def test_runs_that_are_not_kept_go_with_what_is_theirs_alone(store: Store) -> None:
    found = upkeep.garbage(store, keep=["first"], before=LATER)
    assert ("run", "runs/second/manifest.json") in paths(found)
    assert ("run", "results/table=summary/audit=exposure/run=second/part-0.parquet") in paths(found)
    upkeep.delete(store, found)
    assert [run["run"] for run in store.runs()] == ["first"]
    assert upkeep.committed(store) == [USED]


def test_broken_attempts_and_what_was_left_to_resume(store: Store, tmp_path: Path) -> None:

    def put(path: str, data: bytes) -> None:
        store._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        store._fs.pipe_file(path, data)

    put(f"{store._root}/artifacts/train/{USED.key}/{'9' * 12}/half.bin", b"123")  # lost a race, or was killed
    put(f"{store._root}/artifacts/decode/{'d' * 32}/{'8' * 12}/half.bin", b"1234")  # never committed
    put(f"{store._root}/ray/memlib-1/notes.json", b"12")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "state.pt").write_bytes(b"123456")
    store.save_resume("e" * 32, 7, tmp_path / "state")
    store.save_resume(f"secret/{'f' * 32}", 7, tmp_path / "state")
    found = upkeep.garbage(store, before=LATER)
    assert paths(found) - {("artifact", f"artifacts/train/{UNUSED.key}")} == {
        ("attempt", f"artifacts/train/{USED.key}/{'9' * 12}"),
        ("attempt", f"artifacts/decode/{'d' * 32}/{'8' * 12}"),
        ("ray", "ray/memlib-1"),
        ("resume", f"resume/{'e' * 32}"),
        ("resume", f"resume/secret/{'f' * 32}"),
    }
    assert {item.size for item in found if item.kind == "attempt"} == {3, 4}
    upkeep.delete(store, found)
    assert store.lookup(USED.stage, USED.key) == USED
    assert not store.load_resume("e" * 32, tmp_path / "state")


def test_every_damaged_file_is_named(store: Store) -> None:
    assert list(upkeep.verify(store, upkeep.committed(store))) == []

    def at(ref: Ref, name: str) -> str:
        return f"{store._root}/artifacts/{ref.stage}/{ref.key}/{store.manifest(ref)['attempt']}/{name}"

    store._fs.pipe_file(at(USED, "data.bin"), b"12346")
    store._fs.rm_file(at(USED, "sub/more.txt"))
    store._fs.pipe_file(f"{store._root}/artifacts/{SECRET}/manifest.json", b"{")
    said = {str(item.ref): item.problem for item in upkeep.verify(store, [SECRET])}
    assert "manifest" in said[str(SECRET)]
    problems = [item.problem for item in upkeep.verify(store, [USED])]
    assert problems == ["file data.bin is damaged (its sha256 differs from the manifest)", "file sub/more.txt is missing"]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    said = capsys.readouterr()
    return status, said.out, said.err


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path / "store"))
    for ref in (USED, UNUSED):
        with store.write(ref) as attempt:
            attempt.path("data.bin").write_bytes(b"12345")
    run_of(store, "first", [USED], tmp_path)
    where = ("--store", store.uri)
    assert call(capsys, "verify", *where) == (0, f"2 artifacts in {store.uri} are as they were committed\n", "")
    assert call(capsys, "gc", *where)[1] == "found 0 of nobody's, 1 runs kept; --delete removes what was found\n"
    status, said, _ = call(capsys, "gc", "--days", "0", *where)
    assert status == 0
    assert "artifact      1" in said
    assert upkeep.committed(store) == [USED, UNUSED]  # nothing was deleted
    found: dict[str, Any] = json.loads(call(capsys, "gc", "--days", "0", "--delete", "--json", *where)[1])
    assert found["deleted"]
    assert [item["path"] for item in found["found"]] == [f"artifacts/train/{UNUSED.key}"]
    assert upkeep.committed(store) == [USED]
    os.truncate(store.local_path(USED, "data.bin"), 2)
    status, said, wrong = call(capsys, "verify", "fir", *where)
    assert status == 2
    assert "file data.bin is damaged" in said
    assert "1 of 1 artifacts" in wrong
    assert json.loads(call(capsys, "verify", "--json", *where)[1])["damaged"][0]["artifact"] == str(USED)
    assert call(capsys, "gc", "--keep", "nobody", *where)[0] == 2
    assert "lies in the future" in call(capsys, "gc", "--days=-1", *where)[2]


def test_the_cells_of_a_sweep_that_is_kept_are_kept(store: Store, tmp_path: Path) -> None:
    run_of(store, "sweep", [USED, SECRET], tmp_path, cells={"a": "first", "b": None})
    found = paths(upkeep.garbage(store, keep=["sweep"], before=LATER))
    assert ("run", "runs/second/manifest.json") in found
    assert not [path for _, path in found if "first" in path]


def test_what_is_new_is_left_even_of_runs_that_are_not_kept(store: Store) -> None:
    assert upkeep.garbage(store, keep=[], before=EARLIER) == []  # another driver may be publishing it


def test_what_a_run_under_way_has_made_is_left(tmp_path: Path) -> None:
    store, day, now = Store(str(tmp_path / "store")), 86_400, time.time()
    with store.write(UNUSED) as attempt:
        attempt.path("data.bin").write_text("made by the run")
    for name in ("requests/r1.json", "status/r1.json"):
        (tmp_path / "note").write_text("{}")
        store.publish(name, tmp_path / "note")
    for path in (tmp_path / "store").rglob("*"):
        os.utime(path, (now - 10 * day, now - 10 * day))
    os.utime(tmp_path / "store/requests/r1.json", (now - 20 * day, now - 20 * day))
    gone = paths(upkeep.garbage(store, keep=[], before=now - 7 * day))
    assert gone == {("artifact", f"artifacts/{UNUSED}"), ("request", "requests/r1.json"), ("status", "status/r1.json")}
    os.utime(tmp_path / "store/status/r1.json", (now, now))  # it is heard of
    assert upkeep.garbage(store, keep=[], before=now - 7 * day) == []


def test_what_a_run_under_way_may_use_is_left_however_old_it_is(store: Store, tmp_path: Path) -> None:
    note = tmp_path / "state" / "note"
    note.parent.mkdir()
    note.write_text("{}")
    store.save_resume("e" * 32, 7, note.parent)
    store.publish("requests/r1.json", note)  # written anew whenever a run is resumed, so it says nothing of its age
    asked = store.listing("requests")["requests/r1.json"][1]
    kept = upkeep.garbage(store, keep=[], before=asked)  # all else was there before
    assert not {item.kind for item in kept} & {"artifact", "resume"}
    store.drop("requests/r1.json")
    assert {"artifact", "resume"} <= {item.kind for item in upkeep.garbage(store, keep=[], before=LATER)}


def test_a_run_that_ends_while_the_store_is_listed_keeps_what_it_reused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "note").write_text("{}")
    store.publish("requests/r1.json", tmp_path / "note")
    listing = Store.listing

    def ends_meanwhile(self: Store, folder: str) -> dict[str, tuple[int, float]]:
        found = listing(self, folder)
        if folder == "artifacts":
            run_of(store, "r1", [UNUSED], tmp_path)
            store.drop("requests/r1.json")
        return found

    monkeypatch.setattr(Store, "listing", ends_meanwhile)
    assert upkeep.garbage(store, before=LATER) == []


@pytest.mark.parametrize(("status", "alive"), [("{}", True), ('{"state": "running"}', True), ('{"state": "failed"}', False)])
def test_whatever_the_days_a_run_that_was_heard_of_today_is_under_way(
    store: Store, tmp_path: Path, status: str, alive: bool
) -> None:
    for name, text in (("requests/r1.json", "{}"), ("status/r1.json", status)):
        (tmp_path / "note").write_text(text)
        store.publish(name, tmp_path / "note")
    later = time.time() + 10  # as --days 0
    assert bool(upkeep.under_way(store, since=later)) is alive
    found = {item.kind for item in upkeep.garbage(store, keep=[], before=later)}
    assert ({"artifact", "request"} & found == set()) is alive


def test_a_damaged_manifest_stops_no_cleaning(store: Store) -> None:
    base = f"{store._root}/artifacts/{USED}"
    store._fs.makedirs(f"{base}/{'9' * 12}", exist_ok=True)
    store._fs.pipe_file(f"{base}/{'9' * 12}/half.bin", b"123")
    store._fs.pipe_file(f"{base}/manifest.json", b"{")
    found = paths(upkeep.garbage(store, before=LATER))
    assert ("artifact", f"artifacts/{UNUSED}") in found
    assert not [path for _, path in found if str(USED) in path]  # which attempt is the good one nobody knows
