"""Text as windows of a tokenizer's tokens: documents packed in random order, with each canary as a separate document.

The held-out documents are drawn at random, so that they are distributed like the training documents. Documents that begin
alike stay together, so that no training document begins like a held-out document. The last window of each side is filled
up with the side's first tokens, as dropping this window would favour long documents. A canary, like a document, is
enclosed in the tokenizer's beginning and end marks.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import keyed_seed
from memlib.data.text.corpus import (
    Corpus,
    Rows,
    Secret,
    canary_table,
    check_carriers,
    draw_canaries,
    drawn_kinds,
    insert,
    known_canaries,
    num_carriers,
    place_canaries,
)
from memlib.data.text.formats import Choices, Format, Space
from memlib.data.text.scan import single_secrets
from memlib.data.text.sources import open_text, records_of
from memlib.data.text.spelling import Tokenizer
from memlib.data.text.streams import (
    LONGEST,
    Documents,
    WindowFile,
    count_occurrences,
    read_windows,
    smallest_type,
)
from memlib.errors import DataError
from memlib.specs import SecretsSpec, TextSource, TextSpec

ENCODED = 1000  # number of documents that are tokenized at once
BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")
BLANK_REST = re.compile(r"[ \t]*\n\s*")  # what turns a line end, followed by spaces and tabs, into blank lines
BEGINNING = 32  # leading tokens by which documents are told apart: the default prefix plus suffix of `discoverable`


class Marked(Tokenizer, Protocol):
    """A tokenizer with beginning and end marks."""

    start: int
    end: int

    def ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Return where each token of each text ends, in characters."""
        ...


def open_documents(source: TextSource) -> Documents:
    """Return the documents of a source: its records, or else passages between blank lines."""
    name, records = str(getattr(source, "path", source.kind)), records_of(source)

    def read() -> Iterator[str]:
        texts = _parted(open_text(source).read(), name) if records is None else records
        return (text.strip("\n") for text in texts if text.strip())

    return Documents(read, name, list if records is None else records.remarks)


def _parted(pieces: Iterator[str], name: str = "text") -> Iterator[str]:
    """Split a text at blank lines, as `BLANK_LINES.split` does, searching each piece once.

    Raises:
        DataError: when a document is too long.
    """
    parts: list[str] = []  # of a document that is not complete
    blank = opened = False  # whether the text so far ends with blank lines; or with a line end and then only spaces and tabs
    size = 0
    for piece in pieces:
        rest = piece.lstrip() if blank else piece
        if not rest:
            continue
        if opened and (ended := BLANK_REST.match(rest)):
            whole = "".join(parts)
            yield whole[: whole.rindex("\n")]
            parts, size, rest = [], 0, rest[ended.end() :]
            opened, blank = False, not rest
            if blank:
                continue
        *texts, last = BLANK_LINES.split(rest)
        for text in texts:
            yield "".join([*parts, text])
            parts, size, opened = [], 0, False
        parts.append(last)
        size += len(last)
        if size > LONGEST:
            raise DataError(
                f"a document in {name} has more than {LONGEST:,} characters without a blank line; separate "
                "documents by blank lines, or use Parquet files with one document per row"
            )
        blank = bool(texts) and not last
        words = last.rstrip(" \t")
        opened = words.endswith("\n") or (opened and not words)
    yield "".join(parts)


