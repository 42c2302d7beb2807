"""What the training loop asks of an objective."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from memlib.collectives import gather_rows

Terms = dict[str, Tensor]


class Objective(nn.Module, ABC):
    """A loss over views of a batch.

    Parameters, buffers and sub-modules (an EMA teacher, a centre) are the objective's state: they travel with
    the resume state, and `after_step` may update them.
    """

    num_views: int = 1
    group: dist.ProcessGroup | None = None
    """The workers that share each batch; set by the training, None for one worker."""

    @abstractmethod
    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """The loss and its terms.

        Args:
            model: maps a view to the embedding that the objective is about.
            views: num_views tensors (batch, 3, side, side).
            labels: (batch,) int64.

        Returns:
            scalars by name; "loss" is what is minimised: the mean over the global batch, the same number on
            every worker, or each worker's mean over its own part.
        """

    def prepare(self, model: nn.Module) -> None:
        """Called once with the initialised model, before the first step: the place to copy it as a teacher."""

    def after_step(self, model: nn.Module, *, progress: float) -> None:
        """Called after every optimiser step; `progress` runs from 0 to 1 over the training."""

    def gather(self, embeddings: Tensor) -> Tensor:
        """All workers' rows, with gradients to each: (batch, dim) -> (global batch, dim)."""
        if self.group is None:
            return embeddings
        return gather_rows(embeddings, self.group)
