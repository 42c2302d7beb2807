"""Backend of a store under a prefix of any fsspec file system, such as s3://bucket/prefix, with verified local copies."""

import contextlib
import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from typing_extensions import override

from memlib.errors import RunError
from memlib.store.backend import Backend, Damaged, Facts, size_problem
from memlib.store.copies import Copies
from memlib.store.permissions import Mode, Permissions, scratch
from memlib.store.records import FileRecord
from memlib.store.retrying import PatientFileSystem, is_taken, is_unsupported

PIECE_BYTES = 64 * 2**20
FETCHES = 3  # attempts to fetch a file, since other processes may evict the copy to make room for their own


class Remote(Backend):
    """A store's files under a remote prefix. Access is controlled by the bucket's policy, not by memlib.

    Args:
        file_system: the fsspec file system.
        uri: address of the store.
        root: path of the prefix in the file system.
        copies: cache of verified copies.
        patience: seconds for which calls are retried during an outage.
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
    def read(self, path: str) -> bytes | None:  # `exists` would mistake any failure for a missing file
        try:
            return bytes(self.file_system.cat_file(self.at(path)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    @override
    def read_together(self, paths: Sequence[str]) -> dict[str, bytes]:
        if not paths:
            return {}
        prefix = len(self.at(""))
        contents = self.file_system.cat([self.at(path) for path in paths], on_error="omit")  # concurrently
        return {path[prefix:]: bytes(content) for path, content in contents.items()}

    @override
    def digest(self, path: str) -> str:
        """Read the file in pieces, each of which can be retried."""
        address = self.at(path)
        digest, size = hashlib.sha256(), int(self.file_system.info(address)["size"])
        for start in range(0, size, PIECE_BYTES):
            digest.update(self.file_system.cat_file(address, start=start, end=min(size, start + PIECE_BYTES)))
        return digest.hexdigest()

    @override
    def read_range(self, path: str, start: int, end: int) -> bytes:
        return bytes(self.file_system.cat_file(self.at(path), start=start, end=end))

    @override
    def entries(self, folder: str) -> list[str] | None:
        self.file_system.invalidate_cache()
        try:
            paths = self.file_system.ls(self.at(folder).rstrip("/"), detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return [str(path).rstrip("/").rpartition("/")[2] for path in paths]

    @override
    def links(self, folder: str) -> list[str]:
        return []

    @override
    def listing(self, folder: str) -> dict[str, Facts]:
        prefix = len(self.at("")) if self.root else 0
        if self._is_s3:
            return {path[prefix:]: facts for path, facts in self._s3_objects(self.at(folder))}
        self.file_system.invalidate_cache()
        try:
            files = self.file_system.find(self.at(folder), detail=True)
        except FileNotFoundError:
            return {}
        return {path[prefix:]: (int(info["size"]), _written(info)) for path, info in files.items()}

    def _s3_objects(self, path: str) -> Iterator[tuple[str, Facts]]:
        """Yield the objects below a path; s3fs's `find` takes three times as long as its requests for 20,000 objects."""
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
        address = self.at(path)
        try:
            self.file_system.pipe_file(address, data, mode="create")
        except Exception as error:
            if is_taken(error):  # written by another process, or by this call if its reply was lost and it was retried
                return bool(self.file_system.cat_file(address) == data)
            if not is_unsupported(error):
                raise
            # otherwise the last writer wins: a manifest is replaced as a whole, and attempts keep their files
            self.file_system.pipe_file(address, data)
        return True

    @override
    def put(self, path: str, source: Path | bytes, *, bits: int, folder_bits: int) -> str:
        address = self.at(path)
        if isinstance(source, bytes):
            self.file_system.pipe_file(address, source)
        else:
            self.file_system.put_file(str(source), address)
        return str(self.file_system.unstrip_protocol(address))

    @override
    def make_folder(self, path: str, bits: int) -> None:
        """Do nothing: prefixes need not be created."""

    @override
    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self.file_system.rm(self.at(path), recursive=True)
        self.file_system.invalidate_cache()

    @override
    def drop_empty(self, path: str) -> None:
        """Do nothing: a prefix without files does not exist."""

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
        """Do nothing: uploads are atomic, so that no incomplete files are left."""

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
        """Upload all files concurrently, as each costs a round trip."""
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
            for _ in range(FETCHES):  # no copy, or a damaged one: fetch the remote file
                if not problem or not self._fetch(path, expected):
                    break
                problem = self._problem(copy, expected)
            if not problem:
                self._copies.note_seen(expected)
        if problem:
            self._copies.forget(expected)
            if self._is_sound_there(path, expected):
                raise RunError(
                    f"copies in {self._copies.folder} are evicted too soon or differ from what was written; see MEMLIB_CACHE"
                )
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
    """Make s3fs parse times with the standard library; botocore's default parser takes 2.8 s for 20,000 objects."""
    from aiobotocore.session import AioSession

    if file_system.session is None:
        file_system.session = AioSession(**file_system.kwargs)
        file_system.session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_time)


def _time(said: Any) -> datetime:
    try:
        return datetime.fromisoformat(said)
    except (TypeError, ValueError):
        from botocore.utils import parse_timestamp

        parsed: datetime = parse_timestamp(said)
        return parsed


def _written(info: Mapping[str, Any]) -> float:
    """Return a file's time of writing in seconds since 1970; the name of the field depends on the file system."""
    when = next((info[name] for name in ("mtime", "LastModified", "created") if info.get(name) is not None), 0.0)
    return float(when.timestamp()) if isinstance(when, datetime) else float(when)
