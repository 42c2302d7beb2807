"""The one way in which files of users are opened: where they may lie, what they may be, and how large they may become.

Sources can come from people who are not trusted. Only files of file systems and of object stores are opened, never addresses
to which a request would be sent; only regular files; tables are decoded only as far as they fit in memory; and no error
quotes their content.
"""

import contextlib
import hashlib
import json
import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from memlib.data.bounds import PIECE, check_links, most_bytes
from memlib.errors import DataError
from memlib.sanitize import plain

SCHEMES = ("file", "local", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "hf", "memory", "simplecache", "filecache")
"""Protocols of file systems and object stores, and of their local copies."""
WEB = ("http", "https", "ftp", "sftp")
LFS, MOST_POINTER = b"version https://git-lfs", 1024  # beginning of a pointer of Git LFS, and bytes that are looked at
TAR, TAR_PLACE = b"ustar", 257  # a part of a tar archive's first header, and its place
POINTER = "is a Git LFS pointer, not the file itself; fetch it with git lfs pull"
SPARE = 0.8  # share of the available memory that a table may take
WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8, "BYTE_ARRAY": 4}
"""Bytes of a value in memory, by its type in Parquet; of texts, of their places alone."""
FEATHER = b"ARROW1"  # beginning of Arrow's file format
CONTINUATION, DICTIONARY_BATCH, RECORD_BATCH = 0xFFFFFFFF, 2, 3  # beginning and kinds of messages in Arrow's streams
BATCH = 100  # values that are read at a time where each may be large


def located(uri: str) -> tuple[Any, str]:
    """Return the file system of a path or address, and the path on it.

    Raises:
        DataError: for an address on the web, and for an unknown protocol.
    """
    named = [part.partition("://")[0].lower() for part in uri.split("::")] if "://" in uri else []
    if unknown := [scheme for scheme in named if scheme not in SCHEMES]:
        kind = "on the web" if unknown[0] in WEB else f"of the kind {plain(unknown[0])}"
        raise DataError(f"{plain(uri)} is an address {kind}, which is not opened; download the file, and name it")
    try:
        fs, root = fsspec.url_to_fs(uri)
    except (ValueError, ImportError) as error:
        raise DataError(f"cannot open {plain(uri)}: {error}") from error
    return fs, str(root)


@contextlib.contextmanager
def opened(uri: str, *, decompressed: bool = True) -> Iterator[IO[bytes]]:
    """Open a regular file for reading.

    Args:
        decompressed: whether a file with a name like x.gz is decompressed while it is read.

    Raises:
        DataError: when it does not lie in a file system, is no regular file, or is a zip archive of several files.
        OSError: when it does not exist, or cannot be read.
    """
    fs, path = located(uri)
    check_regular(fs, path)
    compression = fsspec.utils.infer_compression(path) if decompressed else None
    if compression == "zip":
        with fs.open(path, "rb") as packed, zipfile.ZipFile(packed) as archive:
            if len(names := [name for name in archive.namelist() if not name.endswith("/")]) != 1:
                raise DataError(f"{uri} holds {len(names)} files instead of one; unpack the archive, and name one file")
    with fsspec.core.OpenFile(fs, path, "rb", compression=compression) as file:
        yield file


def check_regular(fs: Any, path: str) -> None:
    """Refuse a device, a pipe or a folder, from which reading might never end, a pointer to a file, and an archive of many.

    Raises:
        DataError: when it is one.
    """
    if isinstance(fs, LocalFileSystem):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # of which its reader says more
            found = os.stat(path)
            if not stat.S_ISREG(found.st_mode):
                raise DataError(f"{path} is not a regular file; name a file")
            with open(path, "rb") as file:
                _check_start(file.read(MOST_POINTER), path)


def content_of(uri: str) -> bytes:
    """Return the content of a file, decompressed, if it fits in memory.

    Raises:
        DataError, OSError: as `opened`; DataError also when it is too large.
    """
    pieces, size = [], 0
    with opened(uri) as file:
        while part := file.read(PIECE):
            check_fits(uri, size := size + len(part))
            pieces.append(part)
    content = b"".join(pieces)
    _check_start(content[:MOST_POINTER], uri)
    return content


def _check_start(start: bytes, path: str) -> None:
    """Refuse a pointer to a file and an archive of many files by the beginning of their content."""
    if start.startswith(LFS):
        raise DataError(f"{path} {POINTER}")
    if start[TAR_PLACE:].startswith(TAR):
        raise DataError(
            f"{path} is an archive of many files (tar), as webdataset's shards are; unpack it, and name what it held"
        )


