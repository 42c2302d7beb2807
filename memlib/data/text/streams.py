"""Text that is streamed in pieces, as often as needed, and windows of symbols that are written incrementally.

No function holds a whole text in memory; only files grow with the length of a text.
"""

import codecs
import hashlib
import io
import lzma
import os
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

import ahocorasick_rs
import numpy as np
from numpy.typing import NDArray

from memlib.data.bounds import read_pieces
from memlib.data.opening import opened, reason
from memlib.errors import DataError, RunError, UserError

LINE_END = "\n"
LONGEST = 2**28  # maximum number of characters of a document
UNREADABLE = (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error)  # missing, or not in the format its name implies
UNSIGNED = (np.uint8, np.uint16, np.uint32)


class Measured(NamedTuple):
    """Digest and length of a text, which are known once the text has been read to its end."""

    digest: str  #: SHA-256 of the text, for use in stage keys.
    length: int  #: number of characters, or of documents.


@dataclass(frozen=True)
class Readable(ABC):
    """A text that is streamed in pieces from its beginning, as often as needed."""

    read: Callable[[], Iterator[str]]  #: function that starts a new pass over the pieces.
    name: str = "text"  #: name of the text in messages.
    #: function that returns lines on parts that the last pass left out, or read with a fallback.
    remarks: Callable[[], Sequence[str]] = list

    separator: ClassVar[bytes] = b""  # between pieces, in the digest

    @abstractmethod
    def first(self, piece: str, most: int) -> tuple[str, int]:
        """Return the beginning of a piece, of at most `most` units, and the number of units in this beginning."""

    @cached_property
    def measured(self) -> Measured:
        """The text's digest and length.

        Raises:
            DataError: when the text cannot be read or is empty.
        """
        digest, length, blank = hashlib.sha256(), 0, True
        for number, piece in enumerate(self.read()):
            digest.update(self.separator * (number > 0) + piece.encode())
            length += self.first(piece, sys.maxsize)[1]
            blank = blank and not piece.strip()
        if blank:
            raise DataError(f"the corpus {self.name} is empty")
        return Measured(digest.hexdigest(), length)

    def beginning(self, share: float) -> Iterator[str]:
        """Yield the pieces of the first `share` of the text, at least one unit; then check that the digest is unchanged.

        Raises:
            RunError: when the text has changed.
        """
        left, digest = max(1, int(self.measured.length * share)), hashlib.sha256()
        for number, piece in enumerate(self.read()):
            digest.update(self.separator * (number > 0) + piece.encode())
            if left > 0:
                part, units = self.first(piece, left)
                left -= units
                yield part
        if digest.hexdigest() != self.measured.digest:
            raise RunError(f"the corpus {self.name} changed while it was read; run the same command again")


class Text(Readable):
    """A text in pieces that may be cut anywhere; its length is in characters."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Wrap a text that is in memory."""
        return cls(lambda: iter([text]))

    def first(self, piece: str, most: int) -> tuple[str, int]:
        """See `Readable.first`."""
        part = piece[:most]
        return part, len(part)


class Documents(Readable):
    """A sequence of separate documents, one per piece; its length is the number of documents."""

    separator = b"\0"

    def first(self, piece: str, most: int) -> tuple[str, int]:
        """See `Readable.first`."""
        return piece, 1


def read_file(path: str) -> Iterator[str]:
    r"""Yield the text of a file, without a byte order mark, with line ends normalized to \n.

    Raises:
        DataError: when the file cannot be read or is not UTF-8.
    """
    decoder, newlines = codecs.getincrementaldecoder("utf-8-sig")(), io.IncrementalNewlineDecoder(None, translate=True)
    seen = 0
    try:
        with opened(path) as file:
            for piece in read_pieces(file, path):
                begun = len(decoder.getstate()[0])
                try:
                    yield newlines.decode(decoder.decode(piece))
                except UnicodeDecodeError as error:
                    raise _not_text(path, error, seen - begun) from error
                seen += len(piece)
        begun = len(decoder.getstate()[0])
        try:
            yield newlines.decode(decoder.decode(b"", final=True), final=True)
        except UnicodeDecodeError as error:
            raise _not_text(path, error, seen - begun) from error
    except UserError:
        raise
    except UNREADABLE as error:
        raise DataError(f"cannot read the text {path} ({reason(error)})") from error


def _not_text(path: str, error: UnicodeDecodeError, before: int) -> DataError:
    return DataError(f"{path} is not UTF-8 text ({error.reason} at byte {before + error.start})")


