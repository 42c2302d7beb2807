"""Where a store's bytes lie: all in which a local folder and a remote prefix differ.

Paths are those below the store's root, with slashes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from memlib.identity import file_digest
from memlib.private import Mode, Permissions
from memlib.records import FileRecord

HALF_WRITTEN_SECONDS = 3600.0  # after which half a state to resume from, or half a file, is nobody's work
TMP = "tmp"  # the folder of files that are being written, where files are put whole by renaming them
Facts = tuple[int, float]  # of a file: bytes, and when it was written, in seconds since 1970 by the store's clock


class Damaged(ValueError):
    """A file that is not what was committed; the message says in what."""


class Backend(ABC):
    """A folder of files, wherever it is.

    Attributes:
        is_local: whether the files are on this machine's file system, and have permissions.
        uri: what people call it; the same in every process.
        root: its path in the file system.
        file_system: the fsspec file system that it is in.
    """

    is_local: bool
    uri: str
    root: str
    file_system: Any

    def __init__(self) -> None:
        self._sound: dict[str, str] = {}

    def at(self, path: str) -> str:
        """Return a path of the file system."""
        return f"{self.root}/{path}"

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """Return a file's bytes, None when there is none.

        Raises:
            Unreadable: when it is no plain file, or too large to be one of memlib's.
        """

    @abstractmethod
    def read_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        """Return the bytes of many files by path, those that can be read."""

    @abstractmethod
    def digest(self, path: str) -> str:
        """Return the sha256 of a file, read where it is.

        Raises:
            FileNotFoundError: when there is none.
        """

    @abstractmethod
    def read_range(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a file from one place to before another.

        Raises:
            FileNotFoundError: when there is none.
        """

    @abstractmethod
    def entries(self, folder: str) -> list[str] | None:
        """Return the names directly below a folder; None when there is no such folder."""

    @abstractmethod
    def listing(self, folder: str) -> dict[str, Facts]:
        """Return all files below a folder by path; nothing behind a link."""

    @abstractmethod
    def create(self, path: str, data: bytes, bits: int) -> bool:
        """Write a file, whole or not at all, unless there is one already; return whether ours is there.

        The folder for it and the one of temporary files have to be there, where there are folders.
        """

    @abstractmethod
    def put(self, path: str, source: Path | bytes, *, bits: int, folder_bits: int) -> str:
        """Write a file, whole or not at all, over any that is there; return its URI.

        Folders for it are made; the one of temporary files has to be there.
        """

    @abstractmethod
    def make_folder(self, path: str, bits: int) -> None:
        """Make a folder, where there are folders."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; nothing behind a link.

        Raises:
            RunError: where it lies behind a link.
        """

    @abstractmethod
    def drop_empty(self, path: str) -> None:
        """Remove folders that have become empty, from this one upwards, where there are folders."""

    @abstractmethod
    def clock(self) -> float:
        """Return seconds since 1970 by the clock that dates the files, which need not be this machine's."""

    @abstractmethod
    def sweep(self, now: float) -> None:
        """Remove files that killed processes were writing."""

    @abstractmethod
    def suggested_mode(self) -> Mode:
        """Return the mode that the place itself suggests."""

    @abstractmethod
    def filling(self, folder: str, bits: Permissions) -> AbstractContextManager[Path]:
        """Give a local folder that only its owner can use, to be filled with what will be in a folder of the store.

        Args:
            folder: of the store.
            bits: of the folders above it.
        """

    @abstractmethod
    def send(self, filled: Path, folder: str, files: Mapping[str, FileRecord]) -> None:
        """Put what was filled where it belongs."""

    @abstractmethod
    def keep(self, filled: Path, files: Mapping[str, FileRecord]) -> None:
        """Keep a copy of what was filled, where it would else be fetched again."""

    @abstractmethod
    def check_there(self, folder: str, files: Mapping[str, FileRecord]) -> None:
        """Look at the files where they are, for their presence and size, where a copy here would say nothing of them.

        Raises:
            Damaged: at the first that is not as expected.
        """

    @abstractmethod
    def local(self, path: str, expected: FileRecord) -> Path:
        """Return a local file with a file's bytes, verified; it can be memory-mapped.

        Raises:
            Damaged: when size or digest differ from what is expected.
        """

    @abstractmethod
    def forget(self, expected: FileRecord) -> None:
        """Drop a copy of a file that is damaged where it is, so that the copy hides it from nobody."""

    def _problem(self, path: Path, expected: FileRecord) -> str:
        """Return what is wrong with a local file, "" when nothing is; each file is hashed once a process."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return size_problem(None, expected)
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
    """Return what is wrong with a file of this size, "" when nothing is; None stands for no file."""
    if size is None:
        return "missing"
    return "" if size == expected.size else f"damaged ({size} bytes, committed with {expected.size})"
