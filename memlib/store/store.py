"""The store: the one place where artifacts are published, and the one truth about what is done.

Layout, below a local folder or an s3:// prefix::

    memlib-store.json                           says that this is a store; nothing is read or deleted where it is missing
    artifacts/<stage>/<key>/manifest.json       names an attempt, with size and digest of each file; written last
    artifacts/<stage>/<key>/<attempt>/<file>    one attempt's files; racing attempts never share a folder
    resume/<key>/<step>-<attempt>/...           a stage's own unfinished state, newest verified one wins
    logs/<stage>/<key>/<attempt>.log            what a worker printed while it made it
    requests/, status/                          what was asked for and has not ended, and how far it is
    results/, runs/                             what people read
    tmp/                                        files that are being written

A reader trusts only what a manifest names, and checks it: size and sha256 before the first use.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.private import Mode, user_folder
from memlib.records import MANIFEST, RunRecord, Unreadable, parse
from memlib.settings import number
from memlib.store.artifacts import Artifacts
from memlib.store.backend import Backend
from memlib.store.copies import Copies
from memlib.store.local import Local
from memlib.store.place import Place
from memlib.store.refs import Ref
from memlib.store.remote import Remote
from memlib.store.resume import ResumeStates

UNWRITABLE = ("http", "https", "ftp", "github", "git", "zip", "tar", "data", "reference")  # protocols that fsspec reads
PROBE_SECONDS = 10.0  # a store that cannot be reached at the start is most often mistyped


class Store(Place):
    """A content-addressed store in a local folder or any fsspec file system (s3://bucket/prefix).

    Args:
        uri: a path or a URL that fsspec knows.
        cache: where verified copies of remote artifacts are kept (default: MEMLIB_CACHE, or a folder in the user's cache).
        cache_bytes: size limit of those copies (default: MEMLIB_CACHE_GB, or 50 GiB); the oldest go first.
        patience: seconds for which an outage of a remote store is waited for (default: MEMLIB_STORE_PATIENCE, or 120).

    Attributes:
        artifacts: what stages have made.
        resume: what they have begun.
    """

    def __init__(
        self, uri: str, *, cache: str | None = None, cache_bytes: int | None = None, patience: float | None = None
    ) -> None:
        self._given = (cache, cache_bytes, patience)
        self._patience = number("MEMLIB_STORE_PATIENCE", 120) if patience is None else patience
        super().__init__(_backend(str(uri), cache, cache_bytes, self._patience))
        self.resume = ResumeStates(self)
        self.artifacts = Artifacts(self, self.resume)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_store, (self.uri, *self._given))  # what was not given is each node's own

    def waiting(self, seconds: float) -> "Store":
        """Return the same store with less patience."""
        cache, cache_bytes, _ = self._given
        return Store(self.uri, cache=cache, cache_bytes=cache_bytes, patience=min(seconds, self._patience))

    @property
    def is_local(self) -> bool:
        """Whether it is a folder, of this machine or shared by nodes."""
        return self.backend.is_local

    @property
    def file_system(self) -> Any:
        """The fsspec file system that it is in, for others who write below `root`."""
        return self.backend.file_system

    @property
    def root(self) -> str:
        """Its folder in that file system."""
        return self.backend.root

    def adopt(self, mode: Mode | None = None) -> int:
        """Mark a store that a memlib of before markers made; return how many runs and artifacts were seen in it.

        Raises:
            UserError: when nothing in it is memlib's.
        """
        if self.marker() is not None:
            raise UserError(f"{self.uri} is a store already; there is nothing to adopt")
        seen = 0
        for path in self.listing("artifacts"):
            with contextlib.suppress(CorruptArtifact):
                if path.endswith(f"/{MANIFEST}"):
                    self.artifacts.manifest(Ref.parse(path.removeprefix("artifacts/").removesuffix(f"/{MANIFEST}")))
                    seen += 1
        for path in self.listing("runs"):
            with contextlib.suppress(Unreadable):
                if path.endswith(f"/{MANIFEST}"):
                    parse(RunRecord, self.published(path) or b"")
                    seen += 1
        if not seen:
            raise UserError(f"{self.uri} holds no run and no artifact of memlib's; it is no store")
        self.mark(mode)
        return seen

    def check_room(self) -> None:
        """Refuse a place that holds other things, without making a store of it.

        Raises:
            UserError: with what is there.
        """
        there = self._entries()
        if there:
            self._refuse_unmarked(there)

    def check_writable(self) -> None:
        """Mark the store and write a probe, so that a read-only or unreachable one is found before any work.

        Raises:
            UserError: with what the file system said.
        """
        try:
            patient = self if self.is_local else self.waiting(PROBE_SECONDS)
            patient.begin()
            now = patient.clock()
        except (RunError, UserError):
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise UserError(f"the store {self.uri} cannot be written ({said}); choose another with --store") from error
        self.backend.sweep(now)


def _backend(uri: str, cache: str | None, cache_bytes: int | None, patience: float) -> Backend:
    if not uri.strip():
        raise UserError("the store has no name; give a folder or an s3:// prefix")
    if uri.partition("://")[0].lower() in UNWRITABLE:
        raise UserError(f"{uri} cannot be written, so it can be no store; use a folder or an s3:// prefix")
    try:
        file_system, root = fsspec.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise UserError(f"cannot open the store {uri}: {error}") from error
    most = int(number("MEMLIB_CACHE_GB", 50) * 2**30) if cache_bytes is None else cache_bytes
    if isinstance(file_system, LocalFileSystem):
        return Local(file_system, root)
    copies = Copies(Path(cache or os.environ.get("MEMLIB_CACHE") or user_folder("cache") / "artifacts"), most)
    return Remote(file_system, uri, root, copies=copies, patience=patience)


def _open_store(uri: str, cache: str | None, cache_bytes: int | None, patience: float | None) -> Store:
    return Store(uri, cache=cache, cache_bytes=cache_bytes, patience=patience)
