"""Shadow nets with training sets of unequal size, trained as stacks against one at a time: same data, seeds and steps.

    python benchmarks/shadow_nets.py [--nets 64] [--epochs 3] [--repeats 3]

Each net has its own training set, drawn from a pool by fair coins. Three ways take turns in one process with the same
threads: stacks of the size that memlib chooses; stacks of one net; and a plain loop of torch modules and a torch.optim.AdamW
each, which trains some of the nets, its time scaled to all. Prints medians, the ratios of the other two and of the fastest
other size of stacks to that size, and the largest relative difference of the weights between stacks and the plain loop.
"""

import argparse
import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F

from memlib.data.canaries.features import TrainingRows
from memlib.models.classifiers import build_classifier
from memlib.specs import ClassifierSpec, TrainingSpec
from memlib.training.stacked import Examples, NetJob, NetResult, choose_stack_size, stream, train_nets

CPU = torch.device("cpu")
Value = TypeVar("Value")
SIZES = (2, 4, 8, 16, 32, 64)  # of stacks
PLAIN_NETS = 8  # nets of the plain loop, which is slow


@dataclass(frozen=True)
class Case:
    """An architecture and the pool from which its nets draw their training sets."""

    widths: tuple[int, ...]
    dim: int
    classes: int
    pool: int
    batch: int

    @property
    def model(self) -> ClassifierSpec:
        return ClassifierSpec(architecture="mlp", widths=self.widths)

    @property
    def num_parameters(self) -> int:
        sizes = (self.dim, *self.widths, self.classes)
        return sum((below + 1) * above for below, above in itertools.pairwise(sizes))


CASES = [Case((32,), 30, 2, 569, 32), Case((128, 32), 30, 2, 569, 32), Case((128,), 784, 10, 1000, 64)]


def pool_of(case: Case) -> Examples:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, case.classes, case.pool)
    centers = rng.normal(size=(case.classes, case.dim))
    return Examples((rng.normal(size=(case.pool, case.dim)) + centers[labels]).astype(np.float32), labels)


def jobs_of(case: Case, count: int) -> list[NetJob]:
    coins = np.random.default_rng(1).random((count, case.pool)) < 0.5
    sets = [np.flatnonzero(row) for row in coins]
    return [NetJob(seed, TrainingRows(rows, np.zeros(len(rows), dtype=bool))) for seed, rows in enumerate(sets)]


def training(case: Case, epochs: int) -> TrainingSpec:
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"}
    return TrainingSpec.model_validate(
        {
            "objective": {"kind": "supervised"},
            "epochs": epochs,
            "batch_size": case.batch,
            "augment": None,
            "optimizer": optimizer,
        }
    )


def plain(case: Case, data: Examples, jobs: list[NetJob], epochs: int) -> list[dict[str, torch.Tensor]]:
    size = case.pool // 2
    count = size // case.batch * case.batch
    states = []
    for job in jobs:
        inputs, labels = torch.from_numpy(data.images[job.rows.rows]), torch.from_numpy(data.labels[job.rows.rows])
        net = build_classifier(case.model, (case.dim,), case.classes, seed=job.seed)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0)
        for epoch in range(epochs):
            order = torch.from_numpy(stream(len(labels), seed=job.seed, start=epoch * size, count=count))
            for chosen in order.split(case.batch):
                optimizer.zero_grad()
                F.cross_entropy(net(inputs[chosen]), labels[chosen]).backward()
                optimizer.step()
        states.append(net.state_dict())
    return states


def flat(state: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([state[name].double().flatten() for name in sorted(state)])


def difference(results: list[NetResult], states: list[dict[str, torch.Tensor]]) -> float:
    pairs = [(flat(result.state), flat(state)) for result, state in zip(results, states, strict=False)]
    return max(float((a - b).norm() / b.norm()) for a, b in pairs)


def timed(work: Callable[[], Value]) -> tuple[float, Value]:
    started = time.perf_counter()
    value = work()
    return time.perf_counter() - started, value


def compare(case: Case, options: argparse.Namespace) -> None:
    data, jobs, how = pool_of(case), jobs_of(case, options.nets), training(case, options.epochs)
    some, half = jobs[:PLAIN_NETS], case.pool // 2
    train_nets(case.model, how, data, some, case.classes, stack_size=2, device=CPU, epoch_size=half)  # warm-up
    size = choose_stack_size(case.model, how, data, jobs, case.classes, CPU, epoch_size=half)

    def stacked(stack_size: int) -> list[NetResult]:
        return train_nets(case.model, how, data, jobs, case.classes, stack_size=stack_size, device=CPU, epoch_size=half)

    sizes = [other for other in SIZES if other not in (1, size)]
    times: dict[str, list[float]] = {name: [] for name in ("stacks", "one", "plain", *map(str, sizes))}
    for _ in range(options.repeats):
        seconds, results = timed(lambda: stacked(size))
        times["stacks"].append(seconds)
        times["one"].append(timed(lambda: stacked(1))[0])
        for other in sizes:
            times[str(other)].append(timed(functools.partial(stacked, other))[0])
        seconds, states = timed(lambda: plain(case, data, some, options.epochs))
        times["plain"].append(seconds * len(jobs) / len(some))
    median = {name: statistics.median(values) for name, values in times.items()}
    best = min(map(str, sizes), key=median.__getitem__)
    print(
        f"{'-'.join(map(str, (case.dim, *case.widths, case.classes)))} ({case.num_parameters:,} parameters), batch {case.batch}, "
        f"{options.epochs} epochs of {half}: stacks of {size}: {median['stacks']:.2f} s; "
        f"one at a time {median['one']:.2f} s, ratio {median['one'] / median['stacks']:.2f}; "
        f"plain loop {median['plain']:.2f} s, ratio {median['plain'] / median['stacks']:.2f}; "
        f"fastest other size {best}, ratio {median[best] / median['stacks']:.2f}; largest difference {difference(results, states):.0e}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"{options.nets} nets, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}")
    for case in CASES:
        compare(case, options)


if __name__ == "__main__":
    main()
