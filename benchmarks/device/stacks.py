"""Stacks of small nets: the chosen size beside other sizes, and a stack that the memory of a GPU does not hold."""

import functools
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks import shadow_nets
from benchmarks.device.checks import Check, Clock, Found, only_on_gpu, seconds_of
from memlib.specs import ClassifierSpec
from memlib.store import Ref, Store
from memlib.training.small_nets import train_fleet
from memlib.training.stacked import Examples, NetResult, choose_stack_size, even_size, train_nets

MOST_SLOWER = {"cuda": 1.5, "cpu": 2.0}  # seconds of the chosen size, relative to the fastest one; a CPU may have other work
SHARES = (16, 4, 2)  # of the chosen size
REPEATS = 3
SAME_NETS = 1e-2  # relative difference of all weights of two stackings; Adam turns rounding near 0 into whole steps


@dataclass(frozen=True)
class Nets:
    """An architecture, the data of its nets, and the number of nets by device."""

    name: str
    model: ClassifierSpec
    case: shadow_nets.Case
    count: dict[str, int]
    shape: tuple[int, ...] = ()

    @functools.cached_property
    def data(self) -> Examples:
        """The pool of examples: points, or images of uniform bytes."""
        pool = shadow_nets.pool_of(self.case)
        if not self.shape:
            return pool
        images = np.random.default_rng(2).integers(0, 256, size=(self.case.pool, *self.shape), dtype=np.uint8)
        return Examples(images, pool.labels)

    def train(self, count: int, size: int, device: torch.device) -> list[NetResult]:
        """Train `count` nets for an epoch, `size` at a time."""
        how, half = shadow_nets.training(self.case, 1), self.case.pool // 2
        jobs = shadow_nets.jobs_of(self.case, count)
        return train_nets(
            self.model, how, self.data, jobs, self.case.classes, stack_size=size, device=device, epoch_size=half
        )

    def chosen(self, count: int, device: torch.device) -> int:
        """Return the size of stacks that memlib chooses."""
        how, jobs = shadow_nets.training(self.case, 1), shadow_nets.jobs_of(self.case, count)
        half = self.case.pool // 2
        return choose_stack_size(self.model, how, self.data, jobs, self.case.classes, device, epoch_size=half)


POINTS, IMAGES = shadow_nets.Case((32,), 30, 2, 569, 32), shadow_nets.Case((512,), 784, 10, 512, 64)
DENSE = Nets("mlp 30-32-2", POINTS.model, POINTS, {"cuda": 512, "cpu": 64})
CONVOLUTIONAL = Nets("cnn_1, 28 px", ClassifierSpec(architecture="cnn_1"), IMAGES, {"cuda": 64, "cpu": 4}, shape=(28, 28, 1))
WIDE = Nets("mlp 784-512-10", IMAGES.model, IMAGES, {"cuda": 64, "cpu": 4})


def beside_other_sizes(nets: Nets, device: torch.device) -> Found:
    """Time the chosen size and others, which take turns."""
    count = nets.count[device.type]
    chosen = nets.chosen(count, device)
    sizes = sorted({max(1, chosen // share) for share in SHARES} | {chosen, min(count, 2 * chosen)})
    nets.train(min(count, 2), 2, device)  # warm-up
    times = {
        size: min(seconds_of(lambda size=size: nets.train(count, size, device), device) for _ in range(REPEATS))
        for size in sizes
    }
    best, most = min(times, key=times.__getitem__), MOST_SLOWER[device.type]
    ratio = times[chosen] / times[best]
    shown = ", ".join(f"{size}: {seconds:.3f} s" for size, seconds in times.items())
    text = f"{count} nets in stacks of {chosen}, {ratio:.2f} times the fastest ({best}; at most {most:g}); {shown}"
    return Found(ratio <= most, text, {"chosen": chosen, "fastest": best, "ratio": ratio, "seconds": times})


def halving(nets: Nets, device: torch.device) -> Found:
    """Cap the memory between the needs of the chosen size and of half of it; the stack must be halved once, with equal nets."""
    count, case = nets.count["cuda"], nets.case
    size = nets.chosen(count, device)
    half = even_size(count, -(-size // 2))
    needs, wanted = {}, []
    for tried in (half, size):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        wanted = nets.train(count, tried, device)
        needs[tried] = torch.cuda.max_memory_reserved(device)
    torch.cuda.empty_cache()
    cap = (needs[half] + needs[size]) / 2 / torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(cap, device)
    try:
        with tempfile.TemporaryDirectory() as folder:
            store = Store(folder)
            how, jobs = shadow_nets.training(case, 1), shadow_nets.jobs_of(case, count)
            with store.artifacts.write(Ref("nets", "halved")) as attempt:
                found = train_fleet(
                    attempt, nets.model, how, nets.data, jobs, case.classes, device=device, epoch_size=case.pool // 2
                )
                facts = attempt.facts
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
    apart = shadow_nets.difference(found, [result.state for result in wanted])
    text = (
        f"stacks of {size} need {needs[size] / 2**20:.0f} MiB, of {half} {needs[half] / 2**20:.0f}; between them, {count} nets "
        f"were trained in stacks of {facts['stack_size']} after {facts['halved']} halvings; weights differ by {apart:.0e}"
    )
    passed = facts["halved"] == 1 and facts["stack_size"] == half and apart <= SAME_NETS
    return Found(passed, text, {"halved": facts["halved"], "stack_size": facts["stack_size"], "weights": apart})


def checks(device: torch.device, clock: Clock) -> Iterator[Check]:
    """Yield the checks of stacks."""
    for nets in (DENSE, CONVOLUTIONAL):
        yield Check(nets.name, lambda nets=nets: beside_other_sizes(nets, device))
    yield Check("a stack that does not fit", lambda: halving(WIDE, device), only_on_gpu(device))
