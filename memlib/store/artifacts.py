"""Committed artifacts: each is named by its key, computed once, and verified before it is read."""

import contextlib
import json
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from memlib.errors import CorruptArtifact, MissingArtifact, RunError, StoreRefused, StoreUnreachable
from memlib.store.backend import Damaged
from memlib.store.content import contents, former_of
from memlib.store.copies import RangeFile
from memlib.store.logs import recorded
from memlib.store.place import Place
from memlib.store.records import FORMER, MANIFEST, ArtifactRecord, FileRecord, FormerRecord, Unreadable, parse, sealed
from memlib.store.refs import Attempt, Ref
from memlib.store.resume import ResumeStates
from memlib.store.usage import measuring, note_read

LET_GO = "let-go.json"  # file beside an artifact's files with the names of its evicted files


class Artifacts:
    """The artifacts of a store, in artifacts/<stage>/<key>/.

    Args:
        place: the folder or prefix of the store.
        resume: the store's resume states, which are deleted once their artifact is committed.
    """

    def __init__(self, place: Place, resume: ResumeStates) -> None:
        self._place, self._backend, self._resume = place, place.backend, resume
        self._known: dict[Ref, ArtifactRecord] = {}  # manifests read from a remote store

    # -- finding --------------------------------------------------------------------------------------

    def manifest(self, ref: Ref) -> ArtifactRecord:
        """Return the manifest of an artifact; manifests of a remote store are cached after the first read.

        Raises:
            MissingArtifact: when the artifact has no manifest.
            CorruptArtifact: when the manifest is damaged, or names files outside the artifact.
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
        """Return the manifests of the given artifacts, except missing or damaged ones; on S3 they are read concurrently."""
        wanted = list(dict.fromkeys(refs))
        manifests = {ref: self._known[ref] for ref in wanted if ref in self._known}
        paths = {f"{ref.folder}/{MANIFEST}": ref for ref in wanted if ref not in manifests}
        for path, content in self._backend.read_together(list(paths)).items():
            with contextlib.suppress(Unreadable):
                manifests[paths[path]] = self._noted(paths[path], parse(ArtifactRecord, content))
        return manifests

    def _noted(self, ref: Ref, manifest: ArtifactRecord) -> ArtifactRecord:
        if not self._backend.is_local:
            self._known[ref] = manifest
        return manifest

    def manifests(self, stage: str, *, limit: int) -> list[ArtifactRecord]:
        """Return the intact manifests among up to `limit` artifacts of a stage, in no particular order."""
        names = self._place.names(f"artifacts/{stage}")[:limit]
        contents = self._backend.read_together([f"artifacts/{stage}/{name}/{MANIFEST}" for name in names])
        manifests = []
        for content in contents.values():
            with contextlib.suppress(Unreadable):
                manifests.append(parse(ArtifactRecord, content))
        return manifests

    def has(self, ref: Ref) -> bool:
        """Return whether the artifact is committed; only its manifest is read."""
        try:
            self.manifest(ref)
        except CorruptArtifact:
            return False
        return True

    def lookup(self, stage: str, key: str) -> Ref | None:
        """Return the committed artifact of this stage and key, or None if there is none.

        In a local store all files are verified by digest. In a remote store only their presence and sizes are checked; their
        content is verified when they are opened, once per node.

        Raises:
            CorruptArtifact: when the artifact's manifest, or a file that it names, is damaged.
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
            evicted = self.evicted_files(ref)
            if not evicted:
                raise
            kept = {name: file for name, file in manifest.files.items() if name not in evicted}
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
        """Return the path of a local copy of an artifact's file, verified against the manifest; safe to memory-map.

        Raises:
            CorruptArtifact: when the file's size or digest differs from what was committed.
        """
        manifest = self.manifest(ref)
        path = self._verified(ref, manifest, name)
        note_read(str(path), manifest.files[name].size)
        return path

    def opened(self, ref: Ref, name: str) -> RangeFile:
        """Open a file of an artifact for reading byte ranges from the store; the content is not verified.

        Raises:
            CorruptArtifact: when the manifest is missing or damaged; later reads also raise it when the file is missing.
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
            reason = "was evicted; run the audit again" if name in self.evicted_files(ref) else f"is {error}"
            raise CorruptArtifact(f"artifact {ref}: file {name} {reason}", ref) from error

    def problems(self, ref: Ref) -> list[str]:
        """Verify all files of an artifact in the store itself, not in local copies; return a list of problems.

        Raises:
            CorruptArtifact: when the manifest is missing or damaged.
        """
        self._known.pop(ref, None)
        manifest, problems = self.manifest(ref), []
        for name, expected in manifest.files.items():
            try:
                digest = self._backend.digest(f"{ref.folder}/{manifest.attempt}/{name}")
            except FileNotFoundError:
                if name not in self.evicted_files(ref):
                    problems.append(f"file {name} is missing")
                continue
            except (IsADirectoryError, NotADirectoryError):
                problems.append(f"file {name} is a folder")
                continue
            except OSError as error:
                if not self._backend.is_local:
                    raise
                problems.append(f"file {name} cannot be read ({error.strerror or 'it is not a regular file'})")
                continue
            if digest != expected.sha256:
                problems.append(f"file {name} is damaged (its sha256 differs from the manifest)")
                self._backend.forget(expected)
        return problems

    # -- evicting files -------------------------------------------------------------------------------

    def evict(self, ref: Ref, names: Collection[str]) -> int:
        """Evict some of an artifact's files, and return their total size in bytes; the artifact remains committed.

        A run that needs evicted files recomputes the artifact; see `evicted_files`.
        """
        manifest = self.manifest(ref)
        folder, evicted = f"{ref.folder}/{manifest.attempt}", self.evicted_files(ref)
        selected = sorted(name for name in names if name in manifest.files and name not in evicted)
        if selected:
            self._place.publish(f"{folder}/{LET_GO}", json.dumps(sorted({*evicted, *selected})).encode(), secret=True)
        for name in selected if not self._backend.is_local else names:  # a process killed here may have left some files
            self._backend.remove(f"{folder}/{name}")
            self._backend.forget(manifest.files[name])
        return sum(manifest.files[name].size for name in selected)

    def is_complete(self, ref: Ref) -> bool:
        """Return whether an artifact is committed (has a manifest) and none of its files has been evicted."""
        self._known.pop(ref, None)
        return self.has(ref) and not self.evicted_files(ref)

    def evicted_files(self, ref: Ref) -> frozenset[str]:
        """Return the names of an artifact's evicted files; empty if there is no artifact."""
        try:
            content = self._backend.read(f"{ref.folder}/{self.manifest(ref).attempt}/{LET_GO}")
            return frozenset(json.loads(content)) if content is not None else frozenset()
        except (CorruptArtifact, Unreadable, ValueError, TypeError):  # the files then count as missing
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
        transient: bool = False,
    ) -> Iterator[Attempt]:
        """Write an artifact: fill `attempt.folder` inside the block; it is committed when the block ends without error.

        Concurrent writers each fill their own folder; the first to commit wins, and the files of the others are deleted. At
        no time can anybody but the owner (or the group, depending on the store's mode) read the files.

        Args:
            ref: the artifact's address.
            spec: configuration of the stage, recorded in the manifest (plain JSON).
            inputs: keys of the artifacts that were read, recorded in the manifest.
            units: amount of work in the stage's unit (examples, steps); used to compare costs between artifacts.
            provenance: further entries of the manifest that record how the artifact was made, see memlib.pipeline.provenance.
            transient: whether files of the artifact may be evicted.
        """
        self._place.begin()
        name = uuid.uuid4().hex[:12]
        target = f"{ref.folder}/{name}"
        with self._backend.filling(target, self._place.permissions()) as folder:
            attempt = Attempt(folder, ref, provenance=provenance or {})
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
                } | dict(provenance or {})
                former = self._former(ref)
                record |= contents(folder, files, provenance or {}, transient=transient, former=former)
                # as secret as the files: the digest of a file reveals its content to anyone who can guess it
                data = json.dumps(sealed(record), indent=1, sort_keys=True).encode()
                won = self._place.create(f"{ref.folder}/{MANIFEST}", data)
            except (StoreUnreachable, StoreRefused):
                raise  # cleaning up would fail as well
            except BaseException:
                if not self._is_named(ref, name):
                    self._backend.remove(target)
                raise
            self._known.pop(ref, None)
            if won:
                self._backend.keep(folder, files)
                if former is not None:
                    self._backend.remove(f"{ref.folder}/{FORMER}")
        if not won:
            self._backend.remove(target)
        if attempt.resumes:
            self._resume.drop(ref.key)

    def _described(self, folder: Path) -> dict[str, FileRecord]:
        """Return the size and digest of each file below a folder, and give all files and folders the store's permissions."""
        files, bits = self._place.describe(folder), self._place.permissions()
        if not files:
            raise RunError(f"nothing was written to {folder}")
        for file in files:
            (folder / file).chmod(bits.file)
        for inner in [*(path for path in folder.rglob("*") if path.is_dir()), folder]:
            inner.chmod(bits.folder)
        return files

    def _is_named(self, ref: Ref, attempt: str) -> bool:
        """Return whether the manifest names this attempt, which may have been interrupted after its commit."""
        try:
            return self.manifest(ref).attempt == attempt
        except CorruptArtifact:
            return False

    def keep_log(self, ref: Ref, attempt: str) -> str | None:
        """Publish the recorded log output; return its path below the root, or None if nothing was printed."""
        text = recorded()
        if not text:
            return None
        path = f"logs/{ref.stage}/{ref.key}/{attempt}.log"
        self._place.publish(path, text.encode("utf-8", "backslashreplace"), secret=True)
        return path

    def _former(self, ref: Ref) -> FormerRecord | None:
        """Return the content of the attempt that was discarded, so that the artifact is computed again."""
        try:
            content = self._backend.read(f"{ref.folder}/{FORMER}")
            return None if content is None else parse(FormerRecord, content)
        except Unreadable:  # then the artifact's readers are computed again
            return None

    def discard(self, ref: Ref, *, evicted: bool = False) -> None:
        """Remove an artifact from the store, manifest first, so that it is recomputed.

        The files of other attempts, which may be in progress, are left alone. The digests of the content are kept until the
        artifact is committed again, by whichever run, see `memlib.store.content.contents`.

        Args:
            ref: the artifact; if it is missing, nothing changes.
            evicted: whether it is recomputed because its files were evicted.
        """
        self._known.pop(ref, None)
        attempt, former = "", None
        try:
            manifest = self.manifest(ref)
            attempt, former = manifest.attempt, former_of(manifest, evicted=evicted)
        except MissingArtifact:
            return
        except CorruptArtifact:
            pass
        self._backend.remove(f"{ref.folder}/{FORMER}")  # whatever is there
        if former is not None:
            self._place.publish(f"{ref.folder}/{FORMER}", json.dumps(sealed(former.model_dump())).encode(), secret=True)
        self._known.pop(ref, None)
        self._backend.remove(f"{ref.folder}/{MANIFEST}")
        if attempt:
            self._backend.remove(f"{ref.folder}/{attempt}")
