"""A place that is marked as a store: who may use its files, and what people read in it."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import memlib
from memlib.errors import UserError
from memlib.identity import file_digest
from memlib.private import MODES, PRIVATE, Mode, Permissions, permissions
from memlib.records import FileRecord, MarkerRecord, Unreadable, parse
from memlib.settings import choice
from memlib.store.backend import TMP, Backend, Facts

MARKER = "memlib-store.json"
FORMAT = 1  # of the store's layout; raised when an earlier memlib must not write there
PEOPLES = ("results/", "runs/")  # folders that are open where the mode says so
HARMLESS = ("lost+found", TMP)  # beside hidden files, what an empty folder may hold


class Place:
    """A folder, or a prefix, and the marker that makes it a store.

    Args:
        backend: where its bytes lie.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._marked: MarkerRecord | None = None

    @property
    def uri(self) -> str:
        """What people call it; the same in every process."""
        return self.backend.uri

    # -- is it a store --------------------------------------------------------------------------------

    def marker(self) -> MarkerRecord | None:
        """Return what the store says of itself, None where nothing says that this is one.

        Raises:
            UserError: when a later memlib made it, or its marker is damaged.
        """
        if self._marked is None:
            try:
                content = self.backend.read(MARKER)
                if content is None:
                    return None
                found = parse(MarkerRecord, content)
            except Unreadable as error:
                raise UserError(f"{self.uri}/{MARKER} is damaged ({error}); put it back, or see memlib adopt") from error
            if found.format > FORMAT or found.mode not in MODES:
                raise UserError(f"the store {self.uri} was made by a later memlib (format {found.format}); update memlib")
            self._marked = found
        return self._marked

    def check_known(self) -> None:
        """Refuse what is no store, so that nobody reads a mistyped folder as one in which all is well.

        Raises:
            UserError: with what is there instead.
        """
        if self.marker() is None:
            there = self._entries()
            if there is None:
                raise UserError(f"there is no store at {self.uri}; memlib run makes one")
            self._refuse_unmarked(there)

    def begin(self) -> None:
        """Mark an empty place as a store, before the first write.

        Raises:
            UserError: when the place holds other things.
        """
        if self.marker() is not None:
            return
        there = self._entries() or []
        if there and self.marker() is None:  # not by another process meanwhile
            self._refuse_unmarked(there)
        self.mark(None)

    def mark(self, mode: Mode | None) -> None:
        """Say that this is a store.

        Args:
            mode: who may use its files; by default as MEMLIB_STORE_MODE says, else as the folder's permissions suggest.
        """
        if mode is None:
            mode = choice("MEMLIB_STORE_MODE", MODES) or self.backend.suggested_mode()
        self.backend.make_folder("", permissions(mode, secret=False).folder)
        self.backend.make_folder(TMP, permissions(mode, secret=True).folder)  # where the marker itself is written first
        said = {"format": FORMAT, "id": uuid.uuid4().hex, "mode": mode, "made": time.time(), "software": memlib.__version__}
        self._marked = None
        self.backend.create(MARKER, json.dumps(said, indent=1).encode(), permissions(mode, secret=False).file)

    def _entries(self) -> list[str] | None:
        """Return names in the place where the store is or would be, but for hidden ones; None when there is no such place."""
        found = self.backend.entries("")
        return None if found is None else sorted(name for name in found if not name.startswith(".") and name not in HARMLESS)

    def _refuse_unmarked(self, there: list[str]) -> NoReturn:
        if {"artifacts", "runs"} & set(there):
            raise UserError(
                f"{self.uri} is not marked as a store (no {MARKER}): if an earlier memlib made it, say memlib adopt --store "
                f"{self.uri}; else choose another folder"
            )
        seen = ", ".join(there[:3]) + (" ..." if len(there) > 3 else "")
        raise UserError(f"{self.uri} is not a store of memlib's; it holds {seen or 'nothing'}; choose another with --store")

    @property
    def mode(self) -> Mode:
        """Who may use its files; on S3 the bucket's policy decides."""
        marked = self.marker()
        return "private" if marked is None else marked.mode  # type: ignore[return-value]  # checked when it was read

    def permissions(self, *, secret: bool = True) -> Permissions:
        """Return the permissions of its files and folders."""
        return permissions(self.mode, secret=secret) if self.backend.is_local else PRIVATE

    # -- files ----------------------------------------------------------------------------------------

    def publish(self, path: str, source: Path | bytes, *, secret: bool = False) -> str:
        """Put a file, or bytes, where people look for them (below the store's root) and return the URI.

        Args:
            path: below the root.
            source: a local file, or what the file shall hold.
            secret: whether it may show training data.
        """
        self._make_ready()
        folder_bits = self.permissions(secret=secret or not path.startswith(PEOPLES)).folder
        return self.backend.put(path, source, bits=self.permissions(secret=secret).file, folder_bits=folder_bits)

    def create(self, path: str, data: bytes) -> bool:
        """Write a secret file, whole or not at all, unless there is one already; return whether ours is there."""
        self._make_ready()
        return self.backend.create(path, data, self.permissions().file)

    def _make_ready(self) -> None:
        self.begin()
        self.backend.make_folder(TMP, self.permissions().folder)

    def describe(self, folder: Path) -> dict[str, FileRecord]:
        """Return size and digest of each file below a local folder, by path."""
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): FileRecord(size=path.stat().st_size, sha256=file_digest(path))
            for path in files
        }

    def published(self, path: str) -> bytes | None:
        """Return the bytes of a published file, None when there is none, or none that can be read."""
        try:
            return self.backend.read(path)
        except Unreadable:
            return None

    def published_together(self, paths: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of many published files by path, those that can be read; on S3 they are asked for side by side."""
        return self.backend.read_together(paths)

    def listing(self, folder: str) -> dict[str, Facts]:
        """Return all files below a folder of the store by their path below its root: (bytes, when they were written).

        Links are not followed, nor listed: what they lead to is not the store's.
        """
        return self.backend.listing(folder)

    def names(self, folder: str) -> list[str]:
        """Return the names directly below a folder of the store."""
        return self.backend.entries(folder) or []

    def make_folder(self, path: str) -> str:
        """Make a private folder below the root for others to write to, and return its path in the file system."""
        self.backend.make_folder(path, self.permissions().folder)
        return self.backend.at(path)

    def drop(self, path: str) -> None:
        """Remove a file or a folder below the root."""
        self.backend.remove(path)

    def drop_empty(self, path: str) -> None:
        """Remove folders that have become empty, from this one upwards; on S3 there are none."""
        self.backend.drop_empty(path)

    def clock(self) -> float:
        """Return seconds since 1970 by the clock that dates the store's files, which need not be this machine's."""
        self.backend.make_folder(TMP, self.permissions().folder)
        return self.backend.clock()
