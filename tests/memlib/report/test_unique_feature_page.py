"""The verdict says what the controls allow, and the page escapes what it shows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.unique_feature import Recipe
from memlib.report.page import render
from memlib.report.unique_feature import Boundary, Material, build_page, verdict
from memlib.tables import CURVES, SUMMARY, UNIQUE_FEATURE_UNITS, summary_row

PARAMS = {
    "metric": "m_white",
    "setting": "white",
    "output": "probability",
    "interval": "nets",
    "nets": 20,
    "controls": 20,
    "alpha": 0.05,
}
RECIPE = Recipe.model_validate(
    {
        "title": "<b>names</b>",
        "data": {"source": {"kind": "two_moons"}},
        "canary": {"feature": {"kind": "scalar"}},
        "model": {"architecture": "mlp"},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1, "augment": None},
    }
)


def difference(low: float, high: float, p: float | None, **params: Any) -> dict[str, Any]:
    at = PARAMS | {"group": "canary - control", "statistic": "mean"} | params
    return summary_row("m_white", at, (low + high) / 2, (low, high), n=20, null_value=0.0, p_value=p)


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SUMMARY.arrow)


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([difference(0.1, 0.2, 0.001)], "found"),
        ([difference(-0.1, 0.2, 0.3)], "not_found"),
        ([difference(-0.2, -0.1, 1.0)], "odd"),
        ([difference(0.1, 0.2, None)], "odd"),
        ([difference(0.1, 0.2, 0.001, variant="a"), difference(-0.1, 0.2, 0.4, variant="b")], "found"),
        ([difference(0.1, 0.2, 0.03, variant="a"), difference(-0.1, 0.2, 0.4, variant="b")], "not_found"),  # .05 over 2
    ],
)
def test_the_verdict_rests_on_the_controls(rows: list[dict[str, Any]], kind: str) -> None:
    assert verdict(table(*rows))[0] == kind


def test_what_could_not_have_passed_is_said() -> None:
    few = difference(-0.1, 0.9, 0.1) | {"n": 4}
    assert "With 4 pairs no effect, however large, could have passed" in verdict(table(few))[2]
    assert "smaller effect could have been missed" in verdict(table(difference(-0.1, 0.9, 0.1)))[2]


def test_a_page_of_nothing_but_text_is_whole_and_escaped(tmp_path: Path) -> None:
    units = [
        {
            "variant": "<i>v</i>", "data_seed": 0, "net": net, "canary": 0, "example_id": "x", "control": control, "seed": net,
            "epoch": 1, "metric": metric, "output": "probability", "feature": "canary", "draw": 0, "label": 1, "own_label": True,
            "value": 0.1 * net, "with_feature": 0.5, "without_feature": 0.4, "published_p": 0.1, "n": 10,
        }
        for net in range(5) for control in (True, False) for metric in ("m_white", "m_black")
    ]  # fmt: skip
    grid = np.linspace(0, 1, 400).reshape(20, 20)
    material = Material(
        pictures=[(np.zeros((8, 8, 1), np.uint8), "<script>alert(1)</script>")],
        boundaries=[Boundary("net", (0, 1, 0, 1), grid, grid, np.zeros((2, 2)), np.array([0, 1]))],
        facts={"model": "<u>"},
    )
    page = build_page(
        RECIPE, "abc", pa.Table.from_pylist(units, schema=UNIQUE_FEATURE_UNITS.arrow),
        table(difference(0.1, 0.2, 0.001, variant="<i>v</i>")), CURVES.arrow.empty_table(), material, tmp_path,
    )  # fmt: skip
    html = render(page)
    for raw in ("<b>names", "<i>v", "<script>", "<u>"):
        assert raw not in html
    assert "Decision boundaries" in html
    assert sorted(path.name for path in tmp_path.iterdir())[:2] == ["boundaries.png", "boundaries.svg"]
