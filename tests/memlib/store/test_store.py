import errno
import hashlib
import json
import logging
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import numpy as np
import pytest
from botocore.exceptions import ClientError

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.runs.garbage import Garbage, delete, garbage
from memlib.store import MARKER, Ref, Store, backend, local
from memlib.store.copies import Copies
from memlib.store.logs import recording
from memlib.store.records import FileRecord, sealed
from memlib.store.remote import Remote
from tests.forks import SERVER

REF = Ref("decode", "0" * 32)


def commit(store: Store, content: bytes = b"content", ref: Ref = REF) -> None:
    with store.artifacts.write(ref, spec={"a": 1}) as attempt:
        attempt.path("data.bin").write_bytes(content)
        attempt.path("sub/more.txt").write_text("more")


def stored(store: Store, name: str, ref: Ref = REF) -> str:
    return f"{store.root}/artifacts/{ref.stage}/{ref.key}/{store.artifacts.manifest(ref).attempt}/{name}"


def test_committed_artifacts_are_found_and_read(store: Store) -> None:
    assert store.artifacts.lookup(REF.stage, REF.key) is None
    commit(store)
    assert store.artifacts.lookup(REF.stage, REF.key) == REF
    assert store.artifacts.local_path(REF, "data.bin").read_bytes() == b"content"
    assert store.artifacts.local_path(REF, "sub/more.txt").read_text() == "more"
    assert store.artifacts.manifest(REF).spec == {"a": 1}


def test_a_failed_attempt_leaves_no_files(store: Store) -> None:
    with pytest.raises(RuntimeError, match="halfway"), store.artifacts.write(REF) as attempt:
        attempt.path("data.bin").write_bytes(b"half")
        raise RuntimeError("halfway")
    assert store.artifacts.lookup(REF.stage, REF.key) is None
    assert not [name for name in store.file_system.find(store.root) if "data.bin" in name]


@pytest.mark.parametrize("damage", [b"CONTENT", b"cont", b""])
def test_damaged_bytes_are_detected_and_named(store: Store, damage: bytes, tmp_path: Path) -> None:
    commit(store)
    store.file_system.pipe_file(stored(store, "data.bin"), damage)
    fresh = Store(store.uri, cache=str(tmp_path / "other"))  # another node, which has verified nothing yet
    with pytest.raises(CorruptArtifact, match=r"decode/0+.*data\.bin"):
        fresh.artifacts.lookup(REF.stage, REF.key)  # in a folder; of what is far away only its size is looked at
        fresh.artifacts.local_path(REF, "data.bin")
    fresh.artifacts.discard(REF)
    assert fresh.artifacts.lookup(REF.stage, REF.key) is None
    commit(fresh)
    assert fresh.artifacts.local_path(REF, "data.bin").read_bytes() == b"content"


def test_a_missing_file_and_half_a_manifest_are_damage(store: Store) -> None:
    commit(store)
    store.file_system.rm_file(stored(store, "data.bin"))
    with pytest.raises(CorruptArtifact, match="missing"):
        store.artifacts.lookup(REF.stage, REF.key)
    store.file_system.pipe_file(f"{store.root}/artifacts/{REF}/manifest.json", b'{"files": {')
    with pytest.raises(CorruptArtifact, match="manifest"):
        store.artifacts.lookup(REF.stage, REF.key)


def test_of_two_racing_writers_the_first_to_commit_wins_whole(store: Store) -> None:
    with store.artifacts.write(REF) as slow:
        slow.path("data.bin").write_bytes(b"slow")
        with store.artifacts.write(REF) as fast:
            fast.path("data.bin").write_bytes(b"fast")
    assert store.artifacts.local_path(REF, "data.bin").read_bytes() == b"fast"
    assert len([name for name in store.file_system.find(store.root) if name.endswith("data.bin")]) == 1


