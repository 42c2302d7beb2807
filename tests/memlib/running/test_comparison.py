"""Two runs side by side: their recipes, their matched findings, and what they share."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from flows.cli import store
from flows.cli.app import main
from memlib.running.comparison import finding_changes, recipe_changes, shared_artifacts
from memlib.runs.records import RunRecord
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


def test_comparison_lists_changed_recipe_keys_findings_and_artifacts() -> None:
    first, second = RunRecord(**FIRST), RunRecord(**SECOND)
    assert recipe_changes(first.recipe, second.recipe) == [
        {"key": "training.epochs", "first": 5, "second": 9},
        {"key": "training.privacy.noise", "first": None, "second": 1.0},
    ]
    by = {row.metric: row for row in finding_changes(first, second)}
    assert by["exposure"].difference == 7.0
    assert by["exposure"].apart
    assert by["loss"].difference == 0.0
    assert by["loss"].is_same
    assert not by["loss"].apart
    assert (by["gone"].second, by["gone"].difference) == (None, None)
    assert by["new"].first is None
    assert [row.metric for row in by.values()] == ["exposure", "loss", "gone", "new"]
    assert shared_artifacts(first, second) == {
        "same": ["corpus"], "differ": ["model 0"], "first only": ["old"], "second only": ["young"]
    }  # fmt: skip
    assert recipe_changes(first.recipe, first.recipe) == []
    assert all(row.difference == 0 and row.is_same for row in finding_changes(first, first))


def test_a_finding_without_a_value_has_a_difference_of_none() -> None:
    first = RunRecord(**FIRST)
    none = RunRecord(**{**FIRST, "findings": [finding | {"value": None} for finding in FIRST["findings"]]})
    changes = finding_changes(none, first)
    assert len(changes) == 3
    assert {(row.difference, row.apart, row.is_same) for row in changes} == {(None, False, False)}


def matched(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> list[tuple[float | None, float | None]]:
    """Return the values of matched findings, which serve as names here."""
    runs = [RunRecord(**FIRST | {"findings": rows}) for rows in (first, second)]
    found = [(row.as_json()["first"], row.as_json()["second"]) for row in finding_changes(*runs)]
    assert sorted(value for value, _ in found if value is not None) == sorted(row["value"] for row in first)
    assert sorted(value for _, value in found if value is not None) == sorted(row["value"] for row in second)
    return found


def test_findings_are_matched_although_params_set_by_the_recipe_differ() -> None:
    """Epochs are 5 and 9, k is 30 and 20; only the share p, with .2 and 1 in both runs, distinguishes findings."""
    first = [finding("m", n, epoch=5, k=30, p=p) for n, p in enumerate((0.2, 1.0))]
    second = [finding("m", 10 + n, epoch=9, k=20, p=p) for n, p in enumerate((1.0, 0.2))]
    assert matched(first, second) == [(0, 11), (1, 10)]


def test_findings_with_params_common_to_both_runs_are_matched_first() -> None:
    several, one = [finding("m", k, k=k) for k in (10, 30)], [finding("m", 31, k=30)]
    assert matched(several, one) == [(10, None), (30, 31)]
    assert matched(one, several) == [(31, 30), (None, 10)]
    assert matched(several, [finding("m", k + 1, k=k) for k in (30, 20)]) == [(10, 21), (30, 31)]
    assert matched(several, [finding("m", 50, k=50)]) == [(10, 50), (30, None)]


def test_counts_that_coincide_by_chance_do_not_match_findings() -> None:
    first = [finding("m", n, layer=layer, wins=wins) for n, (layer, wins) in enumerate((("x", 5), ("y", 7)))]
    second = [finding("m", 10 + n, layer=layer, wins=wins) for n, (layer, wins) in enumerate((("x", 7), ("y", 9)))]
    assert matched(first, second) == [(0, 10), (1, 11)]


def test_a_finding_of_one_run_alone_is_matched_with_no_other_setting() -> None:
    """Both runs have the layers x and y, so that a finding at x is not matched with one at y."""
    both = [finding("n", 0, layer="x"), finding("n", 1, layer="y")]
    assert matched([*both, finding("m", 2, layer="x")], [*both, finding("m", 3, layer="y")])[2:] == [(2, None), (None, 3)]
    assert matched([finding("a", 1)], [finding("b", 2)]) == [(1, None), (None, 2)]


def test_a_one_sided_interval_can_lie_apart_from_another() -> None:
    first, second = finding("m", 5.0, 4.0, None), finding("m", 2.0, 1.0, 3.0)
    runs = [RunRecord(**FIRST | {"findings": [row]}) for row in (first, second)]
    assert finding_changes(*runs)[0].apart
    assert finding_changes(*reversed(runs))[0].apart


DECODED = FIRST | {
    "audit": "deja_vu", "verdict": {"word": "shown", "sentence": "s"},
    "recipe": {"training": {"epochs": 5}, "decode": {"k": [30]}},
    "findings": [
        finding("share_excess", 0.5, 0.4, 0.6, epoch=5, k=30, direction="both", layer="last")
        | {"p_value": 0.001, "p_adjusted": 0.002, "verdict": "shown"},
        finding("accuracy", 0.5, 0.4, 0.6, epoch=5, k=30, direction="A", layer="last"),
        finding("equal", 0.5, epoch=5, k=30, direction="A", layer="last"),
    ],
}  # fmt: skip
LONGER = DECODED | {
    "run": "bbb", "verdict": {"word": "inconclusive", "sentence": "s"},
    "recipe": {"training": {"epochs": 9}, "decode": {"k": [20, 10]}},
    "findings": [
        finding("share_excess", -0.12345, -0.2, -0.1, epoch=9, k=20, direction="both", layer="last")
        | {"p_value": 0.7, "p_adjusted": 0.8, "verdict": "inconclusive"},
        finding("accuracy", 0.45, 0.35, 0.55, epoch=9, k=20, direction="A", layer="last"),
        finding("equal", 0.5, epoch=9, k=20, direction="A", layer="last"),
    ],
}  # fmt: skip


def published(store: Store, *runs: dict[str, Any]) -> list[str]:
    """Publish runs, and return the option that names their store."""
    for run in runs:
        store.publish(f"runs/{run['run']}/manifest.json", json.dumps(run).encode())
    return ["--store", store.uri]


def test_diff_prints_a_table_with_one_column_per_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "console", Console(highlight=False, markup=False, width=80))
    where = published(Store(str(tmp_path / "store")), DECODED, LONGER)
    assert main(["diff", "a", "b", *where]) == 0
    said = capsys.readouterr().out
    table, _, rest = said.partition("\n\n")
    assert [line.split() for line in table.splitlines()] == [
        ["aaa", "bbb", "difference"],
        ["training.epochs", "5", "9"],
        ["decode.k", "30", "20,", "10"],
        ["verdict", "shown", "inconclusive"],
        ["both"],
        ["share_excess", "0.500", "-0.123", "-0.623"],
        ["95", "%", "interval", "0.400", "to", "0.600", "-0.200", "to", "-0.100", "apart"],
        ["p", "0.001", "0.7", "not", "tested"],
        ["p", "adjusted", "0.002", "0.8"],
        ["verdict", "shown", "inconclusive"],
        ["A"],
        ["accuracy", "0.500", "0.450", "-0.050"],
        ["95", "%", "interval", "0.400", "to", "0.600", "0.350", "to", "0.550"],
    ]
    assert max(map(len, table.splitlines())) <= 80
    assert "1 further finding is the same in both runs\nThe difference of the headlines is not tested: run" in rest
    assert "does not record its scores. The differences of findings are not tested, not even where" in rest
    assert not set("{}[]") & set(said)
    assert main(["diff", "a", "b", "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [run["verdict"]["word"] for run in found["runs"]] == ["shown", "inconclusive"]
    assert not found["tested"]
    row = found["findings"][0]
    assert row["params"] == {"direction": "both", "layer": "last"}
    assert (row["first"], row["apart"]) == (0.5, True)
    assert [one["params"]["k"] for one in row["rows"]] == [30, 20]
    assert [one["p_adjusted"] for one in row["rows"]] == [0.002, 0.8]


def test_diff_prints_differences_of_recipes_findings_and_artifacts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = published(Store(str(tmp_path / "store")), FIRST, SECOND, FIRST | {"run": "ccc", "audit": "deja_vu"})
    assert main(["diff", "a", "b", *where]) == 0
    said = capsys.readouterr().out
    assert "training.epochs" in said
    assert "apart" in said
    assert "artifacts: 1 same, 1 differ, 1 first only, 1 second only" in said
    assert "loss" not in said
    assert "only runs of deja-vu can be compared example by example" in said
    assert main(["diff", "a", "a", *where]) == 0
    assert "recipe: no difference\nfindings: no difference" in capsys.readouterr().out
    assert main(["diff", "a", "b", "--json", *where]) == 0
    assert json.loads(capsys.readouterr().out)["recipe"][0]["key"] == "training.epochs"
    assert main(["diff", "a", "c", *where]) == 2
    assert "(deja-vu)" in capsys.readouterr().err
