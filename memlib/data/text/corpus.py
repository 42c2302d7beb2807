"""Text as windows of symbols, with canaries in some of them.

A window is a row of symbols. Symbol 0 is the line end; it also precedes each window, so that a window begins like a line.
A canary is a separate line in a separate window, at a random place, and never spans two windows. The windows that canaries
replace are left out, so that a model sees their text only together with a canary.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import keyed_seed
from memlib.data.splits import LEFT_OUT, TRAIN, VALIDATION
from memlib.data.text.formats import Candidates, Choices, Format, Space, Worded, render, symbols_in
from memlib.data.text.scan import blocks_of, single_secrets
from memlib.data.text.streams import (
    LINE_END,
    Text,
    WindowFile,
    count_occurrences,
    read_file,
    read_windows,
    smallest_type,
    symbols_of,
)
from memlib.errors import UserError
from memlib.specs import SecretsSpec, TextSpec
from memlib.specs.text import GIVEN, INSERTED, NEVER, RECURRING, UNSEEN
from memlib.tables import CANARIES, ROW_GROUP, SPLITS

UNKNOWN = "<unk>"
MOST_CARRIERS = 0.5  # maximum share of the training windows that may carry canaries
CODE_POINTS = 0x110000
BLOCKS = 1000  # number of blocks of windows, some of which are held out
NEITHER = 2  # side of symbols that fill no window


@dataclass(frozen=True)
class Rows:
    """Rows of a corpus and their roles, all of one class: first plain rows, then rows with canaries."""

    kind: str  #: prefix of the rows' example ids.
    plain: int  #: number of rows without canaries.
    num_validation: int  #: number of plain rows, at the end, that are for validation.
    #: result of `place_canaries`; a row with a canary sorts next to the row that it replaces.
    placed: Sequence[tuple[int, int]]

    @property
    def table(self) -> pa.Table:
        """The splits table (tables.SPLITS) of all rows."""
        return pa.concat_tables(self.tables())

    def tables(self) -> Iterator[pa.Table]:
        """Yield the splits table (tables.SPLITS) in parts of consecutive rows."""
        taken = np.array(sorted({row for _, row in self.placed}), dtype=np.int64)
        for first in range(0, self.plain, ROW_GROUP):
            rows = np.arange(first, min(first + ROW_GROUP, self.plain))
            roles = np.where(rows < self.plain - self.num_validation, TRAIN, VALIDATION).astype(object)
            carries = np.isin(rows, taken)
            roles[carries] = LEFT_OUT
            yield self._table(rows, self._names(rows), pa.array(roles, type=pa.string()), carries)
        if self.placed:
            canaries = np.array(self.placed, dtype=np.int64)
            marks = pc.binary_join_element_wise("canary", _padded(canaries[:, 0], 6), " ")
            names = pc.binary_join_element_wise(self._names(canaries[:, 1]), marks, " ")
            roles = pa.array([role_of(canary) for canary, _ in self.placed], type=pa.string())
            rows = self.plain + np.arange(len(canaries))
            yield self._table(rows, names, roles, np.zeros(len(rows), dtype=bool))

    def _names(self, rows: NDArray[np.int64]) -> pa.Array:
        return pc.binary_join_element_wise(self.kind, _padded(rows, 8), " ")

    def _table(self, rows: NDArray[np.int64], names: pa.Array, roles: pa.Array, carries: NDArray[np.bool_]) -> pa.Table:
        columns = {
            "example_id": names,
            "row": pa.array(rows),
            "role": roles,
            "label": pa.array(np.zeros(len(rows), dtype=np.int64)),
            "class_name": pa.repeat("text", len(rows)),
            "reason": pc.if_else(pa.array(carries), "carries canaries", pa.scalar(None, pa.string())),
        }
        empty = {name: pa.nulls(len(rows)) for name in ("crop_x0", "crop_y0", "crop_x1", "crop_y1", "group")}
        return pa.table({name: (columns | empty)[name] for name in SPLITS.arrow.names}).cast(SPLITS.arrow)


def _padded(numbers: NDArray[np.int64], width: int) -> pa.Array:
    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


@dataclass(frozen=True)
class Corpus:
    """Windows of symbols with their roles, and the canaries among them."""

    #: (num_windows, window), memory-mapped, of the smallest unsigned type, or int32 where padding is -1.
    windows: NDArray[Any]
    vocabulary: list[str]  #: symbols by id; 0 is the line end.
    rows: Rows  #: roles of the windows; a canary's windows have the role "canary <id>".
    canaries: pa.Table  #: the table of canaries (tables.CANARIES).
    #: beginnings of distinct documents, (num_documents, 7): document number; 1 if held out; number of copies in the corpus;
    #: row; place in the row; number of the document's tokens in that row (0 if canaries replaced the row); number of all its
    #: tokens (which continue in the next rows). None for text without documents.
    heads: NDArray[np.int64] | None = None
    words: tuple[str, ...] = ()  #: words that {w} in the canaries' format stands for.

    @property
    def splits(self) -> pa.Table:
        """The splits table (tables.SPLITS)."""
        return self.rows.table


def count_symbols(symbols: Iterable[Sequence[str]], unit: str) -> Counter[str]:
    """Count the occurrences of each symbol of a text."""
    if unit != "character":
        counted: Counter[str] = Counter()
        for chunk in symbols:
            counted.update(chunk)
        return counted
    counts = np.zeros(CODE_POINTS, dtype=np.int64)
    for chunk in symbols:
        counts += np.bincount(_code_points(chunk), minlength=CODE_POINTS)
    return Counter({chr(point): int(counts[point]) for point in np.flatnonzero(counts)})


def _code_points(characters: Sequence[str]) -> NDArray[np.uint32]:
    return np.frombuffer(str(characters).encode("utf-32-le", "surrogatepass"), dtype="<u4")


def numbered(
    symbols: Iterable[Sequence[str]], unit: str, number: Mapping[str, int], unknown: int
) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the numbers of a text's symbols in chunks."""
    if unit == "character":
        of_point = np.full(CODE_POINTS, unknown, dtype=np.int32)
        known = [(ord(symbol), place) for symbol, place in number.items() if len(symbol) == 1]
        points, places = zip(*known, strict=True)
        of_point[list(points)] = places
        for chunk in symbols:
            yield of_point[_code_points(chunk)]
        return
    for chunk in symbols:
        yield np.fromiter((number.get(symbol, unknown) for symbol in chunk), dtype=np.int32, count=len(chunk))


