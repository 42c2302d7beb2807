"""The interface between the training loop and an objective."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor, nn

from memlib.models.collectives import gather_rows
from memlib.specs import AugmentSpec

Terms = dict[str, Tensor]


@dataclass(frozen=True)
class BatchPart:
    """The place of this worker's rows in a training run, of which all random draws of an objective are functions."""

    seed: int  #: seed, step: of the training run.
    step: int
    size: int  #: number of rows of the global batch, for which the draws are made.
    rows: slice  #: this worker's rows of the global batch.


class Objective(nn.Module, ABC):
    """A loss over views of a batch.

    Parameters, buffers and sub-modules (an EMA teacher, a centre) are the objective's state: they are
    saved in the resume state, and `after_step` may update them.

    Example:
        >>> import torch
        >>> from memlib.objectives import build_objective
        >>> from memlib.specs import SupervisedSpec
        >>> objective = build_objective(SupervisedSpec(kind="supervised"))
        >>> scores = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
        >>> terms = objective(torch.nn.Identity(), [scores], torch.tensor([0, 1]))
        >>> round(float(terms["loss"]), 2), float(terms["training_accuracy"])
        (0.13, 1.0)
    """

    num_views: int = 1
    progress: float = 0.0
    """Fraction of the training run that is done, 0 to 1; set by the training loop before each step."""
    epoch: float = 0.0
    """Number of epochs done, as a fraction within an epoch; set by the training loop before each step."""
    part: BatchPart | None = None
    """The rows that `forward` is called with; set by the training loop before each step."""
    group: dist.ProcessGroup | None = None
    """The workers that share each batch; set by the training loop, None for a single worker."""

    @abstractmethod
    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """Compute the loss and its terms.

        Args:
            model: maps a view to the embedding from which the loss is computed.
            views: num_views tensors (batch, 3, side, side).
            labels: (batch,) int64 classes, or (batch, dim) float32 conditions of generators.

        Returns:
            scalars by name. "loss" is minimized; it is either the mean over the global batch, equal on all
            workers, or each worker's mean over its part of the batch.
        """

    def prepare(self, model: nn.Module) -> None:
        """Prepare the objective for the initialized model; called once before the first step, with the random state seeded.

        Objectives add a teacher to the model here, and create weights that depend on the shape of its output.
        """

    def view(self, number: int, augment: AugmentSpec, side: int) -> tuple[AugmentSpec, int]:
        """Return the augmentation and the side in pixels of a view; `augment` and `side` are the training's defaults."""
        return augment, side

    def after_step(self, model: nn.Module) -> None:
        """Update the state; called after every optimizer step."""

    def gather(self, embeddings: Tensor) -> Tensor:
        """Gather the rows of all workers: (batch, dim) -> (global batch, dim); gradients flow back to every worker."""
        if self.group is None:
            return embeddings
        return gather_rows(embeddings, self.group)
