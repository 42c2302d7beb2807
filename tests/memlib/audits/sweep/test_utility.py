"""Utility beside memorization: from constructed cells whose utilities are known."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.recipe import Recipe, run_of
from memlib.audits.sweep.report import _measure_of, compose
from memlib.audits.sweep.scores import score, summarize, verdict
from memlib.audits.sweep.trends import trends
from memlib.audits.sweep.utility import (
    CHANGE,
    change_along,
    changes_along,
    difference,
    in_words,
    is_equal,
    remarks_on,
    utilities,
)
from memlib.findings import Finding, Interval, estimate, settle, tested
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord

KEY, IMAGES = "training.objective.invariance", 20_000


def outcome(
    x: float, memory: float, accuracy: float | None, *, images: int = IMAGES, model: str = "", changes: Any = None
) -> Outcome:
    """A cell whose models' linear probes name a share `accuracy` of other images."""
    changes = changes or {KEY: x}
    name = " ".join(f"{key}={value}" for key, value in changes.items())
    head = tested("share_excess", {"pairs": 1, "epoch": 5}, memory, n=9, p_value=0.5, family="headline")
    rows = list(settle([head], alpha=0.05))
    if accuracy is not None:
        at = {"probe_layer": "backbone", "train_accuracy": 1.0, "test_accuracy": accuracy}
        rows.append(estimate("probe_gap_backbone", {"epoch": 1} | at | {"test_accuracy": 0.0}, 1.0, n=images))
        rows.append(estimate("probe_gap_backbone", at, 1 - accuracy, n=images))
    run = RunRecord(
        run="r", audit="deja_vu", title="t", finished=1.0, findings=[FindingRecord(**row.row()) for row in rows],
        artifacts={"scores": f"score/{hashlib.sha256(name.encode()).hexdigest()[:32]}"},
        computed=[f"train/{hashlib.sha256((model or name).encode()).hexdigest()[:32]}"],
        verdict=VerdictRecord(word="inconclusive", sentence=""),
    )  # fmt: skip
    return Outcome(name, "deja_vu", changes, run)


def cells(memory: list[float], accuracies: list[float], **options: Any) -> list[Outcome]:
    return [outcome(x, m, a, **options) for x, m, a in zip((1, 5, 10, 25, 50, 100), memory, accuracies, strict=False)]


FALLS = [0.5, 0.4, 0.3, 0.2, 0.1]


def test_utilities_of_audits_without_probes_are_named_by_their_measure() -> None:
    rows = [estimate("utility", {"measure": "right answers"} | more, 0.5, n=9) for more in ({}, {"probe_layer": "backbone"})]
    assert _measure_of(rows).endswith("(right answers, right answers at backbone)")


def changed(outcomes: list[Outcome], margin: float = 0.05) -> tuple[str, Finding]:
    (trend,) = trends(outcomes)
    change = change_along(trend, utilities(outcomes), margin=margin)
    assert change is not None
    return in_words(trend, change), change


def test_change_of_utility_and_its_interval_equal_a_regression_on_ranks() -> None:
    accuracies = [0.50, 0.56, 0.54, 0.61, 0.60]
    _, change = changed(cells(FALLS, accuracies))
    fit = scipy.stats.linregress(np.arange(5), accuracies)
    half = scipy.stats.t.ppf(0.975, 3) * fit.stderr * 4
    assert change.value == pytest.approx(4 * fit.slope)
    assert change.low == pytest.approx(4 * fit.slope - half)
    assert change.high == pytest.approx(4 * fit.slope + half)
    assert change.interval is not None
    assert change.interval.over == "examples and trainings"
    assert change.params == {"audit": "deja_vu", "along": KEY, "from": 1, "to": 50, "cells": 5, "equal_within": 0.05}


def test_change_of_utility_without_scatter_has_the_interval_over_images() -> None:
    _, change = changed(cells(FALLS, [0.5] * 5, images=400))
    (useful, *_) = utilities(cells(FALLS, [0.5] * 5, images=400)).values()
    assert (useful.low, useful.high) == pytest.approx((0.450, 0.550), abs=1e-3)  # 200 of 400, Clopper and Pearson
    assert change.value == pytest.approx(0)
    error = (useful.high - 0.5) / 1.959964  # type: ignore[operator]
    assert change.high == pytest.approx(1.959964 * 4 * error / 10**0.5)
    shared = cells(FALLS, [0.5, 0.52, 0.48, 0.5, 0.5], images=400, model="one")
    (trend,) = trends(shared)
    found = change_along(trend, utilities(shared), margin=0.05)
    assert found is not None
    assert found.interval is not None
    assert found.interval.over == "examples"  # cells of the same models say nothing of other trainings


@pytest.mark.parametrize(
    ("memory", "accuracies", "said"),
    [
        (FALLS, [0.60, 0.601, 0.599, 0.60, 0.60], "Memorization falls at equal utility (within 5 points)"),
        (FALLS[::-1], [0.60, 0.601, 0.599, 0.60, 0.60], "Memorization rises at equal utility (within 5 points)"),
        (FALLS, [0.60, 0.55, 0.50, 0.45, 0.40], "Memorization falls, and utility falls"),
        (FALLS, [0.40, 0.45, 0.50, 0.55, 0.60], "Memorization falls, and utility rises"),
        (
            FALLS,
            [0.60, 0.50, 0.61, 0.48, 0.62],
            "Memorization falls; whether at equal utility (within 5 points) is not decided",
        ),
        ([0.3, 0.1, 0.2, 0.3, 0.1], [0.6] * 5, "equal within 5 points. Memorization is not shown to change"),
        ([0.3, 0.1, 0.2, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4, 0.5], "Memorization is not shown to change"),
    ],
)
def test_the_sentence_says_whether_memorization_changes_at_equal_utility(
    memory: list[float], accuracies: list[float], said: str, tmp_path: Path
) -> None:
    outcomes = cells(memory, accuracies)
    assert said in changed(outcomes)[0]
    assert said in str(compose(outcomes, tmp_path, {}, trends(outcomes)).sections)