def symbols_of(pieces: Iterable[str], unit: str) -> Iterator[Sequence[str]]:
    """Yield a text in chunks of symbols: characters, or words and line ends."""
    if unit == "character":
        yield from pieces
        return
    parts: list[str] = []  # of a word that is not complete
    for piece in pieces:
        end = max(piece.rfind(" "), piece.rfind(LINE_END)) + 1  # cut between words
        if not end:
            parts.append(piece)
            continue
        yield _words("".join([*parts, piece[:end]]))
        parts = [piece[end:]]
    yield [*_words("".join(parts)), LINE_END]


def _words(text: str) -> list[str]:
    first, *lines = text.split(LINE_END)
    words = first.split()
    for line in lines:
        words.append(LINE_END)
        words += line.split()
    return words


def smallest_type(num_symbols: int) -> np.dtype[Any]:
    """Return the smallest unsigned type, little endian, that can number `num_symbols` symbols."""
    kind = next(each for each in UNSIGNED if num_symbols <= np.iinfo(each).max + 1)
    return np.dtype(kind).newbyteorder("<")


class WindowFile:
    """A .npy file of windows (num_windows, window) that is written row by row.

    Args:
        path: path of the file.
        window: symbols per row.
        dtype: type of a symbol.
    """

    def __init__(self, path: Path, window: int, dtype: np.dtype[Any]) -> None:
        self.path, self.window, self.dtype = path, window, dtype
        self._file = path.open("w+b")
        self._head()
        self._start = self._file.tell()
        self._rest = np.zeros(0, dtype=dtype)
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._file.seek(0)
            self._head()
        self._file.close()

    def __len__(self) -> int:
        return self._rows

    def _head(self) -> None:
        """Write the header, padded so that it can be rewritten for any number of rows."""
        shape = (len(self) if hasattr(self, "_rows") else 0, self.window)
        described = {"descr": np.lib.format.dtype_to_descr(self.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(self._file, described)

    def add(self, symbols: NDArray[Any]) -> None:
        """Append symbols; keep symbols that do not fill a row for the next call."""
        pending = np.concatenate([self._rest, symbols.astype(self.dtype)])
        whole = len(pending) // self.window * self.window
        self._file.write(pending[:whole].data)
        self._rows += whole // self.window
        self._rest = pending[whole:]

    def drop_rest(self) -> int:
        """Discard symbols that do not fill a row; return the number of rows."""
        self._rest = self._rest[:0]
        return len(self)

    def fill_row(self, first: int) -> int:
        """Complete the last row by repeating the symbols from row `first` on; return the number of rows."""
        if missing := -len(self._rest) % self.window:
            self.add(np.resize(self.row(first) if first < len(self) else self._rest, missing))
        return len(self)

    def row(self, number: int) -> NDArray[Any]:
        """Return a written row: (window,)."""
        self._file.flush()
        size = self.window * self.dtype.itemsize
        return np.frombuffer(os.pread(self._file.fileno(), size, self._start + number * size), dtype=self.dtype)

    def pieces(self, rows: int, most: int = 2**24) -> Iterator[bytes]:
        """Yield the bytes of the first `rows` rows in order, in chunks of whole symbols of at most `most` bytes."""
        self._file.flush()
        end = self._start + rows * self.window * self.dtype.itemsize
        most -= most % self.dtype.itemsize
        for place in range(self._start, end, most):
            yield os.pread(self._file.fileno(), min(most, end - place), place)


def read_windows(path: Path) -> NDArray[Any]:
    """Return the windows of a file, memory-mapped."""
    windows: NDArray[Any] = np.load(path, mmap_mode="r")
    return windows


def count_occurrences(texts: Iterable[Iterable[bytes]], wanted: Sequence[bytes], *, size: int = 1) -> list[int]:
    """Count the occurrences of each sequence in texts, overlapping ones included.

    Args:
        texts: the texts, each in pieces of whole symbols.
        size: bytes per symbol; matches that begin within a symbol are not counted.
    """
    if not wanted:
        return []
    different = {sequence: place for place, sequence in enumerate(dict.fromkeys(wanted))}
    search, counts = ahocorasick_rs.BytesAhoCorasick(list(different)), [0] * len(different)
    longest = max(map(len, different))
    for pieces in texts:
        rest, before = b"", 0  # bytes that may begin a sequence, and their offset in the text
        for piece in pieces:
            text, old = rest + piece, len(rest)
            for match, begin, end in search.find_matches_as_indexes(text, overlapping=True):
                counts[match] += end > old and (before + begin) % size == 0
            keep = min(len(text), longest - 1)
            rest, before = text[len(text) - keep :], before + len(text) - keep
    return [counts[different[sequence]] for sequence in wanted]
