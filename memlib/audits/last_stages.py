"""The last two stages of every audit: one writes tables of scores, the other draws the page from these tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memlib.pipeline.stage import AnyArtifact, Artifact, Stage
from memlib.pipeline.tables import Tables
from memlib.specs import Spec
from memlib.specs.question import PageSpec
from memlib.store import Attempt

if TYPE_CHECKING:
    import torch

    from memlib.audits.base import Audit
    from memlib.findings import Findings
    from memlib.report.page import Content

UNITS_FILE, SUMMARY_FILE, CURVES_FILE, REPORT_FILE = "units.parquet", "summary.parquet", "curves.parquet", "report.html"


class ScoresStage(Stage[Tables]):
    """A stage that writes an audit's scores: units.parquet, curves.parquet, summary.parquet, and the audit's other tables."""

    @classmethod
    def open(cls, artifact: Artifact[Tables]) -> Tables:
        """Return the tables by name."""
        return Tables(artifact.store, artifact.ref)


class PageStage(Stage[Path]):
    """A stage that draws the figures and the page of a run: report.html, figures/*.svg and, if asked for, *.png."""

    recipe: Spec  #: recipe of the run.
    run: str  #: id of the run.
    scores: Artifact[Tables]  #: artifact of the run's tables.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The whole recipe, which the page shows, and the run's id."""
        return {"recipe": self.recipe.model_dump(mode="json"), "run": self.run}

    @property
    def named_code(self) -> dict[str, str]:
        """None: the page shows the recipe, but runs none of the code that it names."""
        return {}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """The data artifacts of the run; the end of the page describes their content."""
        return ()

    @abstractmethod
    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and return the audit's part of the page."""

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the page and its figures."""
        from memlib.audits import AUDITS, audit_of  # which audits list their packages
        from memlib.audits.what_was_read import what_was_read
        from memlib.findings import Findings
        from memlib.report.imprint import signed
        from memlib.report.page import render  # matplotlib is slow to load

        audit = AUDITS[audit_of(self.recipe.model_dump()["audit"])]
        with self._figures_as_asked():
            content, findings = self.compose(attempt), Findings.read(self.scores.content["summary"])
        page = signed(
            replace(content, sections=(*content.sections, what_was_read(self.read)), advice=_advice(content, self.recipe)),
            findings.verdict,
            level=audit.level(findings), audit=audit.name, question=audit.question, recipe=self.recipe,
            run=self.run, sure=_sure(audit, findings), read=self.read,
        )  # fmt: skip
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    def _figures_as_asked(self) -> AbstractContextManager[None]:
        """Return a block in which figures are written as PNG, too, if the recipe asks for it."""
        asked = getattr(self.recipe, "report", None)
        if not isinstance(asked, PageSpec) or not asked.png:
            return nullcontext()
        from memlib.report.figures import also_png

        return also_png()

    @classmethod
    def open(cls, artifact: Artifact[Path]) -> Path:
        """Return the page."""
        return artifact.path(REPORT_FILE)


def _advice(content: Content, recipe: Spec) -> str:
    """Return the advice of a page; of a demonstration, it is about models of the reader's own."""
    from memlib.report.imprint import is_demonstration

    if not content.advice or not is_demonstration(recipe.model_dump(mode="json")):
        return content.advice
    return f"This is a demonstration, of which nothing follows. If the model were yours: {content.advice}"


def _sure(audit: Audit, findings: Findings) -> str:
    """Return how often so strong a result comes without memory, in a sentence; "" if nothing is shown."""
    from memlib.findings import SHOWN
    from memlib.report.format import once_in

    test = audit.decisive(findings)
    if findings.verdict.word != SHOWN or test.verdict != SHOWN:
        return ""
    often = once_in(test.p_adjusted)
    return (
        f"Without memory, a result as strong as the strongest one here comes {often}, allowing for all tests of this audit."
    )


def run_id(recipe: Any, scores: Artifact[Tables]) -> str:
    """Return a run's id, which depends on its scores and on its recipe without data locations and presentation."""
    from memlib.audits import AUDITS, audit_of

    return AUDITS[audit_of(recipe.audit)].run_of(recipe.model_dump(mode="json"), scores.key)
