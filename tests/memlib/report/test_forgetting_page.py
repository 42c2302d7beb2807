"""The verdict in words, and a page that is complete and escaped."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.forgetting.recipe import Recipe
from memlib.audits.forgetting.report import build_page
from memlib.audits.forgetting.tables import EXAMPLES, UNITS
from memlib.audits.forgetting.verdict import verdict
from memlib.findings import Interval, diagnostic, estimate, settle, summary_table, tested
from memlib.report.page import KINDS, render
from memlib.tables import CURVES


def recipe(**changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "data": {"source": {"kind": "digits"}},
        "sets": {"query": {}, "calibration": {}, "provider": {}},
        "model": {"architecture": "mlp"},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1},
        "targets": {"<b>t</b>": {"mix": {"query": 1}}},
    }
    return Recipe.model_validate(base | changes)


def findings(*names: str, p: float = 0.5, value: float = 0.4, limit: float = 0.9, power: float = 0.9) -> list[dict[str, Any]]:
    at = {"kind": "target", "examples": 90, "withheld": 90}
    chosen = names or ("<b>t</b>",)
    rows = [
        tested(
            "trace", {**at, "target": n}, value, n=180, p_value=p, family="targets", detectable=0.2, either_direction=True,
            interval=Interval(value - 0.2, value + 0.2, "examples"), upper_bound=limit, bound=0.2,
        )
        for n in chosen
    ]  # fmt: skip
    for metric, number in (("control_power", power), ("share_limit", limit)):
        rows += [diagnostic(metric, {"target": n}, number, n=90) for n in chosen]
    rows += [diagnostic("control_strength", {"target": n, "strongest": 5.0}, 3.0, n=90) for n in chosen]
    at = {"alpha": 0.01}
    rows += [diagnostic("found_share", {"target": f"{group} models", **at}, 0.5, n=10) for group in ("null", "retained")]
    rows.append(estimate("rho", {"target": "<b>t</b>"}, 0.4, n=9, interval=Interval(0.2, 0.6, "examples")))
    rows.append(estimate("rho_change", {"from": "<b>t</b>", "to": "u"}, 0.3, n=9, interval=Interval(0.1, 0.5, "examples")))
    return settle(rows, alpha=0.01)


def untested(*names: str) -> list[dict[str, Any]]:
    return settle([estimate("rho", {"target": n, "kind": "target"}, 0.4, n=9) for n in names], alpha=0.01)


def said(rows: list[dict[str, Any]], **changes: Any) -> Any:
    return verdict([{**row, "params": json.loads(row["params"])} for row in rows], recipe(**changes))


@pytest.mark.parametrize(
    ("rows", "kind", "sentence", "because"),
    [
        (findings(p=0.001), "found", "has used this data set", "withheld from everyone (p = 0.001"),
        (
            findings(p=0.001, value=-0.4),
            "found",
            "worse on this data set than on data it never saw",
            "by chance, however it was trained",
        ),
        (
            findings(limit=0.1),
            "not_found",
            "at most 10 % of the trace that known training data leave",
            "found in 90 % of redraws",
        ),
        (findings(), "odd", "does not show that it was not used", "D_Q may keep up to 90 % of their trace"),
        (findings(power=0.3), "odd", "does not show", "found in only 30 % of redraws"),
    ],
)
def test_outcomes_in_words(rows: list[dict[str, Any]], kind: str, sentence: str, because: str) -> None:
    found = said(rows)
    assert KINDS[found.word] == kind
    assert sentence in found.sentence
    assert because in found.explanation


def test_several_models_are_listed() -> None:
    found = said(findings("a", "b", p=0.001))
    assert found.sentence == "2 of 2 models were shown to have used this data set."
    assert "a: retained; b: retained" in found.explanation
    clean = said(findings("a", "b", limit=0.1))
    assert clean.sentence == "0 of 2 models were shown to have used this data set, 2 to contain little or no trace of it."
    assert "a: forgotten (at most 10 % of the trace that known examples leave)" in clean.explanation
    nothing = said(untested("a", "b"))
    assert nothing.sentence == "This audit cannot tell whether any of the 2 models has used this data set."


def test_supplied_outputs_come_with_a_caution() -> None:
    found = said(findings(p=0.001), targets={"t": {"outputs": {"path": "x.parquet"}}})
    assert "An owner who knows which examples were withheld can forge them" in found.explanation


def test_a_page_is_whole_and_escaped(tmp_path: Path) -> None:
    curves = [{"curve": "rho_by_share", "series": "D_C and D_Q", "params": "{}", "x": x, "y": 1 - x} for x in (0.0, 0.5, 1.0)]
    examples = [
        {
            "target": "<b>t</b>", "model": 0, "example_id": "<i>e</i>", "label": 0, "class_name": "c", "confidence": 0.5,
            "log_odds": 0.0, "log_odds_query": 1.0, "log_odds_calibration": -1.0, "log_likelihood_ratio": 0.3, "member": True,
            "role": "query", "residual": 1.5,
        }
    ]  # fmt: skip
    tables = {
        "summary": summary_table(findings(p=0.001), said(findings(p=0.001))),
        "curves": pa.Table.from_pylist(curves, schema=CURVES.arrow),
        "units": UNITS.arrow.empty_table(),
        "examples": pa.Table.from_pylist(examples, schema=EXAMPLES.arrow),
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
    for heading in (
        "Overlap with D_Q",
        "rho by share of D_Q",
        "Examples with the strongest signal",
        "Does D_Q stand out",
    ):
        assert heading in page
    assert page.count("<svg") == 2
