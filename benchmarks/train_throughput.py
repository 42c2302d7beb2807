"""The training step fed by its real input pipeline against the same step, augmentation included, on one fixed batch.

The pipeline reads a memory-mapped shard larger than the batch, in shuffled order. Both take turns in one process; prints
medians of images per second, also on a GPU if there is one.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from memlib.data.images.stored import read_images
from memlib.models.encoder import build_encoder
from memlib.objectives import build_objective
from memlib.specs import AugmentSpec, ModelSpec, TrainingSpec
from memlib.training.loop import Prefetcher, Training, TrainingSet, Worker


def make_training(images: np.ndarray, options: argparse.Namespace, device: torch.device) -> Training:
    spec = TrainingSpec(
        objective={"kind": "vicreg"},
        epochs=1000,
        batch_size=options.batch,
        augment=AugmentSpec(),
        precision="bfloat16" if device.type == "cuda" else "float32",
    )
    model = ModelSpec(backbone=options.backbone, input_size=options.side)
    data = TrainingSet(images, np.arange(len(images)), np.zeros(len(images), dtype=np.int64))
    encoder = build_encoder(model, num_classes=None, seed=0)
    return Training(
        encoder, build_objective(spec.objective), data, spec, input_size=options.side, worker=Worker(device=device)
    )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def measure(training: Training, steps: int, device: torch.device, *, fixed: bool) -> float:
    """Return images per second over `steps` steps."""
    batch = training.spec.batch_size
    first = training.step
    if fixed:
        images, labels = next(
            iter(Prefetcher(training.data, training.spec, training.worker, first_step=first, last_step=first + 1))
        )
        wait(device)
        start = time.perf_counter()
        for _ in range(steps):
            training.take_step(images, labels)
    else:
        wait(device)
        start = time.perf_counter()
        training.run(stop_after=first + steps)
    wait(device)
    return steps * batch / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="small_resnet")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--stored", type=int, default=64, help="side of the stored images")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.npy"
        shape = (options.images, options.stored, options.stored, 3)
        shard = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
        rng = np.random.default_rng(0)
        for start in range(0, options.images, 1000):
            part = shard[start : start + 1000]
            part[:] = rng.integers(0, 256, size=part.shape, dtype=np.uint8)
        shard.flush()
        for device in devices:
            training = make_training(read_images(path), options, device)
            measure(training, 2, device, fixed=True)
            speeds: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(options.repeats):
                for fixed in (True, False):
                    speeds[fixed].append(measure(training, options.steps, device, fixed=fixed))
            real, ideal = statistics.median(speeds[False]), statistics.median(speeds[True])
            name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
            setting = f"{options.backbone}, {options.stored} -> {options.side} px, batch {options.batch}, VICReg"
            print(
                f"{name}: {setting}: pipeline {real:.0f} images/s, fixed batch {ideal:.0f} images/s, ratio {real / ideal:.3f}"
            )


if __name__ == "__main__":
    main()
