"""The verdict states no more than the controls allow, and the page escapes what it shows."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.unique_feature import page_content
from memlib.audits.unique_feature.page_content import Boundary, Material
from memlib.audits.unique_feature.recipe import Recipe
from memlib.audits.unique_feature.report import compose
from memlib.audits.unique_feature.report.figures import attention_section, picture_section
from memlib.audits.unique_feature.scoring import Net
from memlib.audits.unique_feature.tables import UNITS
from memlib.audits.unique_feature.verdict import verdict
from memlib.findings import Finding, Interval, Verdict, settle, tested
from memlib.report.page import Page, render
from memlib.tables import CURVES

pytestmark = pytest.mark.page

PARAMS = {
    "metric": "m_white",
    "setting": "white",
    "output": "probability",
    "nets": 20,
    "controls": 20,
    "pairs": 20,
    "exchanged": "nets",
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


def difference(
    low: float, high: float, p: float, *, smallest_p: float = 0.0, bound: float | None = None, **params: Any
) -> Finding:
    at = PARAMS | {"group": "canary - control", "statistic": "mean"} | params
    return tested(
        "m_white", at, (low + high) / 2, n=20, interval=Interval(low, high, "nets"), p_value=p, family="headline",
        upper_bound=high, bound=bound, detectable=0.1, smallest_p=smallest_p,
    )  # fmt: skip


def found(*rows: Finding) -> Verdict:
    return verdict(settle(rows, alpha=0.05), alpha=0.05)


@pytest.mark.parametrize(
    ("rows", "word"),
    [
        ([difference(0.1, 0.2, 0.001)], "shown"),
        ([difference(-0.1, 0.2, 0.3)], "inconclusive"),
        ([difference(-0.2, -0.1, 1.0)], "inconclusive"),
        ([difference(0.1, 0.2, 0.001, variant="a"), difference(-0.1, 0.2, 0.4, variant="b")], "shown"),
        ([difference(0.1, 0.2, 0.03, variant="a"), difference(-0.1, 0.2, 0.4, variant="b")], "inconclusive"),  # .05 over 2
        ([difference(-0.1, 0.2, 0.3, bound=0.25)], "bounded"),
        ([difference(-0.1, 0.2, 0.3, bound=0.15)], "inconclusive"),
    ],
)
def test_the_verdict_rests_on_the_adjusted_headlines(rows: list[Finding], word: str) -> None:
    assert found(*rows).word == word


def test_explanations_without_a_bound_never_claim_absence() -> None:
    few = found(difference(-0.1, 0.9, 0.1, smallest_p=1 / 16))
    assert "too small" in few.sentence
    assert "No effect, however large, could have been shown" in few.explanation
    missed = found(difference(-0.1, 0.9, 0.1)).explanation
    assert "A difference of 0.1 would have been found with a power of 80 %" in missed
    assert "With 95 % confidence the difference is below 0.9" in missed
    assert "points the wrong way" in found(difference(-0.2, -0.1, 1.0)).sentence


def test_a_bounded_mean_is_explained_with_the_share_of_nets_that_may_exceed_the_controls() -> None:
    """Each variant has its share."""

    def beyond(most: float | None, **params: Any) -> Finding:
        at = PARAMS | {"criterion": "calibrated"} | params
        return tested(
            "proportion_memorized", at, 0.0, n=20, p_value=1.0, family="single nets", null_value=0.05, upper_bound=most
        )

    low = difference(-0.1, 0.2, 0.3, bound=0.25)
    said = "With 95 % confidence, at most {} % of such trainings score beyond what 1 in 20 controls reaches."
    assert said.format(14) in found(low, beyond(0.14)).explanation
    assert "cannot be bounded with so few controls" in found(low, beyond(None)).explanation
    rows = [difference(-0.1, 0.2, 0.3, bound=0.25, variant=name) for name in "ab"]
    both = found(*rows, beyond(0.14, variant="a"), beyond(0.28, variant="b"))
    assert both.word == "bounded"
    a, b = both.explanation.split(" b: ")
    assert said.format(14) in a
    assert said.format(28) in b


@pytest.mark.parametrize("own", [True, False])
def test_captions_of_pictures_differ_for_trained_and_external_models(own: bool) -> None:
    """memlib does not know which examples an external model saw, and that model has no controls."""
    section = picture_section([(np.zeros((8, 8, 1), np.uint8), "x")], own=own)
    assert section is not None
    said = str(section.blocks[0])
    assert ("as the models saw them" in said) == ("controls" in said) == (not own)
    assert ("Examples on which the model was asked" in said) == own


@pytest.mark.parametrize(
    ("control", "whose"),
    [
        (Net(1, 1, True, 7, 1), ["model 1", "its control 1"]),
        (Net(1, 0, True, 7, 1), ["model 2"]),  # of another canary
        (Net(2, 2, True, 8, 1), ["model 2"]),  # of another seed
    ],
)
def test_attention_is_that_of_the_strongest_model_that_has_a_control(
    control: Net, whose: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell: Any = SimpleNamespace(
        nets=[[Net(i, i, False, 7, 1) for i in range(3)], [control]], models=["nets", "controls"], epoch=1
    )
    monkeypatch.setattr(
        page_content, "load_net", lambda models, position, epoch: cell.nets[models == "controls"][position].number
    )
    monkeypatch.setattr(page_content, "_examples", lambda *_: [])
    image = np.zeros((8, 8, 1), np.uint8)
    monkeypatch.setattr(page_content, "_heat_maps", lambda _, net, label, examples, who: [(image, f"{who} {net}")])
    pictures = page_content._attention(RECIPE, cell, [2, 1, 0], lambda _: None)
    assert [caption for _, caption in pictures] == whose
    assert ("No control is shown" in str(attention_section(pictures))) == (len(whose) == 1)


def test_a_page_of_unique_feature_is_complete_and_escaped(tmp_path: Path) -> None:
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
    rows = settle([difference(0.1, 0.2, 0.001, variant="<i>v</i>")], alpha=0.05)
    said = verdict(rows, alpha=0.05)
    content = compose(
        RECIPE,
        pa.Table.from_pylist(units, schema=UNITS.arrow),
        rows.table(said),
        CURVES.arrow.empty_table(),
        material,
        tmp_path,
    )
    html = render(Page(RECIPE.title, "unique-feature", "abc", "", said, content))
    for raw in ("<b>names", "<i>v", "<script>", "<u>"):
        assert raw not in html
    assert "Decision boundaries" in html
    assert sorted(path.name for path in tmp_path.iterdir())[:1] == ["boundaries.svg"]
