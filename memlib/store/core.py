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
import errno
import hashlib
import json
import os
import shutil
import socket
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import fsspec
from fsspec.implementations.local import LocalFileSystem

import memlib
from memlib.errors import CorruptArtifact, MissingArtifact, RunError, StoreRefused, StoreUnreachable, UserError
from memlib.identity import file_digest
from memlib.logs import recorded
from memlib.patience import PatientFileSystem, is_taken, is_unsupported
from memlib.private import (
    MODES,
    PRIVATE,
    Mode,
    Permissions,
    copy_file,
    make_folder,
    mode_like,
    permissions,
    read_plain,
    scratch,
    user_folder,
    write_file,
)
from memlib.provenance import content_digest
from memlib.records import (
    MOST_BYTES,
    NAME,
    ArtifactRecord,
    MarkerRecord,
    ResumeRecord,
    RunRecord,
    Unreadable,
    parse,
    parsed,
    sealed,
)
from memlib.store.copies import Copies
from memlib.usage import measuring, note_read

MANIFEST = "manifest.json"
MARKER = "memlib-store.json"
FORMAT = 1  # of the layout above; raised when an earlier memlib must not write here
KEPT_RESUME_STATES = 2
PIECE_BYTES = 64 * 2**20
FETCHES = 3  # other processes may make room for theirs by taking ours
HALF_WRITTEN_SECONDS = 3600.0  # after which half a state to resume from, or half a file, is nobody's work
PROBE_SECONDS = 10.0  # a store that cannot be reached at the start is most often mistyped
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)  # file systems without hard links
PEOPLES = ("results/", "runs/")  # folders that are open where the mode says so
HARMLESS = ("lost+found", "tmp")  # beside hidden files, what an empty folder may hold


class Facts(dict[str, Any]):
    """What was noted of an artifact; what is not there is damage, as only its maker writes here."""

    def __init__(self, content: Mapping[str, Any], ref: "Ref") -> None:
        super().__init__(content)
        self._ref = ref

    def __missing__(self, name: str) -> NoReturn:
        raise CorruptArtifact(f"the manifest of artifact {self._ref} lacks {name!r}; it must be computed again", self._ref)


