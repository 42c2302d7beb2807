"""Canary documents for training outside memlib: random documents, each with a fair coin that puts it in or leaves it out.

The coins are independent of one another and of the documents (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Algorithm
1), so anything that distinguishes inserted documents from those left out was learned in training. The draws of documents
and coins depend on a secret file: the seed on a command line reveals neither.

A folder of canaries has three files:

- insert.jsonl: the documents whose coin is "in", as records of training data; the trainer adds them to its data;
- all.jsonl: all documents in the order of their draw, with ids and without coins, for recording the model's losses;
- coins.parquet: the coins, for the audit alone.

Anyone with both insert.jsonl and all.jsonl can infer the coins, so an untrusted trainer gets insert.jsonl alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.canaries.secret_key import keyed_seed
from memlib.data.text.formats import HOLE, Format, Space
from memlib.errors import UserError
from memlib.store.permissions import PRIVATE, make_folder, write_file
from memlib.tables import FLAG, TEXT, Column, Table, write_table

INSERT_FILE, ALL_FILE, COINS_FILE = "insert.jsonl", "all.jsonl", "coins.parquet"
FORMAT = "Record {a8}: {l6} {l6} {l6} {l6} {d6} {d6}."
FEWEST = 20  # canaries; with fewer, no p-value below .05 is likely
SHARES = (0.1, 0.3, 0.8)
"""Shares of the canaries whose coins are guessed for the bound of epsilon, half of them as "in". With a share of 1.0, even a
perfect attack would make errors, as seldom exactly half of the coins are "in"."""

COINS = Table(
    name="canary_coins",
    version=1,
    meaning="The coin of each canary document; secret until the audit.",
    columns=(
        Column("canary", TEXT, "", "id of the canary in all.jsonl"),
        Column("inside", FLAG, "", "true if the document was given to the trainer"),
    ),
    keys=("canary",),
)


@dataclass(frozen=True)
class Form:
    """The form of canary documents."""

    text: str = FORMAT  #: format of the document, or of the answer in a chat; its holes are filled at random.
    #: format of the user's turn, for chats; None for plain documents. Its holes are filled independently.
    prompt: str | None = None
    field: str | None = None  #: the record's field with the text or the messages.

    @property
    def field_name(self) -> str:
        """The field of records, by default text, or messages for chats."""
        return self.field or ("text" if self.prompt is None else "messages")


@dataclass(frozen=True)
class CanaryDocument:
    """A canary document."""

    canary: str  #: its id.
    text: str  #: the document, or the answer in a chat.
    span: tuple[int, int]  #: first character of the random part of `text`, and the one after its last.
    prompt: str | None = None  #: the user's turn of a chat; None for a plain document.

    @property
    def messages(self) -> list[dict[str, str]]:
        """The turns of a chat."""
        assert self.prompt is not None, "a plain document has no turns"
        return [{"role": "user", "content": self.prompt}, {"role": "assistant", "content": self.text}]

    def record(self, field: str) -> str:
        """Return the document as a line of JSON for training data."""
        return json.dumps({field: self.text if self.prompt is None else self.messages}, ensure_ascii=False)

    def line(self) -> str:
        """Return the document with its id as a line of all.jsonl."""
        prompt = {} if self.prompt is None else {"prompt": self.prompt}
        return json.dumps({"canary": self.canary, **prompt, "text": self.text, "span": self.span}, ensure_ascii=False)


@dataclass(frozen=True)
class Coins:
    """The coins of a folder of canaries, and how they are to be used."""

    canaries: tuple[str, ...]  #: ids, in the order of all.jsonl.
    inside: NDArray[np.bool_]  #: (num_canaries,) bool, true for the documents given to the trainer.
    repeats: int  #: number of times that each of the inserted documents was given.
    guesses: tuple[int, ...]  #: numbers of guesses for the bound of epsilon, fixed when the coins were drawn.


def draw_documents(form: Form, count: int, *, secret: bytes, seed: int) -> list[CanaryDocument]:
    """Draw distinct canary documents.

    Args:
        seed: with the secret, determines the documents.

    Raises:
        UserError: when the format has no hole, or yields fewer than `count` documents.
    """
    rng = np.random.default_rng(keyed_seed(secret, "canary documents", seed))
    answers = _filled(Format(form.text, {}), count, rng, distinct=True)
    prompts: Sequence[str | None] = [None] * count
    if form.prompt is not None:
        prompts = _filled(Format(form.prompt, {}, holes=False), count, rng, distinct=False)
    places = span_of(form)
    width = len(str(count - 1))
    drawn = zip(answers, prompts, strict=True)
    return [CanaryDocument(f"canary-{row:0{width}}", text, places, prompt) for row, (text, prompt) in enumerate(drawn)]


def span_of(form: Form) -> tuple[int, int]:
    """Return the span (start, stop) in characters from the first hole to the end of the last, equal in all documents.

    Example:
        >>> span_of(Form("id {d3}, {l2}!"))
        (3, 10)
    """
    lengths = [len(Format(part, {}, holes=False).places("character")) for part in _around(form.text)]
    return lengths[0], sum(lengths[:2])


def draw_coins(count: int, *, secret: bytes, seed: int) -> NDArray[np.bool_]:
    """Draw independent fair coins: (count,) bool.

    Args:
        seed: with the secret, determines the coins.
    """
    rng = np.random.default_rng(keyed_seed(secret, "canary coins", seed))
    return rng.integers(0, 2, size=count).astype(bool)


def planned_guesses(count: int) -> tuple[int, ...]:
    """Return the numbers of guesses for the bound of epsilon, given the number of canaries.

    Example:
        >>> planned_guesses(500)
        (50, 150, 400)
    """
    return tuple(sorted({max(1, round(share * count)) for share in SHARES}))


def write_canaries(
    folder: Path, form: Form, count: int, *, repeats: int, guesses: Sequence[int], secret: bytes, seed: int
) -> Coins:
    """Draw canaries and write their folder, which its owner alone can read.

    Args:
        repeats: number of times that a document is written to insert.jsonl.
        guesses: numbers of guesses for the bound of epsilon; if empty, `planned_guesses`.
        secret: key of documents and coins.
        seed: with the secret, determines documents and coins.

    Raises:
        UserError: when a number is out of bounds, the format is not suitable, or the folder exists.
    """
    _check_numbers(count, repeats, guesses)
    documents = draw_documents(form, count, secret=secret, seed=seed)
    inside = draw_coins(count, secret=secret, seed=seed)
    coins = Coins(tuple(one.canary for one in documents), inside, repeats, tuple(guesses) or planned_guesses(count))
    chosen = [one.record(form.field_name) for one, given in zip(documents, inside, strict=True) if given]
    if folder.exists():
        raise UserError(f"{folder} already exists; choose another folder")
    try:
        make_folder(folder, PRIVATE.folder)
        _write_lines(folder / INSERT_FILE, chosen * repeats)
        _write_lines(folder / ALL_FILE, [one.line() for one in documents])
        _write_coins(folder / COINS_FILE, coins)
    except OSError as error:
        raise UserError(f"cannot write {folder} ({error.strerror})") from error
    return coins


def read_documents(path: Path) -> list[CanaryDocument]:
    """Read the documents of all.jsonl.

    Args:
        path: the file, or a folder of canaries.

    Raises:
        UserError: when the file cannot be read, or an id occurs twice; the message quotes no document.
    """
    file = path / ALL_FILE if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the canaries of {file} ({_reason(error)}); memlib canaries make writes them") from error
    documents = [_document(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1) if line]
    if not documents or len({one.canary for one in documents}) < len(documents):
        raise UserError(f"{file} has no canaries or repeats an id; use all.jsonl as memlib canaries make wrote it")
    return documents


def read_coins(folder: Path) -> Coins:
    """Read the coins of a folder of canaries.

    Raises:
        UserError: when the file of coins cannot be read.
    """
    file = folder / COINS_FILE
    try:
        table = pq.ParquetFile(file).read(columns=COINS.arrow.names).cast(COINS.arrow)
        metadata = pq.read_schema(file).metadata or {}
        repeats, guesses = int(metadata[b"memlib.repeats"]), json.loads(metadata[b"memlib.guesses"])
    except (OSError, pa.ArrowException, ValueError, KeyError) as error:
        raise UserError(
            f"cannot read the coins of {file} ({_reason(error)}); give the folder that memlib canaries make wrote"
        ) from error
    return Coins(tuple(table["canary"].to_pylist()), table["inside"].to_numpy(), repeats, tuple(guesses))


def _check_numbers(count: int, repeats: int, guesses: Sequence[int]) -> None:
    if count < FEWEST:
        raise UserError(f"{count} canaries are too few for a test; draw at least {FEWEST}, better 500")
    if repeats < 1:
        raise UserError(f"repeats is {repeats}; give a number of at least 1")
    if len(set(guesses)) < len(guesses) or not all(0 < number <= count for number in guesses):
        raise UserError(f"guesses are {tuple(guesses)}; give distinct numbers from 1 to the number of canaries ({count})")


def _around(text: str) -> tuple[str, str]:
    """Return the part of a format before its first hole, and the part from there to the end of its last hole."""
    holes = list(HOLE.finditer(text))
    return text[: holes[0].start()], text[holes[0].start() : holes[-1].end()]


def _filled(form: Format, count: int, rng: np.random.Generator, *, distinct: bool) -> list[str]:
    """Fill a format at random `count` times, without repetition if `distinct`."""
    places = form.places("character")
    space = Space(tuple(tuple(range(len(place))) for place in places))
    rows = (space.draw if distinct else space.sample)(count, rng).tolist()
    return ["".join(place[choice] for place, choice in zip(places, row, strict=True)) for row in rows]


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    write_file(path, "".join(f"{line}\n" for line in lines).encode(), PRIVATE.file)


def _write_coins(path: Path, coins: Coins) -> None:
    table = pa.table({"canary": list(coins.canaries), "inside": coins.inside})
    write_file(path, b"", PRIVATE.file)  # private before its content
    plan = {"memlib.repeats": str(coins.repeats), "memlib.guesses": json.dumps(coins.guesses)}
    write_table(table, COINS, path, metadata=plan)


def _document(line: str, where: str) -> CanaryDocument:
    try:
        found = json.loads(line)
        start, stop = found["span"]
        document = CanaryDocument(found["canary"], found["text"], (start, stop), found.get("prompt"))
    except (ValueError, KeyError, TypeError, AttributeError):
        document = None
    if document is None or not _is_whole(document):
        raise UserError(f"{where} is not a canary; use all.jsonl as memlib canaries make wrote it") from None
    return document


def _is_whole(document: CanaryDocument) -> bool:
    texts = (document.canary, document.text, *(() if document.prompt is None else (document.prompt,)))
    start, stop = document.span
    whole = all(isinstance(text, str) for text in texts) and isinstance(start, int) and isinstance(stop, int)
    return whole and 0 <= start < stop <= len(document.text)


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or type(error).__name__) if isinstance(error, OSError) else type(error).__name__
