"""Documents in separate windows, so that any set of documents can be left out of training.

Packed windows (`memlib.data.text.documents`) mix documents, whose inclusion could then not be drawn one by one. Here a
document ends with its end mark and is padded with -1 to whole windows. Copies of a document share a group, and so do
documents of one author, mailbox or person, if a rule defines such groups; a group is drawn as a whole.
"""

import contextlib
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.data.blind_features import BlindFeatures, text_features
from memlib.data.groups import joined, links_by_name
from memlib.data.id_files import said_of_examples
from memlib.data.splits import TRAIN
from memlib.data.text.corpus import UNKNOWN, build_vocabulary, count_symbols, numbered
from memlib.data.text.documents import ENCODED, Marked, token_digest
from memlib.data.text.streams import LINE_END, Documents, WindowFile, symbols_of
from memlib.errors import DataError, UserError
from memlib.specs import GroupSpec, TextSpec
from memlib.tables import SPLITS

PADDING = -1
OTHERS, UNSCORED, SCORED = 0, 1, 2  # what a symbol of a window is: another document's or padding, or the document's own
FEWEST = 20  # documents, or groups of documents


class Sizes(NamedTuple):
    """Sizes of the kept documents, each (num_documents,) int64."""

    number: NDArray[np.int64]  #: place of the document in the source, counted from 0.
    first: NDArray[np.int64]  #: its first window.
    windows: NDArray[np.int64]  #: windows, tokens: its numbers of windows, and of tokens with its end mark.
    tokens: NDArray[np.int64]
    #: bytes of its text compressed by zlib, an estimate of entropy without a model (Carlini 2021, section 5.1).
    compressed: NDArray[np.int64]


@dataclass(frozen=True)
class DocumentRows:
    """Windows of documents."""

    vocabulary: list[str]  #: symbols by id.
    windows: pa.Table  #: rows of tables.SPLITS, one per window, in order of the windows.
    documents: pa.Table  #: rows of tables.SPLITS, one per document; the column `row` holds the document's first window.
    sizes: Sizes  #: sizes of the documents.
    features: BlindFeatures  #: features of the documents that are known without a model.


class _Document(NamedTuple):
    """A kept document: its place in the source, text, tokens with the end mark, and what is scored of it."""

    number: int
    text: str
    tokens: NDArray[np.int64]
    scored: NDArray[np.bool_]  #: (num_tokens,) whether a token is scored.
    before: NDArray[np.int64]  #: tokens of earlier documents in its first window, if documents are packed.
    parts: Sequence[tuple[int, int]]  #: start and end of each part of the text that is scored, in characters.


