"""Columns of tables that users supply."""

from collections.abc import Sequence

import pyarrow as pa

from memlib.errors import UserError


def check_once(names: Sequence[str], wanted: Sequence[str], where: str) -> None:
    """Raise UserError unless a table has each wanted column, and has it once.

    Args:
        names: names of the table's columns.
        wanted: names of the columns to read.
        where: the table, for the message.
    """
    for column in wanted:
        if names.count(column) != 1:
            seen = f"{names.count(column)} columns" if column in names else "no column"
            raise UserError(f"{where} has {seen} {column!r}; it has {', '.join(names)}")


def ids_of(column: pa.ChunkedArray, where: str) -> list[str | None]:
    """Return the ids in a column as text; None where a row has none.

    Args:
        column: the column.
        where: table and column, for the message.

    Raises:
        UserError: when the column holds anything but text or whole numbers, which have several texts each.
    """
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(of(kind) for of in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_null)):
        raise UserError(f"{where} holds {kind}; ids must be text or whole numbers")
    return [None if value is None else str(value) for value in column.to_pylist()]


def check_ids(ids: Sequence[str | None], where: str) -> list[str]:
    """Return ids of which none is missing.

    Raises:
        UserError: when a row has no id.
    """
    if None in ids:
        raise UserError(f"{where} has no id in row {ids.index(None) + 1}")
    return [name for name in ids if name is not None]
