"""Tables as programs write them are read to the rows that were written, or refused in one line."""

import gzip
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memlib.data.datasets import open_source
from memlib.data.tables.reading import MISSING, TableFile, read_table_file
from memlib.errors import UserError
from memlib.specs import TableSource

ANCHOR = "St. Gallen, 1.5 km"  # makes its column one of text
TEXTS = st.sampled_from(
    ["a,b", "a;b", 'the "old" one', '"', "two\nlines", "cr\rlf\r\n", " spaces ", "NA", "", "0012", "1E50", "1,5", "1.5", "#1",
     "it's", "=1+1", "\\", "\\N", "\\n", "tab\t", "ä€😀", "\ufeff", "TRUE", "2024-05-01", "-", "x" * 300]
)  # fmt: skip
LABELS = st.sampled_from(["well", "ill, very", "NA", "None", 'so "so"', "0x1A"])
Rows = Mapping[str, list[Any]]


@st.composite
def tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Draw a table of text, whole numbers, real numbers and classes, with missing values."""
    count = draw(st.integers(2, 5))

    def column(values: st.SearchStrategy[Any], *, missing: bool = True) -> list[Any]:
        return draw(st.lists(values | st.none() if missing else values, min_size=count, max_size=count))

    real = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e100, max_value=1e100) | st.integers(-99, 99).map(
        float
    )
    return {
        "text": [ANCHOR, *column(TEXTS)],
        "whole": [7, *column(st.integers(-(2**53), 2**53), missing=draw(st.booleans()))],
        "real": [0.25, *column(real)],
        "label": ["well", *column(LABELS)],
    }


def frame(rows: Rows) -> pd.DataFrame:
    whole = pd.array(rows["whole"], dtype="Int64")
    return pd.DataFrame({**rows, "whole": whole})


def of_pandas(rows: Rows, path: Path, *, index: list[int] | None = None) -> None:
    frame(rows).set_axis(index or range(len(rows["text"]))).to_csv(path, index=index is not None)


def of_polars(rows: Rows, path: Path) -> None:
    pl.DataFrame(rows).write_csv(path)


def of_duckdb(rows: Rows, path: Path, options: str = "HEADER") -> None:
    with duckdb.connect() as base:
        base.register("rows", pa.table(dict(rows)))
        base.sql(f"COPY rows TO '{path}' ({options})")


def of_r(rows: Rows, path: Path) -> None:
    """Write what R's write.csv(rows) does: texts and row names quoted, missing values NA without quotes, numbers in 15 digits."""

    def cell(value: Any) -> str:
        if value is None:
            return "NA"
        return '"{}"'.format(value.replace('"', '""')) if isinstance(value, str) else repr(value)

    lines = [["", *rows], *([str(n), *cells] for n, cells in enumerate(zip(*rows.values(), strict=True), 1))]
    path.write_text("".join(",".join(map(cell, line)) + "\n" for line in lines), newline="")


def of_excel(rows: Rows, path: Path) -> None:
    """Write what Excel saves as "CSV UTF-8" where a decimal comma is the custom."""

    def cell(value: Any) -> str:
        if isinstance(value, str):
            return '"{}"'.format(value.replace('"', '""')) if re.search('[;"\n\r]', value) else value
        return "" if value is None else repr(value).upper().replace(".", ",")

    lines = [list(rows), *map(list, zip(*rows.values(), strict=True))]
    path.write_text("".join(";".join(map(cell, line)) + "\r\n" for line in lines), "utf-8-sig", newline="")


def of_json(rows: Rows, path: Path, *, ascii_only: bool = True) -> None:
    lines = (dict(zip(rows, cells, strict=True)) for cells in zip(*rows.values(), strict=True))
    path.write_text("".join(json.dumps(line, ensure_ascii=ascii_only) + "\n" for line in lines), "utf-8")


