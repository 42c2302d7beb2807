"""The comparison that a sweep publishes, made from the manifests and scores of its cells alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from memlib.audits import AUDITS
from memlib.audits.base import Cell
from memlib.audits.sweep.recipe import Recipe
from memlib.audits.sweep.report import build_page
from memlib.audits.sweep.scores import Outcome, score, summarize, verdict
from memlib.audits.sweep.trends import Trend, trends
from memlib.findings import Row, Verdict
from memlib.pipeline.tables import Tables
from memlib.report.page import Page
from memlib.store import Ref, Store

MOST_COMPARED = 24  # cells of one audit whose pairs are compared


@dataclass(frozen=True)
class Comparison:
    """The comparison of a sweep's cells.

    Attributes:
        outcomes: outcome of each cell.
        pairs: rows that compare two cells each, by audit.
        along: trends along numeric keys.
    """

    outcomes: Sequence[Outcome]
    pairs: Mapping[str, Sequence[Row]]
    along: Sequence[Trend]

    @cached_property
    def verdict(self) -> Verdict:
        """The sweep's verdict."""
        return verdict(self.outcomes)

    @cached_property
    def table(self) -> pa.Table:
        """Findings, comparisons and trends (tables.SWEEP)."""
        return score(self.outcomes, self.pairs, [trend.row for trend in self.along])

    @cached_property
    def findings(self) -> list[Row]:
        """The findings that the sweep's manifest repeats."""
        return summarize(self.outcomes)

    def page(self, recipe: Recipe, run: str, folder: Path) -> Page:
        """Return the sweep's page, and save its figures to a folder."""
        columns = {audit.field: audit.columns for audit in AUDITS.values()}
        return build_page(recipe, run, self.outcomes, folder, self.pairs, self.along, columns)


def compare(store: Store, outcomes: Sequence[Outcome]) -> Comparison:
    """Compare the cells of a sweep.

    Args:
        store: store of the cells' runs.
        outcomes: outcome of each cell.
    """
    return Comparison(outcomes, _pairs(store, outcomes), trends(outcomes))


def _pairs(store: Store, outcomes: Sequence[Outcome]) -> dict[str, list[Row]]:
    """Return comparisons of each pair of comparable cells of one audit; cells with the same scores count once."""
    rows: dict[str, list[Row]] = {}
    for audit in AUDITS.values():
        if audit.compare is None:
            continue
        named_runs = [(o.cell, o.run) for o in outcomes if o.run is not None and o.audit == audit.field]
        runs = {run.artifacts["scores"]: (name, run) for name, run in reversed(named_runs)}
        if 1 < len(runs) <= MOST_COMPARED:
            tables = {scores: next(Tables(store, Ref.parse(scores)).parts("units")) for scores in runs}
            cells = [Cell(name, run, tables[scores]) for scores, (name, run) in reversed(runs.items())]
            rows[audit.field] = audit.compare(cells)
    return rows


def text_of(page: bytes) -> bytes:
    """Return a rendered page without its figures and imprint: what depends on the findings alone."""
    return _APART.sub(b"", page)


_APART = re.compile(rb'<svg.*?</svg>|<footer>.*?</footer>|<div class="run">.*?</div>|<style>.*?</style>', re.DOTALL)
