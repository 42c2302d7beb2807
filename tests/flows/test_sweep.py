"""Sweeps: their cells, and settings that cannot form cells."""

import json
from datetime import date
from pathlib import Path

import pytest

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.audits.arrangement import resolved
from memlib.audits.cells import in_words
from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.recipe import Recipe
from memlib.audits.sweep.scores import score, verdict
from memlib.findings import Findings, settle, tested
from memlib.recipes.cells import cells_of
from memlib.recipes.files import load_recipe, validate
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("audit: sweep", "needs grid or cells"),
        ("audit: sweep\ngrid: {training.epochs: [1]}", "the sweep has no recipe; give one"),
        ("audit: sweep\nrecipe: smoke\ngrid: {training.epochs: []}", "grid.training.epochs has no values"),
        ("audit: sweep\nrecipe: smoke\ngrid: {training.epoch: [1]}", "cell epoch=1: unknown recipe key training.epoch"),
        ("audit: sweep\nrecipe: smoke\ncells: [{name: a}, {name: a}]", "more than one cell is called 'a'"),
        (
            "audit: sweep\nrecipe: smoke\ngrid: {a.b: &n [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], c: *n, d: *n, e: *n, f: *n}",
            "reduce them to at most 10000",
        ),
        ("audit: sweep\nrecipe: nowhere\ncells: [{name: a}]", "no recipe 'nowhere'"),
        ("audit: sweep\ncells: [{recipe: {audit: sweep, recipe: smoke, cells: [{}]}}]", "a sweep cannot be a cell"),
    ],
)
def test_invalid_sweeps_are_refused_before_a_store_is_created(
    tmp_path: Path, recipe: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sweep.yaml").write_text(recipe)
    assert main(["plan", "sweep", "--recipe", str(tmp_path / "sweep.yaml"), "--store", str(tmp_path / "store")]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_cells_of_grid_and_list_are_whole_recipes(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("extends: smoke\ntitle: mine")
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "audit: sweep\nrecipe: mine.yaml\nset: {decode.k: [3]}\ngrid: {training.epochs: [1, 2], training.seed: [0, 1]}\n"
        "cells: [{recipe: forgetting_smoke}, {name: b, set: {title: other}}]"
    )
    content = resolved(AUDITS["sweep"], load_recipe(str(file))[0])
    recipe = validate(Recipe, content)
    cells = cells_of(validate(Recipe, recipe.model_dump(mode="json")))  # as a server or a note in the store has it
    assert list(cells) == [
        "epochs=1 seed=0", "epochs=1 seed=1", "epochs=2 seed=0", "epochs=2 seed=1", "forgetting_smoke", "b"
    ]  # fmt: skip
    audits = [cell.audit for cell in cells.values()]
    assert audits == ["deja-vu"] * 4 + ["forgetting", "deja-vu"]
    spec, changes = cells["epochs=2 seed=1"].recipe, cells["epochs=2 seed=1"].changes
    assert (spec.title, spec.training.epochs, spec.training.seed, spec.decode.k) == ("mine", 2, 1, (3,))
    assert changes == {"decode.k": [3], "training.epochs": 2, "training.seed": 1}
    assert cells["b"].recipe.title == "other"


def test_cells_are_named_by_the_shortest_unambiguous_keys() -> None:
    assert in_words({"data.seed": 0, "training.seed": 1, "training.epochs": 5}) == "data.seed=0 training.seed=1 epochs=5"
    assert in_words({"seed": 0, "training.seed": 1}) == "seed=0 training.seed=1"
    assert in_words({"title": date(2026, 1, 2)}) == "title=2026-01-02"


def outcome(cell: str, p: float, *, scores: str | None = None) -> Outcome:
    rows = settle([tested("m", {}, 1.0, n=9, p_value=p, family="headline")], alpha=0.05)
    return Outcome(cell, "deja_vu", {}, run_of(rows, str(rows.head.verdict), scores or cell))


def run_of(rows: Findings, word: str, scores: str, audit: str = "deja_vu") -> RunRecord:
    said = VerdictRecord(word=word, sentence="")
    findings = [FindingRecord(**row.row()) for row in rows]
    return RunRecord(
        run="r",
        audit=audit,
        title="t",
        finished=1.0,
        findings=findings,
        artifacts={"scores": f"score/{scores[0]}"},
        verdict=said,
    )


def test_headlines_are_adjusted_over_the_cells_and_equal_scores_count_once() -> None:
    cells = [outcome("a", 0.01), outcome("b", 0.03), outcome("c", 0.04), outcome("a, other title", 0.01, scores="a")]
    table = {row["cell"]: row for row in score(cells).to_pylist()}
    assert [table[c]["p_adjusted_sweep"] for c in ("a", "b", "c", "a, other title")] == pytest.approx(
        [0.03, 0.06, 0.06, 0.03]
    )
    assert {row["verdict"] for row in table.values()} == {"shown"}  # taken alone; their own pages stay as they are
    said = verdict(cells)
    assert said.sentence == "1 of 3 audits show memorization, or use of data, adjusted for their number."
    assert "Without the adjustment: 3" in said.explanation
    assert ("This does not rule out memorization" in said.explanation) is said.sentence.startswith("0 of")
    broken = Outcome("d", "deja_vu", {}, None, "no data")
    assert "1 of 5 cells failed: d" in verdict([*cells, broken]).explanation
    none = verdict([broken])
    assert none.word == "descriptive"


def test_the_headline_of_a_run_with_several_targets_is_the_most_significant_one() -> None:
    rows = settle(
        [tested("trace", {"target": t}, 1.0, n=9, p_value=p, family="targets") for t, p in (("a", 0.8), ("b", 0.001))],
        alpha=0.05,
    )
    run = run_of(rows, "shown", "s", "forgetting")
    table = score([Outcome("c", "forgetting", {}, run)]).to_pylist()
    assert [(json.loads(row["params"])["target"], row["p_adjusted_sweep"]) for row in table] == [("a", None), ("b", 0.002)]
    assert [row["verdict"] for row in table] == ["inconclusive", "shown"]
    said = verdict([Outcome("c", "forgetting", {}, run)])
    assert said.sentence == "1 of 1 audits show memorization, or use of data, adjusted for their number."
    assert "Without the adjustment: 1" in said.explanation
