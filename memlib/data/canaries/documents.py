"""Canary documents for training outside memlib: random documents, each with a fair coin that puts it in or leaves it out.

The coins are independent of one another and of the documents (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Algorithm
1), so anything that distinguishes inserted documents from those left out was learned in training. The draws of documents
and coins depend on a secret file: the seed on a command line reveals neither.

A folder of canaries has four files:

- insert.jsonl: the documents whose coin is "in", as records of training data; the trainer adds them to its data;
- all.jsonl: all documents in the order of their draw, with ids and without coins, for recording the model's losses;
- plan.json: the looks at the training, see `memlib.data.canaries.plan`;
- coins.parquet: the coins, for the audit alone.

Anyone with both insert.jsonl and all.jsonl can infer the coins, so an untrusted trainer gets insert.jsonl alone.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from memlib.data.canaries.plan import EARLIER, Coins, check_count, drawing, ids_of, reason, toss, write_folder
from memlib.data.canaries.secret_key import keyed_seed
from memlib.data.text.formats import HOLE, Format, Space
from memlib.errors import UserError
from memlib.stats.canaries import Plan

INSERT_FILE, ALL_FILE = "insert.jsonl", "all.jsonl"
FORMAT = "Record {a8}: {l6} {l6} {l6} {l6} {d6} {d6}."


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


def draw_documents(form: Form, count: int, *, secret: bytes, seed: int | str) -> list[CanaryDocument]:
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
    drawn = zip(ids_of(count), answers, prompts, strict=True)
    return [CanaryDocument(canary, text, places, prompt) for canary, text, prompt in drawn]


def span_of(form: Form) -> tuple[int, int]:
    """Return the span (start, stop) in characters from the first hole to the end of the last, equal in all documents.

    Example:
        >>> span_of(Form("id {d3}, {l2}!"))
        (3, 10)
    """
    lengths = [len(Format(part, {}, holes=False).places("character")) for part in _around(form.text)]
    return lengths[0], sum(lengths[:2])


def write_canaries(
    folder: Path,
    form: Form,
    count: int,
    *,
    repeats: int = 1,
    guesses: Sequence[int] = (),
    plan: Plan = EARLIER,
    secret: bytes,
    seed: int,
) -> Coins:
    """Draw canaries and write their folder, which its owner alone can read.

    Args:
        repeats: number of times that a document is written to insert.jsonl.
        guesses: numbers of guesses for the bound of epsilon; if empty, `planned_guesses`.
        plan: the looks at the training.
        secret: key of documents and coins.
        seed: with the secret, determines documents and coins.

    Raises:
        UserError: when a number is out of bounds, the format is not suitable, or the folder exists.
    """
    check_count(count)
    drawn = drawing(plan, repeats, guesses, seed)
    documents = draw_documents(form, count, secret=secret, seed=drawn)
    names = [one.canary for one in documents]
    coins = toss(names, content=digest_of(documents), repeats=repeats, guesses=guesses, plan=plan, secret=secret, seed=drawn)
    chosen = [one.record(form.field_name) for one, given in zip(documents, coins.inside, strict=True) if given]
    every = [one.line() for one in documents]
    write_folder(folder, coins, {INSERT_FILE: _lines(chosen * repeats), ALL_FILE: _lines(every)})
    return coins


def digest_of(documents: Sequence[CanaryDocument]) -> str:
    """Return a digest of canary documents, by which losses of other canaries with the same ids are recognized."""
    return hashlib.sha256("".join(one.line() for one in documents).encode()).hexdigest()


def read_documents(path: Path) -> list[CanaryDocument]:
    """Read the documents of all.jsonl.

    Args:
        path: the file, or a folder of canaries.

    Raises:
        UserError: when the file cannot be read, or an id occurs twice; the message quotes no document.
    """
    file = path / ALL_FILE if path.is_dir() else path
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the canaries of {file} ({reason(error)}); memlib canaries make writes them") from error
    documents = [_document(line, f"{file}, line {number}") for number, line in enumerate(lines, start=1) if line]
    if not documents or len({one.canary for one in documents}) < len(documents):
        raise UserError(f"{file} has no canaries or repeats an id; use all.jsonl as memlib canaries make wrote it")
    return documents


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


def _lines(lines: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


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
