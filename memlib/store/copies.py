"""Verified copies of remote files on this machine's disk, shared by all processes that may read them."""

import contextlib
import fcntl
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from filelock import FileLock

from memlib.errors import UserError
from memlib.private import PRIVATE, make_folder, write_file
from memlib.records import FileRecord

LOOK_SECONDS = 0.2  # while others fetch
FETCH_SECONDS = 86_400.0  # no copy of a file is under way for so long
PART, ROOM, SEEN, LOCK = ".part", ".room", ".seen", ".lock"
GIB = 2**30


class Copies:
    """A folder of files named by their sha256, which only its owner can read; the oldest go when it is full.

    Beside a copy lies a mark once it has been read and found sound, so that it is read for that once a machine and not once
    a process.

    Args:
        folder: where.
        most_bytes: its size limit.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self._most_bytes = folder, most_bytes

    def path(self, expected: FileRecord) -> Path:
        """Where the copy of a file is, or would be."""
        return self.folder / expected.sha256

    @contextlib.contextmanager
    def turn(self, expected: FileRecord) -> Iterator[None]:
        """One process at a time looks after a copy: the others find it done."""
        make_folder(self.folder, PRIVATE.folder)
        with FileLock(self.folder / f"{expected.sha256}{LOCK}", mode=PRIVATE.file):
            yield

    def fetch(self, get: Callable[[Path], None], expected: FileRecord) -> bool:
        """Has a file copied here by `get`; False when there is none (FileNotFoundError).

        Raises:
            UserError: when it is larger than all copies together may be.
        """
        if expected.size > self._most_bytes:
            raise UserError(
                f"a file of {expected.size / GIB:.1f} GiB does not fit the {self._most_bytes / GIB:.1f} GiB of copies that "
                f"are kept in {self.folder}; raise MEMLIB_CACHE_GB"
            )
        make_folder(self.folder, PRIVATE.folder)
        part = self.folder / f"{uuid.uuid4().hex}{PART}"
        with self._room(expected.size):
            try:
                write_file(part, b"", PRIVATE.file)
                get(part)
                part.replace(self.path(expected))
            except FileNotFoundError:
                return False
            finally:
                part.unlink(missing_ok=True)
        return True

    def keep(self, folder: Path, files: Mapping[str, FileRecord]) -> None:
        """What was made here need not be fetched again: moves it in, but for what neither disk nor limit has room for."""
        total = sum(file.size for file in files.values())
        with contextlib.suppress(OSError):
            make_folder(self.folder, PRIVATE.folder)
            if total > self._most_bytes:
                return
            with self._room(total):
                for name, file in files.items():
                    part = self.folder / f"{uuid.uuid4().hex}{PART}"
                    (folder / name).chmod(PRIVATE.file)
                    shutil.move(folder / name, part)
                    part.replace(self.path(file))

    def is_seen(self, expected: FileRecord) -> bool:
        """Whether a copy is there that was found sound, and has not been touched since."""
        with contextlib.suppress(OSError):
            return (self.folder / f"{expected.sha256}{SEEN}").read_text() == self._facts(expected)
        return False

    def note_seen(self, expected: FileRecord) -> None:
        """Notes that a copy was read and is sound."""
        with contextlib.suppress(OSError):
            part = self.folder / f"{uuid.uuid4().hex}{PART}"
            write_file(part, self._facts(expected).encode(), PRIVATE.file)
            part.replace(self.folder / f"{expected.sha256}{SEEN}")

    def _facts(self, expected: FileRecord) -> str:
        stat = self.path(expected).stat()
        return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"

    def forget(self, expected: FileRecord) -> None:
        """Drops a copy."""
        self.path(expected).unlink(missing_ok=True)
        (self.folder / f"{expected.sha256}{SEEN}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Room for files that are about to come, which no other process gives to its own; waits while there is none."""
        taken = self.folder / f"{uuid.uuid4().hex}{ROOM}"
        while True:
            with FileLock(self.folder / f"room{LOCK}", mode=PRIVATE.file):
                if self.make_room(size):
                    write_file(taken, b"", PRIVATE.file)
                    held = taken.open("r+b")
                    fcntl.flock(held, fcntl.LOCK_EX)
                    held.truncate(size)  # a hole: it has the size, and takes no disk
                    break
            time.sleep(LOOK_SECONDS)
        try:
            yield
        finally:
            taken.unlink(missing_ok=True)
            held.close()

    def make_room(self, size: int) -> bool:
        """Removes the oldest copies until there is room for a size, and what killed processes have left.

        Returns:
            whether there is room; what other processes fetch just now cannot be removed.
        """
        copies, total = [], size
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                if path.suffix == ROOM:
                    total += facts.st_size if _is_held(path) else 0
                elif path.suffix in (PART, LOCK) and time.time() - facts.st_mtime > FETCH_SECONDS:
                    path.unlink()
                elif not path.suffix:
                    copies.append((facts.st_mtime, facts.st_size, path))
        total += sum(copy[1] for copy in copies)
        for _, copy_size, path in sorted(copies):
            if total <= self._most_bytes:
                break
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}{SEEN}").unlink(missing_ok=True)
            total -= copy_size
        return total <= self._most_bytes


def _is_held(path: Path) -> bool:
    """Whether the process lives that took some room; what a killed one has left is removed."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        path.unlink(missing_ok=True)
        return False
