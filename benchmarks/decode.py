"""memlib's search and scores against a plain version of the paper's procedure, in one process with the same threads.

Plain: queries in batches of 64 through a flat index, dense class counts query by query, entropy by scipy, and the
accuracy at each of 100 confidence thresholds by a loop that sorts and selects again each time. Prints medians of
interleaved repeats.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import faiss
import numpy as np
import scipy.stats
from numpy.typing import NDArray

from memlib.stats.inference import accuracy_curve
from memlib.stats.neighbors import nearest_neighbors, vote

BATCH = 64
THRESHOLDS = np.linspace(0.01, 1, 100)


def plain_search(queries: NDArray[np.float32], public: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    index = faiss.IndexFlatL2(public.shape[1])
    index.add(public)
    parts = [index.search(queries[i : i + BATCH], k)[1] for i in range(0, len(queries), BATCH)]
    return np.concatenate(parts)


def our_search(queries: NDArray[np.float32], public: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    return nearest_neighbors(queries, [(np.arange(len(public)), public)], k)[0]


def plain_scores(labels: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> tuple[list[float], list[int]]:
    predictions, confidences = [], []
    for row in labels:
        counts = np.zeros(classes)
        for label in row:
            counts[label] += 1
        predictions.append(int(counts.argmax()))
        confidences.append(-scipy.stats.entropy(counts / counts.sum()))
    curve = []
    for threshold in THRESHOLDS:
        order = np.argsort(-np.array(confidences), kind="stable")
        chosen = order[: max(1, round(threshold * len(order)))]
        curve.append(float(np.mean([predictions[i] == truth[i] for i in chosen])))
    return curve, predictions


def our_scores(labels: NDArray[np.int64], truth: NDArray[np.int64], classes: int) -> tuple[list[float], NDArray[np.int64]]:
    predictions, confidences = vote(labels, tie="lowest_class")
    _, accuracies = accuracy_curve(confidences, predictions == truth)
    places = np.maximum(1, np.round(THRESHOLDS * len(truth))).astype(int) - 1
    return accuracies[places].tolist(), predictions


def interleaved(repeats: int, *functions: Callable[[], object]) -> list[float]:
    """Return the median seconds of each function over repeats in which the functions take turns."""
    seconds: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for function, durations in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            durations.append(time.perf_counter() - start)
    return [statistics.median(durations) for durations in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=8_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--k", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(options.classes, options.dim))
    truth = rng.integers(0, options.classes, size=options.queries)
    public_labels = rng.integers(0, options.classes, size=options.public)
    public = (0.15 * centres[public_labels] + rng.normal(size=(options.public, options.dim))).astype(np.float32)
    queries = (0.15 * centres[truth] + rng.normal(size=(options.queries, options.dim))).astype(np.float32)
    k, classes = options.k, options.classes

    plain, ours = plain_search(queries, public, k), our_search(queries, public, k)
    labels = public_labels[ours]
    a, b = plain_scores(labels, truth, classes), our_scores(labels, truth, classes)
    votes = np.mean(vote(public_labels[plain])[0] == vote(labels)[0])
    print(
        f"|X| {options.public}, queries {options.queries}, d {options.dim}, C {classes}, k {k}, {faiss.omp_get_max_threads()} threads"
    )
    print(
        f"same neighbours {np.mean(plain == ours):.4%}, same votes {votes:.4%}, same predictions {np.mean(a[1] == b[1]):.4%}"
    )
    print(f"largest difference of the curves {max(abs(x - y) for x, y in zip(a[0], b[0], strict=True)):.4f} (ties)")
    seconds = interleaved(
        options.repeats,
        lambda: plain_search(queries, public, k),
        lambda: our_search(queries, public, k),
        lambda: plain_scores(labels, truth, classes),
        lambda: our_scores(labels, truth, classes),
    )
    print(
        f"search                     plain {seconds[0]:8.3f} s   ours {seconds[1]:8.3f} s   ratio {seconds[0] / seconds[1]:6.1f}"
    )
    print(
        f"vote, confidence, curves   plain {seconds[2]:8.3f} s   ours {seconds[3]:8.3f} s   ratio {seconds[2] / seconds[3]:6.1f}"
    )


if __name__ == "__main__":
    main()
