"""Storage backend of a store: all operations that differ between a local folder and a remote prefix.

Paths are relative to the store's root, with slashes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from stat import S_ISREG
from typing import Any

from memlib.identity import file_digest
from memlib.store.permissions import Mode, Permissions
from memlib.store.records import FileRecord

HALF_WRITTEN_SECONDS = 3600.0  # an incomplete resume state or file older than this is abandoned
TMP = "tmp"  # folder of files that are being written; complete files are moved to their place by renaming
Facts = tuple[int, float]  # size of a file in bytes, and its time of writing in seconds since 1970 by the store's clock


class Damaged(ValueError):
    """A file that differs from what was committed; the message says how."""


class Backend(ABC):
    """A folder of files, local or remote."""

    is_local: bool  #: whether the files are in this machine's file system and have permissions.
    uri: str  #: address of the store as shown to users; the same in every process.
    root: str  #: path of the folder in the file system.
    file_system: Any  #: the fsspec file system that contains it.

    def __init__(self) -> None:
        self._sound: dict[str, str] = {}

    def at(self, path: str) -> str:
        """Convert a path below the root to a path in the file system."""
        return f"{self.root}/{path}"

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None if it does not exist.

        Raises:
            Unreadable: when the path is not a regular file, or is larger than any file that memlib writes.
        """

    @abstractmethod
    def read_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the content of all readable files among `paths`, by path."""

    @abstractmethod
    def digest(self, path: str) -> str:
        """Return the sha256 of a file, read from the store and not from a local copy.

        Raises:
            FileNotFoundError: when the file does not exist.
            OSError: when the path is not a regular file.
        """

    @abstractmethod
    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from position `start` up to, but excluding, `end`.

        Raises:
            FileNotFoundError: when the file does not exist.
        """

    @abstractmethod
    def entries(self, folder: str) -> list[str] | None:
        """Return the names directly below a folder, or None if the folder does not exist."""

    @abstractmethod
    def listing(self, folder: str) -> dict[str, Facts]:
        """Return the facts of all files below a folder by path; links are not followed."""

    def walk(self, folder: str) -> Iterator[tuple[str, Facts]]:
        """Yield the path and facts of each file below a folder, in no particular order; links are not followed."""
        yield from self.listing(folder).items()

    @abstractmethod
    def links(self, folder: str) -> list[str]:
        """Return the paths of links, and of anything else that is neither file nor folder, at or below a folder."""

    @abstractmethod
    def create(self, path: str, data: bytes, bits: int) -> bool:
        """Write a file atomically unless it exists; return whether the file now has this content.

        If the file system has folders, the file's folder and the folder for temporary files must exist.
        """

    @abstractmethod
    def put(self, path: str, source: Path | bytes, *, bits: int, folder_bits: int) -> str:
        """Write a file atomically, replacing an existing one; return its URI.

        Missing folders above it are created; the folder for temporary files must exist.
        """

    @abstractmethod
    def make_folder(self, path: str, bits: int) -> None:
        """Create a folder if the file system has folders."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content; links are not followed.

        Raises:
            RunError: when a part of the path is a link.
        """

    @abstractmethod
    def drop_empty(self, path: str) -> None:
        """Remove folders that have become empty, from this one upwards, if the file system has folders."""

    @abstractmethod
    def clock(self) -> float:
        """Return the seconds since 1970 by the clock that timestamps the files, which may not be this machine's."""

    @abstractmethod
    def sweep(self, now: float) -> None:
        """Remove incomplete files that killed processes left behind; `now` is the time by `clock`."""

    @abstractmethod
    def suggested_mode(self) -> Mode:
        """Return the access mode suggested by the folder's own permissions."""

    @abstractmethod
    def filling(self, folder: str, bits: Permissions) -> AbstractContextManager[Path]:
        """Yield a local folder, accessible to its owner only, in which to prepare the content of a folder of the store.

        Args:
            bits: permissions of the parent folders.
        """

    @abstractmethod
    def send(self, filled: Path, folder: str, files: Mapping[str, FileRecord]) -> None:
        """Transfer the prepared files to a folder of the store."""

    @abstractmethod
    def keep(self, filled: Path, files: Mapping[str, FileRecord]) -> None:
        """Keep local copies of the prepared files if they would otherwise have to be fetched again."""

    @abstractmethod
    def check_there(self, folder: str, files: Mapping[str, FileRecord]) -> None:
        """Check that remote files exist and have the expected sizes, regardless of local copies.

        Raises:
            Damaged: at the first file that is missing or has another size.
        """

    @abstractmethod
    def local(self, path: str, expected: FileRecord) -> Path:
        """Return the path of a verified local copy of a file, or of the file itself if it is local; it can be memory-mapped.

        Raises:
            Damaged: when the file's size or digest differs from the expected one.
        """

    @abstractmethod
    def forget(self, expected: FileRecord) -> None:
        """Delete the local copy of a file that is damaged in the store, so that the copy does not hide the damage."""

    def _problem(self, path: Path, expected: FileRecord) -> str:
        """Describe what is wrong with a local file; return "" if it is intact. Each file is hashed once per process."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return size_problem(None, expected)
        if not S_ISREG(stat.st_mode):
            return "damaged (it is not a file)"
        mark = f"{expected.sha256}:{stat.st_size}:{stat.st_mtime_ns}"
        if self._sound.get(str(path)) == mark:
            return ""
        if problem := size_problem(stat.st_size, expected):
            return problem
        if file_digest(path) != expected.sha256:
            return "damaged (its sha256 differs from the manifest)"
        self._sound[str(path)] = mark
        return ""


def size_problem(size: int | None, expected: FileRecord) -> str:
    """Describe what is wrong with a file of this size (None: missing); return "" if the size is as expected."""
    if size is None:
        return "missing"
    return "" if size == expected.size else f"damaged ({size} bytes instead of {expected.size})"
