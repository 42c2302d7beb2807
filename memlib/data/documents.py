"""Text as windows of a tokenizer's tokens: documents in random order, packed, with canaries as documents of their own.

Who trains on a document is drawn at random, by document, so that those held out are like those trained on; copies of a
document stay together, so that none is held out that stands among the others. What stands before a canary and after it are
the tokenizer's marks of beginning and end, as around a document.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memlib.data.formats import Choices, Format, Space
from memlib.data.secret import keyed_seed
from memlib.data.spelling import Tokenizer
from memlib.data.text import (
    Corpus,
    Secret,
    canary_table,
    check_carriers,
    draw_canaries,
    drawn_kinds,
    insert,
    known_canaries,
    num_carriers,
    place_canaries,
    read_text,
    read_texts,
    split_table,
)
from memlib.errors import UserError
from memlib.specs import SecretsSpec, TextParquetSource, TextSource, TextSpec

ENCODED = 1000  # documents that are tokenized at once
BLANK_LINES = re.compile(r"\n[ \t]*\n\s*")


class Marked(Tokenizer, Protocol):
    """A tokenizer with marks of beginning and end."""

    start: int
    end: int


def read_documents(source: TextSource) -> list[str]:
    """Return the documents of a source: rows of Parquet, or what blank lines part in other text.

    Raises:
        UserError: when it cannot be read or is empty.
    """
    found = read_texts(source) if isinstance(source, TextParquetSource) else BLANK_LINES.split(read_text(source))
    found = [text.strip("\n") for text in found if text.strip()]
    if not found:
        raise UserError(f"the corpus {getattr(source, 'path', source.kind)} is empty")
    return found


def build_documents(
    documents: Sequence[str],
    spec: TextSpec,
    canaries: SecretsSpec,
    tokenizer: Marked,
    *,
    secret: bytes,
    known: Sequence[Secret] = (),
    unseen: Sequence[Secret] = (),
) -> Corpus:
    """Return windows of tokens, with canaries drawn and inserted, or with secrets that the documents hold already.

    Args:
        documents: the corpus.
        spec: window, shares.
        canaries: format and how often each is inserted.
        tokenizer: of the model.
        secret: with the spec's seed, draws who is held out, canaries, windows and places.
        known: secrets that are there already; then nothing is inserted.
        unseen: secrets of their kind that are not there.

    Raises:
        UserError: when there is too little text, a canary longer than a window, or the space too small.
    """
    form = Format(canaries.format, canaries.alphabets)
    places = form.places(spec.unit)
    space = Space(tuple(tuple(range(len(place))) for place in places))
    training, validation = hold_out(documents[: max(1, int(len(documents) * spec.fraction))], spec, canaries, secret)
    packed = [_packed(part, tokenizer, spec.window) for part in (training, validation)]
    plain = [rows for rows, _ in packed]
    if not all(len(rows) for rows in plain):
        raise UserError(
            f"{len(documents)} documents do not fill a window of {spec.window} tokens on either side; take more text or a "
            "shorter window"
        )
    if known:
        text = "\0".join(training)
        drawn, insertions, kinds = known_canaries(
            space, known, unseen, canaries, secret, lambda row: occurrences(text, _texts(places, [row])[0])
        )
        inserted = []
    else:
        drawn, insertions = draw_canaries(space, canaries, secret)
        inserted, kinds = insertions, drawn_kinds(insertions)
    texts = _texts(places, drawn.tolist())
    rng = np.random.default_rng(keyed_seed(secret, "places", canaries.seed))
    carriers = num_carriers(inserted, canaries)
    check_carriers(len(plain[0]), carriers, spec)
    placed = place_canaries(inserted, rng.permutation(len(plain[0]))[:carriers], canaries)
    rows = [np.concatenate(plain)]
    spelt = [np.array(row, dtype=np.int64) for row in tokenizer.encode(texts[: len(inserted)])]
    longest = max((len(row) for row in spelt), default=0)
    if longest + 2 > spec.window:
        raise UserError(
            f"a canary of {longest} tokens and its ends do not fit into a window of {spec.window}; raise data.window"
        )
    for canary, row in placed:
        window = rows[0][row].copy()
        insert(window, spelt[canary], rng, start=tokenizer.start, end=tokenizer.end)
        rows.append(window[None])
    names = [f"window {row:08d}" for row in range(len(rows[0]))]
    symbols = [piece or "" for piece in tokenizer.pieces]
    table = canary_table(drawn, insertions, kinds, texts)
    heads = _heads(packed, (training, validation), documents, {row for _, row in placed})
    return Corpus(np.concatenate(rows), symbols, split_table(names, len(plain[1]), placed), table, heads)


def hold_out(documents: Sequence[str], spec: TextSpec, canaries: SecretsSpec, secret: bytes) -> tuple[list[str], list[str]]:
    """Return the documents that are trained on and those that are held out, each in random order.

    Args:
        documents: all of them; those that stand more than once are held out with all their copies or not at all.
        spec: the share that is held out.
        canaries: whose seed draws.
        secret: draws too.
    """
    rng = np.random.default_rng(keyed_seed(secret, "documents", canaries.seed))
    different = list(dict.fromkeys(documents))
    order = rng.permutation(len(different))
    out = {different[place] for place in order[: max(1, round(len(different) * spec.validation))]}
    shuffled = [documents[place] for place in rng.permutation(len(documents))]
    return [text for text in shuffled if text not in out], [text for text in shuffled if text in out]


def occurrences(text: str, wanted: str) -> int:
    """Return how often a text stands in another, overlaps counted."""
    count, place = 0, text.find(wanted)
    while place >= 0:
        count, place = count + 1, text.find(wanted, place + 1)
    return count


def _packed(documents: Sequence[str], tokenizer: Marked, window: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Whole windows of documents one after another, each with its marks; and where in them each begins, and its tokens."""
    before = [] if tokenizer.start == tokenizer.end else [tokenizer.start]
    parts = [
        np.array([*before, *row, tokenizer.end], dtype=np.int32)
        for first in range(0, len(documents), ENCODED)
        for row in tokenizer.encode(documents[first : first + ENCODED])
    ]
    tokens = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    lengths = np.array([len(part) for part in parts], dtype=np.int64)
    begins = np.cumsum(lengths) - lengths + len(before)
    whole = tokens[: len(tokens) // window * window].reshape(-1, window)
    return whole, np.stack([begins, lengths - len(before) - 1], axis=1)


def _heads(
    packed: Sequence[tuple[NDArray[np.int32], NDArray[np.int64]]],
    sides: Sequence[Sequence[str]],
    documents: Sequence[str],
    replaced: set[int],
) -> NDArray[np.int64]:
    """See `Corpus.heads`.

    Args:
        packed: what `_packed` gave, of those trained on and those held out.
        sides: the documents themselves.
        documents: all of them, in the order of their numbers.
        replaced: rows in which canaries have taken the place of text.
    """
    number: dict[str, int] = {}
    for place, text in enumerate(documents):
        number.setdefault(text, place)
    found, first_row = [], 0
    for side, ((windows, begins), texts) in enumerate(zip(packed, sides, strict=True)):
        copies, seen = Counter(texts), set()
        for text, (begin, length) in zip(texts, begins.tolist(), strict=True):
            row, place = divmod(begin, windows.shape[1])
            if row >= len(windows) or first_row + row in replaced or text in seen:
                continue
            seen.add(text)
            room = min(length, windows.shape[1] - place)
            found.append((number[text], side, copies[text], first_row + row, place, room))
        first_row += len(windows)
    return np.array(sorted(found), dtype=np.int64).reshape(-1, 6)


def _texts(places: Sequence[Sequence[str]], choices: Choices | Sequence[Sequence[int]]) -> list[str]:
    return ["".join(place[choice] for place, choice in zip(places, row, strict=True)) for row in choices]
