"""Nearest neighbours of one set of embeddings in another set, from arrays on disk."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from memlib.stats.neighbors import nearest_neighbors

SHARD_BYTES = 512 * 2**20  # of public vectors in memory at once


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
    """Find the k nearest public rows of each query row, reading the public set in shards.

    Args:
        queries: (num_queries, dim) float32, or float16.
        public: arrays (num_public, dim) of the same type, usually memory-mapped, whose rows are numbered consecutively in
            order of example id.
        k: number of neighbours.
        storage: type in which the candidate search on a GPU stores the vectors: float32 or float16.
        shard_bytes: size of the part of `public` that is read at once; does not affect the result.
        progress: called with (public rows done, total public rows).

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
