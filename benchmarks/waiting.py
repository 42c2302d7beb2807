"""CPU seconds and time of a training run whose threads spin or sleep while they wait, alone and beside two busy processes.

before: OpenMP as it comes, and as many threads as there are cores. today: the environment of memlib's commands and workers, and the
threads that memlib chooses by the size of a step. Settings alternate; each run is a process of its own and is timed after two steps.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = {  # backbone, width, side, examples a batch, steps
    "tiny": ("small_resnet", 8, 16, 16, 300),
    "small": ("small_resnet", 32, 32, 50, 40),  # the model and the batches of the recipe smoke
    "large": ("resnet18", 32, 64, 32, 4),
}
SETTINGS = ("before", "today")


def run(kind: str, setting: str) -> None:
    """Train one model and print its CPU seconds, its seconds and its threads."""
    import numpy as np
    import torch

    from memlib.models.encoder import build_encoder
    from memlib.objectives import build_objective
    from memlib.specs import AugmentSpec, ModelSpec, TrainingSpec
    from memlib.training import threads
    from memlib.training.loop import Training, TrainingSet

    if setting == "before":
        threads.FEW_MULTIPLICATIONS = 0
    backbone, width, side, batch, steps = KINDS[kind]
    count = batch * (steps + 2)
    rng = np.random.default_rng(0)
    data = TrainingSet(
        rng.integers(0, 256, size=(count, side, side, 3), dtype=np.uint8), np.arange(count), rng.integers(0, 10, size=count)
    )
    model = ModelSpec(backbone=backbone, width=width, projector=(128, 128), input_size=side)
    spec = TrainingSpec(objective={"kind": "supervised"}, epochs=1, batch_size=batch, augment=AugmentSpec())
    encoder = build_encoder(model, num_classes=10, seed=0)
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    training = Training(encoder, build_objective(spec.objective), data, spec, input_size=side)
    training.run(stop_after=2)
    cpu, wall = time.process_time(), time.perf_counter()
    training.run()
    print(time.process_time() - cpu, time.perf_counter() - wall, training.threads)


def spin(end: float) -> None:
    """Keep a core busy until a time."""
    while time.time() < end:
        sum(range(10_000))


@contextmanager
def beside(busy: int) -> Iterator[None]:
    """Run busy processes meanwhile."""
    others = [multiprocessing.Process(target=spin, args=(time.time() + 900,), daemon=True) for _ in range(busy)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def measure(kind: str, setting: str) -> tuple[float, float, int]:
    from memlib.settings import PASSIVE

    plain = {name: value for name, value in os.environ.items() if name not in PASSIVE}
    environment = plain | (PASSIVE if setting == "today" else {})
    command = [sys.executable, __file__, "--run", kind, setting]
    cpu, wall, threads = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return float(cpu), float(wall), int(threads)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--busy", nargs="*", type=int, default=[0, 2], help="numbers of busy processes; the first must be 0")
    parser.add_argument("--run", nargs=2)
    options = parser.parse_args()
    if options.run:
        return run(*options.run)
    print("| model | other work | setting | threads | CPU s | range | time s | range | CPU s, times today alone |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for kind in options.kinds:
        alone = 0.0
        for busy in options.busy:
            found: dict[str, list[tuple[float, float, int]]] = {setting: [] for setting in SETTINGS}
            with beside(busy):
                for number in range(options.times):
                    for setting in SETTINGS[:: 1 if number % 2 else -1]:
                        found[setting].append(measure(kind, setting))
            cpus = {setting: statistics.median(row[0] for row in rows) for setting, rows in found.items()}
            alone = alone or cpus["today"]
            for setting, rows in found.items():
                times = [[row[place] for row in rows] for place in (0, 1)]
                texts = [f"{statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f}" for values in times]
                other = f"{busy} busy processes" if busy else "none"
                print(
                    f"| {kind} | {other} | {setting} | {rows[0][2]} | {' | '.join(texts)} | {cpus[setting] / alone:.2f} |",
                    flush=True,
                )
    return None


if __name__ == "__main__":
    main()