def digest_of(uri: str) -> str:
    """Return the sha256 of a file as it is stored.

    Raises:
        DataError, OSError: as `opened`.
    """
    digest = hashlib.sha256()
    with opened(uri, decompressed=False) as file:
        while part := file.read(PIECE):
            digest.update(part)
    return digest.hexdigest()


def most_in_memory() -> int:
    """Return the largest size of what is decoded at once: MEMLIB_MAX_BYTES, or most of the memory that is available."""
    return most_bytes() if os.environ.get("MEMLIB_MAX_BYTES") else min(most_bytes(), int(SPARE * _available()))


def _available() -> int:
    """Return the bytes of memory that this process may still take; a great number where that is not known."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    with contextlib.suppress(OSError, ValueError):  # in a container
        limit, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(max(limit - used, 0))
    return min(found, default=2**62)


# -- Parquet ---------------------------------------------------------------------------------------------


def read_parquet(source: str | bytes | IO[bytes], path: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file, and check its values.

    Args:
        source: path of a local file, its bytes, or an open file.
        path: name of the file, for messages.
        columns: the columns to read; by default all.

    Raises:
        DataError: when the table would not fit in memory.
        OSError, ValueError, pa.ArrowException: when it is no Parquet file, or is damaged.
    """
    return ParquetContent(source, path).read(columns)


class ParquetContent:
    """A Parquet file whose repeated texts stay as short as they are in the file until it is known whether they fit in memory.

    Args:
        source: path of a local file, its bytes, or an open file.
        path: name of the file, for messages.

    Attributes:
        schema: schema of the file.
        num_row_groups: number of its row groups.
        num_rows: number of its rows.
        sizes: least size of each row group in memory, in bytes.
    """

    def __init__(self, source: str | bytes | IO[bytes], path: str) -> None:
        if isinstance(source, str):
            check_regular(*located(source))
        held: Any = pa.BufferReader(source) if isinstance(source, bytes) else source
        plain = pq.ParquetFile(held)
        columns = [plain.schema.column(number) for number in range(len(plain.schema))]
        texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
        self._path, self._plain, self._file = path, plain, pq.ParquetFile(held, read_dictionary=texts)
        self.schema, self.num_row_groups = plain.schema_arrow, plain.num_row_groups
        self.num_rows = int(plain.metadata.num_rows)
        self.sizes = [_least_size(plain.metadata.row_group(number)) for number in range(plain.num_row_groups)]

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Read the file, or some of its columns, and check the values; see `read_parquet`."""
        tables: list[pa.Table] = []
        for number in range(self.num_row_groups):
            check_fits(self._path, self.sizes[number] + sum(table.nbytes for table in tables))
            tables.append(self.read_row_group(number, columns))
        table = pa.concat_tables(tables) if tables else self.schema.empty_table()
        if missing := [name for name in columns or () if name not in table.column_names]:
            raise ValueError(f"it has no column {missing[0]}")
        table = table if columns is None else table.select(list(columns))
        table.validate(full=True)
        return table

    def read_row_group(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a row group, or some of its columns.

        Raises:
            DataError: when it would not fit in memory.
        """
        check_fits(self._path, self.sizes[number])
        table = self._file.read_row_group(number, columns=None if columns is None else list(columns))
        check_fits(self._path, sum(map(decoded_size, table.columns)))
        stored = {name: [field for field in self.schema if field.name == name] for name in set(table.column_names)}
        return _as(pa.schema([stored[name].pop(0) for name in table.column_names], self.schema.metadata), table)

    def values(self, column: str) -> Iterator[Any]:
        """Yield the values of a column one by one."""
        # Arrow cannot cut batches from texts within others, such as images, of which some are in a dictionary
        file = self._plain if pa.types.is_nested(self.schema.field(column).type) else self._file
        for batch in file.iter_batches(batch_size=BATCH, columns=[column]):
            yield from (value.as_py() for value in batch.column(0))


def _least_size(group: Any) -> int:
    columns = map(group.column, range(group.num_columns))
    values: int = sum(column.num_values * WIDTHS.get(column.physical_type, 16) for column in columns)
    return max(values, int(group.total_byte_size))


