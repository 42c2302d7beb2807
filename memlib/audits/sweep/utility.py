"""Utility beside memorization: does a cell memorize less because its models are worse, or at equal utility?

Meehan 2023 (Figs. 8 and 14) calls a setting a mitigation if memorization falls while the accuracy of a linear probe stays the
same. Two utilities are equal here if the interval of their difference lies within a margin fixed by the recipe: the failure
to find a difference is no equality.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import scipy

from memlib.audits import AUDITS, audit_of
from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.trends import SHARED_MODELS, Trend
from memlib.findings import SHOWN, Finding, Interval, estimate
from memlib.report.format import percent

CHANGE, NORMAL = "trend in utility", float(scipy.stats.norm.ppf(0.975))


def utilities(outcomes: Sequence[Outcome]) -> dict[str, Finding]:
    """Return the utility of each cell in which it was measured, with its interval."""
    done = {o.cell: (AUDITS[audit_of(o.run.audit)], o.findings) for o in outcomes if o.run is not None}
    found = {cell: audit.utility(findings) for cell, (audit, findings) in done.items()}
    return {cell: row for cell, row in found.items() if row is not None}


def change_along(trend: Trend, known: Mapping[str, Finding], *, margin: float) -> Finding | None:
    """Return the rise of utility from the first to the last value of a key, by a straight line over the values' ranks.

    The interval is the wider one of two: Student's, from the cells' distances to the line, which covers training runs and any
    curvature; and that of the images alone, from the cells' own intervals, as if each cell had images of its own.

    Args:
        trend: memorization along the key.
        known: utility of each cell.
        margin: difference within which utilities are equal.

    Returns:
        the change, with the margin as params.equal_within; None if fewer than two cells of a stratum have a utility.
    """
    strata = [[known[cell] for _, cell, _ in points if cell in known] for points in trend.strata]
    strata = [rows for rows in strata if len(rows) > 1]
    if not strata:
        return None
    ranks = np.concatenate([np.arange(len(rows)) - (len(rows) - 1) / 2 for rows in strata])
    centred = np.concatenate([_values(rows) - _values(rows).mean() for rows in strata])
    leverage = float(ranks @ ranks)
    slope = float(ranks @ centred) / leverage
    errors = np.array([_half(row) / NORMAL for rows in strata for row in rows])
    half = NORMAL * math.sqrt(float(np.square(ranks * errors).sum())) / leverage
    freedom, over = len(ranks) - len(strata) - 1, "examples"
    if freedom > 0 and trend.row.params.get("not_tested") != SHARED_MODELS:
        spread = math.sqrt(float(np.square(centred - slope * ranks).sum()) / freedom / leverage)
        half, over = max(half, float(scipy.stats.t.ppf(0.975, freedom)) * spread), "examples and trainings"
    steps = max(map(len, strata)) - 1
    value, half = slope * steps, half * steps
    params = {name: trend.row.params[name] for name in ("audit", "along", "from", "to")}
    params |= {"cells": len(ranks), "equal_within": margin}
    interval = Interval(max(-1.0, value - half), min(1.0, value + half), over)
    return estimate(CHANGE, params, value, n=len(ranks), interval=interval)


def changes_along(along: Sequence[Trend], known: Mapping[str, Finding], *, margin: float) -> dict[tuple[str, str], Finding]:
    """Return the change of utility of every trend for which it was measured, by audit and key."""
    found = {(trend.audit, trend.key): change_along(trend, known, margin=margin) for trend in along}
    return {which: change for which, change in found.items() if change is not None}


def remarks_on(along: Sequence[Trend], changes: Mapping[tuple[str, str], Finding]) -> list[str]:
    """Return a sentence on memorization and utility along each key for which both are known."""
    both = [(trend, changes[trend.audit, trend.key]) for trend in along if (trend.audit, trend.key) in changes]
    return [f"Along {trend.key}: {in_words(trend, change)}" for trend, change in both]


def difference(one: Finding, other: Finding) -> Interval:
    """Return the interval of a utility minus another, as if of different images (Newcombe 1998, method 10)."""
    ends = [(row.low or 0.0, row.value, 1.0 if row.high is None else row.high) for row in (one, other)]
    (low, value, high), (others_low, others, others_high) = ends
    down, up = math.hypot(value - low, others_high - others), math.hypot(high - value, others - others_low)
    return Interval(value - others - down, value - others + up, "examples")


def is_equal(interval: Interval | None, margin: float) -> bool:
    """Return whether a difference is known to lie within the margin."""
    return interval is not None and interval.high is not None and -margin <= interval.low and interval.high <= margin


def in_words(trend: Trend, change: Finding) -> str:
    """Say whether memorization changes along a key at equal utility."""
    margin = change.params["equal_within"]
    shown, assumed = trend.row.verdict == SHOWN, f"within {_points(margin)}"
    moved = f"utility changes by {_points(change.value)} (95 % interval {_ends(change.interval)})"
    if is_equal(change.interval, margin):
        if not shown:
            return f"From the first to the last value, {moved}: equal {assumed}. Memorization is not shown to change."
        direction = "rises" if trend.row.value > 0 else "falls"
        return f"Memorization {direction} at equal utility ({assumed}): from the first to the last value, {moved}."
    if not shown:
        return f"From the first to the last value, {moved}. Memorization is not shown to change."
    direction, low, high = "rises" if trend.row.value > 0 else "falls", change.low or 0.0, change.high or 0.0
    if low > 0 or high < 0:
        with_it = "utility rises" if low > 0 else "utility falls"
        return f"Memorization {direction}, and {with_it}: from the first to the last value, {moved}."
    return f"Memorization {direction}; whether at equal utility ({assumed}) is not decided: {moved}."


def _values(rows: Sequence[Finding]) -> np.ndarray:
    return np.array([row.value for row in rows], dtype=np.float64)


def _half(row: Finding) -> float:
    """Return the longer side of a utility's interval."""
    assert row.interval is not None, "a utility has an interval"
    return max(row.value - row.interval.low, (1.0 if row.interval.high is None else row.interval.high) - row.value)


def _points(value: float) -> str:
    return percent(value).replace(" %", " points")


def _ends(interval: Interval | None) -> str:
    assert interval is not None
    assert interval.high is not None
    return f"{_points(interval.low)} to {_points(interval.high)}"
