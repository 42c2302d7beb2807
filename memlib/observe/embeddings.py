"""Embeddings of whole images or background crops, from every layer in one pass; their neighbours, and maps of attention."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.data.images.stored import create_array
from memlib.errors import RunError, UserError
from memlib.models.encoder import Encoder
from memlib.models.external.network import ExternalNetwork
from memlib.models.vision import layout_of
from memlib.observe.encoders import LAST
from memlib.specs import Precision
from memlib.stats.neighbors import nearest_neighbors
from memlib.training.augment import normalize


@torch.inference_mode()
def embed(
    encoder: Encoder | ExternalNetwork,
    images: NDArray[np.uint8],
    rows: NDArray[np.int64],
    *,
    input_size: int,
    folder: Path,
    layers: Sequence[str],
    rectangles: NDArray[np.int64] | None = None,
    batch_size: int = 256,
    dtype: np.dtype[Any] = np.dtype(np.float32),
    precision: Precision = "float32",
    device: torch.device | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write one array per layer, `<layer>.npy` (num_examples, dim), in the order of `rows`.

    Args:
        encoder: the model, which is put in evaluation mode.
        images: (num_stored, size, size, 3) uint8, images of the shard.
        rows: (num_examples,) rows of the shard.
        input_size: side at which the model sees an image; crops and images are squashed to it, so that nothing is cut off.
        layers: names of the layers to keep, as in `all_layers`; `LAST` is the deepest layer.
        rectangles: (num_examples, 4) int64 x0, y0, x1, y1 in stored pixels; None embeds whole images.
        batch_size: number of images per pass (affects only rounding).
        dtype: type of the arrays, float32 or float16.
        precision: precision of the forward pass (autocast).
        progress: called with (examples done, total examples).

    Raises:
        RunError: when an embedding is not finite, or too large for `dtype`.
        UserError: when an external encoder lacks a layer, or embeds the same images differently each time.
    """
    device = device or torch.device("cpu")
    encoder = encoder.to(device).to(memory_format=layout_of(encoder)).eval()
    arrays: dict[str, NDArray[np.floating]] = {}
    most = float(np.finfo(dtype).max)
    for start in range(0, len(rows), batch_size):
        part = slice(start, min(start + batch_size, len(rows)))
        pixels = torch.from_numpy(images[rows[part]]).to(device).permute(0, 3, 1, 2).float().div_(255)
        boxes = None if rectangles is None else rectangles[part]
        views = cut(pixels, boxes, side=input_size)
        if start == 0 and isinstance(encoder, ExternalNetwork):
            encoder.check_repeatable(views)
        with torch.autocast(device.type, dtype=getattr(torch, precision), enabled=precision != "float32"):
            outputs = [(name, values.float()) for name, values in outputs_of(encoder, views, layers)]
        for name, values in outputs:
            if not bool(torch.isfinite(values).all()):
                raise RunError(f"the {name} embeddings are not finite: the model's weights are unusable")
            if dtype != np.float32 and bool((values.abs() > most).any()):
                raise RunError(f"the {name} embeddings are too large for {dtype}; set decode.embeddings to float32")
            if name not in arrays:
                shape = (len(rows), values.shape[1])
                arrays[name] = create_array(folder / f"{name}.npy", dtype, shape)
            arrays[name][part] = values.cpu().numpy()
        if progress is not None:
            progress(part.stop, len(rows))
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]


def outputs_of(encoder: Encoder | ExternalNetwork, views: Tensor, layers: Sequence[str]) -> list[tuple[str, Tensor]]:
    """Return the outputs (batch, dim) of the requested layers for views (batch, 3, side, side) with pixels in [0, 1].

    Raises:
        UserError: when an external encoder lacks a layer.
    """
    views = normalize(views) if isinstance(encoder, Encoder) else views
    outputs = encoder.all_layers(views.contiguous(memory_format=layout_of(encoder)))
    named = dict(outputs) | {LAST: outputs[-1][1]}
    missing = [layer for layer in layers if layer not in named]
    if missing:
        raise UserError(f"decode.layers names {missing[0]!r}; this encoder has {', '.join(name for name, _ in outputs)}")
    return [(layer, named[layer]) for layer in layers]


def cut(images: Tensor, rectangles: NDArray[np.int64] | None, *, side: int) -> Tensor:
    """Cut a rectangle out of each image, then resize it, so that no pixel outside the rectangle has any influence.

    Args:
        images: (batch, 3, height, width) float32.
        rectangles: (batch, 4) int64 x0, y0, x1, y1, half open; None takes whole images.
        side: side of the result; elongated crops are squashed.
    """
    if rectangles is None:
        return _resize(images, side)
    if images.device.type == "cuda":
        return cut_together(images, rectangles, side=side)
    parts = zip(images, rectangles.tolist(), strict=True)
    return torch.cat([_resize(image[None, :, y0:y1, x0:x1], side) for image, (x0, y0, x1, y1) in parts])


