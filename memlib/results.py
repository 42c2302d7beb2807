"""The last two stages of every audit: one writes tables of scores, the other draws the page from these tables."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from memlib.specs import Spec
from memlib.stage import AnyArtifact, Artifact, Stage
from memlib.store import Attempt, Ref, Store
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Page

PARTS_FILE = "parts.json"  # lists, for each table, the artifacts that hold its parts
UNITS_FILE, SUMMARY_FILE, CURVES_FILE, REPORT_FILE = "units.parquet", "summary.parquet", "curves.parquet", "report.html"


class Tables:
    """The tables of an artifact, read on access by name; the parts of a large table may lie in other artifacts."""

    def __init__(self, store: Store, ref: Ref) -> None:
        self._artifacts, self._ref = store.artifacts, ref

    def __getitem__(self, name: str) -> pa.Table:
        return pa.concat_tables(self.parts(name))

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yield the parts of a table; most tables have only one part."""
        return map(read_table, self.paths(name))

    def paths(self, name: str) -> Iterator[Path]:
        """Yield the local files of the parts of a table."""
        artifacts, listed = self._artifacts, {}
        if PARTS_FILE in artifacts.manifest(self._ref).files:
            listed = json.loads(artifacts.local_path(self._ref, PARTS_FILE).read_text(encoding="utf-8"))
        for ref in map(Ref.parse, listed.get(name, [str(self._ref)])):
            yield artifacts.local_path(ref, f"{name}.parquet")


class ScoresStage(Stage[Tables]):
    """A stage that writes an audit's scores: units.parquet, curves.parquet, summary.parquet, and the audit's other tables."""

    @classmethod
    def open(cls, artifact: Artifact[Tables]) -> Tables:
        """Return the tables by name."""
        return Tables(artifact.store, artifact.ref)


class PageStage(Stage[Path]):
    """A stage that draws the figures and the page of a run: report.html, figures/*.svg and *.png.

    Attributes:
        recipe: recipe of the run.
        run: id of the run.
        scores: artifact of the run's tables.
    """

    recipe: Spec
    run: str
    scores: Artifact[Tables]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The whole recipe, which the page shows, and the run's id."""
        return {"recipe": self.recipe.model_dump(mode="json"), "run": self.run}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """The data artifacts of the run; the end of the page describes their content."""
        return ()

    @abstractmethod
    def page(self, attempt: Attempt) -> Page:
        """Draw the figures and compose the page."""

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the page and its figures."""
        from memlib.report.imprint import signed
        from memlib.report.page import render  # matplotlib is slow to load
        from memlib.report.read import what_was_read

        page, section = self.page(attempt), what_was_read(self.read)
        if section is not None:
            page = replace(page, sections=(*page.sections, section))
        page = signed(page, self.recipe, self.scores.store, self.read)
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    @classmethod
    def open(cls, artifact: Artifact[Path]) -> Path:
        """Return the page."""
        return artifact.path(REPORT_FILE)
