"""The store: the one place where artifacts are published, and the one truth about what is done.

Layout, below a local folder or an s3:// prefix::

    artifacts/<stage>/<key>/manifest.json       names an attempt, with size and digest of each file; written last
    artifacts/<stage>/<key>/<attempt>/<file>    one attempt's files; racing attempts never share a folder
    resume/<key>/<step>-<attempt>/...           a stage's own unfinished state, newest verified one wins
    logs/<stage>/<key>/<attempt>.log            what a worker printed while it made it
    requests/, status/                          what was asked for and has not ended, and how far it is
    results/, runs/                             what people read

A reader trusts only what a manifest names, and checks it: size and sha256 before the first use.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from memlib.errors import CorruptArtifact, MissingArtifact, RunError, StoreRefused, StoreUnreachable, UserError
from memlib.identity import file_digest
from memlib.logs import recorded
from memlib.patience import PatientFileSystem, is_taken, is_unsupported
from memlib.usage import measuring, note_read

MANIFEST = "manifest.json"
KEPT_RESUME_STATES = 2
PIECE_BYTES = 64 * 2**20
FETCH_SECONDS = 86_400.0  # no copy of a file is under way for so long
FETCHES = 3  # other processes may make room for theirs by taking ours
HALF_WRITTEN_SECONDS = 3600.0  # after which a state to resume from without a manifest is nobody's work
PROBE_SECONDS = 10.0  # a store that cannot be reached at the start is most often mistyped
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # file systems without hard links
NAME = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class Ref:
    """The address of a committed artifact: which stage made it, and its content key."""

    stage: str
    key: str

    def __post_init__(self) -> None:
        if not all(NAME.fullmatch(part) for part in (*self.stage.split("/"), self.key)):
            raise CorruptArtifact(f"{self.stage!r}/{self.key!r} names no artifact")

    def __str__(self) -> str:
        return f"{self.stage}/{self.key}"

    @property
    def stage_name(self) -> str:
        """The stage without the folder that it may lie in."""
        return self.stage.rpartition("/")[2]


@dataclass
class Attempt:
    """One attempt at making an artifact: a local folder to fill, and facts worth keeping about the work."""

    folder: Path
    ref: Ref
    facts: dict[str, Any] = field(default_factory=dict)
    resumes: bool = False
    """Whether states to resume from are saved under the artifact's key; they go once it is committed."""

    def path(self, name: str) -> Path:
        """Where to write the file called `name` (sub-folders are made)."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class Store:
    """A content-addressed store in a local folder or any fsspec file system (s3://bucket/prefix).

    Args:
        uri: a path or a URL that fsspec knows.
        cache: where verified copies of remote artifacts are kept (default: MEMLIB_CACHE, or a folder in the user's cache).
        cache_bytes: size limit of those copies (default: MEMLIB_CACHE_GB, or 50 GiB); the oldest go first.
        patience: seconds for which an outage of a remote store is waited for (default: MEMLIB_STORE_PATIENCE, or 120).
    """

    def __init__(
        self, uri: str, *, cache: str | None = None, cache_bytes: int | None = None, patience: float | None = None
    ) -> None:
        self.uri = str(uri)
        try:
            self._fs, self._root = fsspec.url_to_fs(self.uri)
        except (ValueError, ImportError) as error:
            raise UserError(f"cannot open the store {self.uri}: {error}") from error
        self.is_local = isinstance(self._fs, LocalFileSystem)
        self._given = (cache, cache_bytes, patience)
        default_cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "memlib" / "artifacts"
        self._cache = Path(cache or os.environ.get("MEMLIB_CACHE") or default_cache)
        self._cache_bytes = int(_setting("MEMLIB_CACHE_GB", 50) * 2**30) if cache_bytes is None else cache_bytes
        self._patience = _setting("MEMLIB_STORE_PATIENCE", 120) if patience is None else patience
        if self.is_local:
            self.uri = self._root  # absolute, so that it means the same in every process
        else:
            self._fs = PatientFileSystem(self._fs, self.uri, self._patience)
        self._verified: dict[str, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return (_open_store, (self.uri, *self._given))  # what was not given is each node's own

    def waiting(self, seconds: float) -> "Store":
        """The same store with less patience."""
        cache, cache_bytes, _ = self._given
        return Store(self.uri, cache=cache, cache_bytes=cache_bytes, patience=min(seconds, self._patience))

    @property
    def file_system(self) -> Any:
        """The fsspec file system that it is in, for others who write below `root`."""
        return self._fs

    @property
    def root(self) -> str:
        """Its folder in that file system."""
        return str(self._root).rstrip("/")

    def _at(self, *parts: str) -> str:
        return "/".join([self.root, *parts])

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
            file_system = self._fs if self.is_local else self.waiting(PROBE_SECONDS).file_system
            file_system.pipe_file(probe, b"memlib")
            file_system.rm_file(probe)
        except RunError:
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            raise UserError(f"the store {self.uri} cannot be written ({said}); choose another with --store") from error

    def lookup(self, stage: str, key: str) -> Ref | None:
        """The committed artifact of this stage and key, checked to the last byte; None when there is none.

        Raises:
            CorruptArtifact: when a manifest is there but it, or a file it names, is damaged.
        """
        ref = Ref(stage, key)
        try:
            manifest = self.manifest(ref)
        except MissingArtifact:
            return None
        if not self.is_local:
            self._check_remote(ref, manifest)
        for name in manifest["files"]:
            self._verified_path(ref, manifest, name)
        return ref

    def _check_remote(self, ref: Ref, manifest: Mapping[str, Any]) -> None:
        """Sizes where the files are: a verified copy here says nothing to other nodes."""
        there = self.listing(f"artifacts/{ref.stage}/{ref.key}/{manifest['attempt']}")
        sizes = {path.split(f"/{manifest['attempt']}/", 1)[1]: size for path, (size, _) in there.items()}
        for name, expected in manifest["files"].items():
            if problem := _size_problem(sizes.get(name), expected):
                raise CorruptArtifact(f"artifact {ref}: file {name} is {problem}", ref)

    def has(self, ref: Ref) -> bool:
        """Whether the artifact is committed, by its manifest alone; nothing is read but that."""
        try:
            self.manifest(ref)
        except CorruptArtifact:
            return False
        return True

    def manifests(self, stage: str, *, limit: int) -> list[dict[str, Any]]:
        """Manifests of some of a stage's artifacts; whole ones, in no particular order."""
        folders = [f"{folder}/{MANIFEST}" for folder in self._listing(self._at("artifacts", *stage.split("/")))[:limit]]
        contents = self._fs.cat(folders, on_error="omit") if folders else {}
        found = []
        for content in contents.values():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                manifest = json.loads(content)
                manifest["metrics"]["seconds"], manifest["metrics"]["units"]
                found.append(manifest)
        return found

    def _content(self, path: str) -> bytes | None:
        """A file's bytes, None when there is none. Not `exists`, which takes any failure for an answer."""
        try:
            return bytes(self._fs.cat_file(path))
        except FileNotFoundError:
            return None

    def manifest(self, ref: Ref) -> dict[str, Any]:
        """What was recorded when the artifact was committed: files with sizes and digests, spec, inputs, facts, metrics.

        Raises:
            MissingArtifact: when there is none.
            CorruptArtifact: when it is damaged, or names files outside the artifact.
        """
        path = self._at("artifacts", ref.stage, ref.key, MANIFEST)
        content = self._content(path)
        if content is None:
            raise MissingArtifact(ref)
        try:
            manifest = json.loads(content)
            names = [str(manifest["attempt"]), *(name for name, file in manifest["files"].items() if file["sha256"])]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptArtifact(f"the manifest of artifact {ref} is damaged; it must be computed again", ref) from error
        if not all(_is_inside(name) for name in names):
            raise CorruptArtifact(f"the manifest of artifact {ref} names files outside of it; it must be computed again", ref)
        return dict(manifest)

    # -- reading --------------------------------------------------------------------------------------

    def local_path(self, ref: Ref, name: str) -> Path:
        """A local file with the artifact's bytes, verified against the manifest; safe to memory-map.

        Raises:
            CorruptArtifact: when size or digest differ from what was committed.
        """
        manifest = self.manifest(ref)
        path = self._verified_path(ref, manifest, name)
        note_read(str(path), manifest["files"][name]["size"])
        return path

    def _verified_path(self, ref: Ref, manifest: Mapping[str, Any], name: str) -> Path:
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
            for _ in range(FETCHES):  # no copy, or a damaged one: the remote file decides
                if not problem or not self._fetch(remote, path, expected["size"]):
                    break
                problem = self._problem(path, expected)
            if problem:
                path.unlink(missing_ok=True)
                if self._is_sound_there(remote, expected):
                    raise RunError(f"copies in {self._cache} do not last or are not what was written; see MEMLIB_CACHE")
        if problem:
            raise CorruptArtifact(f"artifact {ref}: file {name} is {problem}", ref)
        return path

    def _is_sound_there(self, remote: str, expected: Mapping[str, Any]) -> bool:
        try:
            return bool(self._digest_there(remote) == expected["sha256"])
        except FileNotFoundError:
            return False

    def _problem(self, path: Path, expected: Mapping[str, Any]) -> str:
        """What is wrong with a file, "" when it is as it was committed; each file is hashed once a process."""
        try:
            stat = path.stat()
        except FileNotFoundError:
            return _size_problem(None, expected)
        mark = f"{expected['sha256']}:{stat.st_size}:{stat.st_mtime_ns}"
        if self._verified.get(str(path)) == mark:
            return ""
        if problem := _size_problem(stat.st_size, expected):
            return problem
        if file_digest(path) != expected["sha256"]:
            return "damaged (its sha256 differs from the manifest)"
        self._verified[str(path)] = mark
        return ""

    def _fetch(self, remote: str, path: Path, size: int) -> bool:
        """Copies a remote file into the cache, which only its owner can read; False when there is none."""
        self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_room(size)
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
        try:
            part.touch(mode=0o600)
            self._fs.get_file(remote, str(part))
            part.replace(path)
        except FileNotFoundError:
            return False
        finally:
            part.unlink(missing_ok=True)
        return True

    def _keep_copies(self, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        """What was made here need not be fetched again: it goes into the cache of verified copies."""
        with contextlib.suppress(OSError):  # a full disk; then it is fetched
            self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._make_room(sum(int(file["size"]) for file in files.values()))
            for name, file in files.items():
                part = self._cache / f"{uuid.uuid4().hex}.part"
                shutil.move(folder / name, part)
                part.chmod(0o600)
                part.replace(self._cache / str(file["sha256"]))

    def _make_room(self, size: int) -> None:
        """Removes the oldest copies; other processes may do the same at the same time."""
        copies = []
        for path in self._cache.iterdir():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                if path.suffix != ".part":
                    copies.append((stat.st_mtime, stat.st_size, path))
                elif time.time() - stat.st_mtime > FETCH_SECONDS:  # of a process that was killed
                    path.unlink()
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
            try:
                digest = self._digest_there(self._at("artifacts", ref.stage, ref.key, manifest["attempt"], name))
            except FileNotFoundError:
                found.append(f"file {name} is missing")
                continue
            if digest != expected["sha256"]:
                found.append(f"file {name} is damaged (its sha256 differs from the manifest)")
                if not self.is_local:  # a good copy here must not hide it from the next run
                    (self._cache / str(expected["sha256"])).unlink(missing_ok=True)
        return found

    def _digest_there(self, path: str) -> str:
        """sha256 of a file where it is, read piece by piece so that each can be tried again."""
        digest, size = hashlib.sha256(), int(self._fs.info(path)["size"])
        for start in range(0, size, PIECE_BYTES):
            digest.update(self._fs.cat_file(path, start=start, end=min(size, start + PIECE_BYTES)))
        return digest.hexdigest()

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
        self,
        ref: Ref,
        *,
        spec: Any = None,
        inputs: Mapping[str, Any] | None = None,
        secret: bool = False,
        units: float = 1.0,
    ) -> Iterator[Attempt]:
        """Makes an artifact: fill `attempt.folder` inside the block; it is committed when the block ends well.

        Racing writers each fill a folder of their own; the first to commit wins and the other's files go away.

        Args:
            ref: the artifact's address.
            spec: what the stage was configured by, kept in the manifest (plain JSON).
            inputs: keys of what was read, kept in the manifest.
            secret: whether the files hold private content (training images, canaries): local files get mode 600.
            units: how much work it is, in what the stage counts (examples, steps); relates its cost to others'.
        """
        name = uuid.uuid4().hex[:12]
        target = self._at("artifacts", ref.stage, ref.key, name)
        folder = Path(target) if self.is_local else Path(tempfile.mkdtemp(prefix="memlib-"))
        folder.mkdir(parents=True, exist_ok=True, mode=0o700 if secret else 0o755)
        attempt = Attempt(folder, ref)
        try:
            with measuring() as usage:
                yield attempt
            files = _describe(folder, secret=secret)
            if not self.is_local:  # at once, as many small files cost a round trip each
                self._fs.put([str(folder / file) for file in files], [f"{target}/{file}" for file in files])
            record = {
                "stage": ref.stage,
                "key": ref.key,
                "attempt": name,
                "files": files,
                "secret": secret,
                "spec": spec,
                "inputs": dict(inputs or {}),
                "facts": attempt.facts,
                "metrics": usage.taken() | {"bytes_out": sum(file["size"] for file in files.values()), "units": units},
                "log": self.keep_log(ref, name),
                "host": socket.gethostname(),
                "finished": time.time(),
            }
            won = self._commit(self._at("artifacts", ref.stage, ref.key, MANIFEST), record, secret=secret)
        except (StoreUnreachable, StoreRefused):
            raise  # it would not let us clean up either
        except BaseException:
            if not self._is_named(ref, name):
                self._remove(target)
            raise
        else:
            if won and not self.is_local:
                self._keep_copies(folder, files)
        finally:
            if not self.is_local:
                shutil.rmtree(folder, ignore_errors=True)
        if not won:
            self._remove(target)
        if attempt.resumes:
            self.drop_resume(ref.key)

    def _is_named(self, ref: Ref, attempt: str) -> bool:
        """Whether the manifest names this attempt: its writing may have been interrupted after it was done."""
        try:
            return bool(self.manifest(ref)["attempt"] == attempt)
        except CorruptArtifact:
            return False

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
                return Path(path).read_bytes() == data  # ours: on NFS the answer of a call that was repeated
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                part.replace(path)  # the last writer wins, as below
            finally:
                part.unlink(missing_ok=True)
            return True
        try:
            self._fs.pipe_file(path, data, mode="create")
        except Exception as error:
            if is_taken(error):  # by somebody else, or by us: the answer may have been lost and the call repeated
                return bool(self._fs.cat_file(path) == data)
            if not is_unsupported(error):
                raise
            # without it the last writer wins: a manifest is replaced as a whole, and no attempt's files are taken away
            self._fs.pipe_file(path, data)
        return True

    def keep_log(self, ref: Ref, attempt: str) -> str | None:
        """Publishes what was printed while it was recorded; returns its path below the root, None without any."""
        text = recorded()
        if not text:
            return None
        path = f"logs/{ref.stage}/{ref.key}/{attempt}.log"
        with tempfile.NamedTemporaryFile("w", suffix=".log", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            self.publish(path, Path(file.name), secret=True)
        return path

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
        try:
            for file in files:
                self._fs.put_file(str(folder / file), f"{target}/{file}")
                if self.is_local:
                    os.chmod(f"{target}/{file}", 0o600)
            self._commit(f"{target}/{MANIFEST}", {"files": files}, secret=True)
        except FileNotFoundError:
            return  # another driver has committed the artifact, and with that dropped what was unfinished
        self._prune_resume(key)

    def _prune_resume(self, key: str) -> None:
        """Drops all but the newest states; another driver may be writing one, or doing the same."""
        base = f"resume/{key}"
        there = self.listing(base)
        written: dict[str, float] = {}
        for path, (_, when) in there.items():
            state = f"{base}/{path.removeprefix(f'{base}/').split('/')[0]}"
            written[state] = max(when, written.get(state, 0.0))
        whole = sorted(state for state in written if f"{state}/{MANIFEST}" in there)
        half = [state for state in written if state not in whole and written[state] < time.time() - HALF_WRITTEN_SECONDS]
        for old in [*whole[:-KEPT_RESUME_STATES], *half]:
            with contextlib.suppress(OSError):
                self._remove(self._at(old))

    def load_resume(self, key: str, folder: Path) -> bool:
        """Copies the newest verified unfinished state into `folder`; False when there is none."""
        for state in sorted(self._listing(self._at("resume", key)), reverse=True):
            with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
                files = json.loads(self._fs.cat_file(f"{state}/{MANIFEST}"))["files"]
                if not all(_is_inside(name) for name in files):
                    raise ValueError(f"{state} names files outside of it")
                for name, expected in files.items():
                    copy = folder / name
                    self._fs.get_file(f"{state}/{name}", str(copy))
                    if file_digest(copy) != expected["sha256"]:
                        raise ValueError(f"{state}/{name} is damaged")
                return True
        return False

    def drop_resume(self, key: str) -> None:
        """Removes the unfinished state of a stage that has committed; another driver may be at it, too."""
        with contextlib.suppress(OSError):
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
        return self._content(self._at(path))

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


def _setting(name: str, default: float) -> float:
    """A number from the environment."""
    said = os.environ.get(name, "")
    try:
        found = float(said) if said else float(default)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise UserError(f"{name} is {said!r}; it must be a number of at least 0")
    return found


def _size_problem(size: int | None, expected: Mapping[str, Any]) -> str:
    if size is None:
        return "missing"
    return "" if size == expected["size"] else f"damaged ({size} bytes, committed with {expected['size']})"


def _is_inside(name: str) -> bool:
    """Whether a file's name stays in the folder it is given for."""
    path = PurePosixPath(name)
    return bool(name) and not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _open_store(uri: str, cache: str | None, cache_bytes: int | None, patience: float | None) -> Store:
    return Store(uri, cache=cache, cache_bytes=cache_bytes, patience=patience)


def _describe(folder: Path, *, secret: bool) -> dict[str, dict[str, Any]]:
    files = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if secret:
            path.chmod(0o600)
        files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": file_digest(path)}
    if not files:
        raise RunError(f"nothing was written to {folder}")
    return files
