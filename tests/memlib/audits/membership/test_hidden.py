"""Hidden columns in worlds whose truth is known, and the structure of targets counted by hand."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

import memlib
from memlib.audits.membership import hidden
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.findings import summarize
from memlib.audits.membership.hidden import DECIMALS, target_findings
from memlib.audits.membership.recipe import COLUMNS
from memlib.audits.membership.target import Guesses, TargetAnswers
from memlib.findings import Findings
from memlib.stats.multiplicity import holm
from tests.memlib.audits.membership.small_tables import rows_of, write_table
from tests.memlib.audits.membership.worlds import world

SCORE = {"redraws": 999, "attacks": ["lira"]}


def answers_of(audited: Audited, memory: dict[str, float], *, seed: int = 0, missing: int = 0) -> TargetAnswers:
    """Return answers whose log odds are noise, and higher by `memory` nats at the true values of members.

    Args:
        audited: examples and coins.
        memory: nats by column.
        seed: seed of values and noise.
        missing: number of rows without a value.
    """
    rng, count = np.random.default_rng(seed), len(audited.member)
    guesses = {}
    for name, strength in memory.items():
        values = rng.integers(0, 3, count)
        own = values[:, None] == np.arange(3)
        odds = rng.normal(size=(count, 3)) + strength * (own & audited.member[:, None])
        values[:missing] = -1
        guesses[name] = Guesses(odds.astype(np.float32), values)
    return TargetAnswers(np.tile([0.5, 0.5], (count, 1)), guesses, None, False)


def findings_of(audited: Audited, found: TargetAnswers) -> Findings:
    return Findings(target_findings(audited, audited.rows, found))


def test_a_remembered_hidden_column_is_found_and_another_is_not() -> None:
    audited = world(300, score=SCORE, memory=2.0)
    rows = target_findings(audited, audited.rows, answers_of(audited, {"known": 4.0, "other": 0.0}))
    found = Findings.read(summarize(audited, rows))
    known, other = (found.first("guessed_column", column=name) for name in ("known", "other"))
    assert (known.p_value, known.verdict, other.verdict) == (0.001, "shown", "inconclusive")
    assert [known.p_adjusted, other.p_adjusted] == holm([known.p_value or 0, other.p_value or 0]).tolist()
    assert known.params["members"] > known.params["nonmembers"] + 0.4
    assert known.low is not None
    assert known.low > 0
    assert known.detectable is not None
    assert 0 < known.detectable < 0.4


@pytest.mark.parametrize("persons", [False, True])
def test_hidden_columns_are_seldom_found_without_memory(persons: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "MOST_REDRAWS", 199)
    hits = 0
    for seed in range(30):
        rows = np.tile([1, 2, 5], 20) if persons else None
        audited = world(160, seed=seed, rows=rows, score=SCORE)
        hits += bool(
            (findings_of(audited, answers_of(audited, {"c": 0.0}, seed=seed)).tests(COLUMNS)[0].p_value or 0) <= 0.05
        )
    assert scipy.stats.binomtest(hits, 30, 0.05, alternative="greater").pvalue > 1e-3


def test_rows_without_a_value_are_left_out() -> None:
    audited = world(300, score=SCORE)
    row = findings_of(audited, answers_of(audited, {"c": 4.0}, missing=60)).first("guessed_column")
    assert (row.n, row.params["missing"]) == (240, 60)
    rare = findings_of(audited, answers_of(audited, {"c": 4.0}, missing=290))
    assert rare.first("column_unknown").value == 10
    assert not rare.all("guessed_column")


def test_hidden_columns_are_not_tested_without_a_random_draw() -> None:
    audited = world(300, score=SCORE).withdrawn()
    row = findings_of(audited, answers_of(audited, {"c": 4.0})).first("guessed_column")
    assert not row.is_test
    assert row.low is not None
    assert row.low > 0


def test_listed_examples_of_a_larger_pool_are_found_by_their_ids() -> None:
    audited = world(300, score=SCORE)
    whole = answers_of(audited, {"c": 4.0})
    order = np.r_[np.arange(300), np.arange(20)]  # 20 more examples, which nobody lists
    pool = audited.rows.take(order)
    names = [*pool["example_id"].to_pylist()[:300], *(f"z{number}" for number in range(20))]
    pool = pool.set_column(0, "example_id", [names])
    longer = TargetAnswers(
        whole.outputs[order], {"c": Guesses(whole.guesses["c"].odds[order], whole.guesses["c"].values[order])}, None, False
    )
    rows = Findings(target_findings(audited, pool, longer))
    assert rows.first("guessed_column").value == findings_of(audited, whole).first("guessed_column").value


def test_structure_findings_count_training_rows_alone() -> None:
    audited = world(100, score=SCORE)
    count, member = len(audited.member), audited.member
    outputs = np.tile([0.25, 0.75], (count, 1)) + np.random.default_rng(0).normal(size=(count, 1)) * 10.0 ** -(
        DECIMALS + 3
    ) * [1, -1]
    outputs[np.flatnonzero(member)[0]] = [1.0, 0.0]
    found = Findings(target_findings(audited, audited.rows, TargetAnswers(outputs, {}, 7, True)))
    numbers = {row.params["structure"]: row.value for row in found.all("structure")}
    assert numbers["output_classes"] == 2  # differences by rounding are none
    assert numbers["single_rows"] == numbers["certain_rows"] == numbers["excluding_rows"] == numbers["smallest"] == 1
    assert numbers["residual_freedom"] == member.sum() - 7
    assert numbers["instance_based"] == 1
    assert {row.n for row in found.all("structure")} == {member.sum()}


@pytest.mark.page
def test_the_page_of_a_forest_on_a_table_has_all_sections(tmp_path: Path) -> None:
    recipe: dict[str, Any] = {
        "audit": "membership", "data": write_table(tmp_path / "a.csv", rows_of(300)), "model": {"kind": "forest", "trees": 20},
        "shadows": {"count": 8, "chunk": 8}, "score": {**SCORE, "subgroup": "region", "hidden": ["colour", "sex"]},
    }  # fmt: skip
    run = memlib.run(recipe, store=str(tmp_path / "store"), quiet=True)
    found = Findings.read(run.tables["summary"])
    assert found.first("guessed_column", column="colour").verdict == "shown"  # trees grow until their leaves are pure
    assert {row.params["value"] for row in found.all("auc_of_slice", "small_slice", slice="region")} == {
        "north", "south", "islands",
    }  # fmt: skip
    assert found.first("structure", structure="instance_based").value == 0
    page = next((tmp_path / "store").rglob("*.html")).read_text(encoding="utf-8")
    for heading in ("Slices", "Hidden columns", "Structure"):
        assert f">{heading}<" in page
    assert "described and not tested" in page


@pytest.mark.parametrize(
    ("data", "score", "stages"),
    [
        ({"source": {"kind": "breast_cancer"}}, {}, {"query_target"}),
        ({"source": {"kind": "digits"}, "image_size": 8, "channels": 1}, {}, set()),
        (None, {"subgroup": "region"}, {"query_target", "read_columns"}),
    ],
)
def test_a_plan_includes_the_stages_of_optional_answers_of_a_net(
    tmp_path: Path, data: dict[str, Any] | None, score: dict[str, Any], stages: set[str]
) -> None:
    recipe = {
        "audit": "membership", "data": data or write_table(tmp_path / "a.csv", rows_of(60)),
        "model": {"architecture": "mlp", "widths": [8]}, "score": score, "shadows": {"count": 8, "chunk": 4},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1, "batch_size": 10, "augment": None},
    }  # fmt: skip
    plan = memlib.plan(recipe, store=str(tmp_path / "store"))
    assert not plan.blocked
    found = {stage: len(parts) for stage, parts in plan.by_stage()}
    assert found["train_subsets"] == 3
    assert found.keys() & {"query_target", "read_columns"} == stages
