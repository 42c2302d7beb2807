"""Reading of tables as programs write them: pandas with its row index, Excel with semicolons and decimal commas, JSON Lines.

The type of a column is decided on all of its values: numbers, or text. What looks like a number and need not be one, such as
1E50, 0x1A and 00123, is text; what could be read in two ways is refused, and `decimal` and `types` in the recipe decide.
"""

import codecs
import csv
import io
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from memlib.data.opening import ArrowContent, content_of, read_parquet, reason, saved_files
from memlib.data.tables.columns import check_once
from memlib.data.text.streams import UNREADABLE
from memlib.errors import DataError, UserError
from memlib.specs import TableSource
from memlib.store.records import json_once

MISSING = ("", "?", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", ".")
"""Texts that stand for a missing value in a column of a CSV file, unless it is that of the classes."""
CODES = r"^[+-]?0[0-9]|^[0-9]+[eE][0-9]+$|^0[xXbBoO]"
DECIMAL_COMMA = r"^[+-]?[0-9]+(\.[0-9]{3})*,[0-9]+$"
COMMA_NUMBER = r"^[+-]?(([0-9]+|[0-9]{1,3}(\.[0-9]{3})+)(,[0-9]*)?|,[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:inf|infinity)$"
THOUSANDS = r"^[+-]?[0-9]{1,3}(,[0-9]{3})+(\.[0-9]+)?$"
NUMBER = r"^[+-]?[0-9]*\.?[0-9]+$"
DATE = r"^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([ T].*)?$|^[0-9]{1,2}[./][0-9]{1,2}[./][0-9]{2,4}( .*)?$"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zip")
WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods", ".numbers")
NO_NAMES = ("", "Unnamed: 0")  # of a first column that holds the index of pandas, or the names of R's rows
NA = "NA"  # what R writes for a missing value: without quotation marks, which it puts around texts
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
    is_text = all(
        _suffix(path) not in (".parquet", ".arrow", *JSON_SUFFIXES) and not saved_files(path) for path in parts.values()
    )
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
        if _suffix(path) in WORKBOOKS:
            raise DataError(f"{path} is a workbook; save its sheet as CSV in UTF-8, and name that file")
        if names := saved_files(path):
            parts = [f"{path.rstrip('/')}/{name}" for name in names]
            table = pa.concat_tables([ArrowContent(content_of(part), part).read() for part in parts])
        else:
            table = _parsed(content_of(path), path, spec)
    except UserError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"cannot read the table {path}: it is not text in UTF-8; save it in UTF-8") from error
    except (*UNREADABLE, csv.Error, pa.ArrowException) as error:
        raise DataError(f"cannot read the table {path} ({reason(error)})") from error
    check_once(table.column_names, table.column_names, path)
    return table


def _parsed(data: bytes, path: str, spec: TableSource) -> pa.Table:
    match _suffix(path):
        case ".parquet":
            return read_parquet(data, path)
        case ".arrow" | ".feather":
            return ArrowContent(data, path).read()
        case suffix if suffix in JSON_SUFFIXES:
            return pyarrow.json.read_json(io.BytesIO(_json_lines(data)))
        case _:
            return _read_csv(data, path, spec)


def _suffix(path: str) -> str:
    """Return the suffix of a file's name in lower case, without that of its compression."""
    name = PurePosixPath(path.lower())
    return (name.with_suffix("") if name.suffix in PACKED_SUFFIXES else name).suffix


def _json_lines(data: bytes) -> bytes:
    """Return rows in JSON, one per line or in one list, as one per line."""
    if not data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"["):
        return data
    try:
        return "\n".join(map(json.dumps, json_once(data))).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


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


def _as_numbers(known: pa.ChunkedArray, name: str, spec: TableSource, decimal: str = ".") -> pa.ChunkedArray:
    """Return a column of text as numbers.

    Raises:
        DataError: when a value is none.
    """
    if (numbers := _numbers(known, decimal)) is None:
        raise DataError(
            f"{spec.where}: column {name} holds {_first_text(known, decimal)!r}, which is no number"
            f"{' with a decimal comma' if decimal == ',' else ''}; see data.source.types"
        )
    return numbers


def _read_csv(data: bytes, path: str, spec: TableSource) -> pa.Table:
    """Return the columns of a CSV file as text."""
    names = list(spec.names) or _header(data, path, spec)
    reading = pyarrow.csv.ReadOptions(skip_rows=spec.skip_rows, column_names=list(spec.names) or None)
    parsing = pyarrow.csv.ParseOptions(delimiter=spec.delimiter, newlines_in_values=True)
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False)
    table = pyarrow.csv.read_csv(io.BytesIO(data), reading, parsing, as_text)
    label = spec.label_column
    if table.column_names.count(label) != 1 or not pc.any(pc.equal(table[label], NA)).as_py():
        return table
    lines = io.BytesIO(data)
    header = next(itertools.islice(lines, spec.skip_rows, None), b"")
    if f'"{label}"'.encode() not in header:  # R puts quotation marks around all names
        return table
    classes = pc.unique(table[label]).to_pylist()
    as_bare = pyarrow.csv.ConvertOptions(
        include_columns=[label], column_types={label: pa.string()}, null_values=classes,
        strings_can_be_null=True, quoted_strings_can_be_null=False,
    )  # fmt: skip
    is_bare = pyarrow.csv.read_csv(io.BytesIO(data), reading, parsing, as_bare)[label].is_null()
    return table.set_column(table.column_names.index(label), label, _without_bare(table[label], is_bare))


