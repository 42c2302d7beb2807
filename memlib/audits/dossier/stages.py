"""Stages of a dossier: join the findings of its audits, and draw the document."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from memlib.audits import AUDITS as ALL_AUDITS
from memlib.audits import audit_of
from memlib.audits.dossier.beside import Beside, contradicting
from memlib.audits.dossier.findings import summarize
from memlib.audits.dossier.listed import Failed, Listed, audits_table, listed
from memlib.audits.dossier.recipe import Recipe
from memlib.audits.dossier.risk import Ranked, at_risk, named_together
from memlib.audits.dossier.subject import models_in, persons_in, split_refs
from memlib.audits.dossier.tables import AUDITS, RISK
from memlib.audits.dossier.verdict import verdict
from memlib.audits.last_stages import SUMMARY_FILE, PageStage, ScoresStage
from memlib.audits.outcomes import Outcome, scored
from memlib.findings import Findings
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place
from memlib.pipeline.tables import Tables
from memlib.runs.index import model_name
from memlib.runs.records import RunRecord
from memlib.store import Attempt, Ref, Store
from memlib.tables import SUMMARY, write_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content

JSON_FILE = "dossier.json"


@dataclass(frozen=True)
class Joined:
    """The runs of a dossier, as they are in the store."""

    store: Store  #: the store of the runs.
    runs: Sequence[RunRecord]  #: their manifests.
    looks: int  #: number of further tests of their data.
    stale: Sequence[str]  #: ids of the runs that are too old.
    not_run: Mapping[str, str] = field(default_factory=dict)  #: the owner's reasons why audits were not run, by audit.
    failed: Sequence[Failed] = ()  #: the audits without a result.
    problems: Mapping[str, str] = field(default_factory=dict)  #: reasons for failures of the dossier's own cells, by cell.
    beside: Sequence[Beside] = ()  #: runs on the same subject that do not belong to the dossier.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The runs with the digests of their manifests, further looks, stale runs, reasons, failures, and runs beside."""
        cells: list[Any] = [{"cell": run.run, "run": run.run, "digest": run.digest} for run in self.runs]
        cells += [{"cell": cell, "run": None, "problem": problem} for cell, problem in self.problems.items()]
        stated = {"not_run": dict(self.not_run)} if self.not_run else {}
        failed = {"failed": [asdict(one) for one in self.failed]} if self.failed else {}
        said = [{"run": one.run.run, "digest": one.run.digest, "store": one.store} for one in self.beside]
        beside = {"beside": said} if said else {}
        return {"cells": cells, "looks": self.looks, "stale": list(self.stale), **stated, **failed, **beside}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores of the runs, and the splits that name persons."""
        scores = {run.run: Ref.parse(run.artifacts["scores"]).key for run in self.runs}
        return {"scores": scores, "splits": [ref.key for ref in split_refs(self.runs)]}

    def audits(self) -> list[Listed]:
        """Return the audits, with findings read from their scores."""
        outcomes = [scored(self.store, Outcome(run.run, run.audit, {}, run)) for run in self.runs]
        models = [models_in(self.store, run) for run in self.runs]
        return listed(outcomes, models, looks=self.looks, stale=self.stale)

    def ranked(self) -> list[Ranked]:
        """Return the rankings of all runs."""
        found = []
        for run in self.runs:
            tables = Tables.of_run(self.store, run)
            rank = ALL_AUDITS[audit_of(run.audit)].rankings
            ranked = rank(tables, Findings.read(tables["summary"]))
            found += [Ranked(run.run, run.audit, one, run.ledger.data) for one in ranked]
        return found


@dataclass(frozen=True)
class Score(ScoresStage):
    """Join the audits of a dossier: the list of attacks, the verdict over all audits, and the persons at risk."""

    declared: ClassVar[Declared] = Declared("score_dossier", 5)
    title: ClassVar[str] = "join the audits"
    place: ClassVar[Place] = "driver"

    joined: Joined
    named_share: float
    ids: bool
    released: str

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the tables."""
        audits, ranked = self.joined.audits(), self.joined.ranked()
        risk = at_risk(ranked, persons_in(self.joined.store, self.joined.runs), share=self.named_share)
        together = named_together(ranked, share=self.named_share)
        findings = Findings(summarize(audits, together, risk))
        joined = self.joined
        said = verdict(audits, looks=joined.looks, failed=joined.failed, beside=joined.beside, released=self.released)
        write_table(findings.table(said), SUMMARY, attempt.path(SUMMARY_FILE))
        table = audits_table(audits, joined.not_run, joined.failed, contradicting(said.word, joined.beside))
        write_table(table, AUDITS, attempt.path(f"{AUDITS.name}.parquet"))
        if self.ids and risk.num_rows:
            write_table(risk, RISK, attempt.path(f"{RISK.name}.parquet"))


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the document, and write its content as JSON."""

    declared: ClassVar[Declared] = Declared("report", 6)
    title: ClassVar[str] = "report dossier"
    place: ClassVar[Place] = "driver"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    joined: Joined

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The joined audits."""
        return {"scores": self.scores.key}

    def compose(self, attempt: Attempt) -> Content:
        """Write the JSON and return the content of the page."""
        from memlib.audits.dossier.report import as_json, compose
        from memlib.report.imprint import data_in_words

        tables = self.scores.content
        findings, risk = Findings.read(tables["summary"]), tables[RISK.name] if tables.has(RISK.name) else None
        content = as_json(self.recipe, self.run, tables[AUDITS.name], findings, risk)
        attempt.path(JSON_FILE).write_text(json.dumps(content, indent=1, default=str), encoding="utf-8")
        names = {run.run: model_name(run.recipe) for run in self.joined.runs}
        data = dict.fromkeys(data_in_words(run.recipe) for run in self.joined.runs)
        return compose(self.recipe, tables[AUDITS.name], findings, risk, names, "; ".join(filter(None, data)))
