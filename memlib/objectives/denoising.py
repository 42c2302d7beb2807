"""Objectives of generators, which draw images from condition vectors; the labels of a batch are its conditions."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memlib.identity import derive_seed
from memlib.models.denoising import noised, signed, velocity
from memlib.models.vision import Taught
from memlib.objectives.base import BatchPart, Objective, Terms
from memlib.objectives.distillation import follow, teacher_of
from memlib.specs import DenoisingSpec


@dataclass(frozen=True)
class NoiseDraws:
    """The random choices of one step of denoising; every tensor's first dimension is the batch."""

    times: Tensor  # (batch,) int64 steps of the diffusion
    dropped: Tensor  # (batch,) bool
    noise: Tensor  # (batch, 3, side, side) float32, standard normal

    def part(self, rows: slice, device: torch.device) -> "NoiseDraws":
        """Return the draws of some rows of the batch, on a device."""
        return NoiseDraws(*(getattr(self, field.name)[rows].to(device, non_blocking=True) for field in fields(self)))


def draw_noise(spec: DenoisingSpec, shape: Sequence[int], *, seed: int, step: int) -> NoiseDraws:
    """Draw times, drops and noise for a global batch of images of `shape`, (batch, 3, side, side), on the CPU."""
    rng = torch.Generator().manual_seed(derive_seed(seed, "denoising", step))
    times = torch.randint(0, spec.steps, (shape[0],), generator=rng)
    dropped = torch.rand(shape[0], generator=rng) < spec.drop
    return NoiseDraws(times, dropped, torch.randn(tuple(shape), generator=rng))


class Denoising(Objective):
    """Mean squared error of the velocity of noised images, at uniform times; conditions are dropped at random.

    Noise, times and drops are drawn for the global batch, so that they depend neither on the number of workers nor on
    earlier steps. The moving average of the weights, the model's teacher, draws the samples.
    """

    def __init__(self, spec: DenoisingSpec) -> None:
        super().__init__()
        self.spec = spec

    def prepare(self, model: nn.Module) -> None:
        """See `Objective.prepare`."""
        assert isinstance(model, Taught)
        model.add_teacher()

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`; labels are the conditions (batch, dim)."""
        images = signed(views[0])
        part = self.part or BatchPart(0, 0, len(images), slice(None))
        shape = (part.size, *images.shape[1:])
        draws = draw_noise(self.spec, shape, seed=part.seed, step=part.step).part(part.rows, images.device)
        left = cast(Tensor, getattr(model, "module", model).alpha_bars)[draws.times]
        seen = noised(images, draws.noise, left).contiguous(memory_format=torch.channels_last)
        predicted = model(seen, draws.times, labels, draws.dropped).float()
        return {"loss": F.mse_loss(predicted, velocity(images, draws.noise, left))}

    def after_step(self, model: nn.Module) -> None:
        """See `Objective.after_step`."""
        follow(teacher_of(model), model, self.spec.ema)


class Decoding(Objective):
    """Mean squared error of the images that a model draws from conditions alone, with pixels in [-1, 1]."""

    def forward(self, model: nn.Module, views: Sequence[Tensor], labels: Tensor) -> Terms:
        """See `Objective.forward`; labels are the conditions (batch, dim)."""
        return {"loss": F.mse_loss(model(views[0], None, labels).float(), signed(views[0]))}
