"""Plans open all that a recipe names: models, outputs, lists and declared draws."""

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from sklearn.ensemble import RandomForestClassifier

import memlib.running.opening as opening
from memlib.errors import UserError
from memlib.recipes.request import AuditRequest
from memlib.running.opening import is_named, opened
from tests.memlib.looking.test_look import COUNT, INSIDE, LABELS, POINTS

RECIPE: dict[str, Any] = {
    "audit": "membership",
    "data": {"source": {"kind": "table", "path": "records.csv", "label_column": "label", "standardize": False}},
    "model": {"kind": "forest", "trees": 10},
    "target": {"trained": {"model": "m.joblib"}, "members": "members.npy", "drawn": "fixed"},
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = pd.DataFrame(POINTS, columns=list("abc")).assign(label=LABELS)
    table.to_csv("records.csv", index=False)
    np.save("members.npy", INSIDE)
    joblib.dump(RandomForestClassifier(10, random_state=0).fit(POINTS[INSIDE], LABELS[INSIDE]), "m.joblib")
    ids = [f"{row:07d}" for row in range(COUNT)]
    pd.DataFrame({"example_id": ids, "no": 0.4, "yes": 0.6}).to_csv("flat.csv", index=False)


def lines(**changes: Any) -> list[str]:
    return list(opened(AuditRequest.read({**RECIPE, **changes})))


def with_target(**changes: Any) -> dict[str, Any]:
    return {"target": {**RECIPE["target"], **changes}}


def test_a_model_and_a_draw_without_fault_pass() -> None:
    model, draw = lines()
    assert model == "m.joblib takes the examples and knows their 2 classes"
    assert draw.startswith("nothing that is known without the model contradicts the declared draw (p = ")
    assert not Path("memlib-store").exists()


def test_a_draw_that_ids_contradict_is_reported_before_training() -> None:
    table = pd.read_csv("records.csv").assign(id=np.where(INSIDE, "2019-", "2021-") + pd.Series(range(COUNT)).astype(str))
    table.to_csv("records.csv", index=False)
    source = {**RECIPE["data"]["source"], "id_column": "id"}
    (draw,) = [line for line in lines(data={"source": source}) if "contradict" in line or "declares" in line]
    assert "members differ from non-members even without the model" in draw
    assert draw.endswith(("decide", "was a member"))


def test_members_of_a_declared_draw_by_coins_are_counted_by_class() -> None:
    np.save("members.npy", LABELS == "yes")
    *_, draw = lines(**with_target(drawn="coins"))
    assert "the numbers of members by class are not those of independent coins" in draw


def test_a_plan_lists_the_ways_to_declare_a_draw() -> None:
    *_, draw = lines(**with_target(drawn="unknown"))
    assert "say fixed for a random hold-out, coins for a coin each" in draw


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_target(trained={"model": "other.joblib"}), "is expecting 2 features"),
        (with_target(trained={"model": "three.joblib"}), "3 scores per example, but the data have 2 classes"),
        (with_target(trained=None, outputs={"path": "short.csv"}), "has no outputs for 1 of the 240 audited examples"),
        (with_target(trained=None, outputs={"path": "flat.csv"}), "flat.csv"),
        (with_target(members="short.npy"), "a mask of 3 examples, but the data have 240"),
    ],
)
def test_models_and_files_that_do_not_fit_the_data_are_refused(change: dict[str, Any], said: str) -> None:
    joblib.dump(RandomForestClassifier(2).fit(POINTS[:, :2], LABELS), "other.joblib")
    joblib.dump(RandomForestClassifier(2).fit(POINTS, np.arange(COUNT) % 3), "three.joblib")
    pd.read_csv("flat.csv", dtype=str)[1:].to_csv("short.csv", index=False)
    np.save("short.npy", np.array([True, False, True]))
    with pytest.raises(UserError, match=said):
        lines(**change)


def test_a_plan_calls_a_function_of_the_recipe_only_if_the_machine_allows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("opened_nets.py").write_text("import pathlib\nfrom torch import nn\ndef build():\n"
                                      "    pathlib.Path('called').touch()\n    return nn.Linear(3, 10)\n")  # fmt: skip
    monkeypatch.syspath_prepend(".")
    safetensors.torch.save_file({"weight": torch.zeros(10, 3), "bias": torch.zeros(10)}, "w.safetensors")
    trained = {"model": "opened_nets:build", "weights": "w.safetensors"}
    caution, _ = lines(**with_target(trained=trained))
    assert caution.startswith("CAUTION: the last layer of w.safetensors has 10 outputs, but the data have 2 classes")
    assert not Path("called").exists()
    monkeypatch.setenv("MEMLIB_CODE", "opened_nets")
    with pytest.raises(UserError, match="10 scores per example, but the data have 2 classes"):
        lines(**with_target(trained=trained))


def test_recipes_that_name_nothing_of_a_users_are_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_named(AuditRequest.read("membership_smoke"))
    assert is_named(AuditRequest.read(RECIPE))
    monkeypatch.setattr(opening, "MOST", 100)
    images = {"source": {"kind": "digits"}, "image_size": 8, "channels": 1}
    found = lines(data=images, model={"kind": "forest"}, **with_target(trained={"model": "nets:build", "version": "1"}))
    assert found == ["the content of 1,797 images was not opened; a run reads what the recipe names before it trains"]