@pytest.mark.parametrize(
    ("mode", "file", "folder"), [("private", 0o600, 0o700), ("group", 0o660, 0o770), ("open", 0o600, 0o700)]
)
def test_file_permissions_never_exceed_the_store_mode_even_while_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, file: int, folder: int
) -> None:
    monkeypatch.setenv("MEMLIB_STORE_MODE", mode)
    store = Store(str(tmp_path / "store"))
    seen: set[int] = set()
    before = os.umask(0)
    try:
        with store.artifacts.write(REF) as attempt:
            attempt.path("sub/data.bin").write_bytes(b"x")
            seen.add(attempt.folder.stat().st_mode & 0o777)
        (tmp_path / "page.html").write_text("x")
        store.publish("runs/r/page.html", tmp_path / "page.html", secret=True)
        store.publish("results/table.parquet", tmp_path / "page.html")
    finally:
        os.umask(before)
    assert seen == {0o700}  # while it is written it is nobody else's
    assert store.mode == mode

    def bits(path: Path) -> int:
        return path.stat().st_mode & 0o777

    path = store.artifacts.local_path(REF, "sub/data.bin")
    assert (bits(path), bits(path.parent), bits(path.parents[1]), bits(path.parents[2])) == (file, folder, folder, folder)
    assert bits(path.parents[2] / "manifest.json") == file
    assert bits(tmp_path / "store/tmp") == folder  # or nobody else of a group could write
    assert bits(tmp_path / "store/runs/r/page.html") == file
    assert bits(tmp_path / "store/results/table.parquet") == {"private": 0o600, "group": 0o660, "open": 0o644}[mode]


def test_a_folder_that_its_group_writes_to_is_the_groups(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "store").chmod(0o2770)
    store = Store(str(tmp_path / "store"))
    commit(store)
    assert store.mode == "group"
    assert store.artifacts.local_path(REF, "data.bin").stat().st_mode & 0o777 == 0o660
    assert (tmp_path / "store/artifacts").stat().st_mode & 0o7777 == 0o2770


