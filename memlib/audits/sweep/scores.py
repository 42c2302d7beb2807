"""The findings of all cells of a sweep side by side, and the sweep's verdict."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from memlib.audits import AUDITS, audit_of
from memlib.audits.sweep.tables import SWEEP
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Row, Verdict, diagnostic
from memlib.runs.records import Finding, RunRecord
from memlib.stats.multiplicity import holm


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell.

    Attributes:
        cell: name of the cell.
        audit: audit of its recipe.
        changes: its changes to the recipe, by dotted key.
        run: manifest of its run; None if the cell failed.
        problem: reason for the failure.
    """

    cell: str
    audit: str
    changes: Mapping[str, Any]
    run: RunRecord | None
    problem: str = ""


def score(
    outcomes: Sequence[Outcome],
    compared: Mapping[str, Sequence[Row]] = MappingProxyType({}),
    along: Sequence[Row] = (),
) -> pa.Table:
    """Return tables.SWEEP: every finding of every cell; a failed cell has one row without a metric.

    Args:
        outcomes: outcomes of all cells.
        compared: rows that compare two cells each, by audit.
        along: rows of the trends along keys.
    """
    rows = []
    adjusted = _adjusted(outcomes)
    for outcome in outcomes:
        row: Row = {
            "cell": outcome.cell,
            "cell_audit": outcome.audit,
            "changes": json.dumps(outcome.changes, sort_keys=True, default=str),
        }
        if outcome.run is None:
            rows.append({**row, "state": "failed", "problem": outcome.problem})
            continue
        head = headline(outcome.run)
        for finding in outcome.run.findings:
            p = adjusted.get(outcome.cell) if finding is head else None
            values = {"state": "completed", "cell_run": outcome.run.run, "p_adjusted_sweep": p, **finding.model_dump()}
            rows.append(row | values)
    for audit, pairs in compared.items():
        rows += [{"cell": _both(pair), "cell_audit": audit, "changes": "{}", "state": "compared", **pair} for pair in pairs]
    for row in along:
        params = json.loads(row["params"])
        cell = {"cell": f"along {params['along']}", "cell_audit": params["audit"], "changes": "{}", "state": "compared"}
        rows.append({**cell, **row})
    return pa.Table.from_pylist(rows, schema=SWEEP.arrow)


def _both(pair: Row) -> str:
    params = json.loads(pair["params"])
    return f"{params['cell']} - {params['other']}"


def headline(run: RunRecord) -> Finding:
    """Return a run's main finding: the test of its headline families with the smallest p-value, else the first row."""
    families = AUDITS[audit_of(run.audit)].headlines
    tests = [row for row in run.findings if row.role == "test" and row.family in families]
    return min(tests, key=lambda row: math.inf if row.p_adjusted is None else row.p_adjusted, default=run.findings[0])


def _headlines(outcomes: Sequence[Outcome]) -> dict[str, Finding]:
    """Return the headline of every completed cell."""
    return {outcome.cell: headline(outcome.run) for outcome in outcomes if outcome.run is not None}


def _adjusted(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the p-value of every tested headline, adjusted over the cells (Holm 1979); shared scores count once."""
    tests: dict[str, float] = {}
    for outcome in outcomes:
        row = None if outcome.run is None else headline(outcome.run)
        if outcome.run is not None and row is not None and row.role == "test" and row.p_adjusted is not None:
            tests.setdefault(_scores(outcome.run), row.p_adjusted)
    by_scores = dict(zip(tests, holm(list(tests.values())).tolist(), strict=True))
    known = {o.cell: _scores(o.run) for o in outcomes if o.run is not None}
    return {cell: by_scores[name] for cell, name in known.items() if name in by_scores}


def _scores(run: RunRecord) -> str:
    """Return the id of a run's scores artifact; cells that differ only in their titles share it."""
    return run.artifacts.get("scores", run.run)


def summarize(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return the number of completed cells and the headline of each.

    A headline keeps the verdict and p-values of its run; `p_adjusted_sweep` in the sweep's table is adjusted over all cells.
    """
    done = _headlines(outcomes)
    rows = [diagnostic("cells_completed", {}, float(len(done)), n=len(outcomes))]
    for cell, first in done.items():
        params = json.dumps({"cell": cell} | json.loads(first.params), sort_keys=True)
        rows.append({**first.model_dump(), "params": params} | dict.fromkeys(("conclusion", "sentence", "explanation")))
    return rows


def verdict(outcomes: Sequence[Outcome]) -> Verdict:
    """Return the verdict of all cells together, adjusted for their number."""
    heads, adjusted = _headlines(outcomes), _adjusted(outcomes)
    words = {o.cell: o.run.verdict.word for o in outcomes if o.run is not None and o.run.verdict is not None}
    broken = [outcome.cell for outcome in outcomes if outcome.run is None]
    missing = f" {len(broken)} of {len(outcomes)} cells failed: {', '.join(broken)}." if broken else ""
    if not adjusted:
        return Verdict(DESCRIPTIVE, f"{len(heads)} audits were compared; none of them includes a test.", missing.strip())
    audits = list({_scores(o.run): o.cell for o in reversed(outcomes) if o.run is not None and o.cell in adjusted}.values())
    alone = [cell for cell in audits if words.get(cell) == SHOWN]
    shown = [cell for cell in alone if adjusted[cell] <= (heads[cell].alpha or 0.0)]
    text = (
        f"Shown: {', '.join(shown) or 'none'}. Without the adjustment: {len(alone)}, as stated on the cells' own pages, "
        "which also say how often the same data were looked at."
    )
    if not shown and not broken and all(words.get(cell) == BOUNDED for cell in audits):
        sentence = f"Each of {len(audits)} audits bounds memorization; none shows it."
        return Verdict(BOUNDED, sentence, f"{text} The bounds are stated on the cells' own pages.")
    sentence = f"{len(shown)} of {len(audits)} audits show memorization, or use of data, adjusted for their number."
    unsaid = "" if shown else " This does not rule out memorization: each cell's page states what its audit could have found."
    untested = sorted(set(heads) - set(adjusted))
    without = f" Without a test: {', '.join(untested)}." if untested else ""
    return Verdict(SHOWN if shown else INCONCLUSIVE, sentence, f"{text}{unsaid}{without}{missing}")
