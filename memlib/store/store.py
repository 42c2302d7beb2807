"""The store: the one place where artifacts are published, and the single source of truth about finished work.

Layout, below a local folder or an s3:// prefix::

    memlib-store.json                           marks this as a store; without it, nothing is read or deleted
    artifacts/<stage>/<key>/manifest.json       names an attempt, with size and digest of each file; written last
    artifacts/<stage>/<key>/<attempt>/<file>    files of one attempt; concurrent attempts never share a folder
    artifacts/<stage>/<key>/former.json         digests of an attempt that was discarded, until there is another
    resume/<key>/<step>-<attempt>/...           unfinished state of a stage; the newest verified one is used
    logs/<stage>/<key>/<attempt>.log            output of the worker that made the artifact
    requests/, status/                          requests of runs that have not ended, and their progress
    results/, runs/                             results and reports for human readers
    erased/                                     records of what was deleted to erase a person, and their key
    tmp/                                        files that are being written

Readers trust only files named in a manifest, and verify their size and sha256 before the first use.
"""

import copy
import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from memlib.errors import RunError, UserError
from memlib.sanitize import is_text
from memlib.settings import number
from memlib.store.artifacts import Artifacts
from memlib.store.backend import TMP, Backend
from memlib.store.copies import Copies
from memlib.store.local import Local
from memlib.store.permissions import PRIVATE, user_folder
from memlib.store.place import Place
from memlib.store.remote import Remote
from memlib.store.resume import ResumeStates

UNWRITABLE = (
    "http",
    "https",
    "ftp",
    "github",
    "git",
    "zip",
    "tar",
    "data",
    "reference",
)  # read-only in fsspec
TRUST_VARIABLE = "MEMLIB_TRUST"
PROBE_SECONDS = 10.0  # short, because a store that cannot be reached at the start usually has a mistyped address


class Store(Place):
    """A content-addressed store in a local folder or any fsspec file system (s3://bucket/prefix).

    Args:
        uri: a path, or a URL supported by fsspec.
        cache: folder for verified copies of remote artifacts (default: MEMLIB_CACHE, or a folder in the user's cache).
        cache_bytes: size limit of the cache (default: MEMLIB_CACHE_GB, or 50 GiB); the oldest copies are evicted first.
        patience: seconds for which calls to a remote store are retried (default: MEMLIB_STORE_PATIENCE, or 120).
        trust: file with a public key (Ed25519, PEM) that must have signed every run that is read (default: MEMLIB_TRUST).

    Attributes:
        artifacts: finished work of the stages.
        resume: unfinished work of the stages.

    Example:
        >>> from memlib.store import Store
        >>> store = Store("another-store")
        >>> store.begin()  # marks the folder as a store
        >>> store.publish("results/note.txt", b"words") != "", store.published("results/note.txt")
        (True, b'words')
        >>> store.is_local, store.artifacts.lookup("decode", "0" * 8) is None
        (True, True)
    """

    def __init__(
        self,
        uri: str,
        *,
        cache: str | None = None,
        cache_bytes: int | None = None,
        patience: float | None = None,
        trust: Path | None = None,
    ) -> None:
        named = os.environ.get(TRUST_VARIABLE) if trust is None else trust
        self.trust = Path(named) if named else None
        self._given = (cache, cache_bytes, patience)
        self._patience = number("MEMLIB_STORE_PATIENCE", 120) if patience is None else patience
        super().__init__(_backend(str(uri), cache, cache_bytes, self._patience))
        self.resume = ResumeStates(self)
        self.artifacts = Artifacts(self, self.resume)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_store, (self.uri, *self._given))  # each node uses its own defaults for settings that were not given

    def trusting(self, key: Path | None) -> "Store":
        """Return the same store, of which every run that is read must be signed with a key; None if it need not be signed."""
        other = copy.copy(self)
        other.trust = key
        return other

    def waiting(self, seconds: float) -> "Store":
        """Return the same store with a patience of at most `seconds`."""
        cache, cache_bytes, _ = self._given
        return Store(self.uri, cache=cache, cache_bytes=cache_bytes, patience=min(seconds, self._patience))

    @property
    def is_local(self) -> bool:
        """True for a folder, on this machine or shared between nodes."""
        return self.backend.is_local

    @property
    def file_system(self) -> Any:
        """The store's fsspec file system, for other libraries that write below `root`."""
        return self.backend.file_system

    @property
    def root(self) -> str:
        """The store's folder in `file_system`."""
        return self.backend.root

    def check_room(self) -> None:
        """Check that the place is empty, without making it a store.

        Raises:
            UserError: when the place contains files; the message names some of them.
        """
        entries = self._entries()
        if entries:
            self._refuse_unmarked(entries)

    def check_writable(self) -> None:
        """Mark the store and write a probe, so that a read-only or unreachable store is noticed before any work.

        Raises:
            UserError: when writing fails; the message includes the file system's error.
        """
        try:
            patient = self if self.is_local else self.waiting(PROBE_SECONDS)
            patient.begin()
            if self.is_local:  # whose clock also answers where nothing can be written
                self._probe()
            now = patient.clock()
        except (RunError, UserError):
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise UserError(f"the store {self.uri} cannot be written to ({cause}); choose another with --store") from error
        self.backend.sweep(now)

    def _probe(self) -> None:
        path = f"{TMP}/{uuid.uuid4().hex}.part"
        self.backend.make_folder(TMP, self.permissions().folder)
        self.backend.create(path, b"memlib", PRIVATE.file)
        self.backend.remove(path)


def _backend(uri: str, cache: str | None, cache_bytes: int | None, patience: float) -> Backend:
    if not uri.strip():
        raise UserError("the address of the store is empty; give a folder or an s3:// prefix")
    if "@" in uri.partition("://")[2].partition("/")[0]:  # not repeated: it holds a secret
        raise UserError(
            "the address of the store contains credentials (before @); leave them out, and set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        )
    if not is_text(uri):
        raise UserError(f"the address of the store, {uri!a}, is not UTF-8; rename the folder")
    if uri.partition("://")[0].lower() in UNWRITABLE:
        raise UserError(f"{uri} cannot be written to, so it cannot be a store; use a folder or an s3:// prefix")
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