def build_rows(
    documents: Documents,
    spec: TextSpec,
    path: Path,
    *,
    shortest: int,
    group: GroupSpec | None = None,
    tokenizer: Marked | None = None,
    scored: str | None = None,
    packed: bool = False,
    marks: Path | None = None,
) -> DocumentRows:
    """Write windows.npy, (num_windows, window) int32, and describe the documents in it.

    The source is streamed; memory holds numbers per document, never the texts.

    Args:
        spec: unit, window length and share of the text.
        shortest: smallest number of tokens of a document; shorter ones are left out.
        group: rules for documents that belong together; a pattern is searched for in the text.
        tokenizer: tokenizer of a pretrained model, for unit token.
        scored: regular expression whose first group is the part of a document that is scored; None: all of it.
        packed: put each document where it would lie among all in the order of the source, joined and cut into windows; what
            precedes it in its first window is the end of earlier ones.
        marks: with `scored` or `packed`, path of what each symbol is: (num_windows, window) of OTHERS, UNSCORED and SCORED.

    Raises:
        UserError: if a rule for groups fits no document, too few documents are left, or the tokenizer does not tell the
            places of its tokens.
    """
    vocabulary = _vocabulary(documents, spec, tokenizer)
    sizes: list[tuple[int, int, int, int, int]] = []
    digests, names = [], []
    with WindowFile(path, spec.window, np.dtype("<i4")) as file, _marks(marks, spec.window) as marked:
        for document in _kept(documents, spec, vocabulary, tokenizer, shortest, scored, packed):
            tokens, first = document.tokens, len(file)
            row = np.concatenate([document.before, tokens])
            file.add(np.pad(row, (0, -len(row) % spec.window), constant_values=PADDING))
            if marked is not None:
                mine = np.where(document.scored, SCORED, UNSCORED)
                own = np.concatenate([np.full(len(document.before), OTHERS), mine])
                marked.add(np.pad(own, (0, -len(own) % spec.window), constant_values=OTHERS))
            said = "".join(document.text[start:stop] for start, stop in document.parts)
            data = said.encode("utf-8", "replace")
            sizes.append((document.number, first, len(file) - first, int(document.scored.sum()), len(zlib.compress(data))))
            digests.append(token_digest(tokens))
            names.append(_named(document.text, group))
    if len(sizes) < FEWEST:
        raise DataError(
            f"{documents.name} has {len(sizes)} documents of at least {shortest} {'scored ' if scored else ''}tokens, and an "
            f"audit needs {FEWEST}; lower shortest, raise data.fraction, or use more text"
        )
    found = Sizes(*np.array(sizes, dtype=np.int64).T)
    groups = _groups(np.array(digests, dtype=np.uint64), names, found, group)
    ids = [f"document {number:08d}" for number in found.number.tolist()]
    labels = [f"group {number:08d}" for number in groups.tolist()]
    return DocumentRows(
        vocabulary,
        pool_rows(_window_ids(ids, found), np.repeat(np.array(labels, dtype=object), found.windows).tolist()),
        pool_rows(ids, labels, found.first),
        found,
        text_features(_texts(documents, spec, found)),
    )


def _vocabulary(documents: Documents, spec: TextSpec, tokenizer: Marked | None) -> list[str]:
    if tokenizer is not None:
        return [piece or "" for piece in tokenizer.pieces]
    chunks = (chunk for text in documents.beginning(spec.fraction) for chunk in symbols_of([text], spec.unit))
    return build_vocabulary(count_symbols(chunks, spec.unit), [], spec.vocabulary, spec.unit)


@contextlib.contextmanager
def _marks(path: Path | None, window: int) -> Iterator[WindowFile | None]:
    if path is None:
        yield None
        return
    with WindowFile(path, window, np.dtype("u1")) as file:
        yield file


def parts_of(text: str, scored: str | None) -> list[tuple[int, int]]:
    """Return start and end of each part of a text that is scored: the first group of a pattern, or else the whole text.

    Example:
        >>> parts_of("Q: why? A: so. Q: when? A: now.", r"A: (.*?)[.]")
        [(11, 13), (27, 30)]
    """
    if scored is None:
        return [(0, len(text))]
    return [match.span(1 if match.re.groups else 0) for match in re.finditer(scored, text)]


