"""Supervised objectives."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from memlib.objectives.base import Objective, Terms
from memlib.specs import SupervisedSpec


class Supervised(Objective):
    """Cross-entropy of the class scores of one augmented view (Meehan 2023, A.2.2)."""

    def __init__(self, spec: SupervisedSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        scores = model(views[0]).float()
        loss = F.cross_entropy(scores, labels, label_smoothing=self.spec.label_smoothing)
        return {"loss": loss, "training_accuracy": (scores.argmax(dim=1) == labels).float().mean()}
