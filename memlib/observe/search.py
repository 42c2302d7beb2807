"""Neighbours of one set of embeddings among another, from arrays on disk."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from memlib.stats.neighbors import nearest_neighbors

SHARD_BYTES = 512 * 2**20  # of public vectors in memory at a time


def search(
    queries: NDArray[np.floating],
    public: Sequence[NDArray[np.floating]],
    k: int,
    *,
    device: torch.device | None = None,
    storage: Literal["float32", "float16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k nearest public rows of each query row, the public set streaming through in shards.

    Args:
        queries: (num_queries, dim) float32, or float16.
        public: arrays (num_public, dim) of the same type, one below the other, usually memory-mapped; in order of example id.
        k: how many.
        device: where to search.
        storage: float32, or float16 for the candidate search on a GPU.
        shard_bytes: how much of `public` is read at a time; changes nothing.
        progress: called with (public rows done, public rows in all).

    Returns:
        rows of `public` (num_queries, k) int64 and squared distances (num_queries, k) float32.
    """
    rows, total = max(k, shard_bytes // (4 * queries.shape[1])), sum(len(part) for part in public)

    def shards() -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32]]]:
        done = 0
        for part in public:
            for start in range(0, len(part), rows):
                vectors = np.asarray(part[start : start + rows], dtype=np.float32)
                yield np.arange(done, done + len(vectors)), vectors
                done += len(vectors)
                if progress is not None:
                    progress(done, total)

    return nearest_neighbors(np.asarray(queries, dtype=np.float32), shards(), k, device=device, storage=storage)
