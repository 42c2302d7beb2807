"""Text as windows of symbols, with canaries in some of them.

A window is a row of symbols; the end of a line is symbol 0, and stands before each window too, so that a window begins
as a line does. A canary is a line of its own in a window of its own, at a place drawn at random: it never straddles
windows. The windows that carry canaries are set aside, so that without its canary a model never sees their text.
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

from memlib.data.formats import Choices, Format, Space, render
from memlib.data.secret import keyed_seed
from memlib.data.splits import LEFT_OUT, TRAIN, VALIDATION
from memlib.data.streams import (
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
from memlib.specs.text import GIVEN, INSERTED, NEVER, UNSEEN
from memlib.tables import CANARIES, ROW_GROUP, SPLITS

UNKNOWN = "<unk>"
MOST_CARRIERS = 0.5  # of the training windows
CODE_POINTS = 0x110000


@dataclass(frozen=True)
class Rows:
    """The rows of a corpus, all of one class, and who sees them: plain ones, then those with canaries.

    Attributes:
        kind: what a row is called.
        plain: rows without canaries.
        num_validation: of them, the last.
        placed: of `place_canaries`; a row with a canary sorts where the row was that it takes.
    """

    kind: str
    plain: int
    num_validation: int
    placed: Sequence[tuple[int, int]]

    @property
    def table(self) -> pa.Table:
        """A tables.SPLITS of all rows."""
        return pa.concat_tables(self.tables())

    def tables(self) -> Iterator[pa.Table]:
        """Yield tables.SPLITS of some rows after others."""
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
    """Windows of symbols, who sees them, and the canaries among them.

    Attributes:
        windows: (num_windows, window), memory-mapped: of the smallest unsigned type, or int32 where padding is -1.
        vocabulary: symbols by id; 0 ends a line.
        rows: who sees them; a canary's windows have the role "canary <id>".
        canaries: tables.CANARIES.
        heads: of documents, as far as each stands in one window: (num_documents, 6) number, whether it is held out, copies,
            row, place in the row, tokens; None of text that is no documents.
    """

    windows: NDArray[Any]
    vocabulary: list[str]
    rows: Rows
    canaries: pa.Table
    heads: NDArray[np.int64] | None = None

    @property
    def splits(self) -> pa.Table:
        """A tables.SPLITS."""
        return self.rows.table


def count_symbols(symbols: Iterable[Sequence[str]], unit: str) -> Counter[str]:
    """Count how often each symbol of a text stands in it."""
    if unit != "character":
        found: Counter[str] = Counter()
        for some in symbols:
            found.update(some)
        return found
    counts = np.zeros(CODE_POINTS, dtype=np.int64)
    for some in symbols:
        counts += np.bincount(_code_points(some), minlength=CODE_POINTS)
    return Counter({chr(point): int(counts[point]) for point in np.flatnonzero(counts)})


def _code_points(characters: Sequence[str]) -> NDArray[np.uint32]:
    return np.frombuffer(str(characters).encode("utf-32-le", "surrogatepass"), dtype="<u4")


def numbered(
    symbols: Iterable[Sequence[str]], unit: str, number: Mapping[str, int], unknown: int
) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield the numbers of a text's symbols, some at a time."""
    if unit == "character":
        of_point = np.full(CODE_POINTS, unknown, dtype=np.int32)
        known = [(ord(symbol), place) for symbol, place in number.items() if len(symbol) == 1]
        points, places = zip(*known, strict=True)
        of_point[list(points)] = places
        for some in symbols:
            yield of_point[_code_points(some)]
        return
    for some in symbols:
        yield np.fromiter((number.get(symbol, unknown) for symbol in some), dtype=np.int32, count=len(some))


def build_vocabulary(counts: Counter[str], places: Sequence[Sequence[str]], most: int | None) -> list[str]:
    """Return the end of a line, then the text's symbols and those a format needs, sorted; <unk> where some were cut.

    Args:
        counts: how often each symbol stands in the text.
        places: what a format needs.
        most: of the text's symbols, the most frequent.
    """
    needed = {symbol for place in places for symbol in place}
    kept = [symbol for symbol, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:most]]
    cut = [UNKNOWN] if len(kept) < len(counts) else []
    return [LINE_END, *sorted({*kept, *needed, *cut} - {LINE_END})]


@dataclass(frozen=True)
class Secret:
    """A secret that the text, or a model's training text, holds already.

    Attributes:
        choices: of the format.
        times: how often, where the file says so.
    """

    choices: tuple[int, ...]
    times: int | None