def cut_together(images: Tensor, rectangles: NDArray[np.int64], *, side: int) -> Tensor:
    """Return the result of `cut` from two matrix products for all images; many small kernels would be slow on a GPU.

    Resizing with antialiasing is linear in rows and in columns: each pixel of the result is a mean of pixels inside the
    rectangle, weighted by a triangle as wide as the reduction. The result equals PyTorch's, up to rounding.
    """
    boxes = torch.from_numpy(rectangles).to(images.device)
    across = _weights(boxes[:, 0], boxes[:, 2], images.shape[3], side)
    down = _weights(boxes[:, 1], boxes[:, 3], images.shape[2], side)
    return down[:, None] @ (images @ across[:, None].transpose(2, 3))


def _weights(first: Tensor, last: Tensor, length: int, side: int) -> Tensor:
    """Return weights (batch, side, length) of the pixels along one side; 0 outside first ... last - 1."""
    scale = (last - first).double()[:, None, None] / side
    pixel = torch.arange(length, device=first.device, dtype=torch.float64) - first[:, None, None]  # (batch, 1, length)
    centre = scale * (torch.arange(side, device=first.device, dtype=torch.float64)[:, None] + 0.5)  # (batch, side, 1)
    weights = (1 - (pixel + 0.5 - centre).abs() / scale.clamp(min=1)).clamp(min=0)
    weights = weights * ((pixel >= 0) & (pixel < (last - first)[:, None, None]))
    return (weights / weights.sum(dim=2, keepdim=True)).float()


def _resize(images: Tensor, side: int) -> Tensor:
    if images.shape[2:] == (side, side):
        return images
    return F.interpolate(images, size=(side, side), mode="bilinear", antialias=True, align_corners=False)


SHARD_BYTES = 512 * 2**20  # of public vectors in memory at once


def search(
    queries: NDArray[np.floating],
    public: Sequence[NDArray[np.floating]],
    k: int,
    *,
    device: torch.device | None = None,
    storage: Literal["float32", "float16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Find the k nearest public rows of each query row, reading the public set in shards.

    Args:
        queries: (num_queries, dim) float32, or float16.
        public: arrays (num_public, dim) of the same type, usually memory-mapped, whose rows are numbered consecutively in
            order of example id.
        k: number of neighbours.
        storage: type in which the candidate search on a GPU stores the vectors: float32 or float16.
        shard_bytes: size of the part of `public` that is read at once; does not affect the result.
        progress: called with (public rows done, total public rows).

    Returns:
        rows of `public` (num_queries, k) int64 and squared distances (num_queries, k) float32.
    """
    rows, total = max(k, shard_bytes // (4 * queries.shape[1])), sum(len(part) for part in public)

    def shards() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        done = 0
        for part in public:
            for start in range(0, len(part), rows):
                vectors = np.asarray(part[start : start + rows], dtype=np.float32)
                yield np.arange(done, done + len(vectors)), vectors
                done += len(vectors)
                if progress is not None:
                    progress(done, total)

    return nearest_neighbors(np.asarray(queries, dtype=np.float32), shards(), k, device=device, storage=storage)


def gradcam(model: nn.Module, images: Tensor, label: int) -> NDArray[np.float32]:
    """Return heat maps of the last convolution: (batch, height, width) float32 in [0, 1].

    Args:
        model: a classifier with convolutions, on the CPU.
        images: (batch, channels, height, width), prepared.
        label: the class whose score is explained.

    Raises:
        UserError: for a model without convolutions.
    """
    from pytorch_grad_cam import GradCAM  # slow to load
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layers = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if not layers:
        raise UserError("GradCAM needs convolutions, and this model has none; set report.gradcam to false")
    with torch.enable_grad(), GradCAM(model=model.eval(), target_layers=layers[-1:]) as explain:
        maps: NDArray[np.float32] = explain(input_tensor=images, targets=[ClassifierOutputTarget(label)] * len(images))
    return maps


def overlaid(image: NDArray[np.uint8], heat: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Overlay an image (height, width, channels) with a heat map, warm where the heat is high: (height, width, 3) uint8."""
    from matplotlib import colormaps

    colour = colormaps["jet"](heat)[..., :3]
    grey = np.repeat(image, 3 // image.shape[2], axis=2) / 255
    return ((0.5 * grey + 0.5 * colour) * 255).round().astype(np.uint8)
