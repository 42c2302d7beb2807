"""Shadow models of the target's own architecture, and audits without shadow models."""

from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

import memlib
from memlib.audits.membership.recipe import Recipe
from memlib.findings import DESCRIPTIVE, SHOWN
from tests.memlib.audits.membership.small_tables import rows_of, write_table

TARGET = {"members": "members.npy", "drawn": "coins"}
OPTIMIZER = {"learning_rate": 0.01, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}
TRAINING: dict[str, Any] = {
    "objective": {"kind": "supervised"}, "epochs": 30, "batch_size": 16, "augment": None, "optimizer": OPTIMIZER,
}  # fmt: skip


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A table, a forest that was fitted on a random half of it, and the list of this half."""
    monkeypatch.chdir(tmp_path)
    rows = rows_of(240)
    data = write_table(tmp_path / "rows.csv", rows)
    points = np.array([row[:2] for row in rows], dtype=float)
    coins = np.random.default_rng(1).random(len(rows)) < 0.5
    joblib.dump(RandomForestClassifier(20, random_state=0).fit(points[coins], np.array([row[-1] for row in rows])[coins]),
                tmp_path / "forest.joblib")  # fmt: skip
    np.save(tmp_path / "members.npy", coins)
    return {"source": {**data["source"], "columns": ["a", "b"], "standardize": False}}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_saved_estimator_is_its_own_shadow_model(table: dict[str, Any]) -> None:
    trained = {"model": "forest.joblib"}
    recipe = {"audit": "membership", "data": table, "target": {**TARGET, "trained": trained}, "score": {"redraws": 999}}
    run = memlib.run({**recipe, "shadows": {"count": 16}}, quiet=True)
    assert run.verdict.word == SHOWN
    assert run.tables["models"].num_rows == 17
    ours = memlib.run(
        {**recipe, "model": {"kind": "forest", "trees": 20}, "shadows": {"count": 16}}, quiet=True
    )  # the same forest by memlib's own means
    odds = [np.array(each.tables["units"].sort_by("unit")["log_odds_out"]) for each in (run, ours)]
    assert np.corrcoef(*odds)[0, 1] > 0.95


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_network_of_the_users_is_its_own_shadow_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_nets.py").write_text(
        "from torch import nn\ndef build():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))\n"
    )
    images, labels = load_digits(return_X_y=True)
    ids = np.concatenate([np.flatnonzero(labels == label)[:12] for label in range(10)])
    coins = np.random.default_rng(1).random(1797) < 0.5
    np.save(tmp_path / "members.npy", coins)
    own_nets = __import__("own_nets")
    torch.manual_seed(0)
    net = own_nets.build()
    kept = [row for row in ids if coins[row]]
    x, y = torch.tensor(images[kept] / 16, dtype=torch.float32), torch.tensor(labels[kept])
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(60):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    safetensors.torch.save_file(net.state_dict(), tmp_path / "net.safetensors")
    recipe = {
        "audit": "membership",
        "data": {"source": {"kind": "digits"}, "image_size": 8, "channels": 1},
        "split": {"train_per_class": 20},
        "target": {**TARGET, "trained": {"model": "own_nets:build", "weights": "net.safetensors"}},
        "training": TRAINING,
        "shadows": {"count": 4},
        "score": {"redraws": 999},
    }
    run = memlib.run(recipe, quiet=True)
    models = run.tables["models"].to_pylist()
    shadows = [row for row in models if row["model"] >= 0]
    assert len(shadows) == 4
    assert min(row["accuracy_in"] for row in shadows) > 0.9  # they learnt
    assert len({round(row["loss_out"], 6) for row in shadows}) == 4  # each from its own weights and examples


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_without_shadow_models_the_loss_alone_is_tested_and_never_bounded(table: dict[str, Any]) -> None:
    recipe: dict[str, Any] = {
        "audit": "membership",
        "data": table,
        "target": {**TARGET, "trained": {"model": "forest.joblib"}},
        "shadows": {"count": 0},
        "score": {"redraws": 999, "attacks": ["loss", "gap"], "headline": "loss", "auc_bound": 0.99, "tail_bound": 0.99},
    }
    run = memlib.run(recipe, quiet=True)
    assert run.verdict.word == SHOWN
    assert run.verdict.sentence.startswith("If members were drawn at random, as declared")
    rng = np.random.default_rng(2)
    np.save("members.npy", rng.permutation(np.load("members.npy")))  # a model without memory of them
    other = memlib.run(recipe, quiet=True)
    assert other.verdict.word != SHOWN
    assert "attacks that were possible were not run" in other.verdict.explanation
    unknown = memlib.run({**recipe, "target": {**recipe["target"], "drawn": "unknown"}}, quiet=True)
    assert unknown.verdict.word == DESCRIPTIVE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shadows": {"count": 0}}, "the attack lira needs 4 shadow models"),
        ({"shadows": {"count": 3}}, "the attack lira needs 4 shadow models"),
        ({"target": {**TARGET, "outputs": {"path": "o.csv"}}}, "the recipe lacks model"),
        ({"target": {}, "model": {"kind": "forest"}, "shadows": {"count": 0},
          "score": {"attacks": ["loss"], "headline": "loss"}}, "give 4 or more"),
        ({"target": {}, "model": "nets:build"}, "needs an external target"),
        ({"training": TRAINING}, "training is for networks"),
        ({"target": {**TARGET, "trained": {"model": "forest.joblib", "weights": "w.pt"}}}, "remove trained.weights"),
        ({"target": {**TARGET, "trained": {"model": "nets:build", "version": "1"}}, "training": TRAINING}, "random weights"),
    ],
)  # fmt: skip
def test_contradicting_settings_are_refused(change: dict[str, Any], said: str) -> None:
    recipe = {
        "audit": "membership",
        "data": {"source": {"kind": "table", "path": "t.csv", "label_column": "y", "standardize": False}},
        "target": {**TARGET, "trained": {"model": "forest.joblib"}},
    }
    with pytest.raises(ValueError, match=said):
        Recipe.model_validate({**recipe, **change})


def test_members_and_others_in_two_tables_are_the_files_of_one() -> None:
    source = {"kind": "table", "label_column": "y", "standardize": False}
    trained = {"model": "forest.joblib"}
    by_files = Recipe.model_validate({
        "data": {"source": {**source, "files": {"members": "a.csv", "nonmembers": "b.csv"}}},
        "target": {"trained": trained, "members": "members/"},
    })  # fmt: skip
    by_target = Recipe.model_validate({
        "data": {"source": source}, "target": {"trained": trained, "members": "a.csv", "nonmembers": "b.csv"},
    })  # fmt: skip
    parts = {name: {"source": {**source, "path": path}} for name, path in (("members", "a.csv"), ("nonmembers", "b.csv"))}
    joined = {"data": {"source": {"kind": "joined", "parts": parts}}, "target": {"trained": trained, "members": "members/"}}
    assert by_files == by_target == Recipe.model_validate(joined)
    parts["nonmembers"]["source"]["decimal"] = ","
    with pytest.raises(ValueError, match="the same settings but for path"):
        Recipe.model_validate(joined)
    with pytest.raises(ValueError, match="the second of two tables"):
        Recipe.model_validate({
            "data": {"source": {**source, "path": "c.csv"}}, "target": {"trained": trained, "members": "a.csv", "nonmembers": "b"},
        })  # fmt: skip
