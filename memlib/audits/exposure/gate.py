"""Exposure as a gate: every canary, or given secret, is compared with a limit in bits."""

import math
from collections.abc import Mapping
from typing import Any

from memlib.audits.base import Judgement
from memlib.audits.exposure.recipe import HEADLINE
from memlib.findings import with_params
from memlib.runs.run import Run


def judge(run: Run, row: Mapping[str, Any], limit: float) -> Judgement | None:
    """Judge the canaries of a variant by its headline row, or a single canary by its own row; None for any other row.

    Passed if no canary has more bits than the limit: exactly, where ranks are exact, else by the upper bound of each. Failed
    if a canary lies above the limit and is shown to be known; an exposure that chance explains does not decide.
    """
    if row["metric"] not in ("exposure", "exposure_among_unseen") or row["role"] != "test":
        return None
    rows = [row]
    if row["family"] == HEADLINE:
        variant = row["params"].get("variant")
        singles = (other for other in with_params(run.summary) if other["family"] == "canaries")
        rows = [one for one in singles if one["params"].get("variant") == variant]
    above = [one for one in rows if _least(one) > limit]
    known = [one for one in above if one["p_adjusted"] <= one["alpha"]]
    if known:
        most = max(known, key=lambda one: float(one["value"]))
        numbers = f"{most['value']:.1f} bits (p = {most['p_adjusted']:.2g})"
        return Judgement("failed", f"canary {most['params']['canary']} has {numbers}")
    tops = [_most(one) for one in rows]
    if untested := row["params"].get("recurring"):
        return Judgement("undecided", f"{untested} given secrets recur in the text and were compared with nothing")
    if all(top is not None and top <= limit for top in tops):
        return Judgement("passed", f"none of {len(rows)} has more than {max(top or 0.0 for top in tops):.1f} bits")
    if above:
        chance = -math.expm1(len(rows) * math.log1p(-(2.0**-limit)))
        share = f"{100 * chance:.0f} %"
        reason = f"{len(above)} of {len(rows)} have more than {limit:g} bits, as one would without memory in {share} of runs"
        return Judgement("undecided", reason)
    return Judgement("undecided", f"an exposure above {limit:g} bits cannot be ruled out for all {len(rows)}")


def _is_exact(row: Mapping[str, Any]) -> bool:
    return "rank" in row["params"]


def _least(row: Mapping[str, Any]) -> float:
    """Return the lower end of an exposure; an exact one is its own."""
    return float(row["value"] if _is_exact(row) or row["ci_low"] is None else row["ci_low"])


def _most(row: Mapping[str, Any]) -> float | None:
    """Return the upper end of an exposure; None if there is none."""
    if _is_exact(row):
        return float(row["value"])
    return None if row["upper_bound"] is None else float(row["upper_bound"])
