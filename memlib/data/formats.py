"""Canary formats: a text with holes, and the space of candidates that fill them (Carlini 2019, section 4.1).

"My number is {d3}-{d4}" has seven holes for digits; the randomness space R holds every way to fill them. A candidate is
a row of choices, one for each place of the sequence; places outside the holes offer one symbol.
"""

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
HOLE = re.compile(r"\{([a-z_]+)(\d*)\}")
LONGEST_HOLE = 1000
PERMUTED = 1_000_000  # spaces up to this size are permuted, larger ones drawn from until enough differ

Choices = NDArray[np.int32]


@dataclass(frozen=True)
class Candidates(ABC):
    """All ways to fill a format, and the paths of a model's symbols that spell them.

    A candidate is a row of choices, one for each slot. A walk through the tree of prefixes goes from place to place: 0
    is before the first slot, the number of slots is the end.

    Attributes:
        slots: for each place what it may hold.
    """

    slots: tuple[tuple[Any, ...], ...]

    @abstractmethod
    def tokens(self, choices: Choices) -> NDArray[np.int64]:
        """(num_candidates, longest) symbols of (num_candidates, num_places) choices; short ones end in -1."""

    @abstractmethod
    def edges(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """The places that one symbol leads to, and for each the symbols that lead there."""

    @abstractmethod
    def place_of(self, path: Sequence[int]) -> int:
        """Where a path of symbols ends."""

    ambiguous = False
    """Whether a path through the tree may be nobody's."""
    has_tree = True
    """Whether candidates share prefixes; else each is scored by itself."""

    def accepts(self, paths: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(num_paths,) which whole paths (num_paths, length) are their candidates' own."""
        return np.ones(len(paths), dtype=np.bool_)

    def contexts(self, choices: Choices) -> NDArray[np.int64] | None:
        """(num_candidates, length) symbols that stand before each candidate, where they differ."""
        return None

    @property
    def end(self) -> int:
        """The last place."""
        return len(self.slots)

    @property
    def size(self) -> int:
        """|R|, the number of candidates; exact, however large."""
        return math.prod(len(slot) for slot in self.slots)

    @property
    def bits(self) -> float:
        """log2 |R|."""
        return sum(math.log2(len(slot)) for slot in self.slots)

    def draw(self, count: int, rng: np.random.Generator) -> Choices:
        """Different candidates, uniformly: (count, num_places) int32, in the order they were drawn.

        Raises:
            UserError: when there are fewer.
        """
        if count > self.size:
            raise UserError(f"the randomness space has {self.size} candidates, fewer than the {count} that are asked for")
        sizes = np.array([len(slot) for slot in self.slots])
        if self.size <= PERMUTED:
            return self._numbered(rng.permutation(self.size)[:count])
        found: dict[bytes, None] = {}  # a candidate that was drawn before is skipped, which favours none
        while len(found) < count:
            for row in rng.integers(0, sizes, size=(count - len(found), len(sizes)), dtype=np.int32):
                found.setdefault(row.tobytes())
        return np.stack([np.frombuffer(row, dtype=np.int32) for row in found])

    def sample(self, count: int, rng: np.random.Generator) -> Choices:
        """Candidates, uniformly and independently: (count, num_places) int32."""
        sizes = np.array([len(slot) for slot in self.slots])
        return rng.integers(0, sizes, size=(count, len(sizes)), dtype=np.int32)

    def blocks(self, rows: int) -> Iterator[Choices]:
        """All candidates in order, (rows, num_places) int32 at a time."""
        for start in range(0, self.size, rows):
            yield self._numbered(np.arange(start, min(start + rows, self.size)))

    def _numbered(self, numbers: NDArray[np.int64]) -> Choices:
        """Candidates by their number in order."""
        sizes = np.array([len(slot) for slot in self.slots])
        holes = np.flatnonzero(sizes > 1)
        chosen = np.zeros((len(numbers), len(sizes)), dtype=np.int32)
        if len(holes):
            chosen[:, holes] = np.stack(np.unravel_index(numbers, tuple(sizes[holes])), axis=1)
        return chosen

    def fixed(self, place: int, choice: int) -> Self:
        """The candidates that have a choice at a place."""
        slots = (*self.slots[:place], (self.slots[place][choice],), *self.slots[place + 1 :])
        return replace(self, slots=slots)

    def shards(self, at_least: int) -> Iterator[Self]:
        """The candidates in parts that share their first choices: as few as there are not fewer than asked for."""
        parts = [self]
        for place, slot in enumerate(self.slots):
            if len(parts) >= at_least:
                break
            parts = [part.fixed(place, choice) for part in parts for choice in range(len(slot))]
        yield from parts


@dataclass(frozen=True)
class Space(Candidates):
    """Candidates of a model that has a symbol for whatever a place may hold.

    Attributes:
        slots: for each place the ids of the symbols it may hold.
    """

    slots: tuple[tuple[int, ...], ...]

    def tokens(self, choices: Choices) -> NDArray[np.int64]:
        """See `Candidates.tokens`; all have one length."""
        columns = [np.array(slot, dtype=np.int64)[choices[:, place]] for place, slot in enumerate(self.slots)]
        return np.stack(columns, axis=1)

    def edges(self, place: int) -> list[tuple[int, tuple[int, ...]]]:
        """See `Candidates.edges`."""
        return [(place + 1, self.slots[place])]

    def place_of(self, path: Sequence[int]) -> int:
        """See `Candidates.place_of`."""
        return len(path)


@dataclass(frozen=True)
class Format:
    """A text with holes.

    Attributes:
        text: with holes such as {d3}: three symbols of alphabet d.
        alphabets: symbols by name, besides the built-in d (digits), h (hexadecimal), l and u (letters), a (l and d).
        holes: whether it must have one.
    """

    text: str
    alphabets: Mapping[str, tuple[str, ...]]
    holes: bool = True

    def places(self, unit: str) -> list[tuple[str, ...]]:
        """For each place of the sequence the symbols it may hold.

        Args:
            unit: character or word; a token stands for characters.

        Raises:
            UserError: for an unknown alphabet, no hole, or holes that are no whole words.
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
            if isinstance(part, list):
                places += part
            elif unit != "word":
                places += [(symbol,) for symbol in part]
            else:
                self._check_words(part, first=number == 0, last=number == len(parts) - 1)
                places += [(word,) for word in part.split()]
        return places

    def _hole(self, hole: re.Match[str]) -> list[tuple[str, ...]]:
        name, digits = hole[1], hole[2] or "1"
        count = int(digits) if len(digits) < 9 else LONGEST_HOLE + 1
        if not 1 <= count <= LONGEST_HOLE:
            raise UserError(f"the format {self.text[:80]!r} has a hole {hole[0][:20]}; 1 to {LONGEST_HOLE} symbols fit one")
        alphabet = {**ALPHABETS, **self.alphabets}.get(name)
        if alphabet is None:
            known = ", ".join([*ALPHABETS, *self.alphabets])
            raise UserError(f"the format {self.text!r} uses alphabet {name!r}; there are {known}")
        if len(set(alphabet)) < len(alphabet) or len(alphabet) < 2:
            raise UserError(f"alphabet {name!r} needs two symbols or more, each once")
        return [tuple(alphabet)] * count

    def _check_words(self, part: str, *, first: bool, last: bool) -> None:
        if part and not ((first or part[0].isspace()) and (last or part[-1].isspace())):
            raise UserError(f"the format {self.text!r} has a hole inside a word; a word model needs spaces around holes")

    def choices(self, text: str, unit: str) -> list[int] | None:
        """Which symbol a filled-in text has in each place; None where it does not fill the format."""
        places = self.places(unit)
        symbols = text.split() if unit == "word" else list(text)
        if len(symbols) != len(places) or any(s not in place for s, place in zip(symbols, places, strict=True)):
            return None
        return [place.index(symbol) for symbol, place in zip(symbols, places, strict=True)]

    def space(self, vocabulary: Mapping[str, int], unit: str) -> Space:
        """The candidates as symbols of a model.

        Raises:
            UserError: for a symbol that the model cannot produce.
        """
        places = self.places(unit)
        missing = sorted({symbol for place in places for symbol in place if symbol not in vocabulary})
        if missing:
            raise UserError(f"the model has no symbol {missing[0]!r}, which the format {self.text!r} needs")
        return Space(tuple(tuple(vocabulary[symbol] for symbol in place) for place in places))


def render(symbols: Sequence[str], unit: str) -> str:
    """Symbols as text."""
    return (" " if unit == "word" else "").join(symbols)