def _kept(
    documents: Documents, spec: TextSpec, vocabulary: Sequence[str], tokenizer: Marked | None, shortest: int,
    scored: str | None, packed: bool,
) -> Iterator[_Document]:  # fmt: skip
    """Yield the documents that are long enough, by their tokens that are scored."""
    texts, number, before = documents.beginning(spec.fraction), 0, np.zeros(0, dtype=np.int64)
    while some := list(islice(texts, ENCODED)):
        encoded = list(_encoded(some, spec, vocabulary, tokenizer))
        for text, tokens, ends in zip(some, encoded, _ends(some, encoded, spec, tokenizer, scored), strict=True):
            parts = parts_of(text, scored)
            chosen = np.ones(len(tokens), dtype=bool) if scored is None else _within(ends, parts)
            if int(chosen.sum()) >= shortest:
                yield _Document(number, text, tokens, chosen, before, parts)
            if packed:
                stream = np.concatenate([before, tokens])
                before = stream[len(stream) // spec.window * spec.window :]
            number += 1


def _within(ends: NDArray[np.int64], parts: Sequence[tuple[int, int]]) -> NDArray[np.bool_]:
    """Return which tokens overlap parts of a text, given where each token ends: (num_tokens,); an end mark overlaps none."""
    starts, found = np.concatenate([[0], ends[:-1]]), np.zeros(len(ends), dtype=bool)
    for start, stop in parts:
        found |= np.maximum(starts, start) < np.minimum(ends, stop)
    return found


def _ends(
    texts: Sequence[str], encoded: Sequence[NDArray[np.int64]], spec: TextSpec, tokenizer: Marked | None, scored: str | None
) -> Iterator[NDArray[np.int64]]:
    """Yield where each token of each text ends, in characters, and the end mark with the text."""
    if scored is None:
        yield from (np.zeros(0, dtype=np.int64) for _ in texts)
    elif tokenizer is not None:
        yield from (
            np.array([*ends, len(text)], dtype=np.int64) for text, ends in zip(texts, tokenizer.ends(texts), strict=True)
        )
    else:  # of characters
        yield from (np.minimum(np.arange(1, len(row) + 1), len(text)) for text, row in zip(texts, encoded, strict=True))


def _encoded(
    texts: Sequence[str], spec: TextSpec, vocabulary: Sequence[str], tokenizer: Marked | None
) -> Iterator[NDArray[np.int64]]:
    """Yield the tokens of each text, followed by an end mark: the tokenizer's, or a line end."""
    if tokenizer is not None:
        for row in tokenizer.encode(texts):
            yield np.array([*row, tokenizer.end], dtype=np.int64)
        return
    number = {symbol: place for place, symbol in enumerate(vocabulary)}
    end = LINE_END if spec.unit == "character" else ""  # a text of words ends with a line end anyway
    for text in texts:
        chunks = numbered(symbols_of([text + end], spec.unit), spec.unit, number, number.get(UNKNOWN, 0))
        yield np.concatenate([*chunks]).astype(np.int64)


def _named(text: str, group: GroupSpec | None) -> str | None:
    """Return the group that a document's text names; None if it names none."""
    match = None if group is None or group.pattern is None else re.search(group.pattern, text, re.MULTILINE)
    return None if match is None else match.group(1 if match.re.groups else 0)


def _groups(
    digests: NDArray[np.uint64], names: Sequence[str | None], sizes: Sizes, group: GroupSpec | None
) -> NDArray[np.int64]:
    """Return the group of each document: copies belong together, and documents that a rule joins."""
    copies = np.unique(digests, return_inverse=True)[1].astype(np.int64)
    links = links_by_name(names)
    if group is not None and group.pattern is not None and not any(name is not None for name in names):
        raise UserError(f"split.group.pattern {group.pattern!r} occurs in the text of no document; change the pattern")
    if group is not None and group.path is not None:
        said = said_of_examples(group.path, "group", setting="split.group.path")
        listed = [said.get(f"document {number:08d}") for number in sizes.number.tolist()]
        if not any(name is not None for name in listed):
            raise UserError(f"{group.path} names none of the {len(listed)} documents; ids look like 'document 00000012'")
        links += links_by_name(listed)
    return np.unique(joined(copies, links), return_inverse=True)[1].astype(np.int64)


def _window_ids(ids: Sequence[str], sizes: Sizes) -> list[str]:
    counts = sizes.windows.tolist()
    return [f"{name} window {window:06d}" for name, count in zip(ids, counts, strict=True) for window in range(count)]


def pool_rows(ids: Sequence[str], groups: Sequence[str], rows: NDArray[np.int64] | None = None) -> pa.Table:
    """Return the examples of a pool as rows of tables.SPLITS, all with the role TRAIN."""
    count = len(ids)
    columns: dict[str, Any] = {
        "example_id": pa.array(ids),
        "row": pa.array(np.arange(count) if rows is None else rows),
        "role": pa.repeat(TRAIN, count),
        "label": pa.array(np.zeros(count, dtype=np.int64)),
        "class_name": pa.repeat("", count),
        "group": pa.array(groups),
    }
    return pa.table({name: columns.get(name, pa.nulls(count)) for name in SPLITS.arrow.names}).cast(SPLITS.arrow)


def _texts(documents: Documents, spec: TextSpec, sizes: Sizes) -> Iterator[str]:
    """Yield the texts of the kept documents."""
    kept = set(sizes.number.tolist())
    return (text for number, text in enumerate(documents.beginning(spec.fraction)) if number in kept)