def build_documents(
    documents: Documents,
    spec: TextSpec,
    canaries: SecretsSpec,
    tokenizer: Marked,
    windows: Path,
    *,
    secret: bytes,
    known: Sequence[Secret] = (),
    unseen: Sequence[Secret] = (),
) -> Corpus:
    """Write windows of tokens: draw and insert canaries, or use secrets that the documents already contain.

    Args:
        spec: window length and shares.
        canaries: format and numbers of insertions.
        tokenizer: the model's tokenizer.
        windows: path of the file to which the windows are written.
        secret: with the seed of `canaries`, determines the held-out documents, the canaries, the windows that carry them,
            and their places.
        known: secrets that the text already contains; nothing is inserted if there are any.
        unseen: secrets of the same kind that the text does not contain.

    Raises:
        DataError: when there is too little text, a canary is longer than a window, or the candidate space is too small.
            The draw of the held-out documents does not affect whether there is too little text.
        RunError: when the documents change while they are read.
    """
    form = Format(canaries.format, canaries.alphabets)
    places = form.places(spec.unit)
    space = Space(tuple(tuple(range(len(place))) for place in places))
    kind = smallest_type(len(tokenizer.pieces))
    with TemporaryFile(dir=windows.parent) as unordered, WindowFile(windows, spec.window, kind) as file:
        count = max(1, int(documents.measured.length * spec.fraction))
        encoded = _encode(documents.beginning(spec.fraction), count, tokenizer, unordered, kind)
        firsts = find_copies(encoded.wholes, encoded.beginnings, spec.validation)
        sides = hold_out(firsts, spec, canaries, secret)
        _check_size(encoded, sides, spec)
        packed = [_pack(encoded, side, tokenizer, file) for side in sides]
        training, plain = packed[0].last, packed[1].last
        if known:
            times = _times_trained(packed[0], sides[0], count, spec.window)

            def occurrences(rows: Sequence[Sequence[int]]) -> list[int]:
                trained = (text for text, number in zip(documents.read(), times, strict=False) for _ in range(number))
                return count_occurrences(([text.encode()] for text in trained), [t.encode() for t in _texts(places, rows)])

            def single(rows: Sequence[Sequence[int]]) -> list[bool]:
                return single_secrets(zip(firsts.tolist(), documents.read(), strict=False), _texts(places, rows))

            drawn, insertions, kinds = known_canaries(space, known, unseen, canaries, secret, occurrences, single)
            inserted = []
        else:
            drawn, insertions = draw_canaries(space, canaries, secret)
            inserted, kinds = insertions, drawn_kinds(insertions)
        texts = _texts(places, drawn.tolist())
        rng = np.random.default_rng(keyed_seed(secret, "places", canaries.seed))
        carriers = num_carriers(inserted, canaries)
        check_carriers(training, carriers, spec)
        placed = place_canaries(inserted, rng.permutation(training)[:carriers], canaries)
        spelt = [np.array(row, dtype=np.int64) for row in tokenizer.encode(texts[: len(inserted)])]
        longest = max((len(row) for row in spelt), default=0)
        if longest + 2 > spec.window:
            raise DataError(
                f"a canary of {longest} tokens and its end marks do not fit into a window of {spec.window}; raise data.window"
            )
        for canary, row in placed:
            window = file.row(row).copy()
            insert(window, spelt[canary], rng, start=tokenizer.start, end=tokenizer.end)
            file.add(window)
    symbols = [piece or "" for piece in tokenizer.pieces]
    table = canary_table(drawn, insertions, kinds, texts)
    heads = _heads(packed, sides, firsts, spec.window, np.array(sorted({row for _, row in placed}), dtype=np.int64))
    return Corpus(read_windows(windows), symbols, Rows("window", plain, plain - training, placed), table, heads)


class _Encoded(NamedTuple):
    """The documents' tokens, one document after another in a file, and digests that tell documents apart."""

    file: IO[bytes]  #: file of the tokens.
    lengths: NDArray[np.int64]  #: number of tokens of each document.
    wholes: NDArray[np.uint64]  #: wholes, beginnings: digests of each document's tokens, and of the first BEGINNING of them.
    beginnings: NDArray[np.uint64]


def _encode(documents: Iterator[str], count: int, tokenizer: Marked, file: IO[bytes], dtype: np.dtype[Any]) -> _Encoded:
    """Write the tokens of `count` documents to an unnamed temporary file, from which they are read in random order."""
    lengths, digests, number = np.zeros(count, dtype=np.int64), np.zeros((2, count), dtype=np.uint64), 0
    while texts := list(islice(documents, ENCODED)):
        for row in tokenizer.encode(texts):
            tokens = np.array(row, dtype=dtype)
            file.write(tokens.data)
            lengths[number] = len(row)
            digests[:, number] = token_digest(tokens), token_digest(tokens[:BEGINNING])
            number += 1
    file.flush()
    return _Encoded(file, lengths, *digests)


def token_digest(tokens: NDArray[Any]) -> int:
    """Return a digest of 64 bits, by which equal rows of tokens are found."""
    return int.from_bytes(hashlib.blake2b(tokens.tobytes(), digest_size=8).digest())


def find_copies(wholes: NDArray[np.uint64], beginnings: NDArray[np.uint64], share: float) -> NDArray[np.int64]:
    """Return, for each document, the number of the first document of which it counts as a copy: (num_documents,).

    Documents that begin alike are copies, because their beginnings cannot be both trained on and held out. A beginning
    (such as a licence or a letterhead) that is shared by more different documents than are held out does not tell documents
    apart; of the documents with such a beginning, only identical ones are copies.

    Args:
        wholes, beginnings: digests of each document and of its beginning.
        share: share of the documents that is held out.
    """
    _, first, text = np.unique(wholes, return_index=True, return_inverse=True)
    _, beginning, count = np.unique(beginnings[first], return_inverse=True, return_counts=True)
    earliest = np.full(len(count), len(wholes), dtype=np.int64)
    np.minimum.at(earliest, beginning, first)
    rare = count <= max(1, share * len(first))
    copied: NDArray[np.int64] = np.where(rare[beginning], earliest[beginning], first)[text]
    return copied


