"""What every audit ends with: a stage that writes tables of scores, and one that draws the page from them."""

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

PARTS_FILE = "parts.json"  # the artifacts in which parts of tables lie, by table
UNITS_FILE, SUMMARY_FILE, CURVES_FILE, REPORT_FILE = "units.parquet", "summary.parquet", "curves.parquet", "report.html"
FINDINGS = ("memlib.findings", "memlib.stats")  # modules whose code decides every audit's scores
PAGES = (  # and pages
    "memlib.report.page", "memlib.report.glossary", "memlib.report.imprint", "memlib.report.figures", "memlib.report.read",
    "memlib.data.understood",
)  # fmt: skip


class Tables:
    """The tables of an artifact, each read when it is asked for by name; a large one lies in parts in other artifacts."""

    def __init__(self, store: Store, ref: Ref) -> None:
        self._artifacts, self._ref = store.artifacts, ref

    def __getitem__(self, name: str) -> pa.Table:
        return pa.concat_tables(self.parts(name))

    def parts(self, name: str) -> Iterator[pa.Table]:
        """Yield the parts of a table; of most there is one."""
        return map(read_table, self.paths(name))

    def paths(self, name: str) -> Iterator[Path]:
        """Yield local files with the parts of a table."""
        here, listed = self._artifacts, {}
        if PARTS_FILE in here.manifest(self._ref).files:
            listed = json.loads(here.local_path(self._ref, PARTS_FILE).read_text(encoding="utf-8"))
        for ref in map(Ref.parse, listed.get(name, [str(self._ref)])):
            yield here.local_path(ref, f"{name}.parquet")


class ScoresStage(Stage[Tables]):
    """A stage that writes an audit's scores: units.parquet, curves.parquet, summary.parquet, and what else it publishes."""

    @classmethod
    def open(cls, artifact: Artifact[Tables]) -> Tables:
        """Return the tables by name."""
        return Tables(artifact.store, artifact.ref)


class PageStage(Stage[Path]):
    """A stage that draws the figures and the page of a run: report.html, figures/*.svg and *.png.

    Attributes:
        recipe: what was run.
        run: its id.
        scores: its tables.
    """

    recipe: Spec
    run: str
    scores: Artifact[Tables]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The whole recipe, as the page shows it."""
        return {"recipe": self.recipe.model_dump(mode="json"), "run": self.run}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """The data that the run rests on: what they hold is said at the end of the page."""
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