def _without_bare(labels: pa.ChunkedArray, is_bare: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return classes without NA, if this alone stands without quotation marks, as R writes a missing value."""
    if pc.unique(labels.filter(is_bare)).to_pylist() != [NA] or pc.all(is_bare).as_py():
        return labels
    return pc.if_else(is_bare, pa.scalar(None, pa.string()), labels)


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
    mark = "bare" if column.null_count else mark  # of a text column: R's missing classes
    wanted = spec.types.get(name)
    if wanted == "category":
        return known, mark
    has, numbers, pointed = _matcher(known), _numbers(known, spec.decimal), _numbers(known)
    if wanted is None and not is_label and spec.uses(name) and numbers is None:
        _refuse_ambiguous(name, has, known, spec)
    if wanted is None and has(CODES):
        return known, "codes" if pointed is not None and not has(r"^[+-]?0[0-9]") else mark
    if wanted == "number":
        return _as_numbers(known, name, spec, spec.decimal), mark
    if numbers is not None:
        return numbers, mark
    return known, "decimal" if spec.decimal == "," and has("[.,]") else mark  # before, texts lost their points and commas


def _matcher(column: pa.ChunkedArray) -> Callable[..., bool]:
    """Return a function that says whether any, or every, known value of a column matches a regular expression."""

    def has(pattern: str, *, every: bool = False) -> bool:
        found = pc.match_substring_regex(column, pattern)
        return bool((pc.all if every else pc.any)(found, min_count=1).as_py())

    return has


def _numbers(column: pa.ChunkedArray, decimal: str = ".") -> pa.ChunkedArray | None:
    """Return a column of text as numbers; None if a value is none."""
    if decimal == ",":
        if pc.any(pc.invert(pc.match_substring_regex(column, COMMA_NUMBER))).as_py():
            return None
        column = pc.replace_substring(pc.replace_substring(column, ".", ""), ",", ".")
    for kind in (pa.int64(), pa.float64()):
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return None


def _first_text(column: pa.ChunkedArray, decimal: str) -> str:
    """Return the first value of a column that is no number."""
    for value in column.drop_null().to_pylist():
        if decimal == ",":
            if not re.search(COMMA_NUMBER, value):
                return str(value)[:SHOWN]
            continue
        try:
            float(value)
        except ValueError:
            return str(value)[:SHOWN]
    return ""


def _refuse_ambiguous(name: str, has: Callable[..., bool], column: pa.ChunkedArray, spec: TableSource) -> None:
    """Raise DataError for numbers with another sign than the recipe's, and for dates, which would be taken for categories."""
    example = str(next((value for value in column.to_pylist() if value is not None), ""))[:SHOWN]
    if spec.decimal == "." and has(r",") and has(rf"{DECIMAL_COMMA}|^[+-]?[0-9]+$", every=True):
        raise DataError(
            f"{spec.where}: column {name} holds numbers with commas, such as {example!r}; set data.source.decimal: ',' if "
            f"these are decimals, or data.source.types: {{{name}: category}} if they are categories"
        )
    if spec.decimal == "." and has(r",") and has(rf"{THOUSANDS}|{NUMBER}", every=True):
        raise DataError(
            f"{spec.where}: column {name} holds numbers with commas between thousands, such as {example!r}; write them "
            f"without, or set data.source.types: {{{name}: category}} if they are categories"
        )
    if spec.decimal == "," and has(r"\.") and has(rf"{COMMA_NUMBER}|{NUMBER}", every=True):
        raise DataError(
            f"{spec.where}: column {name} holds numbers with points, such as {example!r}, but data.source.decimal is ','; "
            f"write them with commas, or set data.source.types: {{{name}: category}} if they are categories"
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
    if (first := table.column_names[0]) in NO_NAMES and first in features and first not in found and _differ(table[first]):
        found.append(first)
    return found if len(found) < len(features) else []


def _numbers_rows(name: str, column: pa.ChunkedArray) -> bool:
    if not pa.types.is_integer(column.type) or column.null_count or len(column) < 2:
        return name.startswith("__index_level_")  # of pandas, whose index may be text
    values = column.to_numpy()
    return bool((np.diff(values) == 1).all() and values[0] in (0, 1))


def _differ(column: pa.ChunkedArray) -> bool:
    """Return whether a column holds whole numbers or texts that are all different, as the index of selected rows does."""
    is_name = pa.types.is_integer(column.type) or pa.types.is_string(column.type)
    return is_name and not column.null_count and len(column) > 1 and len(pc.unique(column)) == len(column)


def names_of_index(index: Sequence[str]) -> str:
    """Return a remark on columns that number the rows."""
    named = ", ".join(name or "(without a name)" for name in index)
    return f"columns that number the rows, which are left out: {named} (name them in columns if they are features)"
