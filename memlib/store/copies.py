"""Cache of verified copies of remote files on this machine's disk, shared by all processes of its owner."""

import contextlib
import fcntl
import io
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from memlib.errors import UserError
from memlib.store.permissions import PRIVATE, make_folder, write_file
from memlib.store.records import FileRecord

LOOK_SECONDS = 0.2  # pause between two checks for room while other processes fetch files
FETCH_SECONDS = 86_400.0  # longer than any file takes to fetch
PART, ROOM, SEEN, LOCK = ".part", ".room", ".seen", ".lock"
GIB = 2**30


class Copies:
    """A folder of files named by their sha256, readable by its owner only; the oldest are evicted when it is full.

    After a copy has been read and verified, a mark is left beside it, so that each copy is verified once per machine rather
    than once per process.

    Args:
        folder: the cache folder.
        most_bytes: size limit of the cache.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self._most_bytes = folder, most_bytes

    def path(self, expected: FileRecord) -> Path:
        """Return the path at which a file is or would be cached."""
        return self.folder / expected.sha256

    @contextlib.contextmanager
    def turn(self, expected: FileRecord) -> Iterator[None]:
        """Hold the lock of a copy, so that only one process at a time fetches or verifies it."""
        make_folder(self.folder, PRIVATE.folder)
        with FileLock(self.folder / f"{expected.sha256}{LOCK}", mode=PRIVATE.file):
            yield

    def fetch(self, get: Callable[[Path], None], expected: FileRecord) -> bool:
        """Fetch a file into the cache by calling `get`; return False if it does not exist (FileNotFoundError).

        Raises:
            UserError: when the file is larger than the whole cache.
        """
        if expected.size > self._most_bytes:
            raise UserError(
                f"a file of {expected.size / GIB:.1f} GiB does not fit into the cache of {self._most_bytes / GIB:.1f} GiB in "
                f"{self.folder}; raise MEMLIB_CACHE_GB"
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
        """Move files made on this machine into the cache, as far as the disk and the size limit allow."""
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
        """Return whether there is a copy that was verified and has not been modified since."""
        with contextlib.suppress(OSError):
            return (self.folder / f"{expected.sha256}{SEEN}").read_text() == self._facts(expected)
        return False

    def note_seen(self, expected: FileRecord) -> None:
        """Record that a copy was read and verified."""
        with contextlib.suppress(OSError):
            part = self.folder / f"{uuid.uuid4().hex}{PART}"
            write_file(part, self._facts(expected).encode(), PRIVATE.file)
            part.replace(self.folder / f"{expected.sha256}{SEEN}")

    def _facts(self, expected: FileRecord) -> str:
        stat = self.path(expected).stat()
        return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"

    def forget(self, expected: FileRecord) -> None:
        """Delete a copy and its mark."""
        self.path(expected).unlink(missing_ok=True)
        (self.folder / f"{expected.sha256}{SEEN}").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _room(self, size: int) -> Iterator[None]:
        """Reserve room for files about to be cached, so that no other process uses it; wait until there is enough."""
        taken = self.folder / f"{uuid.uuid4().hex}{ROOM}"
        while True:
            with FileLock(self.folder / f"room{LOCK}", mode=PRIVATE.file):
                if self.make_room(size):
                    write_file(taken, b"", PRIVATE.file)
                    held = taken.open("r+b")
                    fcntl.flock(held, fcntl.LOCK_EX)
                    held.truncate(size)  # a sparse file: its size counts towards the limit, but it takes no disk space
                    break
            time.sleep(LOOK_SECONDS)
        try:
            yield
        finally:
            taken.unlink(missing_ok=True)
            held.close()

    def make_room(self, size: int) -> bool:
        """Evict the oldest copies until `size` bytes fit, and delete files that killed processes left behind.

        Returns:
            whether there is room; files that other processes are fetching cannot be evicted.
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
    """Return whether the process that reserved this room is alive; remove the reservation if not."""
    with path.open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        path.unlink(missing_ok=True)
        return False


class RangeFile(io.RawIOBase):
    """A read-only file, local or remote, that fetches only the requested ranges.

    Args:
        read: returns the bytes from a start position up to, but excluding, an end position.
        size: size of the file in bytes.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self._read, self._size, self._place = read, size, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the current position."""
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        self._place = max(0, start + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as fit into `buffer` and return their number."""
        end = min(self._size, self._place + len(buffer))
        if end <= self._place:
            return 0
        data = self._read(self._place, end)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
