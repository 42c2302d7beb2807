"""The record of a cell's nets and scores that the stages of unique-feature audits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits.unique_feature.score_nets import NetTables
from memlib.audits.unique_feature.scoring import Net, Pull
from memlib.data.canaries import Feature
from memlib.data.stages import TrainingData
from memlib.observe.models import Trained
from memlib.pipeline.stage import Artifact


@dataclass(frozen=True)
class Scored:
    """A cell's nets with the artifacts that hold their weights, histories and scores.

    Attributes:
        variant, data_seed: variant and draw of the data that define the cell.
        canaries: the chosen examples.
        feature: the unique feature, as inserted into examples.
        data: the examples.
        nets: the nets of each artifact of models.
        models, scores: artifacts, in the order of `nets`.
        epoch: last epoch of a large model.
        pulls: self-influence of canaries with and without the feature.
    """

    variant: str
    data_seed: int
    canaries: Sequence[Mapping[str, Any]]
    feature: Feature
    data: TrainingData
    nets: Sequence[Sequence[Net]]
    models: Sequence[Trained]
    scores: Sequence[Artifact[NetTables]]
    epoch: int = 0
    pulls: Sequence[Pull] = ()