EXCEL: dict[str, Any] = {"delimiter": ";", "decimal": ","}
DIALECTS: dict[str, tuple[str, Callable[[Rows, Path], None], dict[str, Any]]] = {
    "pandas": (".csv", of_pandas, {}),
    "pandas with an index": (".csv", lambda rows, path: of_pandas(rows, path, index=list(range(len(rows["text"])))), {}),
    "pandas with the index of a selection": (
        ".csv", lambda rows, path: of_pandas(rows, path, index=[90, 4, *range(7, 5 + len(rows["text"]))]), {}),
    "polars": (".csv", of_polars, {}),
    "DuckDB": (".csv", of_duckdb, {}),
    "DuckDB with quotes": (".csv", lambda rows, path: of_duckdb(rows, path, "HEADER, FORCE_QUOTE *"), {}),
    "R": (".csv", of_r, {}),
    "Excel": (".csv", of_excel, EXCEL),
    "JSON": (".jsonl", of_json, {}),
    "JSON in UTF-8": (".jsonl", lambda rows, path: of_json(rows, path, ascii_only=False), {}),
    "JSON of polars": (".ndjson", lambda rows, path: pl.DataFrame(rows).write_ndjson(path), {}),
    "JSON of DuckDB": (".jsonl", lambda rows, path: of_duckdb(rows, path, "FORMAT JSON"), {}),
}  # fmt: skip


def read(path: Path, **options: Any) -> TableFile:
    """Read a table, and encode its rows."""
    spec = TableSource(kind="table", path=str(path), label_column="label", **options)
    open_source(spec)[0]
    return read_table_file(spec)


def attempted(path: Path, **options: Any) -> TableFile | UserError:
    try:
        return read(path, **options)
    except UserError as error:
        return error


def known(rows: Rows) -> dict[str, list[Any]]:
    """Return rows without spaces around texts, and without texts that stand for missing values; both are not kept."""

    def of(name: str, value: Any) -> Any:
        if isinstance(value, str):
            value = value.strip()
            return None if value in (("",) if name == "label" else MISSING) else value
        return None if value != value else value

    return {name: [of(name, value) for value in values] for name, values in rows.items()}


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(rows=tables())
def test_rows_are_read_as_a_program_wrote_them(dialect: str, rows: dict[str, list[Any]]) -> None:
    suffix, write, options = DIALECTS[dialect]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"rows{suffix}")
        write(rows, path)
        found = attempted(path, **options)
    if isinstance(found, UserError):
        assert dialect.startswith("pandas"), found
        assert "\r" in "".join(filter(None, rows["text"]))  # which pandas writes without quotation marks
        assert "\n" not in str(found)
        return
    assert known({name: found.table[name].to_pylist() for name in rows}) == known(rows)
    assert set(found.table.column_names) - set(found.index) == set(rows)


def test_a_text_of_several_lines_may_be_anywhere_in_a_large_file(tmp_path: Path) -> None:
    """Arrow reads blocks of a megabyte, whose ends fall within texts."""
    rows = {"text": [f"{row}\n" + "line\n" * (row % 7) for row in range(60_000)], "label": ["a", "b"] * 30_000}
    pl.DataFrame(rows).write_csv(tmp_path / "a.csv")
    spec = TableSource(kind="table", path=str(tmp_path / "a.csv"), label_column="label")
    assert read_table_file(spec).texts["text"].to_pylist() == rows["text"]


R = '"","size","label"\n"1",5,"well"\n"2",6,NA\n"3",7,"ill"\n'


@pytest.mark.parametrize(
    ("content", "classes", "marks"),
    [
        (R, ["well", None, "ill"], ("bare", "index")),
        (R.replace("NA", '"NA"'), ["well", "NA", "ill"], ("index", "labels")),  # a class of that name
        (R.replace('"well"', "well"), ["well", "NA", "ill"], ("index", "labels")),  # not by R: quotation marks say nothing
        (R.replace('"label"', "label"), ["well", "NA", "ill"], ("index", "labels")),
    ],
)
def test_classes_that_are_missing_in_r_are_missing(
    tmp_path: Path, content: str, classes: list[str | None], marks: tuple[str, ...]
) -> None:
    (tmp_path / "a.csv").write_text(content)
    found = read(tmp_path / "a.csv")
    assert found.table["label"].to_pylist() == classes
    assert tuple(sorted(found.marks)) == marks


