"""Text as windows of a tokenizer's tokens: documents packed in random order, with each canary as a separate document.

The held-out documents are drawn at random, so that they are distributed like the training documents; copies of a document
stay together, so that no held-out document has a copy in the training text. A canary, like a document, is enclosed in the
tokenizer's beginning and end marks.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import islice, repeat
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from memlib.data.formats import Choices, Format, Space
from memlib.data.secret import keyed_seed
from memlib.data.spelling import Tokenizer
from memlib.data.streams import (
    Documents,
    WindowFile,
    count_occurrences,
    open_text,
    read_rows,
    read_windows,
    smallest_type,
)
from memlib.data.text import (
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
from memlib.errors import UserError
from memlib.specs import SecretsSpec, TextParquetSource, TextSource, TextSpec

ENCODED = 1000  # documents that are tokenized at once
BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")
FINGERPRINT = 16  # bytes of the hash by which copies of a document are found


class Marked(Tokenizer, Protocol):
    """A tokenizer with beginning and end marks."""

    start: int
    end: int


def open_documents(source: TextSource) -> Documents:
    """Return the documents of a source: the rows of Parquet files, or other text split at blank lines."""

    def read() -> Iterator[str]:
        texts = read_rows(source) if isinstance(source, TextParquetSource) else _parted(open_text(source).read())
        return (text.strip("\n") for text in texts if text.strip())

    return Documents(read, str(getattr(source, "path", source.kind)))


def _parted(pieces: Iterator[str]) -> Iterator[str]:
    """Split a text at blank lines."""
    rest = ""
    for piece in pieces:
        text, begin = rest + piece, 0
        for blank in BLANK_LINES.finditer(text):
            if blank.end() < len(text):  # else the blank may continue in the next piece
                yield text[begin : blank.start()]
                begin = blank.end()
        rest = text[begin:]
    yield from BLANK_LINES.split(rest)


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
        documents: the corpus.
        spec: window, shares.
        canaries: format and numbers of insertions.
        tokenizer: the model's.
        windows: file that the windows are written to.
        secret: with the spec's seed, determines the held-out documents, canaries, carrying windows and places.
        known: secrets that the text already contains; nothing is inserted if there are any.
        unseen: secrets of the same kind that the text does not contain.

    Raises:
        UserError: when there is too little text, a canary is longer than a window, or the candidate space is too small.
        RunError: when the documents change while they are read.
    """
    form = Format(canaries.format, canaries.alphabets)
    places = form.places(spec.unit)
    space = Space(tuple(tuple(range(len(place))) for place in places))
    firsts = find_copies(documents, spec.fraction)
    sides = hold_out(firsts, spec, canaries, secret)
    with WindowFile(windows, spec.window, smallest_type(len(tokenizer.pieces))) as file:
        packed = _pack(documents.beginning(spec.fraction), len(firsts), sides, tokenizer, file)
        training, plain = packed[0].last, packed[1].last
        if not 0 < training < plain:
            raise UserError(
                f"{documents.measured.length} documents do not fill a window of {spec.window} tokens on both sides, training "
                "and held-out; use more text or a shorter window"
            )
        if known:
            trained_on = np.zeros(len(firsts), dtype=bool)
            trained_on[sides[0]] = True

            def occurrences(rows: Sequence[Sequence[int]]) -> list[int]:
                texts = ([text.encode()] for text, here in zip(documents.read(), trained_on, strict=False) if here)
                return count_occurrences(texts, [text.encode() for text in _texts(places, rows)])

            drawn, insertions, kinds = known_canaries(space, known, unseen, canaries, secret, occurrences)
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
            raise UserError(
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


def find_copies(documents: Documents, fraction: float) -> NDArray[np.int64]:
    """Return, for each document of the first part, the number of the first document with the same text: (num_documents,).

    Raises:
        RunError: when the documents have changed since they were measured.
    """
    prints = np.zeros(max(1, int(documents.measured.length * fraction)), dtype=f"S{FINGERPRINT}")
    for number, text in enumerate(documents.beginning(fraction)):
        prints[number] = hashlib.blake2b(text.encode(), digest_size=FINGERPRINT).digest()
    _, first, which = np.unique(prints, return_index=True, return_inverse=True)
    return first[which].astype(np.int64)


def hold_out(
    firsts: NDArray[np.int64], spec: TextSpec, canaries: SecretsSpec, secret: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the training documents and of the held-out documents, each in random order.

    Args:
        firsts: result of `find_copies`; a document is held out with all its copies or not at all.
        spec: gives the share to hold out.
        canaries: gives the seed of the draw.
        secret: key of the draw.
    """
    rng = np.random.default_rng(keyed_seed(secret, "documents", canaries.seed))
    different = np.unique(firsts)
    order = rng.permutation(len(different))
    out = np.isin(firsts, different[order[: max(1, round(len(different) * spec.validation))]])
    shuffled = rng.permutation(len(firsts))
    return shuffled[~out[shuffled]], shuffled[out[shuffled]]


class _Packed(NamedTuple):
    """Documents of one side (training or held-out), in their order in its rows.

    Attributes:
        begins, lengths: offset of each text in tokens, counted from the side's first row, and its number of tokens.
        first, last: the side's first row, and the row after its last.
    """

    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first: int
    last: int


def _pack(
    documents: Iterator[str], count: int, sides: Sequence[NDArray[np.int64]], tokenizer: Marked, file: WindowFile
) -> list[_Packed]:
    """Write each side's documents, with their marks, as consecutive whole windows.

    The tokens are kept in an unnamed temporary file until they are written in random order.
    """
    lengths, number = np.zeros(count, dtype=np.int64), 0
    with TemporaryFile(dir=file.path.parent) as unordered:
        while texts := list(islice(documents, ENCODED)):
            for row in tokenizer.encode(texts):
                unordered.write(np.array(row, dtype=file.dtype).data)
                lengths[number] = len(row)
                number += 1
        unordered.flush()
        places = (np.cumsum(lengths) - lengths) * file.dtype.itemsize
        before = [] if tokenizer.start == tokenizer.end else [tokenizer.start]
        start, end = np.array(before, dtype=file.dtype).tobytes(), np.array([tokenizer.end], dtype=file.dtype).tobytes()
        packed, descriptor = [], unordered.fileno()
        for side in sides:
            first = len(file)
            for some in np.array_split(side, max(1, len(side) // ENCODED)):
                sizes = lengths[some] * file.dtype.itemsize
                spelt = map(os.pread, repeat(descriptor), sizes.tolist(), places[some].tolist())
                file.add(np.frombuffer(b"".join(start + row + end for row in spelt), dtype=file.dtype))
            side_lengths = lengths[side]
            stops = np.cumsum(side_lengths + len(before) + 1)
            packed.append(_Packed(stops - 1 - side_lengths, side_lengths, first, file.drop_rest()))
    return packed


def _heads(
    packed: Sequence[_Packed],
    sides: Sequence[NDArray[np.int64]],
    firsts: NDArray[np.int64],
    window: int,
    replaced: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Compute `Corpus.heads`.

    Args:
        packed: result of `_pack`.
        sides: numbers of the documents of each side.
        firsts: result of `find_copies`.
        window: tokens per row.
        replaced: rows whose text was replaced by canaries.
    """
    copies = np.bincount(firsts)
    parts = []
    for side, (part, numbers) in enumerate(zip(packed, sides, strict=True)):
        row, place = part.first + part.begins // window, part.begins % window
        here = np.flatnonzero((row < part.last) & ~np.isin(row, replaced))
        text, kept = np.unique(firsts[numbers[here]], return_index=True)
        kept = here[kept]
        room = np.minimum(part.lengths[kept], window - place[kept])
        parts.append(np.stack([text, np.full(len(text), side), copies[text], row[kept], place[kept], room], axis=1))
    heads = np.concatenate(parts).astype(np.int64)
    return heads[np.argsort(heads[:, 0])]


def _texts(places: Sequence[Sequence[str]], choices: Choices | Sequence[Sequence[int]]) -> list[str]:
    return ["".join(place[choice] for place, choice in zip(places, row, strict=True)) for row in choices]
