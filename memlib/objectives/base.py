"""What the training loop asks of an objective."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor, nn

from memlib.collectives import gather_rows
from memlib.specs import AugmentSpec

Terms = dict[str, Tensor]


class Objective(nn.Module, ABC):
    """A loss over views of a batch.

    Parameters, buffers and sub-modules (an EMA teacher, a centre) are the objective's state: they travel with
    the resume state, and `after_step` may update them.
    """

    num_views: int = 1
    progress: float = 0.0
    """How much of the training is done, 0 to 1; set by the training before each step."""
    epoch: float = 0.0
    """Epochs that are done, likewise."""
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
        """Called once with the initialised model, before the first step and with the training's own random state.

        The place to give the model a teacher, and to make weights of the shape of its output.
        """

    def view(self, number: int, augment: AugmentSpec, side: int) -> tuple[AugmentSpec, int]:
        """How a view is drawn and its side in pixels, where the training's own are `augment` and `side`."""
        return augment, side

    def after_step(self, model: nn.Module) -> None:
        """Called after every optimiser step."""

    def gather(self, embeddings: Tensor) -> Tensor:
        """All workers' rows, with gradients to each: (batch, dim) -> (global batch, dim)."""
        if self.group is None:
            return embeddings
        return gather_rows(embeddings, self.group)
