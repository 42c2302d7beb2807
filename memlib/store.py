"""The store: the one place where artifacts are published, and the one truth about what is done.

Layout, below a local folder or an s3:// prefix::

    artifacts/<stage>/<key>/manifest.json       names an attempt, with size and digest of each file; written last
    artifacts/<stage>/<key>/<attempt>/<file>    one attempt's files; racing attempts never share a folder
    resume/<key>/<step>-<attempt>/...           a stage's own unfinished state, newest verified one wins
    results/, runs/                             what people read

A reader trusts only what a manifest names, and checks it: size and sha256 before the first use.
"""

import contextlib
import hashlib
import json
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.identity import file_digest

MANIFEST = "manifest.json"
KEPT_RESUME_STATES = 2


@dataclass(frozen=True)
class Ref:
    """The address of a committed artifact: which stage made it, and its content key."""

    stage: str
    key: str

    def __str__(self) -> str:
        return f"{self.stage}/{self.key}"


@dataclass
class Attempt:
    """One attempt at making an artifact: a local folder to fill, and facts worth keeping about the work."""

    folder: Path
    facts: dict[str, Any] = field(default_factory=dict)

    def path(self, name: str) -> Path:
        """Where to write the file called `name` (sub-folders are made)."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class Store:
    """A content-addressed store in a local folder or any fsspec file system (s3://bucket/prefix).

    Args:
        uri: a path or a URL that fsspec knows.
        cache: where verified copies of remote artifacts are kept (default: a folder in the user's cache).
        cache_bytes: size limit of those copies; the least recently used ones go first.
    """

    def __init__(self, uri: str, *, cache: str | None = None, cache_bytes: int = 50 * 2**30) -> None:
        self.uri = str(uri)
        try:
            self._fs, self._root = fsspec.url_to_fs(self.uri)
        except (ValueError, ImportError) as error:
            raise UserError(f"cannot open the store {self.uri}: {error}") from error
        self.is_local = isinstance(self._fs, LocalFileSystem)
        if self.is_local:
            self.uri = self._root  # absolute, so that it means the same in every process
        default_cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "memlib" / "artifacts"
        self._cache = Path(cache) if cache else default_cache
        self._cache_bytes = cache_bytes
        self._verified: dict[str, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_store, (self.uri, str(self._cache), self._cache_bytes))

    def _at(self, *parts: str) -> str:
        return "/".join([self._root.rstrip("/"), *parts])

    # -- is it there ----------------------------------------------------------------------------------

    def check_writable(self) -> None:
        """Writes and removes a probe, so that a read-only or unreachable store is found before any work.

        Raises:
            UserError: with what the file system said.
        """
        probe = self._at(f".probe-{uuid.uuid4().hex}")
        try:
            if self.is_local:
                os.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(probe, b"memlib")
            self._fs.rm_file(probe)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise UserError(f"the store {self.uri} cannot be written ({said}); choose another with --store") from error

    def lookup(self, stage: str, key: str) -> Ref | None:
        """The committed artifact of this stage and key, checked to the last byte; None when there is none.

        Raises:
            CorruptArtifact: when a manifest is there but it, or a file it names, is damaged.
        """
        ref = Ref(stage, key)
        self._fs.invalidate_cache(self._at("artifacts", stage, key))
        if not self._fs.exists(self._at("artifacts", stage, key, MANIFEST)):
            return None
        for name in self.manifest(ref)["files"]:
            self.local_path(ref, name)
        return ref

    def manifest(self, ref: Ref) -> dict[str, Any]:
        """What was recorded when the artifact was committed: files with sizes and digests, spec, inputs, facts."""
        path = self._at("artifacts", ref.stage, ref.key, MANIFEST)
        try:
            manifest = json.loads(self._fs.cat_file(path))
            manifest["files"], manifest["attempt"]
        except FileNotFoundError as error:
            raise CorruptArtifact(f"artifact {ref} has no manifest; it must be computed again") from error
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtifact(f"the manifest of artifact {ref} is damaged; it must be computed again") from error
        return dict(manifest)

    # -- reading --------------------------------------------------------------------------------------

    def local_path(self, ref: Ref, name: str) -> Path:
        """A local file with the artifact's bytes, verified against the manifest; safe to memory-map.

        Raises:
            CorruptArtifact: when size or digest differ from what was committed.
        """
        manifest = self.manifest(ref)
        if name not in manifest["files"]:
            raise KeyError(f"artifact {ref} has no file {name!r}; it has {sorted(manifest['files'])}")
        expected = manifest["files"][name]
        remote = self._at("artifacts", ref.stage, ref.key, manifest["attempt"], name)
        if self.is_local:
            problem = self._problem(Path(remote), expected)
            path = Path(remote)
        else:
            path = self._cache / str(expected["sha256"])
            problem = self._problem(path, expected)
            if problem:  # no copy, or a damaged one: the remote file decides
                self._fetch(remote, path, expected["size"])
                problem = self._problem(path, expected)
                if problem:
                    path.unlink(missing_ok=True)
        if problem:
            raise CorruptArtifact(f"artifact {ref}: file {name} is {problem}")
        return path

    def _problem(self, path: Path, expected: Mapping[str, Any]) -> str:
        """What is wrong with a file, "" when it is as it was committed; each file is hashed once a process."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return "missing"
        mark = f"{expected['sha256']}:{stat.st_size}:{stat.st_mtime_ns}"
        if self._verified.get(str(path)) == mark:
            return ""
        if stat.st_size != expected["size"]:
            return f"damaged ({stat.st_size} bytes, committed with {expected['size']})"
        if file_digest(path) != expected["sha256"]:
            return "damaged (its sha256 differs from the manifest)"
        self._verified[str(path)] = mark
        return ""

    def _fetch(self, remote: str, path: Path, size: int) -> None:
        """Copies a remote file into the cache, which only its owner can read."""
        self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(size)
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            part.touch(mode=0o600)
            self._fs.get_file(remote, str(part))
            part.replace(path)
        except FileNotFoundError:
            path.unlink(missing_ok=True)
        finally:
            part.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Removes the oldest copies; other processes may do the same at the same time."""
        copies = []
        for path in self._cache.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.suffix != ".part":
                    copies.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(copy[1] for copy in copies) + size
        for _, copy_size, path in sorted(copies):
            if total <= self._cache_bytes:
                return
            path.unlink(missing_ok=True)
            total -= copy_size

    def problems(self, ref: Ref) -> list[str]:
        """What is wrong with an artifact's files, read to the last byte where they are, not from a copy.

        Raises:
            CorruptArtifact: when there is no whole manifest.
        """
        manifest, found = self.manifest(ref), []
        for name, expected in manifest["files"].items():
            path = self._at("artifacts", ref.stage, ref.key, manifest["attempt"], name)
            try:
                with self._fs.open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                found.append(f"file {name} is missing")
                continue
            if digest != expected["sha256"]:
                found.append(f"file {name} is damaged (its sha256 differs from the manifest)")
        return found

    def listing(self, folder: str) -> dict[str, tuple[int, float]]:
        """All files below a folder of the store by their path below its root: (bytes, when they were written)."""
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._at(folder), detail=True)
        except FileNotFoundError:
            return {}
        prefix = len(self._at("")) if self._root else 0
        return {path[prefix:]: (int(info["size"]), _written(info)) for path, info in found.items()}

    # -- writing --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def write(
        self, ref: Ref, *, spec: Any = None, inputs: Mapping[str, Any] | None = None, secret: bool = False
    ) -> Iterator[Attempt]:
        """Makes an artifact: fill `attempt.folder` inside the block; it is committed when the block ends well.

        Racing writers each fill a folder of their own; the first to commit wins and the other's files go away.

        Args:
            ref: the artifact's address.
            spec: what the stage was configured by, kept in the manifest (plain JSON).
            inputs: keys of what was read, kept in the manifest.
            secret: whether the files hold private content (training images, canaries): local files get mode 600.
        """
        name = uuid.uuid4().hex[:12]
        target = self._at("artifacts", ref.stage, ref.key, name)
        folder = Path(target) if self.is_local else Path(tempfile.mkdtemp(prefix="memlib-"))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o755)
        attempt = Attempt(folder)
        started = time.time()
        try:
            yield attempt
            files = _describe(folder, secret=secret)
            if not self.is_local:
                for file in files:
                    self._fs.put_file(str(folder / file), f"{target}/{file}")
            record = {
                "stage": ref.stage,
                "key": ref.key,
                "attempt": name,
                "files": files,
                "secret": secret,
                "spec": spec,
                "inputs": dict(inputs or {}),
                "facts": attempt.facts,
                "seconds": round(time.time() - started, 3),
                "host": socket.gethostname(),
                "finished": time.time(),
            }
            won = self._commit(self._at("artifacts", ref.stage, ref.key, MANIFEST), record, secret=secret)
        except BaseException:
            self._remove(target)
            raise
        finally:
            if not self.is_local:
                shutil.rmtree(folder, ignore_errors=True)
        if not won:
            self._remove(target)

    def _commit(self, path: str, record: Mapping[str, Any], *, secret: bool) -> bool:
        """Writes a manifest unless there is one already: one winner, and never half a file.

        A secret's manifest is as secret: from a file's digest its content can be guessed, where little is unknown.
        """
        data = json.dumps(record, indent=1, sort_keys=True).encode()
        if self.is_local:
            part = Path(f"{path}.{uuid.uuid4().hex}.part")
            part.touch(0o600 if secret else 0o644)
            part.write_bytes(data)
            try:
                os.link(part, path)
            except FileExistsError:
                return False
            finally:
                part.unlink()
            return True
        try:
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        return True

    def discard(self, ref: Ref) -> None:
        """Takes an artifact out of the store, manifest first, so that it is computed again.

        Other attempts at it, which may be under way, are left alone.
        """
        base = self._at("artifacts", ref.stage, ref.key)
        try:
            attempt = str(self.manifest(ref)["attempt"])
        except CorruptArtifact:
            attempt = ""
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(f"{base}/{MANIFEST}")
        if attempt:
            self._remove(f"{base}/{attempt}")
        self._fs.invalidate_cache()

    def _remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(path, recursive=True)

    # -- unfinished work ------------------------------------------------------------------------------

    def save_resume(self, key: str, step: int, folder: Path) -> None:
        """Publishes the unfinished state in `folder` as the newest of stage key `key`; drops the oldest ones."""
        base = self._at("resume", key)
        target = f"{base}/{step:012d}-{uuid.uuid4().hex[:12]}"
        files = _describe(folder, secret=True)
        if self.is_local:
            os.makedirs(target)
            os.chmod(target, 0o700)  # what is unfinished may hold anything
        for file in files:
            self._fs.put_file(str(folder / file), f"{target}/{file}")
            if self.is_local:
                os.chmod(f"{target}/{file}", 0o600)
        self._commit(f"{target}/{MANIFEST}", {"files": files}, secret=True)
        states = sorted(self._listing(base))
        whole = [state for state in states if self._fs.exists(f"{state}/{MANIFEST}")]
        kept = whole[-KEPT_RESUME_STATES:]
        for old in states:
            if old not in kept and (old in whole or old < kept[-1]):  # a newer one without manifest may be under way
                self._remove(old)

    def load_resume(self, key: str, folder: Path) -> bool:
        """Copies the newest verified unfinished state into `folder`; False when there is none."""
        for state in sorted(self._listing(self._at("resume", key)), reverse=True):
            with contextlib.suppress(OSError, ValueError, KeyError):
                files = json.loads(self._fs.cat_file(f"{state}/{MANIFEST}"))["files"]
                for name, expected in files.items():
                    copy = folder / name
                    self._fs.get_file(f"{state}/{name}", str(copy))
                    if file_digest(copy) != expected["sha256"]:
                        raise ValueError(f"{state}/{name} is damaged")
                return True
        return False

    def drop_resume(self, key: str) -> None:
        """Removes the unfinished state of a stage that has committed."""
        self._remove(self._at("resume", key))

    def _listing(self, path: str) -> list[str]:
        self._fs.invalidate_cache()
        try:
            return [str(entry) for entry in self._fs.ls(path, detail=False)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    # -- what people read -----------------------------------------------------------------------------

    def publish(self, path: str, source: Path, *, secret: bool = False) -> str:
        """Puts a file where people look for it (below the store's root) and returns its URI."""
        target = self._at(path)
        if self.is_local:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            part = Path(f"{target}.{uuid.uuid4().hex}.part")
            shutil.copyfile(source, part)
            part.chmod(0o600 if secret else 0o644)
            part.replace(target)
            return target
        self._fs.put_file(str(source), target)
        return str(self._fs.unstrip_protocol(target))

    def drop(self, path: str) -> None:
        """Removes a folder below the root that is nobody's result."""
        self._remove(self._at(path))

    def published(self, path: str) -> bytes | None:
        """The bytes of a published file, None when there is none."""
        try:
            return bytes(self._fs.cat_file(self._at(path)))
        except FileNotFoundError:
            return None

    def runs(self) -> list[dict[str, Any]]:
        """The manifests of all runs, newest first."""
        found = []
        for folder in self._listing(self._at("runs")):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
                found.append(json.loads(self._fs.cat_file(f"{folder}/{MANIFEST}")))
        return sorted(found, key=lambda run: run["finished"], reverse=True)


def _written(info: Mapping[str, Any]) -> float:
    """Seconds since 1970, from whatever a file system calls it."""
    when = next((info[name] for name in ("mtime", "LastModified", "created") if info.get(name) is not None), 0.0)
    return float(when.timestamp()) if isinstance(when, datetime) else float(when)


def _open_store(uri: str, cache: str, cache_bytes: int) -> Store:
    return Store(uri, cache=cache, cache_bytes=cache_bytes)


def _describe(folder: Path, *, secret: bool) -> dict[str, dict[str, Any]]:
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if secret:
            path.chmod(0o600)
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": file_digest(path)}
    if not files:
        raise RunError(f"nothing was written to {folder}")
    return files
