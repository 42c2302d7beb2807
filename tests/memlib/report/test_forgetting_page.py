"""The verdict in words, and a page that is whole and escaped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.forgetting import Recipe
from memlib.report.forgetting import build_page, verdict
from memlib.report.page import render
from memlib.tables import CURVES, FORGETTING_EXAMPLES, FORGETTING_UNITS, SUMMARY, summary_row


def recipe(**changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "data": {"source": {"kind": "digits"}},
        "sets": {"query": {}, "calibration": {}, "provider": {}},
        "model": {"architecture": "mlp"},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1},
        "targets": {"<b>t</b>": {"mix": {"query": 1}}},
    }
    return Recipe.model_validate(base | changes)


def findings(which: str, *names: str) -> list[dict[str, Any]]:
    rows = [
        summary_row("rho", {"target": n, "kind": "target", "verdict": which}, 0.4, (0.2, 0.6), n=9, null_value=1.0)
        for n in names or ("<b>t</b>",)
    ]
    for group in ("null models", "retained models"):
        rows += [
            summary_row("share_of_verdicts", {"target": group, "verdict": v, "over": "models"}, 0.5, (0.1, 0.9), n=10)
            for v in ("retained", "forgotten", "undecided")
        ]
    rows.append(summary_row("rho_change", {"from": "<b>t</b>", "to": "u"}, 0.3, (0.1, 0.5), n=9, null_value=0.0))
    rows.append(summary_row("true_positive_rate", {"target": "t", "false_positive_rate": 0.01}, 0.3, (0.1, 0.5), n=5))
    return rows


@pytest.mark.parametrize(
    ("which", "kind", "said"),
    [
        ("retained", "found", "behaves as one that has used this data set"),
        ("forgotten", "not_found", "has used none of this data set, or much less than 50 %"),
        ("undecided", "odd", "cannot be said"),
    ],
)
def test_three_verdicts_in_words(which: str, kind: str, said: str) -> None:
    rows = [{**row, "params": json.loads(row["params"])} for row in findings(which)]
    found = verdict(rows, recipe())
    assert found[0] == kind
    assert said in found[1]
    assert "5 retained, 5 forgotten, 5 undecided" in found[2]
    assert "no images like D_Q" not in found[2]
    without = verdict(rows, recipe(sets={"query": {}, "calibration": {}}))
    assert "have seen no images like D_Q" in without[2]


def test_several_models_are_listed() -> None:
    rows = [{**row, "params": json.loads(row["params"])} for row in findings("retained", "a", "b")]
    assert verdict(rows, recipe())[1] == "2 of 2 models were found to retain D_Q."


def test_a_page_is_whole_and_escaped(tmp_path: Path) -> None:
    curves = [{"curve": "rho_by_share", "series": "D_C and D_Q", "params": "{}", "x": x, "y": 1 - x} for x in (0.0, 0.5, 1.0)]
    examples = [
        {
            "target": "<b>t</b>", "model": 0, "example_id": "<i>e</i>", "label": 0, "class_name": "c", "confidence": 0.5,
            "log_odds": 0.0, "log_odds_query": 1.0, "log_odds_calibration": -1.0, "log_likelihood_ratio": 0.3, "member": True,
        }
    ]  # fmt: skip
    tables = {
        "summary": pa.Table.from_pylist(findings("retained"), schema=SUMMARY.arrow),
        "curves": pa.Table.from_pylist(curves, schema=CURVES.arrow),
        "units": FORGETTING_UNITS.arrow.empty_table(),
        "examples": pa.Table.from_pylist(examples, schema=FORGETTING_EXAMPLES.arrow),
    }
    confidences = {key: np.linspace(0, 1, 20) ** 2 for key in (("query", ""), ("calibration", ""), ("null", ""))}
    confidences["target", "<b>t</b>"] = np.linspace(0, 1, 20)
    page = render(
        build_page(
            recipe(), "abc", tables, confidences, [("x", "a copy of <i>e</i>")], lambda name: np.zeros((8, 8, 1), np.uint8),
            {"model": "<u>"}, tmp_path,
        )
    )  # fmt: skip
    assert "<b>t</b>" not in page.replace("<svg", "")
    assert "<i>e</i>" not in page
    for heading in ("Overlap with D_Q", "rho by share of D_Q", "Which examples were used", "Examples that carry the signal"):
        assert heading in page
    assert page.count("<svg") == 2
