import csv
import io
import math
from urllib.parse import unquote

import pyarrow as pa
import pytest

from memlib.findings import Findings, estimate
from memlib.report.spreadsheet import Row, columns_of, csv_of, csv_uri, of_curves
from memlib.tables import CURVES, SUMMARY


def read(uri: str) -> list[dict[str, str]]:
    start, _, text = uri.partition(",")
    assert start == "data:text/csv;charset=utf-8"
    return list(csv.DictReader(io.StringIO(unquote(text))))


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "-cat", '=HYPERLINK("x")'])
def test_text_that_a_spreadsheet_would_run_is_quoted(text: str) -> None:
    (row,) = csv.DictReader(io.StringIO(csv_of([{"name": text, "value": 1}]), newline=""))
    assert row["name"] == f"'{text}"


def test_numbers_stay_numbers_and_other_texts_as_they_are() -> None:
    rows = [{"a": -1.5, "b": -3, "c": 'x-1, "y"\nz', "d": None, "e": math.nan, "f": True}]
    assert csv_of(rows) == 'a,b,c,d,e,f\r\n-1.5,-3,"x-1, ""y""\nz",,,True\r\n'


def test_uri_holds_the_rows_with_a_column_for_each_param() -> None:
    rows: list[Row] = [
        {"metric": "m", "params": '{"k": 5, "names": ["a"]}', "value": 0.123456, "n": 123456, "p_value": None},
        {"metric": "m", "params": {"layer": "<b>&#%"}, "value": -2.0, "n": 2, "p_value": None},
    ]
    uri = csv_uri(rows)
    assert not set(uri) & set(' "<>\n&')
    assert read(uri) == [
        {"metric": "m", "params.k": "5", "params.names": '["a"]', "params.layer": "", "value": "0.1235", "n": "123456"},
        {"metric": "m", "params.k": "", "params.names": "", "params.layer": "<b>&#%", "value": "-2.0", "n": "2"},
    ]


def test_findings_have_the_columns_of_the_summary() -> None:
    (row,) = read(csv_uri(Findings([estimate("share", {"side": "A"}, 0.5, n=9)])))
    assert row["metric"] == "share"
    assert float(row["value"]) == 0.5
    assert {name.partition(".")[0] for name in row} <= set(SUMMARY.arrow.names)
    assert row["params.side"] == "A"


def test_curves_are_chosen_by_name_and_params() -> None:
    points = [("loss", "a", "{}", 1.0), ("loss", "b", '{"seed": 1}', 2.0), ("gain", "a", "{}", 3.0)]
    rows = [{"curve": c, "series": s, "params": p, "x": x, "y": 2 * x} for c, s, p, x in points]
    curves = pa.Table.from_pylist(rows, schema=CURVES.arrow)
    assert [row["x"] for row in of_curves(curves, "loss")] == [1, 2]
    assert [row["x"] for row in of_curves(curves, "loss", seed=1)] == [2]
    assert [row["x"] for row in of_curves(curves, "loss", "gain", seed="")] == [1, 3]
    assert read(csv_uri(of_curves(curves, "gain"))) == [{"series": "a", "x": "3.0", "y": "6.0"}]  # one curve, without name
    assert set(read(csv_uri(of_curves(curves, "loss")))[0]) == {"series", "params.seed", "x", "y"}
    assert list(read(csv_uri(of_curves(curves, "loss", seed=1)))[0]) == ["series", "x", "y"]
    assert read(csv_uri(of_curves(curves, "loss", "gain")))[2]["curve"] == "gain"


def test_columns_that_a_page_does_not_show_are_left_out() -> None:
    assert columns_of([{"id": "a", "secret": "s", "rank": 1}], "id", "rank") == [{"id": "a", "rank": 1}]
