"""Two runs side by side: their settings, their findings, and what they share."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from memlib.comparison import finding_changes, recipe_changes, shared_artifacts
from memlib.records import RunRecord
from memlib.store import Store


def finding(metric: str, value: float, low: float | None = None, high: float | None = None, **params: Any) -> dict[str, Any]:
    said = json.dumps(params)
    return {"metric": metric, "params": said, "value": value, "ci_low": low, "ci_high": high, "p_value": None}


FIRST = {
    "run": "aaa", "audit": "exposure", "title": "t", "finished": 1.0,
    "recipe": {"training": {"epochs": 5, "seed": 0}, "variants": {}, "title": "t"},
    "findings": [finding("exposure", 2.0, 1.0, 3.0, a=1, b=2), finding("loss", 1.5), finding("gone", 1.0)],
    "artifacts": {"corpus": "corpus/1", "model 0": "train/1", "old": "x/1"},
}  # fmt: skip
SECOND = FIRST | {
    "run": "bbb",
    "recipe": {"training": {"epochs": 9, "seed": 0, "privacy": {"noise": 1.0}}, "variants": {}, "title": "t"},
    "findings": [finding("exposure", 9.0, 8.0, 10.0, b=2, a=1), finding("loss", 1.5), finding("new", 4.0)],
    "artifacts": {"corpus": "corpus/1", "model 0": "train/2", "young": "y/1"},
}


def test_by_hand() -> None:
    first, second = RunRecord(**FIRST), RunRecord(**SECOND)
    assert recipe_changes(first, second) == [
        {"key": "training.epochs", "first": 5, "second": 9},
        {"key": "training.privacy.noise", "first": None, "second": 1.0},
    ]
    by = {row["metric"]: row for row in finding_changes(first, second)}
    assert by["exposure"]["difference"] == 7.0
    assert by["exposure"]["apart"]
    assert by["loss"]["difference"] == 0.0
    assert not by["loss"]["apart"]
    assert (by["gone"]["second"], by["gone"]["difference"]) == (None, None)
    assert (by["new"]["first"], by["new"]["second"]) == (None, 4.0)
    assert shared_artifacts(first, second) == {
        "same": ["corpus"], "differ": ["model 0"], "first only": ["old"], "second only": ["young"]
    }  # fmt: skip
    assert recipe_changes(first, first) == []
    assert all(row["difference"] == 0 for row in finding_changes(first, first))


def test_a_finding_without_a_value_differs_by_nothing() -> None:
    first = RunRecord(**FIRST)
    none = RunRecord(**{**FIRST, "findings": [finding | {"value": None} for finding in FIRST["findings"]]})
    assert {(row["first"], row["difference"], row["apart"]) for row in finding_changes(none, first)} == {(None, None, False)}


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = Store(str(tmp_path / "store"))
    for run in (FIRST, SECOND, FIRST | {"run": "ccc", "audit": "deja_vu"}):
        (tmp_path / "m.json").write_text(json.dumps(run))
        store.publish(f"runs/{run['run']}/manifest.json", tmp_path / "m.json")
    where = ["--store", store.uri]
    assert main(["diff", "a", "b", *where]) == 0
    said = capsys.readouterr().out
    assert "training.epochs" in said
    assert "intervals apart" in said
    assert "artifacts: 1 same, 1 differ, 1 first only, 1 second only" in said
    assert "loss" not in said
    assert main(["diff", "a", "a", *where]) == 0
    assert "recipe: no difference\nfindings: no difference" in capsys.readouterr().out
    assert main(["diff", "a", "b", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"][0]["key"] == "training.epochs"
    assert main(["diff", "a", "c", *where]) == 2
    assert "(deja-vu)" in capsys.readouterr().err