@dataclass(frozen=True)
class Ref:
    """The address of a committed artifact: which stage made it, and its content key."""

    stage: str
    key: str

    def __post_init__(self) -> None:
        if not all(NAME.fullmatch(part) for part in (*self.stage.split("/"), self.key)):
            raise CorruptArtifact(f"{self.stage!r}/{self.key!r} names no artifact")

    @classmethod
    def parse(cls, name: str) -> "Ref":
        """Return the reference whose text this is.

        Raises:
            CorruptArtifact: when it is none.
        """
        stage, _, key = str(name).rpartition("/")
        return cls(stage, key)

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
    progress: Callable[[int, int], None] = lambda done, total: None
    """Called with (done, total) as the work goes on; whoever runs the stage shows it."""
    warn: Callable[[str], None] = print
    """Called with a line that must be seen."""

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
        most = int(_setting("MEMLIB_CACHE_GB", 50) * 2**30) if cache_bytes is None else cache_bytes
        self._copies = Copies(Path(cache or os.environ.get("MEMLIB_CACHE") or user_folder("cache") / "artifacts"), most)
        self._patience = _setting("MEMLIB_STORE_PATIENCE", 120) if patience is None else patience
        if self.is_local:
            self.uri = self._root  # absolute, so that it means the same in every process
        else:
            if "s3" in self._fs.protocol:
                _parse_times_fast(self._fs)
            self._fs = PatientFileSystem(self._fs, self.uri, self._patience)
        self._verified: dict[str, str] = {}
        self._marked: MarkerRecord | None = None

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

    def marker(self) -> MarkerRecord | None:
        """What the store says of itself, None where nothing says that this is one.

        Raises:
            UserError: when a later memlib made it, or its marker is damaged.
        """
        if self._marked is None:
            content = self._content(self._at(MARKER))
            if content is None:
                return None
            try:
                found = parse(MarkerRecord, content)
            except Unreadable as error:
                raise UserError(f"{self.uri}/{MARKER} is damaged ({error}); put it back, or see memlib adopt") from error
            if found.format > FORMAT or found.mode not in MODES:
                raise UserError(f"the store {self.uri} was made by a later memlib (format {found.format}); update memlib")
            self._marked = found
        return self._marked

    def check_known(self) -> None:
        """Refuses what is no store, so that nobody reads a mistyped folder as one in which all is well.

        Raises:
            UserError: with what is there instead.
        """
        if self.marker() is None:
            there = self._entries()
            if there is None:
                raise UserError(f"there is no store at {self.uri}; memlib run makes one")
            self._refuse_unmarked(there)

    def begin(self) -> None:
        """Marks an empty place as a store, before the first write.

        Raises:
            UserError: when the place holds other things.
        """
        if self.marker() is not None:
            return
        there = self._entries() or []
        if there and self.marker() is None:  # not by another process meanwhile
            self._refuse_unmarked(there)
        self._mark(None)

    def adopt(self, mode: Mode | None = None) -> int:
        """Marks a store that a memlib of before markers made; returns how many runs and artifacts were seen in it.

        Raises:
            UserError: when nothing in it is memlib's.
        """
        if self.marker() is not None:
            raise UserError(f"{self.uri} is a store already; there is nothing to adopt")
        seen = 0
        for path in self.listing("artifacts"):
            with contextlib.suppress(CorruptArtifact):
                if path.endswith(f"/{MANIFEST}"):
                    stage, _, key = path.removeprefix("artifacts/").removesuffix(f"/{MANIFEST}").rpartition("/")
                    self.manifest(Ref(stage, key))
                    seen += 1
        for path in self.listing("runs"):
            with contextlib.suppress(Unreadable):
                if path.endswith(f"/{MANIFEST}"):
                    parse(RunRecord, self.published(path) or b"")
                    seen += 1
        if not seen:
            raise UserError(f"{self.uri} holds no run and no artifact of memlib's; it is no store")
        self._mark(mode)
        return seen

    def _mark(self, mode: Mode | None) -> None:
        root = Path(self._root)
        if mode is None:
            mode = _mode_setting() or (mode_like(root) if self.is_local else "private")
        if self.is_local:
            make_folder(root, permissions(mode, secret=False).folder)
            make_folder(root / "tmp", permissions(mode, secret=True).folder)  # where the marker itself is written first
        said = {"format": FORMAT, "id": uuid.uuid4().hex, "mode": mode, "made": time.time(), "software": memlib.__version__}
        self._marked = None
        self._create(self._at(MARKER), json.dumps(said, indent=1).encode(), permissions(mode, secret=False))

    def _entries(self) -> list[str] | None:
        """Names in the place where the store is or would be, but for hidden ones; None when there is no such place."""
        if self.is_local and Path(self.root).is_file():
            raise UserError(f"{self.uri} is a file; a store is a folder")
        self._fs.invalidate_cache()
        try:
            found = [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(self.root, detail=False)]
        except FileNotFoundError:
            return None
        return sorted(name for name in found if not name.startswith(".") and name not in HARMLESS)

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

    def _permissions(self, *, secret: bool = True) -> Permissions:
        return permissions(self.mode, secret=secret) if self.is_local else PRIVATE

    def check_writable(self) -> None:
        """Marks the store and writes a probe, so that a read-only or unreachable one is found before any work.

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
        self._sweep(now)

    def clock(self) -> float:
        """Seconds since 1970 by the clock that dates the store's files, which need not be this machine's."""
        if not self.is_local:
            probe = self._at(f".probe-{uuid.uuid4().hex}")
            self._fs.pipe_file(probe, b"memlib")
            self._fs.invalidate_cache()
            try:
                return _written(self._fs.info(probe))
            finally:
                self._fs.rm_file(probe)
        part = self._part()
        write_file(part, b"memlib", PRIVATE.file)
        try:
            return part.stat().st_mtime
        finally:
            part.unlink(missing_ok=True)

    def _part(self) -> Path:
        """The path of a file that is being written, in the same file system as what it is for."""
        folder = Path(self._at("tmp"))
        make_folder(folder, self._permissions().folder)
        return folder / f"{uuid.uuid4().hex}.part"

    def _sweep(self, now: float) -> None:
        """Removes files that killed processes were writing."""
        if self.is_local:
            for part in Path(self._at("tmp")).glob("*.part"):
                with contextlib.suppress(OSError):
                    if part.lstat().st_mtime < now - HALF_WRITTEN_SECONDS:
                        part.unlink()

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
            with contextlib.suppress(Unreadable):
                found.append(parsed(ArtifactRecord, content))
        return found

    def _content(self, path: str) -> bytes | None:
        """A file's bytes, None when there is none. Not `exists`, which takes any failure for an answer."""
        try:
            return read_plain(Path(path), MOST_BYTES) if self.is_local else bytes(self._fs.cat_file(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def manifest(self, ref: Ref) -> dict[str, Any]:
        """What was recorded when the artifact was committed: files with sizes and digests, spec, inputs, facts, metrics.

        Raises:
            MissingArtifact: when there is none.
            CorruptArtifact: when it is damaged, or names files outside the artifact.
        """
        path = self._at("artifacts", ref.stage, ref.key, MANIFEST)
        try:
            content = self._content(path)
        except OSError as error:
            if not self.is_local:
                raise
            raise CorruptArtifact(f"the manifest of artifact {ref} cannot be read ({error})", ref) from error
        if content is None:
            raise MissingArtifact(ref)
        try:
            manifest = parsed(ArtifactRecord, content)
        except Unreadable as error:
            problem = f"the manifest of artifact {ref} is damaged ({error}); it must be computed again"
            raise CorruptArtifact(problem, ref) from error
        return manifest | {"facts": Facts(manifest["facts"], ref)}

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
            path = self._copies.path(expected)
            problem = self._problem(path, expected)
            for _ in range(FETCHES):  # no copy, or a damaged one: the remote file decides
                if not problem or not self._fetch(remote, expected):
                    break
                problem = self._problem(path, expected)
            if problem:
                self._copies.forget(expected)
                if self._is_sound_there(remote, expected):
                    folder = self._copies.folder
                    raise RunError(f"copies in {folder} do not last or are not what was written; see MEMLIB_CACHE")
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

    def _fetch(self, remote: str, expected: Mapping[str, Any]) -> bool:
        return self._copies.fetch(lambda part: self._fs.get_file(remote, str(part)), expected)

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
                    self._copies.forget(expected)
        return found

    def _digest_there(self, path: str) -> str:
        """sha256 of a file where it is, read piece by piece so that each can be tried again."""
        digest, size = hashlib.sha256(), int(self._fs.info(path)["size"])
        for start in range(0, size, PIECE_BYTES):
            digest.update(self._fs.cat_file(path, start=start, end=min(size, start + PIECE_BYTES)))
        return digest.hexdigest()

    def listing(self, folder: str) -> dict[str, tuple[int, float]]:
        """All files below a folder of the store by their path below its root: (bytes, when they were written).

        Links are not followed, nor listed: what they lead to is not the store's.
        """
        if self.is_local:
            base = self._plain_path(folder)
            if base is None:
                return {}
            if base.is_file():
                facts = base.stat()
                return {folder: (facts.st_size, facts.st_mtime)}
            return dict(_files_below(str(base), folder))
        prefix = len(self._at("")) if self._root else 0
        if "s3" in self._fs.protocol:
            return {path[prefix:]: facts for path, facts in self._s3_objects(self._at(folder))}
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(self._at(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {path[prefix:]: (int(info["size"]), _written(info)) for path, info in found.items()}

    def _s3_objects(self, path: str) -> Iterator[tuple[str, tuple[int, float]]]:
        """List objects below a path as s3fs's `find` does, which takes three times as long for 20,000 as its requests."""
        bucket, key, _ = self._fs.split_path(path)
        more: dict[str, str] = {}
        while True:
            page = self._fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=key, **more)
            for entry in page.get("Contents", ()):
                name = str(entry["Key"])
                if (name == key or name.startswith(f"{key}/")) and not name.endswith("/"):
                    yield f"{bucket}/{name}", (int(entry["Size"]), _written(entry))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def names(self, folder: str) -> list[str]:
        """Names directly below a folder of the store."""
        return [path.rstrip("/").rpartition("/")[2] for path in self._listing(self._at(folder))]

    def _plain_path(self, path: str) -> Path | None:
        """A path below the local root; None where a part of it is a link."""
        at = Path(self._root)
        for part in path.split("/"):
            at = at / part
            if at.is_symlink():
                return None
        return at

    # -- writing --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def write(
        self,
        ref: Ref,
        *,
        spec: Any = None,
        inputs: Mapping[str, Any] | None = None,
        units: float = 1.0,
        provenance: Mapping[str, Any] | None = None,
    ) -> Iterator[Attempt]:
        """Makes an artifact: fill `attempt.folder` inside the block; it is committed when the block ends well.

        Racing writers each fill a folder of their own; the first to commit wins and the other's files go away. Nobody but
        the owner (or the group, by the store's mode) can read any of it, at any time.

        Args:
            ref: the artifact's address.
            spec: what the stage was configured by, kept in the manifest (plain JSON).
            inputs: keys of what was read, kept in the manifest.
            units: how much work it is, in what the stage counts (examples, steps); relates its cost to others'.
            provenance: what else the manifest says of how it was made, see memlib.provenance.
        """
        self.begin()
        name = uuid.uuid4().hex[:12]
        target = self._at("artifacts", ref.stage, ref.key, name)
        with contextlib.ExitStack() as temporary:
            if self.is_local:
                folder = Path(target)
                make_folder(folder.parent, self._permissions().folder)
                folder.mkdir(mode=PRIVATE.folder)
            else:
                folder = temporary.enter_context(scratch("attempt"))
            attempt = Attempt(folder, ref)
            try:
                with measuring() as usage:
                    yield attempt
                files = self._describe(folder)
                if not self.is_local:  # at once, as many small files cost a round trip each
                    self._fs.put([str(folder / file) for file in files], [f"{target}/{file}" for file in files])
                record = {
                    "stage": ref.stage,
                    "key": ref.key,
                    "attempt": name,
                    "files": files,
                    "secret": True,
                    "spec": spec,
                    "inputs": dict(inputs or {}),
                    "facts": attempt.facts,
                    "metrics": usage.taken() | {"bytes_out": sum(file["size"] for file in files.values()), "units": units},
                    "log": self.keep_log(ref, name),
                    "host": socket.gethostname(),
                    "finished": time.time(),
                    "content": content_digest(folder, files, provenance or {}),
                } | dict(provenance or {})
                won = self._commit(self._at("artifacts", ref.stage, ref.key, MANIFEST), record)
            except (StoreUnreachable, StoreRefused):
                raise  # it would not let us clean up either
            except BaseException:
                if not self._is_named(ref, name):
                    self._remove(target)
                raise
            if won and not self.is_local:
                self._copies.keep(folder, files)
        if not won:
            self._remove(target)
        if attempt.resumes:
            self.drop_resume(ref.key)

    def _describe(self, folder: Path) -> dict[str, dict[str, Any]]:
        """Size and digest of each file below a folder, which from here on is as open as the store's mode says."""
        files, bits = {}, self._permissions()
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            path.chmod(bits.file)
            files[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": file_digest(path)}
        if not files:
            raise RunError(f"nothing was written to {folder}")
        for inner in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
            inner.chmod(bits.folder)
        return files

    def _is_named(self, ref: Ref, attempt: str) -> bool:
        """Whether the manifest names this attempt: its writing may have been interrupted after it was done."""
        try:
            return bool(self.manifest(ref)["attempt"] == attempt)
        except CorruptArtifact:
            return False

    def _commit(self, path: str, record: Mapping[str, Any]) -> bool:
        """Writes a manifest unless there is one already: one winner, and never half a file.

        It is as secret as the files: from a file's digest its content can be guessed, where little is unknown.
        """
        return self._create(path, json.dumps(sealed(record), indent=1, sort_keys=True).encode(), self._permissions())

    def _create(self, path: str, data: bytes, bits: Permissions) -> bool:
        """Writes a file unless there is one already; whether it is ours that is there."""
        if self.is_local:
            part = self._part()
            write_file(part, data, bits.file)
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
        self.publish_bytes(path, text.encode("utf-8", "backslashreplace"), secret=True)
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
        """Removes a file or a folder with all in it; nothing behind a link."""
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not self.is_local:
                self._fs.rm(path, recursive=True)
                return
            plain = self._plain_path(path.removeprefix(self._at("")))
            if plain is None:
                raise RunError(f"{path} lies behind a link; memlib removes nothing there")
            if plain.is_dir():
                shutil.rmtree(plain)
            else:
                plain.unlink()

    # -- unfinished work ------------------------------------------------------------------------------

    def save_resume(self, key: str, step: int, folder: Path) -> None:
        """Publishes the unfinished state in `folder` as the newest of stage key `key`; drops the oldest ones."""
        base = self._at("resume", key)
        target = f"{base}/{step:012d}-{uuid.uuid4().hex[:12]}"
        files = {
            path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": file_digest(path)}
            for path in sorted(p for p in folder.rglob("*") if p.is_file())
        }
        bits = self._permissions()  # what is unfinished may hold anything
        try:
            for file in files:
                if self.is_local:
                    make_folder(Path(target, file).parent, bits.folder)
                    copy_file(folder / file, Path(target, file), bits.file)
                else:
                    self._fs.put_file(str(folder / file), f"{target}/{file}")
            self._commit(f"{target}/{MANIFEST}", {"files": files})
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
            with contextlib.suppress(FileNotFoundError, ValueError, OSError):
                content = self._content(f"{state}/{MANIFEST}")
                if content is None:
                    continue
                files = parsed(ResumeRecord, content)["files"]
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
        if not self.is_local:
            self.begin()
            target = self._at(path)
            self._fs.put_file(str(source), target)
            return str(self._fs.unstrip_protocol(target))
        return self._place(path, secret=secret, write=lambda part, bits: copy_file(source, part, bits))

    def publish_bytes(self, path: str, data: bytes, *, secret: bool = False) -> str:
        """The same for a small file that need not be on the disk."""
        if not self.is_local:
            self.begin()
            self._fs.pipe_file(self._at(path), data)
            return str(self._fs.unstrip_protocol(self._at(path)))
        return self._place(path, secret=secret, write=lambda part, bits: write_file(part, data, bits))

    def _place(self, path: str, *, secret: bool, write: Callable[[Path, int], None]) -> str:
        self.begin()
        target, bits = Path(self._at(path)), self._permissions(secret=secret)
        make_folder(target.parent, self._permissions(secret=secret or not path.startswith(PEOPLES)).folder)
        part = self._part()
        try:
            write(part, bits.file)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return str(target)

    def make_folder(self, path: str) -> str:
        """Makes a private folder below the root for others to write to, and returns its URI."""
        if self.is_local:
            make_folder(Path(self._at(path)), self._permissions().folder)
        return self._at(path)

    def drop(self, path: str) -> None:
        """Removes a folder below the root that is nobody's result."""
        self._remove(self._at(path))

    def drop_empty(self, path: str) -> None:
        """Removes folders that have become empty, from this one upwards; on S3 there are none."""
        folder = self._plain_path(path) if self.is_local else None
        while folder is not None and folder != Path(self._root):
            try:
                folder.rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # there is something in it, or it is a file
                return
            folder = folder.parent

    def published(self, path: str) -> bytes | None:
        """The bytes of a published file, None when there is none, or none that can be read."""
        try:
            return self._content(self._at(path))
        except OSError:
            if not self.is_local:
                raise
            return None

    def published_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        """The bytes of many published files by path, those that can be read; on S3 they are asked for side by side."""
        if self.is_local or not paths:
            found = {path: self.published(path) for path in paths}
            return {path: content for path, content in found.items() if content is not None}
        prefix = len(self._at(""))
        found = self._fs.cat([self._at(path) for path in paths], on_error="omit")
        return {path[prefix:]: bytes(content) for path, content in found.items()}


def _parse_times_fast(file_system: Any) -> None:
    """Make s3fs parse times with the standard library: botocore's default takes 2.8 s for those of 20,000 objects."""
    from aiobotocore.session import AioSession

    if file_system.session is None:
        file_system.session = AioSession(**file_system.kwargs)
        file_system.session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)


def _time(said: Any) -> datetime:
    try:
        return datetime.fromisoformat(said)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        found: datetime = parse_timestamp(said)
        return found


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


def _open_store(uri: str, cache: str | None, cache_bytes: int | None, patience: float | None) -> Store:
    return Store(uri, cache=cache, cache_bytes=cache_bytes, patience=patience)


def _files_below(base: str, name: str) -> Iterator[tuple[str, tuple[int, float]]]:
    """Regular files below a folder by name, with size and time; what goes away meanwhile is left out."""
    try:
        entries = list(os.scandir(base))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        with contextlib.suppress(FileNotFoundError):
            if entry.is_dir(follow_symlinks=False):
                yield from _files_below(entry.path, f"{name}/{entry.name}")
                continue
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(facts.st_mode):
                yield f"{name}/{entry.name}", (facts.st_size, facts.st_mtime)


def _mode_setting() -> Mode | None:
    said = os.environ.get("MEMLIB_STORE_MODE", "")
    found = next((mode for mode in MODES if mode == said), None)
    if said and found is None:
        raise UserError(f"MEMLIB_STORE_MODE is {said!r}; it can be {', '.join(MODES)}")
    return found