def read_secrets(path: str, form: Format, unit: str) -> list[Secret]:
    """The secrets of a file, one a line, maybe with a tab and how often; none is shown in an error.

    Raises:
        UserError: for a line that does not fill the format, or that stands twice.
    """
    text = "".join(read_file(path)).removeprefix("\ufeff")  # a byte order mark is no secret
    lines = [line for line in text.splitlines() if line]
    known = []
    for number, line in enumerate(lines, start=1):
        text, tab, times = line.partition("\t")
        choices = form.choices(text, unit)
        if choices is None:
            raise UserError(f"{path}: secret {number} of {len(lines)} does not fill the format {form.text!r}")
        if tab and not (times.strip().isdecimal() and len(times.strip()) < 10 and int(times)):
            raise UserError(f"{path}: secret {number} of {len(lines)} has a tab, but no whole number from 1 after it")
        known.append(Secret(tuple(choices), int(times) if tab else None))
    if not known or len({secret.choices for secret in known}) < len(known):
        raise UserError(
            f"{path} has {'secrets that stand twice' if known else 'no secrets'}; give each one once, a line each"
        )
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
    """Write windows of a text, with canaries drawn and inserted, or with secrets that it holds already.

    The text is read three times, and never held: its length, its symbols, its windows.

    Args:
        text: the corpus.
        spec: unit, window, shares.
        canaries: format and how often each is inserted.
        windows: the file that they are written to.
        secret: with the spec's seed, draws canaries, windows and places.
        known: secrets that are there already; then nothing is inserted.
        unseen: secrets of their kind that are not there.
        count_here: whether this is the text that the model sees, so that they are counted in it.

    Raises:
        UserError: when the text is too short, a canary longer than a window, or the space too small.
        RunError: when the text changes while it is read.
    """
    form = Format(canaries.format, canaries.alphabets)
    places = form.places(spec.unit)
    counts = count_symbols(symbols_of(text.beginning(spec.fraction), spec.unit), spec.unit)
    vocabulary = build_vocabulary(counts, places, spec.vocabulary)
    number = {symbol: i for i, symbol in enumerate(vocabulary)}
    unknown = number.get(UNKNOWN, 0)
    count = counts.total() // spec.window
    num_validation = max(1, round(count * spec.validation))
    space = form.space(number, spec.unit)
    rng = np.random.default_rng(keyed_seed(secret, "places", canaries.seed))
    with WindowFile(windows, spec.window, smallest_type(len(vocabulary))) as file:
        for symbols in numbered(symbols_of(text.beginning(spec.fraction), spec.unit), spec.unit, number, unknown):
            file.add(symbols)
        file.drop_rest()
        if known:

            def occurrences(rows: Sequence[Sequence[int]]) -> list[int]:
                wanted = space.tokens(np.array(rows, dtype=np.int32)).astype(file.dtype)
                training = [file.pieces(count - num_validation)] if count_here else []
                return count_occurrences(training, [row.tobytes() for row in wanted], size=file.dtype.itemsize)

            drawn, insertions, kinds = known_canaries(space, known, unseen, canaries, secret, occurrences)
            inserted = []
        else:
            drawn, insertions = draw_canaries(space, canaries, secret)
            inserted, kinds = insertions, drawn_kinds(insertions)
        carriers = num_carriers(inserted, canaries)
        _check(count - num_validation, carriers, len(places), spec)
        placed = place_canaries(inserted, rng.permutation(count - num_validation)[:carriers], canaries)
        for canary, row in placed:
            window = file.row(row).copy()
            insert(window, space.tokens(drawn[canary : canary + 1])[0], rng)
            file.add(window)
    table = canary_table(drawn, insertions, kinds, rendered(space, drawn, vocabulary, spec.unit))
    return Corpus(read_windows(windows), vocabulary, Rows("window", count, num_validation, placed), table)


def num_carriers(insertions: Sequence[int], canaries: SecretsSpec) -> int:
    """Rows of the corpus that canaries take: models of their own may share them."""
    return sum(insertions) if canaries.together else max(insertions, default=0)


def place_canaries(insertions: Sequence[int], carrying: NDArray[np.int64], canaries: SecretsSpec) -> list[tuple[int, int]]:
    """(canary, row that it takes) of every insertion, canary by canary.

    Args:
        insertions: how often each canary is inserted.
        carrying: (num_carriers,) rows, drawn at random.
        canaries: whether one model sees them all.
    """
    placed, used = [], 0
    for canary, times in enumerate(insertions):
        placed += [(canary, int(row)) for row in carrying[used : used + times]]
        used += times if canaries.together else 0
    return placed


def text_candidates(
    form: Format, canaries: SecretsSpec, spec: TextSpec, vocabulary: Mapping[str, int]
) -> tuple[Space, tuple[int, ...]]:
    """What is scored: from the first hole to the last, or to the end; and the symbols before it, where they are known."""
    whole = form.space(vocabulary, spec.unit)
    first, end = scored_part(form, spec, canaries)
    return Space(whole.slots[first:end]), tuple(slot[0] for slot in whole.slots[:first]) if canaries.known_prefix else ()


def scored_part(form: Format, spec: TextSpec, canaries: SecretsSpec) -> tuple[int, int]:
    """Which places of the sequence are the candidate; those before are its context, where the prefix is known."""
    places = form.places(spec.unit)
    holes = [place for place, symbols in enumerate(places) if len(symbols) > 1]
    return holes[0], len(places) if canaries.known_suffix else holes[-1] + 1


