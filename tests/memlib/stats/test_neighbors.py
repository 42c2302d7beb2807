from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.errors import UserError
from memlib.stats import neighbors
from memlib.stats.neighbors import _with_all, nearest_neighbors, vote


def slow_neighbors(queries: np.ndarray, public: np.ndarray, ids: np.ndarray, k: int) -> np.ndarray:
    found = []
    for query in queries.astype(np.float64):
        distance = ((public.astype(np.float64) - query) ** 2).sum(axis=1).astype(np.float32)
        found.append(ids[np.lexsort((ids, distance))[:k]])
    return np.array(found)


@pytest.fixture(scope="module")
def vectors() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(50, 16)).astype(np.float32), rng.normal(size=(700, 16)).astype(np.float32)


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_neighbours_are_the_nearest(vectors: tuple[np.ndarray, np.ndarray], backend: str) -> None:
    queries, public = vectors
    ids = np.arange(700)
    found, distances = nearest_neighbors(queries, [(ids, public)], 20, backend=backend)
    assert (found == slow_neighbors(queries, public, ids, 20)).mean() > 0.999
    assert np.allclose(distances, ((public[found] - queries[:, None]) ** 2).sum(axis=2), rtol=1e-5)
    assert (np.diff(distances, axis=1) >= 0).all()


@given(seed=st.integers(0, 1000), parts=st.integers(1, 6), batch=st.integers(1, 60), duplicates=st.booleans())
@settings(max_examples=40, deadline=None)
def test_neighbours_do_not_depend_on_shards_order_and_batches(seed: int, parts: int, batch: int, duplicates: bool) -> None:
    rng = np.random.default_rng(seed)
    queries, public = rng.normal(size=(60, 8)).astype(np.float32), rng.normal(size=(200, 8)).astype(np.float32)
    if duplicates:
        public[50:] = public[rng.integers(0, 50, size=150)]  # ties everywhere
    ids = np.arange(200)
    whole = nearest_neighbors(queries, [(ids, public)], 12)
    order = rng.permutation(200)
    shards = [(ids[part], public[part]) for part in np.array_split(order, parts)]
    chunks = [nearest_neighbors(queries[i : i + batch], shards, 12) for i in range(0, 60, batch)]
    assert np.array_equal(whole[0], np.concatenate([chunk[0] for chunk in chunks]))
    assert np.array_equal(whole[1], np.concatenate([chunk[1] for chunk in chunks]))


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_many_equal_vectors_go_to_the_lowest_ids(backend: str) -> None:
    public = np.ones((500, 4), dtype=np.float32)
    public[7] = 5
    found, _ = nearest_neighbors(np.ones((3, 4), dtype=np.float32), [(np.arange(500), public)], 30, backend=backend)
    assert np.array_equal(found, np.tile([i for i in range(31) if i != 7], (3, 1)))


@pytest.mark.parametrize("backend", ["faiss", "torch"])
def test_a_common_offset_costs_no_precision(backend: str) -> None:
    rng = np.random.default_rng(0)
    public = (1000 + rng.integers(-8, 8, size=(400, 6)) / 8).astype(np.float32)
    queries = (1000 + rng.integers(-8, 8, size=(20, 6)) / 8).astype(np.float32)
    found, _ = nearest_neighbors(queries, [(np.arange(400), public)], 15, backend=backend)
    assert np.array_equal(found, slow_neighbors(queries, public, np.arange(400), 15))


