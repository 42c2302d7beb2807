"""A training step of a generator in memlib's loop against a plain loop of the same U-Net, optimizer and moving average.

    python benchmarks/generator_step.py

The plain loop holds images and conditions in memory and draws its noise on the fly; both take turns in one process, with the
same threads. Prints the ratio of times per step with a 95 % interval (bootstrap over the pairs of turns), which must be at
most 1.1, and then that of the U-Net in channels_last to the same with contiguous weights and images.
"""

import argparse
import copy
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from memlib.models.denoising import noised, velocity
from memlib.models.generators import Denoiser, build_denoiser
from memlib.objectives import build_objective
from memlib.specs import DenoiserSpec, DenoisingSpec, GeneratorTrainingSpec
from memlib.training.loop import Training, TrainingSet, Worker
from memlib.training.optim import build_optimizer

Turn = Callable[[int], None]
REPLICATES = 10_000


def make_data(options: argparse.Namespace) -> TrainingSet:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(options.images, options.side, options.side, 3), dtype=np.uint8)
    return TrainingSet(images, np.arange(len(images)), rng.standard_normal((len(images), options.dim), dtype=np.float32))


def make_spec(options: argparse.Namespace) -> GeneratorTrainingSpec:
    return GeneratorTrainingSpec(epochs=1000, batch_size=options.batch)


def make_network(options: argparse.Namespace) -> Denoiser:
    spec = DenoiserSpec(channels=tuple(options.channels), input_size=options.side)
    return build_denoiser(spec, dim=options.dim, steps=1000, seed=0)


def our_loop(options: argparse.Namespace, device: torch.device) -> Turn:
    spec = make_spec(options)
    training = Training(
        make_network(options), build_objective(spec.objective), make_data(options), spec, input_size=options.side,
        worker=Worker(device=device),
    )  # fmt: skip
    return lambda steps: training.run(stop_after=training.step + steps)


def plain_loop(options: argparse.Namespace, device: torch.device, layout: torch.memory_format) -> Turn:
    data, spec = make_data(options), make_spec(options)
    objective = spec.objective
    assert isinstance(objective, DenoisingSpec)
    network = make_network(options).to(device).to(memory_format=layout)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = build_optimizer(spec.optimizer, [network])
    for group in optimizer.param_groups:
        group["lr"] = spec.optimizer.learning_rate
    images = torch.from_numpy(data.images).to(device).permute(0, 3, 1, 2).float().div(127.5).sub(1)
    images, conditions = images.contiguous(memory_format=layout), torch.from_numpy(np.asarray(data.labels)).to(device)

    def step() -> None:
        rows = torch.randint(0, len(images), (options.batch,), device=device)
        clean, noise = images[rows], torch.randn(options.batch, *images.shape[1:], device=device)
        times = torch.randint(0, 1000, (options.batch,), device=device)
        dropped = torch.rand(options.batch, device=device) < objective.drop
        left = network.alpha_bars[times]
        seen = noised(clean, noise, left).contiguous(memory_format=layout)
        optimizer.zero_grad(set_to_none=True)
        loss: Tensor = F.mse_loss(network(seen, times, conditions[rows], dropped), velocity(clean, noise, left))
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mean, value in zip(average.parameters(), network.parameters(), strict=True):
                mean.lerp_(value, 1 - objective.ema)

    def turn(steps: int) -> None:
        for _ in range(steps):
            step()

    return turn


def seconds_of(turn: Turn, steps: int, device: torch.device) -> float:
    """Return seconds per step."""
    start = time.perf_counter()
    turn(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps


def compared(first: Turn, second: Turn, options: argparse.Namespace, device: torch.device) -> str:
    """Return the median times per step and the ratio of the first to the second, with an interval over the pairs of turns."""
    pairs = []
    for turn in (first, second):
        turn(2)  # warm-up
    for number in range(options.repeats):
        order = (first, second) if number % 2 == 0 else (second, first)
        found = {turn: seconds_of(turn, options.steps, device) for turn in order}
        pairs.append((found[first], found[second]))
    logs = np.log([a / b for a, b in pairs])
    draws = np.median(np.random.default_rng(0).choice(logs, size=(REPLICATES, len(logs))), axis=1)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    medians = " against ".join(f"{statistics.median(values) * 1000:.1f}" for values in zip(*pairs, strict=True))
    return f"{medians} ms, ratio {np.exp(np.median(logs)):.3f} [{low:.3f}, {high:.3f}] in {len(pairs)} pairs of {options.steps} steps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, nargs="+", default=[16, 32, 48])
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--dim", type=int, default=512, help="length of a condition")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    for device in [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]:
        name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        load = f", load {os.getloadavg()[0]:.1f}" if device.type == "cpu" else ""
        channels = "-".join(map(str, options.channels))
        plain = plain_loop(options, device, torch.channels_last)
        print(f"{name}{load}: U-Net {channels}, {options.side} px, batch {options.batch}")
        print(f"  memlib's loop against a plain one: {compared(our_loop(options, device), plain, options, device)}")
        contiguous = plain_loop(options, device, torch.contiguous_format)
        print(f"  channels_last against contiguous: {compared(plain, contiguous, options, device)}")


if __name__ == "__main__":
    main()
