"""Files in which users name examples, and say something of each: the group it belongs to, the set it is in."""

import csv
import hashlib
import io

import pyarrow as pa
import pyarrow.parquet as pq

from memlib.data.examples import open_location
from memlib.errors import UserError


def said_of_examples(path: str, column: str, *, setting: str) -> dict[str, str]:
    """Return what a file says of each example that it names, by example id.

    Args:
        path: a CSV or Parquet file with the columns example_id and `column`, here or at a URL.
        column: what is asked for; empty cells say nothing.
        setting: the recipe's key that names the file, for messages.

    Raises:
        UserError: when it cannot be read, lacks a column, or names an example twice.
    """
    content = _content(path, setting)
    try:
        rows = (
            pq.read_table(io.BytesIO(content)).to_pylist()
            if path.endswith(".parquet")
            else list(csv.DictReader(io.StringIO(content.decode("utf-8"))))
        )
    except (ValueError, csv.Error, pa.ArrowException) as error:
        raise UserError(f"cannot read {setting} {path} ({str(error).splitlines()[0]})") from error
    missing = [name for name in ("example_id", column) if not rows or name not in rows[0]]
    if missing:
        raise UserError(f"{path} has no column {missing[0]!r}; {setting} needs example_id and {column}")
    found: dict[str, str] = {}
    for row in rows:
        name, value = str(row["example_id"]), row[column]
        if value in (None, ""):
            continue
        if found.setdefault(name, str(value)) != str(value):
            raise UserError(f"{path} says two things of example {name!r}: {found[name]} and {value}")
    return found


def named_digest(path: str, *, setting: str) -> str:
    """Return what a key says of such a file."""
    return hashlib.sha256(_content(path, setting)).hexdigest()


def _content(path: str, setting: str) -> bytes:
    fs, location = open_location(path)
    try:
        with fs.open(location, "rb") as file:
            return bytes(file.read())
    except OSError as error:
        raise UserError(f"cannot read {setting} {path} ({str(error).splitlines()[0]})") from error
