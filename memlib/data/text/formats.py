"""Canary formats: a text with holes, and the space of candidates that fill them (Carlini 2019, section 4.1).

"My number is {d3}-{d4}" has seven holes for digits; the randomness space R is the set of all ways to fill them. A candidate
is a row of choices, one for each place of the sequence; places outside the holes offer a single symbol. {w3} is three words
of the text's vocabulary (section 6.2), which a model of characters spells, each with a space after it (section 6.3).
"""

from __future__ import annotations

import functools
import math
import re
import string
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError

ALPHABETS: Mapping[str, tuple[str, ...]] = {
    "d": tuple(string.digits),
    "h": tuple("0123456789abcdef"),
    "l": tuple(string.ascii_lowercase),
    "u": tuple(string.ascii_uppercase),
    "a": tuple(string.ascii_lowercase + string.digits),
}
WORD = "w"  # name of the holes that any word of the text fills
HOLE = re.compile(r"\{([a-z_]+)(\d*)\}")
LONGEST_HOLE = 1000
LONGEST_ALPHABET = 1000  # longer slots are parted in blocks of choices
PERMUTED = 1_000_000  # spaces up to this size are permuted to draw; larger ones are sampled until enough candidates differ

Choices = NDArray[np.int32]


@dataclass(frozen=True)
class Candidates(ABC):
    """All ways to fill a format, and the paths of a model's symbols that spell them.

    A candidate is a row of choices, one for each slot. A walk through the tree of prefixes goes from place to place: place 0
    lies before the first slot, and place len(slots) is the end.
    """

    slots: tuple[tuple[Any, ...], ...]  #: the options at each place.

    @abstractmethod
    def tokens(self, choices: Choices) -> NDArray[np.int64]:
        """Return the symbols (num_candidates, longest) of choices (num_candidates, num_places), padded with -1."""

    @abstractmethod
    def edges(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """Return the places that can be reached from a place by one symbol, each with the symbols that lead there."""

    @abstractmethod
    def place_of(self, path: Sequence[int]) -> int:
        """Return the place at which a path of symbols ends."""

    ambiguous = False
    """True if a path through the tree may spell its candidate with other symbols than the model's tokenizer does."""
    has_tree = True
    """True if candidates share prefixes; otherwise each is scored separately."""
    sparse = False
    """True if few paths lead to a place, so that all candidates are scored faster by blocks than by a walk."""

    def accepts(self, paths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (num_paths,) of the complete paths (num_paths, length) that equal the symbols of their candidate."""
        return np.ones(len(paths), dtype=np.bool_)

    def contexts(self, choices: Choices) -> NDArray[np.int64] | None:
        """Return the symbols (num_candidates, length) that precede each candidate; None if all share one context."""
        return None

    @property
    def end(self) -> int:
        """The last place of the tree of prefixes, where candidates are complete."""
        return len(self.slots)

    @property
    def size(self) -> int:
        """|R|, the number of candidates, as an exact integer."""
        return math.prod(len(slot) for slot in self.slots)

    @property
    def bits(self) -> float:
        """log2 |R|, the size of the randomness space in bits."""
        return sum(math.log2(len(slot)) for slot in self.slots)

    def draw(self, count: int, rng: np.random.Generator) -> Choices:
        """Draw distinct candidates uniformly: (count, num_places) int32, in the order of the draw.

        Raises:
            UserError: when there are fewer than `count` candidates.
        """
        if count > self.size:
            raise UserError(
                f"the format has only {self.size} candidates, fewer than the {count} requested; use a longer format"
            )
        sizes = np.array([len(slot) for slot in self.slots])
        if self.size <= PERMUTED:
            return self._numbered(rng.permutation(self.size)[:count])
        drawn: dict[bytes, None] = {}  # skipping repeats keeps the draw uniform
        while len(drawn) < count:
            for row in rng.integers(0, sizes, size=(count - len(drawn), len(sizes)), dtype=np.int32):
                drawn.setdefault(row.tobytes())
        return np.stack([np.frombuffer(row, dtype=np.int32) for row in drawn])

    def sample(self, count: int, rng: np.random.Generator) -> Choices:
        """Draw candidates uniformly and independently: (count, num_places) int32."""
        sizes = np.array([len(slot) for slot in self.slots])
        return rng.integers(0, sizes, size=(count, len(sizes)), dtype=np.int32)

    def blocks(self, rows: int) -> Iterator[Choices]:
        """Yield all candidates in order, in blocks (rows, num_places) int32."""
        for start in range(0, self.size, rows):
            yield self._numbered(np.arange(start, min(start + rows, self.size)))

    def _numbered(self, numbers: NDArray[np.int64]) -> Choices:
        """Return the candidates at the given positions of the order: (num_positions, num_places) int32."""
        sizes = np.array([len(slot) for slot in self.slots])
        holes = np.flatnonzero(sizes > 1)
        chosen = np.zeros((len(numbers), len(sizes)), dtype=np.int32)
        if len(holes):
            chosen[:, holes] = np.stack(np.unravel_index(numbers, tuple(sizes[holes])), axis=1)
        return chosen

    def fixed(self, place: int, choice: int) -> Self:
        """Return the candidates with a given choice at a place."""
        return self._among(place, [choice])

    def _among(self, place: int, choices: Sequence[int]) -> Self:
        """Return the candidates with any of the given choices at a place."""
        slots = (*self.slots[:place], tuple(self.slots[place][choice] for choice in choices), *self.slots[place + 1 :])
        return replace(self, slots=slots)

    def shards(self, at_least: int) -> Iterator[Self]:
        """Yield the candidates in parts that share their first choices: at least `at_least` parts, but as few as possible."""
        parts = [self]
        for place, slot in enumerate(self.slots):
            if len(parts) >= at_least:
                break
            blocks = np.array_split(
                np.arange(len(slot)), min(at_least, len(slot)) if len(slot) > LONGEST_ALPHABET else len(slot)
            )
            parts = [part._among(place, block.tolist()) for part in parts for block in blocks]
        yield from parts


@dataclass(frozen=True)
class Space(Candidates):
    """Candidates for a model with one symbol for each option at a place."""

    slots: tuple[tuple[int, ...], ...]  #: ids of the possible symbols at each place.

    def tokens(self, choices: Choices) -> NDArray[np.int64]:
        """See `Candidates.tokens`; all candidates have the same length."""
        columns = [np.array(slot, dtype=np.int64)[choices[:, place]] for place, slot in enumerate(self.slots)]
        return np.stack(columns, axis=1)

    def edges(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """See `Candidates.edges`."""
        return [(place + 1, self.slots[place])]

    def place_of(self, path: Sequence[int]) -> int:
        """See `Candidates.place_of`."""
        return len(path)


@dataclass(frozen=True)
class Worded(Candidates):
    """Candidates for a model with one symbol per character, some of whose options are words of several characters.

    No option of a slot may be the beginning of another option, which the space after each word ensures. A place of the tree
    is a beginning of an option; the last place is the end.
    """

    slots: tuple[tuple[tuple[int, ...], ...], ...]  #: spellings of the options at each place, as ids of symbols.

    sparse = True

    @property
    def longest(self) -> int:
        """The number of symbols of the longest candidate."""
        return sum(max(map(len, slot)) for slot in self.slots)

    @property
    def end(self) -> int:
        """See `Candidates.end`."""
        return len(self._edges)

    def tokens(self, choices: Choices) -> NDArray[np.int64]:
        """See `Candidates.tokens`."""
        rows = [[s for slot, c in zip(self.slots, row, strict=True) for s in slot[c]] for row in choices.tolist()]
        longest = max(map(len, rows), default=1)
        return np.array([row + [-1] * (longest - len(row)) for row in rows], dtype=np.int64).reshape(len(rows), longest)

    def edges(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """See `Candidates.edges`."""
        by_place: dict[int, list[int]] = {}
        for symbol, after in self._edges[place].items():
            by_place.setdefault(after, []).append(symbol)
        return [(after, tuple(symbols)) for after, symbols in by_place.items()]

    @functools.cached_property
    def _edges(self) -> list[dict[int, int]]:
        """The place to which each symbol leads, by place."""
        edges: list[dict[int, int]] = [{}]
        root = 0
        for slot in self.slots:
            ends: list[tuple[int, int]] = []
            for option in slot:
                place = root
                for symbol in option[:-1]:
                    if symbol not in edges[place]:
                        edges[place][symbol] = len(edges)
                        edges.append({})
                    place = edges[place][symbol]
                ends.append((place, option[-1]))
            root = len(edges)
            edges.append({})
            for place, symbol in ends:
                edges[place][symbol] = root
        return edges[:-1]

    def place_of(self, path: Sequence[int]) -> int:
        """See `Candidates.place_of`."""
        place = 0
        for symbol in path:
            place = self._edges[place][symbol]
        return place


@dataclass(frozen=True)
class Format:
    """A text with holes."""

    text: str  #: text with holes such as {d3}: three symbols of alphabet d.
    #: symbols by name, besides the built-in d (digits), h (hexadecimal), l and u (letters), a (l and d).
    alphabets: Mapping[str, tuple[str, ...]]
    holes: bool = True  #: True if the text must have at least one hole.
    words: tuple[str, ...] = ()  #: words of the text that {w} stands for, unless `alphabets` gives w another meaning.

    @property
    def has_words(self) -> bool:
        """True if a hole stands for words of the text."""
        return WORD not in self.alphabets and any(hole[1] == WORD for hole in HOLE.finditer(self.text))

    def places(self, unit: str) -> list[tuple[str, ...]]:
        """Return the possible symbols at each place of the sequence.

        Args:
            unit: character or word; token is treated as character.

        Raises:
            UserError: for an unknown alphabet, a text without holes, or holes that are not whole words.
        """
        parts: list[str | list[tuple[str, ...]]] = []
        end = 0
        for hole in HOLE.finditer(self.text):
            parts += [self.text[end : hole.start()], self._hole(hole)]
            end = hole.end()
        parts.append(self.text[end:])
        if len(parts) == 1 and self.holes:
            raise UserError(f"the format {self.text!r} has no hole, such as {{d9}} for nine digits")
        places: list[tuple[str, ...]] = []
        for number, part in enumerate(parts):
            after_words = number > 0 and self._of_words(parts[number - 1])
            if isinstance(part, list):
                places += [_spelled(place) for place in part] if unit != "word" and self._of_words(part) else part
            elif unit != "word":
                if self.has_words:
                    self._check_words(part, first=number == 0, last=number == len(parts) - 1)
                places += [(symbol,) for symbol in part[after_words:]]  # the space after a word belongs to it
            else:
                self._check_words(part, first=number == 0, last=number == len(parts) - 1)
                places += [(word,) for word in part.split()]
        return places

    def _of_words(self, part: str | list[tuple[str, ...]]) -> bool:
        return self.has_words and isinstance(part, list) and part[0] == self.words

    def _hole(self, hole: re.Match[str]) -> list[tuple[str, ...]]:
        name, digits = hole[1], hole[2] or "1"
        count = int(digits) if len(digits) < 9 else LONGEST_HOLE + 1
        if not 1 <= count <= LONGEST_HOLE:
            raise UserError(
                f"the format {self.text[:80]!r} has a hole {hole[0][:20]}; holes have 1 to {LONGEST_HOLE} symbols"
            )
        if name == WORD and self.has_words:
            return [self._words()] * count
        alphabet = {**ALPHABETS, **self.alphabets}.get(name)
        if alphabet is None:
            known = ", ".join([*ALPHABETS, *self.alphabets])
            raise UserError(f"the format {self.text!r} uses an unknown alphabet {name!r}; the alphabets are {known}")
        if len(set(alphabet)) < len(alphabet) or len(alphabet) < 2:
            raise UserError(f"alphabet {name!r} needs at least two symbols, all different")
        return [tuple(alphabet)] * count

    def _words(self) -> tuple[str, ...]:
        if len(self.words) < 2:
            raise UserError(
                f"the format {self.text!r} has {{w}}, any word of the text, but the text has only {len(self.words)} "
                "different words; use another text, or list words in canaries.alphabets"
            )
        return self.words

    def _check_words(self, part: str, *, first: bool, last: bool) -> None:
        if part and not ((first or part[0].isspace()) and (last or part[-1].isspace())):
            raise UserError(
                f"the format {self.text!r} has a hole inside a word; words and word models need spaces around holes"
            )

    def choices(self, text: str, unit: str) -> list[int] | None:
        """Return the choice at each place of a filled-in text; None if the text does not match the format."""
        places = self.places(unit)
        symbols = text.split() if unit == "word" else list(text)
        if len(symbols) != len(places) or any(s not in place for s, place in zip(symbols, places, strict=True)):
            return None
        return [place.index(symbol) for symbol, place in zip(symbols, places, strict=True)]

    def candidates(self, vocabulary: Mapping[str, int], unit: str) -> Space | Worded:
        """Return the candidates as symbols of a model, with words spelled by a model of characters.

        Raises:
            UserError: for a symbol that is not in the model's vocabulary.
        """
        if unit == "word" or not self.has_words:
            return self.space(vocabulary, unit)
        spelled = (tuple(tuple(vocabulary[s] for s in option) for option in place) for place in self._known(vocabulary, unit))
        return Worded(tuple(spelled))

    def _known(self, vocabulary: Mapping[str, int], unit: str) -> list[tuple[str, ...]]:
        """Return the places, all of whose symbols must be in the vocabulary."""
        places = self.places(unit)
        missing = sorted(symbols_in(places, unit) - vocabulary.keys())
        if missing:
            raise UserError(f"the model has no symbol {missing[0]!r}, which the format {self.text!r} needs")
        return places

    def space(self, vocabulary: Mapping[str, int], unit: str) -> Space:
        """Return the candidates with one symbol per place.

        Raises:
            UserError: for a symbol that is not in the model's vocabulary.
        """
        places = self._known(vocabulary, unit)
        return Space(tuple(tuple(vocabulary[symbol] for symbol in place) for place in places))


def _spelled(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return words as characters spell them: each with the space that ends it."""
    return tuple(f"{word} " for word in words)


def symbols_in(places: Sequence[Sequence[str]], unit: str) -> set[str]:
    """Return the symbols of a model that the options at the places of a format need."""
    options = {option for place in places for option in place}
    return options if unit == "word" else {symbol for option in options for symbol in option}


def render(symbols: Sequence[str], unit: str) -> str:
    """Join symbols into a text."""
    return (" " if unit == "word" else "").join(symbols)
