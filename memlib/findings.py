"""Findings of a run: rows of tests, estimates and diagnostics, their families, and one verdict in plain words.

A test compares its statistic with a null. Its p-value is adjusted within its family, and only tests have a verdict:

    shown         p_adjusted is at most alpha, and the effect has the direction of memory
    bounded       not shown, and the 95 % upper bound lies below a bound fixed by the recipe
    inconclusive  neither; `detectable` is the effect that the test would have detected with a power of 80 %

Each audit names its headline families. They share one alpha, and the word of a run is a function of their rows alone
(`word_of`). Tests of other families have a verdict only in a run that shows memory, and cannot contradict it.

An estimate has an interval that accounts for the sampling of examples, models or other units. All other rows are diagnostics.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from memlib.stats.multiplicity import ADJUSTMENTS, holm_over_families
from memlib.tables import SUMMARY

Word = Literal["shown", "bounded", "inconclusive", "descriptive"]
SHOWN: Word = "shown"
BOUNDED: Word = "bounded"
INCONCLUSIVE: Word = "inconclusive"
DESCRIPTIVE: Word = "descriptive"

Row = dict[str, Any]


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, and the units that were sampled.

    Attributes:
        low: lower end in the metric's unit.
        high: upper end; None where only a lower bound is known.
        over: the sampled units: examples, groups, trainings, nets, canaries, references, or data.
    """

    low: float
    high: float | None
    over: str


@dataclass(frozen=True)
class Verdict:
    """The verdict of a run in plain words.

    Attributes:
        word: shown, bounded, inconclusive, or descriptive when the audit tests nothing.
        sentence: the result for readers who read nothing else.
        explanation: the numbers behind it, and the effects that could have been missed.
    """

    word: Word
    sentence: str
    explanation: str


def estimate(metric: str, params: Mapping[str, Any], value: float, *, n: int, interval: Interval | None = None) -> Row:
    """Return an estimate row; pass no interval if too few units were sampled to compute one."""
    row = _row(metric, params, value, n) | {"role": "estimate"}
    return row | _interval(value, interval)


def diagnostic(metric: str, params: Mapping[str, Any], value: float, *, n: int, interval: Interval | None = None) -> Row:
    """Return a diagnostic row, which describes the models or the data and has no verdict."""
    return _row(metric, params, value, n) | {"role": "diagnostic"} | _interval(value, interval)


def tested(
    metric: str,
    params: Mapping[str, Any],
    value: float,
    *,
    n: int,
    p_value: float,
    family: str,
    null_value: float = 0.0,
    interval: Interval | None = None,
    p_adjusted: float | None = None,
    upper_bound: float | None = None,
    bound: float | None = None,
    detectable: float | None = None,
    smallest_p: float = 0.0,
    either_direction: bool = False,
) -> Row:
    """Return a test row; `settle` adds p_adjusted, unless it is given here, and the verdict.

    Args:
        metric, params, value, n: as for an estimate.
        p_value: p-value under the null.
        family: name of the family of tests within which the p-value is adjusted.
        null_value: the statistic's value under the null.
        interval: interval of the estimate; it does not affect the verdict.
        p_adjusted: the adjusted p-value, where the family is adjusted jointly (max-T).
        upper_bound: one-sided 95 % upper bound of the value.
        bound: bound fixed by the recipe; the verdict is bounded if `upper_bound` lies below it.
        detectable: the effect that would have been detected with a power of 80 %; None if no effect would have been.
        smallest_p: the smallest p-value that data of this size can give.
        either_direction: whether memory can also be shown by a value at or below the null's.
    """
    row = _row(metric, params, value, n) | {"role": "test"} | _interval(value, interval)
    return row | {
        "null_value": float(null_value), "p_value": float(p_value), "family": family, "p_adjusted": p_adjusted,
        "upper_bound": upper_bound, "bound": bound, "detectable": detectable, "smallest_p": float(smallest_p),
        _EITHER: either_direction,
    }  # fmt: skip


def untested(row: Row) -> Row:
    """Turn a test row into an estimate, for data that violate the assumptions of the test; return other rows unchanged."""
    if row["role"] != "test":
        return row
    return row | dict.fromkeys(_OF_TESTS) | {"role": "estimate"}


_EITHER = "either_direction"  # of rows that are not yet in a table
_OF_TESTS = ("null_value", "p_value", "family", "p_adjusted", "upper_bound", "bound", "detectable", "smallest_p", _EITHER)


