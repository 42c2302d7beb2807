"""Trends along a key are found by permuting independently trained cells, and never among cells that share models."""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy

from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.report import compose
from memlib.audits.sweep.scores import score
from memlib.audits.sweep.trends import trends
from memlib.findings import settle, tested
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord
from tests.assignments import assert_exact

pytestmark = pytest.mark.page


def outcome(changes: dict[str, Any], value: float, *, model: str = "", count: int = 9) -> Outcome:
    name = " ".join(f"{key}={v}" for key, v in changes.items())
    rows = settle([tested("share_excess", {}, value, n=count, p_value=0.5, family="headline")], alpha=0.05)
    run = RunRecord(
        run="r", audit="deja_vu", title="t", finished=1.0, findings=[FindingRecord(**row.row()) for row in rows],
        artifacts={"scores": f"score/{len(name)}"}, computed=[f"train/{hashlib.sha256((model or name).encode()).hexdigest()[:32]}"],
        verdict=VerdictRecord(word="inconclusive", sentence=""),
    )  # fmt: skip
    return Outcome(name, "deja_vu", changes, run)


def along(values: list[float], key: str = "training.epochs", **more: Any) -> list[Outcome]:
    return [outcome({key: x} | more, value) for x, value in zip((5, 10, 20, 40, 80, 160), values, strict=False)]


def test_a_rise_is_found_with_the_p_value_of_all_orders() -> None:
    (found,) = trends(along([0.1, 0.2, 0.25, 0.3, 0.5]))
    assert found.key == "training.epochs"
    assert found.row.p_value == pytest.approx(2 / 120)  # this order, and its reverse
    assert found.row.smallest_p == pytest.approx(2 / 120)
    assert found.row.verdict == "shown"
    expected = scipy.stats.pearsonr(np.arange(5), [0.1, 0.2, 0.25, 0.3, 0.5]).statistic
    assert found.row.value == pytest.approx(expected)
    (down,) = trends(along([0.5, 0.3, 0.25, 0.2, 0.1]))
    assert down.row.value == pytest.approx(-expected)


def test_trends_compare_only_cells_with_equal_values_of_other_keys() -> None:
    cells = along([0.1, 0.2, 0.3], **{"model.width": 8}) + along([0.5, 0.6, 0.7], **{"model.width": 64})
    found = {trend.key: trend for trend in trends(cells)}
    assert set(found) == {"training.epochs"}  # two widths are no trend
    assert found["training.epochs"].row.p_value == pytest.approx(2 / 36)
    assert found["training.epochs"].row.n == 6


@pytest.mark.parametrize("memory", [0.0, 0.05, 0.1])
def test_a_key_that_changes_the_number_of_audited_examples_is_drawn_and_not_tested(memory: float, tmp_path: Path) -> None:
    """With constant memory, larger cells vary less around its value; their order is not exchangeable."""
    rng = np.random.default_rng(0)
    sizes = (20, 40, 80, 160, 320, 640)
    cells = [outcome({"split.train_per_class": size}, memory + rng.normal() / size**0.5, count=10 * size) for size in sizes]
    (found,) = trends(cells)
    assert found.row.role == "diagnostic"
    assert found.row.p_value is None
    html = str(compose(cells, tmp_path, along=[found]).sections)
    assert "split.train_per_class changes the number of audited examples, and with it the precision of each cell" in html


def test_few_cells_shared_models_and_non_numeric_keys_show_no_trend(tmp_path: Path) -> None:
    (few,) = trends(along([0.1, 0.2, 0.3, 0.4]))
    assert few.row.verdict == "inconclusive"
    shared = [outcome({"decode.k": k}, 0.1 * k, model="one") for k in range(1, 6)]
    (found,) = trends(shared)
    assert (found.row.role, found.row.verdict, found.row.p_value) == ("diagnostic", None, None)
    assert trends([outcome({"training.objective.kind": name}, 0.1) for name in "abcde"]) == []
    assert trends([outcome({"training.shuffle": flag}, 0.1) for flag in (True, False)]) == []
    assert trends(along([0.1, 0.2])) == []
    for cells, said in (
        (along([0.1, 0.2, 0.3, 0.4]), "There are too few cells to show a trend"),
        (shared, "It is not tested, because the cells share their models"),
        (along([0.1, 0.2, 0.25, 0.3, 0.5]), "it rises"),
        (along([0.31, 0.2, 0.25, 0.3, 0.21]), "a trend is neither shown nor ruled out"),
    ):
        assert said in str(compose(cells, tmp_path, {}, trends(cells)).sections)
    table = score(shared, {}, [trend.row for trend in trends(shared)]).to_pylist()
    assert [row["cell"] for row in table if row["state"] == "compared"] == ["along decode.k"]
    assert json.loads(table[-1]["params"])["not_tested"]


@pytest.mark.parametrize("values", [[0.1, 0.2, 0.4, 0.8, 1.6], [0.1, 0.1, 0.2, 0.3, 0.3]])
def test_p_values_of_trends_are_exact_for_every_order_of_the_cells(values: list[float]) -> None:
    assert_exact([trends(along(list(order)))[0].row.p_value or 0.0 for order in itertools.permutations(values)])


def test_p_values_of_trends_are_exact_for_every_order_within_values_of_another_key() -> None:
    orders = itertools.product(itertools.permutations([0.1, 0.2, 0.4]), itertools.permutations([0.5, 0.6, 0.9]))
    cells = [along(list(one), **{"model.width": 8}) + along(list(other), **{"model.width": 64}) for one, other in orders]
    found = [{trend.key: trend for trend in trends(both)}["training.epochs"].row.p_value or 0.0 for both in cells]
    assert len(found) == 36
    assert_exact(found)


def test_many_cells_are_permuted_at_random() -> None:
    cells = [outcome({"training.epochs": n}, 0.01 * n) for n in range(1, 10)]
    (found,) = trends(cells)
    assert 0 < found.row.p_value < 0.001
