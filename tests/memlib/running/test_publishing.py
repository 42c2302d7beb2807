"""A sweep says which of its cells show something only because earlier looks at their data are not allowed for."""

import pytest

from memlib.audits.exposure import recipe as exposure
from memlib.findings import Findings, diagnostic, settle, tested
from memlib.running.publishing import said_of_looks
from memlib.runs.records import EarlierAudit, FindingRecord, Ledger, RunRecord


def cell(p_value: float, *, looks: int) -> RunRecord:
    row = tested("exposure", {}, 9.0, n=3, p_value=p_value, family=exposure.HEADLINE)
    found = settle([row], alpha=0.05, headlines=exposure.HEADLINES)
    earlier = [EarlierAudit(run=f"r{n}", audit="exposure", p_value=0.5, look=f"r{n}") for n in range(looks - 1)]
    return RunRecord(
        run="now", audit="exposure", title="t", finished=1.0, findings=[FindingRecord(**one.row()) for one in found],
        ledger=Ledger(data="d", look="sweep", earlier=earlier),
    )  # fmt: skip


@pytest.mark.parametrize(("p_value", "looks", "lost"), [(0.03, 1, False), (0.03, 2, True), (0.02, 2, False), (0.4, 2, False)])
def test_a_sweep_names_cells_made_inconclusive_by_earlier_looks(p_value: float, looks: int, lost: bool) -> None:
    findings = Findings([diagnostic("cells_completed", {}, 2.0, n=2)])
    text = said_of_looks("sweep", Ledger(), findings, {"a": cell(p_value, looks=looks), "b": cell(1e-6, looks=2)})
    assert text.startswith("Not the first looks at their data: a. ") == lost
    assert bool(text) == lost