@pytest.mark.parametrize(
    ("first", "index"),
    [
        (",4,90,7", ("",)),  # rows that were selected
        ("Unnamed: 0,4,90,7", ("Unnamed: 0",)),  # and read and written once more
        (",Mazda RX4,Fiat 128,Volvo", ("",)),
        (",4,4,7", ()),
        (",4,,7", ()),
        (",.5,.7,.9", ()),
        ("code,4,90,7", ()),
    ],
)
def test_a_first_column_without_a_name_tells_rows_apart(tmp_path: Path, first: str, index: tuple[str, ...]) -> None:
    rows = zip(first.split(","), ["size", 5, 6, 6], ["label", "a", "b", "a"], strict=True)
    name, *cells = rows
    lines = [name, *cells] if first.startswith(("U", "c")) else [("", *name[1:]), *cells]
    (tmp_path / "a.csv").write_text("\n".join(",".join(map(str, line)) for line in lines))
    found = read(tmp_path / "a.csv")
    assert found.index == index
    assert found.marks == (("index",) if index else ())


def test_a_decimal_comma_leaves_texts_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("town;size;code;label\nSt. Gallen;1.234,5;A;a\nBern, Ost;,5;B;b\n")
    found = read(tmp_path / "a.csv", **EXCEL)
    assert found.table.to_pydict() == {
        "town": ["St. Gallen", "Bern, Ost"], "size": [1234.5, 0.5], "code": ["A", "B"], "label": ["a", "b"],
    }  # fmt: skip
    assert found.marks == ("decimal",)
    (tmp_path / "b.csv").write_text("size;label\n1,5;a\n2;b\n")
    assert read(tmp_path / "b.csv", **EXCEL).marks == ()


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "size;label\n1.5;a\n3,14;b\n", EXCEL, "holds numbers with points, such as '1.5', but data.source.decimal"),
        ("a.csv", "size;label\n1.5;a\n2;b\n", {**EXCEL, "types": {"size": "number"}}, "'1.5', which is no number with a dec"),
        ("a.csv", "size;label\n1,5;a\n-;b\n", {**EXCEL, "types": {"size": "number"}}, "holds '-', which is no number"),
        (
            "a.csv",
            'size,label\n"1,234,567",a\n"5,678.5",b\n',
            {},
            "numbers with commas between thousands, such as '1,234,567'",
        ),
        ("a.csv", "größe,label\n1,a\n".encode("cp1252"), {}, "it is not text in UTF-8; save it in UTF-8$"),
        ("a.csv", "size,label\n1,a\n".encode("utf-16"), {}, "it is not text in UTF-8"),
        ("a.xlsx", "PK\3\4", {}, "is a workbook; save its sheet as CSV in UTF-8"),
        ("a.json", '[{"size": 1}, 2]', {}, "cannot read the table"),
        ("a.json", "[" * 100_000, {}, "cannot read the table"),
        ("a.jsonl", '{"size": 1, "label": "a"}\n{"size": "x", "label": "a"}', {}, "changed from number to string"),
    ],
)
def test_ambiguous_and_foreign_files_are_refused_in_one_line(
    tmp_path: Path, name: str, content: str | bytes, options: dict[str, Any], message: str
) -> None:
    (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(UserError, match=message) as raised:
        read(tmp_path / name, **options)
    assert "\n" not in str(raised.value)


def test_json_is_read_in_lines_or_in_one_list_and_dates_may_be_categories(tmp_path: Path) -> None:
    rows = [{"when": "2024-05-01", "label": "a"}, {"when": "2024-05-02", "label": "b", "size": 3}]
    lines = "\n".join(map(json.dumps, rows)).encode()
    contents = {"a.jsonl": lines, "a.json": json.dumps(rows, indent=1).encode(), "b.json": lines}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            found = read(path, types={"when": "category"})
            assert found.table["size"].to_pylist() == [None, 3]
            with pytest.raises(UserError, match="column when holds timestamp"):
                read(path)
