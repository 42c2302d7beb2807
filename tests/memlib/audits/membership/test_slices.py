"""Slices of worlds whose truth is known: where memory is, what is tested, and what is too small."""

from dataclasses import fields

import numpy as np
import pytest
import scipy

from memlib.audits.membership import slices
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.findings import summarize
from memlib.audits.membership.rankings import point_at
from memlib.audits.membership.recipe import SLICES
from memlib.audits.membership.slices import ANSWER, CLASS, FEWEST, slice_findings, slices_of
from memlib.findings import Findings
from memlib.stats.multiplicity import holm
from memlib.stats.operating import auc
from tests.memlib.audits.membership.worlds import recipe_of, world

QUICK = {"redraws": 999, "attacks": ["lira"], "subgroup": "place"}
TABLE = {"source": {"kind": "table", "path": "a.csv", "label_column": "y"}}


def divided(audited: Audited, values: list[str]) -> dict[str, str]:
    """Return a value for each example id."""
    return dict(zip(audited.pool.ids, values, strict=True))


def findings_of(audited: Audited, subgroup: dict[str, str]) -> Findings:
    return Findings.read(summarize(audited, slice_findings(audited, subgroup)))


def tabular(*args: int, **changes: object) -> Audited:
    return world(*args, data=TABLE, **changes)  # type: ignore[arg-type]


def test_memory_of_one_subgroup_is_found_there_alone() -> None:
    here = np.arange(400) % 4 < 2  # half of each class
    audited = tabular(400, memory=np.where(here, 4.0, 0.0), score=QUICK)
    found = findings_of(audited, divided(audited, np.where(here, "here", "there").tolist()))
    strong, weak = (found.first("auc_of_slice", slice="place", value=name) for name in ("here", "there"))
    assert strong.value > 0.8
    assert strong.p_adjusted == 4 * 0.001  # two classes and two places
    assert weak.p_value is not None
    assert weak.p_value > 0.05
    assert weak.low is not None
    assert weak.low < 0.5


def test_numbers_of_a_slice_equal_those_of_the_attack_on_it_alone() -> None:
    audited = tabular(800, memory=2.0, score={**QUICK, "false_alarms": [0.001, 0.02]})
    part, head = audited.units.labels == 1, audited.rankings.head
    row = Findings(slice_findings(audited, {})).first("auc_of_slice", slice=CLASS, value="b")
    assert row.value == auc(head.scores[part], audited.units.member[part])
    assert (row.params["members"], row.n) == (audited.units.member[part].sum(), part.sum())
    alarms = Findings(slice_findings(audited, {})).first("true_alarms_of_slice", slice=CLASS, value="b")
    point = point_at(head.scores[part], audited.units.member[part], 0.02)
    assert point is not None
    assert (alarms.params["false_alarms"], alarms.value) == (0.02, point.tpr)  # .001 takes 999 non-members


def test_p_values_of_slices_are_adjusted_together_apart_from_the_headline() -> None:
    audited = tabular(400, memory=0.4, score=QUICK)
    found = findings_of(audited, divided(audited, ["abc"[place % 3] for place in range(400)]))
    rows = found.tests(SLICES)
    assert len(rows) == 5
    assert [row.p_adjusted for row in rows] == holm([row.p_value or 0 for row in rows]).tolist()
    assert found.verdict.word == Findings.read(summarize(audited, [])).verdict.word


def test_slices_of_right_and_wrong_answers_are_described_and_not_tested() -> None:
    found = slice_findings(tabular(400, memory=1.0, score=QUICK), {})
    rows = Findings(found).all("auc_of_slice", slice=ANSWER)
    assert {row.params["value"] for row in rows} == {"right", "wrong"}
    assert not any(row.is_test for row in rows)


def test_small_slices_are_listed_and_missing_values_form_one_slice() -> None:
    audited = tabular(400, score=QUICK)
    values = ["rare" if place < FEWEST else "common" for place in range(300)]
    rows = Findings(slice_findings(audited, dict(zip(audited.pool.ids, values, strict=False))))
    assert rows.first("small_slice", slice="place").params["value"] == "rare"
    assert rows.first("small_slice", slice="place").value == FEWEST
    missing = rows.first("auc_of_slice", slice="place", value="missing")
    assert missing.n == 100
    assert sum(len(part.units.nonzero()[0]) for part in slices_of(audited, dict(zip(audited.pool.ids, values, strict=False)))
               if part.by == "place") == 400  # fmt: skip


def test_slices_are_not_tested_without_a_random_draw() -> None:
    audited = tabular(400, memory=2.0, score=QUICK).withdrawn()
    rows = Findings(slice_findings(audited, {})).all("auc_of_slice")
    assert len(rows) >= 2
    assert not rows.tests()


def test_a_person_falls_in_the_slice_of_most_of_her_rows() -> None:
    audited = tabular(rows=np.full(80, 3), score=QUICK)
    values = ["x" if place % 3 < 2 else "y" for place in range(240)]
    (part,) = [each for each in slices_of(audited, divided(audited, values)) if each.by == "place"]
    assert (part.value, part.units.sum()) == ("x", 80)


def test_classes_beyond_the_largest_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MOST", 1)
    rows = Findings(slice_findings(tabular(100, score=QUICK), {}))
    assert rows.first("slices_left_out").value == 1
    assert len(rows.all("auc_of_slice", slice=CLASS)) == 1


def test_slices_are_seldom_significant_without_memory() -> None:
    hits = 0
    for seed in range(60):
        audited = tabular(160, seed=seed, score=QUICK)
        found = slice_findings(audited, divided(audited, ["uv"[place // 2 % 2] for place in range(160)]))
        p_values = [row.p_value for row in found if row.p_value is not None]
        assert len(p_values) == 4
        hits += bool(holm(p_values).min() <= 0.05)
    assert scipy.stats.binomtest(hits, 60, 0.05, alternative="greater").pvalue > 1e-3


def test_documents_have_no_slices_by_class() -> None:
    class Texts(Audited):
        has_classes = False

    audited = world(100, score={"redraws": 999, "attacks": ["lira"]})
    texts = Texts(**{one.name: getattr(audited, one.name) for one in fields(audited)})
    assert slice_findings(audited, {})
    assert slice_findings(texts, {}) == []


@pytest.mark.parametrize(
    ("score", "change", "message"),
    [
        ({"subgroup": "sex"}, {}, "score.subgroup needs columns of a table, but data.source is of kind digits"),
        ({"hidden": ["sex"]}, {}, "score.hidden needs columns of a table"),
        ({"hidden": ["sex", "sex"]}, {"data": TABLE}, "names a column twice"),
        (
            {"hidden": ["sex"]},
            {"data": {"source": {**TABLE["source"], "columns": ["age"]}}},
            "but data.source.columns does not",
        ),
        (
            {"hidden": ["sex"]},
            {"data": TABLE, "target": {"outputs": {"path": "o.csv"}, "members": "m.csv"}},
            "score.hidden needs an answer for every value",
        ),
    ],
)
def test_unusable_subgroup_columns_are_refused(score: dict[str, object], change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe_of(score=score, **change)