class Asked:
    """An engine that notes how many queries it was asked for how many candidates."""

    def __init__(self, public: np.ndarray, storage: str = "float32", most: int | None = None) -> None:
        self.engine, self.calls = neighbors._Faiss(public, storage, on_gpu=False), []
        self.engine.most_candidates = most or len(public)
        self._propose = self.engine.propose
        self.engine.propose = self.propose  # type: ignore[method-assign]

    def propose(self, queries: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
        self.calls.append((len(queries), count))
        return self._propose(queries, count)

    def search(self, queries: np.ndarray, public: np.ndarray, k: int) -> np.ndarray:
        keys = neighbors._search_shard(queries, np.arange(len(public), dtype=np.uint64), public, k, self.engine)
        return (keys & np.uint64(2**32 - 1)).astype(np.int64)


def test_a_single_long_vector_does_not_widen_queries(vectors: tuple[np.ndarray, np.ndarray]) -> None:
    queries, public = vectors
    longer = public.copy()
    longer[3] *= 1000
    asked = Asked(longer)
    found = asked.search(queries, longer, 20)
    assert asked.calls == [(50, 28)]  # once, and for no more than ever
    assert np.array_equal(found, slow_neighbors(queries, longer, np.arange(700), 20))


@given(seed=st.integers(0, 1000), lattice=st.booleans(), scale=st.sampled_from([1e-6, 1.0, 3e3, 1e6]))
@settings(max_examples=40, deadline=None)
def test_searches_in_float16_give_the_neighbours_of_float32(seed: int, lattice: bool, scale: float) -> None:
    rng = np.random.default_rng(seed)
    queries, public = rng.normal(size=(30, 8)), rng.normal(size=(300, 8))
    if lattice:  # ties everywhere
        queries, public = queries.round(), public.round()
    queries, public = (queries * scale).astype(np.float32), (public * scale).astype(np.float32)
    plain, half = Asked(public), Asked(public, "float16")
    assert np.array_equal(half.search(queries, public, 10), plain.search(queries, public, 10))
    assert (half.calls[0], half.engine.half) == ((30, 18), 0.0) or len(half.calls) == 1


def test_the_bound_of_what_was_not_proposed_allows_for_the_least_numbers_of_float16_in_every_coordinate() -> None:
    """Coordinates half way between the least numbers move by as much as they can, all of them outwards."""
    public = np.full((2, 64), 1.5 * 2.0**-24 * 1.001, dtype=np.float32)
    public[1] *= -1
    engine = neighbors._Faiss(public, "float16", on_gpu=False)
    proposed, _ = engine.propose(queries := np.zeros((1, 64), dtype=np.float32), 2)
    exact = engine.distances(queries, np.array([[0, 1]]))
    assert proposed[0, 0] > 1.7 * exact[0, 0]  # (2 / 1.5)^2
    assert neighbors._least_left(engine, queries, proposed[:, -1], exact[:, 0])[0] <= exact.min()


def test_unsettled_queries_are_widened_until_all_examples_are_compared() -> None:
    rng = np.random.default_rng(0)
    public = rng.normal(size=(2000, 4)).astype(np.float32)
    public /= np.linalg.norm(public, axis=1, keepdims=True)  # all as far from the middle
    queries = np.concatenate([np.zeros((1, 4)), rng.normal(size=(5, 4))]).astype(np.float32)
    for most in (None, 100):  # as many candidates as faiss finds on a GPU, then by brute force
        asked = Asked(public, most=most)
        found = asked.search(queries, public, 10)
        distances = neighbors._Faiss(public, "float32", on_gpu=False).distances(queries, np.tile(np.arange(2000), (6, 1)))
        expected = np.array([np.lexsort((np.arange(2000), row))[:10] for row in distances])
        assert np.array_equal(found, expected)
        widened = [(6, 18), (1, 74), (1, 522), (1, 2000)]
        assert asked.calls == (widened if most is None else widened[:2])


def test_more_neighbours_than_examples_are_refused() -> None:
    one = np.zeros((1, 3), dtype=np.float32)
    with pytest.raises(UserError, match="k is 4, but the public set has only 3"):
        nearest_neighbors(one, [(np.arange(3), np.zeros((3, 3), dtype=np.float32))], 4)
    with pytest.raises(UserError, match="has only 0"):
        nearest_neighbors(one, [], 1)
    with pytest.raises(UserError, match="not finite"):
        nearest_neighbors(one * np.nan, [(np.arange(3), np.zeros((3, 3), dtype=np.float32))], 1)


def slow_vote(labels: list[int], tie: str) -> tuple[int, float]:
    counts = Counter(labels)
    most = max(counts.values())
    tied = [label for label in counts if counts[label] == most]
    winner = min(tied) if tie == "lowest_class" else min(tied, key=labels.index)
    shares = [count / len(labels) for count in counts.values()]
    return winner, sum(share * np.log(share) for share in shares)


@given(
    st.lists(st.lists(st.integers(0, 4), min_size=9, max_size=9), min_size=1, max_size=20),
    st.sampled_from(["nearest", "lowest_class"]),
)
@settings(deadline=None)
def test_votes_equal_the_slow_count(labels: list[list[int]], tie: str) -> None:
    predictions, confidences = vote(np.array(labels), tie=tie)
    for row, prediction, confidence in zip(labels, predictions, confidences, strict=True):
        expected = slow_vote(row, tie)
        assert prediction == expected[0]
        assert confidence == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize("tie", ["nearest", "lowest_class"])
@pytest.mark.parametrize(("classes", "votes"), [(3, 1), (5, 9), (100, 30), (300, 20)])
def test_votes_for_few_classes_are_counted_and_for_many_sorted_with_equal_results(tie: str, classes: int, votes: int) -> None:
    rng = np.random.default_rng(0)
    labels = np.where(
        rng.random((3000, votes)) < 0.4, rng.integers(0, classes, (3000, 1)), rng.integers(0, classes, (3000, votes))
    )
    counted, confidences = vote(labels - 7, tie=tie)
    winners, expected = vote(labels * 1000, tie=tie)  # too far apart to count each class
    np.testing.assert_array_equal(counted + 7, winners // 1000)
    np.testing.assert_array_equal(confidences, expected)
    assert counted.dtype == winners.dtype


def test_equal_votes_have_bitwise_equal_confidence() -> None:
    rng = np.random.default_rng(0)
    base = np.repeat(np.arange(6), [7, 5, 5, 3, 2, 1])
    rows = np.array([rng.permutation(rng.permutation(6)[base]) for _ in range(200)])
    assert len(set(vote(rows)[1].tolist())) == 1
    assert vote(np.zeros((1, 5), dtype=int))[1][0] == 0


def test_remaining_queries_are_compared_with_all_vectors() -> None:
    class Plain:
        def distances(self, queries: np.ndarray, columns: np.ndarray) -> np.ndarray:
            return np.square(queries[:, None] - vectors[columns[0]][None]).sum(axis=2)

    rng = np.random.default_rng(0)
    vectors, queries = rng.normal(size=(20_000, 3)).astype(np.float32), rng.normal(size=(20, 3)).astype(np.float32)
    keys, left, ids = np.zeros((20, 100), dtype=np.uint64), np.arange(19), np.arange(20_000, dtype=np.uint64)
    found = _with_all(keys, left, queries, ids, 100, Plain())  # type: ignore[arg-type]
    for row in left:
        nearest = np.argsort(np.square(queries[row] - vectors).sum(axis=1), kind="stable")[:100]
        assert (found[row] & np.uint64(2**32 - 1)).tolist() == nearest.tolist()
    assert not found[19].any()
