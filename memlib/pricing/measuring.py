"""Measurement of the rates of this machine: what one core, all cores and a GPU do in a second. It takes about a minute."""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import tempfile
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from memlib.pricing.counting import counting
from memlib.pricing.work import Rates
from memlib.specs.cores import cores

SECONDS = 1.5  # of each measurement
SIDE, CHANNELS, IMAGES = 32, 64, 16  # of the convolution that is measured
WIDTH = 768  # of the matrices
PLAIN_REFERENCE = 0.1  # seconds that `_plain` takes on a core of the machine that is the unit of plain work
Clock = Callable[[], float]


def measure(device: torch.device, *, seconds: float = SECONDS) -> Rates:
    """Measure the rates of one core, or of a GPU with one core beside it.

    Args:
        device: where tensors are computed.
        seconds: duration of each measurement.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return Rates(
                products=_products(device, torch.float32, seconds),
                products_half=_products(device, torch.bfloat16, seconds),
                convolutions=_convolutions(device, torch.float32, seconds),
                convolutions_half=_convolutions(device, torch.bfloat16, seconds),
                moved=_moved(device, seconds),
                calls=_calls(device, seconds),
                searched=_searched(device, seconds),
                pixels=_pixels(seconds),
                plain=PLAIN_REFERENCE * _per_second(_plain, seconds),
                written=_written(seconds),
            )
    finally:
        torch.set_num_threads(threads)


def speedup(*, seconds: float = SECONDS) -> float:
    """Return how many times as many multiply-adds all cores do as one."""
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, cores()):
            torch.set_num_threads(count)
            found.append(_products(torch.device("cpu"), torch.float32, seconds, clock=time.perf_counter))
    finally:
        torch.set_num_threads(threads)
    return max(1.0, found[1] / found[0])


def machine() -> str:
    """Describe this machine: its processor, the number of cores and, if there is one, the GPU."""
    gpu = f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else ""
    return f"{_processor()}, {cores()} cores{gpu}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0] if named else platform.processor() or platform.machine()


def _per_second(
    work: Callable[[], object], seconds: float, device: torch.device = torch.device("cpu"), *, clock: Clock | None = None
) -> float:
    """Return how often a second some work is done: the best of the measurement's five parts, as other work only delays it.

    Args:
        clock: clock of the seconds; by default the CPU time of this process, and with a GPU the time on the wall.
    """
    clock = clock or (time.perf_counter if device.type == "cuda" else time.process_time)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    work()
    best = 0.0
    for _ in range(5):
        wait()
        began, count = clock(), 0
        while clock() - began < seconds / 5:
            work()
            count += 1
            if device.type == "cuda" and count % 8 == 0:
                wait()
        wait()
        best = max(best, count / (clock() - began))
    return best


def _products(device: torch.device, dtype: torch.dtype, seconds: float, *, clock: Clock | None = None) -> float:
    size = WIDTH if device.type == "cpu" else 8192
    one, other = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    return size**3 * _per_second(lambda: one @ other, seconds, device, clock=clock)


def _convolutions(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Measure a convolution with its backward pass, in the layout of the training loop."""
    images = IMAGES if device.type == "cpu" else 256
    layer = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1, bias=False).to(device, dtype)
    inputs = torch.randn(images, CHANNELS, SIDE, SIDE, device=device, dtype=dtype, requires_grad=True)
    gradient = torch.randn(images, CHANNELS, SIDE, SIDE, device=device, dtype=dtype)

    def step() -> None:
        layer(inputs).backward(gradient)

    with counting() as counted:
        step()
    return counted.work.convolutions * _per_second(step, seconds, device)


def _moved(device: torch.device, seconds: float) -> float:
    """Measure normalization and ReLU with their backward passes, whose arithmetic takes less time than their memory."""
    images = IMAGES if device.type == "cpu" else 1024
    net = nn.Sequential(*(nn.Sequential(nn.BatchNorm2d(CHANNELS), nn.ReLU()) for _ in range(4))).to(device)
    inputs = torch.randn(images, CHANNELS, SIDE, SIDE, device=device, requires_grad=True)

    def step() -> None:
        net(inputs).sum().backward()

    with counting() as counted:
        step()
    return counted.work.moved * _per_second(step, seconds, device)


def _calls(device: torch.device, seconds: float) -> float:
    """Measure steps of training a network so small that only the calls take time."""
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    inputs, labels = torch.randn(8, 8, device=device), torch.zeros(8, dtype=torch.int64, device=device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    step()
    with counting() as counted:
        step()
    return counted.work.calls * _per_second(step, seconds, device)


def _searched(device: torch.device, seconds: float) -> float:
    from memlib.stats.neighbors import nearest_neighbors

    queries, public, dim = (512, 4096, 256) if device.type == "cpu" else (65536, 262144, 2048)
    rng = np.random.default_rng(0)
    one, other = (rng.standard_normal((count, dim), dtype=np.float32) for count in (queries, public))
    shards = [(np.arange(public), other)]
    return queries * public * dim * _per_second(lambda: nearest_neighbors(one, shards, 20, device=device), seconds, device)


def _pixels(seconds: float) -> float:
    """Measure decoding a JPEG file and resizing it to half of its side."""
    from PIL import Image

    side = 400
    rows, columns = np.mgrid[:side, :side]
    values = np.stack([rows % 256, columns % 256, (rows * columns) // 97 % 256], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "JPEG", quality=90)

    def decode() -> None:
        with Image.open(io.BytesIO(file.getvalue())) as image:
            image.convert("RGB").resize((side // 2, side // 2), Image.Resampling.BILINEAR, reducing_gap=None)

    return side * side * _per_second(decode, seconds)


def _written(seconds: float) -> float:
    """Measure what each byte of the store costs beside the disk: its digest, and a copy."""
    content = np.random.default_rng(0).bytes(2**22)
    with tempfile.TemporaryFile() as file:

        def work() -> None:
            hashlib.sha256(content).digest()
            file.seek(0)
            file.write(content)

        return len(content) * _per_second(work, seconds)


def _plain() -> None:
    """Do work of the kind of statistics, tables and pages: sorting, random draws, JSON and loops of Python."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        values = rng.random(60_000)
        np.sort(values)
        np.cumsum(values[rng.integers(0, len(values), len(values))])
        np.bincount((values * 1000).astype(np.int64), weights=values)
    rows = [{"number": number, "text": str(number), "value": math.sqrt(number)} for number in range(20_000)]
    json.loads(json.dumps(rows))
