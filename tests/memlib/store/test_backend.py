"""The contract of a store's back ends; a new back end adds a subclass of `Conformance`."""

import hashlib
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from memlib.store import Store, local
from memlib.store.backend import TMP, Backend, Damaged
from memlib.store.permissions import PRIVATE
from memlib.store.records import FileRecord

BITS = {"bits": PRIVATE.file, "folder_bits": PRIVATE.folder}


def record(content: bytes) -> FileRecord:
    return FileRecord(size=len(content), sha256=hashlib.sha256(content).hexdigest())


class Conformance(ABC):
    """Tests that every back end passes."""

    @pytest.fixture
    @abstractmethod
    def backend(self, tmp_path: Path) -> Backend:
        """Return an empty back end whose folder for temporary files exists."""

    def test_files_are_read_as_they_were_put(self, backend: Backend, tmp_path: Path) -> None:
        (tmp_path / "source").write_bytes(b"from a file")
        assert backend.put("a/b/one", b"first", **BITS).endswith("a/b/one")
        backend.put("a/b/one", b"second", **BITS)
        backend.put("a/two", tmp_path / "source", **BITS)
        assert backend.read("a/b/one") == b"second"
        assert backend.read("a/missing") is None
        assert backend.read_together(["a/b/one", "a/two", "a/missing"]) == {"a/b/one": b"second", "a/two": b"from a file"}
        assert backend.digest("a/two") == record(b"from a file").sha256
        assert backend.read_range("a/two", 5, 8) == b"a f"

    def test_missing_files_are_reported(self, backend: Backend) -> None:
        with pytest.raises(FileNotFoundError):
            backend.digest("a/missing")
        with pytest.raises(FileNotFoundError):
            backend.read_range("a/missing", 0, 1)

    def test_create_keeps_the_first_content_and_accepts_only_identical_content(self, backend: Backend) -> None:
        backend.make_folder("a", PRIVATE.folder)
        assert backend.create("a/one", b"first", PRIVATE.file)
        assert backend.create("a/one", b"first", PRIVATE.file)  # it has this content
        assert not backend.create("a/one", b"second", PRIVATE.file)
        assert backend.read("a/one") == b"first"

    def test_entries_and_listing_return_names_sizes_and_times(self, backend: Backend) -> None:
        before = backend.clock()
        for path in ("a/one", "a/b/two", "c/three"):
            backend.put(path, path.encode(), **BITS)
        assert sorted(backend.entries("a") or []) == ["b", "one"]
        assert not backend.entries("missing")
        listed = backend.listing("a")
        assert {path: size for path, (size, _) in listed.items()} == {"a/one": 5, "a/b/two": 7}
        assert all(abs(written - before) < 60 for _, written in listed.values())
        assert backend.links("a") == []

    def test_remove_deletes_files_and_folders(self, backend: Backend) -> None:
        for path in ("a/one", "a/b/two", "ab/three"):
            backend.put(path, b"x", **BITS)
        backend.remove("a/b")
        assert set(backend.listing("a")) == {"a/one"}
        backend.remove("a")
        backend.remove("a")  # what is gone is no error
        assert backend.listing("a") == {}
        assert backend.read("ab/three") == b"x"

    def test_a_folder_is_filled_sent_checked_and_copied(self, backend: Backend) -> None:
        content = {"data.bin": b"content", "more/data.bin": b"more"}
        files = {name: record(data) for name, data in content.items()}
        with backend.filling("stage/key/attempt", PRIVATE) as filled:
            for name, data in content.items():
                (filled / name).parent.mkdir(exist_ok=True)
                (filled / name).write_bytes(data)
            backend.send(filled, "stage/key/attempt", files)
            backend.keep(filled, files)
        backend.check_there("stage/key/attempt", files)
        for name, data in content.items():
            assert backend.local(f"stage/key/attempt/{name}", files[name]).read_bytes() == data

    def test_local_raises_damaged_for_wrong_digests_and_sizes(self, backend: Backend) -> None:
        backend.put("a/one", b"content", **BITS)
        with pytest.raises(Damaged, match="sha256"):
            backend.local("a/one", record(b"CONTENT"))
        with pytest.raises(Damaged, match="7 bytes instead of 3"):
            backend.local("a/one", record(b"abc"))

    def test_the_clock_of_a_backend_is_close_to_that_of_this_machine(self, backend: Backend) -> None:
        assert backend.clock() == pytest.approx(time.time(), abs=60)


class TestLocal(Conformance):
    @pytest.fixture
    def backend(self, tmp_path: Path) -> Backend:
        store = Store(str(tmp_path / "store"))
        store.check_writable()
        return store.backend

    def test_links_are_named_and_not_followed(self, backend: Backend, tmp_path: Path) -> None:
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/secret").write_text("x")
        backend.make_folder("a", PRIVATE.folder)
        os.symlink(tmp_path / "outside", backend.at("a/link"))
        assert backend.links("a") == ["a/link"]
        assert backend.listing("a") == {}

    def test_abandoned_parts_are_swept(self, backend: Backend) -> None:
        backend.put(f"{TMP}/x.part", b"half", **BITS)
        backend.sweep(backend.clock())
        assert backend.listing(TMP)
        backend.sweep(backend.clock() + 7200)
        assert not backend.listing(TMP)


class TestRemote(Conformance):
    @pytest.fixture
    def backend(self, bucket: str, tmp_path: Path) -> Backend:
        store = Store(f"{bucket}/some/prefix", cache=str(tmp_path / "cache"))
        store.check_writable()
        return store.backend

    def test_a_folder_is_checked_without_fetching_it(self, backend: Backend) -> None:
        backend.put("a/one", b"content", **BITS)
        with pytest.raises(Damaged, match="file two is missing"):
            backend.check_there("a", {"one": record(b"CONTENT"), "two": record(b"x")})


def test_a_folder_removed_by_another_process_is_created_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(str(tmp_path / "store"))
    store.begin()
    made, removed = local.make_folder, []

    def removed_at_once(folder: Path, bits: int) -> None:
        made(folder, bits)
        if folder.name == "inner" and not removed:
            removed.append(folder)
            folder.rmdir()

    monkeypatch.setattr(local, "make_folder", removed_at_once)
    store.publish("runs/inner/page.html", b"page")
    assert (store.published("runs/inner/page.html"), len(removed)) == (b"page", 1)
    store.drop("runs/inner/page.html")
    store.drop_empty("runs/inner")
    assert Path(store.root, "runs").is_dir()  # another process may be about to write there
    assert not Path(store.root, "runs/inner").exists()