def most_frequent(counts: Counter[str], most: int | None) -> list[str]:
    """Return the `most` most frequent symbols (None: all), in descending order; ties are in alphabetical order."""
    return [symbol for symbol, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]


def words_of(text: Text, spec: TextSpec, canaries: SecretsSpec) -> tuple[str, ...]:
    """Return the words that {w} stands for, sorted: the most frequent ones of a text; none if the format has no such hole."""
    if not Format(canaries.format, canaries.alphabets).has_words:
        return ()
    counts = count_symbols(symbols_of(text.beginning(spec.fraction), "word"), "word")
    kept = most_frequent(counts, spec.vocabulary if spec.unit == "word" else None)
    return tuple(sorted([word for word in kept if word not in (LINE_END, UNKNOWN)][: canaries.words]))


def build_vocabulary(counts: Counter[str], places: Sequence[Sequence[str]], most: int | None, unit: str) -> list[str]:
    """Return the line end and then, sorted, the symbols of the text and the format, and <unk> if any were dropped.

    Args:
        counts: number of occurrences of each symbol in the text.
        places: the symbols at each place of a format.
        most: number of the text's most frequent symbols to keep; None keeps all.
        unit: unit of the text, in which the format's options are spelled.
    """
    needed = symbols_in(places, unit)
    kept = most_frequent(counts, most)
    cut = [UNKNOWN] if len(kept) < len(counts) else []
    return [LINE_END, *sorted({*kept, *needed, *cut} - {LINE_END})]


@dataclass(frozen=True)
class Secret:
    """A secret that the text, or a model's training text, already contains."""

    choices: tuple[int, ...]  #: the secret as choices at the format's places.
    times: int | None  #: number of occurrences, if the file of secrets states it.


def read_secrets(path: str, form: Format, unit: str) -> list[Secret]:
    """Read the secrets of a file, one per line, optionally with a tab and a count; error messages do not show the secrets.

    Raises:
        UserError: for a line that does not match the format, an invalid count, a repeated secret, or an empty file.
    """
    text = "".join(read_file(path)).removeprefix("\ufeff")  # drop the byte order mark
    lines = [line for line in text.splitlines() if line]
    known = []
    for number, line in enumerate(lines, start=1):
        text, tab, times = line.partition("\t")
        choices = form.choices(text, unit)
        if choices is None:
            raise UserError(f"{path}: secret {number} of {len(lines)} does not match the format {form.text!r}")
        if tab and not (times.strip().isdecimal() and len(times.strip()) < 10 and int(times)):
            raise UserError(
                f"{path}: secret {number} of {len(lines)} has a tab that is not followed by a whole number of at least 1"
            )
        known.append(Secret(tuple(choices), int(times) if tab else None))
    if not known or len({secret.choices for secret in known}) < len(known):
        raise UserError(f"{path} has {'repeated secrets' if known else 'no secrets'}; list each secret once, one per line")
    return known


