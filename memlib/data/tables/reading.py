"""Reading of tables as programs write them: pandas with its row index, Excel with semicolons and decimal commas, JSON Lines.

The type of a column is decided on all of its values: numbers, or text. What looks like a number and need not be one, such as
1E50, 0x1A and 00123, is text; what could be read in two ways is refused, and `decimal` and `types` in the recipe decide.
"""

import csv
import io
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from memlib.data.opening import content_of, read_parquet, reason
from memlib.data.tables.columns import check_once
from memlib.data.text.streams import UNREADABLE
from memlib.errors import DataError, UserError
from memlib.specs import TableSource

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", ".")
"""Texts that stand for a missing value in a column of a CSV file, unless it is that of the classes."""
CODES = r"^[+-]?0[0-9]|^[0-9]+[eE][0-9]+$|^0[xXbBoO]"
DECIMAL_COMMA = r"^[+-]?[0-9]+(\.[0-9]{3})*,[0-9]+$"
DATE = r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T].*)?$|^[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}( .*)?$"
JSON_LINES = (".jsonl", ".ndjson")
SHOWN = 60  # characters of a value in a message


@dataclass(frozen=True)
class TableFile:
    """A table as it was read, from one file or from several parts."""

    table: pa.Table  #: its columns, numbers where all values are numbers.
    texts: pa.Table  #: the same as they are in the file.
    index: tuple[str, ...]  #: columns that number the rows, which no model should see.
    #: ways in which earlier versions read the file otherwise; they enter keys.
    marks: tuple[str, ...]
    rows: tuple[str, ...]  #: number of each row within its file, from 0, after its part if there are several.


def read_table_file(spec: TableSource) -> TableFile:
    """Read a CSV, JSON Lines or Parquet file, or several with the same columns.

    Raises:
        DataError: when one cannot be read, a column could be read in two ways, or columns differ.
    """
    parts = {f"{name}/": path for name, path in spec.files.items()} or {"": spec.path}
    files = {name: _content(path, spec) for name, path in parts.items()}
    texts = _joined(files, spec)
    is_text = all(not path.endswith((".parquet", *JSON_LINES)) for path in parts.values())
    table, marks = _from_texts(texts, spec) if is_text else (_with_numbers(texts, spec), ())
    if unknown := sorted(spec.types.keys() - set(table.column_names)):
        raise DataError(f"{spec.where} has no column {unknown[0]!r}, which data.source.types names")
    ends = np.cumsum([0, *(file.num_rows for file in files.values())]).tolist()
    found = [set(_index_columns(table.slice(a, b - a), spec)) for a, b in itertools.pairwise(ends)]
    index = tuple(name for name in table.column_names if all(name in one for one in found))
    rows = tuple(f"{part}{row:07d}" for part, file in files.items() for row in range(file.num_rows))
    return TableFile(table, texts, index, (*marks, *(("index",) if index else ())), rows)


def _content(path: str, spec: TableSource) -> pa.Table:
    """Return a file as a table: of text if it is a CSV file, else with the types that it states."""
    try:
        data = content_of(path)
        if path.endswith(".parquet"):
            table = read_parquet(data, path)
        elif path.endswith(JSON_LINES):
            table = pyarrow.json.read_json(io.BytesIO(data))
        else:
            table = _read_csv(data, path, spec)
    except UserError:
        raise
    except (*UNREADABLE, csv.Error, pa.ArrowException) as error:
        raise DataError(f"cannot read the table {path} ({reason(error)})") from error
    check_once(table.column_names, table.column_names, path)
    return table


def _joined(files: Mapping[str, pa.Table], spec: TableSource) -> pa.Table:
    """Return the rows of all files, one after the other, with the columns in the order of the first file."""
    (_, first), *others = files.items()
    for _, table in others:
        if differing := sorted(set(first.column_names) ^ set(table.column_names)):
            raise DataError(
                f"{spec.where}: only some of these files have the column {differing[0]!r}; parts have the same columns"
            )
    try:
        return pa.concat_tables([table.select(first.column_names) for table in files.values()], promote_options="permissive")
    except pa.ArrowException as error:
        raise DataError(f"{spec.where}: their columns are of different types ({reason(error)})") from error


def _with_numbers(table: pa.Table, spec: TableSource) -> pa.Table:
    """Return a typed table in which the texts of columns that the recipe calls numbers are numbers."""
    for place, name in enumerate(table.column_names):
        if spec.types.get(name) == "number" and pa.types.is_string(table.schema.field(name).type):
            known = pc.utf8_trim_whitespace(table[name])
            known = pc.if_else(pc.is_in(known, pa.array(MISSING)), pa.scalar(None, pa.string()), known)
            table = table.set_column(place, name, _as_numbers(known, name, spec))
    return table


def _as_numbers(known: pa.ChunkedArray, name: str, spec: TableSource) -> pa.ChunkedArray:
    """Return a column of text as numbers.

    Raises:
        DataError: when a value is none.
    """
    if (numbers := _numbers(known)) is None:
        raise DataError(
            f"{spec.where}: column {name} holds {_first_text(known)!r}, which is no number; see data.source.types"
        )
    return numbers


