"""Findings of a dossier: the headlines of its audits, mitigations compared, and the records that several audits name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits import AUDITS, audit_of
from memlib.audits.dossier.listed import Listed
from memlib.audits.dossier.recipe import LEVEL
from memlib.findings import Finding, diagnostic, estimate, settle
from memlib.stats.pareto import pareto_probabilities

PARETO = "pareto_probability"


def summarize(audits: Sequence[Listed], together: Sequence[Finding], risk: pa.Table) -> list[Finding]:
    """Return the findings of the dossier; headlines keep the p-values and verdicts of their runs.

    Args:
        together: tests of the records that several scores name.
        risk: tables.RISK.
    """
    shown = sum(one.is_shown and not one.doubts for one in audits)
    first = diagnostic("audits_shown", {}, float(shown), n=sum(one.p_value is not None for one in audits))
    heads = [replace(head := one.headline, params={**_names(one), **head.params}) for one in audits]
    return [first, *heads, *_mitigations(audits), *settle(together, alpha=LEVEL), *_counts(risk)]


def _mitigations(audits: Sequence[Listed]) -> list[Finding]:
    """Return the probability of each run to be on the Pareto front of memory and utility, where runs ask the same."""
    rows = []
    for metric in dict.fromkeys((one.run.audit, one.headline.metric) for one in audits):
        mine = [(one, used) for one in audits if (one.run.audit, one.headline.metric) == metric and (used := _used(one))]
        if len(mine) < 2:
            continue
        memory = [(one.headline.value, _half(one.headline)) for one, _ in mine]
        utility = [(used.value, _half(used)) for _, used in mine]
        for (one, used), probability in zip(mine, pareto_probabilities(memory, utility).tolist(), strict=True):
            params = {**_names(one), "memory": one.headline.value, "utility": used.value}
            rows.append(estimate(PARETO, params, probability, n=len(mine)))
    return rows


def _names(one: Listed) -> dict[str, str]:
    return {"run": one.run.run, "title": one.run.title}


def _used(one: Listed) -> Finding | None:
    """Return the utility of a run, if that and its headline have intervals."""
    found = AUDITS[audit_of(one.run.audit)].utility(one.findings)
    has_intervals = found is not None and found.high is not None and one.headline.high is not None
    return found if has_intervals else None


def _half(row: Finding) -> float:
    """Return half the width of an interval."""
    assert row.low is not None
    assert row.high is not None
    return (row.high - row.low) / 2


def _counts(risk: pa.Table) -> list[Finding]:
    """Return how many records any audit names, and how many several audits name, among those that several examined."""
    several = risk.filter(pc.greater(risk["examined"], 1))
    if not several.num_rows:
        return []
    counts = {"any audit": 1, "at least two audits": 2}
    return [
        diagnostic("named_most_exposed", {"by": by}, float(pc.sum(pc.greater_equal(several["named"], least)).as_py()),
                   n=several.num_rows)
        for by, least in counts.items()
    ]  # fmt: skip
