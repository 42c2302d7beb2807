"""Findings of a run: rows of tests, estimates and diagnostics, their families, and one verdict in plain words.

A test compares its statistic with a null. Its p-value is adjusted within its family, and only tests have a verdict:

    shown         p_adjusted is at most alpha
    bounded       not shown, and the 95 % upper bound lies below a bound fixed by the recipe
    inconclusive  neither; `detectable` is the effect that the test would have detected with a power of 80 %

An estimate has an interval that accounts for the sampling of examples, models or other units. All other rows are diagnostics.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from memlib.stats.multiplicity import ADJUSTMENTS
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
        over: the sampled units: examples, trainings, nets, canaries, references, or data.
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
    """
    row = _row(metric, params, value, n) | {"role": "test"} | _interval(value, interval)
    return row | {
        "null_value": float(null_value), "p_value": float(p_value), "family": family, "p_adjusted": p_adjusted,
        "upper_bound": upper_bound, "bound": bound, "detectable": detectable, "smallest_p": float(smallest_p),
    }  # fmt: skip


def untested(row: Row) -> Row:
    """Turn a test row into an estimate, for data that violate the assumptions of the test; return other rows unchanged."""
    if row["role"] != "test":
        return row
    return row | dict.fromkeys(_OF_TESTS) | {"role": "estimate"}


_OF_TESTS = ("null_value", "p_value", "family", "p_adjusted", "upper_bound", "bound", "detectable", "smallest_p")


def settle(rows: Iterable[Row], *, alpha: float, adjust: Mapping[str, str] | None = None) -> list[Row]:
    """Adjust p-values within families and give each test its verdict.

    Args:
        rows: rows returned by `estimate`, `diagnostic` and `tested`.
        alpha: significance level of every family.
        adjust: adjustment method by family, "holm" (the default) or "benjamini-hochberg".
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
        for row in members:
            row["alpha"] = alpha
            row["verdict"] = _verdict(row, alpha)
    return settled


def cannot_reject(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a test that could not have been significant, whatever the data."""
    return row["role"] == "test" and row["smallest_p"] is not None and row["smallest_p"] > row["alpha"]


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
    if row["p_adjusted"] <= alpha:
        return SHOWN
    bounded = row["bound"] is not None and row["upper_bound"] is not None and row["upper_bound"] < row["bound"]
    return BOUNDED if bounded else INCONCLUSIVE
