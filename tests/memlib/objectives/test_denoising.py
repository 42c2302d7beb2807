import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch import Tensor

from memlib.errors import UserError
from memlib.models.denoising import alpha_bars, ddim, noised, signed, velocity
from memlib.models.generators import Denoiser, build_decoder, build_denoiser
from memlib.objectives import build_objective
from memlib.objectives.base import BatchPart
from memlib.objectives.denoising import draw_noise
from memlib.specs import DecoderSpec, DenoiserSpec, DenoisingSpec, GeneratorTrainingSpec, OptimizerSpec
from memlib.training.augment import normalize
from memlib.training.loop import Prefetcher, Training, TrainingSet, Worker
from tests.forks import together

SIDE, DIM = 8, 2
MODEL = DenoiserSpec(channels=(16, 16), input_size=SIDE, attention_side=4)
SHARED_STEPS = 2
QUICK = OptimizerSpec(learning_rate=3e-3, weight_decay=0, warmup_epochs=1, schedule="constant")
PLAIN = OptimizerSpec(name="sgd", learning_rate=0.1, momentum=0, weight_decay=0, warmup_epochs=0)  # multiplies no rounding


def make_data(count: int = 26) -> TrainingSet:
    """Random images with random conditions."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(40, SIDE, SIDE, 3), dtype=np.uint8)
    return TrainingSet(images, rng.permutation(40)[:count], rng.standard_normal((count, DIM), dtype=np.float32))


def two_images(count: int = 64) -> TrainingSet:
    """A dark image with a bright left half under the condition (1, 0), and its mirror under (0, 1), many times."""
    images = np.full((2, SIDE, SIDE, 3), 40, dtype=np.uint8)
    images[0, :, : SIDE // 2], images[1, :, SIDE // 2 :] = 215, 215
    which = np.arange(count) % 2
    return TrainingSet(images, which, np.eye(2, dtype=np.float32)[which])


def make_training(
    kind: str = "denoising", data: TrainingSet | None = None, *, worker: Worker | None = None, **changes: Any
) -> Training:
    objective = {"kind": kind, **({"ema": 0.9, "steps": 100} if kind == "denoising" else {}), **changes.pop("objective", {})}
    spec = GeneratorTrainingSpec(
        objective=objective,
        **({"epochs": 4, "batch_size": 8, "optimizer": QUICK} | changes),
    )
    if kind == "denoising":
        model = build_denoiser(MODEL, dim=DIM, steps=100, seed=1)
    else:
        model = build_decoder(DecoderSpec(kind="decoder", hidden=(16,), input_size=SIDE), dim=DIM, seed=1)
    return Training(model, build_objective(spec.objective), data or make_data(), spec, input_size=SIDE, worker=worker)


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def drawn(model: Denoiser, conditions: Tensor | None, count: int = 40, **options: Any) -> Tensor:
    """Return how much brighter the left half of drawn images is than the right half, (count,); 1.37 in the first image."""
    noise = torch.randn(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(3))
    given = None if conditions is None else conditions.expand(count, -1)
    images = ddim(model.teacher.eval(), given, noise, steps=20, **options)
    assert images.min() >= -1
    assert images.max() <= 1
    return images[..., : SIDE // 2].mean(dim=(1, 2, 3)) - images[..., SIDE // 2 :].mean(dim=(1, 2, 3))


@pytest.fixture(scope="module")
def plant() -> Denoiser:
    """A denoiser that has seen two images many times, and their conditions in all but a fifth of the cases."""
    training = make_training(data=two_images(), epochs=80, batch_size=32, objective={"drop": 0.2, "ema": 0.95})
    training.run()
    return training.model


def test_a_denoiser_of_two_images_draws_the_one_that_its_condition_names(plant: Denoiser) -> None:
    left, right = (drawn(plant, condition) for condition in torch.eye(2))
    assert (left > 0.7).float().mean() > 0.9
    assert (right < -0.7).float().mean() > 0.9


def test_a_denoiser_of_two_images_draws_either_without_a_condition(plant: Denoiser) -> None:
    found = drawn(plant, None)
    assert 0.2 < (found > 0.5).float().mean() < 0.8
    assert (found.abs() > 0.5).float().mean() > 0.8  # a whole image, not the mean of both


def test_guidance_changes_the_drawn_images(plant: Denoiser) -> None:
    weak, plain, strong = (drawn(plant, torch.eye(2)[0], guidance=weight).mean() for weight in (0.3, 1, 3))
    assert weak < plain
    assert (strong - plain).abs() > 0.001


def test_the_denoising_loss_is_the_squared_error_of_the_velocity() -> None:
    spec = DenoisingSpec(drop=0.5, steps=100)
    objective, model = build_objective(spec), build_denoiser(MODEL, dim=DIM, steps=100, seed=1)
    with torch.no_grad():
        model.head[-1].weight.normal_(generator=torch.Generator().manual_seed(4))
    views, conditions = normalize(torch.rand(3, 3, SIDE, SIDE)), torch.randn(3, DIM)
    objective.part = BatchPart(seed=7, step=5, size=8, rows=slice(2, 5))
    draws, images, left = draw_noise(spec, (8, 3, SIDE, SIDE), seed=7, step=5), signed(views), alpha_bars(100)
    errors = []
    for row in range(3):  # one by one
        time, noise = draws.times[row + 2 : row + 3], draws.noise[row + 2 : row + 3]
        given = None if draws.dropped[row + 2] else conditions[row : row + 1]
        image = images[row : row + 1]
        v = model(noised(image, noise, left[time]), time, given)
        errors.append((v - velocity(image, noise, left[time])).square().mean().item())
    assert float(objective(model, [views], conditions)["loss"]) == pytest.approx(np.mean(errors), rel=1e-5)


def test_draws_are_uniform_in_time_and_drop_the_given_share() -> None:
    spec = DenoisingSpec(drop=0.25, steps=10)
    draws = draw_noise(spec, (4000, 3, 2, 2), seed=1, step=2)
    assert torch.bincount(draws.times).tolist() == pytest.approx([400] * 10, abs=95)  # 5 standard deviations
    assert float(draws.dropped.float().mean()) == pytest.approx(0.25, abs=0.035)
    assert float(draws.noise.std()) == pytest.approx(1, abs=0.02)
    assert not torch.equal(draws.noise, draw_noise(spec, (4000, 3, 2, 2), seed=1, step=3).noise)


def test_the_moving_average_of_the_weights_is_the_closed_form() -> None:
    training = make_training(objective={"ema": 0.7})
    seen = [{name: value.clone() for name, value in training.model.teacher.named_parameters()}]
    training.run(after_step=lambda run: seen.append({n: v.detach().clone() for n, v in run.model.named_parameters()}))
    count = len(seen) - 1
    assert count == 12
    for name, value in training.model.teacher.named_parameters():
        past = sum(0.7 ** (count - step) * 0.3 * seen[step][name] for step in range(1, count + 1))
        assert torch.allclose(value, past + 0.7**count * seen[0][name], atol=1e-6), name


def test_a_decoder_learns_the_mean_image_of_each_condition() -> None:
    training = make_training("decoding", two_images(), epochs=150, batch_size=32)
    training.run()
    images = training.model(torch.zeros(2, 3, SIDE, SIDE), None, torch.eye(2))
    halves = images[..., : SIDE // 2].mean(dim=(1, 2, 3)) - images[..., SIDE // 2 :].mean(dim=(1, 2, 3))
    assert halves.tolist() == pytest.approx([175 / 127.5, -175 / 127.5], abs=0.1)


@pytest.mark.parametrize(
    ("kind", "precision"), [("denoising", "float32"), ("denoising", "bfloat16"), ("decoding", "float32")]
)
@pytest.mark.parametrize("stop", [1, 5])
def test_stopping_and_resuming_changes_no_bit_of_a_generator(kind: str, precision: str, stop: int) -> None:
    whole, first = make_training(kind, precision=precision), make_training(kind, precision=precision)
    whole.run()
    first.run(stop_after=stop)
    second = make_training(kind, precision=precision)
    torch.manual_seed(99)  # whatever the process did before
    second.load_state(through_a_file(first.state()))
    second.run()
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, second.model.state_dict()[name]), name


def test_batches_pair_each_image_with_its_condition_vector(tmp_path: Path) -> None:
    data, spec = make_data(), GeneratorTrainingSpec(epochs=2, batch_size=8, shuffle=False)
    np.save(tmp_path / "conditions.npy", data.labels)
    mapped = TrainingSet(data.images, data.rows, np.load(tmp_path / "conditions.npy", mmap_mode="r"))
    for start, (images, conditions) in enumerate(Prefetcher(mapped, spec, Worker(1, 2), first_step=0, last_step=3)):
        rows = np.arange(start * 8 + 4, start * 8 + 8)  # the second worker's half
        assert torch.equal(conditions, torch.from_numpy(data.labels[rows]))
        assert torch.equal(images, torch.from_numpy(data.read(rows)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accumulate": 2}, "accumulate is only for language models"),
        ({"patience": 3}, "patience needs validation images, which generators do not have"),
        ({"privacy": {"noise": 1.0}}, "the loss of denoising is defined on whole batches"),
        ({"objective": {"kind": "vicreg"}}, "'denoising', 'decoding'"),
    ],
)
def test_settings_that_generators_do_not_have_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GeneratorTrainingSpec.model_validate({"epochs": 1, **changes})


def test_too_few_images_for_a_batch_are_refused() -> None:
    with pytest.raises(UserError, match="batch_size 64 exceeds the 26"):
        make_training(batch_size=64)


def train_shared(rank: int, folder: str, kind: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    worker = Worker(rank, 2, torch.device("cpu"), dist.new_group([0, 1]))
    training = make_training(kind, worker=worker, optimizer=PLAIN)
    training.run(stop_after=SHARED_STEPS)
    if rank == 0:
        torch.save(training.model.state_dict(), f"{folder}/shared.pt")
    dist.destroy_process_group()


@pytest.mark.parametrize("kind", ["denoising", "decoding"])
@pytest.mark.long
def test_two_workers_train_the_same_generator_as_one(kind: str, tmp_path: Path) -> None:
    together(train_shared, str(tmp_path), kind)
    alone = make_training(kind, optimizer=PLAIN)
    before = {name: tensor.clone() for name, tensor in alone.model.state_dict().items()}
    alone.run(stop_after=SHARED_STEPS)
    shared = torch.load(tmp_path / "shared.pt", weights_only=True)
    assert any(not torch.equal(before[name], tensor) for name, tensor in shared.items())
    for name, tensor in alone.model.state_dict().items():
        assert torch.allclose(tensor, shared[name], rtol=0, atol=1e-6), name
