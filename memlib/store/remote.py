"""A store under a prefix of any file system that fsspec knows, such as s3://bucket/prefix, with verified copies here."""

import contextlib
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from memlib.errors import RunError
from memlib.private import Mode, Permissions, scratch
from memlib.records import FileRecord
from memlib.store.backend import Backend, Damaged, Facts, size_problem
from memlib.store.copies import Copies
from memlib.store.patience import PatientFileSystem, is_taken, is_unsupported

PIECE_BYTES = 64 * 2**20
FETCHES = 3  # other processes may make room for theirs by taking ours


class Remote(Backend):
    """A prefix. Nobody can say here who else may read it: that is for the bucket's policy.

    Args:
        file_system: fsspec's.
        uri: of the store.
        root: the prefix.
        copies: where verified copies are kept.
        patience: seconds for which an outage is waited for.
    """

    is_local = False

    def __init__(self, file_system: Any, uri: str, root: str, *, copies: Copies, patience: float) -> None:
        super().__init__()
        self._is_s3 = "s3" in file_system.protocol
        if self._is_s3:
            _parse_times_fast(file_system)
        self.file_system: Any = PatientFileSystem(file_system, uri, patience)
        self.uri, self.root, self._copies = uri, root.rstrip("/"), copies

    @override
    def read(self, path: str) -> bytes | None:  # not by `exists`, which takes any failure for an answer
        try:
            return bytes(self.file_system.cat_file(self.at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    @override
    def read_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        if not paths:
            return {}
        prefix = len(self.at(""))
        found = self.file_system.cat([self.at(path) for path in paths], on_error="omit")  # side by side
        return {path[prefix:]: bytes(content) for path, content in found.items()}

    @override
    def digest(self, path: str) -> str:
        """Piece by piece, so that each can be tried again."""
        there = self.at(path)
        digest, size = hashlib.sha256(), int(self.file_system.info(there)["size"])
        for start in range(0, size, PIECE_BYTES):
            digest.update(self.file_system.cat_file(there, start=start, end=min(size, start + PIECE_BYTES)))
        return digest.hexdigest()

    @override
    def read_range(self, path: str, start: int, end: int) -> bytes:
        return bytes(self.file_system.cat_file(self.at(path), start=start, end=end))

    @override
    def entries(self, folder: str) -> list[str] | None:
        self.file_system.invalidate_cache()
        try:
            found = self.file_system.ls(self.at(folder).rstrip("/"), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    @override
    def listing(self, folder: str) -> dict[str, Facts]:
        prefix = len(self.at("")) if self.root else 0
        if self._is_s3:
            return {path[prefix:]: facts for path, facts in self._s3_objects(self.at(folder))}
        self.file_system.invalidate_cache()
        try:
            found = self.file_system.find(self.at(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {path[prefix:]: (int(info["size"]), _written(info)) for path, info in found.items()}

    def _s3_objects(self, path: str) -> Iterator[tuple[str, Facts]]:
        """List objects below a path as s3fs's `find` does, which takes three times as long for 20,000 as its requests."""
        bucket, key, _ = self.file_system.split_path(path)
        more: dict[str, str] = {}
        while True:
            page = self.file_system.call_s3("list_objects_v2", Bucket=bucket, Prefix=key, **more)
            for entry in page.get("Contents", ()):
                name = str(entry["Key"])
                if (name == key or name.startswith(f"{key}/")) and not name.endswith("/"):
                    yield f"{bucket}/{name}", (int(entry["Size"]), _written(entry))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    @override
    def create(self, path: str, data: bytes, bits: int) -> bool:
        there = self.at(path)
        try:
            self.file_system.pipe_file(there, data, mode="create")
        except Exception as error:
            if is_taken(error):  # by somebody else, or by us: the answer may have been lost and the call repeated
                return bool(self.file_system.cat_file(there) == data)
            if not is_unsupported(error):
                raise
            # without it the last writer wins: a manifest is replaced as a whole, and no attempt's files are taken away
            self.file_system.pipe_file(there, data)
        return True

    @override
    def put(self, path: str, source: Path | bytes, *, bits: int, folder_bits: int) -> str:
        there = self.at(path)
        if isinstance(source, bytes):
            self.file_system.pipe_file(there, source)
        else:
            self.file_system.put_file(str(source), there)
        return str(self.file_system.unstrip_protocol(there))

    @override
    def make_folder(self, path: str, bits: int) -> None:
        """Prefixes need not be made."""

    @override
    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.file_system.rm(self.at(path), recursive=True)
        self.file_system.invalidate_cache()

    @override
    def drop_empty(self, path: str) -> None:
        """A prefix without files is not there."""

    @override
    def clock(self) -> float:
        probe = self.at(f".probe-{uuid.uuid4().hex}")
        self.file_system.pipe_file(probe, b"memlib")
        self.file_system.invalidate_cache()
        try:
            return _written(self.file_system.info(probe))
        finally:
            self.file_system.rm_file(probe)

    @override
    def sweep(self, now: float) -> None:
        """Files appear whole."""

    @override
    def suggested_mode(self) -> Mode:
        return "private"

    @override
    @contextlib.contextmanager
    def filling(self, folder: str, bits: Permissions) -> Iterator[Path]:
        with scratch("attempt") as path:
            yield path

    @override
    def send(self, filled: Path, folder: str, files: Mapping[str, FileRecord]) -> None:
        """At once, as many small files cost a round trip each."""
        self.file_system.put([str(filled / file) for file in files], [self.at(f"{folder}/{file}") for file in files])

    @override
    def keep(self, filled: Path, files: Mapping[str, FileRecord]) -> None:
        self._copies.keep(filled, files)

    @override
    def check_there(self, folder: str, files: Mapping[str, FileRecord]) -> None:
        sizes = {path.removeprefix(f"{folder}/"): size for path, (size, _) in self.listing(folder).items()}
        for name, expected in files.items():
            if problem := size_problem(sizes.get(name), expected):
                raise Damaged(f"file {name} is {problem}")

    @override
    def local(self, path: str, expected: FileRecord) -> Path:
        copy = self._copies.path(expected)
        if self._copies.is_seen(expected):
            return copy
        with self._copies.turn(expected):
            problem = "" if self._copies.is_seen(expected) else self._problem(copy, expected)
            for _ in range(FETCHES):  # no copy, or a damaged one: the remote file decides
                if not problem or not self._fetch(path, expected):
                    break
                problem = self._problem(copy, expected)
            if not problem:
                self._copies.note_seen(expected)
        if problem:
            self._copies.forget(expected)
            if self._is_sound_there(path, expected):
                raise RunError(f"copies in {self._copies.folder} do not last or are not what was written; see MEMLIB_CACHE")
            raise Damaged(problem)
        return copy

    def _fetch(self, path: str, expected: FileRecord) -> bool:
        return self._copies.fetch(lambda part: self.file_system.get_file(self.at(path), str(part)), expected)

    def _is_sound_there(self, path: str, expected: FileRecord) -> bool:
        try:
            return self.digest(path) == expected.sha256
        except FileNotFoundError:
            return False

    @override
    def forget(self, expected: FileRecord) -> None:
        self._copies.forget(expected)


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
    """Return seconds since 1970, from whatever a file system calls it."""
    when = next((info[name] for name in ("mtime", "LastModified", "created") if info.get(name) is not None), 0.0)
    return float(when.timestamp()) if isinstance(when, datetime) else float(when)
