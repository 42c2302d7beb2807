"""Columns of tables that users supply."""

import csv
import io
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa

from memlib.errors import DataError
from memlib.sanitize import plain

MOST_SHOWN = 400  # characters of the names of columns in a message


def check_once(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Raise DataError unless a table has each wanted column, and has it once.

    Args:
        names: names of the table's columns.
        wanted: names of the columns to read.
    """
    for column in wanted:
        if names.count(column) != 1:
            seen = f"{names.count(column)} columns" if column in names else "no column"
            has = plain(", ".join(names))
            shown = has if len(has) <= MOST_SHOWN else f"{has[:MOST_SHOWN]}..."
            raise DataError(f"{where} has {seen} {column!r}; it has {shown}")


def read_csv(content: bytes, path: str) -> tuple[list[str], list[dict[str, str]]]:
    """Return the names of the columns of a CSV file, and its rows; tabs separate the values of a file called .tsv.

    Raises:
        DataError: when a row has more cells than the header, as where a comma within a text is not quoted.
        ValueError, csv.Error: when the content is no CSV in UTF-8.
    """
    has_tabs = path.lower().endswith(".tsv") and b"\t" in content.partition(b"\n")[0]
    delimiter = "\t" if has_tabs else ","
    reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=delimiter)
    names, rows = list(reader.fieldnames or ()), []
    for row in reader:
        beyond: Any = row.pop(None, [])  # cells beyond the header, empty or not
        if any(beyond):
            cells = len(names) + len(beyond)
            raise DataError(
                f"{path}, line {reader.line_num}, has {cells} cells, but the header has {len(names)}; put texts with commas "
                "between quotation marks"
            )
        rows.append(row)
    return names, rows


def ids_of(column: pa.ChunkedArray, where: str) -> list[str | None]:
    """Return the ids in a column as text; None where a row has none.

    Args:
        where: table and column, for the message.

    Raises:
        DataError: when the column holds anything but text or whole numbers, as other values can be written in several ways.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(of(kind) for of in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
        cast = "; decode the bytes to text" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else ""
        raise DataError(f"{where} holds {kind}; ids must be text or whole numbers{cast}")
    return [None if value is None else str(value) for value in column.to_pylist()]


def hint_at_ids(ids: Sequence[str | None], wanted: Sequence[str]) -> str:
    """Explain, for an error message, how the ids of a table differ from those of the examples; "" if unknown."""
    stems, names = {PurePosixPath(name).stem for name in wanted}, set(wanted)
    given = [name for name in ids if name]
    if any(str(PurePosixPath(name).with_suffix("")) in names for name in given if PurePosixPath(name).name):
        return f". Its ids, such as {given[0]}, have a suffix that those of the examples lack"
    if any(PurePosixPath(name).stem in stems for name in given):
        return f". Its ids, such as {given[0]}, differ from {wanted[0]} in their folder or suffix"
    return ""


def check_ids(ids: Sequence[str | None], where: str) -> list[str]:
    """Return the ids unchanged, after a check that none is missing.

    Raises:
        DataError: when a row has no id.
    """
    if None in ids:
        raise DataError(f"{where} has no id in row {ids.index(None) + 1}")
    return [name for name in ids if name is not None]
