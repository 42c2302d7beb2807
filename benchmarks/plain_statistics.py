"""Statistics of finished models against plain versions that give equal results, in one process, by CPU seconds of one thread.

    python benchmarks/plain_statistics.py --part maxima summary redraws votes pld probe

The two sides take turns; printed are medians and their ratio, and for nets the exponent of memlib's time. The plain sides are
what each function's docstring says, without the shortcuts: each net compared with every control, multinomials drawn for each
interval, redraws made for each model, labels sorted or counted query by query, every epoch composed from its first step, a
linear probe fitted by scikit-learn.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import scipy.stats
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from memlib.audits.forgetting.trace import Pool, count_found, find_trace
from memlib.audits.unique_feature.calibrated_maxima import exchanged_maxima, ranks
from memlib.audits.unique_feature.scoring import Net
from memlib.specs import PrivacySpec
from memlib.specs.data import QUERY, WITHHELD
from memlib.stats.inference import exchanges, mean_interval
from memlib.stats.neighbors import vote
from memlib.stats.probe import Rows as Embeddings
from memlib.stats.probe import probe_accuracies
from memlib.training.privacy import FINE_STEP, plan

REPLICATES, PERMUTATIONS = 2000, 9999
INTERVALS = 6  # of one score: the difference, two means, two shares and their excess
Both = tuple[Callable[[], object], Callable[[], object]]
Rows = tuple[list[tuple[float, float]], NDArray[np.float64]]


def seconds(functions: Both, repeats: int) -> tuple[list[float], list[object]]:
    """Return the median CPU seconds of each side, and its last result; the sides take turns."""
    spent: list[list[float]] = [[], []]
    for _ in range(repeats):
        results = []
        for function, durations in zip(functions, spent, strict=True):
            start = time.process_time()
            results.append(function())
            durations.append(time.process_time() - start)
    return [statistics.median(durations) for durations in spent], results


def compare(name: str, functions: Both, repeats: int, *, decimals: int | None = None) -> None:
    """Print the seconds of both sides, whose results must be equal: exactly, or to some decimals."""
    (plain, ours), results = seconds(functions, repeats)
    if decimals is None:
        np.testing.assert_equal(*results)
    else:
        np.testing.assert_almost_equal(*(numbers(result) for result in results), decimal=decimals)
    print(f"{name:66} plain {plain:7.3f} s   ours {ours:7.3f} s   ratio {plain / ours:6.1f}", flush=True)


def numbers(result: object) -> NDArray[np.float64]:
    """Return all numbers of nested tuples, lists and arrays, (count,)."""
    if isinstance(result, tuple | list):
        return np.concatenate([numbers(part) for part in result])
    return np.ravel(np.asarray(result, dtype=np.float64))


def nothing() -> None:
    """Stand for a side that is not measured."""


def exponent(name: str, sizes: list[int], ours: list[float]) -> None:
    slope = np.polyfit(np.log(sizes), np.log(ours), 1)[0]
    taken = ", ".join(f"{size:,}: {second:.3f} s" for size, second in zip(sizes, ours, strict=True))
    print(f"{name}: exponent {slope:.2f} ({taken})", flush=True)


# -- unique features --------------------------------------------------------------------------------------


def nets_of(count: int, labels: int) -> tuple[list[Net], NDArray[np.float64]]:
    """Return pairs of a canary net and a control, with a score of each at every label."""
    nets = [Net(i % (count // 2), 0, i >= count // 2, i % (count // 2), 1) for i in range(count)]
    values = np.random.default_rng(0).normal(size=(count, labels))
    values[: count // 2, 0] += 0.3
    return nets, values


def plain_ranks(values: NDArray[np.float64], nets: list[Net]) -> list[float]:
    control, seeds = np.array([net.control for net in nets]), np.array([net.seed for net in nets])
    p_values = []
    for own, seed in zip(values, seeds, strict=True):
        others = values[control & (seeds != seed)]
        centre = (others.sum(axis=0) + own) / (len(others) + 1)
        reached = (others - centre).max(axis=1) >= (own - centre).max() - 1e-12
        p_values.append((1 + int(reached.sum())) / (1 + len(others)))
    return p_values


def maxima(repeats: int) -> None:
    for count, labels in ((1000, 10), (4000, 2), (4000, 10)):
        nets, values = nets_of(count, labels)
        sides = (partial(plain_ranks, values, nets), partial(ranks, values, nets))
        compare(f"ranks of the maxima of {count:,} nets over {labels} labels", sides, repeats)
    sizes, ours = [2500, 5000, 10_000, 20_000], []
    for count in sizes:
        nets, values = nets_of(count, 10)
        ours.append(seconds((nothing, partial(ranks, values, nets)), repeats)[0][1])
    exponent("ranks, 10 labels", sizes, ours)


def plain_interval(values: NDArray[np.float64], seed: int) -> tuple[float, float]:
    count = len(values)
    drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=REPLICATES)
    half = math.sqrt(count / (count - 1)) * float(scipy.stats.t.ppf(0.975, count - 1))
    low, high = np.quantile(drawn @ values / count, scipy.stats.norm.cdf([-half, half]))
    return float(low), float(high)


def plain_exchanges(
    canary: NDArray[np.float64], control: NDArray[np.float64], signs: NDArray[np.int8]
) -> NDArray[np.float64]:
    pairs, totals = len(canary), []
    for sign in np.array_split(signs.astype(np.float64), max(1, signs.shape[0] * canary.size // 2**22)):
        kept = (1 + sign)[..., None] / 2
        shown = kept * control + (1 - kept) * canary
        centre = (shown.sum(axis=1, keepdims=True) - shown) / (pairs - 1)
        gains = (canary - centre).max(axis=2) - (control - centre).max(axis=2)
        totals.append((sign * gains).mean(axis=1))
    return np.concatenate(totals)


def findings(
    canary: NDArray[np.float64],
    control: NDArray[np.float64],
    interval: Callable[[NDArray[np.float64], int], tuple[float, float]],
    null: Callable[[NDArray[np.int8]], NDArray[np.float64]],
) -> Rows:
    """Return what a summary computes for one score that is a maximum over labels: its intervals and its null distribution."""
    sides = [canary.max(axis=1), control.max(axis=1), (canary - control).max(axis=1)]
    sides += [side > np.median(side) for side in sides]
    drawn = [interval(side.astype(np.float64), 7) for side in sides[:INTERVALS]]
    return drawn, null(exchanges(len(canary), PERMUTATIONS, seed=1))


def summary(repeats: int) -> None:
    def both(count: int, number: list[int]) -> tuple[Callable[[], Rows], Callable[[], Rows]]:
        _, values = nets_of(count, 3)
        canary, control = values[: count // 2], values[count // 2 :]
        weights, none = np.full(len(canary), 1 / len(canary)), np.zeros((0, 3))

        def ours() -> Rows:
            number[0] += 1  # another seed each time: draws are not kept from one repeat to the next
            draw = number[0]
            return findings(
                canary, control, lambda side, seed: mean_interval(side, replicates=REPLICATES, seed=seed + draw),
                lambda signs: exchanged_maxima(canary, control, none, signs, weights),
            )  # fmt: skip

        def plain() -> Rows:
            draw = number[0] + 1
            return findings(
                canary, control, lambda side, seed: plain_interval(side, seed + draw),
                lambda signs: plain_exchanges(canary, control, signs),
            )  # fmt: skip

        return plain, ours

    number = [0]
    for count in (1000, 2000):
        functions = both(count, number)
        compare(f"intervals and exchanges of one score of {count:,} nets", functions, repeats, decimals=12)
    sizes = [2500, 5000, 10_000]
    times = [seconds((nothing, both(count, number)[1]), repeats)[0][1] for count in sizes]
    exponent("intervals and exchanges", sizes, times)


# -- forgetting, votes, privacy -----------------------------------------------------------------------------


def plain_found(groups: list[list[NDArray[np.float64]]], pool: Pool) -> list[int]:
    traces = [[find_trace(v, pool, permutations=PERMUTATIONS, seed=n) for n, v in enumerate(values)] for values in groups]
    return [sum(trace.p_value <= 0.05 for trace in of_group) for of_group in traces]


def our_found(groups: list[list[NDArray[np.float64]]], pool: Pool) -> list[int]:
    seeds = list(range(len(groups[0])))
    return [count_found(values, pool, permutations=PERMUTATIONS, seeds=seeds, alpha=0.05) for values in groups]


def redraws(repeats: int) -> None:
    """Compare for 20 models, half of which leave a trace, at the level of one target."""
    rng = np.random.default_rng(0)
    for count in (1000, 4000):
        pool = Pool(np.repeat([QUERY, WITHHELD], count // 2), np.arange(count) % 10, np.arange(count))
        shifts = (0.0, 12 / math.sqrt(count))
        groups = [[rng.normal(size=count) + shift * pool.query for _ in range(10)] for shift in shifts]
        sides = (partial(plain_found, groups, pool), partial(our_found, groups, pool))
        compare(f"redraws of {count:,} examples for 20 models", sides, repeats)


def sorted_votes(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return votes and confidences as `vote` does where classes are too many to count: by sorting."""
    winners, confidences = vote(labels * (labels.shape[1] * 1000), tie="lowest_class")
    return winners // (labels.shape[1] * 1000), confidences


