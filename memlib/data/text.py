"""Text as windows of symbols, with canaries in some of them.

A window is a row of symbols; the end of a line is symbol 0, and stands before each window too, so that a window begins
as a line does. A canary is a line of its own in a window of its own, at a place drawn at random: it never straddles
windows. The windows that carry canaries are set aside, so that without its canary a model never sees their text.
"""

import hashlib
import importlib
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset
from numpy.typing import NDArray

from memlib.data.bounds import read_bounded
from memlib.data.examples import open_location
from memlib.data.formats import Choices, Format, Space, render
from memlib.data.secret import keyed_seed
from memlib.data.splits import LEFT_OUT, TRAIN, VALIDATION
from memlib.errors import UserError
from memlib.specs import PairsFileSource, SecretsSpec, TextFileSource, TextParquetSource, TextSource, TextSpec
from memlib.specs.text import GIVEN, INSERTED, NEVER, UNSEEN
from memlib.tables import CANARIES, SPLITS

LINE_END, UNKNOWN = "\n", "<unk>"
MOST_CARRIERS = 0.5  # of the training windows


def read_text(source: TextSource) -> str:
    """The text of a source; of pairs: what they are made from.

    Raises:
        UserError: when it cannot be read or is empty.
    """
    if isinstance(source, TextFileSource | PairsFileSource):
        text = _read_file(source.path)
    elif isinstance(source, TextParquetSource):
        text = LINE_END.join(read_texts(source))
    else:
        topics = importlib.import_module("pydoc_data.topics").topics
        text = "\n".join(str(topics[name]) for name in sorted(topics))
    if not text.strip():
        raise UserError(f"the corpus {getattr(source, 'path', source.kind)} is empty")
    return text


def _read_file(path: str) -> str:
    try:
        with fsspec.open(path, "rb", compression="infer") as file:
            return read_bounded(file, path).decode().replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error) as error:  # not there, or not what its name says
        raise UserError(f"cannot read the text {path} ({error})") from error


def read_texts(source: TextParquetSource) -> list[str]:
    """Return the documents of Parquet files.

    Raises:
        UserError: when they cannot be read.
    """
    fs, path = open_location(source.path)
    files = sorted(fs.glob(path)) if "*" in path else [path]
    if not files:
        raise UserError(f"no file matches {source.path}")
    try:
        table = pyarrow.dataset.dataset(files if "*" in path else path, filesystem=fs).to_table(columns=[source.text_column])
        table.validate(full=True)
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        said = str(error).splitlines()[0]
        raise UserError(f"cannot read column {source.text_column!r} of {source.path} ({said})") from error
    return [str(text) for text in table[source.text_column].to_pylist() if text]


def text_digest(text: str | Sequence[str]) -> str:
    """What a key says of a text, or of documents in order."""
    return hashlib.sha256((text if isinstance(text, str) else "\0".join(text)).encode()).hexdigest()


@dataclass(frozen=True)
class Corpus:
    """Windows of symbols, who sees them, and the canaries among them.

    Attributes:
        windows: (num_windows, window) int32.
        vocabulary: symbols by id; 0 ends a line.
        splits: tables.SPLITS; a canary's windows have the role "canary <id>".
        canaries: tables.CANARIES.
        heads: of documents, as far as each stands in one window: (num_documents, 6) number, whether it is held out, copies,
            row, place in the row, tokens; None of text that is no documents.
    """

    windows: NDArray[np.int32]
    vocabulary: list[str]
    splits: pa.Table
    canaries: pa.Table
    heads: NDArray[np.int64] | None = None


def symbols_of(text: str, unit: str) -> list[str]:
    """A text as characters, or as words with the end of each line."""
    if unit == "character":
        return list(text)
    return [word for line in text.split(LINE_END) for word in (*line.split(), LINE_END)]