def settle(
    rows: Iterable[Row], *, alpha: float, adjust: Mapping[str, str] | None = None, headlines: Sequence[str] = ()
) -> list[Row]:
    """Adjust p-values within families, then over the headline families, and give the tests their verdicts.

    Args:
        rows: rows returned by `estimate`, `diagnostic` and `tested`.
        alpha: significance level of the headline families together, and of every other family.
        adjust: adjustment method by family, "holm" (the default) or "benjamini-hochberg".
        headlines: the audit's headline families; without any, every test has a verdict.
    """
    settled = [dict(row) for row in rows]
    families: dict[str, list[Row]] = {}
    for row in settled:
        if row["role"] == "test":
            families.setdefault(row["family"], []).append(row)
    for name, members in families.items():
        method = ADJUSTMENTS[(adjust or {}).get(name, "holm")]
        open_ = [row for row in members if row["p_adjusted"] is None]
        for row, p in zip(open_, method([row["p_value"] for row in open_]), strict=True):
            row["p_adjusted"] = float(p)
    joined = [members for name, members in families.items() if name in headlines]
    over_families = holm_over_families([[row["p_adjusted"] for row in members] for members in joined])
    for members, p_values in zip(joined, over_families, strict=True):
        for row, p in zip(members, p_values.tolist(), strict=True):
            row["p_adjusted"] = p
    return judged(settled, alpha=alpha, headlines=headlines)


def judged(rows: Sequence[Row], *, alpha: float, headlines: Sequence[str] = ()) -> list[Row]:
    """Give adjusted tests their verdicts; outside headline families only in a run that shows memory.

    Args:
        rows: rows with p_adjusted.
        alpha, headlines: as for `settle`.
    """
    tests = [row for row in rows if row["role"] == "test"]
    for row in tests:
        row["alpha"], row["verdict"] = alpha, _verdict(row, alpha)
    if headlines and word_of(rows, headlines) != SHOWN:
        for row in tests:
            if row["family"] not in headlines:
                row["verdict"] = None
    return list(rows)


def word_of(rows: Sequence[Mapping[str, Any]], headlines: Sequence[str], *, refuting: Sequence[str] = ()) -> Word:
    """Return the word of a run: a function of the verdicts in its headline families.

    Args:
        rows: settled rows.
        headlines: the audit's headline families.
        refuting: headline families whose tests can refute a claim of the owner's, but confirm nothing; they do not stand in
            the way of a bound.

    Returns:
        shown if any headline test is shown; bounded if all of them are bounded; inconclusive otherwise; descriptive without
        a headline test.
    """
    heads = [row for row in rows if row["role"] == "test" and row["family"] in headlines]
    words = [row["verdict"] for row in heads if row["verdict"] == SHOWN or row["family"] not in refuting]
    if SHOWN in words:
        return SHOWN
    if not heads:
        return DESCRIPTIVE
    return BOUNDED if words and set(words) == {BOUNDED} else INCONCLUSIVE


def families_of(rows: Iterable[Mapping[str, Any]], headlines: Sequence[str]) -> int:
    """Return the number of headline families that are tested, which share one alpha; at least 1."""
    return max(1, len({row["family"] for row in rows if row["role"] == "test" and row["family"] in headlines}))


def cannot_reject(row: Mapping[str, Any], families: int = 1) -> bool:
    """Return whether a row is a test that could not have been significant, whatever the data.

    Args:
        row: settled row.
        families: number of families that share its level.
    """
    return row["role"] == "test" and row["smallest_p"] is not None and row["smallest_p"] * families > row["alpha"]


def summary_table(rows: Sequence[Row], verdict: Verdict) -> pa.Table:
    """Return settled rows as a table of schema tables.SUMMARY, with the verdict on the first row.

    Args:
        rows: settled rows, the headline first.
        verdict: verdict of the run.
    """
    first = {**rows[0], "sentence": verdict.sentence, "explanation": verdict.explanation, "conclusion": verdict.word}
    return pa.Table.from_pylist([first, *rows[1:]], schema=SUMMARY.arrow)


def verdict_of(rows: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the verdict recorded in the first row of a summary."""
    first = rows[0]
    return Verdict(first["conclusion"], first["sentence"], first["explanation"])


def with_params(summary: pa.Table) -> list[Row]:
    """Return the rows of a summary with their params as mappings."""
    return [{**row, "params": json.loads(row["params"])} for row in summary.to_pylist()]


def _row(metric: str, params: Mapping[str, Any], value: float, n: int) -> Row:
    empty: Row = dict.fromkeys(SUMMARY.arrow.names)
    return empty | {"metric": metric, "params": json.dumps(dict(params), sort_keys=True), "value": float(value), "n": int(n)}


def _interval(value: float, interval: Interval | None) -> Row:
    """Return the columns of an interval, widened where rounding would leave the value outside."""
    if interval is None:
        return {}
    high = None if interval.high is None else float(max(interval.high, float(value)))
    return {"ci_low": float(min(interval.low, float(value))), "ci_high": high, "interval": interval.over}


def _verdict(row: Mapping[str, Any], alpha: float) -> str:
    if row["p_adjusted"] <= alpha and (row.get(_EITHER) or row["value"] > row["null_value"]):
        return SHOWN
    bounded = row["bound"] is not None and row["upper_bound"] is not None and row["upper_bound"] < row["bound"]
    return BOUNDED if bounded else INCONCLUSIVE
