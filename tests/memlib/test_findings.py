"""Rows, families and verdicts; one sentence everywhere."""

import numpy as np
import pytest

from memlib.findings import (
    BOUNDED,
    INCONCLUSIVE,
    SHOWN,
    Finding,
    Findings,
    Interval,
    Verdict,
    cannot_reject,
    diagnostic,
    estimate,
    settle,
    tested,
)
from memlib.tables import SUMMARY


def test_families_of_tests_are_adjusted_separately() -> None:
    rows = [tested("m", {"i": i}, 1.0, n=9, p_value=p, family="a") for i, p in enumerate((0.01, 0.04))]
    rows += [tested("m", {"i": i}, 1.0, n=9, p_value=0.04, family="b") for i in (2, 3)]
    rows.append(tested("m", {"i": 4}, 1.0, n=9, p_value=0.04, family="c", p_adjusted=0.2))
    settled = settle(rows, alpha=0.05, adjust={"b": "benjamini-hochberg"})
    assert [row.p_adjusted for row in settled] == pytest.approx([0.02, 0.04, 0.04, 0.04, 0.2])
    assert [row.verdict for row in settled] == [SHOWN, SHOWN, SHOWN, SHOWN, INCONCLUSIVE]


@pytest.mark.parametrize(
    ("p", "upper", "bound", "word"),
    [(0.5, 0.1, 0.2, BOUNDED), (0.5, 0.3, 0.2, INCONCLUSIVE), (0.5, 0.1, None, INCONCLUSIVE), (0.01, 0.1, 0.2, SHOWN),
     (0.5, None, 0.2, INCONCLUSIVE)],
)  # fmt: skip
def test_settle_derives_the_verdict_from_p_value_and_bound(
    p: float, upper: float | None, bound: float | None, word: str
) -> None:
    (row,) = settle([tested("m", {}, 0.05, n=9, p_value=p, family="a", upper_bound=upper, bound=bound)], alpha=0.05)
    assert row.verdict == word


def test_only_tests_have_verdicts_and_intervals_hold_their_value() -> None:
    third = 1 / 3
    rows = [
        estimate("e", {}, third, n=3, interval=Interval(0.33333334, 0.5, "examples")),  # a float32 above its value
        diagnostic("d", {}, 1.0, n=1),
        estimate("lower", {}, 5.0, n=1, interval=Interval(4.0, None, "references")),
    ]
    settled = settle(rows, alpha=0.05)
    assert all(row.verdict is None and row.p_value is None and row.null_value is None for row in settled)
    assert settled[0].interval == Interval(third, 0.5, "examples")
    assert (settled[2].low, settled[2].high) == (4.0, None)


def test_cannot_reject_recognizes_tests_with_too_large_a_smallest_p() -> None:
    small, enough = settle(
        [tested("m", {"i": i}, 0.0, n=3, p_value=1.0, family=str(i), smallest_p=p) for i, p in enumerate((0.125, 0.01))],
        alpha=0.05,
    )
    assert cannot_reject(small)
    assert not cannot_reject(enough)


def test_the_verdict_is_stored_in_the_first_row_and_read_back() -> None:
    said = Verdict(SHOWN, "It remembers.", "p = .01.")
    rows = settle([tested("m", {"a": 1}, 1.0, n=9, p_value=0.01, family="x"), diagnostic("d", {}, 1.0, n=1)], alpha=0.05)
    table = rows.table(said)
    assert table.schema.equals(SUMMARY.arrow)
    assert table["sentence"].to_pylist() == ["It remembers.", None]
    read = Findings.read(table)
    assert list(read) == list(rows)
    assert (read.verdict, read.head.params) == (said, {"a": 1})


def test_findings_are_looked_up_by_metric_params_family_and_role() -> None:
    rows = [tested("m", {"side": side}, 1.0, n=9, p_value=0.01, family=side) for side in ("a", "b")]
    found = Findings([*rows, estimate("e", {"side": "b", "tries": (1, 2)}, 2.0, n=9)])
    assert (found.get("m", side="b"), found.get("m", side="c"), found.first("e", tries=[1, 2])) == (rows[1], None, found[2])
    assert [row.metric for row in found.all(side="b")] == ["m", "e"]
    assert [row.metric for row in found.all("e", "m", tries=None)] == ["m", "m"]
    assert (list(found.tests("a")), len(found.tests()), len(found[1:])) == (rows[:1], 2, 2)
    with pytest.raises(AssertionError, match="no finding e"):
        found.first("e", side="a")


def test_a_row_with_few_columns_and_no_value_is_read() -> None:
    read = Finding.of({"metric": "m", "params": "{}", "value": None, "ci_low": 1.0, "ci_high": None})
    assert np.isnan(read.value)
    assert (read.role, read.interval) == (None, Interval(1.0, None, ""))
