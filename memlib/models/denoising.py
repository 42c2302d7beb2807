"""Diffusion of images: the schedule, noised images and their targets, and the deterministic sampler.

The schedule is a cosine (Nichol 2021, Eq. 17), the target is the velocity v (Salimans 2022, appendix D), and samples are
drawn by DDIM without noise (Song 2021, Eq. 12). Images lie in [-1, 1].
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from memlib.models.vision import MEAN, STD

OFFSET = 0.008  # keeps the first steps from adding almost no noise
MOST_BETA = 0.999


class Velocity(Protocol):
    """A network that predicts v from noised images, times, and conditions (None: unconditional), such as `Denoiser`."""

    alpha_bars: Tensor

    def __call__(self, images: Tensor, times: Tensor, conditions: Tensor | None) -> Tensor:
        """Return v, (batch, 3, side, side)."""
        ...


def alpha_bars(steps: int) -> Tensor:
    """Return alpha_bar, the falling share of the image's variance that is left after each of `steps` steps: (steps,) float32.

    It is the running product of 1 - beta, with beta = 1 - f(t + 1) / f(t) <= .999, f(t) = cos((t / steps + s) / (1 + s) pi
    / 2)^2 and s = .008.
    """
    times = torch.arange(steps + 1, dtype=torch.float64) / steps
    left = torch.cos((times + OFFSET) / (1 + OFFSET) * math.pi / 2).square()
    return torch.cumprod(1 - (1 - left[1:] / left[:-1]).clamp(max=MOST_BETA), dim=0).float()


def noised(images: Tensor, noise: Tensor, left: Tensor) -> Tensor:
    """Return images at a time of the diffusion: sqrt(left) images + sqrt(1 - left) noise.

    Args:
        images, noise: (batch, 3, side, side).
        left: alpha_bar of each image's time, (batch,).
    """
    kept, added = _roots(left)
    return kept * images + added * noise


def velocity(images: Tensor, noise: Tensor, left: Tensor) -> Tensor:
    """Return the target v = sqrt(left) noise - sqrt(1 - left) images; arguments as in `noised`."""
    kept, added = _roots(left)
    return kept * noise - added * images


def signed(images: Tensor) -> Tensor:
    """Map images that were normalized for an encoder (ImageNet's mean and deviation) back to pixels in [-1, 1]."""
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (MEAN, STD))
    return ((images * std + mean) * 2 - 1).clamp(-1, 1)


def _roots(left: Tensor) -> tuple[Tensor, Tensor]:
    shaped = left.view(-1, 1, 1, 1)
    return shaped.sqrt(), (1 - shaped).sqrt()


def sampled_times(total: int, steps: int) -> list[int]:
    """Return the times of a sampler of `steps` steps, evenly spaced from high to low; the last is 0."""
    if not 1 <= steps <= total:
        raise ValueError(f"expected 1 to {total} sampling steps, the steps of the diffusion, not {steps}")
    return [number * (total // steps) for number in reversed(range(steps))]


def guided(model: Velocity, images: Tensor, times: Tensor, conditions: Tensor | None, guidance: float) -> Tensor:
    """Return v_none + guidance (v_conditional - v_none), (batch, 3, side, side) (Ho 2022, Eq. 6; guidance is its w + 1).

    Guidance 1 takes the conditional prediction as it is, 0 the unconditional one; larger values exaggerate the condition.
    """
    if conditions is None or guidance == 0:
        return model(images, times, None)
    if guidance == 1:
        return model(images, times, conditions)
    without, given = model(images, times, None), model(images, times, conditions)
    return without + guidance * (given - without)


def denoised(images: Tensor, v: Tensor, now: Tensor, before: Tensor) -> Tensor:
    """Return images one DDIM step nearer to the data, deterministically (eta 0), with the predicted image cut to [-1, 1].

    Args:
        images: the present images, (batch, 3, side, side).
        v: predicted velocity of the images, (batch, 3, side, side).
        now, before: alpha_bar at the images' time and at the next, less noisy, time; scalars.
    """
    clean = (now.sqrt() * images - (1 - now).sqrt() * v).clamp(-1, 1)
    noise = now.sqrt() * v + (1 - now).sqrt() * images
    return before.sqrt() * clean + (1 - before).sqrt() * noise


@torch.no_grad()
def ddim(
    model: Velocity,
    conditions: Tensor | None,
    noise: Tensor,
    *,
    steps: int,
    guidance: float = 1.0,
) -> Tensor:
    """Draw images from noise; equal noise, conditions and weights give equal images.

    Args:
        model: the network, in evaluation mode.
        conditions: (batch, dim) float32 on the network's device; None: unconditional.
        noise: (batch, 3, side, side), standard normal, on the same device.
        steps: number of steps, up to those of the diffusion.
        guidance: weight of the condition, see `guided`.

    Returns:
        (batch, 3, side, side) in [-1, 1].
    """
    left, images = model.alpha_bars, noise
    times = sampled_times(len(left), steps)
    for time, following in zip(times, [*times[1:], None], strict=True):
        before = torch.ones_like(left[0]) if following is None else left[following]
        now = torch.full((len(images),), time, device=images.device)
        images = denoised(images, guided(model, images, now, conditions, guidance), left[time], before)
    return images
