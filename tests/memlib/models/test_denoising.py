import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from memlib.models.denoising import alpha_bars, ddim, denoised, guided, noised, sampled_times, signed, velocity
from memlib.training.augment import normalize, pixels

SCHEDULE = {"beta_schedule": "squaredcos_cap_v2", "prediction_type": "v_prediction"}


def of_diffusers(kind: str, **settings: Any) -> Any:
    """Return a scheduler of diffusers, which only these tests load."""
    import diffusers

    return getattr(diffusers, kind)(**settings)


class Bent:
    """A fixed function in place of a network: it depends on the image, the time and the condition."""

    def __init__(self, steps: int = 1000) -> None:
        self.alpha_bars = alpha_bars(steps)

    def __call__(self, images: Tensor, times: Tensor, conditions: Tensor | None) -> Tensor:
        shift = torch.zeros(len(images)) if conditions is None else conditions[:, 0]
        return torch.sin(3 * images + times.view(-1, 1, 1, 1) / 100) + shift.view(-1, 1, 1, 1)


def noise(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_schedule_of_one_and_of_two_steps_is_solved_by_hand() -> None:
    assert alpha_bars(1).tolist() == pytest.approx([0.001])  # the cosine would leave nothing, but beta is at most .999
    half, whole = (math.cos(place / 1.008 * math.pi / 2) ** 2 for place in (0.508, 0.008))
    assert alpha_bars(2).tolist() == pytest.approx([half / whole, half / whole * 0.001])


@pytest.mark.parametrize("steps", [1, 10, 1000])
def test_the_noise_schedule_equals_that_of_diffusers(steps: int) -> None:
    theirs = of_diffusers("DDPMScheduler", num_train_timesteps=steps, **SCHEDULE).alphas_cumprod
    assert torch.allclose(alpha_bars(steps), theirs, rtol=0, atol=1e-6)


def test_noised_images_and_velocities_equal_those_of_diffusers() -> None:
    images, added, times = noise(5, 1).clamp(-1, 1), noise(5, 2), torch.tensor([0, 1, 500, 998, 999])
    theirs, left = of_diffusers("DDPMScheduler", **SCHEDULE), alpha_bars(1000)[times]
    assert torch.allclose(noised(images, added, left), theirs.add_noise(images, added, times), rtol=0, atol=1e-6)
    assert torch.allclose(velocity(images, added, left), theirs.get_velocity(images, added, times), rtol=0, atol=1e-6)


def test_image_and_noise_are_recovered_from_the_velocity() -> None:
    images, added, left = noise(3, 1).clamp(-1, 1), noise(3, 2), torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64)
    seen, v, root = noised(images, added, left), velocity(images, added, left), left.view(-1, 1, 1, 1)
    assert torch.allclose(root.sqrt() * seen - (1 - root).sqrt() * v, images)
    assert torch.allclose(root.sqrt() * v + (1 - root).sqrt() * seen, added)


@pytest.mark.parametrize(
    ("steps", "tolerance"),
    [(1, 1e-6), (10, 1e-6), (50, 1e-6), (1000, 5e-5)],  # at time 0, single precision keeps three digits of 1 - alpha_bar
)
def test_every_step_of_the_sampler_equals_that_of_diffusers(steps: int, tolerance: float) -> None:
    theirs, model = of_diffusers("DDIMScheduler", clip_sample=True, **SCHEDULE), Bent()
    theirs.set_timesteps(steps)
    images, left = noise(), model.alpha_bars
    times = sampled_times(1000, steps)
    assert times == theirs.timesteps.tolist()
    for time, following in zip(times, [*times[1:], None], strict=True):
        v = model(images, torch.full((4,), time), None)
        before = torch.tensor(1.0) if following is None else left[following]
        ours = denoised(images, v, left[time], before)
        images = theirs.step(v, time, images).prev_sample
        assert torch.allclose(ours, images, rtol=0, atol=tolerance)
    if steps < 1000:  # rounding adds up
        assert torch.allclose(ddim(model, None, noise(), steps=steps), images, rtol=0, atol=1e-5)


def test_a_denoiser_that_knows_the_images_draws_them_from_any_noise() -> None:
    aim = torch.linspace(-1, 1, 4 * 3 * 64, dtype=torch.float64).view(4, 3, 8, 8)

    class Knowing(Bent):
        def __call__(self, images: Tensor, times: Tensor, *_: Tensor | None) -> Tensor:
            left = self.alpha_bars[times].double().view(-1, 1, 1, 1)  # what points from the noise at the known image
            return (left.sqrt() * images - aim) / (1 - left).sqrt()

    assert torch.allclose(ddim(Knowing(), None, noise(), steps=20), aim, atol=1e-5)


def test_guidance_extrapolates_from_the_unconditional_to_the_conditional_prediction() -> None:
    model, images, times, conditions = Bent(), noise(), torch.full((4,), 300), torch.ones(4, 1).double()
    without = model(images, times, None)
    for weight in (0.0, 0.5, 1.0, 3.0):
        found = guided(model, images, times, conditions, weight)
        assert torch.allclose(found, without + weight)  # the condition adds 1
    assert torch.equal(guided(model, images, times, None, 3.0), without)


@pytest.mark.parametrize("steps", [0, 1001])
def test_more_sampling_steps_than_the_diffusion_has_are_refused(steps: int) -> None:
    with pytest.raises(ValueError, match=f"expected 1 to 1000 sampling steps, .*, not {steps}"):
        sampled_times(1000, steps)


def test_images_that_were_normalized_return_to_pixels_within_minus_one_and_one() -> None:
    stored = np.arange(256, dtype=np.uint8).repeat(3).reshape(1, 16, 16, 3)
    images = signed(normalize(pixels(torch.from_numpy(stored), torch.device("cpu"))))
    assert images.min() == -1
    assert images.max() == 1
    assert torch.allclose(images[0, 0].flatten(), torch.linspace(-1, 1, 256), atol=1e-6)
