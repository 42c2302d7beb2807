"""The findings of all cells of a sweep side by side, and the sweep's verdict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from memlib.audits.outcomes import Outcome, adjusted, scores_of
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Finding, Verdict, diagnostic
from memlib.sanitize import count_of
from memlib.tables import FLOAT, SUMMARY, TEXT, Column, Table

SWEEP = Table(
    name="sweep",
    version=3,
    meaning="The findings of all cells of a sweep, and their utility where it was measured; a failed cell has one row "
    "without a metric. Comparisons of two cells of the same audit on the same examples, and trends over all cells along a "
    "numeric key, have one row each.",
    columns=(
        Column("cell", TEXT, "", "name of the cell; first name - second name for a comparison; along KEY for a trend"),
        Column("cell_audit", TEXT, "", "audit of the cell"),
        Column("cell_run", TEXT, "", "run of the cell, whose own tables hold the details; null if it failed"),
        Column("changes", TEXT, "JSON", "changes of the cell to its recipe, by dotted key"),
        Column("state", TEXT, "", "completed or failed; compared for comparisons and trends"),
        Column("problem", TEXT, "", "reason for the failure"),
        Column("p_adjusted_sweep", FLOAT, "probability", "p-value of the cell's headline, adjusted over all cells (Holm)"),
        *SUMMARY.columns,
    ),
    keys=("cell", "metric", "params"),
)


def score(
    outcomes: Sequence[Outcome],
    compared: Mapping[str, Sequence[Finding]] = MappingProxyType({}),
    along: Sequence[Finding] = (),
    useful: Mapping[str, Finding] = MappingProxyType({}),
) -> pa.Table:
    """Return tables.SWEEP: every finding of every cell; a failed cell has one row without a metric.

    Args:
        compared: findings that compare two cells each, by audit.
        along: trends along keys.
        useful: utility of each cell in which it was measured.
    """
    rows = []
    by_cell = adjusted(outcomes)
    for outcome in outcomes:
        row: dict[str, Any] = {
            "cell": outcome.cell,
            "cell_audit": outcome.audit,
            "changes": json.dumps(outcome.changes, sort_keys=True, default=str),
        }
        if outcome.run is None:
            rows.append({**row, "state": "failed", "problem": outcome.problem})
            continue
        for finding, recorded in zip(outcome.findings, outcome.run.findings, strict=True):
            p = by_cell.get(outcome.cell) if finding is outcome.headline else None
            values = {"state": "completed", "cell_run": outcome.run.run, "p_adjusted_sweep": p, **recorded.model_dump()}
            rows.append(row | values)
        if outcome.cell in useful:
            rows.append({**row, "state": "completed", "cell_run": outcome.run.run, **useful[outcome.cell].row()})
    for audit, pairs in compared.items():
        rows += [_compared(f"{pair.params['cell']} - {pair.params['other']}", audit, pair) for pair in pairs]
    rows += [_compared(f"along {trend.params['along']}", trend.params["audit"], trend) for trend in along]
    return pa.Table.from_pylist(rows, schema=SWEEP.arrow)


def _compared(cells: str, audit: str, finding: Finding) -> dict[str, Any]:
    return {"cell": cells, "cell_audit": audit, "changes": "{}", "state": "compared", **finding.row()}


def _differences(compared: Mapping[str, Sequence[Finding]]) -> str:
    """Say whether any cell was shown to differ from another."""
    tests = [row for rows in compared.values() for row in rows if row.is_test]
    more = [f"{one} over {other}" for one, other in (_ordered(row) for row in tests if row.verdict == SHOWN)]
    if not tests:
        return "No difference between two cells was tested, so none is shown to be better than another."
    if not more:
        return (
            f"None of {len(tests)} tested differences between two cells is shown: no cell is shown to be better than another."
        )
    named = f"{', '.join(more[:3])}{', ...' if len(more) > 3 else ''}"
    return f"{len(more)} of {len(tests)} tested differences between two cells are shown (more memorization: {named})."


def _ordered(row: Finding) -> tuple[str, str]:
    """Return the cell that memorizes more and the other one, by a difference between two cells."""
    names = (row.params["cell"], row.params["other"])
    return names if row.value > 0 else names[::-1]


def _headlines(outcomes: Sequence[Outcome]) -> dict[str, Finding]:
    """Return the headline of every completed cell."""
    return {outcome.cell: outcome.headline for outcome in outcomes if outcome.run is not None}


def summarize(outcomes: Sequence[Outcome], useful: Mapping[str, Finding] = MappingProxyType({})) -> list[Finding]:
    """Return the number of completed cells, the headline of each, and its utility where that was measured.

    A headline keeps the verdict and p-values of its run; `p_adjusted_sweep` in the sweep's table is adjusted over all cells.
    """
    done = _headlines(outcomes)
    completed = diagnostic("cells_completed", {}, float(len(done)), n=len(outcomes))
    rows = [(cell, first) for cell, first in done.items()] + [(cell, useful[cell]) for cell in done if cell in useful]
    return [completed, *(replace(row, params={"cell": cell, **row.params}) for cell, row in rows)]


def verdict(
    outcomes: Sequence[Outcome],
    compared: Mapping[str, Sequence[Finding]] = MappingProxyType({}),
    *,
    remarks: Sequence[str] = (),
) -> Verdict:
    """Return the verdict of all cells together, adjusted for their number, and whether cells were shown to differ.

    Args:
        compared: findings that compare two cells each, by audit.
        remarks: sentences on memorization and utility along keys, for the explanation.
    """
    heads, by_cell = _headlines(outcomes), adjusted(outcomes)
    words = {o.cell: o.run.verdict.word for o in outcomes if o.run is not None and o.run.verdict is not None}
    broken = [outcome.cell for outcome in outcomes if outcome.run is None]
    missing = "".join(f" {remark}" for remark in remarks)
    missing += f" {len(broken)} of {len(outcomes)} cells failed: {', '.join(broken)}." if broken else ""
    if not by_cell:
        text = f"{_differences(compared)}{missing}"
        return Verdict(DESCRIPTIVE, f"{len(heads)} audits were compared; none of them includes a test.", text)
    untested = sorted(set(heads) - set(by_cell))
    without = f" Without a test, and without a bound: {', '.join(untested)}." if untested else ""
    audits = list({scores_of(o.run): o.cell for o in reversed(outcomes) if o.run is not None and o.cell in by_cell}.values())
    alone = [cell for cell in audits if words.get(cell) == SHOWN]
    shown = [cell for cell in alone if by_cell[cell] <= (heads[cell].alpha or 0.0)]
    text = (
        f"Shown: {', '.join(shown) or 'none'}. Without the adjustment: {len(alone)}, as stated on the cells' own pages, "
        f"which also say how often the same data were looked at. {_differences(compared)}"
    )
    if not shown and not broken and all(words.get(cell) == BOUNDED for cell in audits):
        sentence = f"Each of {count_of(len(audits), 'audit')} with a test bounds memorization; none shows it."
        bounds = "The bounds are stated on the cells' own pages, each at 95 % by itself."
        return Verdict(BOUNDED, sentence, f"{text} {bounds}{without}{missing}")
    sentence = f"{len(shown)} of {len(audits)} audits show memorization, or use of data, adjusted for their number."
    unsaid = "" if shown else " This does not rule out memorization: each cell's page states what its audit could have found."
    return Verdict(SHOWN if shown else INCONCLUSIVE, sentence, f"{text}{unsaid}{without}{missing}")
