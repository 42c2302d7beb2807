"""Answers to other parts of memlib: who is ranked by what, and when a rank is a p-value."""

from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from memlib.audits.membership.answers import rankings
from memlib.audits.membership.findings import summarize
from memlib.audits.membership.rows import unit_rows
from memlib.findings import INCONCLUSIVE, SHOWN, Findings
from memlib.pipeline.tables import Tables
from tests.memlib.audits.membership.worlds import world


def test_a_rank_is_a_p_value_within_its_class_and_only_where_memory_is_shown() -> None:
    """Ranks across classes would accuse members of a class that a model without memory fits better."""
    for memory, word in ((2.0, SHOWN), (0.0, INCONCLUSIVE)):
        audited = world(400, memory=memory, seed=3, score={"redraws": 999, "attacks": ["lira", "loss"]})
        findings = Findings.read(summarize(audited, []))
        assert findings.verdict.word == word
        units = unit_rows(audited)
        first, second = rankings(cast(Tables, {"units": units}), findings)
        assert second.p_values is None
        if word == INCONCLUSIVE:
            assert first.p_values is None
            continue
        assert first.p_values is not None
        label, member, scores = (units[name].to_numpy(zero_copy_only=False) for name in ("label", "member", "lira"))
        for place in (0, 7, 200):
            others = (label == label[place]) & ~member & (np.arange(len(units)) != place)
            expected = (1 + (scores[others] >= scores[place]).sum()) / (1 + others.sum())
            assert first.p_values[place] == pytest.approx(expected)
        assert first.references == max(((label == one) & ~member).sum() for one in np.unique(label))


def test_scores_of_few_units_need_no_non_member_of_every_class() -> None:
    units = pa.table(
        {
            "unit": ["a", "b", "c"], "label": [0, 0, 1], "member": [True, False, True], "examples": [1, 1, 1],
            "lira": [3.0, 2.0, 9.0],
        }
    )  # fmt: skip
    found = Findings.read(summarize(world(memory=2.0, seed=3), []))
    (only,) = rankings(cast(Tables, {"units": units}), found)
    assert only.p_values is not None
    assert only.p_values.tolist() == [0.5, 1.0, 1.0]  # nobody of c's class was left out
