"""Exact nearest neighbours, streamed over the public set, and the vote among them.

The result is a pure function of the vectors: neighbours are ordered by (squared L2 distance, id), and neither the
batch of queries nor the size or order of the shards can change it. A fast search proposes candidates in float32
(or float16); their distances are then recomputed pair by pair. If, within rounding error, a vector that was not proposed
might be closer to a query than its k-th neighbour, the search for this query is repeated in float32 with more candidates,
and finally with all vectors.
"""

from collections.abc import Iterable
from typing import Any, Literal

import faiss
import numpy as np
import torch
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.specs import Tie

Backend = Literal["faiss", "torch"]

MARGIN = 8  # candidates beyond k
WIDENING = 8  # factor by which the margin grows for queries whose neighbours are still uncertain
FAISS_GPU_K = 2048  # largest number of neighbours that faiss finds on a GPU
GPU_SCRATCH = 2**29  # bytes of GPU memory for a search, besides the vectors
ROUNDING = 1e-5  # rounding error of a proposed distance, relative to |query|^2 + |vector|^2
HALF = 1.01 * 2.0**-11  # relative rounding error of a number stored in float16
LEAST_HALF = 2.0**-25  # absolute rounding error of the smallest numbers in float16
LARGEST_HALF = 6.0e4  # largest number that is stored in float16
_ID_BITS = np.uint64(32)
_PAIRS = 2**18  # pairs recomputed at a time by the torch backend
_VOTES = 2**16  # rows that are sorted at a time
_DENSE = 16  # classes per vote up to which counting the votes for every class is faster than sorting them
_COUNTS = 2**17  # numbers of votes that are counted at a time; they fit into a cache


