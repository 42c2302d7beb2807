"""The verdict in words, and a page that is complete and escaped."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.forgetting.recipe import Recipe
from memlib.audits.forgetting.report import compose
from memlib.audits.forgetting.tables import EXAMPLES
from memlib.audits.forgetting.verdict import verdict
from memlib.findings import Finding, Findings, Interval, Verdict, diagnostic, estimate, settle, tested
from memlib.report.page import STYLES, Page, render
from memlib.tables import CURVES

pytestmark = pytest.mark.page


def recipe(**changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "data": {"source": {"kind": "digits"}},
        "sets": {"query": {}, "calibration": {}, "provider": {}},
        "model": {"architecture": "mlp"},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1},
        "targets": {"<b>t</b>": {"mix": {"query": 1}}},
    }
    return Recipe.model_validate(base | changes)


def findings(*names: str, p: float = 0.5, value: float = 0.4, limit: float = 0.9, power: float = 0.9) -> Findings:
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


def untested(*names: str) -> Findings:
    return settle([estimate("rho", {"target": n, "kind": "target"}, 0.4, n=9) for n in names], alpha=0.01)


def said(rows: Findings, **changes: Any) -> Verdict:
    targets = {row.params["target"]: {"trained": {"model": "a:b", "version": "1"}} for row in rows.all(kind="target")}
    return verdict(rows, recipe(**{"targets": targets, "verdict": {"known_drawn_afterwards": True}} | changes))


@pytest.mark.parametrize(
    ("rows", "kind", "sentence", "because"),
    [
        (findings(p=0.001), "found", "has used this data set", "withheld (p = 0.001"),
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
def test_verdict_sentence_and_explanation_match_the_findings(rows: Findings, kind: str, sentence: str, because: str) -> None:
    found = said(rows)
    assert STYLES[found.word] == kind
    assert sentence in found.sentence
    assert because in found.explanation


def test_the_verdict_lists_several_models() -> None:
    found = said(findings("a", "b", p=0.001))
    assert found.sentence == "2 of 2 models were shown to have used this data set."
    assert "a: retained (p = 0.002); b: retained (p = 0.002)" in found.explanation
    clean = said(findings("a", "b", limit=0.1))
    assert clean.sentence == ("0 of 2 models were shown to have used this data set, 2 to contain little or no trace of it.")
    assert (
        "a: forgotten (p = 1; may keep up to 10 % of the trace that known examples leave; forgotten means less than 20 %)"
        in clean.explanation
    )
    nothing = said(untested("a", "b"))
    assert nothing.sentence == "This audit cannot tell whether any of the 2 models has used this data set."


def test_the_explanation_cautions_that_supplied_outputs_can_be_forged() -> None:
    found = said(findings(p=0.001), targets={"<b>t</b>": {"outputs": {"path": "x.parquet"}}})
    assert "An owner who knows which examples were withheld can forge them" in found.explanation


def test_outcomes_that_contradict_the_known_mix_are_named() -> None:
    targets = {"half": {"mix": {"query": 0.5}}, "clean": {"mix": {"calibration": 1}}}
    missed = said(findings("half", "clean"), targets=targets).explanation
    assert "half is known to have been trained on 50 % of D_Q, and the test did not find it." in missed
    assert "clean is known" not in missed
    alarm = said(findings("half", "clean", p=0.001), targets=targets).explanation
    assert "clean is known to have been trained on none of D_Q: a false alarm." in alarm
    assert "half is known" not in alarm


def test_an_owner_who_chose_the_known_examples_is_not_cleared() -> None:
    missed = said(findings(), verdict={})
    assert missed.word == "inconclusive"
    assert "its owner may have trained harder on them than on D_Q" in missed.explanation
    assert said(findings(limit=0.1)).explanation.endswith("drawn from the training data after the training, as declared.")


def test_a_caution_names_the_target_whose_outputs_were_supplied() -> None:
    targets = {"own": {"mix": {"query": 1}}, "theirs": {"outputs": {"path": "x.parquet"}}}
    assert "The outputs of theirs were supplied" in said(findings("own", "theirs"), targets=targets).explanation


def page_of(
    rows: Sequence[Finding],
    folder: Path,
    *,
    shares: Sequence[float] = (),
    examples: Sequence[dict[str, Any]] = (),
    **changes: Any,
) -> str:
    """Return the rendered page of a run whose models were trained on some shares of D_Q."""
    findings, run = settle(rows, alpha=0.01), recipe(**changes)
    groups = {"query": "query", "calibration": "calibration", "null": "null"} | dict.fromkeys(run.targets, "target")
    curves = [
        {"curve": "confidence_ecdf", "series": name, "params": json.dumps({"group": group}), "x": x, "y": x}
        for name, group in groups.items()
        for x in np.linspace(0, 1, 20) ** (1 if group == "target" else 2)
    ]
    curves += [{"curve": "rho_by_share", "series": "D_C and D_Q", "params": "{}", "x": x, "y": 1 - x} for x in shares]
    said = verdict(findings, run)
    tables = {
        "summary": findings.table(said),
        "curves": pa.Table.from_pylist(curves, schema=CURVES.arrow),
        "examples": pa.Table.from_pylist(list(examples), schema=EXAMPLES.arrow),
    }
    removed = [(row["example_id"], f"a copy of {row['example_id']}") for row in examples]
    content = compose(run, tables, {}, removed, lambda _: np.zeros((8, 8, 1), np.uint8), folder)
    return render(Page(run.title, "forgetting", "abc", "", said, content))


def test_the_page_gives_advice_on_each_target(tmp_path: Path) -> None:
    targets = {"old": {"mix": {"query": 1}}, "new": {"trained": {"model": "a:b", "version": "1"}}}
    page = page_of([*findings("old", p=0.001)[:1], *findings("new")], tmp_path, targets=targets)
    assert "&#39;old&#39; has not forgotten it" in page
    assert "Do not report a pass for &#39;new&#39;" in page
    assert "share of D_Q used" not in page  # a column without values


def test_rho_of_null_models_is_stated_where_rho_is_explained(tmp_path: Path) -> None:
    rows = [*findings("t"), estimate("rho", {"target": "null models"}, 0.22, n=9, interval=Interval(0, 0.6, "examples"))]
    assert "how confident a model is of all data (here null models 0.22 on average)" in page_of(
        rows, tmp_path, targets={"t": {"mix": {"query": 1}}}
    )


def test_the_page_warns_if_known_examples_are_seldom_found(tmp_path: Path) -> None:
    targets = {"t": {"mix": {"query": 1}}}
    said = "Known examples are seldom found in &#39;t&#39; (2 %)"
    assert said in page_of(findings("t", power=0.02), tmp_path, targets=targets)
    assert "seldom found" not in page_of(findings("t"), tmp_path, targets=targets)


def test_a_page_of_forgetting_has_all_sections_and_is_escaped(tmp_path: Path) -> None:
    examples = [
        {
            "target": "<b>t</b>", "model": 0, "example_id": "<i>e</i>", "label": 0, "class_name": "c", "confidence": 0.5,
            "log_odds": 0.0, "log_odds_query": 1.0, "log_odds_calibration": -1.0, "log_likelihood_ratio": 0.3, "member": True,
            "role": "query", "residual": 1.5,
        }
    ]  # fmt: skip
    page = page_of(findings(p=0.001), tmp_path, shares=(0.0, 0.5, 1.0), examples=examples)
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
