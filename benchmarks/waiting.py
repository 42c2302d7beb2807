"""CPU seconds and time of trainings, and of a whole audit, alone and beside two busy processes.

before: OpenMP as it comes, whose threads spin while they wait, and as many threads as there are cores. today: the environment of
memlib's commands and workers, and the threads that memlib chooses by the size of a step. Other work and settings alternate; each
training is a process of its own and is timed after two steps. imports: Python that loads the libraries of an audit and ends, which
tells what other work costs any program on this machine. audit: the recipe smoke, from an empty store, by `memlib run`. CPU seconds of
these two are those of the machine without those of the busy processes, so that nothing else may run.
"""

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

KINDS = {  # backbone, width, side, examples a batch, steps
    "tiny": ("small_resnet", 8, 16, 16, 300),
    "small": ("small_resnet", 32, 32, 50, 40),  # the model and the batches of the recipe smoke
    "large": ("resnet18", 32, 64, 32, 4),
}
WHOLE = {  # programs that are measured from their start to their end
    "imports": ["-c", "import prefect, ray.train, torch"],
    "audit": ["-m", "flows.cli.entry", "run", "deja-vu", "--recipe", "smoke", "--quiet", "--store"],
}
SETTINGS = ("before", "today")
Measured = tuple[float, float, str]  # CPU seconds, seconds, threads of a training


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
def beside(busy: int) -> Iterator[list[psutil.Process]]:
    """Run busy processes meanwhile."""
    others = [multiprocessing.Process(target=spin, args=(time.time() + 3600,), daemon=True) for _ in range(busy)]
    for other in others:
        other.start()
    try:
        yield [psutil.Process(other.pid) for other in others]
    finally:
        for other in others:
            other.kill()
            other.join()


def measure(kind: str, setting: str, others: Sequence[psutil.Process]) -> Measured:
    """Return the CPU seconds, the seconds and the threads of a training or of the audit."""
    from memlib.settings import PASSIVE

    if kind in WHOLE:
        return measure_whole(kind, others)
    plain = {name: value for name, value in os.environ.items() if name not in PASSIVE}
    environment = plain | (PASSIVE if setting == "today" else {})
    command = [sys.executable, __file__, "--run", kind, setting]
    cpu, wall, threads = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()
    return float(cpu), float(wall), threads


def measure_whole(kind: str, others: Sequence[psutil.Process]) -> Measured:
    """Return the CPU seconds and the seconds of a program, whose last argument is an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        cpu, wall = _cpu_seconds(others), time.perf_counter()
        subprocess.run([sys.executable, *WHOLE[kind], folder], capture_output=True, check=True)
        return _cpu_seconds(others) - cpu, time.perf_counter() - wall, ""


def _cpu_seconds(others: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of the machine so far, without those of some processes; also of processes that nobody waits for."""
    times = psutil.cpu_times()
    used = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
    return float(used - sum(sum(other.cpu_times()[:2]) for other in others))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS, *WHOLE], default=list(KINDS))
    parser.add_argument("--busy", nargs="*", type=int, default=[0, 2], help="numbers of busy processes; with 0")
    parser.add_argument("--run", nargs=2)
    options = parser.parse_args()
    if options.run:
        return run(*options.run)
    print("| model | other work | setting | threads | CPU s | range | time s | range | times today alone: CPU s | time s |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    for kind in options.kinds:
        found: dict[tuple[int, str], list[Measured]] = {}
        for number in range(options.times):
            order = 1 if number % 2 else -1
            for busy in options.busy[::order]:
                with beside(busy) as others:
                    for setting in SETTINGS[1:] if kind in WHOLE else SETTINGS[::order]:
                        found.setdefault((busy, setting), []).append(measure(kind, setting, others))
        for (busy, setting), rows in sorted(found.items()):
            texts, ratios = [], []
            for place in (0, 1):
                values, alone = ([float(row[place]) for row in of] for of in (rows, found[0, "today"]))
                texts.append(f"{statistics.median(values):.2f} | {min(values):.2f} to {max(values):.2f}")
                ratios.append(f"{statistics.median(a / b for a, b in zip(values, alone, strict=True)):.2f}")
            other = f"{busy} busy processes" if busy else "none"
            print(f"| {kind} | {other} | {setting} | {rows[0][2]} | {' | '.join([*texts, *ratios])} |", flush=True)
    return None


if __name__ == "__main__":
    main()
