"""Class scores of one or many networks on stored examples."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.images.stored import are_images
from memlib.errors import RunError
from memlib.training.augment import prepare

Forward = Callable[[Tensor], Tensor]
"""(batch, *shape) prepared examples -> (num_nets, batch, num_classes)."""

POINTS, PIXELS = 2**16, 2**21  # examples (or pixels) times networks in one pass


@torch.inference_mode()
def class_scores(
    forward: Forward,
    examples: NDArray[np.generic],
    *,
    num_nets: int,
    device: torch.device,
    take: Callable[[NDArray[np.generic], torch.device], Tensor] = prepare,
) -> NDArray[np.float32]:
    """Compute the class scores (logits) of every network on every example.

    Args:
        forward: forward pass of the networks, in evaluation mode.
        examples: (num_examples, ...) as stored.
        num_nets: number of networks in `forward`, which limits the number of examples per pass.
        take: converts stored examples to the networks' inputs.

    Returns:
        (num_nets, num_examples, num_classes) float32.

    Raises:
        RunError: when an output is not finite.
    """
    budget = PIXELS // (examples.shape[1] * examples.shape[2]) if are_images(examples) else POINTS
    size = max(16, budget // num_nets)
    parts = [forward(take(examples[start : start + size], device)).float().cpu() for start in range(0, len(examples), size)]
    scores: NDArray[np.float32] = torch.cat(parts, dim=1).numpy()
    finite = np.isfinite(scores).all(axis=(1, 2))
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise RunError(
            f"net {bad[0] + 1} of {len(scores)} returns class scores that are not finite: its training diverged, as at too "
            "high a learning rate, or its file of weights is damaged"
        )
    return scores


def is_constant(scores: NDArray[np.float32]) -> bool:
    """Return whether any network gives all examples the same scores, up to rounding, so that they carry no information.

    Args:
        scores: (num_nets, num_examples, num_classes).
    """
    if scores.shape[1] < 2:
        return False
    spread = np.ptp(scores, axis=1).max(axis=1)
    return bool((spread <= 1e-6 * np.maximum(1.0, np.abs(scores).max(axis=(1, 2)))).any())
