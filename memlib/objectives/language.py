"""The objective of language models."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from memlib.objectives.base import Objective, Terms


class NextSymbol(Objective):
    """Mean cross-entropy in nats of the symbols of a window given the preceding symbols (Carlini 2019, section 2).

    The loss is averaged over the symbols of each window, then over windows, so the gradient of a window does not depend on
    other windows, as private training requires.
    """

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`; a view is (batch, length) symbols."""
        losses, counts = window_losses(model, views[0])
        return {"loss": (losses / counts).mean()}


def window_losses(model: nn.Module, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each window, the total cross-entropy of its scored symbols in nats and their number: (batch,) each.

    Args:
        model: maps windows to scores (batch, scored, num_symbols) of each window's last `scored` symbols.
        windows: (batch, length) integers; -1 is padding and is ignored.
    """
    scores = model(windows).float()
    wanted = windows[:, -scores.shape[1] :].long()
    losses = F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="none")
    return losses.view_as(wanted).sum(dim=1), (wanted >= 0).sum(dim=1)
