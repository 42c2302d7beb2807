"""The rates of machines: measured by `memlib doctor --measure` and kept in a store, or assumed."""

from __future__ import annotations

import hashlib
import os
import time

from memlib.pricing.work import Rate, Rates
from memlib.sanitize import count_of
from memlib.specs.cores import cores
from memlib.store import Store
from memlib.store.records import Record, Seconds, Unreadable, parse

FOLDER = "machines"
TRIAL, TRIALS = 2**24, 3  # bytes of a file that is sent to a remote store to see how fast that is, and how often


class Machine(Record):
    """The rates of a machine."""

    name: str  #: processor, cores and GPU, as `measuring.machine` describes them.
    measured: Seconds | None = None  #: time of the measurement; None if the rates are assumed.
    cores: int
    speedup: float = 1.0  #: how many times as fast all cores multiply matrices as one.
    core: Rates  #: rates of one core.
    gpu: Rates | None = None  #: rates of a GPU.
    sent: Rate | None = None  #: bytes a second that one process sends to the store, if that is remote.

    @property
    def described(self) -> str:
        """The machine, and where its rates come from."""
        if self.measured is None:
            return f"rates are assumed ({self.name}); memlib doctor --measure measures those of this machine in a minute"
        when = time.strftime("%Y-%m-%d", time.gmtime(self.measured))
        return f"rates measured on {when}: {self.name}"


ASSUMED = Machine(
    name="a server's core of 2023",
    cores=2,
    core=Rates(
        products=4.5e10, products_half=9e10, convolutions=4e10, convolutions_half=7e10, moved=1e10, calls=1.8e5,
        searched=3e10, pixels=1.1e8, plain=1.4, written=1.5e9,
    ),
)  # fmt: skip
ASSUMED_GPU = Rates(
    products=7e12, products_half=8e13, convolutions=5e12, convolutions_half=4e13, moved=1e12, calls=1.5e5, searched=5e12,
    pixels=1.1e8, plain=1.4, written=1.5e9,
)  # fmt: skip
"""An NVIDIA A100 by its data sheet: about half of what it can multiply, two thirds of its memory's speed."""


def keep(store: Store, machine: Machine) -> None:
    """Keep the rates of a machine in a store, in place of earlier ones."""
    store.publish(f"{FOLDER}/{_name(machine.name)}.json", machine.model_dump_json(indent=1).encode(), secret=True)


def known(store: Store, name: str) -> Machine:
    """Return a machine's rates as a store has them; else the newest of another machine, else the assumed ones."""
    found = []
    for content in store.published_together([path for path in store.listing(FOLDER) if path.endswith(".json")]).values():
        try:
            found.append(parse(Machine, content))
        except Unreadable:
            continue
    found.sort(key=lambda one: (one.name == name, one.measured or 0.0))
    return found[-1] if found else ASSUMED


def _name(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:12]


def measure_here(store: Store, *, seconds: float) -> Machine:
    """Measure this machine.

    Args:
        store: the store that its runs write to.
        seconds: duration of each of some twenty measurements.
    """
    import torch

    from memlib.pricing.measuring import machine, measure, speedup

    gpu = measure(torch.device("cuda"), seconds=seconds) if torch.cuda.is_available() else None
    core = measure(torch.device("cpu"), seconds=seconds)
    return Machine(
        name=machine(), measured=time.time(), cores=cores(), speedup=speedup(seconds=seconds), core=core, gpu=gpu,
        sent=None if store.is_local else _sent(store),
    )  # fmt: skip


def _sent(store: Store) -> float:
    """Measure how many bytes a second reach a remote store: the best of a few trials, which are deleted."""
    path, best = f"{FOLDER}/trial-{os.getpid()}", 0.0
    try:
        for _ in range(TRIALS):
            content, began = os.urandom(TRIAL), time.perf_counter()
            store.publish(path, content, secret=True)
            best = max(best, TRIAL / (time.perf_counter() - began))
    finally:
        store.drop(path)
    return best


def said_of(machine: Machine) -> str:
    """Describe the rates of a machine in a line."""
    core = machine.core
    line = (
        f"{count_of(machine.cores, 'core')}, together {machine.speedup:.1f} times as fast as one, which multiplies "
        f"{core.products / 1e9:.0f} GMAC/s ({core.products_half / 1e9:.0f} in bfloat16), convolves "
        f"{core.convolutions / 1e9:.0f} GMAC/s, moves {core.moved / 1e9:.0f} GB/s and decodes {core.pixels / 1e6:.0f} MP/s"
    )
    if machine.sent is not None:
        line = f"{line}; sends {machine.sent / 1e6:.0f} MB/s to the store"
    if machine.gpu is None:
        return line
    gpu = machine.gpu
    return f"{line}; the GPU multiplies {gpu.products / 1e12:.1f} TMAC/s ({gpu.products_half / 1e12:.1f} in bfloat16)"