def nearest_neighbors(
    queries: NDArray[np.float32],
    shards: Iterable[tuple[NDArray[np.int64], NDArray[np.float32]]],
    k: int,
    *,
    backend: Backend | None = None,
    device: torch.device | None = None,
    storage: Literal["float32", "float16"] = "float32",
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the k nearest vectors of each query.

    Args:
        queries: (num_queries, dim) float32.
        shards: the public set in shards: ids (n,) int64 in [0, 2^32), unique over all shards, and vectors
            (n, dim) float32. One shard at a time is held in memory.
        backend: faiss or torch; by default faiss, or torch on a GPU that faiss cannot use.
        device: device of the search; if it is a GPU, faiss uses its own default GPU.
        storage: type in which the candidate search on a GPU stores the vectors; it does not affect the result.

    Returns:
        ids (num_queries, k) int64 and squared distances (num_queries, k) float32, nearest first, ties by id.

    Raises:
        UserError: when the public set has fewer than k vectors, or a vector is not finite.

    Example:
        >>> import numpy as np
        >>> public = np.array([[0, 0], [3, 0], [0, 4]], dtype=np.float32)
        >>> ids, squared = nearest_neighbors(np.array([[1, 0]], dtype=np.float32), [(np.array([10, 11, 12]), public)], k=2)
        >>> ids.tolist(), squared.tolist()
        ([[10, 11]], [[1.0, 4.0]])
    """
    if not np.isfinite(queries).all():
        raise UserError("a query embedding is not finite; check the encoder, and embed the images again")
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
            raise UserError("a public embedding is not finite; check the encoder, and embed the images again")
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
    """Return the k smallest keys (distance, id) of one shard for each query: (num_queries, k), sorted."""
    keys = np.empty((len(queries), k), dtype=np.uint64)
    left, margin = np.arange(len(queries)), MARGIN
    while len(left):
        wanted = min(k + margin, len(vectors))
        if wanted > engine.most_candidates:
            return _with_all(keys, left, queries, ids, k, engine)
        unsettled = queries[left]
        proposed, candidates = engine.propose(unsettled, wanted)
        new_keys = _keys(engine.distances(unsettled, candidates), ids[candidates])
        new_keys.sort(axis=1)
        keys[left] = new_keys[:, :k]
        if wanted == len(vectors):
            break
        kth = (new_keys[:, k - 1] >> _ID_BITS).astype(np.uint32).view(np.float32)
        left = left[~(kth < _least_left(engine, unsettled, proposed[:, -1], kth))]
        margin *= WIDENING
        engine.use_float32()
    return keys


def _least_left(
    engine: "_Faiss | _Torch", queries: NDArray[np.float32], proposed: NDArray[np.float32], kth: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return a lower bound of the squared distance between each query and the vectors that were not proposed.

    Vectors too long to be closer than the k-th neighbour are disregarded, whatever their rounding error: otherwise a single
    long vector in the public set would leave every query undecided.

    Args:
        engine: the search that proposed the candidates.
        queries: (num_queries, dim).
        proposed: (num_queries,) squared distances of the last candidates as proposed, with rounding errors.
        kth: (num_queries,) exact squared distances of the k-th neighbours.
    """
    norms = engine.squared_norms(queries).astype(np.float64)
    reach = np.sqrt(norms) + np.sqrt(kth.astype(np.float64))
    longest = np.minimum(engine.largest_norm, reach**2 * 1.001)
    least = np.sqrt(np.maximum(proposed - ROUNDING * (norms + longest), 0.0))
    stored = engine.half * (np.sqrt(norms) + np.sqrt(longest)) + 2 * engine.least_half * np.sqrt(queries.shape[1])
    bounds: NDArray[np.float64] = np.maximum(least - stored, 0.0) ** 2
    return bounds


def _with_all(
    keys: NDArray[np.uint64],
    left: NDArray[np.int64],
    queries: NDArray[np.float32],
    ids: NDArray[np.uint64],
    k: int,
    engine: "_Faiss | _Torch",
) -> NDArray[np.uint64]:
    """Fill in the keys of the remaining queries by comparing them with all vectors; return all keys."""
    everything = np.arange(len(ids), dtype=np.int64)[None]
    for row in left:
        row_keys = _keys(engine.distances(queries[row : row + 1], everything), ids[None])
        keys[row] = np.sort(np.partition(row_keys[0], k - 1)[:k])
    return keys


def _keys(distances: NDArray[np.float32], ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return integers that sort as (distance, id): the bits of non-negative float32 numbers sort like the numbers."""
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
    """Search with faiss: candidates by brute force on GPU or CPU, distances by its pairwise CPU kernel or on the GPU.

    Args:
        vectors: (n, dim) float32.
        storage: type in which the vectors are stored for the candidate search.
        on_gpu: whether to search on faiss's GPU.
    """

    def __init__(self, vectors: NDArray[np.float32], storage: str, *, on_gpu: bool) -> None:
        self._vectors, self._on_gpu = vectors, on_gpu
        self._centre = vectors.mean(axis=0, dtype=np.float64).astype(np.float32)  # centring leaves distances unchanged
        self._centred = vectors - self._centre
        self.largest_norm = float(np.einsum("ij,ij->i", self._centred, self._centred, dtype=np.float32).max())
        self.most_candidates = FAISS_GPU_K if on_gpu else len(vectors)
        self.half = self.least_half = 0.0
        if storage == "float16" and np.abs(self._centred).max() < LARGEST_HALF:
            self._stored: NDArray[np.floating] = self._centred.astype(np.float16)
            self.half, self.least_half = HALF, LEAST_HALF
        else:
            self._stored = self._centred
        self._resources: Any = None
        self._exact: torch.Tensor | None = None
        if on_gpu:
            self._resources = faiss.StandardGpuResources()
            self._resources.setTempMemory(GPU_SCRATCH)
            self._exact = torch.from_numpy(vectors).to("cuda")

    def use_float32(self) -> None:
        """Use float32 for all further candidate searches."""
        self._stored, self.half, self.least_half = self._centred, 0.0, 0.0

    def squared_norms(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = queries - self._centre
        norms: NDArray[np.float32] = np.einsum("ij,ij->i", centred, centred)
        return norms

    def propose(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        centred = (queries - self._centre).astype(self._stored.dtype)
        if self._on_gpu:
            proposed, candidates = faiss.knn_gpu(self._resources, centred, self._stored, count)
        else:  # on the CPU faiss supports only float32
            proposed, candidates = faiss.knn(centred.astype(np.float32), self._stored.astype(np.float32, copy=False), count)
        return proposed, candidates.astype(np.int64)

    def distances(self, queries: NDArray[np.float32], candidates: NDArray[np.int64]) -> NDArray[np.float32]:
        if self._exact is not None:
            return _distances(self._exact, queries, candidates)
        result = np.empty(candidates.shape, dtype=np.float32)
        candidates = np.ascontiguousarray(candidates)
        faiss.fvec_L2sqr_by_idx(  # type: ignore[attr-defined]
            faiss.swig_ptr(result),
            faiss.swig_ptr(np.ascontiguousarray(queries)),
            faiss.swig_ptr(self._vectors),
            faiss.swig_ptr(candidates),
            queries.shape[1],
            *candidates.shape,
        )
        return result


class _Torch:
    """The same search in plain torch, for GPUs that faiss cannot use."""

    half = least_half = 0.0

    def __init__(self, vectors: NDArray[np.float32], device: torch.device) -> None:
        self._device = device
        self._vectors = torch.from_numpy(vectors).to(self._device)
        self._centre = self._vectors.double().mean(dim=0).float()
        self._centred = self._vectors - self._centre
        self._norms = self._centred.square().sum(dim=1)
        self.largest_norm = float(self._norms.max())
        self.most_candidates = len(vectors)

    def use_float32(self) -> None:
        """Do nothing: candidates are always searched in float32."""

    def squared_norms(self, queries: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = torch.from_numpy(queries).to(self._device) - self._centre
        norms: NDArray[np.float32] = centred.square().sum(dim=1).cpu().numpy()
        return norms

    def propose(self, queries: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        results = []
        for part in torch.split(torch.from_numpy(queries), 1024):
            centred = part.to(self._device) - self._centre
            scores = torch.addmm(self._norms[None], centred, self._centred.T, alpha=-2)
            values, indices = scores.topk(count, dim=1, largest=False, sorted=True)
            results.append((values + centred.square().sum(dim=1, keepdim=True), indices))
        proposed, candidates = (torch.cat(parts).cpu().numpy() for parts in zip(*results, strict=True))
        return proposed, candidates

    def distances(self, queries: NDArray[np.float32], candidates: NDArray[np.int64]) -> NDArray[np.float32]:
        return _distances(self._vectors, queries, candidates)


def _distances(vectors: torch.Tensor, queries: NDArray[np.float32], candidates: NDArray[np.int64]) -> NDArray[np.float32]:
    """Compute squared distances (num_queries, num_candidates) between queries and their candidates on the vectors' device."""
    rows = max(1, _PAIRS // candidates.shape[1])
    parts = []
    for start in range(0, len(queries), rows):
        chosen = torch.from_numpy(candidates[start : start + rows]).to(vectors.device)
        block = torch.from_numpy(queries[start : start + rows]).to(vectors.device)
        difference = vectors[chosen].double() - block[:, None].double()
        parts.append(difference.square().sum(dim=2).float().cpu().numpy())
    return np.concatenate(parts)


def vote(labels: NDArray[np.int64], *, tie: Tie = "nearest") -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the majority vote of the neighbours and its confidence (Meehan 2023, section 4).

    Args:
        labels: (num_queries, k), classes of the neighbours, nearest first.
        tie: winner among classes with equally many votes: the class of the nearest neighbour, or the lowest index.

    Returns:
        predictions (num_queries,) int64 and confidences (num_queries,) float64: the negative entropy in nats of
        the shares of votes; equal votes give equal numbers, to the last bit.

    Example:
        >>> import numpy as np
        >>> winners, confidences = vote(np.array([[7, 2, 2], [5, 5, 5]]))
        >>> winners.tolist(), confidences.round(2).tolist()
        ([2, 5], [-0.64, 0.0])
    """
    k = labels.shape[1]
    # c ln c in units of 2^-40: integers add up to the same sum in any order
    weights = np.array([0.0] + [c * np.log(c) for c in range(1, k + 1)])
    table = np.round(weights * 2.0**40).astype(np.int64)
    if not labels.size:
        return np.empty(0, dtype=np.int64), np.empty(0)
    lowest = int(labels.min())
    num_classes = int(labels.max()) - lowest + 1
    if num_classes <= _DENSE * k:
        rows = max(1, _COUNTS // num_classes)
        parts = (labels[start : start + rows] - lowest for start in range(0, len(labels), rows))
        counted = (_dense_vote(part, num_classes, table, tie) for part in parts)
        results = [(winners + lowest, sums) for winners, sums in counted]
    else:
        results = [_vote(labels[start : start + _VOTES], table, tie) for start in range(0, len(labels), _VOTES)]
    winners, sums = (np.concatenate(parts) for parts in zip(*results, strict=True))
    return winners, (sums - table[k]) / 2.0**40 / k


def _dense_vote(
    labels: NDArray[np.int64], num_classes: int, table: NDArray[np.int64], tie: Tie
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the same as `_vote` for labels in [0, num_classes), by counting the votes for every class."""
    num_queries = len(labels)
    cells = labels + num_classes * np.arange(num_queries)[:, None]
    counts = np.bincount(cells.ravel(), minlength=num_queries * num_classes).reshape(num_queries, num_classes)
    sums = table[counts].sum(axis=1)
    if tie != "nearest":
        return counts.argmax(axis=1), sums
    is_most = counts.ravel()[cells] == counts.max(axis=1, keepdims=True)
    return labels[np.arange(num_queries), is_most.argmax(axis=1)], sums


def _vote(labels: NDArray[np.int64], table: NDArray[np.int64], tie: Tie) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the winner of each row, and the sum of the table's entries for its counts of votes."""
    num_queries, k = labels.shape
    order = np.argsort(labels, axis=1, kind="stable")  # groups the votes by class, the nearest first
    ordered = np.take_along_axis(labels, order, axis=1)
    begins = np.ones((num_queries, k), dtype=bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    starts = np.flatnonzero(begins)  # starts of runs of votes for one class
    count = np.diff([*starts, num_queries * k])
    row = starts // k
    first = np.searchsorted(row, np.arange(num_queries))
    sums = np.add.reduceat(table[count], first)
    early = order.ravel()[starts] if tie == "nearest" else starts % k
    merit = count * k - early  # most votes, then the nearest member or the lowest class
    best = np.maximum.reduceat(merit, first)
    winner = starts[merit == best[row]]
    return ordered.ravel()[winner], sums