def counted_votes(labels: NDArray[np.int64], classes: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return votes by dense counts for each batch of queries, and their entropies."""
    parts = []
    for start in range(0, len(labels), 64):
        rows = labels[start : start + 64]
        counts = np.zeros((len(rows), classes))
        np.add.at(counts, (np.arange(len(rows))[:, None], rows), 1)
        parts.append((counts.argmax(axis=1), -scipy.stats.entropy(counts, axis=1)))
    winners, confidences = zip(*parts, strict=True)
    return np.concatenate(winners), np.concatenate(confidences)


def votes(repeats: int) -> None:
    rng = np.random.default_rng(0)
    for queries, k, classes in ((8000, 100, 100), (30_000, 30, 100), (30_000, 30, 1000)):
        shape = (queries, k)
        labels = np.where(rng.random(shape) < 0.4, rng.integers(0, classes, (queries, 1)), rng.integers(0, classes, shape))
        name, ours = f"votes of {k} of {queries:,} queries, C {classes}", partial(vote, labels, tie="lowest_class")
        compare(f"{name}, sorted", (partial(sorted_votes, labels), ours), repeats)
        compare(f"{name}, counted 64 rows at a time", (partial(counted_votes, labels, classes), ours), repeats, decimals=9)


def epochs_anew(noise: float, sample_rate: float, steps: int, epochs: int) -> Iterator[float]:
    """Yield epsilon after each epoch by an accountant of its own."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant

    for epoch in range(1, epochs + 1):
        accountant = PLDAccountant(value_discretization_interval=FINE_STEP)
        accountant.compose(
            dp_accounting.PoissonSampledDpEvent(sample_rate, dp_accounting.GaussianDpEvent(noise)), steps * epoch
        )
        yield float(accountant.get_epsilon(1e-5))


def pld(repeats: int) -> None:
    how = {"sample_rate": 0.01, "steps_per_epoch": 100, "epochs": 20}
    spec = PrivacySpec(noise=1.0, accountant="pld")

    def ours() -> tuple[float, ...]:
        plan.cache_clear()
        return plan(spec, **how).epsilons

    def plain() -> tuple[float, ...]:
        return tuple(epochs_anew(1.0, 0.01, 100, 20))

    compare("epsilon by PLD after each of 20 epochs of 100 steps", (plain, ours), repeats)


def probe(repeats: int) -> None:
    """Compare accuracies, which differ in the second decimal, of probes of few rows of many classes."""
    rng = np.random.default_rng(0)
    for count, classes, dim in ((2000, 100, 512), (5000, 1000, 64), (5000, 1000, 512)):
        labels = rng.permutation(2 * count) % classes
        hidden = rng.normal(size=(classes, 16))[labels] + 0.45 * rng.normal(size=(len(labels), 16))
        noise = 2 * rng.normal(size=(len(labels), dim))
        vectors = (np.maximum(hidden @ rng.normal(size=(16, dim)), 0) + noise).astype(np.float32)
        sides = (partial(plain_probe, vectors, labels, classes), partial(our_probe, vectors, labels, classes))
        compare(f"linear probe, {count:,} rows of {dim}, {classes:,} classes", sides, repeats, decimals=1)


def plain_probe(vectors: NDArray[np.float32], labels: NDArray[np.int64], classes: int) -> tuple[float, ...]:
    count = len(vectors) // 2
    scaled = StandardScaler().fit(vectors[:count]).transform(vectors)
    model = LogisticRegression(C=1 / (2e-3 * count), max_iter=100).fit(scaled[:count], labels[:count])
    return tuple(float(model.score(scaled[part], labels[part])) for part in (slice(count), slice(count, None)))


def our_probe(vectors: NDArray[np.float32], labels: NDArray[np.int64], classes: int) -> tuple[float, ...]:
    train = np.arange(len(vectors)) < len(vectors) // 2
    return probe_accuracies(Embeddings([vectors], labels, train), Embeddings([vectors], labels, ~train), num_classes=classes)


PARTS = {"maxima": maxima, "summary": summary, "redraws": redraws, "votes": votes, "pld": pld, "probe": probe}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print(f"medians of {options.repeats} turns, CPU seconds; load {os.getloadavg()[0]:.1f}")
    for part in options.part:
        PARTS[part](options.repeats)


if __name__ == "__main__":
    main()
