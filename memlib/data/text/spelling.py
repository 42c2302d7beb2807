"""Candidates as token sequences of a tokenizer.

A tokenizer merges characters: "281" may be one token, or two. A candidate is scored as the single token sequence that the
tokenizer produces for its text. A walk through prefixes follows every token that fits the format, but accepts a path only
if it equals the tokenizer's own encoding of the text.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memlib.data.text.formats import Candidates, Choices, Format
from memlib.errors import UserError

TRIED = 64  # number of candidates tokenized to find the token boundaries before the first hole


class Tokenizer(Protocol):
    """Interface of a tokenizer."""

    @property
    def pieces(self) -> Sequence[str | None]:
        """The text of every token; None for tokens without a text."""
        ...

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without beginning and end marks."""
        ...


@dataclass(frozen=True)
class Spelled(Candidates):
    """Candidates of a format under a tokenizer."""

    slots: tuple[tuple[str, ...], ...]  #: the possible characters at each place.
    tokenizer: Tokenizer  #: the model's tokenizer.
    text_before: str  #: known text before the first slot.
    lead: str  #: characters that the tokenizer puts before every text: a space or nothing.
    context: tuple[int, ...]  #: the tokens of the known text.

    ambiguous = True

    def tokens(self, choices: Choices) -> NDArray[np.int64]:
        """See `Candidates.tokens`."""
        rows = self._spelt(self.texts(choices))
        longest = max((len(row) for row in rows), default=1)
        return np.array([row + [-1] * (longest - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), longest)

    def texts(self, choices: Choices) -> list[str]:
        """Return the texts of choices of the slots."""
        return ["".join(slot[c] for slot, c in zip(self.slots, row, strict=True)) for row in choices.tolist()]

    def _text(self, path: Sequence[int]) -> str:
        return "".join(self.tokenizer.pieces[token] or "" for token in path)

    def _spelt(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts of the slots and return their tokens after the context."""
        skip = len(self.lead)
        spelt = self.tokenizer.encode([(self.text_before + text)[skip:] for text in texts])
        rows = []
        for text, row in zip(texts, spelt, strict=True):
            if tuple(row[: len(self.context)]) != self.context:
                raise UserError(
                    f"the tokenizer joins {self.text_before[-8:]!r} to the text after it for some candidates but not for "
                    f"others; {_advice(self.text_before)}"
                )
            rest = row[len(self.context) :]
            if self._text(rest) != text:
                raise UserError(
                    "the tokenizer changes the text of candidates: its tokens decode to a different text; change "
                    "canaries.format to text that it keeps"
                )
            rows.append(rest)
        return rows

    def edges(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """See `Candidates.edges`."""
        return self._edges[place]

    @functools.cached_property
    def _edges(self) -> list[list[tuple[int, tuple[int, ...]]]]:
        by_length: dict[int, list[tuple[int, str]]] = {}
        allowed = {character for slot in self.slots for character in slot}
        for token, piece in enumerate(self.tokenizer.pieces):
            if piece and len(piece) <= self.end and allowed.issuperset(piece):
                by_length.setdefault(len(piece), []).append((token, piece))
        edges: list[list[tuple[int, tuple[int, ...]]]] = []
        for place in range(self.end):
            slots = [set(slot) for slot in self.slots[place:]]
            fitting = {
                place + length: tuple(
                    token for token, piece in pieces if all(c in slot for c, slot in zip(piece, slots, strict=False))
                )
                for length, pieces in sorted(by_length.items())
                if place + length <= self.end
            }
            edges.append([(after, tokens) for after, tokens in fitting.items() if tokens])
        return edges

    def place_of(self, path: Sequence[int]) -> int:
        """See `Candidates.place_of`."""
        return len(self._text(path))

    def accepts(self, paths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """See `Candidates.accepts`."""
        given = paths.tolist()
        spelt = self._spelt([self._text(path) for path in given]) if given else []
        return np.array([row == path for row, path in zip(spelt, given, strict=True)], dtype=np.bool_)


def _advice(before: str) -> str:
    """Return advice on changing the text before the first hole so that the tokenizer separates it from the hole."""
    if before.endswith(" "):
        return (
            "end the text before the first hole with a colon or another mark instead of the space, if the text has one there"
        )
    return "end the text before the first hole with a space"


def spell(form: Format, tokenizer: Tokenizer, *, known_prefix: bool, known_suffix: bool) -> Spelled:
    """Return a format's candidates under a tokenizer.

    Args:
        form: text with holes of single characters.
        tokenizer: the model's tokenizer.
        known_prefix: True to give the text before the first hole as context, False to omit it.
        known_suffix: True to make the text after the last hole part of the candidates.

    Raises:
        UserError: when the tokenizer merges the text before a hole with the hole, or changes the text of the candidates.
    """
    places = form.places("character")
    if any(len(symbol) > 1 for place in places for symbol in place):
        raise UserError(
            f"the format {form.text!r} has symbols of several characters; with a tokenizer, symbols must be single characters"
        )
    holes = [place for place, symbols in enumerate(places) if len(symbols) > 1]
    before = "".join(symbols[0] for symbols in places[: holes[0]]) if known_prefix else ""
    slots = tuple(places[holes[0] : None if known_suffix else holes[-1] + 1])
    plain = Spelled(slots, tokenizer, before, "", ())
    texts = plain.texts(plain.sample(TRIED, np.random.default_rng(0)))
    spelt = tokenizer.encode([before + text for text in texts])
    joined = ["".join(tokenizer.pieces[token] or "\0" for token in row) for row in spelt]
    lead = joined[0][: max(0, len(joined[0]) - len(before + texts[0]))]
    if lead.strip() or any(decoded != lead + before + text for decoded, text in zip(joined, texts, strict=True)):
        raise UserError(
            f"the tokenizer does not keep the text of {form.text!r}: its tokens decode to a different text; change "
            "canaries.format to text that it keeps"
        )
    whole, count, at = lead + before, 0, 0
    shared = min(len(row) for row in spelt)
    while count < shared and len({row[count] for row in spelt}) == 1:
        length = len(tokenizer.pieces[spelt[0][count]] or "")
        if at + length > len(whole):
            break
        count, at = count + 1, at + length
    rest = whole[at:]
    if rest.strip():
        raise UserError(f"the tokenizer joins {rest!r} and the hole after it in {form.text!r}; {_advice(before)}")
    fixed = tuple((character,) for character in rest)
    return Spelled((*fixed, *slots), tokenizer, whole[:at], lead, tuple(spelt[0][:count]))
