"""Text as windows of a tokenizer's tokens: documents in random order, packed, with canaries as documents of their own.

Who trains on a document is drawn at random, by document, so that those held out are like those trained on; copies of a
document stay together, so that none is held out that stands among the others. What stands before a canary and after it are
the tokenizer's marks of beginning and end, as around a document.
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
FINGERPRINT = 16  # bytes by which copies of a document are found


class Marked(Tokenizer, Protocol):
    """A tokenizer with marks of beginning and end."""

    start: int
    end: int


def open_documents(source: TextSource) -> Documents:
    """Return the documents of a source: rows of Parquet, or what blank lines part in other text."""

    def read() -> Iterator[str]:
        found = read_rows(source) if isinstance(source, TextParquetSource) else _parted(open_text(source).read())
        return (text.strip("\n") for text in found if text.strip())

    return Documents(read, str(getattr(source, "path", source.kind)))


def _parted(pieces: Iterator[str]) -> Iterator[str]:
    """Yield what blank lines part."""
    rest = ""
    for piece in pieces:
        text, begin = rest + piece, 0
        for blank in BLANK_LINES.finditer(text):
            if blank.end() < len(text):  # else it may go on
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
    """Write windows of tokens, with canaries drawn and inserted, or with secrets that the documents hold already.

    Args:
        documents: the corpus.
        spec: window, shares.
        canaries: format and how often each is inserted.
        tokenizer: of the model.
        windows: the file that they are written to.
        secret: with the spec's seed, draws who is held out, canaries, windows and places.
        known: secrets that are there already; then nothing is inserted.
        unseen: secrets of their kind that are not there.

    Raises:
        UserError: when there is too little text, a canary longer than a window, or the space too small.
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
                f"{documents.measured.length} documents do not fill a window of {spec.window} tokens on either side; take "
                "more text or a shorter window"
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
                f"a canary of {longest} tokens and its ends do not fit into a window of {spec.window}; raise data.window"
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
    """Return for each document of the first part the number of the first one with the same text: (num_documents,).

    Raises:
        RunError: when they are no longer those that were measured.
    """
    prints = np.zeros(max(1, int(documents.measured.length * fraction)), dtype=f"S{FINGERPRINT}")
    for number, text in enumerate(documents.beginning(fraction)):
        prints[number] = hashlib.blake2b(text.encode(), digest_size=FINGERPRINT).digest()
    _, first, which = np.unique(prints, return_index=True, return_inverse=True)
    return first[which].astype(np.int64)


def hold_out(
    firsts: NDArray[np.int64], spec: TextSpec, canaries: SecretsSpec, secret: bytes
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of the documents that are trained on and of those that are held out, each in random order.

    Args:
        firsts: of `find_copies`; documents that stand more than once are held out with all their copies or not at all.
        spec: the share that is held out.
        canaries: whose seed draws.
        secret: draws too.
    """
    rng = np.random.default_rng(keyed_seed(secret, "documents", canaries.seed))
    different = np.unique(firsts)
    order = rng.permutation(len(different))
    out = np.isin(firsts, different[order[: max(1, round(len(different) * spec.validation))]])
    shuffled = rng.permutation(len(firsts))
    return shuffled[~out[shuffled]], shuffled[out[shuffled]]


class _Packed(NamedTuple):
    """Documents of one side, in the order in which they stand in its rows.

    Attributes:
        begins, lengths: where the text of each begins, counted from the side's first row, and its tokens.
        first, last: the side's first row, and the one after its last.
    """

    begins: NDArray[np.int64]
    lengths: NDArray[np.int64]
    first: int
    last: int


def _pack(
    documents: Iterator[str], count: int, sides: Sequence[NDArray[np.int64]], tokenizer: Marked, file: WindowFile
) -> list[_Packed]:
    """Write whole windows of the documents of each side one after another, each with its marks.

    The tokens lie in a file without a name until they are written in their order.
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
        found, descriptor = [], unordered.fileno()
        for side in sides:
            first = len(file)
            for some in np.array_split(side, max(1, len(side) // ENCODED)):
                sizes = lengths[some] * file.dtype.itemsize
                spelt = map(os.pread, repeat(descriptor), sizes.tolist(), places[some].tolist())
                file.add(np.frombuffer(b"".join(start + row + end for row in spelt), dtype=file.dtype))
            mine = lengths[side]
            stops = np.cumsum(mine + len(before) + 1)
            found.append(_Packed(stops - 1 - mine, mine, first, file.drop_rest()))
    return found


def _heads(
    packed: Sequence[_Packed],
    sides: Sequence[NDArray[np.int64]],
    firsts: NDArray[np.int64],
    window: int,
    replaced: NDArray[np.int64],
) -> NDArray[np.int64]:
    """See `Corpus.heads`.

    Args:
        packed: of `_pack`.
        sides: the numbers of the documents.
        firsts: of `find_copies`.
        window: tokens of a row.
        replaced: rows in which canaries have taken the place of text.
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
    found = np.concatenate(parts).astype(np.int64)
    return found[np.argsort(found[:, 0])]


def _texts(places: Sequence[Sequence[str]], choices: Choices | Sequence[Sequence[int]]) -> list[str]:
    return ["".join(place[choice] for place, choice in zip(places, row, strict=True)) for row in choices]
