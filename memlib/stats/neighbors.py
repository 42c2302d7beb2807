"""Exact nearest neighbours, streamed over the public set, and the vote among them.

The result is a pure function of the vectors: neighbours are ordered by (squared L2 distance, id), and neither the
batch of queries nor the size or order of the shards can change it. A fast search proposes candidates in float32
(or float16); their distances are then computed again pair by pair, and a query whose k-th neighbour is too close
to the last candidate for the proposal's rounding is searched by brute force.
"""

from collections.abc import Iterable
from typing import Literal

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.specs import Tie

Backend = Literal["faiss", "torch"]

MARGIN = 8  # candidates beyond k
FAISS_GPU_K = 2048  # the most neighbours that faiss finds on a GPU
ROUNDING = {"float32": 1e-5, "float16": 2e-2}  # of a proposed distance, relative to |query|^2 + |vector|^2
_ID_BITS = np.uint64(32)
_PAIRS = 2**18  # pairs recomputed at a time by the torch backend


def nearest_neighbors(
    queries: NDArray[np.float32],
    shards: Iterable[tuple[NDArray[np.int64], NDArray[np.float32]]],
    k: int,
    *,
    backend: Backend | None = None,
    device: torch.device | None = None,
    storage: Literal["float32", "float16"] = "float32",
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The k nearest vectors of each query.

    Args:
        queries: (num_queries, dim) float32.
        shards: the public set in parts: ids (n,) int64 in [0, 2^32), unique over all parts, and vectors
            (n, dim) float32. One part at a time is held in memory.
        k: how many.
        backend: faiss or torch; by default faiss, but torch on a GPU that faiss cannot use.
        device: where to search; faiss takes its own GPU when this is one.
        storage: of the vectors in the candidate search on a GPU; the result is the same.

    Returns:
        ids (num_queries, k) int64 and squared distances (num_queries, k) float32, nearest first, ties by id.

    Raises:
        UserError: when the public set holds fewer than k vectors, or a vector is not finite.
    """
    if not np.isfinite(queries).all():
        raise UserError("a query embedding is not finite")
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    best: NDArray[np.uint64] | None = None
    seen = 0
    for ids, vectors in shards:
        assert len(ids) == len(vectors)
        assert len(ids) == 0 or (ids.min() >= 0 and ids.max() < 2**32)
        if not len(ids):
            continue
        vectors = np.ascontiguousarray(vectors, dtype=np.float32)
        if not np.isfinite(vectors).all():
            raise UserError("a public embedding is not finite")
        seen += len(ids)
        engine = _engine(vectors, min(k + MARGIN, len(ids)), backend, device or torch.device("cpu"), storage)
        keys = _search_shard(queries, ids.astype(np.uint64), vectors, min(k, len(ids)), engine)
        best = keys if best is None else np.sort(np.concatenate([best, keys], axis=1), axis=1)[:, :k]
    if best is None or seen < k:
        raise UserError(f"k is {k}, but the public set has only {seen} examples; lower decode.k or enlarge the public set")
    distances = (best >> _ID_BITS).astype(np.uint32).view(np.float32)
    return (best & np.uint64(2**32 - 1)).astype(np.int64), distances


def _search_shard(
    queries: NDArray[np.float32],
    ids: NDArray[np.uint64],
    vectors: NDArray[np.float32],
    k: int,
    engine: "_Faiss | _Torch",
) -> NDArray[np.uint64]:
    """The k smallest keys (distance, id) of one shard for each query: (num_queries, k), sorted."""
    wanted = min(k + MARGIN, len(vectors))
    proposed, candidates = engine.propose(queries, wanted)
    keys = _keys(engine.distances(queries, candidates), ids[candidates])
    keys.sort(axis=1)
    keys = keys[:, :k]
    if wanted == len(vectors):
        return keys
    kth = (keys[:, -1] >> _ID_BITS).astype(np.uint32).view(np.float32)
    norms = engine.squared_norms(queries)
    unsafe = np.flatnonzero(~(kth < proposed[:, -1] - engine.rounding * (norms + engine.largest_norm)))
    everything = np.arange(len(vectors), dtype=np.int64)[None]
    for row in unsafe:
        row_keys = _keys(engine.distances(queries[row : row + 1], everything), ids[None])
        keys[row] = np.sort(np.partition(row_keys[0], k - 1)[:k])
    return keys


def _keys(distances: NDArray[np.float32], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Sorts as (distance, id): the bits of a non-negative float32 order as it does."""
    bits = np.ascontiguousarray(distances).view(np.uint32).astype(np.uint64)
    return (bits << _ID_BITS) | ids


def _engine(
    vectors: NDArray[np.float32], wanted: int, backend: Backend | None, device: torch.device, storage: str
) -> "_Faiss | _Torch":
    faiss_on_gpu = device.type == "cuda" and faiss.get_num_gpus() > 0 and wanted <= FAISS_GPU_K
    if backend == "torch" or (backend is None and device.type == "cuda" and not faiss_on_gpu):
        return _Torch(vectors, device)
    return _Faiss(vectors, storage, on_gpu=faiss_on_gpu)


class _Faiss:
    """Candidates by faiss's brute-force search on its GPU or the CPU; distances by its pairwise kernel."""

    def __init__(self, vectors: NDArray[np.float32], storage: str, *, on_gpu: bool) -> None:
        self._vectors = vectors
        self._on_gpu = on_gpu
        self._centre = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)  # distances do not depend on it
        self._centred = vectors - self._centre
        self.rounding = ROUNDING["float32"]
        if storage == "float16" and self._on_gpu:
            self._centred = self._centred.astype(np.float16)
            self.rounding = ROUNDING["float16"]
        self.largest_norm = float(np.einsum("ij,ij->i", self._centred, self._centred, dtype=np.float32).max())

    def squared_norms(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = queries - self._centre
        norms: NDArray[np.float32] = np.einsum("ij,ij->i", centred, centred)
        return norms

    def propose(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        centred = queries - self._centre
        if self._on_gpu:
            resources = faiss.StandardGpuResources()
            proposed, candidates = faiss.knn_gpu(resources, centred.astype(self._centred.dtype), self._centred, count)
        else:
            proposed, candidates = faiss.knn(centred, self._centred, count)
        return proposed, candidates.astype(np.int64)

    def distances(self, queries: NDArray[np.float32], candidates: NDArray[np.int64]) -> NDArray[np.float32]:
        result = np.empty(candidates.shape, dtype=np.float32)
        candidates = np.ascontiguousarray(candidates)
        faiss.fvec_L2sqr_by_idx(  # type: ignore[attr-defined]
            faiss.swig_ptr(result),
            faiss.swig_ptr(queries),
            faiss.swig_ptr(self._vectors),
            faiss.swig_ptr(candidates),
            queries.shape[1],
            *candidates.shape,
        )
        return result


class _Torch:
    """The same in plain torch, for machines whose GPU faiss cannot use."""

    rounding = ROUNDING["float32"]

    def __init__(self, vectors: NDArray[np.float32], device: torch.device) -> None:
        self._device = device
        self._vectors = torch.from_numpy(vectors).to(self._device)
        self._centre = self._vectors.double().mean(dim=0).float()
        self._centred = self._vectors - self._centre
        self._norms = self._centred.square().sum(dim=1)
        self.largest_norm = float(self._norms.max())

    def squared_norms(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = torch.from_numpy(queries).to(self._device) - self._centre
        norms: NDArray[np.float32] = centred.square().sum(dim=1).cpu().numpy()
        return norms

    def propose(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        found = []
        for part in torch.split(torch.from_numpy(queries), 1024):
            centred = part.to(self._device) - self._centre
            scores = torch.addmm(self._norms[None], centred, self._centred.T, alpha=-2)
            values, indices = scores.topk(count, dim=1, largest=False, sorted=True)
            found.append((values + centred.square().sum(dim=1, keepdim=True), indices))
        proposed, candidates = (torch.cat(parts).cpu().numpy() for parts in zip(*found, strict=True))
        return proposed, candidates

    def distances(self, queries: NDArray[np.float32], candidates: NDArray[np.int64]) -> NDArray[np.float32]:
        rows = max(1, _PAIRS // candidates.shape[1])
        parts = []
        for start in range(0, len(queries), rows):
            chosen = torch.from_numpy(candidates[start : start + rows]).to(self._device)
            asked = torch.from_numpy(queries[start : start + rows]).to(self._device)
            difference = self._vectors[chosen].double() - asked[:, None].double()
            parts.append(difference.square().sum(dim=2).float().cpu().numpy())
        return np.concatenate(parts)


def vote(
    labels: NDArray[np.int64], num_classes: int, *, tie: Tie = "nearest"
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Majority vote of the neighbours, and its confidence (Meehan 2023, section 4).

    Args:
        labels: (num_queries, k), the neighbours' classes, nearest first.
        num_classes: classes are 0 ... num_classes - 1.
        tie: among classes with equally many votes, the one whose nearest member is nearest, or the lowest index.

    Returns:
        predictions (num_queries,) int64 and confidences (num_queries,) float64: the negative entropy in nats of
        the share of votes; equal votes give equal numbers, to the last bit.
    """
    num_queries, k = labels.shape
    predictions = np.empty(num_queries, dtype=np.int64)
    confidences = np.empty(num_queries, dtype=np.float64)
    # c ln c in units of 2^-40: integers add up to the same sum in any order
    weights = np.array([0.0] + [c * np.log(c) for c in range(1, k + 1)])
    table = np.round(weights * 2.0**40).astype(np.int64)
    block = max(1, 2**22 // num_classes)
    for start in range(0, num_queries, block):
        part = labels[start : start + block]
        rows = len(part)
        flat = (np.arange(rows)[:, None] * num_classes + part).ravel()
        counts = np.bincount(flat, minlength=rows * num_classes).reshape(rows, num_classes)
        if tie == "nearest":
            own = np.take_along_axis(counts, part, axis=1)
            winner = np.take_along_axis(part, own.argmax(axis=1)[:, None], axis=1)[:, 0]
        else:
            winner = counts.argmax(axis=1)
        predictions[start : start + rows] = winner
        confidences[start : start + rows] = (table[counts].sum(axis=1) - table[k]) / 2.0**40 / k
    return predictions, confidences
