"""User-supplied files that assign a group or a set to examples, by example id."""

import csv
import hashlib

import pyarrow as pa

from memlib.data.opening import content_of, read_parquet, reason
from memlib.data.tables.columns import check_ids, check_once, ids_of, read_csv
from memlib.errors import DataError

ALSO = {"example_id": "id", "group": "person"}  # columns, and how they may be called as well


def said_of_examples(path: str, column: str, *, setting: str, id_column: str = "example_id") -> dict[str, str]:
    """Return the values that a file assigns to examples, by example id.

    Args:
        path: local path or URL of a CSV or Parquet file with the columns `id_column` and `column`.
        column: column that holds the values; empty cells are skipped.
        setting: recipe key that names the file; used in messages.
        id_column: column that holds the example ids. The columns example_id and group may be called id and person.

    Raises:
        DataError: when the file cannot be read, lacks a column, or gives an example two different values.
    """
    content = named_content(path, setting=setting)
    try:
        if path.endswith(".parquet"):
            table = read_parquet(content, path)
        else:
            names, rows = read_csv(content, path)
            table = pa.table([pa.array([row[name] for row in rows], pa.string()) for name in names], names=names)
    except DataError:
        raise
    except (ValueError, csv.Error, pa.ArrowException) as error:
        raise DataError(f"cannot read {setting} {path} ({reason(error)})") from error
    id_column, column = (
        ALSO[name] if name not in table.column_names and ALSO.get(name) in table.column_names else name
        for name in (id_column, column)
    )
    check_once(table.column_names, [id_column, column], path)
    ids = check_ids(ids_of(table[id_column], f"{path}: {id_column}"), f"{path}: {id_column}")
    said = table[column].cast(pa.string()) if pa.types.is_boolean(table[column].type) else table[column]
    values: dict[str, str] = {}
    for name, value in zip(ids, ids_of(said, f"{path}: {column}"), strict=True):
        if not value:
            continue
        if values.setdefault(name, value) != value:
            raise DataError(f"{path} gives example {name!r} two values: {values[name]} and {value}; keep one")
    return values


def named_digest(path: str, *, setting: str) -> str:
    """Return the SHA-256 of a file for `said_of_examples`, for use in stage keys."""
    return hashlib.sha256(named_content(path, setting=setting)).hexdigest()


def named_content(path: str, *, setting: str) -> bytes:
    """Return the bytes of a file that the recipe key `setting` names.

    Raises:
        DataError: when the file cannot be read.
    """
    try:
        return content_of(path)
    except OSError as error:
        raise DataError(f"cannot read {setting} {path} ({reason(error)})") from error
