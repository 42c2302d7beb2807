"""Finished audits as outcomes of a run that compares or joins them, and the adjustment of their p-values over all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.base import Cell
from memlib.findings import Finding, Findings, verdict_of
from memlib.pipeline.tables import Tables
from memlib.runs.index import findings_of
from memlib.runs.ledger import trained_in
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord
from memlib.stats.multiplicity import holm
from memlib.store import Store


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell."""

    cell: str  #: name of the cell.
    audit: str  #: audit of its recipe.
    changes: Mapping[str, Any]  #: its changes to the recipe, by dotted key.
    run: RunRecord | None  #: manifest of its run; None if the cell failed.
    problem: str = ""  #: reason for the failure.

    @cached_property
    def findings(self) -> Findings:
        """The findings that the manifest of the run repeats; empty for a failed cell."""
        return Findings([] if self.run is None else Findings.of_run(self.run))

    @cached_property
    def headline(self) -> Finding:
        """The test with the smallest p-value in the headline families, else the first finding; only for completed cells."""
        assert self.run is not None
        return AUDITS[audit_of(self.run.audit)].decisive(self.findings)


def cell_of(store: Store, name: str, run: RunRecord) -> Cell:
    """Return a run as `Audit.compare` takes it, with the units of its scores.

    Raises:
        CorruptArtifact: when the store lacks the scores, or they are damaged or not those that the run pins.
    """
    return Cell(name, run, next(Tables.of_run(store, run).parts("units")))


def scored(store: Store, outcome: Outcome) -> Outcome:
    """Return an outcome whose findings and verdict are read from its scores, not from the manifest of its run."""
    if outcome.run is None:
        return outcome
    summary = Tables.of_run(store, outcome.run)["summary"]
    said = {
        "findings": [FindingRecord(**row) for row in findings_of(summary.to_pylist())],
        "verdict": VerdictRecord(**asdict(verdict_of(summary))),
    }
    return replace(outcome, run=outcome.run.model_copy(update=said))


def models_of(run: RunRecord) -> set[str]:
    """Return the addresses of the models that memlib trained for a run."""
    return trained_in([*run.computed, *run.reused])


def adjusted(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Return the p-value of every tested headline, adjusted over the cells (Holm 1979); shared scores count once."""
    tests: dict[str, float] = {}
    for outcome in outcomes:
        if outcome.run is not None and outcome.headline.is_test and outcome.headline.p_adjusted is not None:
            tests.setdefault(scores_of(outcome.run), outcome.headline.p_adjusted)
    by_scores = dict(zip(tests, holm(list(tests.values())).tolist(), strict=True))
    known = {o.cell: scores_of(o.run) for o in outcomes if o.run is not None}
    return {cell: by_scores[name] for cell, name in known.items() if name in by_scores}


def scores_of(run: RunRecord) -> str:
    """Return the id of a run's scores artifact; cells that differ only in their titles share it."""
    return run.artifacts.get("scores", run.run)