def _as(schema: pa.Schema, table: pa.Table) -> pa.Table:
    """Return a table with texts written out in each row; a chunk of a column holds at most 2 GiB of them."""
    try:
        return table.cast(schema)
    except pa.ArrowInvalid:
        half = table.num_rows // 2
        if not half:
            raise
        return pa.concat_tables([_as(schema, table.slice(0, half)), _as(schema, table.slice(half))])


def decoded_size(array: pa.ChunkedArray | pa.Array) -> int:
    """Return the size of an array in memory once texts are written out in each row."""
    if isinstance(array, pa.ChunkedArray):
        return sum(map(decoded_size, array.chunks))
    if pa.types.is_dictionary(array.type):
        lengths = pc.fill_null(pc.binary_length(array.dictionary), 0)
        return int(pc.sum(lengths.cast(pa.int64()).take(pc.drop_null(array.indices))).as_py() or 0) + 4 * len(array)
    if pa.types.is_struct(array.type):
        return sum(decoded_size(array.field(place)) for place in range(array.type.num_fields))
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type) or pa.types.is_fixed_size_list(array.type):
        return decoded_size(array.flatten()) + 4 * len(array)
    return int(array.nbytes)


def check_fits(path: str, size: int) -> None:
    """Raise DataError if so many bytes would not fit in memory."""
    if size > (most := most_in_memory()):
        raise DataError(
            f"{path} decodes to more than {most:,} bytes, which do not fit in memory; if the size is right, raise "
            "MEMLIB_MAX_BYTES"
        )


# -- Arrow -----------------------------------------------------------------------------------------------


def saved_files(uri: str) -> list[str]:
    """Return the names of the files of a folder that Hugging Face's `save_to_disk` wrote; [] for any other path.

    Raises:
        DataError: when the folder holds several splits, or does not hold its rows in order.
    """
    fs, root = located(uri)
    if not fs.isdir(root):
        return []
    if fs.exists(f"{root}/dataset_dict.json"):
        splits = list(map(str, _state(fs, f"{root}/dataset_dict.json", "splits")))
        raise DataError(f"{uri} holds the splits {', '.join(splits)}; name one of their folders, such as {uri}/{splits[0]}")
    state = f"{root}/state.json"
    if not fs.exists(state):
        return []
    if _state(fs, state, "_indices_data_files", optional=True):
        raise DataError(f"{uri} selects rows of its files by indices; save it again after flatten_indices()")
    names = [str(file.get("filename")) if isinstance(file, dict) else "" for file in _state(fs, state, "_data_files")]
    if odd := [name for name in names if "/" in name or "\\" in name or not name.endswith(".arrow")]:
        raise DataError(f"{state} names {plain(odd[0])!r}, which is no .arrow file of its folder")
    check_links(fs, root, {name: fs.info(f"{root}/{name}") for name in names if fs.exists(f"{root}/{name}")})
    return names


def _state(fs: Any, path: str, key: str, *, optional: bool = False) -> list[Any]:
    """Return a list in a file that describes a saved data set."""
    check_regular(fs, path)
    try:
        content = json.loads(fs.cat_file(path))
        found = content.get(key) or [] if optional else content[key]
        if not isinstance(found, list) or not (found or optional):
            raise ValueError(f"{key} is no list")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} does not describe a data set as save_to_disk does ({key})") from error


