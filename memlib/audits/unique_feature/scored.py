"""The record of a cell's nets and scores that the stages of unique-feature audits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits.unique_feature.score_nets import NetTables
from memlib.audits.unique_feature.scoring import Net, Pull
from memlib.data.canaries.features import Feature
from memlib.data.stages import TrainingData
from memlib.observe.models import Trained
from memlib.pipeline.stage import Artifact


@dataclass(frozen=True)
class Scored:
    """A cell's nets with the artifacts that hold their weights, histories and scores."""

    variant: str  #: variant, data_seed: variant and draw of the data that define the cell.
    data_seed: int
    canaries: Sequence[Mapping[str, Any]]  #: the chosen examples.
    feature: Feature  #: the unique feature, as inserted into examples.
    data: TrainingData  #: the examples.
    nets: Sequence[Sequence[Net]]  #: the nets of each artifact of models.
    models: Sequence[Trained]  #: models, scores: artifacts, in the order of `nets`.
    scores: Sequence[Artifact[NetTables]]
    epoch: int = 0  #: last epoch of a large model.
    pulls: Sequence[Pull] = ()  #: self-influence of canaries with and without the feature.