def test_the_margin_of_the_recipe_decides_which_utilities_are_equal(tmp_path: Path) -> None:
    outcomes = cells(FALLS, [0.60, 0.605, 0.595, 0.605, 0.60])
    assert "at equal utility (within 5 points)" in changed(outcomes)[0]
    assert "is not decided" in changed(outcomes, margin=0.005)[0]
    page = compose(outcomes, tmp_path, {}, trends(outcomes), margin=0.005)
    assert "is not decided" in str(page.sections)
    assert "is not decided" in page.lead


@pytest.mark.parametrize("cells_", [5, 6])
def test_the_interval_of_an_unchanged_utility_seldom_excludes_0(cells_: int) -> None:
    rng, excluded = np.random.default_rng(0), 0
    for _ in range(200):
        accuracies = rng.binomial(500, np.clip(rng.normal(0.6, 0.03, size=cells_), 0, 1)) / 500
        _, change = changed(cells(list(rng.random(cells_)), [float(a) for a in accuracies], images=500))
        excluded += not (change.low or 0) <= 0 <= (change.high or 0)
    assert excluded <= scipy.stats.binom.ppf(0.999, 200, 0.05)


def test_cells_with_equal_other_keys_have_a_common_slope_of_utility() -> None:
    accuracies = [0.5, 0.52, 0.54]
    outcomes = [
        outcome(0, 0.1 * x + width, accuracy + shift, changes={"training.epochs": x, "model.width": width})
        for width, shift in ((8, 0.0), (64, 0.3))
        for x, accuracy in zip((1, 2, 3), accuracies, strict=True)
    ]
    (trend,) = trends(outcomes)
    change = change_along(trend, utilities(outcomes), margin=0.05)
    assert change is not None
    assert (change.value, change.n) == (pytest.approx(0.04), 6)


def test_the_page_of_cells_without_a_utility_does_not_mention_it(tmp_path: Path) -> None:
    outcomes = [outcome(x, m, None) for x, m in zip((1, 2, 3, 4, 5), FALLS, strict=True)]
    along = trends(outcomes)
    assert utilities(outcomes) == changes_along(along, {}, margin=0.05) == {}
    assert remarks_on(along, {}) == []
    assert "utility" not in str(compose(outcomes, tmp_path, {}, along).sections)


def test_table_summary_and_page_give_the_utility_of_each_cell(tmp_path: Path) -> None:
    outcomes = cells(FALLS, [0.6] * 5)
    along, useful = trends(outcomes), utilities(outcomes)
    changes = changes_along(along, useful, margin=0.05)
    table = score(outcomes, {}, [trend.row for trend in along] + list(changes.values()), useful).to_pylist()
    rows = [row for row in table if row["metric"] == "utility"]
    assert [(row["cell"], row["value"]) for row in rows] == [(o.cell, 0.6) for o in outcomes]
    assert all(row["ci_low"] < 0.6 < row["ci_high"] for row in rows)
    assert [row["cell"] for row in table if row["metric"] == CHANGE] == [f"along {KEY}"]
    keys = [(row["cell"], row["metric"], row["params"]) for row in table]
    assert len(set(keys)) == len(keys)
    assert json.loads(rows[0]["params"]) == {"measure": "linear probe", "probe_layer": "backbone"}
    assert [row.metric for row in summarize(outcomes, useful)].count("utility") == 5
    said = verdict(outcomes, remarks=remarks_on(along, changes)).explanation
    assert "at equal utility" in said
    assert "Without a test, and without a bound" not in said  # all cells have one
    page = str(compose(outcomes, tmp_path, {}, along).sections)
    assert "0.6 (0.593 to 0.607)" in page
    assert "linear probe at backbone" in page


def test_differences_between_cells_are_compared_with_their_difference_in_utility(tmp_path: Path) -> None:
    outcomes = cells([0.5, 0.1], [0.6, 0.6])
    names = [o.cell for o in outcomes]
    row = tested(
        "difference in share_excess", {"cell": names[0], "other": names[1]}, 0.4, n=9, p_value=0.001, family="differences",
        interval=Interval(0.3, 0.5, "examples and trainings"), either_direction=True,
    )  # fmt: skip
    page = str(compose(outcomes, tmp_path, {"deja_vu": settle([row], alpha=0.05)}).sections)
    as_useful = "memorize less than a cell whose trained models are as useful on these images"
    assert f"1 shown differences are at equal utility of the trained models (within 0.05): {names[1]} {as_useful}." in page
    assert "95 % interval of the difference in utility (over images)" in page
    worse = cells([0.5, 0.1], [0.6, 0.3])
    page = str(compose(worse, tmp_path, {"deja_vu": settle([row], alpha=0.05)}).sections)
    assert "0 shown differences are at equal utility of the trained models (within 0.05)." in page
    one, other = utilities(worse).values()
    apart = difference(one, other)
    assert (apart.low + (apart.high or 0)) / 2 == pytest.approx(0.3, abs=1e-3)
    assert not is_equal(apart, 0.05)


def test_a_margin_stated_at_its_default_keeps_the_key_of_the_run() -> None:
    recipe = {"audit": "sweep", "recipe": "smoke", "grid": {"training.epochs": [1, 2]}}
    runs = [run_of(Recipe.model_validate(recipe | more)) for more in ({}, {"equal_utility": 0.05}, {"equal_utility": 0.02})]
    assert runs[0] == runs[1] != runs[2]
