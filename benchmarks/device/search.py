"""Search on a GPU: exactly the CPU's neighbours, by FAISS and by plain PyTorch, and how much faster.

Neighbours must be equal, as the distances of all candidates are recomputed in one way.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
import torch

from benchmarks.device.checks import Check, Clock, Found, only_on_gpu, seconds_of
from memlib.stats.neighbors import nearest_neighbors

K = 20


@dataclass(frozen=True)
class Size:
    """Amounts of vectors."""

    vectors: int
    queries: int
    dim: int


SIZES = {"cuda": Size(200_000, 2_000, 512), "cpu": Size(20_000, 200, 64)}
CPU = torch.device("cpu")


def checks(device: torch.device, clock: Clock) -> Iterator[Check]:
    """Yield the checks of the search."""
    size = SIZES[device.type]
    rng = np.random.default_rng(0)
    public, queries = (rng.standard_normal((count, size.dim), dtype=np.float32) for count in (size.vectors, size.queries))
    search = functools.partial(nearest_neighbors, queries, [(np.arange(size.vectors), public)], K)
    wanted: list[np.ndarray] = []
    seconds = seconds_of(lambda: wanted.append(search(device=CPU)[0]), CPU)

    def compare(**how: Any) -> Found:
        search(device=device, **how)  # warm-up
        found: list[np.ndarray] = []
        taken = seconds_of(lambda: found.append(search(device=device, **how)[0]), device)
        different = float((wanted[0] != found[0]).mean())
        text = (
            f"{size.vectors:,} x {size.dim}: {different:.2%} of neighbours differ; {size.queries / taken:,.0f} queries/s, "
            f"{seconds / taken:.1f} times FAISS on the CPU"
        )
        return Found(different == 0, text, {"different": different, "ratio": seconds / taken})

    lacks = only_on_gpu(device) or ("" if faiss.get_num_gpus() else "FAISS is built for the CPU; make FAISS=gpu gpu-check")
    yield Check(f"PyTorch on {device.type}", lambda: compare(backend="torch"))
    yield Check("FAISS on the GPU", lambda: compare(backend="faiss"), lacks)
    yield Check("FAISS on the GPU, float16", lambda: compare(backend="faiss", storage="float16"), lacks)
