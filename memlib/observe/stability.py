"""Distances between augmented views of an image: models learn to place the views of a training image close together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.models.encoder import Encoder
from memlib.models.external.network import ExternalNetwork
from memlib.models.vision import MEAN, STD, layout_of
from memlib.observe.embeddings import outputs_of
from memlib.specs import AugmentSpec
from memlib.training.augment import apply_view, draw_view, pixels


@torch.inference_mode()
def view_distances(
    encoder: Encoder | ExternalNetwork,
    images: NDArray[np.uint8],
    rows: NDArray[np.int64],
    *,
    first: int,
    input_size: int,
    layers: Sequence[str],
    augment: AugmentSpec,
    views: int,
    seed: int,
    batch_size: int,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> dict[str, NDArray[np.float64]]:
    """Return, for each layer, the mean distance between the embeddings of all pairs of views of an image: (num_images,).

    The views depend only on (seed, batch, view), so that every model sees the same views.

    Args:
        encoder: the model, which is put in evaluation mode.
        images: (num_stored, size, size, 3) uint8, images of the shard.
        rows: (num_images,) rows of the shard.
        first: number of the first batch.
        input_size: side of a view in pixels.
        layers: names of layers, as in `all_layers`.
        augment, views, seed: augmentation, number and seed of the views.
        batch_size: number of images whose views are drawn together.
        progress: called with (images done, total images).
    """
    encoder = encoder.to(device).to(memory_format=layout_of(encoder)).eval()
    distances: dict[str, list[NDArray[np.float64]]] = {layer: [] for layer in layers}
    for number, start in enumerate(range(0, len(rows), batch_size), start=first):
        batch = rows[start : start + batch_size]
        scaled = pixels(torch.from_numpy(images[batch]), device)
        embedded: dict[str, list[Tensor]] = {layer: [] for layer in layers}
        for view in range(views):
            draws = draw_view(augment, batch=len(batch), seed=seed, step=number, view=view)
            shown = _unnormalized(apply_view(scaled, draws, side=input_size, max_shift=augment.shift))
            for layer, values in outputs_of(encoder, shown, layers):
                embedded[layer].append(values.double())
        for layer, points in embedded.items():
            distances[layer].append(_mean_distances(torch.stack(points, dim=1)).cpu().numpy())
        progress(min(start + batch_size, len(rows)), len(rows))
    return {layer: np.concatenate(parts) for layer, parts in distances.items()}


def _mean_distances(points: Tensor) -> Tensor:
    """Return the mean distance between all pairs of points: (batch, points, dim) -> (batch,)."""
    count = points.shape[1]
    total: Tensor = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist").sum(dim=(1, 2))
    return total / (count * (count - 1))


def _unnormalized(views: Tensor) -> Tensor:
    """Convert normalized views back to pixels in [0, 1], as `outputs_of` expects them."""
    if views.shape[1] == 1:  # grey images stay in [0, 1]
        return views
    mean, std = (torch.tensor(part, device=views.device).view(1, 3, 1, 1) for part in (MEAN, STD))
    return views * std + mean