def test_folders_with_foreign_files_missing_paths_and_files_are_refused_as_stores(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    store = Store(str(tmp_path))
    for use in (store.check_writable, store.check_known, lambda: commit(store)):
        with pytest.raises(UserError, match="notes.txt"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(UserError, match="there is no store"):
        Store(str(tmp_path / "none")).check_known()
    with pytest.raises(UserError, match="is a file"):
        Store(str(tmp_path / "notes.txt")).check_writable()


def test_a_store_without_its_marker_is_refused(store: Store) -> None:
    commit(store)
    store.file_system.rm_file(f"{store.root}/{MARKER}")
    unmarked = Store(store.uri)
    for use in (unmarked.check_writable, unmarked.check_known):
        with pytest.raises(UserError, match=f"no {MARKER}"):
            use()


def test_a_store_of_a_later_memlib_is_left_alone(store: Store) -> None:
    store.begin()
    store.file_system.pipe_file(f"{store.root}/{MARKER}", b'{"format": 9, "id": "a"}')
    with pytest.raises(UserError, match="later version of memlib .format 9."):
        commit(Store(store.uri))
    store.file_system.pipe_file(f"{store.root}/{MARKER}", b"{")
    with pytest.raises(UserError, match="damaged"):
        Store(store.uri).check_known()


@pytest.mark.parametrize("evicted", [True, False])
def test_a_recomputation_that_another_run_ends_keeps_the_digest_of_evicted_files_only(store: Store, evicted: bool) -> None:
    def embed(value: float) -> str | None:
        with Store(store.uri).artifacts.write(REF, transient=True) as attempt:
            np.save(attempt.folder / "backbone.npy", np.full(3, value))
            if value < 0:
                raise KeyboardInterrupt
        return store.artifacts.manifest(REF).content

    before = embed(1.0)
    store.artifacts.discard(REF, evicted=evicted)
    with pytest.raises(KeyboardInterrupt):
        embed(-1.0)
    store.artifacts.discard(REF)  # of another run, which finds none
    (abandoned,) = [item for item in garbage(store, days=0) if item.path == f"{REF.folder}/former.json"]
    assert (embed(1.0 + 1e-9) == before) is evicted
    assert not (Path(store.uri) / REF.folder / "former.json").exists()
    store.artifacts.discard(REF, evicted=True)
    delete(store, abandoned)
    assert embed(2.0) != before
    store.artifacts.discard(REF)
    delete(store, Garbage("artifact", REF.folder, 1))
    assert not (Path(store.uri) / REF.folder).exists()


def test_a_folder_in_the_place_of_a_former_digest_stops_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    commit(store)
    (tmp_path / "store" / REF.folder / "former.json" / "of_others").mkdir(parents=True)
    store.artifacts.discard(REF)
    assert not store.artifacts.has(REF)
    assert (tmp_path / "store" / REF.folder / "former.json").is_file()


def test_check_writable_removes_only_old_temporary_files_of_killed_writers(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    store.check_writable()
    for name, age in (("a" * 32, 7200), ("b" * 32, 0)):
        part = tmp_path / "store/tmp" / f"{name}.part"
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age,) * 2)
    Store(store.uri).check_writable()
    assert [part.name[0] for part in (tmp_path / "store/tmp").iterdir()] == ["b"]


def test_the_clock_of_a_store_leaves_no_probe_files(store: Store) -> None:
    store.begin()
    assert abs(store.clock() - time.time()) < 60
    assert not [name for name in store.file_system.find(store.root) if ".part" in name or ".probe" in name]


def test_nothing_behind_a_link_is_listed_or_removed(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    commit(store)
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "abc").mkdir(parents=True)
    (elsewhere / "abc" / "mine.txt").write_text("mine")
    (tmp_path / "store/runs").symlink_to(elsewhere)
    (tmp_path / "store/results").mkdir()
    (tmp_path / "store/results/link").symlink_to(elsewhere / "abc" / "mine.txt")
    assert store.listing("runs") == store.listing("results") == {}
    with pytest.raises(RunError, match="reached through a link"):
        store.drop("runs/abc")
    assert (elsewhere / "abc" / "mine.txt").read_text() == "mine"


def test_the_newest_sound_resume_state_is_taken_up(store: Store, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    for step in (10, 20, 30):
        (state / "state.pt").write_bytes(f"step {step}".encode())
        store.resume.save("key", step, state)
    newest = sorted(store.names("resume/key"))
    assert len(newest) == 2
    store.file_system.pipe_file(f"{store.root}/resume/key/{newest[-1]}/state.pt", b"broken!")
    copy = tmp_path / "copy"
    copy.mkdir()
    assert store.resume.load("key", copy)
    assert (copy / "state.pt").read_bytes() == b"step 20"
    store.resume.drop("key")
    assert not store.resume.load("key", copy)


def test_half_written_resume_states_displace_no_whole_one(store: Store, tmp_path: Path) -> None:
    state, copy = tmp_path / "state", tmp_path / "copy"
    state.mkdir()
    copy.mkdir()
    store.begin()
    for name in ("000000001000-a", "000000001000-b"):
        store.file_system.makedirs(f"{store.root}/resume/key/{name}", exist_ok=True)
        store.file_system.pipe_file(f"{store.root}/resume/key/{name}/state.pt", b"half")
    for step in (900, 950):
        (state / "state.pt").write_bytes(b"%d" % step)
        store.resume.save("key", step, state)
    assert store.resume.load("key", copy)
    assert (copy / "state.pt").read_bytes() == b"950"


def test_a_damaged_copy_is_fetched_again(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    commit(Store("memory://bucket", cache=str(tmp_path)))
    store = Store("memory://bucket", cache=str(tmp_path))
    path = store.artifacts.local_path(REF, "data.bin")
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(b"CONTENT")
    fresh = Store("memory://bucket", cache=str(tmp_path))
    assert fresh.artifacts.lookup(REF.stage, REF.key) == REF
    assert fresh.artifacts.local_path(REF, "data.bin").read_bytes() == b"content"


def test_the_cache_of_remote_files_keeps_to_its_size(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    store = Store("memory://bucket", cache=str(tmp_path), cache_bytes=2500)
    refs = [Ref("decode", str(i)) for i in range(4)]
    for ref in refs:
        commit(store, os.urandom(1000), ref)
        store.artifacts.local_path(ref, "data.bin")
        (tmp_path / "killed.part").write_bytes(b"half")
        os.utime(tmp_path / "killed.part", (1, 1))
        (tmp_path / "under_way.part").write_bytes(b"half")
    assert sum(path.stat().st_size for path in tmp_path.iterdir() if path.suffix != ".part") <= 2500
    store.backend._copies.make_room(0)
    assert [path.name for path in tmp_path.glob("*.part")] == ["under_way.part"]
    assert len(store.artifacts.local_path(refs[0], "data.bin").read_bytes()) == 1000


def _fetch_in_a_process(folder: str, number: int, fetched: Any, ready: Any) -> None:
    store = Store("memory://bucket", cache=f"{folder}/cache")
    remote = store.backend
    assert isinstance(remote, Remote)

    def get(there: str, part: str) -> None:
        fetched.put(number)
        Path(part).write_bytes(Path(folder, "there").read_bytes())

    remote.file_system = SimpleNamespace(get_file=get)
    ready.wait()
    data = Path(folder, "there").read_bytes()
    copy = remote.local("there", FileRecord(size=len(data), sha256=hashlib.sha256(data).hexdigest()))
    assert copy.read_bytes() == data


def test_concurrent_processes_fetch_a_file_once(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(os.urandom(1_000_000))
    fetched, ready = SERVER.Queue(), SERVER.Barrier(4)
    processes = [SERVER.Process(target=_fetch_in_a_process, args=(str(tmp_path), n, fetched, ready)) for n in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert fetched.get(timeout=5) in range(4)
    assert fetched.empty()


def test_a_cached_copy_is_verified_once_per_machine_unless_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    commit(Store("memory://bucket", cache=str(tmp_path / "other")))
    read: list[Path] = []
    hashing = backend.file_digest
    monkeypatch.setattr(backend, "file_digest", lambda path: read.append(path) or hashing(path))

    def fresh() -> Path:  # as another process
        return Store("memory://bucket", cache=str(tmp_path / "mine")).artifacts.local_path(REF, "data.bin")

    copy = fresh()
    assert fresh() == copy
    assert read == [copy]
    copy.write_bytes(b"CONTENT")
    assert fresh().read_bytes() == b"content"
    assert read == [copy] * 3  # damaged, so fetched and read again


def test_a_file_larger_than_the_whole_cache_is_refused(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    commit(Store("memory://bucket", cache=str(tmp_path / "other")), b"x" * 2000)
    small = Store("memory://bucket", cache=str(tmp_path / "small"), cache_bytes=1000)
    with pytest.raises(UserError, match="raise MEMLIB_CACHE_GB"):
        small.artifacts.local_path(REF, "data.bin")


def test_concurrent_fetches_never_reserve_the_same_cache_space(tmp_path: Path) -> None:
    copies, under_way, most = Copies(tmp_path, 2500), [0], [0]
    (tmp_path / "killed.room").write_bytes(b"")
    os.truncate(tmp_path / "killed.room", 2500)  # nobody holds it any more

    def get(part: Path) -> None:
        under_way[0] += 1
        most[0] = max(most[0], under_way[0])
        part.write_bytes(b"x" * 1000)
        time.sleep(0.3)
        under_way[0] -= 1

    with ThreadPoolExecutor(4) as pool:
        files = [FileRecord(size=1000, sha256=str(n) * 64) for n in range(4)]
        assert list(pool.map(lambda file: copies.fetch(get, file), files)) == [True] * 4
    assert most == [2]
    assert sum(path.stat().st_size for path in tmp_path.iterdir() if not path.suffix) <= 2500
    assert not list(tmp_path.glob("*.room"))


def test_resume_state_is_removed_when_the_artifact_is_committed(tmp_path: Path) -> None:
    store, state = Store(str(tmp_path / "store")), tmp_path / "state"
    state.mkdir()
    (state / "frontier").write_text("far")
    with store.artifacts.write(REF) as attempt:
        attempt.resumes = True
        store.resume.save(attempt.ref.key, 1, state)
        attempt.path("data.bin").write_bytes(b"content")
        assert store.resume.load(REF.key, state)  # a failure up to here could go on
    assert not store.resume.load(REF.key, state)


def test_a_store_that_can_only_be_read_is_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock works nevertheless, so that the store can be listed."""
    store = Store(str(tmp_path / "store"))
    store.check_writable()
    assert not list((tmp_path / "store" / "tmp").iterdir())

    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(local, "write_file", refused)
    with pytest.raises(UserError, match="cannot be written to .*Read-only file system.*--store"):
        Store(store.uri).check_writable()
    assert abs(Store(store.uri).clock() - time.time()) < 60


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(UserError, match="cannot be written to|is a file"):
        Store(str(blocker / "store")).check_writable()
    with pytest.raises(UserError, match="cannot open"):
        Store("nosuchprotocol://bucket")


@pytest.mark.parametrize("name", ["../../outside", "/etc/passwd", "a/../../b", ""])
def test_names_that_lead_out_of_an_artifact_are_refused(store: Store, name: str, tmp_path: Path) -> None:
    commit(store)
    path = f"{store.root}/artifacts/{REF}/manifest.json"
    manifest = store.artifacts.manifest(REF).model_dump()
    manifest["files"][name] = {"size": 1, "sha256": "0" * 64}
    store.file_system.pipe_file(path, json.dumps(sealed(manifest)).encode())
    with pytest.raises(CorruptArtifact, match="outside"):
        Store(store.uri, cache=str(tmp_path / "cache")).artifacts.local_path(REF, name)
    state = f"{store.root}/resume/key/{1:012d}-a"
    store.file_system.makedirs(state, exist_ok=True)
    store.file_system.pipe_file(
        f"{state}/manifest.json", json.dumps({"files": {name: {"size": 1, "sha256": "0" * 64}}}).encode()
    )
    (tmp_path / "copy").mkdir()
    assert not store.resume.load("key", tmp_path / "copy")
    assert sorted(found.name for found in (tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize(("stage", "key"), [("..", "k"), ("a/../../b", "k"), ("a", "../k"), ("", "k"), ("a", "")])
def test_addresses_that_lead_out_of_the_store_are_refused(stage: str, key: str) -> None:
    with pytest.raises(CorruptArtifact, match="does not name an artifact"):
        Ref(stage, key)


def test_manifest_records_units_bytes_memory_and_log_of_an_artifact(store: Store) -> None:
    commit(store)
    other = Ref("embed", "1" * 32)
    with recording(), store.artifacts.write(other, units=7) as attempt:
        store.artifacts.local_path(REF, "data.bin")
        attempt.path("out.bin").write_bytes(b"12345")
        print("said")
        logging.getLogger("anyone").warning("and warned")
    manifest = store.artifacts.manifest(other)
    metrics = manifest.metrics
    assert (metrics.units, metrics.bytes_in, metrics.bytes_out) == (7, len(b"content"), 5)
    assert metrics.seconds >= 0
    assert metrics.peak_memory_bytes > 2**20
    assert metrics.gpu_peak_memory_bytes is None
    assert store.published(manifest.log).splitlines() == [b"said", b"anyone: and warned"]
    assert store.artifacts.manifests("embed", limit=5) == [manifest]


def test_a_commit_succeeds_if_the_acknowledgement_of_its_manifest_is_lost(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    store = Store("memory://bucket/store", cache=str(tmp_path / "cache"))
    real = store.backend.file_system._file_system

    class Forgetful:
        """Writes, but the answer is lost on the way; the second try finds the first one's file."""

        lost = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
            if mode == "create" and real.exists(path):
                raise FileExistsError(path)
            real.pipe_file(path, data)
            if mode == "create":
                self.lost += 1
                raise TimeoutError("no answer")

    store.backend.file_system._file_system = Forgetful()
    commit(store)
    assert store.file_system.lost == 2  # of the store's marker, and of the manifest
    assert store.artifacts.local_path(REF, "data.bin").read_bytes() == b"content"


def test_a_server_that_cannot_create_exclusively_still_gives_one_whole_artifact(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    store = Store("memory://bucket/store", cache=str(tmp_path / "cache"))
    real = store.backend.file_system._file_system

    class Plain:
        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
            if mode == "create":
                error = OSError(22, "not implemented")
                response = {"Error": {"Code": "NotImplemented"}, "ResponseMetadata": {"HTTPStatusCode": 501}}
                raise error from ClientError(response, "PutObject")
            real.pipe_file(path, data)

    store.backend.file_system._file_system = Plain()
    with store.artifacts.write(REF) as slow:
        slow.path("data.bin").write_bytes(b"slow")
        commit(store, b"fast")
        fast = store.artifacts.local_path(REF, "data.bin")
    assert fast.read_bytes() == b"fast"  # whoever read the first manifest can go on
    assert Store(store.uri, cache=str(tmp_path / "other")).artifacts.local_path(REF, "data.bin").read_bytes() == b"slow"


def test_settings_of_the_environment_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEMLIB_CACHE_GB", "many")
    with pytest.raises(UserError, match="MEMLIB_CACHE_GB is 'many'"):
        Store(str(tmp_path))


def test_artifacts_written_on_this_machine_are_read_without_fetching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    store = Store("memory://bucket/store", cache=str(tmp_path / "cache"))
    commit(store)
    monkeypatch.setattr(store.backend, "_fetch", lambda *_: pytest.fail("fetched"))
    copy = store.artifacts.local_path(REF, "data.bin")
    assert copy.read_bytes() == b"content"
    assert copy.stat().st_mode & 0o777 == 0o600


def test_a_cache_that_loses_or_alters_files_is_not_reported_as_store_damage(tmp_path: Path) -> None:
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    commit(Store("memory://bucket/store", cache=str(tmp_path / "made")))
    taken, bad = (Store("memory://bucket/store", cache=str(tmp_path / name)) for name in ("taken", "bad"))

    def evicted(remote: str, expected: Any) -> bool:
        nonlocal evictions
        evictions += 1
        found = Remote._fetch(taken.backend, remote, expected)
        if evictions < 3:
            taken.backend._copies.forget(expected)  # another process makes room for its own
        return found

    def altered(remote: str, expected: Any) -> bool:
        path = bad.backend._copies.path(expected)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"CONTENT")
        return True

    evictions = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(taken.backend, "_fetch", evicted)
        assert taken.artifacts.local_path(REF, "data.bin").read_bytes() == b"content"
        patch.setattr(bad.backend, "_fetch", altered)
        with pytest.raises(RunError, match="are evicted too soon or differ from what was written") as caught:
            bad.artifacts.local_path(REF, "data.bin")
    assert not isinstance(caught.value, CorruptArtifact)


def test_a_pickled_store_uses_the_cache_of_the_receiving_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, given = Store("memory://bucket/store"), Store("memory://bucket/store", cache=str(tmp_path / "given"))
    monkeypatch.setenv("MEMLIB_CACHE", str(tmp_path / "node"))
    assert pickle.loads(pickle.dumps(driver)).backend._copies.folder == tmp_path / "node"
    assert pickle.loads(pickle.dumps(driver.waiting(1)))._patience == 1
    assert pickle.loads(pickle.dumps(given)).backend._copies.folder == tmp_path / "given"


def test_an_artifact_stays_committed_if_its_writer_is_interrupted_afterwards(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    committing = Store.create

    def interrupted(self: Store, *arguments: Any, **named: Any) -> bool:
        committing(self, *arguments, **named)
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "create", interrupted)
    with pytest.raises(KeyboardInterrupt):
        commit(store)
    assert Store(store.uri).artifacts.lookup(REF.stage, REF.key) == REF


@pytest.mark.parametrize("repeated", [True, False])
def test_commits_succeed_where_hard_links_fail_or_are_reported_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    store, link = Store(str(tmp_path / "store")), os.link

    def as_on_nfs(source: Path, target: str) -> None:
        if not repeated:
            raise PermissionError(errno.EPERM, "no links here")
        link(source, target)
        raise FileExistsError(target)  # the server had done it when the call came again

    monkeypatch.setattr(os, "link", as_on_nfs)
    commit(store)
    assert store.artifacts.lookup(REF.stage, REF.key) == REF
    assert not list((tmp_path / "store").rglob("*.part"))


@pytest.mark.parametrize("other", ["ahead", "done"])
def test_two_drivers_save_states_of_one_training(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_text(name)
    committing = Store.create

    def others_first(self: Store, *arguments: Any, **named: Any) -> bool:
        monkeypatch.setattr(Store, "create", committing)
        if other == "ahead":
            for step in (20, 30, 40):
                store.resume.save("key", step, tmp_path / "b")
        else:
            store.resume.drop("key")  # it has committed the model
        return committing(self, *arguments, **named)

    def newest() -> str | None:
        return (tmp_path / "copy" / "state.pt").read_text() if store.resume.load("key", tmp_path / "copy") else None

    (tmp_path / "copy").mkdir()
    monkeypatch.setattr(Store, "create", others_first)
    store.resume.save("key", 10, tmp_path / "a")
    assert newest() == ("b" if other == "ahead" else None)

    def busy(*_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "another one removes it at the same time")

    monkeypatch.setattr(Store, "drop", busy)
    store.resume.drop("key")
    store.resume.save("key", 50, tmp_path / "a")
    assert newest() == "a"
