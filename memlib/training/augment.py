"""Random views, drawn for the whole batch on the CPU and applied in one pass on the device.

The draws depend only on (seed, step, view) and on the position in the global batch. They do not depend on the number of
workers, and a resumed training run needs only its step to repeat them.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.images.stored import are_images
from memlib.identity import derive_seed
from memlib.models.vision import MEAN, STD
from memlib.specs import AugmentSpec

BLUR_SIGMA = (0.1, 2.0)  # pixels at 224 px (VICReg)
_LUMA = torch.tensor([0.299, 0.587, 0.114])
_TO_YIQ = torch.tensor([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_FROM_YIQ = torch.linalg.inv(_TO_YIQ)


@dataclass(frozen=True)
class ViewDraws:
    """The random choices of one view of a batch; every tensor's first dimension is the batch."""

    boxes: Tensor  # (batch, 4) float32 x0, y0, x1, y1 as fractions of the image
    flip: Tensor  # (batch,) bool
    colour: Tensor  # (batch, 3, 3) float32, applied to each pixel's RGB
    contrast: Tensor  # (batch,) float32, 1 for none
    blur: Tensor  # (batch,) float32 sigma in pixels at 224 px, 0 for none
    solarize: Tensor  # (batch,) bool
    shift: Tensor  # (batch, 2) int64 rows and columns cut off at the upper left

    def part(self, rows: slice) -> "ViewDraws":
        """Return the draws of some rows of the batch."""
        return ViewDraws(*(getattr(self, field.name)[rows] for field in fields(self)))

    @staticmethod
    def joined(parts: Sequence["ViewDraws"]) -> "ViewDraws":
        """Concatenate the draws of several batches."""
        return ViewDraws(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(ViewDraws)))


def draw_view(spec: AugmentSpec, *, batch: int, seed: int, step: int, view: int) -> ViewDraws:
    """Draw one view of a global batch of `batch` images."""
    rng = torch.Generator().manual_seed(derive_seed(seed, "augment", step, view))
    kind = min(view, 1)

    def chance(probability: float) -> Tensor:
        return torch.rand(batch, generator=rng) < probability

    def around(centre: float, strength: float) -> Tensor:
        return centre + (torch.rand(batch, generator=rng) * 2 - 1) * strength

    boxes = _draw_boxes(spec, batch, rng)
    flip = chance(spec.flip)
    jitter = chance(spec.jitter)
    brightness = torch.where(jitter, around(1, spec.brightness), 1.0)
    contrast = torch.where(jitter, around(1, spec.contrast), 1.0)
    saturation = torch.where(jitter, around(1, spec.saturation), 1.0)
    hue = torch.where(jitter, around(0, spec.hue), 0.0)
    saturation = torch.where(chance(spec.grey), 0.0, saturation)
    sigma = BLUR_SIGMA[0] + torch.rand(batch, generator=rng) * (BLUR_SIGMA[1] - BLUR_SIGMA[0])
    blur = torch.where(chance(spec.blur[kind]), sigma, 0.0)
    solarize = chance(spec.solarize[kind])
    shift = torch.randint(0, spec.shift + 1, (batch, 2), generator=rng)
    return ViewDraws(boxes, flip, _colour_matrix(brightness, saturation, hue), contrast, blur, solarize, shift)


def _draw_boxes(spec: AugmentSpec, batch: int, rng: torch.Generator) -> Tensor:
    area = spec.crop_scale[0] + torch.rand(batch, generator=rng) * (spec.crop_scale[1] - spec.crop_scale[0])
    low, high = (math.log(ratio) for ratio in spec.crop_ratio)
    ratio = torch.exp(low + torch.rand(batch, generator=rng) * (high - low))
    width = torch.sqrt(area * ratio).clamp(max=1)
    height = torch.sqrt(area / ratio).clamp(max=1)
    x0 = torch.rand(batch, generator=rng) * (1 - width)
    y0 = torch.rand(batch, generator=rng) * (1 - height)
    return torch.stack([x0, y0, x0 + width, y0 + height], dim=1)


def _colour_matrix(brightness: Tensor, saturation: Tensor, hue: Tensor) -> Tensor:
    """Combine brightness, saturation and hue in one 3 x 3 matrix per image; hue rotates the chroma plane of YIQ."""
    turn = torch.zeros(len(hue), 3, 3)
    cos, sin = torch.cos(2 * math.pi * hue), torch.sin(2 * math.pi * hue)
    turn[:, 0, 0] = 1
    turn[:, 1, 1], turn[:, 1, 2], turn[:, 2, 1], turn[:, 2, 2] = cos, -sin, sin, cos
    turned = _FROM_YIQ @ turn @ _TO_YIQ
    grey = _LUMA.expand(3, 3)
    weight = saturation[:, None, None]
    matrix: Tensor = brightness[:, None, None] * (weight * torch.eye(3) + (1 - weight) * grey) @ turned
    return matrix