def _read_csv(data: bytes, path: str, spec: TableSource) -> pa.Table:
    """Return the columns of a CSV file as text."""
    names = list(spec.names) or _header(data, path, spec)
    reading = pyarrow.csv.ReadOptions(skip_rows=spec.skip_rows, column_names=list(spec.names) or None)
    parsing = pyarrow.csv.ParseOptions(delimiter=spec.delimiter)
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    return pyarrow.csv.read_csv(io.BytesIO(data), reading, parsing, as_text)


def _from_texts(texts: pa.Table, spec: TableSource) -> tuple[pa.Table, tuple[str, ...]]:
    """Return a table of text with numbers where all values of a column are, and the marks of its columns."""
    read = [_typed(texts[place], name, spec) for place, name in enumerate(texts.column_names)]
    marks = sorted({mark for _, mark in read if mark})
    return pa.table([column for column, _ in read], names=texts.column_names), tuple(marks)


def _header(data: bytes, path: str, spec: TableSource) -> list[str]:
    """Return the names of the columns of a CSV file with a header.

    Raises:
        DataError: when another delimiter than that of the recipe separates them.
    """
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline="")
    for _ in range(spec.skip_rows):
        text.readline()
    names = next(csv.reader(text, delimiter=spec.delimiter), [])
    others = [one for one in (";", "\t", "|", ",") if one != spec.delimiter and one in (names[0] if names else "")]
    if len(names) == 1 and others:
        named = "a tab ('\\t')" if others[0] == "\t" else repr(others[0])
        raise DataError(
            f"{path} has one column, {names[0][:SHOWN]!r}; if {named} separates its values, set data.source.delimiter"
        )
    return names


def _typed(column: pa.ChunkedArray, name: str, spec: TableSource) -> tuple[pa.ChunkedArray, str]:
    """Return a column of text as numbers if all of its values are, and a mark if earlier versions read it otherwise."""
    text = pc.utf8_trim_whitespace(column)
    missing = ("",) if name == spec.label_column else MISSING
    known = pc.if_else(pc.is_in(text, pa.array(missing)), pa.scalar(None, pa.string()), text)
    is_label = name == spec.label_column
    mark = "labels" if is_label and pc.any(pc.is_in(known, pa.array(MISSING[1:]))).as_py() else ""
    wanted = spec.types.get(name)
    if wanted == "category":
        return known, mark
    has, numbers = _matcher(known), _numbers(known)
    if wanted is None and not is_label and spec.uses(name) and numbers is None:
        _refuse_ambiguous(name, has, known, spec)
    if wanted is None and has(CODES):
        return known, "codes" if numbers is not None and not has(r"^[+-]?0[0-9]") else mark
    if spec.decimal == ",":
        known = pc.replace_substring(pc.replace_substring(known, ".", ""), ",", ".")
        numbers = _numbers(known)
    if wanted == "number":
        return _as_numbers(known, name, spec), mark
    return known if numbers is None else numbers, mark


def _matcher(column: pa.ChunkedArray) -> Callable[..., bool]:
    """Return a function that says whether any, or every, known value of a column matches a regular expression."""

    def has(pattern: str, *, every: bool = False) -> bool:
        found = pc.match_substring_regex(column, pattern)
        return bool((pc.all if every else pc.any)(found, min_count=1).as_py())

    return has


def _numbers(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    for kind in (pa.int64(), pa.float64()):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def _first_text(column: pa.ChunkedArray) -> str:
    """Return the first value of a column that is no number."""
    for value in column.drop_null().to_pylist():
        try:
            float(value)
        except ValueError:
            return str(value)[:SHOWN]
    return ""


def _refuse_ambiguous(name: str, has: Callable[..., bool], column: pa.ChunkedArray, spec: TableSource) -> None:
    """Raise DataError for numbers with decimal commas, and for dates, which would be taken for categories."""
    example = str(next((value for value in column.to_pylist() if value is not None), ""))[:SHOWN]
    if spec.decimal == "." and has(r",") and has(rf"{DECIMAL_COMMA}|^[+-]?[0-9]+$", every=True):
        raise DataError(
            f"{spec.where}: column {name} holds numbers with commas, such as {example!r}; set data.source.decimal: ',' if "
            f"these are decimals, or data.source.types: {{{name}: category}} if they are categories"
        )
    if has(DATE, every=True):
        raise DataError(
            f"{spec.where}: column {name} holds dates, such as {example!r}; write them as numbers, leave them out with "
            f"data.source.columns, or set data.source.types: {{{name}: category}}"
        )


def _index_columns(table: pa.Table, spec: TableSource) -> list[str]:
    """Return the columns that only number the rows in the order of the file: what programs write beside the data."""
    if spec.columns:
        return []
    named = {spec.label_column, spec.id_column, spec.person_column, *spec.categorical, *spec.types}
    features = [name for name in table.column_names if name not in named]
    found = [name for name in features if _numbers_rows(name, table[name])]
    return found if len(found) < len(features) else []


def _numbers_rows(name: str, column: pa.ChunkedArray) -> bool:
    if not pa.types.is_integer(column.type) or column.null_count or len(column) < 2:
        return name.startswith("__index_level_")  # of pandas, whose index may be text
    values = column.to_numpy()
    return bool((np.diff(values) == 1).all() and values[0] in (0, 1))


def names_of_index(index: Sequence[str]) -> str:
    """Return a remark on columns that number the rows."""
    named = ", ".join(name or "(without a name)" for name in index)
    return f"columns that number the rows, which are left out: {named} (name them in columns if they are features)"
