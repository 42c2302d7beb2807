"""Losses of canary pictures under an image classifier, computed without a trace in its training."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from memlib.data.canaries.losses import LOSSES
from memlib.data.canaries.pictures import CanaryPictures
from memlib.errors import UserError
from memlib.observe.canary_likelihoods import evaluating

Prepare = Callable[[NDArray[np.uint8]], torch.Tensor]


def unit_pictures(images: NDArray[np.uint8]) -> torch.Tensor:
    """Turn pictures (n, height, width, channels) uint8 into (n, channels, height, width) in [0, 1]."""
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255


def measure_pictures(model: nn.Module, canaries: CanaryPictures, prepare: Prepare, *, step: int, batch_size: int) -> pa.Table:
    """Compute the cross-entropy of each picture's label, with the model as it would be evaluated.

    The model's mode and all random states are restored.

    Args:
        model: a classifier that returns scores (n, classes), or an object with them as `logits`.
        prepare: function that turns pictures into the model's inputs.
        step: optimizer steps that the model has taken.
        batch_size: number of pictures per forward pass.

    Returns:
        table LOSSES, in the order of the canaries.

    Raises:
        UserError: when the model returns no scores of that many classes.
    """
    losses: list[float] = []
    device = next((one.device for one in model.parameters()), torch.device("cpu"))
    with evaluating(model):
        for start in range(0, len(canaries.labels), batch_size):
            labels = torch.from_numpy(canaries.labels[start : start + batch_size]).to(device)
            found = model(prepare(canaries.images[start : start + batch_size]).to(device))
            scores = getattr(found, "logits", found)
            if not isinstance(scores, torch.Tensor) or scores.ndim != 2 or scores.shape[1] <= int(labels.max()):
                raise UserError(
                    f"the model returns no scores of {int(canaries.labels.max()) + 1} classes or more; make canaries with "
                    "the model's number of classes (--classes)"
                )
            losses += F.cross_entropy(scores.float(), labels, reduction="none").tolist()
    columns = {
        "canary": list(canaries.canaries), "loss_sum": losses, "loss_mean": losses, "tokens": [1] * len(losses),
        "step": [step] * len(losses),
    }  # fmt: skip
    return pa.table(columns, schema=LOSSES.arrow)
