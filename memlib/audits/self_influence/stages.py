"""The stages of a self-influence audit after the gradient norms: scoring and the report page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.audits.self_influence.findings import curves, summarize
from memlib.audits.self_influence.recipe import Recipe
from memlib.audits.self_influence.scores import score
from memlib.audits.self_influence.tables import UNITS
from memlib.data.splits import TRAIN
from memlib.data.stages import TrainingData
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import UNKEYED, AnyArtifact, Artifact
from memlib.pipeline.tables import Tables
from memlib.specs.subject import TrainIt
from memlib.store import Attempt
from memlib.tables import CURVES, SUMMARY, write_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content


@dataclass(frozen=True)
class Score(ScoresStage):
    """Compute TracInCP of every training example."""

    declared: ClassVar[Declared] = Declared("self_influence", 4)
    title: ClassVar[str] = "self-influence"

    #: the training examples.
    data: TrainingData = field(metadata=UNKEYED)  # its training examples are inputs
    norms: Sequence[Artifact[NDArray[np.float64]]]  #: squared gradient norms at each checkpoint, in the order of the members.
    rates: Sequence[float]  #: learning rate at each checkpoint.
    epochs: Sequence[int]  #: epoch of each checkpoint.

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Norms and examples."""
        return {**super().inputs, **self.data.inputs(TRAIN)}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, curves and summary."""
        members, stacked = self.data.members(TRAIN), np.stack([norms.content for norms in self.norms])
        ids, names = members["example_id"].to_pylist(), members["class_name"].to_pylist()
        units = score(ids, members["label"].to_numpy(), names, stacked, self.rates, self.epochs)
        write_table(units, UNITS, attempt.path(UNITS_FILE))
        write_table(summarize(units), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(units), CURVES, attempt.path(CURVES_FILE))


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a self-influence audit."""

    declared: ClassVar[Declared] = Declared("report", 12)
    title: ClassVar[str] = "report self-influence"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    data: TrainingData

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores and training examples."""
        return {"scores": self.scores.key} | self.data.inputs(TRAIN)

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Images and splits."""
        return (self.data.shard, self.data.splits)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figure and return the content of the page."""
        from memlib.audits.self_influence.report import compose

        subject = self.recipe.subject
        recipe, members = self.recipe, self.data.members(TRAIN)
        units, summary, curves = (self.scores.content[name] for name in ("units", "summary", "curves"))
        facts = {
            "data": f"{recipe.data.source.kind}, {members.num_rows} training examples",
            "model": subject.model.architecture if isinstance(subject, TrainIt) else subject.model,
            "checkpoints": ", ".join(f"epoch {epoch}" for epoch in units["checkpoints"][0].as_py()),
        }
        show = self.data.pictures(TRAIN)
        return compose(recipe, units, summary, curves, show, facts, attempt.path("figures"))
