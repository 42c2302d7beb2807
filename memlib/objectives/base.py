"""The interface between the training loop and an objective."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from memlib.collectives import gather_rows
from memlib.specs import AugmentSpec

Terms = dict[str, Tensor]


class Objective(nn.Module, ABC):
    """A loss over views of a batch.

    Parameters, buffers and sub-modules (an EMA teacher, a centre) are the objective's state: they are
    saved in the resume state, and `after_step` may update them.
    """

    num_views: int = 1
    progress: float = 0.0
    """The fraction of the training that is done, 0 to 1; set by the training before each step."""
    epoch: float = 0.0
    """The number of epochs done, a fraction included; set likewise."""
    group: dist.ProcessGroup | None = None
    """The workers that share each batch; set by the training, None for one worker."""

    @abstractmethod
    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """Compute the loss and its terms.

        Args:
            model: maps a view to the embedding that the loss is computed from.
            views: num_views tensors (batch, 3, side, side).
            labels: (batch,) int64.

        Returns:
            scalars by name; "loss" is minimized: the mean over the global batch, the same number on
            every worker, or each worker's mean over its own part.
        """

    def prepare(self, model: nn.Module) -> None:
        """Prepare for the initialized model; called once before the first step, with the training's own random state.

        Objectives add a teacher to the model here, and create weights that depend on the shape of its output.
        """

    def view(self, number: int, augment: AugmentSpec, side: int) -> tuple[AugmentSpec, int]:
        """Return how a view is drawn and its side in pixels; `augment` and `side` are the training's defaults."""
        return augment, side

    def after_step(self, model: nn.Module) -> None:
        """Update the state; called after every optimizer step."""

    def gather(self, embeddings: Tensor) -> Tensor:
        """Gather all workers' rows, with gradients to each: (batch, dim) -> (global batch, dim)."""
        if self.group is None:
            return embeddings
        return gather_rows(embeddings, self.group)