def apply_view(images: Tensor, draws: ViewDraws, *, side: int, max_shift: int = 0) -> Tensor:
    """Return one normalized view of a batch.

    Args:
        images: (batch, 3 or 1, height, width) float32 in [0, 1], on the device.
        draws: the random choices, one row per image.
        side: side of the view in pixels.
        max_shift: total number of rows, and of columns, that are cut off (the spec's shift).

    Returns:
        (batch, 3 or 1, side, side) float32, normalized.
    """
    device = images.device
    views = resized_crops(images, draws.boxes.to(device), side=side)
    flip = draws.flip.to(device)[:, None, None, None]
    views = torch.where(flip, views.flip(3), views)
    if max_shift:
        views = _shift(views, draws.shift, max_shift)
    colour, luma = draws.colour.to(device), _LUMA.to(device)
    if views.shape[1] == 1:  # only the brightness of a grey pixel can change
        views = views * (colour.sum(dim=2) @ luma).view(-1, 1, 1, 1)
        luma = torch.ones(1, device=device)
    else:
        views = torch.einsum("bij,bjhw->bihw", colour, views)
    grey_mean = torch.einsum("j,bjhw->b", luma, views) / (side * side)
    contrast = draws.contrast.to(device)
    views = views * contrast[:, None, None, None] + ((1 - contrast) * grey_mean)[:, None, None, None]
    views = views.clamp(0, 1)
    if bool((draws.blur > 0).any()):
        views = _blur(views, draws.blur * side / 224)
    if bool(draws.solarize.any()):
        solarize = draws.solarize.to(device)[:, None, None, None]
        views = torch.where(solarize & (views >= 0.5), 1 - views, views)
    return normalize(views)


def resized_crops(images: Tensor, boxes: Tensor, *, side: int) -> Tensor:
    """Cut one rectangle out of each image and resize it by averaging bilinear samples within each pixel.

    Pixels up to half a pixel outside may contribute; use `memlib.observe.embeddings.cut` if crops must
    exclude these pixels.

    Args:
        images: (batch, 3, height, width) float32.
        boxes: (batch, 4) float32 x0, y0, x1, y1 as fractions of the image.
        side: side of the result; elongated crops are squashed.
    """
    from torchvision.ops import roi_align  # slow to load

    height, width = images.shape[2:]
    scale = torch.tensor([width, height, width, height], dtype=torch.float32, device=images.device)
    index = torch.arange(len(images), dtype=torch.float32, device=images.device)[:, None]
    crops: Tensor = roi_align(images, torch.cat([index, boxes * scale], dim=1), output_size=side, aligned=True)
    return crops


def _shift(views: Tensor, shift: Tensor, max_shift: int) -> Tensor:
    """Cut off `shift` rows and columns at the upper left and the rest of `max_shift` at the lower right; pad with black."""
    height, width = views.shape[2] - max_shift, views.shape[3] - max_shift
    shifted = torch.zeros_like(views)
    for image, view, (top, left) in zip(shifted, views, shift.tolist(), strict=True):
        image[:, :height, :width] = view[:, top : top + height, left : left + width]
    return shifted


def prepare(examples: NDArray[Any], device: torch.device) -> Tensor:
    """Convert stored examples to model inputs without augmentation.

    Args:
        examples: (batch, height, width, channels) uint8, or (batch, dim) float32.

    Returns:
        (batch, channels, height, width) float32, normalized, or the points unchanged.
    """
    if not are_images(examples):
        return torch.from_numpy(np.ascontiguousarray(examples)).float().to(device)
    return normalize(pixels(torch.from_numpy(np.ascontiguousarray(examples)), device))


def pixels(images: Tensor, device: torch.device) -> Tensor:
    """Convert (batch, height, width, channels) uint8 to (batch, channels, height, width) float32 in [0, 1]."""
    return images.to(device, non_blocking=True).permute(0, 3, 1, 2).float().div_(255)


def normalize(images: Tensor) -> Tensor:
    """Subtract ImageNet's mean and divide by its standard deviation, per channel; leave grey images in [0, 1]."""
    if images.shape[1] == 1:
        return images
    mean, std = _scale(images.device)
    return (images - mean) / std


@functools.lru_cache(maxsize=8)
def _scale(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return ImageNet's mean and standard deviation, each (1, 3, 1, 1), cached per device."""
    with torch.inference_mode(False):  # training uses the cached tensors too
        return torch.tensor(MEAN, device=device).view(1, 3, 1, 1), torch.tensor(STD, device=device).view(1, 3, 1, 1)


def _blur(images: Tensor, sigma: Tensor) -> Tensor:
    """Apply a Gaussian blur with one sigma (pixels, on the CPU) per image; sigma 0 leaves the image unchanged."""
    radius = max(1, math.ceil(2 * float(sigma.max())))
    sigma = sigma.to(images.device)
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=torch.float32)
    kernel = torch.exp(-offsets.square() / (2 * sigma.clamp(min=1e-3)[:, None].square()))
    kernel = kernel / kernel.sum(dim=1, keepdim=True)
    batch, channels, height, width = images.shape
    flat = images.reshape(1, batch * channels, height, width)
    weights = kernel.repeat_interleave(channels, dim=0)
    flat = F.pad(flat, (radius, radius, radius, radius), mode="reflect" if radius < min(height, width) else "replicate")
    flat = F.conv2d(flat, weights[:, None, None, :], groups=batch * channels)
    flat = F.conv2d(flat, weights[:, None, :, None], groups=batch * channels)
    return flat.view(batch, channels, height, width)
