"""Verified copies of remote files on this machine's disk."""

import contextlib
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from memlib.private import PRIVATE, make_folder, write_file
from memlib.records import FileRecord

FETCH_SECONDS = 86_400.0  # no copy of a file is under way for so long


class Copies:
    """A folder of files named by their sha256, which only its owner can read; the oldest go when it is full.

    Args:
        folder: where.
        most_bytes: its size limit.
    """

    def __init__(self, folder: Path, most_bytes: int) -> None:
        self.folder, self._most_bytes = folder, most_bytes

    def path(self, expected: FileRecord) -> Path:
        """Where the copy of a file is, or would be."""
        return self.folder / expected.sha256

    def fetch(self, get: Callable[[Path], None], expected: FileRecord) -> bool:
        """Has a file copied here by `get`; False when there is none (FileNotFoundError)."""
        make_folder(self.folder, PRIVATE.folder)
        self.make_room(expected.size)
        part = self.folder / f"{uuid.uuid4().hex}.part"
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
        """What was made here need not be fetched again: moves it in, but for what the disk has no room for."""
        with contextlib.suppress(OSError):
            make_folder(self.folder, PRIVATE.folder)
            self.make_room(sum(file.size for file in files.values()))
            for name, file in files.items():
                part = self.folder / f"{uuid.uuid4().hex}.part"
                (folder / name).chmod(PRIVATE.file)
                shutil.move(folder / name, part)
                part.replace(self.path(file))

    def forget(self, expected: FileRecord) -> None:
        """Drops a copy."""
        self.path(expected).unlink(missing_ok=True)

    def make_room(self, size: int) -> None:
        """Removes the oldest copies; other processes may do the same at the same time."""
        copies = []
        for path in self.folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                facts = path.stat()
                if path.suffix != ".part":
                    copies.append((facts.st_mtime, facts.st_size, path))
                elif time.time() - facts.st_mtime > FETCH_SECONDS:  # of a process that was killed
                    path.unlink()
        total = sum(copy[1] for copy in copies) + size
        for _, copy_size, path in sorted(copies):
            if total <= self._most_bytes:
                return
            path.unlink(missing_ok=True)
            total -= copy_size
