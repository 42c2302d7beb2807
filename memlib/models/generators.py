"""Networks that draw images from a condition vector: a U-Net that denoises, and an MLP that decodes as a cheap baseline.

The U-Net is conditioned as in RCDM's released code (Bordes 2022): a linear map of the condition is added to the embedding of
the time, from which every block takes the scale and shift of its normalization.
"""

import itertools
import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.models.denoising import alpha_bars
from memlib.models.vision import Taught
from memlib.specs.models import DecoderSpec, DenoiserSpec

HEADS = 4
LONGEST_PERIOD = 10_000.0


def time_features(times: Tensor, width: int) -> Tensor:
    """Return cosines and sines of times at geometrically falling frequencies: (batch,) -> (batch, width)."""
    exponents = torch.arange(width // 2, device=times.device) / (width // 2)
    angles = times.float()[:, None] * torch.exp(-math.log(LONGEST_PERIOD) * exponents)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Condition(nn.Module):
    """A linear map of condition vectors, with a learned vector in place of absent or dropped conditions."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.null = nn.Parameter(torch.zeros(width))
        self.linear = nn.Linear(dim, width)

    def forward(self, conditions: Tensor | None, dropped: Tensor | None) -> Tensor:
        """Return (batch, width), or (1, width) without conditions."""
        if conditions is None:
            return self.null[None]
        mapped: Tensor = self.linear(conditions)
        return mapped if dropped is None else torch.where(dropped[:, None], self.null.to(mapped.dtype), mapped)


class Residual(nn.Module):
    """Two convolutions with a skip connection around them; the embedding scales and shifts the second normalization."""

    def __init__(self, spec: DenoiserSpec, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.GroupNorm(spec.norm_groups, before)
        self.widen = nn.Conv2d(before, after, 3, padding=1)
        self.scales = nn.Linear(4 * spec.channels[0], 2 * after)
        self.second = nn.GroupNorm(spec.norm_groups, after)
        self.last = _zeroed(nn.Conv2d(after, after, 3, padding=1))
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, images: Tensor, embedding: Tensor) -> Tensor:
        """Return (batch, after, side, side)."""
        features = self.widen(F.silu(self.first(images)))
        scale, shift = self.scales(F.silu(embedding))[:, :, None, None].chunk(2, dim=1)
        features = self.last(F.silu(self.second(features) * (1 + scale) + shift))
        return cast(Tensor, self.skip(images) + features)


class Attending(nn.Module):
    """A residual block, followed by self-attention between the places of the image, with a skip connection around it."""

    def __init__(self, residual: Residual, channels: int, groups: int) -> None:
        super().__init__()
        self.residual = residual
        self.norm = nn.GroupNorm(groups, channels)
        self.triple = nn.Conv2d(channels, 3 * channels, 1)
        self.last = _zeroed(nn.Conv2d(channels, channels, 1))

    def forward(self, images: Tensor, embedding: Tensor) -> Tensor:
        """Return (batch, channels, side, side)."""
        features: Tensor = self.residual(images, embedding)
        batch, channels, height, width = features.shape
        triple = self.triple(self.norm(features)).reshape(batch, 3, HEADS, channels // HEADS, height * width)
        query, key, value = triple.transpose(3, 4).unbind(dim=1)
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(2, 3).reshape(features.shape)
        return cast(Tensor, features + self.last(mixed))


class Denoiser(Taught):
    """A U-Net that predicts the velocity v of noised images (batch, 3, side, side), given times and conditions."""

    alpha_bars: Tensor  #: the schedule of the diffusion that the network is trained for, (steps,).

    def __init__(self, spec: DenoiserSpec, *, dim: int, steps: int) -> None:
        super().__init__()
        self.register_buffer("alpha_bars", alpha_bars(steps), persistent=False)
        self.width, levels = spec.channels[0], len(spec.channels)
        embedding = 4 * self.width
        self.time = nn.Sequential(nn.Linear(self.width, embedding), nn.SiLU(), nn.Linear(embedding, embedding))
        self.stem = nn.Conv2d(3, self.width, 3, padding=1)
        self.down, self.up, self.shrink, self.grow = (nn.ModuleList() for _ in range(4))
        at = self.width
        for level, width in enumerate(spec.channels):
            self.down.append(nn.ModuleList(_block(spec, level, before) for before in (at, *[width] * (spec.blocks - 1))))
            at = width
            if level + 1 < levels:
                self.shrink.append(nn.Conv2d(at, at, 3, stride=2, padding=1))
        self.middle = nn.ModuleList([_block(spec, levels - 1, at), Residual(spec, at, at)])
        for level, width in reversed(list(enumerate(spec.channels))):
            inputs = (before + width for before in (at, *[width] * (spec.blocks - 1)))
            self.up.append(nn.ModuleList(_block(spec, level, before) for before in inputs))
            at = width
            if level:
                self.grow.append(nn.Conv2d(at, at, 3, padding=1))
        self.head = nn.Sequential(nn.GroupNorm(spec.norm_groups, at), nn.SiLU(), _zeroed(nn.Conv2d(at, 3, 3, padding=1)))
        self.condition = Condition(dim, embedding)  # last, so that its size does not change the other initial weights

    def forward(
        self,
        images: Tensor,
        times: Tensor | None = None,
        conditions: Tensor | None = None,
        dropped: Tensor | None = None,
    ) -> Tensor:
        """Return v, (batch, 3, side, side).

        Args:
            images: (batch, 3, side, side) float32.
            times: (batch,) int64 steps of the diffusion; None: all 0.
            conditions: (batch, dim) float32, normalized; None: unconditional.
            dropped: (batch,) bool, rows whose condition is ignored; None: no rows.
        """
        times = torch.zeros(len(images), dtype=torch.int64, device=images.device) if times is None else times
        embedding = self.time(time_features(times, self.width)) + self.condition(conditions, dropped)
        features, kept = self.stem(images), []  # kept: outputs of all blocks, which the way up takes again
        for level, blocks in enumerate(self.down):
            for block in cast(nn.ModuleList, blocks):
                features = block(features, embedding)
                kept.append(features)
            if level < len(self.shrink):
                features = self.shrink[level](features)
        for block in self.middle:
            features = block(features, embedding)
        for level, blocks in enumerate(self.up):
            for block in cast(nn.ModuleList, blocks):
                features = block(torch.cat([features, kept.pop()], dim=1), embedding)
            if level < len(self.grow):
                features = self.grow[level](F.interpolate(features, scale_factor=2.0, mode="nearest"))
        return cast(Tensor, self.head(features))


class Decoder(nn.Module):
    """An MLP from the condition to the mean image, (batch, 3, side, side), which depends on the condition alone."""

    def __init__(self, spec: DecoderSpec, *, dim: int) -> None:
        super().__init__()
        self.dim, self.side = dim, spec.input_size
        widths = (dim, *spec.hidden)
        hidden = [(nn.Linear(before, after), nn.SiLU()) for before, after in itertools.pairwise(widths)]
        self.layers = nn.Sequential(*itertools.chain(*hidden), nn.Linear(widths[-1], 3 * self.side**2))

    def forward(
        self,
        images: Tensor,
        times: Tensor | None = None,
        conditions: Tensor | None = None,
        dropped: Tensor | None = None,
    ) -> Tensor:
        """Return an image for each condition; arguments as for `Denoiser`, but only the number of `images` counts.

        Without a condition, the image of the mean condition is drawn, which is zero as conditions are normalized.
        """
        if conditions is None:
            conditions = torch.zeros(len(images), self.dim, device=images.device)
        drawn: Tensor = self.layers(conditions)
        return drawn.view(-1, 3, self.side, self.side)


def _block(spec: DenoiserSpec, level: int, before: int) -> nn.Module:
    """Return a residual block of a level, followed by attention if the level has it; `before`: channels of its input."""
    width = spec.channels[level]
    residual = Residual(spec, before, width)
    return Attending(residual, width, spec.norm_groups) if spec.attends(level) else residual


def _zeroed(layer: nn.Conv2d) -> nn.Conv2d:
    """Set a layer's weights to zero, so that its block is the identity at first, and return the layer."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def build_denoiser(spec: DenoiserSpec, *, dim: int, steps: int, seed: int) -> Denoiser:
    """Build a U-Net for conditions of length `dim`, initialized from `seed` alone, for a diffusion of `steps` steps."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        return Denoiser(spec, dim=dim, steps=steps)


def build_decoder(spec: DecoderSpec, *, dim: int, seed: int) -> Decoder:
    """Build an MLP for conditions of length `dim`, initialized from `seed` alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initial weights"))
        return Decoder(spec, dim=dim)