class ArrowContent:
    """An Arrow stream that is read batch by batch, as a Parquet file by row groups; compressed ones are refused.

    Args:
        source: path of a local file, its bytes, or an open file.
        path: name of the file, for messages.

    Attributes:
        schema: schema of the stream.
        num_row_groups: number of its batches.
    """

    def __init__(self, source: str | bytes | IO[bytes], path: str) -> None:
        if isinstance(source, str):
            check_regular(*located(source))
            self._file: Any = pa.OSFile(source)
        else:
            self._file = pa.BufferReader(source) if isinstance(source, bytes) else pa.PythonFile(source, mode="r")
        self._path = path
        self._starts = self._find_batches()
        self.num_row_groups = len(self._starts)
        with _as_invalid():
            self._file.seek(0)
            self.schema = pa.ipc.read_schema(pa.ipc.read_message(self._file))

    def _find_batches(self) -> list[int]:
        """Return the places of the batches."""
        starts, place, size = [], 0, self._file.size()
        self._file.seek(0)
        if self._file.read(len(FEATHER)) == FEATHER:
            raise DataError(f"{self._path} is in Arrow's file format (Feather), which is not read; save it as Parquet")
        while place + 8 <= size:
            self._file.seek(place)
            mark, length = struct.unpack("<Ii", self._file.read(8))
            if mark == CONTINUATION and length == 0:
                break
            if mark != CONTINUATION or length < 0:
                raise pa.ArrowInvalid("it is not an Arrow stream")
            if length > size - place - 8:
                raise pa.ArrowInvalid("it is cut short")
            kind, body, is_compressed = _message_of(self._file.read(length))
            if is_compressed:
                raise DataError(f"{self._path} is compressed, and may not fit in memory; save it as Parquet")
            if not 0 <= body <= size - place - 8 - length:
                raise pa.ArrowInvalid("it is cut short")
            starts += [place] if kind == RECORD_BATCH else []
            place += 8 + length + body
        if not place:
            raise pa.ArrowInvalid("it is not an Arrow stream")
        return starts

    def read(self) -> pa.Table:
        """Read all batches, and check the values."""
        with _as_invalid():
            self._file.seek(0)
            batches, size = [], 0
            for batch in pa.ipc.open_stream(self._file):
                check_fits(self._path, size := size + _size_of(batch))
                batches.append(batch)
            table = pa.Table.from_batches(batches, self.schema)
            table.validate(full=True)
        return table

    def read_row_group(self, number: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Read a batch, or some of its columns."""
        with _as_invalid():
            self._file.seek(self._starts[number])
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(self._file), self.schema)
        check_fits(self._path, _size_of(batch))
        table = pa.Table.from_batches([batch])
        return table if columns is None else table.select(list(columns))

    def values(self, column: str) -> Iterator[Any]:
        """Yield the values of a column one by one."""
        for number in range(self.num_row_groups):
            yield from (value.as_py() for value in self.read_row_group(number, [column])[column])


@contextlib.contextmanager
def _as_invalid() -> Iterator[None]:
    """Raise pa.ArrowInvalid for errors of Arrow that are OSErrors."""
    try:
        yield
    except OSError as error:
        raise pa.ArrowInvalid(str(error)) from error


def _size_of(batch: pa.RecordBatch) -> int:
    size = sum(decoded_size(column) for column in batch.columns)
    return int(size + 8 * batch.num_rows)  # a column of nulls has rows without bytes


def _message_of(data: bytes) -> tuple[int, int, bool]:
    """Return the kind of an Arrow message, the size of what follows it, and whether this is compressed."""

    def field(table: int, number: int) -> int:
        """Return the place of a field of a flatbuffer's table; 0 if it is absent."""
        fields = table - int(struct.unpack_from("<i", data, table)[0])
        at = 4 + 2 * number
        offset = struct.unpack_from("<H", data, fields + at)[0] if at < struct.unpack_from("<H", data, fields)[0] else 0
        return table + offset if offset else 0

    def table_at(place: int) -> int:
        return place + int(struct.unpack_from("<I", data, place)[0])

    try:
        message = table_at(0)
        kind = data[field(message, 1)]
        body = int(struct.unpack_from("<q", data, field(message, 3))[0]) if field(message, 3) else 0
        content = table_at(field(message, 2))
        if kind == DICTIONARY_BATCH:
            content = table_at(field(content, 1))
        return kind, body, kind in (RECORD_BATCH, DICTIONARY_BATCH) and bool(field(content, 3))
    except (struct.error, IndexError) as error:
        raise pa.ArrowInvalid("it is not an Arrow stream") from error


# -- archives and errors -----------------------------------------------------------------------------------


def check_archive(path: str) -> None:
    """Refuse a zip archive, such as a file of weights, whose entries together would not fit in memory.

    Raises:
        DataError: when they would not.
    """
    with contextlib.suppress(zipfile.BadZipFile, zlib.error, OSError), zipfile.ZipFile(path) as archive:
        check_fits(path, sum(entry.file_size for entry in archive.infolist()))


def reason(error: Exception) -> str:
    """Return the first line of a reader's error without what it quotes of the content.

    Arrow's message for files that are not Parquet is replaced.
    """
    first = (str(error).splitlines() or [type(error).__name__])[0]
    if "Parquet magic bytes" in first:
        return "it is not a Parquet file"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    first = re.sub(r"(\bgot \d+):.*", r"\1", first)  # a row of CSV with more or fewer cells
    return re.sub(r"""(['"]).*\1""", "...", first)
