"""Sanitizing by two models: halves, what is removed, and what becomes of canaries that were removed and missed."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import memlib
from memlib.audits.exposure.curves import curves
from memlib.audits.exposure.findings import summarize
from memlib.audits.exposure.recipe import Recipe
from memlib.audits.exposure.report import compose
from memlib.audits.exposure.sanitizing import HALVES, halved, most_disputed, without
from memlib.audits.exposure.scores import Config, Scored, exposure_of_rank, score
from memlib.audits.exposure.tables import DOCUMENTS, EXTRACTION
from memlib.data.canaries.secret_key import VARIABLE
from memlib.data.splits import LEFT_OUT, TRAIN, VALIDATION
from memlib.data.text.corpus import Rows, role_of
from memlib.findings import Findings
from memlib.report.page import TableView

ROLES = (TRAIN, role_of(0), role_of(1))
RECIPE: dict[str, Any] = {
    "audit": "exposure",
    "data": {"source": {"kind": "topics"}, "fraction": 0.02, "window": 32},
    "canaries": {"format": "code {d4}", "insertions": [1, 2], "each": 2, "never": 20, "together": True},
    "model": {"architecture": "lstm", "width": 8, "layers": 1, "embedding": 4},
    "training": {"objective": {"kind": "language"}, "epochs": 1, "batch_size": 16, "augment": None},
    "sanitize": {"share": 0.5},
    "extraction": None,
}
SIZE = 10**6


def splits() -> pa.Table:
    """Forty windows, four of them for validation; canary 0 is in one window more, canary 1 in two."""
    return Rows("window", 40, 4, [(0, 3), (1, 5), (1, 8)]).table


def test_halved_divides_only_the_training_windows() -> None:
    before, after = (table["role"].to_pylist() for table in (splits(), halved(splits(), ROLES, seed=0)))
    halves = [role for role in after if role in HALVES]
    assert [halves.count(half) for half in HALVES] == [18, 18]  # 33 plain windows and 3 of canaries
    assert all((old in ROLES) == (new in HALVES) for old, new in zip(before, after, strict=True))
    assert after != halved(splits(), ROLES, seed=1)["role"].to_pylist()
    assert halved(splits(), ROLES, seed=0)["example_id"].equals(splits()["example_id"])


def test_windows_likely_under_only_one_of_two_models_are_removed() -> None:
    first, second = np.array([1.0, 5.0, 2.0, 1.0, 4.0]), np.array([1.5, 1.0, 2.0, 6.0, 4.5])
    assert most_disputed(first, second, share=0.4).tolist() == most_disputed(second, first, share=0.4).tolist() == [1, 3]
    assert most_disputed(first, second, share=0.01).tolist() == [3]  # at least one
    assert most_disputed(np.ones(4), np.ones(4), share=0.5).tolist() == [0, 1]
    table = without(splits(), np.array([0, 40]))
    assert table["role"].to_pylist()[0] == table["role"].to_pylist()[40] == LEFT_OUT
    assert table["role"].to_pylist()[1:40] == splits()["role"].to_pylist()[1:40]
    assert table["reason"][40].as_py() == "two models disagree about it"
    assert table["role"].to_pylist().count(VALIDATION) == 4


def ranked(variant: str, seed: int, insertions: list[int], ranks: list[int]) -> Scored:
    ids, costs = tuple(range(len(ranks))), np.full(len(ranks), 40 << 16)
    exact = {canary: ("enumerated", rank, 1) for canary, rank in enumerate(ranks)}
    same = np.full(100, 50 << 16)
    return Scored(variant, seed, 4, ids, ("inserted",) * len(ids), tuple(insertions), costs, same, 1.5, exact)


def test_exposure_of_removed_canaries_falls_to_chance_and_of_missed_ones_stays(tmp_path: Path) -> None:
    models = []
    for seed in range(2):
        models.append(ranked("unsanitized", seed, [1, 1, 2, 2], [1, 2, 1, 4]))
        models.append(ranked("sanitized", seed, [0, 1, 2, 1], [500_000, 4, 1, 16]))
    mine = Recipe.model_validate(RECIPE | {"seeds": 2})
    units = score(models, SIZE, Config())
    rows = Findings.read(summarize(models, units, EXTRACTION.arrow.empty_table(), mine, size=SIZE))
    once, twice = rows.all("removed_by_sanitizing")
    assert (once.params, once.value, once.n) == ({"insertions": 1}, 0.5, 2)
    assert (twice.params, twice.value) == ({"insertions": 2}, 0.0)

    def exposure(insertions: int, text: str, *, removed: bool) -> float:
        return rows.first("exposure_by_sanitizing", insertions=insertions, removed=removed, text=text).value

    assert exposure(1, "unsanitized", removed=True) == exposure_of_rank(1, SIZE)
    assert exposure(1, "sanitized", removed=True) == 1
    assert exposure(1, "sanitized", removed=False) == exposure_of_rank(4, SIZE)
    assert exposure(2, "unsanitized", removed=False) - exposure(2, "sanitized", removed=False) == pytest.approx(1)
    assert not rows.all("exposure_difference")  # it would compare other canaries
    tables = {
        "units": units, "extractions": EXTRACTION.arrow.empty_table(), "documents": DOCUMENTS.arrow.empty_table(),
        "summary": rows.table(rows.verdict), "curves": curves(models, units, EXTRACTION.arrow.empty_table(), mine),
    }  # fmt: skip
    section = next(
        one for one in compose(mine, tables, {}, tmp_path).sections if one and one.heading.startswith("Sanitizing")
    )
    (table,) = (part for part in section.blocks if isinstance(part, TableView))
    assert [row[:3] for row in table.rows] == [
        ["1", "50 % (1 to 99)", "all windows removed"], ["1", "50 % (1 to 99)", "a window was missed"],
        ["2", "0 % (0 to 84)", "a window was missed"],
    ]  # fmt: skip


def test_canaries_of_a_sanitized_model_are_not_tested(tmp_path: Path) -> None:
    """The sanitized model ranks the remaining canaries first, and the removed ones worse than by chance."""
    mine = Recipe.model_validate(RECIPE)
    models = [
        ranked("unsanitized", 0, [1, 1, 1, 1], [400_000, 600_000, 500_000, 10]),
        ranked("sanitized", 0, [0, 0, 1, 1], [900_000, 900_000, 1, 1]),
    ]
    units, extractions = score(models, SIZE, Config()), EXTRACTION.arrow.empty_table()
    summary, points = summarize(models, units, extractions, mine, size=SIZE), curves(models, units, extractions, mine)
    rows = Findings.read(summary)
    assert {row.params["variant"] for row in rows.tests("headline", "canaries")} == {"unsanitized"}
    assert rows.head.params["variant"] == "unsanitized"
    assert {row.params["variant"] for row in rows.all("exposure", "epsilon_lower_bound")} == {"unsanitized"}
    assert len(rows.all("validation_loss")) == 2
    assert not rows.all("two_to_minus_exposure")  # the removed canaries are no null
    assert "gives away information about 1 of 4 inserted canaries" in rows.verdict.sentence
    assert "variants" not in rows.verdict.explanation
    assert {point["series"] for point in points.to_pylist() if point["curve"] == "utility"} == {"unsanitized"}
    assert all(point["x"] for point in points.to_pylist() if point["curve"] == "exposure_by_insertions")


def test_variants_named_unsanitized_and_sanitized_are_tested_without_sanitizing() -> None:
    named = {"variants": {"unsanitized": {}, "sanitized": {"model.dropout": 0.1}}, "sanitize": None}
    models = [ranked(name, 0, [1, 1], [5, 9]) for name in named["variants"]]
    rows = Findings.read(
        summarize(
            models,
            score(models, SIZE, Config()),
            EXTRACTION.arrow.empty_table(),
            Recipe.model_validate(RECIPE | named),
            size=SIZE,
        )
    )
    assert len(rows.tests("headline")) == 2
    assert not rows.all("removed_by_sanitizing", "exposure_by_sanitizing")


def test_the_sanitized_model_trains_on_the_remaining_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    secret.chmod(0o600)
    monkeypatch.setenv(VARIABLE, str(secret))
    run = memlib.run(RECIPE, store=str(tmp_path / "store"), quiet=True)
    units = run.units.to_pandas()
    before, after = (units[units["variant"] == name]["insertions"].sum() for name in ("unsanitized", "sanitized"))
    assert before == 2 * (1 + 2)
    assert after < before  # half of the windows are gone
    assert "Sanitizing by two models" in run.report.read_text()