def role_of(canary: int) -> str:
    """The role of the windows that hold a canary."""
    return f"canary {canary}"


def draw_canaries(space: Space, canaries: SecretsSpec, secret: bytes) -> tuple[Choices, list[int]]:
    """All canaries, inserted ones first, and how often each is inserted."""
    insertions = [times for times in canaries.insertions for _ in range(canaries.each)] + [0] * canaries.never
    rng = np.random.default_rng(keyed_seed(secret, "canaries", canaries.format, canaries.seed))
    return space.draw(len(insertions), rng), insertions


def drawn_kinds(insertions: Sequence[int]) -> list[str]:
    """Of canaries that were drawn here: inserted, or never."""
    return [INSERTED if times else NEVER for times in insertions]


def known_canaries(
    space: Space,
    known: Sequence[Secret],
    unseen: Sequence[Secret],
    canaries: SecretsSpec,
    secret: bytes,
    occurrences: Callable[[Sequence[Sequence[int]]], list[int]],
) -> tuple[Choices, list[int], list[str]]:
    """The secrets with how often they were seen, others of their kind, and drawn candidates that are none and nowhere.

    Args:
        space: all candidates.
        known: the secrets.
        unseen: others of their kind.
        canaries: format, and how many candidates are drawn.
        secret: draws them.
        occurrences: how often what the model sees holds each of some candidates, as far as it is known.
    """
    rng = np.random.default_rng(keyed_seed(secret, "canaries", canaries.format, canaries.seed))
    taken = [said.choices for said in (*known, *unseen)]
    others = space.draw(min(space.size, 2 * canaries.never + len(set(taken))), rng).tolist()
    asked = list(dict.fromkeys([*taken, *map(tuple, others)]))
    seen = dict(zip(asked, occurrences(asked), strict=True))
    insertions = [said.times or seen[said.choices] for said in known]
    if 0 in insertions:
        raise UserError(
            f"secret {insertions.index(0) + 1} of {len(known)} does not stand in the part of the text that trains; say how "
            "often a model saw it, after a tab, or leave it out"
        )
    _check_unseen(known, unseen, [seen[said.choices] for said in unseen])
    nowhere = set(taken)
    others = [row for row in others if tuple(row) not in nowhere and not seen[tuple(row)]][: canaries.never]
    rows = [*(list(said.choices) for said in (*known, *unseen)), *others]
    kinds = [GIVEN] * len(known) + [UNSEEN] * len(unseen) + [NEVER] * len(others)
    return np.array(rows, dtype=np.int32), insertions + [0] * (len(unseen) + len(others)), kinds


def _check_unseen(known: Sequence[Secret], unseen: Sequence[Secret], times: Sequence[int]) -> None:
    """Refuses unseen secrets that are given ones, or that the training text holds, without showing any."""
    given = {said.choices for said in known}
    for number, (said, held) in enumerate(zip(unseen, times, strict=True), start=1):
        if said.choices in given:
            raise UserError(f"secret {number} of {len(unseen)} of canaries.unseen stands in canaries.file too; take it out")
        if held:
            raise UserError(
                f"secret {number} of {len(unseen)} of canaries.unseen stands in the text that trains; take it out"
            )


def _check(num_training: int, carriers: int, length: int, spec: TextSpec) -> None:
    check_carriers(num_training, carriers, spec)
    if length + 2 > spec.window:
        raise UserError(
            f"a canary of {length} symbols and the ends of its line do not fit into a window of {spec.window}; "
            "raise data.window"
        )


def check_carriers(num_training: int, carriers: int, spec: TextSpec) -> None:
    """Refuses a corpus of which canaries would be the greater part."""
    if carriers > MOST_CARRIERS * num_training:
        raise UserError(
            f"the corpus has {max(0, num_training)} training windows of {spec.window} symbols; {carriers} insertions need at "
            "least twice as many. Take more text, fewer insertions or a shorter window"
        )


def insert(
    window: NDArray[Any], canary: NDArray[np.int64], rng: np.random.Generator, *, start: int = 0, end: int = 0
) -> None:
    """Puts a canary into a window, in place, as a line or document of its own, at a random place.

    Args:
        window: (window,) symbols.
        canary: (length,) symbols.
        rng: draws the place.
        start, end: the symbols before and after it.
    """
    place = int(rng.integers(1, len(window) - len(canary)))
    window[place - 1] = start
    window[place : place + len(canary)] = canary
    window[place + len(canary)] = end


def rendered(space: Space, drawn: Choices, vocabulary: Sequence[str], unit: str) -> list[str]:
    """Drawn candidates as texts."""
    return [render([vocabulary[symbol] for symbol in row], unit) for row in space.tokens(drawn).tolist()]


def canary_table(drawn: Choices, insertions: Sequence[int], kinds: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """tables.CANARIES of drawn candidates, in order."""
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
