"""Comparisons of variants with their baselines: what is paired, the null, a plant, and what page and verdict say."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.unique_feature.analysis import Analysis
from memlib.audits.unique_feature.comparisons import Comparison, VariantScore, compare, comparisons_of
from memlib.audits.unique_feature.findings import summarize
from memlib.audits.unique_feature.recipe import Config
from memlib.audits.unique_feature.report.page import _tested_here
from memlib.audits.unique_feature.report.tables import changes_section
from memlib.audits.unique_feature.scoring import Net, unit
from memlib.audits.unique_feature.tables import UNITS, with_column
from memlib.audits.unique_feature.verdict import change_in_words
from memlib.findings import Finding, Findings, estimate, settle
from memlib.stats.multiplicity import holm
from tests.chance import most_of

CONFIG = Config(outputs=("probability",), replicates=200, permutations=999)


def units_of(canary: Any, control: Any, *, variant: str, examples: Sequence[str] = (), first_seed: int = 0) -> pa.Table:
    """White-box scores of nets with the feature and of their controls; with examples, one canary each, else one for all."""
    rows = []
    for is_control, values in ((False, canary), (True, control)):
        for i, value in enumerate(values):
            net = Net(i, i if examples else 0, is_control, first_seed + i, 1)
            rows.append(unit(net, "m_white", "probability", (float(value), 0.5), 1, (float(value), 0.0), 10))
    table = pa.Table.from_pylist(rows, schema=UNITS.arrow)
    names = [examples[i] if examples else "x" for i in table["canary"].to_pylist()]
    for name, values in (("example_id", names), ("variant", [variant] * len(rows)), ("data_seed", [0] * len(rows))):
        table = with_column(table, name, values)
    return table


def compared(
    *parts: pa.Table, same_data: bool = True, config: Config = CONFIG, metric: str = "m_white", draws: int = 1
) -> list[Finding]:
    """Compare the first variant with the second, over so many draws of the data with the same scores."""
    scores = {}
    for part in parts:
        name = part["variant"][0].as_py()
        params = {"variant": name, "metric": metric, "output": "probability"}
        scores[name] = [VariantScore(params, [Analysis(part, config)] * draws, config)]
    variant, baseline = list(scores)[:2]
    return list(compare(scores, [Comparison(variant, baseline, same_data)]))


def test_changes_of_m_and_of_memory_equal_values_computed_by_hand() -> None:
    ours = units_of([3, 4, 5, 7], [1, 1, 1, 1], variant="dropout")
    theirs = units_of([2, 2, 2, 2], [0, 0, 0, 0], variant="plain")
    level, memory = compared(ours, theirs)
    assert (level.params["group"], level.value, level.n) == ("canary", 2.75, 4)  # changes 1, 2, 3, 5
    assert level.p_value == level.smallest_p == 2 / 16
    assert (memory.params["group"], memory.value) == ("canary - control", 1.75)  # changes 0, 1, 2, 4
    assert memory.p_value == 2 * 2 / 16  # the sign of the 0 is free
    assert level.params["from"] == "plain"
    assert level.family != memory.family
    assert level.interval is not None
    assert level.interval.over == "nets"


@pytest.mark.parametrize(
    ("change", "same_data", "paired"),
    [({}, True, True), ({}, False, False), ({"first_seed": 50}, True, False), ({"examples": "abcdez"}, True, False)],
)
def test_units_are_paired_only_where_data_seeds_and_canaries_are_the_same(
    change: dict[str, Any], same_data: bool, paired: bool
) -> None:
    rng = np.random.default_rng(0)
    base = {"examples": "abcdef"}
    ours = units_of(*rng.normal(size=(2, 6)), variant="a", **(base | change))
    theirs = units_of(*rng.normal(size=(2, 6)), variant="b", **base)
    rows = compared(ours, theirs, same_data=same_data)
    assert {row.params["paired"] for row in rows} == {paired}
    assert all(row.is_test and row.interval is not None and row.interval.over == "canaries" for row in rows)


def test_nets_of_one_canary_are_not_tested_against_canaries() -> None:
    rng = np.random.default_rng(0)
    one, several = (units_of(*rng.normal(size=(2, 6)), variant=n, examples=e) for n, e in (("a", ""), ("b", "abcdef")))
    assert {row.role for row in compared(one, several)} == {"estimate"}


@pytest.mark.parametrize("paired", [True, False])
def test_exchangeable_variants_are_found_to_differ_at_most_at_the_level(paired: bool) -> None:
    """Compare two regularizers without effect with one baseline; count families with a false alarm after Holm."""
    rng, tries, hits = np.random.default_rng(1), 150, np.zeros(2)
    quick = CONFIG.model_copy(update={"permutations": 199, "replicates": 100})
    for _ in range(tries):
        seeds = rng.normal(size=(2, 8))
        parts = [
            units_of(*(seeds + rng.standard_t(3, size=(2, 8))), variant=name, first_seed=0 if paired else 20 * place)
            for place, name in enumerate(("plain", "dropout", "decay"))
        ]
        found = [compared(part, parts[0], config=quick) for part in parts[1:]]
        assert all(row.params["paired"] is paired for rows in found for row in rows)
        hits += [holm([rows[group].p_value or 0.0 for rows in found]).min() <= 0.05 for group in (0, 1)]
    assert (hits <= most_of(tries, 0.05)).all()


@pytest.mark.parametrize("metric", ["m_grey", "m_black"])
def test_centred_maxima_of_one_draw_of_the_data_are_neither_tested_nor_given_an_interval(metric: str) -> None:
    """All units of a variant share the error of its centre, except over draws of the data, each with its own centre."""
    rng = np.random.default_rng(0)
    parts = [units_of(*rng.normal(size=(2, 6)), variant=name, first_seed=20 * i) for i, name in enumerate("ab")]
    rows = compared(*parts, metric=metric)
    assert [(row.is_test, row.interval, row.params["group"]) for row in rows] == [
        (False, None, "canary"), (False, None, "canary - control"),
    ]  # fmt: skip
    assert {change_in_words(row) for row in rows} == {"not tested: its maxima are centred by the same controls"}
    assert all(row.is_test for row in compared(*parts))
    assert all(row.is_test for row in compared(*parts, metric=metric, draws=6))


def test_a_rise_of_m_in_canary_nets_and_controls_alike_leaves_memory_unchanged() -> None:
    rng = np.random.default_rng(0)
    control = rng.normal(size=20)
    ours = units_of(control + 3 + 0.1 * rng.normal(size=20), control + 2, variant="batch norm")
    theirs = units_of(control + 1 + 0.1 * rng.normal(size=20), control, variant="plain")
    level, memory = compared(ours, theirs)
    assert level.p_value is not None
    assert memory.p_value is not None
    assert level.p_value < 0.01
    assert memory.p_value > 0.05


def test_every_variant_is_compared_with_the_first_unless_baselines_are_named() -> None:
    data = {"a": [1], "b": [1], "c": [2], "d": [2]}
    assert comparisons_of(data, {}) == [Comparison("b", "a", True), Comparison("c", "a", False), Comparison("d", "a", False)]
    assert comparisons_of(data, {"d": "c"}) == [Comparison("d", "c", True)]
    assert comparisons_of({"": [1]}, {}) == []


def test_changes_of_memory_are_reported_and_get_a_verdict_only_where_memory_is_shown() -> None:
    rng = np.random.default_rng(0)
    wobble = 0.05 * rng.normal(size=20)
    parts = [
        units_of(wobble + effect + 0.01 * rng.normal(size=20), wobble, variant=name)
        for name, effect in (("plain", 0.2), ("dropout", 0.5), ("decay", 0.2))
    ]
    pairs = [Comparison(name, "plain", True) for name in ("dropout", "decay")]
    found = Findings.read(summarize(pa.concat_tables(parts), _no_cells("plain", "dropout", "decay"), CONFIG, compared=pairs))
    assert "Mean M of 2 variants compared with their baselines: higher in dropout than in plain" in found.verdict.explanation
    rows = {row.params["variant"]: row for row in found.all(statistic="change", group="canary - control")}
    assert [rows[name].verdict for name in ("dropout", "decay")] == ["shown", "inconclusive"]
    section = changes_section(found)
    assert section is not None
    assert "no difference shown" in str(section)
    assert "mixes what the variant changes in training with the choice of other canaries" in str(section)
    assert "see the comparison of variants" in _tested_here(found)
    untested = [row for row in found if row.params.get("statistic") != "change"]
    untested.append(estimate("m_white", {"statistic": "change"}, 0.1, n=1))
    assert "was not tested here" in _tested_here(Findings(untested))
    none = [units_of(rng.normal(size=8), rng.normal(size=8), variant=name) for name in ("plain", "dropout")]
    nothing = Findings.read(summarize(pa.concat_tables(none), _no_cells("plain", "dropout"), CONFIG, compared=pairs[:1]))
    assert {row.verdict for row in nothing.all(statistic="change")} == {None}
    assert settle(nothing, alpha=0.05, headlines=["headline"])  # as a verification does


def _no_cells(*names: str) -> Any:
    """Cells without grey- and black-box scores, by variant."""
    return {(name, 0): None for name in names}
