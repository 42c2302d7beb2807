"""Scores that were computed elsewhere: of one attack, in a table of their own, with nothing else known of the examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import memlib
from memlib.audits.membership.recipe import Recipe
from memlib.errors import UserError
from memlib.findings import DESCRIPTIVE, INCONCLUSIVE, SHOWN
from memlib.recipes.request import AuditRequest
from memlib.runs.run import Run

COUNT = 240
RECIPE: dict[str, Any] = {
    "audit": "membership",
    "data": {"source": {"kind": "ids", "path": "scores.csv", "id_column": "id"}},
    "target": {
        "outputs": {
            "path": "scores.csv",
            "kind": "scores",
            "id_column": "id",
            "scores_column": "loss",
            "larger": "nonmembers",
        },
        "members": "scores.csv",
        "drawn": "coins",
    },
    "shadows": {"count": 0},
    "score": {"attacks": ["scores"], "headline": "scores", "redraws": 999},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(effect: float, **columns: Any) -> pd.DataFrame:
    """Write losses that are smaller for members by some standard deviations, in an order and with ids that say nothing."""
    rng = np.random.default_rng(3)
    member = rng.random(COUNT) < 0.5
    table = pd.DataFrame({
        "id": [f"x{name:04d}" for name in rng.permutation(COUNT)], "loss": 3 + rng.normal(size=COUNT) - effect * member,
        "member": np.where(member, "yes", "no"), "date": "03.04.2021", **columns,
    })  # fmt: skip
    table.to_csv("scores.csv", index=False)
    return table


def audited(**changes: Any) -> Run:
    return memlib.run({**RECIPE, **changes}, quiet=True)


def with_target(**outputs: Any) -> dict[str, Any]:
    return {**RECIPE["target"], "outputs": {**RECIPE["target"]["outputs"], **outputs}}


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_scores_that_tell_members_are_shown_and_others_are_never_bounded() -> None:
    table = write(1.0)
    run = audited()
    assert run.verdict.word == SHOWN
    assert "the given scores can distinguish members from non-members" in run.verdict.sentence
    units = {row["unit"]: row["scores"] for row in run.units.to_pylist()}
    assert units == pytest.approx(dict(zip(table["id"], -table["loss"], strict=True)), rel=1e-6)
    assert run.tables["models"].to_pylist()[0]["accuracy_out"] is None
    write(0.0)
    score = {**RECIPE["score"], "auc_bound": 0.99, "tail_bound": 0.99}
    other = audited(score=score)
    assert other.verdict.word == INCONCLUSIVE
    assert "attacks that were possible were not run: LiRA" in other.verdict.explanation
    assert audited(target={**RECIPE["target"], "drawn": "unknown"}).verdict.word == DESCRIPTIVE


def test_scores_that_point_the_other_way_show_nothing() -> None:
    write(1.0)
    run = audited(target=with_target(larger="members"))
    assert run.verdict.word == INCONCLUSIVE
    assert run.summary.to_pylist()[0]["value"] < 0.3


def test_classes_and_persons_of_the_file_are_heeded() -> None:
    rng = np.random.default_rng(4)
    table = write(0.0)
    person = rng.integers(0, 60, COUNT)
    member = person < 30
    table["loss"] = (rng.normal(size=60))[person] + 0.1 * rng.normal(size=COUNT)  # of persons, not of memory
    table["member"], table["person"] = np.where(member, 1, 0), [f"p{number:02d}" for number in rng.permutation(60)[person]]
    table.to_csv("scores.csv", index=False)
    group = {"group": {"path": "scores.csv"}}
    run = audited(split=group)
    assert run.summary.to_pylist()[0]["n"] == len(set(person))
    table["class"] = rng.choice(["a", "b"], COUNT)
    table.to_csv("scores.csv", index=False)
    by_class = audited(data={"source": {**RECIPE["data"]["source"], "label_column": "class"}})
    assert {row["class_name"] for row in by_class.units.to_pylist()} == {"a", "b"}


def test_rows_without_ids_are_named_by_their_numbers() -> None:
    table = write(1.0)
    np.save("members.npy", (table["member"] == "yes").to_numpy())
    table.drop(columns=["id", "member"]).to_csv("scores.csv", index=False)
    target = {**with_target(id_column=None), "members": "members.npy"}
    run = audited(data={"source": {"kind": "ids", "path": "scores.csv"}}, target=target)
    assert run.verdict.word == SHOWN
    assert run.units["unit"].to_pylist()[0] in {f"{row:07d}" for row in range(COUNT)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shadows": {"count": 8}, "model": {"kind": "forest"}}, "an attack's already"),
        ({"score": {"attacks": ["loss"], "headline": "loss"}}, "an attack's already"),
        ({"target": with_target(kind="losses")}, "leave it out"),
        ({"target": {"trained": {"model": "a.joblib"}, "members": "m.csv"},
          "score": {"attacks": ["loss"], "headline": "loss"}}, "cannot be trained or queried on"),
    ],
)  # fmt: skip
def test_recipes_that_need_more_than_scores_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Recipe.model_validate({**RECIPE, **change})


def test_other_audits_refuse_examples_without_content() -> None:
    with pytest.raises(UserError, match="unique-feature audit is for images, points and tables; the data are ids"):
        AuditRequest.read("two_moons", {"data": {"source": {"kind": "ids", "path": "scores.csv"}}})


def test_scores_that_are_all_equal_or_not_finite_are_refused() -> None:
    table = write(1.0)
    for value, said in ((2.0, "is 2 in all rows"), (float("inf"), "not finite")):
        table.loc[0, "loss"] = value
        table.loc[:, "loss"] = value if value == 2 else table["loss"]
        table.to_csv("scores.csv", index=False)
        with pytest.raises(UserError, match=said):
            audited()
