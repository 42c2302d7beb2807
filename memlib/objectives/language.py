"""The objective of language models."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from memlib.objectives.base import Objective, Terms


class NextSymbol(Objective):
    """Mean cross-entropy of every symbol of a window given those before it, in nats (Carlini 2019, section 2)."""

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`; a view is (batch, length) symbols."""
        scores = model(views[0]).float()
        return {"loss": F.cross_entropy(scores.flatten(0, 1), views[0].flatten().long())}
