"""Committed artifacts: each is named by its key, made once, and verified before it is read."""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memlib.errors import CorruptArtifact, MissingArtifact, RunError, StoreRefused, StoreUnreachable
from memlib.logs import recorded
from memlib.provenance import content_digest
from memlib.records import MANIFEST, ArtifactRecord, FileRecord, Unreadable, parse, sealed
from memlib.store.backend import Damaged
from memlib.store.place import Place
from memlib.store.ranges import RangeFile
from memlib.store.refs import Attempt, Ref
from memlib.store.resume import ResumeStates
from memlib.usage import measuring, note_read

LET_GO = "let-go.json"  # beside an artifact's files: names of those that were taken away once they had been read


class Artifacts:
    """The artifacts of a store, in artifacts/<stage>/<key>/.

    Args:
        place: the store's.
        resume: states to resume from, which go when their artifact is committed.
    """

    def __init__(self, place: Place, resume: ResumeStates) -> None:
        self._place, self._backend, self._resume = place, place.backend, resume
        self._known: dict[Ref, ArtifactRecord] = {}  # of a store that is far away

    # -- finding --------------------------------------------------------------------------------------

    def manifest(self, ref: Ref) -> ArtifactRecord:
        """Return what was recorded when the artifact was committed; of a remote store as it was when it was asked for first.

        Raises:
            MissingArtifact: when there is none.
            CorruptArtifact: when it is damaged, or names files outside the artifact.
        """
        if ref in self._known:
            return self._known[ref]
        try:
            content = self._backend.read(f"{ref.folder}/{MANIFEST}")
            if content is None:
                raise MissingArtifact(ref)
            return self._noted(ref, parse(ArtifactRecord, content))
        except Unreadable as error:
            problem = f"the manifest of artifact {ref} is damaged ({error}); it must be computed again"
            raise CorruptArtifact(problem, ref) from error

    def manifests_of(self, refs: Iterable[Ref]) -> dict[Ref, ArtifactRecord]:
        """Return the manifests of those artifacts that have a whole one; on S3 they are asked for side by side."""
        wanted = list(dict.fromkeys(refs))
        found = {ref: self._known[ref] for ref in wanted if ref in self._known}
        paths = {f"{ref.folder}/{MANIFEST}": ref for ref in wanted if ref not in found}
        for path, content in self._backend.read_together(list(paths)).items():
            with contextlib.suppress(Unreadable):
                found[paths[path]] = self._noted(paths[path], parse(ArtifactRecord, content))
        return found

    def _noted(self, ref: Ref, manifest: ArtifactRecord) -> ArtifactRecord:
        if not self._backend.is_local:
            self._known[ref] = manifest
        return manifest

    def manifests(self, stage: str, *, limit: int) -> list[ArtifactRecord]:
        """Return the manifests of some of a stage's artifacts; whole ones, in no particular order."""
        names = self._place.names(f"artifacts/{stage}")[:limit]
        contents = self._backend.read_together([f"artifacts/{stage}/{name}/{MANIFEST}" for name in names])
        found = []
        for content in contents.values():
            with contextlib.suppress(Unreadable):
                found.append(parse(ArtifactRecord, content))
        return found

    def has(self, ref: Ref) -> bool:
        """Return whether the artifact is committed, by its manifest alone; nothing is read but that."""
        try:
            self.manifest(ref)
        except CorruptArtifact:
            return False
        return True

    def lookup(self, stage: str, key: str) -> Ref | None:
        """Return the committed artifact of this stage and key, None when there is none.

        In a folder it is checked to the last byte. Of a remote one only the presence and sizes of its files are: their bytes
        are checked by whoever opens them, once a node.

        Raises:
            CorruptArtifact: when a manifest is there but it, or a file it names, is damaged.
        """
        ref = Ref(stage, key)
        self._known.pop(ref, None)
        try:
            manifest = self.manifest(ref)
        except MissingArtifact:
            return None
        try:
            self._check_there(ref, manifest, manifest.files)
        except CorruptArtifact:
            gone = self.let_go_of(ref)
            if not gone:
                raise
            kept = {name: file for name, file in manifest.files.items() if name not in gone}
            self._check_there(ref, manifest, kept)
        return ref

    def _check_there(self, ref: Ref, manifest: ArtifactRecord, files: Mapping[str, FileRecord]) -> None:
        try:
            self._backend.check_there(f"{ref.folder}/{manifest.attempt}", files)
        except Damaged as error:
            raise CorruptArtifact(f"artifact {ref}: {error}", ref) from error
        for name in files if self._backend.is_local else ():
            self._verified(ref, manifest, name)

    # -- reading --------------------------------------------------------------------------------------

    def local_path(self, ref: Ref, name: str) -> Path:
        """Return a local file with the artifact's bytes, verified against the manifest; safe to memory-map.

        Raises:
            CorruptArtifact: when size or digest differ from what was committed.
        """
        manifest = self.manifest(ref)
        path = self._verified(ref, manifest, name)
        note_read(str(path), manifest.files[name].size)
        return path

    def opened(self, ref: Ref, name: str) -> RangeFile:
        """Return a file of an artifact of which but some parts are read, where they are; who reads them checks them.

        Raises:
            CorruptArtifact: when there is no whole manifest.
        """
        manifest = self.manifest(ref)
        path = f"{ref.folder}/{manifest.attempt}/{name}"

        def read(start: int, end: int) -> bytes:
            try:
                return self._backend.read_range(path, start, end)
            except FileNotFoundError as error:
                raise CorruptArtifact(f"artifact {ref}: file {name} is missing", ref) from error

        return RangeFile(read, manifest.files[name].size)

    def _verified(self, ref: Ref, manifest: ArtifactRecord, name: str) -> Path:
        if name not in manifest.files:
            raise KeyError(f"artifact {ref} has no file {name!r}; it has {sorted(manifest.files)}")
        try:
            return self._backend.local(f"{ref.folder}/{manifest.attempt}/{name}", manifest.files[name])
        except Damaged as error:
            self._known.pop(ref, None)
            why = "was let go; run its audit again" if name in self.let_go_of(ref) else f"is {error}"
            raise CorruptArtifact(f"artifact {ref}: file {name} {why}", ref) from error

    def problems(self, ref: Ref) -> list[str]:
        """Return what is wrong with an artifact's files, read to the last byte where they are, not from a copy.

        Raises:
            CorruptArtifact: when there is no whole manifest.
        """
        self._known.pop(ref, None)
        manifest, found = self.manifest(ref), []
        for name, expected in manifest.files.items():
            try:
                digest = self._backend.digest(f"{ref.folder}/{manifest.attempt}/{name}")
            except FileNotFoundError:
                if name not in self.let_go_of(ref):
                    found.append(f"file {name} is missing")
                continue
            if digest != expected.sha256:
                found.append(f"file {name} is damaged (its sha256 differs from the manifest)")
                self._backend.forget(expected)
        return found

    # -- letting go ----------------------------------------------------------------------------------

    def let_go(self, ref: Ref, names: Collection[str]) -> int:
        """Take some files of an artifact away, which stays committed without them; return how many bytes that were.

        Whoever needs them makes the artifact anew: see `let_go_of`.
        """
        manifest = self.manifest(ref)
        folder, gone = f"{ref.folder}/{manifest.attempt}", self.let_go_of(ref)
        going = sorted(name for name in names if name in manifest.files and name not in gone)
        if going:
            self._place.publish(f"{folder}/{LET_GO}", json.dumps(sorted({*gone, *going})).encode(), secret=True)
        for name in going if not self._backend.is_local else names:  # who was killed over it has left some
            self._backend.remove(f"{folder}/{name}")
            self._backend.forget(manifest.files[name])
        return sum(manifest.files[name].size for name in going)

    def is_whole(self, ref: Ref) -> bool:
        """Return whether an artifact is committed, as far as its manifest tells, and no file of it was let go."""
        self._known.pop(ref, None)
        return self.has(ref) and not self.let_go_of(ref)

    def let_go_of(self, ref: Ref) -> frozenset[str]:
        """Return the files that were taken away from an artifact; none where there is no artifact."""
        try:
            content = self._backend.read(f"{ref.folder}/{self.manifest(ref).attempt}/{LET_GO}")
            return frozenset(json.loads(content)) if content is not None else frozenset()
        except (CorruptArtifact, Unreadable, ValueError, TypeError):  # then they are missing
            return frozenset()

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
        """Make an artifact: fill `attempt.folder` inside the block; it is committed when the block ends well.

        Racing writers each fill a folder of their own; the first to commit wins and the other's files go away. Nobody but
        the owner (or the group, by the store's mode) can read any of it, at any time.

        Args:
            ref: the artifact's address.
            spec: what the stage was configured by, kept in the manifest (plain JSON).
            inputs: keys of what was read, kept in the manifest.
            units: how much work it is, in what the stage counts (examples, steps); relates its cost to others'.
            provenance: what else the manifest says of how it was made, see memlib.provenance.
        """
        self._place.begin()
        name = uuid.uuid4().hex[:12]
        target = f"{ref.folder}/{name}"
        with self._backend.filling(target, self._place.permissions()) as folder:
            attempt = Attempt(folder, ref)
            try:
                with measuring() as usage:
                    yield attempt
                files = self._described(folder)
                self._backend.send(folder, target, files)
                record = {
                    "stage": ref.stage,
                    "key": ref.key,
                    "attempt": name,
                    "files": {file: described.model_dump() for file, described in files.items()},
                    "secret": True,
                    "spec": spec,
                    "inputs": dict(inputs or {}),
                    "facts": attempt.facts,
                    "metrics": usage.taken() | {"bytes_out": sum(file.size for file in files.values()), "units": units},
                    "log": self.keep_log(ref, name),
                    "host": socket.gethostname(),
                    "finished": time.time(),
                    "content": content_digest(folder, files, provenance or {}),
                } | dict(provenance or {})
                # as secret as the files: from a file's digest its content can be guessed, where little is unknown
                data = json.dumps(sealed(record), indent=1, sort_keys=True).encode()
                won = self._place.create(f"{ref.folder}/{MANIFEST}", data)
            except (StoreUnreachable, StoreRefused):
                raise  # it would not let us clean up either
            except BaseException:
                if not self._is_named(ref, name):
                    self._backend.remove(target)
                raise
            self._known.pop(ref, None)
            if won:
                self._backend.keep(folder, files)
        if not won:
            self._backend.remove(target)
        if attempt.resumes:
            self._resume.drop(ref.key)

    def _described(self, folder: Path) -> dict[str, FileRecord]:
        """Return size and digest of each file below a folder, which from here on is as open as the store's mode says."""
        files, bits = self._place.describe(folder), self._place.permissions()
        if not files:
            raise RunError(f"nothing was written to {folder}")
        for file in files:
            (folder / file).chmod(bits.file)
        for inner in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
            inner.chmod(bits.folder)
        return files

    def _is_named(self, ref: Ref, attempt: str) -> bool:
        """Return whether the manifest names this attempt: its writing may have been interrupted after it was done."""
        try:
            return self.manifest(ref).attempt == attempt
        except CorruptArtifact:
            return False

    def keep_log(self, ref: Ref, attempt: str) -> str | None:
        """Publish what was printed while it was recorded; return its path below the root, None without any."""
        text = recorded()
        if not text:
            return None
        path = f"logs/{ref.stage}/{ref.key}/{attempt}.log"
        self._place.publish(path, text.encode("utf-8", "backslashreplace"), secret=True)
        return path

    def discard(self, ref: Ref) -> None:
        """Take an artifact out of the store, manifest first, so that it is computed again.

        Other attempts at it, which may be under way, are left alone.
        """
        self._known.pop(ref, None)
        try:
            attempt = self.manifest(ref).attempt
        except CorruptArtifact:
            attempt = ""
        self._known.pop(ref, None)
        self._backend.remove(f"{ref.folder}/{MANIFEST}")
        if attempt:
            self._backend.remove(f"{ref.folder}/{attempt}")
