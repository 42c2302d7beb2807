"""Exposure by hand, its null, its methods beside one another, and what the page says."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.audits.exposure import (
    Config,
    Recipe,
    Scored,
    choose_method,
    curves,
    empty_extractions,
    exposure_by_sampling,
    exposure_of_rank,
    score,
    summarize,
)  # fmt: skip
from memlib.observe.likelihoods import UNITS_PER_BIT
from memlib.report.exposure import build_page, pareto_front
from memlib.report.page import render

RECIPE = {
    "data": {"source": {"kind": "topics"}},
    "training": {"objective": {"kind": "language"}, "epochs": 4, "augment": None, "checkpoint_epochs": [2]},
}
SIZE = 10**6


def recipe(**changes: Any) -> Recipe:
    return Recipe.model_validate(RECIPE | changes)


def seen(
    costs: list[float],
    insertions: list[int],
    *,
    seed: int = 0,
    epoch: int = 4,
    exact: dict[int, tuple[str, int, int]] | None = None,
) -> Scored:
    """References are normal around 40 bits."""
    rng = np.random.default_rng(seed)
    references = np.round(rng.normal(40, 4, 2000) * UNITS_PER_BIT).astype(np.int64)
    mine: NDArray[np.int64] = np.round(np.array(costs) * UNITS_PER_BIT).astype(np.int64)
    ids = tuple(range(len(costs)))
    return Scored("", seed, epoch, ids, tuple(insertions), mine, references, 1.5, exact or {})


def test_exposure_by_hand() -> None:
    assert exposure_of_rank(1, 1024) == 10
    assert exposure_of_rank(1024, 1024) == 0
    assert exposure_of_rank(256, 1024) == 2
    assert exposure_of_rank(1, 10**30) == pytest.approx(30 * math.log2(10))
    for rank in (0, 1025):
        with pytest.raises(ValueError, match="between 1 and 1024"):
            exposure_of_rank(rank, 1024)


def test_sampling_counts_the_canary_itself() -> None:
    value, low, high = exposure_by_sampling(0, 1023)
    assert value == 10
    assert high == math.inf
    assert low > 7
    value, low, high = exposure_by_sampling(511, 1023)
    assert value == 1
    assert low < 1 < high
    assert high - low < 0.3
    assert exposure_by_sampling(1023, 1023)[0] == 0
    with pytest.raises(ValueError, match="cannot lie"):
        exposure_by_sampling(5, 4)


def test_the_interval_of_sampling_covers() -> None:
    rng = np.random.default_rng(0)
    for share in (0.5, 0.01):
        hits = 0
        for below in rng.binomial(1000, share, size=300):
            _, low, high = exposure_by_sampling(int(below), 1000)
            hits += low <= -math.log2(share) <= high
        assert hits >= 279  # 285 expected


def test_auto_takes_the_cheapest_method_that_is_good_enough() -> None:
    config = Config()
    assert choose_method(config, at_or_below=0, size=10**6) == "enumerated"
    assert choose_method(config, at_or_below=30, size=10**9) == "sampled"
    assert choose_method(config, at_or_below=3, size=10**9) == "pruned"
    assert choose_method(Config(method="extrapolated"), at_or_below=500, size=10) == "extrapolated"


def test_rows_keep_the_order_of_canaries_and_say_their_method() -> None:
    model = seen([40.0, 20.0, 10.0], [0, 1, 16], exact={2: ("pruned", 1, 77)})
    rows = score([model], 10**9, Config(method="auto")).to_pylist()
    assert [row["canary"] for row in rows] == [0, 1, 2]
    assert [row["method"] for row in rows] == ["sampled", "extrapolated", "pruned"]
    assert rows[0]["exposure"] == pytest.approx(1, abs=0.15)
    assert rows[1]["exposure"] == pytest.approx(-math.log2(2.87e-7), abs=2.5)  # five standard deviations
    assert rows[1]["ci_low"] < rows[1]["exposure"] < rows[1]["ci_high"]
    assert rows[2]["exposure"] == math.log2(10**9)
    assert rows[2]["rank"] == 1
    assert rows[2]["p_value"] == pytest.approx(1e-9)
    assert rows[2]["exposure_extrapolated"] > 30  # not bounded by the space
    assert rows[1]["p_value"] == pytest.approx(1 / 2001)


def test_a_law_that_does_not_fit_is_not_extrapolated() -> None:
    """Two humps: auto falls back on what the references say at least, whose interval holds the truth."""
    rng = np.random.default_rng(0)
    humps = np.concatenate([rng.normal(30, 1, 1000), rng.normal(50, 1, 1000)])
    model = Scored("", 0, 4, (0,), (2,), np.array([20 * 65536]), (humps * 65536).astype(np.int64), 1.5, {})
    (row,) = score([model], 10**9, Config(replicates=40)).to_pylist()
    assert row["fit_p"] < 0.05
    assert row["method"] == "sampled"
    assert row["ci_low"] > 9
    assert row["ci_high"] == pytest.approx(29.9, abs=0.1)
    assert score([model], 10**9, Config(replicates=40, method="extrapolated"))["method"][0].as_py() == "extrapolated"


def test_a_model_that_ignores_the_holes_exposes_nothing() -> None:
    model = Scored("", 0, 4, (0,), (9,), np.array([500]), np.full(2000, 500), 1.5, {})
    (row,) = score([model], SIZE, Config(method="sampled")).to_pylist()
    assert row["exposure"] == 0
    assert row["exposure_extrapolated"] is None
    assert row["p_value"] == 1


def test_null_and_planted_in_the_summary() -> None:
    """Canaries that were drawn like the references: 2^-exposure averages 1/2, at most alpha are called exposed."""
    rng = np.random.default_rng(3)
    costs = rng.normal(40, 4, 400).tolist()
    null = seen([*costs, 12.0], [*([0] * 400), 16], seed=5)
    units = score([null], 10**9, Config(method="sampled"))
    rows = [
        {**row, "params": json.loads(row["params"])}
        for row in summarize([null], units, empty_extractions(), recipe()).to_pylist()
    ]
    mean = next(row for row in rows if row["metric"] == "two_to_minus_exposure")
    assert mean["verdict"] == "at_null"
    assert mean["ci_low"] < 0.5 < mean["ci_high"]
    median = next(row for row in rows if row["metric"] == "exposure_median")
    assert median["value"] == pytest.approx(1, abs=0.2)
    planted = next(row for row in rows if row["params"].get("canary") == 400)
    assert planted["verdict"] == "above_null"
    p_values = np.array([row["p_value"] for row in units.to_pylist() if row["insertions"] == 0])
    assert (p_values < 0.05).mean() == pytest.approx(0.05, abs=0.025)


def test_the_page_says_what_exposure_means(tmp_path: Path) -> None:
    models = [
        seen([40.0, 12.0], [0, 16], epoch=epoch, exact={0: ("enumerated", 500_000, 9), 1: ("enumerated", 1, 9)})
        for epoch in (2, 4)
    ]
    units = score(models, SIZE, Config())
    tables = {
        "units": units, "extractions": empty_extractions(), "summary": summarize(models, units, empty_extractions(), recipe()),
        "curves": curves(models, units, empty_extractions(), recipe()),
    }  # fmt: skip
    page = build_page(recipe(title="<b>"), "abc", tables, {"text": "topics"}, tmp_path)
    assert page.verdict == "1 of 1 inserted secrets are exposed."
    assert "one in 2^19.9" in page.lead
    assert "19.9 bits" in page.lead
    html = render(page)
    assert "<b>" not in html.replace("<b>", "", 0) or "&lt;b&gt;" in html
    assert html.count("<svg") == 3
    nothing = [seen([40.0, 41.0], [0, 1], exact={0: ("enumerated", 5, 9), 1: ("enumerated", 600_000, 9)})]
    units = score(nothing, SIZE, Config())
    tables |= {"units": units, "summary": summarize(nothing, units, empty_extractions(), recipe())}
    tables["curves"] = curves(nothing, units, empty_extractions(), recipe())
    assert build_page(recipe(), "abc", tables, {}, tmp_path).verdict == "No inserted secret was found to be exposed."


def test_forty_canaries_that_left_no_trace_are_not_found() -> None:
    """Each has a p-value of its own; together they are called exposed in no more than alpha of audits."""
    wrong = means = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        ranks = {canary: ("enumerated", int(rng.integers(1, SIZE + 1)), 1) for canary in range(40)}
        models = [seen([40.0] * 40, [4] * 40, exact=ranks)]
        rows = summarize(models, score(models, SIZE, Config(replicates=20)), empty_extractions(), recipe()).to_pylist()
        wrong += any(row["verdict"] == "above_null" for row in rows if '"canary"' in row["params"])
        means += rows[0]["verdict"] != "at_null"
    assert wrong <= 8  # 3 expected
    assert means <= 10  # 3 expected, of a skew law


def test_seeds_of_a_canary_are_no_further_canaries(tmp_path: Path) -> None:
    models = [
        seen([12.0, 40.0], [8, 0], seed=seed, exact={0: ("enumerated", 1, 1), 1: ("enumerated", 9000, 1)})
        for seed in range(3)
    ]
    units = score(models, SIZE, Config(replicates=20))
    summary = summarize(models, units, empty_extractions(), recipe(seeds=3))
    first = summary.to_pylist()[0]
    assert first["n"] == 1
    tables = {
        "units": units, "extractions": empty_extractions(), "summary": summary, "curves": curves(models, units, empty_extractions(), recipe())
    }  # fmt: skip
    assert build_page(recipe(), "a", tables, {}, tmp_path).verdict.startswith(
        "1 of 1 inserted secrets are exposed, each by one"
    )


def test_a_page_holds_exposures_beyond_any_float(tmp_path: Path) -> None:
    model = seen([1.0], [9])
    units = score([model], 16**256, Config(method="extrapolated", replicates=20))
    assert units["exposure"][0].as_py() > 60
    tables = {
        "units": units, "extractions": empty_extractions(), "summary": summarize([model], units, empty_extractions(), recipe()),
        "curves": curves([model], units, empty_extractions(), recipe()),
    }  # fmt: skip
    assert "There are 2^1024.0 possible secrets" in build_page(recipe(), "a", tables, {}, tmp_path).lead


def test_the_front_holds_what_nothing_beats() -> None:
    points = {"a": (1.0, 9.0), "b": (1.2, 3.0), "c": (1.3, 3.0), "d": (2.0, 0.5), "e": (1.2, 3.0), "f": (2.0, 0.6)}
    assert pareto_front(points) == ["a", "b", "e", "d"]


def test_variants_are_compared_with_what_their_privacy_costs(tmp_path: Path) -> None:
    plain = replace(seen([12.0], [8], exact={0: ("enumerated", 1, 1)}), variant="plain")
    spent = [{"epsilon": epsilon, "delta": 1e-5, "noise": 1.5, "accountant": "rdp"} for epsilon in (1.0, 2.0)]
    private = [
        replace(plain, variant="private", epoch=epoch, exact={0: ("enumerated", 9, 1)}, validation_loss=2.5, privacy=said)
        for epoch, said in zip((2, 4), spent, strict=True)
    ]
    models = [plain, *private]
    mine = recipe(variants={"plain": {}, "private": {"training": {"batch_size": 32, "privacy": {"noise": 1.5}}}})
    units = score(models, SIZE, Config(replicates=20))
    summary = summarize(models, units, empty_extractions(), mine)
    (row,) = [row for row in summary.to_pylist() if row["metric"] == "epsilon"]
    assert row["value"] == 2.0
    assert json.loads(row["params"]) == {"variant": "private", "delta": 1e-5, "noise": 1.5, "accountant": "rdp"}
    tables = {
        "units": units, "extractions": empty_extractions(), "summary": summary, "curves": curves(models, units, empty_extractions(), mine)
    }  # fmt: skip
    html = render(build_page(mine, "a", tables, {}, tmp_path))
    assert "2 (delta 1e-05, noise 1.5, rdp)" in html
    assert "is no guarantee" in html
    assert (tmp_path / "utility.svg").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"training": {"objective": {"kind": "supervised"}, "epochs": 1, "augment": None}}, "use language"),
        ({"training": {"objective": {"kind": "language"}, "epochs": 1}}, "set it to null for text"),
        ({"variants": {"b": {"data.window": 50}}}, "may change model, training, quantize and what is known"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        recipe(**changes)


def test_variants_are_cells() -> None:
    found = recipe(variants={"plain": {}, "dropout": {"model.dropout": 0.5}, "8 bit": {"quantize": True}}).cells
    assert found["dropout"].model.dropout == 0.5
    assert found["8 bit"].quantize
    assert list(recipe().cells) == [""]
