"""Answers to other parts of memlib about an exposure audit: limits in bits for gates, and the ranking of canaries.

The face of the audit names them; they load neither scipy nor torch, which are slow to load.
"""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from memlib.audits.base import Judgement
from memlib.audits.exposure.recipe import CANARIES, HEADLINE
from memlib.audits.ranking import CANARY, Ranking
from memlib.findings import DESCRIPTIVE, SHOWN, Finding, Findings
from memlib.pipeline.tables import Tables
from memlib.report.format import percent, say_p
from memlib.runs.run import Run


def largest(bounds: Sequence[float | None]) -> float | None:
    """Return the largest of some bounds; None if any of them is unknown."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def judge(run: Run, row: Finding, limit: float) -> Judgement | None:
    """Judge the canaries of a variant by its headline row, or a single canary by its own row; None for any other row.

    Passed if no canary has more bits than the limit: exactly, where ranks are exact, else by the upper bound of each. Failed
    if a canary lies above the limit and is shown to be known; an exposure that chance explains does not decide.
    """
    if row.metric not in ("exposure", "exposure_among_unseen") or not row.is_test:
        return None
    rows = Findings([row])
    if row.family == HEADLINE:
        rows = Findings.read(run.summary).tests(CANARIES).all(variant=row.params.get("variant"))
    above = [one for one in rows if _least(one) > limit]
    known = [one for one in above if one.verdict == SHOWN]
    if known:
        most = max(known, key=lambda one: one.value)
        numbers = f"{most.value:.1f} bits ({say_p(most.p_adjusted)})"
        return Judgement("failed", f"canary {most.params['canary']} has {numbers}")
    if untested := row.params.get("recurring"):
        return Judgement("undecided", f"{untested} given secrets recur in the text and could not be tested")
    top = largest([one.value if _is_exact(one) else one.upper_bound for one in rows])
    if top is not None and top <= limit:
        return Judgement("passed", f"none of {len(rows)} has more than {top:.1f} bits")
    if above:
        share = percent(-math.expm1(len(rows) * math.log1p(-(2.0**-limit))), 0)
        reason = f"{len(above)} of {len(rows)} have more than {limit:g} bits, which happens without memory in {share} of runs"
        return Judgement("undecided", reason)
    return Judgement("undecided", f"an exposure above {limit:g} bits cannot be ruled out for all {len(rows)}")


def _is_exact(row: Finding) -> bool:
    return "rank" in row.params


def _least(row: Finding) -> float:
    """Return the lower end of an exposure's interval; the exposure itself if it is exact or has no interval."""
    return row.value if _is_exact(row) or row.low is None else row.low


EXACT = ("pruned", "enumerated")  # methods of tables.UNITS


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the canaries in the last model of the first variant, with their p-values; they are named by number."""
    units = tables["units"]
    first = units.filter((pc.field("variant") == units["variant"][0]) & (pc.field("seed") == units["seed"][0]))
    last = first.filter(pc.field("epoch") == pc.max(first["epoch"]))
    members = pc.greater(last["insertions"], 0).to_numpy(zero_copy_only=False)
    is_tested = findings.verdict.word != DESCRIPTIVE and last["p_value"].null_count < last.num_rows
    is_exact = all(method in EXACT for method in pc.unique(last["method"]).to_pylist())
    smallest = min((row.smallest_p for row in findings.tests(CANARIES) if row.smallest_p), default=1 / (1 + (~members).sum()))
    return [
        Ranking(
            name="exposure",
            kind=CANARY,
            ids=list(map(str, last["canary"].to_pylist())),
            scores=np.asarray(last["exposure"].to_numpy(), dtype=np.float64),
            members=members,
            p_values=np.asarray(last["p_value"].to_numpy(), dtype=np.float64) if is_tested else None,
            references=None if is_exact else round(1 / smallest) - 1,
        )
    ]