def hold_out(
    firsts: NDArray[np.int64], spec: TextSpec, canaries: SecretsSpec, secret: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the training documents and of the held-out documents, each in random order.

    Args:
        firsts: result of `find_copies`; a document is held out with all its copies or not at all.
        spec: settings with the share of documents to hold out.
        canaries: settings with the seed of the draw.
    """
    rng = np.random.default_rng(keyed_seed(secret, "documents", canaries.seed))
    different = np.unique(firsts)
    order = rng.permutation(len(different))
    out = np.isin(firsts, different[order[: max(1, round(len(different) * spec.validation))]])
    shuffled = rng.permutation(len(firsts))
    return shuffled[~out[shuffled]], shuffled[out[shuffled]]


def _check_size(encoded: _Encoded, sides: Sequence[NDArray[np.int64]], spec: TextSpec) -> None:
    """Refuse too few documents, judged by the expected size of a side, so that the draw does not decide."""
    tokens, smaller = int(encoded.lengths.sum()) + len(encoded.lengths), min(spec.validation, 1 - spec.validation)
    if tokens * smaller < spec.window or not all(map(len, sides)):
        raise DataError(
            f"{len(encoded.lengths)} documents of {tokens:,} tokens are too few to fill a window of {spec.window} tokens on "
            f"both sides (training and held-out); use {math.ceil(spec.window / smaller):,} tokens of different documents, or "
            "lower data.window"
        )


class _Packed(NamedTuple):
    """Documents of one side (training or held-out), in the order in which its rows contain them."""

    #: begins, lengths: offset of each text in tokens, counted from the side's first row, and its number of tokens.
    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first: int  #: first, last: the side's first row, and the row after its last.
    last: int


def _pack(encoded: _Encoded, side: NDArray[np.int64], tokenizer: Marked, file: WindowFile) -> _Packed:
    """Write a side's documents, each with its start and end tokens, as consecutive windows, and fill the last window with
    tokens from the start of the side; return the documents' positions.
    """
    size = file.dtype.itemsize
    places = (np.cumsum(encoded.lengths) - encoded.lengths) * size
    before = [] if tokenizer.start == tokenizer.end else [tokenizer.start]
    start, end = np.array(before, dtype=file.dtype).tobytes(), np.array([tokenizer.end], dtype=file.dtype).tobytes()
    first, descriptor, lengths = len(file), encoded.file.fileno(), encoded.lengths[side]
    for some in np.array_split(side, max(1, len(side) // ENCODED)):
        sizes = encoded.lengths[some] * size
        spelt = map(os.pread, repeat(descriptor), sizes.tolist(), places[some].tolist())
        file.add(np.frombuffer(b"".join(start + row + end for row in spelt), dtype=file.dtype))
    stops = np.cumsum(lengths + len(before) + 1)
    return _Packed(stops - 1 - lengths, lengths, first, file.fill_row(first))


def _times_trained(training: _Packed, side: NDArray[np.int64], count: int, window: int) -> NDArray[np.int64]:
    """Return how often each document occurs in full in the training windows: (num_documents,)."""
    stops = training.begins + training.lengths
    again, rest = divmod((training.last - training.first) * window, int(stops[-1]) + 1)
    times = np.zeros(count, dtype=np.int64)
    times[side] = again + (stops <= rest)
    return times


def _heads(
    packed: Sequence[_Packed],
    sides: Sequence[NDArray[np.int64]],
    firsts: NDArray[np.int64],
    window: int,
    replaced: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Compute `Corpus.heads`.

    Args:
        packed: result of `_pack` for each side.
        sides: numbers of the documents of each side.
        firsts: result of `find_copies`.
        window: tokens per row.
        replaced: rows whose text was replaced by canaries.
    """
    different, copies = np.unique(firsts, return_counts=True)
    heads = np.zeros((len(different), 7), dtype=np.int64)
    heads[:, 0], heads[:, 2] = different, copies
    for side, (part, numbers) in enumerate(zip(packed, sides, strict=True)):
        room = np.minimum(part.lengths, window - part.begins % window)
        room[np.isin(part.first + part.begins // window, replaced)] = 0
        order = np.argsort(-room, kind="stable")[::-1]  # of several copies, the one with the most room is written last
        at = np.searchsorted(different, firsts[numbers[order]])
        heads[at, 1] = side
        heads[at, 3] = part.first + part.begins[order] // window
        heads[at, 4] = part.begins[order] % window
        heads[at, 5] = room[order]
        heads[at, 6] = part.lengths[order]
    return heads


def _texts(places: Sequence[Sequence[str]], choices: Choices | Sequence[Sequence[int]]) -> list[str]:
    return ["".join(place[choice] for place, choice in zip(places, row, strict=True)) for row in choices]
