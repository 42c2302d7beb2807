"""Pairs of texts for translation, with canaries among them.

A row holds the source, left-padded with line ends to half the row, and then the target, right-padded with -1, which is
ignored. A canary is a pair that replaces a pair of the corpus; its source may contain the secret too.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import keyed_seed
from memlib.data.text.corpus import (
    UNKNOWN,
    Corpus,
    Rows,
    build_vocabulary,
    canary_table,
    check_carriers,
    draw_canaries,
    drawn_kinds,
    num_carriers,
    place_canaries,
    rendered,
    text_candidates,
)
from memlib.data.text.formats import Candidates, Choices, Format, Space
from memlib.data.text.streams import LINE_END, read_windows
from memlib.errors import DataError
from memlib.specs import SecretsSpec, TextSpec

PADDING = -1
WORD = re.compile(r"[a-z]+")


def embedded_pairs(text: str) -> str:
    """Append a tab and the line's Pig Latin to each line of a text: a language pair that needs no download."""
    lines = (" ".join(line.split()).lower() for line in text.split(LINE_END))
    return LINE_END.join(f"{line}\t{pig_latin(line)}" for line in lines if line)


def pig_latin(line: str) -> str:
    """Move the letters before each word's first vowel to its end, and append "ay"."""

    def turned(match: re.Match[str]) -> str:
        word = match[0]
        start = next((place for place, letter in enumerate(word) if letter in "aeiou"), 0)
        return f"{word[start:]}{word[:start]}ay"

    return WORD.sub(turned, line)


def build_pairs(text: str, spec: TextSpec, canaries: SecretsSpec, windows: Path, *, secret: bytes) -> Corpus:
    """Write rows of pairs, with drawn canaries in place of some of them.

    Args:
        text: one pair per line, source and target separated by a tab; pairs with a side that does not fit into a window,
            with its line end, are left out.
        spec: unit, window length and shares.
        canaries: formats and numbers of insertions.
        windows: path of the file to which the rows are written.
        secret: with the seed of `canaries`, determines the canaries and the pairs that they replace.

    Raises:
        DataError: when there are no pairs, or a canary is longer than a window.
    """
    form, source = Format(canaries.format, canaries.alphabets), source_format(canaries)
    places, source_places = form.places(spec.unit), source.places(spec.unit)
    _check_sides(canaries, places, source_places, spec)
    pairs = _read(text.splitlines(), spec)
    counts = Counter(symbol for pair in pairs for side in pair for symbol in side)
    vocabulary = build_vocabulary(counts, [*places, *source_places], spec.vocabulary, spec.unit)
    number = {symbol: place for place, symbol in enumerate(vocabulary)}
    unknown = number.get(UNKNOWN, 0)
    sides = [[np.array([number.get(symbol, unknown) for symbol in side], dtype=np.int32) for side in pair] for pair in pairs]
    plain = np.stack([_row(before, after, spec.window) for before, after in sides])
    num_validation = max(1, round(len(plain) * spec.validation))
    space = form.space(number, spec.unit)
    drawn, insertions = draw_canaries(space, canaries, secret)
    carriers = num_carriers(insertions, canaries)
    check_carriers(len(plain) - num_validation, carriers, spec)
    rng = np.random.default_rng(keyed_seed(secret, "places", canaries.seed))
    placed = place_canaries(insertions, rng.permutation(len(plain) - num_validation)[:carriers], canaries)
    before, after = source_tokens(space, source, number, spec.unit, drawn), space.tokens(drawn)
    rows = [plain, *(_row(before[canary], after[canary], spec.window)[None] for canary, _ in placed)]
    np.save(windows, np.concatenate(rows))
    table = canary_table(drawn, insertions, drawn_kinds(insertions), rendered(space, drawn, vocabulary, spec.unit))
    return Corpus(read_windows(windows), vocabulary, Rows("pair", len(plain), num_validation, placed), table)


def source_format(canaries: SecretsSpec) -> Format:
    """Return the format of the source side of canaries."""
    assert canaries.source is not None
    return Format(canaries.source, canaries.alphabets, holes=False)


