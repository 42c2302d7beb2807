"""The command that lists the secrets of a known format in a text, for an exposure audit of these secrets."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Annotated, Literal

from cyclopts import Parameter
from fsspec.utils import infer_compression
from pydantic import TypeAdapter

from flows.cli.files import write_new
from flows.cli.store import JsonOption
from memlib.console import console, show_text
from memlib.data.opening import located
from memlib.data.text.formats import Format
from memlib.errors import UserError
from memlib.specs import TextSource

Kind = Literal["text", "text_parquet", "jsonl", "mail"]
KINDS: Mapping[str, Kind] = {
    ".parquet": "text_parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".mbox": "mail", ".eml": "mail",
}  # fmt: skip
COLUMNS: Mapping[str, str] = {"text_parquet": "text_column", "jsonl": "field"}  # the settings that name the text
ALPHABET = re.compile(r"([a-z_]+)=(.+)")


def scan(
    text: str,
    /,
    *,
    format_: Annotated[str, Parameter(name="--format")],
    kind: Kind | None = None,
    column: str | None = None,
    template: str | None = None,
    alphabet: Annotated[Sequence[str], Parameter(negative="")] = (),
    out: Path | None = None,
    counts: Annotated[bool, Parameter(negative="")] = False,
    json_: JsonOption = False,
) -> None:
    """Find the secrets of a known format in a text, and list them for an exposure audit (canaries.file).

    Prints how many there are, but never a secret. All occurrences count, overlapping ones included; characters are compared
    exactly. Where the format begins or ends with a hole, an occurrence within a longer run of the hole's alphabet is left
    out: the first 16 of 20 digits are no card number.

    Parameters
    ----------
    text
        A source of text as in recipes, local or s3://: a text file (.xz, .gz and .bz2 are decompressed), Parquet, JSON lines
        or mail.
    format_
        The secret and the text around it, as in "My number is {d9}": nine digits. The holes' alphabets are d (digits), h
        (hexadecimal digits), l and u (lower-case and capital letters) and a (l and d).
    kind
        Kind of the source; by default it follows from the name (.parquet; .jsonl, .ndjson; .mbox, .eml), or from the
        beginning: mail for a folder and for a file that begins like an mbox, else text, or Parquet if there is a column.
    column
        Column of Parquet, or field of JSON lines, that holds the text; by default text.
    template
        Of chat messages: folder of the tokenizer or model whose chat template renders them; column names the messages.
    alphabet
        A further alphabet, as in --alphabet x=ACGT for holes such as {x20}; may be given several times.
    out
        The new file for the secrets, which its owner alone can read; an existing file is never overwritten.
    counts
        Write the number of occurrences after each secret: for an external model that was trained on this text. For models
        that memlib trains, the audit counts by itself.
    json_
        Print the counts as JSON.
    """
    if out is not None:
        out = _new_file(out)
    alphabets = dict(map(_alphabet, alphabet))
    from memlib.data.text.scan import scan_text  # loads Arrow
    from memlib.data.text.sources import open_text

    opened = open_text(_source(text, kind, column, template))
    found, remarks = scan_text(opened, Format(format_, alphabets)), list(opened.remarks())
    if not found.counts:
        raise UserError(
            f"nothing in {text} matches the format {format_!r}; characters must agree exactly, and an occurrence within a "
            "longer run of a hole's alphabet does not count"
        )
    if out is not None:
        write_new(out, found.lines(counted=counts).encode())
    total, once = len(found.counts), found.once
    if json_:
        numbers = {"occurrences": found.occurrences, "secrets": total, "once": once, "more_often": total - once}
        show_text(
            json.dumps({"text": text, "format": format_, **numbers, "remarks": remarks, "file": out and str(out)}, indent=1)
        )
        return
    secrets = f"{total:,} different secrets, of which {once:,} occur once and {total - once:,} more often"
    lines = [f"occurrences of {format_!r} in {text}: {found.occurrences:,}; {secrets}", *remarks]
    if out is None:
        lines.append("next: run the same command with --out FILE to list the secrets for an exposure audit")
    else:
        lines.append(f"next, in a recipe for the exposure audit: {_recipe_line(out, format_, alphabets)}")
        lines.append(
            "also set canaries.unseen to a file of secrets of the same kind that the text does not contain, 40 per secret"
        )
    for line in lines:
        console.print(line, soft_wrap=True)


def _source(path: str, kind: Kind | None, column: str | None, template: str | None) -> TextSource:
    """Return the source of a text, whose kind follows from its name unless it is given."""
    by_name = [KINDS[suffix] for suffix in PurePath(path).suffixes if suffix in KINDS]
    kind = kind or (by_name or [_look_at(path) if column is None else "text_parquet"])[0]
    if column is not None and kind not in COLUMNS:
        raise UserError(f"--column {column} is for Parquet and JSON lines, but {path} is read as {kind}; leave it out")
    given = {"kind": kind, "path": path, **({} if column is None else {COLUMNS[kind]: column})}
    if template is not None:
        given["template"] = template
    source: TextSource = TypeAdapter(TextSource).validate_python(given)
    return source


def _look_at(path: str) -> Kind:
    """Infer the kind of a source with no recognized suffix: mail for a folder or a file that begins with "From " (mbox),
    otherwise text.
    """
    fs, place = located(path)
    if fs.isdir(place):
        return "mail"
    try:
        with fs.open(place, "rb") as file:
            return "mail" if file.read(5) == b"From " else "text"
    except OSError:
        return "text"  # which says why it cannot be read


def _alphabet(given: str) -> tuple[str, tuple[str, ...]]:
    """Return the name and the symbols of an alphabet that is given as NAME=SYMBOLS."""
    parts = ALPHABET.fullmatch(given)
    if parts is None:
        raise UserError(f"--alphabet {given!r} is not NAME=SYMBOLS, such as x=ACGT; names have lower-case letters")
    return parts[1], tuple(parts[2])


def _new_file(out: Path) -> Path:
    """Return the path of the new file, which must have a name that is read as plain text."""
    target = out.expanduser()
    if os.path.lexists(target):
        raise UserError(f"{target} already exists; choose another file")
    if infer_compression(str(target)) is not None:
        raise UserError(f"{target} would be read as a compressed file; choose a name such as secrets.txt")
    return target


def _recipe_line(out: Path, format_: str, alphabets: Mapping[str, Sequence[str]]) -> str:
    """Return the recipe's setting of canaries in YAML; strings are quoted as in JSON, which is YAML."""
    named = {"file": str(out), "format": format_, **({"alphabets": alphabets} if alphabets else {})}
    return f"canaries: {{{', '.join(f'{key}: {json.dumps(value, ensure_ascii=False)}' for key, value in named.items())}}}"
