"""Embeddings of whole images or background crops, every layer in one pass."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from memlib.errors import RunError
from memlib.models.encoder import Encoder
from memlib.training.augment import normalise, resized_crops


@torch.inference_mode()
def embed(
    encoder: Encoder,
    images: NDArray[np.uint8],
    rows: NDArray[np.int64],
    *,
    input_size: int,
    folder: Path,
    layers: Sequence[str],
    rectangles: NDArray[np.float32] | None = None,
    batch_size: int = 256,
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes one array a layer, `<layer>.npy` (num_examples, dim) float32, in the order of `rows`.

    Args:
        encoder: the model; it is put in eval mode.
        images: (num_stored, size, size, 3) uint8, the shard.
        rows: (num_examples,) which of them.
        input_size: side at which the model sees an image; crops are squashed to it.
        folder: gets the arrays.
        layers: which layers to keep, as named by `Encoder.layers`.
        rectangles: (num_examples, 4) float32 x0, y0, x1, y1 in stored pixels; None embeds whole images.
        batch_size: images in one pass (changes nothing but rounding).
        device: where to run.
        progress: called with (examples done, examples in all).

    Raises:
        RunError: when an embedding is not finite.
    """
    device = device or torch.device("cpu")
    encoder = encoder.to(device, memory_format=torch.channels_last).eval()
    size = images.shape[1]
    boxes = np.tile(np.array([0, 0, size, size], dtype=np.float32), (len(rows), 1)) if rectangles is None else rectangles
    arrays: dict[str, NDArray[np.float32]] = {}
    for start in range(0, len(rows), batch_size):
        part = slice(start, min(start + batch_size, len(rows)))
        pixels = torch.from_numpy(images[rows[part]]).to(device).permute(0, 3, 1, 2).float().div_(255)
        views = resized_crops(pixels, torch.from_numpy(boxes[part] / size).to(device), side=input_size)
        for name, values in encoder.layers(normalise(views).contiguous(memory_format=torch.channels_last)):
            if name not in layers:
                continue
            if not bool(torch.isfinite(values).all()):
                raise RunError(f"the {name} embeddings are not finite: the model's weights are unusable")
            if name not in arrays:
                shape = (len(rows), values.shape[1])
                arrays[name] = np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.float32, shape=shape)
            arrays[name][part] = values.float().cpu().numpy()
        if progress is not None:
            progress(part.stop, len(rows))
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]