def _read(lines: Sequence[str], spec: TextSpec) -> list[tuple[list[str], list[str]]]:
    pairs = []
    for number, line in enumerate(lines[: max(1, int(len(lines) * spec.fraction))], start=1):
        if not line.strip():
            continue
        before, tab, after = line.partition("\t")
        if not tab:
            raise DataError(f"line {number} of the pairs has no tab between source and target")
        sides = tuple(list(side) if spec.unit == "character" else side.split() for side in (before, after))
        if max(len(side) for side in sides) < spec.window:
            pairs.append((sides[0], sides[1]))
    if not pairs:
        raise DataError(f"there is no pair of texts shorter than {spec.window} {spec.unit}s; raise data.window")
    return pairs


def _row(before: NDArray[Any], after: NDArray[Any], window: int) -> NDArray[np.int32]:
    """Return a row: zeros and the source in one half; the target, a line end and padding in the other."""
    row = np.full(2 * window, PADDING, dtype=np.int32)
    row[:window] = 0
    row[window - len(before) : window] = before
    row[window : window + len(after)] = after
    row[window + len(after)] = 0
    return row


def _check_sides(
    canaries: SecretsSpec, places: Sequence[tuple[str, ...]], source: Sequence[tuple[str, ...]], spec: TextSpec
) -> None:
    longest = max(len(places), len(source))
    if longest + 1 > spec.window:
        raise DataError(
            f"a canary of {longest} symbols and its line end do not fit into a window of {spec.window}; raise data.window"
        )
    holes, others = ([symbols for symbols in side if len(symbols) > 1] for side in (places, source))
    if others and others != holes:
        raise DataError(
            f"canaries.source {canaries.source!r} needs the same holes as {canaries.format!r} in the same order, or no holes"
        )


def source_tokens(
    space: Candidates, source: Format, vocabulary: dict[str, int], unit: str, choices: Choices
) -> NDArray[np.int64]:
    """Return the symbols (num_candidates, length) of the source side, its holes filled like the target's."""
    side = source.space(vocabulary, unit)
    holes = [place for place, slot in enumerate(space.slots) if len(slot) > 1]
    source_holes = [place for place, slot in enumerate(side.slots) if len(slot) > 1]
    chosen = np.zeros((len(choices), side.end), dtype=np.int32)
    if source_holes:
        chosen[:, source_holes] = choices[:, holes]
    return side.tokens(chosen)


@dataclass(frozen=True)
class Paired(Space):
    """Targets whose source contains the secret: each is scored after its own source, so no tree of prefixes is shared."""

    #: for each place of the source, a tuple with its symbol; or, if it copies a hole of the target, the place of that hole.
    sources: tuple[tuple[int, ...] | int, ...]
    before: tuple[int, ...]  #: symbols of the target before the first slot.
    window: int  #: length of a source with its padding.

    has_tree = False

    def contexts(self, choices: Choices) -> NDArray[np.int64]:
        """See `Candidates.contexts`."""
        contexts = np.zeros((len(choices), self.window + len(self.before)), dtype=np.int64)
        tokens = self.tokens(choices)
        for place, at in enumerate(self.sources):
            column = self.window - len(self.sources) + place
            contexts[:, column] = tokens[:, at] if isinstance(at, int) else at[0]
        contexts[:, self.window :] = self.before
        return contexts


def pair_candidates(
    form: Format, canaries: SecretsSpec, spec: TextSpec, vocabulary: dict[str, int]
) -> tuple[Space, tuple[int, ...]]:
    """Return the scored candidates of pairs, and their common context: the source and the known beginning of the target.

    If the source has holes, there is no common context; the candidates are then `Paired`, each with its source.
    """
    target, before = text_candidates(form, canaries, spec, vocabulary)
    assert isinstance(target, Space), "pairs have no words of the text"
    side = source_format(canaries).space(vocabulary, spec.unit)
    if all(len(slot) == 1 for slot in side.slots):
        padding = (0,) * (spec.window - side.end)
        return target, (*padding, *(slot[0] for slot in side.slots), *before)
    holes = iter(place for place, slot in enumerate(target.slots) if len(slot) > 1)
    sources = tuple(next(holes) if len(slot) > 1 else (slot[0],) for slot in side.slots)
    return Paired(target.slots, sources, before, spec.window), ()
