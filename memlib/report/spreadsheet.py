"""Rows of tables as CSV that is safe to open in a spreadsheet, and as a link from a page, which needs no other file."""

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from memlib.findings import Finding

Row = Mapping[str, Any]
Rows = Sequence[Row] | Sequence[Finding]
"""Rows of published tables; findings stand for rows of the table `summary`."""
DIGITS = 4  # significant digits of numbers in the CSV of a page
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of texts that spreadsheets run
_EMPTY: tuple[Any, ...] = (None, "", [])


def csv_of(rows: Sequence[Row]) -> str:
    """Return rows as CSV, with the names of their columns; numbers stay numbers, and texts never become formulas."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def csv_uri(rows: Rows) -> str:
    """Return rows as a data URI of CSV that is short, as a page repeats it: with DIGITS digits of numbers.

    Each of a row's `params` has a column of its own, such as params.layer. Columns that are empty in all rows are left out,
    and so are name and settings that all points of curves have in common.
    """
    found = [dict(_columns(row.row() if isinstance(row, Finding) else row)) for row in rows]
    names = dict.fromkeys(name for row in found for name, value in row.items() if value not in _EMPTY)
    common = {name for name in names if "curve" in names and len({row.get(name) for row in found}) == 1} - {
        "series",
        "x",
        "y",
    }
    shown = [{name: _rounded(row.get(name)) for name in names if name not in common} for row in found]
    return "data:text/csv;charset=utf-8," + quote(csv_of(shown).replace("\r\n", "\n"), safe=",;:{}()[]=+@!*/?$'")


def columns_of(rows: Sequence[Row], *names: str) -> list[Row]:
    """Return some columns of rows, as a page shows no others."""
    return [{name: row[name] for name in names} for row in rows]


def of_curves(curves: pa.Table, *names: str, **params: Any) -> list[Row]:
    """Return the points of some curves with these params, from a table of schema CURVES; "" matches a missing param."""
    rows = (row for row in curves.to_pylist() if row["curve"] in names)
    return [row for row in rows if all(json.loads(row["params"]).get(key, "") == value for key, value in params.items())]


def _columns(row: Row) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each column, and of each of the params."""
    for name, value in row.items():
        if name != "params":
            yield name, value
            continue
        for key, param in (json.loads(value) if isinstance(value, str) else value).items():
            yield f"params.{key}", json.dumps(param) if isinstance(param, list | dict) else param


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else value
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
