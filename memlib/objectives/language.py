"""The objective of language models."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from memlib.objectives.base import Objective, Terms


class NextSymbol(Objective):
    """Mean cross-entropy of every symbol of a window given those before it, in nats (Carlini 2019, section 2)."""

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`; a view is (batch, length) symbols."""
        total, count = next_symbol_loss(model, views[0])
        return {"loss": total / count}


def next_symbol_loss(model: nn.Module, windows: Tensor) -> tuple[Tensor, int]:
    """Total cross-entropy in nats of the symbols that a model gives scores for, and how many they are.

    Args:
        model: windows to scores (batch, scored, num_symbols) of each window's last `scored` symbols.
        windows: (batch, length) integers; -1 is no symbol and counts for nothing.
    """
    scores = model(windows).float()
    wanted = windows[:, -scores.shape[1] :].long()
    total = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum")
    return total, int((wanted >= 0).sum())
