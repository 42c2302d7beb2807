"""The comparison that a sweep publishes, made from the manifests and scores of its cells alone."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from memlib.audits import AUDITS
from memlib.audits.base import Cell
from memlib.audits.sweep.recipe import Recipe
from memlib.audits.sweep.report import compose
from memlib.audits.sweep.scores import Outcome, score, summarize, verdict
from memlib.audits.sweep.trends import Trend, trends
from memlib.findings import Finding, Verdict
from memlib.pipeline.tables import Tables
from memlib.report.imprint import signed
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
    pairs: Mapping[str, Sequence[Finding]]
    along: Sequence[Trend]

    @cached_property
    def verdict(self) -> Verdict:
        """The sweep's verdict."""
        return verdict(self.outcomes, self.pairs)

    @cached_property
    def table(self) -> pa.Table:
        """Findings, comparisons and trends (tables.SWEEP)."""
        return score(self.outcomes, self.pairs, [trend.row for trend in self.along])

    @cached_property
    def findings(self) -> list[dict[str, Any]]:
        """The rows that the sweep's manifest repeats."""
        return [finding.row() for finding in summarize(self.outcomes)]

    def page(self, recipe: Recipe, run: str, folder: Path, store: Store) -> Page:
        """Return the sweep's page, and save its figures to a folder."""
        content, audit = compose(self.outcomes, folder, self.pairs, self.along), AUDITS["sweep"]
        levels = {one.headline.alpha for one in self.outcomes if one.run is not None and one.headline.is_test}
        return signed(
            content, self.verdict, level=levels.pop() if len(levels) == 1 else None, audit=audit.name,
            question=audit.question, recipe=recipe, run=run, store=store,
        )  # fmt: skip


def compare(store: Store, outcomes: Sequence[Outcome]) -> Comparison:
    """Compare the cells of a sweep.

    Args:
        store: store of the cells' runs.
        outcomes: outcome of each cell.
    """
    return Comparison(outcomes, _pairs(store, outcomes), trends(outcomes))


def _pairs(store: Store, outcomes: Sequence[Outcome]) -> dict[str, Sequence[Finding]]:
    """Return comparisons of each pair of comparable cells of one audit; cells with the same scores count once."""
    rows: dict[str, Sequence[Finding]] = {}
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
