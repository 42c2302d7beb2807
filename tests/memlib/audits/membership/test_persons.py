"""Rows of persons: their correlation and the widths of intervals, in worlds where both are known."""

from dataclasses import replace

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.summary import person_findings, summarize
from memlib.findings import Findings
from tests.memlib.audits.membership.worlds import world

LOSS = {"redraws": 999, "attacks": ["loss"], "headline": "loss"}
ROWS = np.full(80, 12)


def alike(audited: Audited, strength: float) -> Audited:
    """Return the audit with log odds of the target that rows of a person share, `strength` times as much as they differ."""
    groups, rng = audited.pool.groups, np.random.default_rng(3)
    odds = (strength * rng.normal(size=groups.max() + 1)[groups] + rng.normal(size=len(groups)))[None, None]
    return replace(audited, target=replace(audited.target, odds=odds.astype(np.float32)))


def found(audited: Audited) -> Findings:
    return Findings(person_findings(audited))


def test_correlated_rows_of_a_person_widen_the_interval() -> None:
    rows = found(alike(world(rows=ROWS, score=LOSS), 3.0))
    assert rows.first("intraclass_correlation").value > 0.6
    ratio = rows.first("interval_width_ratio").value
    assert 2.2 < ratio < 3.8  # about sqrt(1 + 11 correlation)
    by_person, by_row = rows.first("auc_of_rows"), rows.first("auc_of_rows_alone")
    assert by_person.value == by_row.value
    assert by_person.low is not None
    assert by_row.low is not None
    assert by_person.low < by_row.low
    assert (by_person.n, by_row.n) == (80, 960)


def test_independent_rows_of_a_person_need_no_wider_interval() -> None:
    rows = found(alike(world(rows=ROWS, score=LOSS), 0.0))
    assert abs(rows.first("intraclass_correlation").value) < 0.05
    assert 0.75 < rows.first("interval_width_ratio").value < 1.3


def test_equal_memory_of_all_rows_of_a_person_is_not_counted_as_correlation() -> None:
    audited = alike(world(rows=ROWS, score=LOSS), 0.0)
    remembered = (audited.target.odds + 5 * audited.member).astype(np.float32)
    rows = found(replace(audited, target=replace(audited.target, odds=remembered)))
    assert rows.first("auc_of_rows").value > 0.9
    assert abs(rows.first("intraclass_correlation").value) < 0.05


def test_groups_of_copies_are_called_records_and_equal_scores_give_no_findings() -> None:
    audited = world(rows=ROWS, score=LOSS, split={"group": {"identical": True}})
    rows = found(alike(audited, 3.0))
    interval = rows.first("auc_of_rows").interval
    assert interval is not None
    assert (interval.over, rows.first("intraclass_correlation").params["over"]) == ("records", "records")
    constant = np.zeros_like(audited.target.odds)
    assert person_findings(replace(audited, target=replace(audited.target, odds=constant))) == []


def test_ungrouped_examples_give_no_person_findings() -> None:
    assert person_findings(world(100, score=LOSS)) == []


@pytest.mark.parametrize("rows", [None, np.tile([1, 2, 4], 30)])
def test_memorization_is_correlated_with_the_mean_score_of_members(rows: NDArray[np.int64] | None) -> None:
    memory = np.linspace(0, 6, 210)
    audited = world(210, memory=memory, rows=rows, shadows={"count": 24}, score={"redraws": 999, "attacks": ["lira"]})
    row = Findings.read(summarize(audited, [])).first("memorization_rank_correlation")
    scores, units = audited.survey[0], audited.units
    means, memorized = [], []
    for unit in range(len(units)):
        own = [scores[model, unit] for model in range(24) if units.shadows.inside[model, unit]]
        own += [audited.rankings.head.scores[unit]] if units.member[unit] else []
        means.append(np.mean(own))
        memorized.append(np.mean(audited.memorization.difference[audited.pool.groups == unit]))
    assert row.value == pytest.approx(scipy.stats.spearmanr(means, memorized).statistic, abs=1e-9)
    assert row.value > 0.1
    assert (row.n, row.params["models"]) == (len(units), 25)