def build_vocabulary(symbols: Sequence[str], places: Sequence[Sequence[str]], most: int | None) -> list[str]:
    """The end of a line, then the text's symbols and those a format needs, sorted; <unk> where some were cut."""
    needed = {symbol for place in places for symbol in place}
    counts = Counter(symbols)
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
    lines = [line for line in _read_file(path).removeprefix("\ufeff").splitlines() if line]  # a byte order mark is no secret
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
    text: str,
    spec: TextSpec,
    canaries: SecretsSpec,
    *,
    secret: bytes,
    known: Sequence[Secret] = (),
    unseen: Sequence[Secret] = (),
    count_here: bool = True,
) -> Corpus:
    """Windows of a text, with canaries drawn and inserted, or with secrets that it holds already.

    Args:
        text: the corpus.
        spec: unit, window, shares.
        canaries: format and how often each is inserted.
        secret: with the spec's seed, draws canaries, windows and places.
        known: secrets that are there already; then nothing is inserted.
        unseen: secrets of their kind that are not there.
        count_here: whether this is the text that the model sees, so that they are counted in it.

    Raises:
        UserError: when the text is too short, a canary longer than a window, or the space too small.
    """
    form = Format(canaries.format, canaries.alphabets)
    places = form.places(spec.unit)
    symbols = symbols_of(text[: max(1, int(len(text) * spec.fraction))], spec.unit)
    vocabulary = build_vocabulary(symbols, places, spec.vocabulary)
    number = {symbol: i for i, symbol in enumerate(vocabulary)}
    unknown = number.get(UNKNOWN, 0)
    count = len(symbols) // spec.window
    tokens = np.array([number.get(symbol, unknown) for symbol in symbols[: count * spec.window]], dtype=np.int32)
    plain = tokens.reshape(count, spec.window)
    num_validation = max(1, round(count * spec.validation))
    space = form.space(number, spec.unit)
    names = [f"window {row:08d}" for row in range(count)]
    rng = np.random.default_rng(keyed_seed(secret, "places", canaries.seed))
    if known:
        training = plain[: count - num_validation].ravel() if count_here else plain[:0].ravel()
        drawn, insertions, kinds = known_canaries(
            space, known, unseen, canaries, secret,
            lambda row: _occurrences(training, space.tokens(np.array([row], dtype=np.int32))[0]),
        )  # fmt: skip
        inserted = []
    else:
        drawn, insertions = draw_canaries(space, canaries, secret)
        inserted, kinds = insertions, drawn_kinds(insertions)
    carriers = num_carriers(inserted, canaries)
    _check(count - num_validation, carriers, len(places), spec)
    placed = place_canaries(inserted, rng.permutation(count - num_validation)[:carriers], canaries)
    rows = [plain]
    for canary, row in placed:
        window = plain[row].copy()
        insert(window, space.tokens(drawn[canary : canary + 1])[0], rng)
        rows.append(window[None])
    table = canary_table(drawn, insertions, kinds, rendered(space, drawn, vocabulary, spec.unit))
    return Corpus(np.concatenate(rows), vocabulary, split_table(names, num_validation, placed), table)


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
    seen: Callable[[Sequence[int]], int],
) -> tuple[Choices, list[int], list[str]]:
    """The secrets with how often they were seen, others of their kind, and drawn candidates that are none and nowhere.

    Args:
        space: all candidates.
        known: the secrets.
        unseen: others of their kind.
        canaries: format, and how many candidates are drawn.
        secret: draws them.
        seen: how often what the model sees holds a candidate, as far as it is known.
    """
    insertions = [said.times or seen(said.choices) for said in known]
    if 0 in insertions:
        raise UserError(
            f"secret {insertions.index(0) + 1} of {len(known)} does not stand in the part of the text that trains; say how "
            "often a model saw it, after a tab, or leave it out"
        )
    _check_unseen(known, unseen, [seen(said.choices) for said in unseen])
    rng = np.random.default_rng(keyed_seed(secret, "canaries", canaries.format, canaries.seed))
    taken = {said.choices for said in (*known, *unseen)}
    drawn = space.draw(min(space.size, 2 * canaries.never + len(taken)), rng).tolist()
    others = [row for row in drawn if tuple(row) not in taken and not seen(row)][: canaries.never]
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


def _occurrences(text: NDArray[np.int32], tokens: NDArray[np.int64]) -> int:
    """How often a text holds a sequence, wherever windows end and copies overlap."""
    within, wanted, size = text.tobytes(), tokens.astype(text.dtype).tobytes(), text.itemsize
    count, place = 0, within.find(wanted)
    while place >= 0:
        count += place % size == 0
        place = within.find(wanted, place + 1)
    return count


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
    window: NDArray[np.int32], canary: NDArray[np.int64], rng: np.random.Generator, *, start: int = 0, end: int = 0
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


def split_table(plain: Sequence[str], num_validation: int, placed: Sequence[tuple[int, int]]) -> pa.Table:
    """tables.SPLITS of rows, all of one class: plain ones, then those with canaries.

    Args:
        plain: ids of the rows without canaries; a row with one sorts where the row was that it takes.
        num_validation: of them, the last.
        placed: of `place_canaries`.
    """
    roles = [TRAIN] * (len(plain) - num_validation) + [VALIDATION] * num_validation
    for _, row in placed:
        roles[row] = LEFT_OUT
    roles += [role_of(canary) for canary, _ in placed]
    columns = {
        "example_id": [*plain, *(f"{plain[row]} canary {canary:06d}" for canary, row in placed)],
        "row": list(range(len(roles))),
        "role": list(roles),
        "label": [0] * len(roles),
        "class_name": ["text"] * len(roles),
        "reason": ["carries canaries" if role == LEFT_OUT else None for role in roles],
    }
    empty = {name: [None] * len(roles) for name in ("crop_x0", "crop_y0", "crop_x1", "crop_y1", "group")}
    return pa.table({name: (columns | empty)[name] for name in SPLITS.arrow.names}).cast(SPLITS.arrow)


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
