"""A folder or prefix that is marked as a store: its marker, file permissions and published files."""

import contextlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from memlib.errors import UserError
from memlib.identity import file_digest
from memlib.settings import choice
from memlib.store.backend import TMP, Backend, Facts
from memlib.store.permissions import MODES, PRIVATE, Mode, Permissions, permissions
from memlib.store.records import FileRecord, MarkerRecord, Unreadable, parse
from memlib.version import VERSION

MARKER = "memlib-store.json"
FORMAT = 1  # version of the store's layout; raised when earlier versions of memlib must not write there
PEOPLES = ("results/", "runs/")  # folders meant for people, readable by everybody in an open store
HARMLESS = ("lost+found", TMP)  # entries that, like hidden files, an empty folder may contain


FOLDERS = (
    "artifacts",
    "runs",
    "results",
    "resume",
    "requests",
    "status",
    "logs",
    "index",
    "machines",
    "erased",
    "deleted",
)  # but Ray's


class Place:
    """A folder or prefix, and the marker that makes it a store.

    Args:
        backend: access to the underlying files.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._marked: MarkerRecord | None = None

    @property
    def uri(self) -> str:
        """The store's address as shown to users; the same in every process."""
        return self.backend.uri

    # -- the marker -----------------------------------------------------------------------------------

    def marker(self) -> MarkerRecord | None:
        """Return the content of the store's marker, or None if the place is not marked as a store.

        Raises:
            UserError: when the store was made by a later version of memlib, or its marker is damaged.
        """
        if self._marked is None:
            try:
                content = self.backend.read(MARKER)
                if content is None:
                    return None
                marker = parse(MarkerRecord, content)
            except Unreadable as error:
                raise UserError(f"{self.uri}/{MARKER} is damaged ({error}); restore the file") from error
            if marker.format > FORMAT or marker.mode not in MODES:
                raise UserError(
                    f"the store {self.uri} was made by a later version of memlib (format {marker.format}); update memlib"
                )
            self._marked = marker
        return self._marked

    def check_known(self) -> None:
        """Check that this is a store, so that a mistyped path is not mistaken for an empty store.

        Raises:
            UserError: when this is not a store; the message names what the folder contains instead.
        """
        if self.marker() is None:
            entries = self._entries()
            if entries is None:
                raise UserError(f"there is no store at {self.uri}; memlib run creates one")
            self._refuse_unmarked(entries)

    def begin(self) -> None:
        """Mark an empty place as a store, before the first write.

        Raises:
            UserError: when the place contains other files.
        """
        if self.marker() is not None:
            return
        entries = self._entries() or []
        if entries and self.marker() is None:  # unless another process has marked it in the meantime
            self._refuse_unmarked(entries)
        self.mark(None)

    def mark(self, mode: Mode | None) -> None:
        """Write the marker that makes this place a store.

        Args:
            mode: access mode of the store; by default MEMLIB_STORE_MODE, else the mode that the folder suggests.
        """
        if mode is None:
            mode = choice("MEMLIB_STORE_MODE", MODES) or self.backend.suggested_mode()
        self.backend.make_folder("", permissions(mode, secret=False).folder)
        self.backend.make_folder(TMP, permissions(mode, secret=True).folder)  # the marker itself is first written there
        data = {"format": FORMAT, "id": uuid.uuid4().hex, "mode": mode, "made": time.time(), "software": VERSION}
        self._marked = None
        self.backend.create(MARKER, json.dumps(data, indent=1).encode(), permissions(mode, secret=False).file)

    def _entries(self) -> list[str] | None:
        """Return the names in the store's folder, except hidden and harmless ones; None when the folder does not exist."""
        names = self.backend.entries("")
        return None if names is None else sorted(name for name in names if not name.startswith(".") and name not in HARMLESS)

    def _refuse_unmarked(self, there: list[str]) -> NoReturn:
        if {"artifacts", "runs"} & set(there):
            raise UserError(f"{self.uri} is not marked as a store (no {MARKER}): restore that file, or choose another folder")
        examples = ", ".join(there[:3]) + (" ..." if len(there) > 3 else "")
        raise UserError(
            f"{self.uri} is not a memlib store; it contains {examples or 'nothing'}; choose another folder with --store"
        )

    @property
    def mode(self) -> Mode:
        """Access mode of the store's files; on S3 the bucket's policy decides instead."""
        marked = self.marker()
        return "private" if marked is None else marked.mode  # type: ignore[return-value]  # checked by marker()

    def permissions(self, *, secret: bool = True) -> Permissions:
        """Return the permissions of the store's files and folders."""
        return permissions(self.mode, secret=secret) if self.backend.is_local else PRIVATE

    # -- files ----------------------------------------------------------------------------------------

    def publish(self, path: str, source: Path | bytes, *, secret: bool = False) -> str:
        """Publish a file below the store's root and return its URI.

        Args:
            path: path below the root.
            source: a local file, or the content to write.
            secret: whether the file may reveal training data.
        """
        self._make_ready()
        folder_bits = self.permissions(secret=secret or not path.startswith(PEOPLES)).folder
        return self.backend.put(path, source, bits=self.permissions(secret=secret).file, folder_bits=folder_bits)

    def create(self, path: str, data: bytes) -> bool:
        """Write a secret file atomically unless it exists; return whether the file now has this content."""
        self._make_ready()
        return self.backend.create(path, data, self.permissions().file)

    def _make_ready(self) -> None:
        self.begin()
        self.backend.make_folder(TMP, self.permissions().folder)

    def describe(self, folder: Path) -> dict[str, FileRecord]:
        """Return the size and digest of each file below a local folder, by relative path."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): FileRecord(size=path.stat().st_size, sha256=file_digest(path))
            for path in files
        }

    def published(self, path: str) -> bytes | None:
        """Return the content of a published file, or None if it is missing or unreadable."""
        try:
            return self.backend.read(path)
        except Unreadable:
            return None

    def published_together(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """Return the content of all readable files among `paths`, by path; on S3 they are read concurrently."""
        return self.backend.read_together(paths)

    def listing(self, folder: str) -> dict[str, Facts]:
        """Return (size in bytes, time written) of all files below a folder of the store, by path below the root.

        Links are neither followed nor listed, since their targets are not part of the store.
        """
        return self.backend.listing(folder)

    def walk(self, folder: str) -> Iterator[tuple[str, Facts]]:
        """Yield the path and facts of each file below a folder, like `listing`, without holding all of them."""
        return self.backend.walk(folder)

    def links(self) -> list[str]:
        """Return the paths of links (and of pipes and the like) in the store's folders, which `listing` omits."""
        return [path for folder in FOLDERS for path in self.backend.links(folder)]

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder of the store."""
        return self.backend.entries(folder) or []

    def make_folder(self, path: str) -> str:
        """Create a private folder below the root for other libraries to write to; return its path in the file system."""
        self.backend.make_folder(path, self.permissions().folder)
        return self.backend.at(path)

    def drop(self, path: str) -> None:
        """Remove a file or a folder below the root."""
        self.backend.remove(path)

    def drop_empty(self, path: str) -> None:
        """Remove folders that have become empty, from this one upwards; S3 has no folders."""
        self.backend.drop_empty(path)

    def clock(self) -> float:
        """Return the seconds since 1970 by the clock that timestamps the store's files, which may not be this machine's."""
        with contextlib.suppress(OSError):  # of a store that can only be read: its back end knows what then counts
            self.backend.make_folder(TMP, self.permissions().folder)
        return self.backend.clock()
