"""Texts that people bring: documents in tables, files and folders, with their sides and persons."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memlib.data.text.chats import Chat, is_chat, render
from memlib.errors import UserError
from memlib.looking.things import CHATS, YES, Columns, Thing, read_columns, side_of

NAMED = ("text", "body", "content", "document", "messages", "conversations", "message", "sentence", "prompt", "completion")
FEWEST_LINES = 20  # of a file without blank lines that has a document per line
OF_TABLES = (".jsonl", ".ndjson", ".csv", ".parquet")


@dataclass(frozen=True)
class Documents:
    """Documents, with what is known of each."""

    texts: Sequence[str | Chat]
    members: Sequence[bool] = ()  #: whether each is a member; empty if nothing says so.
    persons: Sequence[str] = ()  #: the person of each; empty if nothing says so.
    unit: str = "document"  #: what a document is, in words.

    def rendered(self, folder: str) -> list[str]:
        """Return the texts; chats are rendered by the template of a model's folder, in a child process."""
        if not self.texts or isinstance(self.texts[0], str):
            return [str(one) for one in self.texts]
        return list(render([(f"chat {number}", chat) for number, chat in enumerate(self.texts, start=1)], folder))  # type: ignore[misc]


def with_texts(things: Sequence[Thing]) -> list[Thing]:
    """Return things in which tables beside a language model are known as texts, by their column of texts or its name.

    Raises:
        UserError: when a table has no such column, or no model that is brought can be asked about texts.
    """
    tables, texts = [one for one in things if one.kind == "table"], [one for one in things if one.kind == "texts"]
    language = any(one.kind in ("language", "adapter") for one in things)
    strange = next((one for one in things if one.kind in ("encoder", "classifier", "weights")), None)
    if texts and strange is not None and not language:
        raise UserError(
            f"{strange.path} is {strange.said}: of models of texts, causal language models in a folder of transformers can "
            "be asked (config.json with ...ForCausalLM, weights as .safetensors, a tokenizer)"
        )
    if not language or not tables:
        return list(things)
    return [_as_texts(one) if one.kind == "table" else one for one in things]


def _as_texts(table: Thing) -> Thing:
    columns = table.columns
    assert columns is not None, "tables have columns"
    names = {name.lower(): name for name in columns.names}
    text = next((names[name] for name in NAMED if name in names), columns.text)
    if text is None:
        raise UserError(f"{table.path}: which column is the text? call it text; the columns are {', '.join(columns.names)}")
    named = {"member": columns.member, "person": columns.person}
    said = "".join(f", {role} in column {name}" for role, name in named.items() if name)
    others = [name for name in columns.names if name not in (text, columns.id, columns.numbering, *named.values())]
    said += f"; not read: {', '.join(others)}" if others else ""
    return replace(
        table, kind="texts", said=f"{columns.rows:,} texts in column {text}{said}", columns=replace(columns, text=text)
    )


def read_texts(thing: Thing) -> Documents:
    """Return the documents of a thing.

    A table has a document per row, a folder one per file, and other text one per passage between blank lines or, where there
    are none, one per line.

    Raises:
        UserError: when a text cannot be read.
    """
    columns = thing.columns
    if columns is not None and columns.text in CHATS and thing.path.endswith((".jsonl", ".ndjson")):
        return _chats(thing.path, columns)
    if columns is not None and columns.text is not None:
        part = read_columns(thing.path, columns)
        texts = [str(value or "") for value in part[columns.text].to_pylist()]
        members = [] if columns.member is None else [_is_yes(one) for one in part[columns.member].to_pylist()]
        return Documents(texts, members, [] if columns.person is None else list(map(str, part[columns.person].to_pylist())))
    place = Path(thing.path).expanduser()
    if place.is_file():
        passages, unit = _passages(_read(place))
        return Documents(passages, unit=unit)
    files = [one for one in sorted(place.rglob("*")) if one.is_file() and not _is_hidden(one.relative_to(place))]
    if tables := [one for one in files if one.suffix.lower() in OF_TABLES]:
        raise UserError(f"{place} holds {tables[0].name}, a table of texts: name the file itself")
    sides = [side_of(one.relative_to(place).parts[0]) for one in files]
    known = {"members", "others"} <= set(sides) and "" not in sides
    return Documents([_read(one) for one in files], [side == "members" for side in sides] if known else [], unit="file")


def _chats(path: str, columns: Columns) -> Documents:
    chats, members, persons = [], [], []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), start=1):
        row = json.loads(line) if line.strip() else None
        if row is None:
            continue
        if not isinstance(row, Mapping) or not is_chat(row.get(columns.text or "")):
            raise UserError(
                f"{path}, line {number}: column {columns.text} holds no chat (a list of messages with a role each)"
            )
        chats.append(row[columns.text or ""])
        members.append(_is_yes(row.get(columns.member or "")))
        persons.append(str(row.get(columns.person or "")))
    return Documents(chats, members if columns.member else [], persons if columns.person else [], unit="chat")


def _is_yes(value: object) -> bool:
    return str(value).strip().lower() in YES


def _is_hidden(place: Path) -> bool:
    return any(part.startswith(".") for part in place.parts)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is no text in UTF-8; save it so, or take it away") from error
    except OSError as error:
        raise UserError(f"cannot read {file} ({error.strerror})") from error


def _passages(text: str) -> tuple[list[str], str]:
    """Return the passages of a text between blank lines; its lines if it has none of these, but many."""
    found = [one.strip() for one in re.split(r"\n\s*\n", text) if one.strip()]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines, "line") if len(found) == 1 and len(lines) >= FEWEST_LINES else (found, "passage between blank lines")
