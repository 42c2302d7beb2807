"""Findings on how well scores tell members from others: AUC, true alarms at controlled rates, members above all others."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.audits.membership.rankings import Scores, point_at
from memlib.audits.membership.recipe import MET, Config
from memlib.findings import Finding, Interval, estimate
from memlib.stats.inference import exact_interval
from memlib.stats.operating import above_all, auc, innocent_limit, interval_within


def area(scores: Scores, member: NDArray[np.bool_], strata: NDArray[np.int64], noun: str) -> tuple[float, Interval]:
    """Return the AUC of pairs within strata, and its interval over independent units.

    Args:
        scores: (num_units,), higher for members.
        member: (num_units,) bool.
        strata: (num_units,).
    """
    return auc(scores, member, blocks=strata), Interval(*interval_within(scores, member, strata), noun)


def tail_bound(config: Config, num_members: int, num_nonmembers: int) -> float:
    """Return the bound of the rate of true alarms at `false_alarms[0]`; the default follows from numbers alone, in whole
    thousandths."""
    if config.tail_bound is not None:
        return config.tail_bound
    met = innocent_limit(
        num_members, num_nonmembers, config.false_alarms[0], error=config.error, tries=len(config.attacks), chance=MET
    )
    return min(1.0, (math.floor(1000 * met) + 1) / 1000)


def true_alarms(
    named: Mapping[str, Any], scores: Scores, member: NDArray[np.bool_], rates: Sequence[float], *, noun: str, of: str = ""
) -> list[Finding]:
    """Return the share of members found at each rate of false alarms that the non-members control.

    If non-members are too few for one of the rates, the share of members above all non-members comes first. The list is empty
    without members or without non-members.

    Args:
        named: parameters of each finding, such as the attack.
        scores, member, noun: as in `area`.
        of: end of the metrics' names, such as "_of_slice".
    """
    if not 0 < member.sum() < len(member):
        return []
    rows = []
    for rate in rates:
        point = point_at(scores, member, rate)
        if point is not None:
            reach, above = (int(found[~member].sum()) for found in (scores >= point.threshold, scores > point.threshold))
            ends = point.fpr_interval if reach == point.rank else exact_interval(above, point.num_nonmembers)  # with ties
            low, high = (round(end, 6) for end in ends)
            reached = {"reached_by": reach, "nonmembers": point.num_nonmembers}
            at = {**named, "false_alarms": rate, "rate_low": low, "rate_high": high, **reached}
            interval = Interval(*point.tpr_interval, noun)
            rows.append(estimate(f"true_alarms{of}", at, point.tpr, n=point.num_members, interval=interval))
    if len(rows) == len(rates):
        return rows
    top = above_all(scores, member)
    at = {**named, "nonmembers": top.num_nonmembers}
    interval = Interval(*top.tpr_interval, noun)
    return [estimate(f"above_all{of}", at, top.tpr, n=top.num_members, interval=interval), *rows]
