"""What a run says: rows of tests, estimates and diagnostics, their families, and one verdict in plain words.

A test compares its statistic with a null; its p-value is adjusted within its family, and it alone has a verdict:

    shown         p_adjusted is at most alpha
    bounded       not shown, and the 95 % upper bound lies below a bound that the recipe has fixed
    inconclusive  neither: what such a test would have found with a power of 80 % is in `detectable`

An estimate has an interval over something that was sampled. Everything else is a diagnostic.
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
    """A 95 % interval, and what was sampled.

    Attributes:
        low: its lower end in the metric's unit.
        high: its upper end; None where only a lower bound is known.
        over: what it is over: examples, trainings, nets, canaries, references, data.
    """

    low: float
    high: float | None
    over: str


@dataclass(frozen=True)
class Verdict:
    """What a run says in plain words.

    Attributes:
        word: shown, bounded, inconclusive, or descriptive when the audit tests nothing.
        sentence: what one who reads nothing else must know.
        explanation: the numbers behind it, and what could have been missed.
    """

    word: Word
    sentence: str
    explanation: str


def estimate(metric: str, params: Mapping[str, Any], value: float, *, n: int, interval: Interval | None = None) -> Row:
    """A row with an interval, or without one where nothing was sampled often enough."""
    row = _row(metric, params, value, n) | {"role": "estimate"}
    return row | _interval(value, interval)


def diagnostic(metric: str, params: Mapping[str, Any], value: float, *, n: int, interval: Interval | None = None) -> Row:
    """A row that says how the models or the data are; it has no verdict."""
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
    """A row of a test; `settle` adds p_adjusted, unless it is given, and the verdict.

    Args:
        metric, params, value, n: as for an estimate.
        p_value: under the null.
        family: the tests that it is adjusted with.
        null_value: the statistic's value under the null.
        interval: of the estimate; it has no part in the verdict.
        p_adjusted: where the family is adjusted jointly (max-T).
        upper_bound: one-sided 95 % upper bound of the value.
        bound: fixed by the recipe; below it counts as bounded.
        detectable: what would have been found with a power of 80 %; None when nothing could be.
        smallest_p: no data of this size can give a smaller p-value.
    """
    row = _row(metric, params, value, n) | {"role": "test"} | _interval(value, interval)
    return row | {
        "null_value": float(null_value), "p_value": float(p_value), "family": family, "p_adjusted": p_adjusted,
        "upper_bound": upper_bound, "bound": bound, "detectable": detectable, "smallest_p": float(smallest_p),
    }  # fmt: skip


def untested(row: Row) -> Row:
    """The estimate that a test's row holds, where what its null rests on is not given; other rows as they are."""
    if row["role"] != "test":
        return row
    return row | dict.fromkeys(_OF_TESTS) | {"role": "estimate"}


_OF_TESTS = ("null_value", "p_value", "family", "p_adjusted", "upper_bound", "bound", "detectable", "smallest_p")


def settle(rows: Iterable[Row], *, alpha: float, adjust: Mapping[str, str] | None = None) -> list[Row]:
    """Adjust p-values within families and give each test its verdict.

    Args:
        rows: of estimate, diagnostic and tested.
        alpha: level of every family.
        adjust: "holm" (the default) or "benjamini-hochberg" by family.
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
    """Whether a test could not have been significant, whatever the data."""
    return row["role"] == "test" and row["smallest_p"] is not None and row["smallest_p"] > row["alpha"]


def summary_table(rows: Sequence[Row], verdict: Verdict) -> pa.Table:
    """tables.SUMMARY of settled rows; the verdict stands on the first row.

    Args:
        rows: the headline first.
        verdict: of the run.
    """
    first = {**rows[0], "sentence": verdict.sentence, "explanation": verdict.explanation, "conclusion": verdict.word}
    return pa.Table.from_pylist([first, *rows[1:]], schema=SUMMARY.arrow)


def verdict_of(rows: Sequence[Mapping[str, Any]]) -> Verdict:
    """The verdict that a summary holds."""
    first = rows[0]
    return Verdict(first["conclusion"], first["sentence"], first["explanation"])


def with_params(summary: pa.Table) -> list[Row]:
    """The rows of a summary with their params as mappings."""
    return [{**row, "params": json.loads(row["params"])} for row in summary.to_pylist()]


def _row(metric: str, params: Mapping[str, Any], value: float, n: int) -> Row:
    empty: Row = dict.fromkeys(SUMMARY.arrow.names)
    return empty | {"metric": metric, "params": json.dumps(dict(params), sort_keys=True), "value": float(value), "n": int(n)}


def _interval(value: float, interval: Interval | None) -> Row:
    """The columns of an interval, whose ends always enclose the value that they belong to, rounding included."""
    if interval is None:
        return {}
    high = None if interval.high is None else float(max(interval.high, float(value)))
    return {"ci_low": float(min(interval.low, float(value))), "ci_high": high, "interval": interval.over}


def _verdict(row: Mapping[str, Any], alpha: float) -> str:
    if row["p_adjusted"] <= alpha:
        return SHOWN
    bounded = row["bound"] is not None and row["upper_bound"] is not None and row["upper_bound"] < row["bound"]
    return BOUNDED if bounded else INCONCLUSIVE
