"""A toy objective: a multi-class hinge loss on the class scores."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from memlib.objectives.base import Objective, Terms
from memlib.specs.training import MarginSpec


class Margin(Objective):
    """Mean hinge loss of the true class against the others."""

    def __init__(self, spec: MarginSpec) -> None:
        super().__init__()
        self.spec = spec

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`."""
        return {"loss": F.multi_margin_loss(model(views[0]).float(), labels, margin=self.spec.margin)}