def build_corpus(
    text: Text,
    spec: TextSpec,
    canaries: SecretsSpec,
    windows: Path,
    *,
    secret: bytes,
    known: Sequence[Secret] = (),
    unseen: Sequence[Secret] = (),
    count_here: bool = True,
) -> Corpus:
    """Write windows of a text: draw and insert canaries, or use secrets that the text already contains.

    The text is streamed three times, for its length, its symbols and its windows, and is never held in memory.

    Args:
        spec: unit, window length and shares.
        canaries: format and numbers of insertions.
        windows: path of the file to which the windows are written.
        secret: with the seed of `canaries`, determines the canaries, the windows that carry them, and their places.
        known: secrets that the text already contains; nothing is inserted if there are any.
        unseen: secrets of the same kind that the text does not contain.
        count_here: True if the model was trained on this text, so that secrets are counted in it.

    Raises:
        UserError: when the text is too short, a canary is longer than a window, or the candidate space is too small.
        RunError: when the text changes while it is read.
    """
    words = words_of(text, spec, canaries)
    form = Format(canaries.format, canaries.alphabets, words=words)
    places = form.places(spec.unit)
    counts = count_symbols(symbols_of(text.beginning(spec.fraction), spec.unit), spec.unit)
    vocabulary = build_vocabulary(counts, places, spec.vocabulary, spec.unit)
    number = {symbol: i for i, symbol in enumerate(vocabulary)}
    unknown = number.get(UNKNOWN, 0)
    count = counts.total() // spec.window
    side = _sides(count, spec, canaries, secret)
    num_validation = int((side == 1).sum())
    space = form.candidates(number, spec.unit)
    rng = np.random.default_rng(keyed_seed(secret, "places", canaries.seed))
    with WindowFile(windows, spec.window, smallest_type(len(vocabulary))) as file:
        for wanted in (0, 1) if spec.hold_out == "blocks" else (None,):
            place = 0
            for symbols in numbered(symbols_of(text.beginning(spec.fraction), spec.unit), spec.unit, number, unknown):
                if wanted is not None:
                    windows_of = np.minimum((place + np.arange(len(symbols))) // spec.window, count)
                    place, symbols = place + len(symbols), symbols[side[windows_of] == wanted]
                file.add(symbols)
            file.drop_rest()
        if known:

            def occurrences(rows: Sequence[Sequence[int]]) -> list[int]:
                wanted = space.tokens(np.array(rows, dtype=np.int32)).astype(file.dtype)
                training = [file.pieces(count - num_validation)] if count_here else []
                return count_occurrences(training, [row.tobytes() for row in wanted], size=file.dtype.itemsize)

            def single(rows: Sequence[Sequence[int]]) -> list[bool]:
                size = _block(count) * spec.window
                blocks = blocks_of(symbols_of(text.beginning(spec.fraction), spec.unit), size, spec.unit)
                return single_secrets(blocks, rendered(space, np.array(rows, dtype=np.int32), vocabulary, spec.unit))

            drawn, insertions, kinds = known_canaries(
                space, known, unseen, canaries, secret, occurrences, single if spec.hold_out == "blocks" else None
            )
            inserted = []
        else:
            drawn, insertions = draw_canaries(space, canaries, secret)
            inserted, kinds = insertions, drawn_kinds(insertions)
        carriers = num_carriers(inserted, canaries)
        _check(count - num_validation, carriers, space.tokens(drawn).shape[1], spec)
        placed = place_canaries(inserted, rng.permutation(count - num_validation)[:carriers], canaries)
        for canary, row in placed:
            window = file.row(row).copy()
            insert(window, space.tokens(drawn[canary : canary + 1])[0], rng)
            file.add(window)
    table = canary_table(drawn, insertions, kinds, rendered(space, drawn, vocabulary, spec.unit))
    return Corpus(read_windows(windows), vocabulary, Rows("window", count, num_validation, placed), table, words=words)


def _block(count: int) -> int:
    """Return the number of windows per block; blocks are held out as wholes."""
    return max(1, count // BLOCKS)


def _sides(count: int, spec: TextSpec, canaries: SecretsSpec, secret: bytes) -> NDArray[np.int64]:
    """Return each window's side, 0 training or 1 held-out, then NEITHER for symbols that fill no window: (count + 1,)."""
    num_held = max(1, round(count * spec.validation))
    sides = np.concatenate([np.arange(count) >= count - num_held, [NEITHER]]).astype(np.int64)
    if spec.hold_out == "blocks":
        block = np.arange(count) // _block(count)
        rng = np.random.default_rng(keyed_seed(secret, "blocks", canaries.seed))
        drawn = rng.permutation(int(block.max(initial=0)) + 1)[: max(1, round(num_held / _block(count)))]
        sides[:count] = np.isin(block, drawn)
    return sides


def num_carriers(insertions: Sequence[int], canaries: SecretsSpec) -> int:
    """Return the number of rows that canaries replace; canaries of separate models may share rows."""
    return sum(insertions) if canaries.together else max(insertions, default=0)


def place_canaries(insertions: Sequence[int], carrying: NDArray[np.int64], canaries: SecretsSpec) -> list[tuple[int, int]]:
    """Return (canary, row that it replaces) for every insertion, in order of canaries.

    Args:
        insertions: number of insertions of each canary.
        carrying: (num_carriers,) rows, drawn at random.
        canaries: settings; with `together`, one model sees all canaries, which then take separate rows.
    """
    placed, used = [], 0
    for canary, times in enumerate(insertions):
        placed += [(canary, int(row)) for row in carrying[used : used + times]]
        used += times if canaries.together else 0
    return placed


def text_candidates(
    form: Format, canaries: SecretsSpec, spec: TextSpec, vocabulary: Mapping[str, int]
) -> tuple[Candidates, tuple[int, ...]]:
    """Return the scored candidates, and the known symbols before them, () without a known prefix.

    Candidates begin at the first hole, and end with the last one or, with a known suffix, with the text's end.
    """
    whole = form.candidates(vocabulary, spec.unit)
    first, end = scored_part(form, spec, canaries)
    if isinstance(whole, Worded):
        before = tuple(symbol for slot in whole.slots[:first] for symbol in slot[0])
        return Worded(whole.slots[first:end]), before if canaries.known_prefix else ()
    return Space(whole.slots[first:end]), tuple(slot[0] for slot in whole.slots[:first]) if canaries.known_prefix else ()


def scored_part(form: Format, spec: TextSpec, canaries: SecretsSpec) -> tuple[int, int]:
    """Return the first place of the scored candidate and the place after its last; a known prefix is its context."""
    places = form.places(spec.unit)
    holes = [place for place, symbols in enumerate(places) if len(symbols) > 1]
    return holes[0], len(places) if canaries.known_suffix else holes[-1] + 1


def role_of(canary: int) -> str:
    """Return the role of the windows that hold a canary."""
    return f"canary {canary}"


def draw_canaries(space: Candidates, canaries: SecretsSpec, secret: bytes) -> tuple[Choices, list[int]]:
    """Draw all canaries, inserted canaries first; return them and their numbers of insertions."""
    insertions = [times for times in canaries.insertions for _ in range(canaries.each)] + [0] * canaries.never
    rng = np.random.default_rng(keyed_seed(secret, "canaries", canaries.format, canaries.seed))
    return space.draw(len(insertions), rng), insertions


def drawn_kinds(insertions: Sequence[int]) -> list[str]:
    """Return the kinds of drawn canaries: inserted or never."""
    return [INSERTED if times else NEVER for times in insertions]


def known_canaries(
    space: Candidates,
    known: Sequence[Secret],
    unseen: Sequence[Secret],
    canaries: SecretsSpec,
    secret: bytes,
    occurrences: Callable[[Sequence[Sequence[int]]], list[int]],
    single: Callable[[Sequence[Sequence[int]]], list[bool]] | None = None,
) -> tuple[Choices, list[int], list[str]]:
    """Return known secrets, unseen secrets, and other drawn candidates, which do not occur in the text.

    Without unseen secrets, known secrets that occur once are compared with those that occur once in held-out text; the other
    known secrets that are trained on are RECURRING, unless nothing is left to compare. Other held-out secrets are left out.

    Args:
        unseen: secrets of the same kind that no model saw.
        canaries: format, and number of candidates to draw (`never`).
        occurrences: function that counts candidates in the model's training text, as far as the text is known.
        single: function that returns a mask of the candidates that occur once in training and held-out text, see
            `single_secrets`; None if the held-out text was not drawn at random.

    Returns:
        choices, numbers of insertions, and kinds, in the above order.

    Raises:
        UserError: when no known secret occurs in the text, or an unseen secret is in the text or among the known secrets.
    """
    rng = np.random.default_rng(keyed_seed(secret, "canaries", canaries.format, canaries.seed))
    taken = [given.choices for given in (*known, *unseen)]
    others = space.draw(min(space.size, 2 * canaries.never + len(set(taken))), rng).tolist()
    queried = list(dict.fromkeys([*taken, *map(tuple, others)]))
    counts = dict(zip(queried, occurrences(queried), strict=True))
    times = [given.times or counts[given.choices] for given in known]
    if not any(times):
        raise UserError(
            f"none of the {len(known)} secrets of canaries.file occurs in the training part of the text; list secrets that do"
        )
    _check_unseen(known, unseen, [counts[given.choices] for given in unseen])
    seen = [(given, number) for given, number in zip(known, times, strict=True) if number]
    null, of_seen = list(unseen), [GIVEN] * len(seen)
    if single is not None and not unseen:
        alone = dict(zip((given.choices for given in known), single([given.choices for given in known]), strict=True))
        null = [given for given, number in zip(known, times, strict=True) if not number and alone[given.choices]]
        if null:
            of_seen = [GIVEN if alone[given.choices] else RECURRING for given, _ in seen]
    excluded = set(taken)
    others = [row for row in others if tuple(row) not in excluded and not counts[tuple(row)]][: canaries.never]
    rows = [*(list(given.choices) for given in (*(given for given, _ in seen), *null)), *others]
    kinds = [*of_seen, *[UNSEEN] * len(null), *[NEVER] * len(others)]
    insertions = [number for _, number in seen]
    return np.array(rows, dtype=np.int32), insertions + [0] * (len(rows) - len(insertions)), kinds


def _check_unseen(known: Sequence[Secret], unseen: Sequence[Secret], times: Sequence[int]) -> None:
    """Refuse unseen secrets that are also known or occur in the training text, without showing them in the message."""
    given = {candidate.choices for candidate in known}
    for number, (candidate, held) in enumerate(zip(unseen, times, strict=True), start=1):
        if candidate.choices in given:
            raise UserError(f"secret {number} of {len(unseen)} of canaries.unseen is also in canaries.file; remove it")
        if held:
            raise UserError(f"secret {number} of {len(unseen)} of canaries.unseen occurs in the training text; remove it")


def _check(num_training: int, carriers: int, length: int, spec: TextSpec) -> None:
    check_carriers(num_training, carriers, spec)
    if length + 2 > spec.window:
        raise UserError(
            f"a canary of {length} symbols and the ends of its line do not fit into a window of {spec.window}; "
            "raise data.window"
        )


def check_carriers(num_training: int, carriers: int, spec: TextSpec) -> None:
    """Refuse a corpus if more than half of its training windows would carry canaries."""
    if carriers > MOST_CARRIERS * num_training:
        raise UserError(
            f"the corpus has {max(0, num_training)} training windows of {spec.window} symbols, but {carriers} insertions "
            "need at least twice as many windows. Use more text, fewer insertions or a shorter window"
        )


def insert(
    window: NDArray[Any], canary: NDArray[np.int64], rng: np.random.Generator, *, start: int = 0, end: int = 0
) -> None:
    """Insert a canary into a window, in place, as a separate line or document at a random place.

    Args:
        window: (window,) symbols.
        canary: (length,) symbols.
        rng: generator that draws the place.
        start, end: the symbols before and after the canary.
    """
    place = int(rng.integers(1, len(window) - len(canary)))
    window[place - 1] = start
    window[place : place + len(canary)] = canary
    window[place + len(canary)] = end


def rendered(space: Candidates, drawn: Choices, vocabulary: Sequence[str], unit: str) -> list[str]:
    """Return the texts of drawn candidates."""
    rows = space.tokens(drawn).tolist()
    return [render([vocabulary[symbol] for symbol in row if symbol >= 0], unit) for row in rows]


def canary_table(drawn: Choices, insertions: Sequence[int], kinds: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Build the table of canaries (tables.CANARIES) from drawn candidates, in order."""
    rows = [
        {
            "canary": number,
            "kind": kinds[number],
            "insertions": times,
            "choices": drawn[number].tolist(),
            "text": texts[number],
        }
        for number, times in enumerate(insertions)
    ]
    return pa.Table.from_pylist(rows, schema=CANARIES.arrow)
