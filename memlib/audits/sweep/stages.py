"""Stages of a sweep: compare the findings of its cells, and draw the page that shows them side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from memlib.audits import AUDITS
from memlib.audits.last_stages import SUMMARY_FILE, PageStage, ScoresStage
from memlib.audits.outcomes import Outcome, cell_of, models_of, scored
from memlib.audits.sweep.recipe import EQUAL_UTILITY, Recipe
from memlib.audits.sweep.scores import SWEEP, score, summarize, verdict
from memlib.audits.sweep.trends import Trend, trends
from memlib.findings import Finding, Findings
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, CellRequest, Ended, Place
from memlib.pipeline.tables import Tables
from memlib.store import Attempt, Ref, Store
from memlib.tables import SUMMARY, write_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content

MOST_COMPARED = 24  # cells of one audit whose pairs are compared


def outcomes_of(cells: Mapping[str, CellRequest], ended: Ended) -> list[Outcome]:
    """Return the outcome of every cell, in the order of the cells."""
    outcomes = []
    for name, cell in cells.items():
        end = ended[name]
        run, problem = (None, end) if isinstance(end, str) else (end, "")
        outcomes.append(Outcome(name, AUDITS[cell.audit].field, cell.changes, run, problem))
    return outcomes


@dataclass(frozen=True)
class Score(ScoresStage):
    """Compare the cells of a sweep: findings side by side, differences of two cells, trends along keys."""

    declared: ClassVar[Declared] = Declared("score_sweep", 3)
    title: ClassVar[str] = "compare the cells"
    place: ClassVar[Place] = "driver"

    outcomes: Sequence[Outcome]
    store: Store
    equal_utility: float = EQUAL_UTILITY

    @property
    def spec(self) -> Mapping[str, Any]:
        """The audit, changes and run of each cell, or the reason why it failed; the margin of equal utility."""
        return {"cells": list(map(_cell, self.outcomes)), "equal_utility": self.equal_utility}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores of the cells."""
        return _scores(self.outcomes)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the tables."""
        from memlib.audits.sweep.utility import changes_along, remarks_on, utilities  # loads scipy

        outcomes = [scored(self.store, outcome) for outcome in self.outcomes]
        pairs, along = compare(self.store, outcomes)
        useful = utilities(outcomes)
        changes = changes_along(along, useful, margin=self.equal_utility)
        trends = [trend.row for trend in along] + list(changes.values())
        write_table(score(outcomes, pairs, trends, useful), SWEEP, attempt.path(f"{SWEEP.name}.parquet"))
        said = Findings(summarize(outcomes, useful)).table(verdict(outcomes, pairs, remarks=remarks_on(along, changes)))
        write_table(said, SUMMARY, attempt.path(SUMMARY_FILE))


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a sweep."""

    declared: ClassVar[Declared] = Declared("report", 5)
    title: ClassVar[str] = "report sweep"
    place: ClassVar[Place] = "driver"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    outcomes: Sequence[Outcome]

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The comparison, and the scores that it compares."""
        return {"scores": self.scores.key, "cells": _scores(self.outcomes)}

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the content of the page."""
        from memlib.audits.sweep.report import compose

        outcomes = [scored(self.scores.store, outcome) for outcome in self.outcomes]
        compared, along = compare(self.scores.store, outcomes)
        return compose(outcomes, attempt.path("figures"), compared, along, margin=self.recipe.equal_utility)


def _cell(outcome: Outcome) -> Mapping[str, Any]:
    known = {"cell": outcome.cell, "audit": outcome.audit, "changes": _plain(outcome.changes)}
    if outcome.run is None:
        return {**known, "problem": outcome.problem}
    return {**known, "run": outcome.run.run, "models": sorted(models_of(outcome.run))}


def _plain(changes: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(dict(changes), sort_keys=True, default=str))


def _scores(outcomes: Sequence[Outcome]) -> dict[str, str]:
    return {o.cell: Ref.parse(o.run.artifacts["scores"]).key for o in outcomes if o.run is not None}


def compare(store: Store, outcomes: Sequence[Outcome]) -> tuple[dict[str, Sequence[Finding]], list[Trend]]:
    """Return the differences of each pair of comparable cells by audit, and the trends along numeric keys.

    Args:
        store: store of the cells' runs.
        outcomes: outcome of each cell; cells with the same scores count once.
    """
    pairs: dict[str, Sequence[Finding]] = {}
    for audit in AUDITS.values():
        if audit.compare is None:
            continue
        named_runs = [(o.cell, o.run) for o in outcomes if o.run is not None and o.audit == audit.field]
        runs = {run.artifacts["scores"]: (name, run) for name, run in reversed(named_runs)}
        if 1 < len(runs) <= MOST_COMPARED:
            pairs[audit.field] = audit.compare([cell_of(store, name, run) for name, run in reversed(runs.values())])
    return pairs, trends(outcomes)
