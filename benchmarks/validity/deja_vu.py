"""Déjà vu: pairs of models that saw none of the audited images, and pairs that did."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import scipy.stats
import torch
from numpy.typing import NDArray

from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table
from benchmarks.validity.nets import How, Nets, images, train
from memlib.audits.deja_vu.findings import summarize
from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.findings import Finding, Findings
from memlib.identity import derive_seed
from memlib.stats.neighbors import nearest_neighbors
from memlib.stats.randomization import Design

torch.set_num_threads(1)

WORLDS, REDRAWS = 20, 100  # draws of data and nets; redraws of the sides per draw
AUDITED, PUBLIC, K = 200, 2000, 20
BASE = How(epochs=60, batch=40)
CONFIG = Config(k=(K,), replicates=100, permutations=199)
HIDDEN = slice(4 * 14, 10 * 14)  # six of fourteen rows: the object; the others are the background
COPIES, NOISE = 4, 0.3  # images of one person


@dataclass(frozen=True)
class Kind:
    """The construction of innocent pairs of models: how the first and the second one are trained, and how many pairs."""

    first: How = BASE
    second: How = BASE
    more: int = 0  # further training images of the first model
    pairs: int = 1
    persons: bool = False


INNOCENTS = {
    "one pair": Kind(),
    "three pairs": Kind(pairs=3),
    "five pairs": Kind(pairs=5),
    "one model better: 2,000 more images": Kind(more=2000),
    "one model of another design, trained longer": Kind(first=replace(BASE, widths=(256, 256), epochs=120)),
    "persons with four images, split as one": Kind(persons=True),
}


def labels_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    return images("FashionMNIST")[1][rows]


def crops(rows: NDArray[np.int64], rng: np.random.Generator | None) -> NDArray[np.float32]:
    """Return images with their middle hidden; with `rng`, add noise, so that copies differ."""
    shown = images("FashionMNIST")[0][rows].copy()
    if rng is not None:
        shown += NOISE * rng.normal(size=shown.shape).astype(np.float32)
    shown[:, HIDDEN] = 0.0
    return shown


def neighbours(nets: Nets, queries: NDArray[np.float32], public: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return (num_queries, K) classes of the nearest public images under each net."""
    shown, stored = nets.logits(queries), nets.logits(images("FashionMNIST")[0][public])
    labels = labels_of(public)
    return [
        labels[nearest_neighbors(q.astype(np.float32), [(np.arange(len(p)), p.astype(np.float32))], K)[0]]
        for q, p in zip(shown, stored, strict=True)
    ]


def units_of(
    votes: Sequence[tuple[NDArray[np.int64], NDArray[np.int64]]], sides: NDArray[np.bool_], rows: NDArray[np.int64],
    persons: NDArray[np.int64] | None,
) -> pa.Table:  # fmt: skip
    """Return tables.DEJA_VU_UNITS, computed from the votes of every pair of models on all audited images."""
    decodings = []
    for pair, (a, b) in enumerate(votes):
        for direction, side in (("A", sides), ("B", ~sides)):
            target, reference = (a, b) if direction == "A" else (b, a)
            names = [f"{place:04d}" for place in np.flatnonzero(side)]
            groups = None if persons is None else [f"p{p}" for p in persons[side]]
            decodings.append(
                Decoding(
                    direction, pair, "last", 1, "maximal", names, labels_of(rows[side]), target[side], reference[side], groups
                )
            )
    return score(decodings, [f"c{label}" for label in range(10)], CONFIG)


def drawn_sides(rng: np.random.Generator, labels: NDArray[np.int64], groups: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Draw half of the groups of each class; return a mask of their images."""
    sides = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = rng.permutation(np.unique(groups[labels == label]))
        sides[np.isin(groups, members[: len(members) // 2])] = True
    return sides


def draw_rows(rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Draw audited, public and other images."""
    shuffled = rng.permutation(60_000)
    return shuffled[:AUDITED], shuffled[AUDITED : AUDITED + PUBLIC], shuffled[AUDITED + PUBLIC :]


# -- innocent pairs -------------------------------------------------------------------------------------


def judge_innocents(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    kind, rng = INNOCENTS[name], np.random.default_rng([int(number), derive_seed(0, name) % 2**31])
    rows, public, rest = draw_rows(rng)
    persons = None
    if kind.persons:
        persons = np.repeat(np.arange(AUDITED // COPIES), COPIES)
        rows = np.repeat(rows[: AUDITED // COPIES], COPIES)
    queries = crops(rows, rng if kind.persons else None)
    x, y = images("FashionMNIST")
    votes = []
    sizes = (AUDITED + kind.more, AUDITED)
    for pair in range(kind.pairs):
        seed = derive_seed(int(number), name, pair) % 2**31
        a, b = (
            neighbours(train(x, y, [rng.permutation(rest)[:size]], how, seed=seed + i), queries, public)[0]
            for i, (how, size) in enumerate(zip((kind.first, kind.second), sizes, strict=True))
        )
        votes.append((a, b))
    groups = np.arange(AUDITED) if persons is None else persons
    tests: dict[str, list[float]] = {}
    for _ in range(REDRAWS):
        sides = drawn_sides(rng, labels_of(rows), groups)
        for key, p in p_values(units_of(votes, sides, rows, persons)).items():
            tests.setdefault(key, []).append(p)
        if persons is not None:
            ignoring = p_values(units_of(votes, sides, rows, None))
            tests.setdefault("headline, persons ignored", []).append(ignoring["headline"])
    return {"kind": name, "p": tests}


def p_values(units: pa.Table) -> dict[str, float]:
    """Return the headline's adjusted p-value, and the smallest one of each family."""
    return smallest_p(Findings.read(summarize(units, CONFIG, num_classes=10)))


def smallest_p(findings: Findings) -> dict[str, float]:
    """Return the headline's adjusted p-value, and the smallest one of each family."""
    tests = {"headline": findings[:1]} | {f"any of the {name}": findings.tests(name) for name in ("settings", "classes")}
    return {name: min(row.p_adjusted for row in rows if row.p_adjusted is not None) for name, rows in tests.items()}


def report_innocents(rows: Sequence[Row]) -> Iterator[str]:
    by_test: dict[str, list[float]] = {}
    for row in rows:
        for test, values in row["p"].items():
            by_test.setdefault(f"{row['kind']}: {test}", []).extend(values)
    ignored = {name: values for name, values in by_test.items() if name.endswith("persons ignored")}
    kept = {name: (sum(p <= 0.05 for p in v), len(v)) for name, v in by_test.items() if name not in ignored}
    yield f"{WORLDS} draws of data and nets, {REDRAWS} redraws of the sides for each; {AUDITED} audited images."
    yield ""
    yield from level_lines("innocent pair of models: test", kept, alpha=0.05)
    for values in ignored.values():
        yield ""
        yield f"Persons with {COPIES} images, split as one but tested as if images had been drawn: {rate(sum(p <= 0.05 for p in values), len(values))} rejected."


# -- guilty pairs ---------------------------------------------------------------------------------------

PAIRS, SIZES, GUILTY = (1, 2, 3, 5), (100, 200, 400), 40


def judge_guilty(unit: str) -> Row:
    size, number = (int(part) for part in unit.split("/"))
    rng = np.random.default_rng([number, size])
    shuffled = rng.permutation(60_000)
    rows, public = shuffled[: 2 * size], shuffled[2 * size : 2 * size + PUBLIC]
    sides = drawn_sides(rng, labels_of(rows), np.arange(2 * size))
    x, y = images("FashionMNIST")
    half = min(int(sides.sum()), int((~sides).sum()))
    trained_on = [rows[sides][:half], rows[~sides][:half]] * max(PAIRS)
    votes = neighbours(train(x, y, trained_on, BASE, seed=derive_seed(number, size) % 2**31), crops(rows, None), public)
    pairs = list(zip(votes[::2], votes[1::2], strict=True))
    shown: Row = {"size": size}
    for count in PAIRS:
        units = units_of(pairs[:count], sides, rows, None)
        head = Findings.read(summarize(units, CONFIG, num_classes=10)).head
        shown[f"{count} pairs"] = head.verdict == "shown"
        shown[f"{count} pairs, before"] = before(units, head, count)
        shown[f"{count} value"] = head.value
        shown[f"{count} detectable"] = head.detectable
    return shown


def before(units: pa.Table, head: Finding, pairs: int) -> bool:
    """Apply the former rule: p at most .05 and an interval above 0, where the t quantile multiplied the whole variance."""
    assert head.interval is not None
    assert head.interval.high is not None
    half = (head.interval.high - head.interval.low) / 2
    if pairs >= 3:
        frame = units.to_pandas()
        gain = (frame["target_prediction"] == frame["label"]).astype(float) - (
            frame["reference_prediction"] == frame["label"]
        )
        between = gain.groupby(frame["pair"]).mean().to_numpy()
        t = float(scipy.stats.t.ppf(0.975, pairs - 1))
        own = (t * between.std(ddof=1)) ** 2 / pairs
        half = t * math.sqrt(max(0.0, half**2 - own) / 1.96**2 + own / t**2)
    return bool((head.p_value or 0.0) <= 0.05 and head.value - half > 0)


def report_guilty(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for size in SIZES:
        of_size = [row for row in rows if row["size"] == size]
        if not of_size:
            continue
        for count in PAIRS:
            now, former = (sum(row[f"{count} pairs{suffix}"] for row in of_size) for suffix in ("", ", before"))
            mean = float(np.mean([row[f"{count} value"] for row in of_size]))
            detectable = float(np.mean([row[f"{count} detectable"] for row in of_size]))
            lines.append(
                (size, count, f"{mean:.3f}", f"{detectable:.3f}", rate(now, len(of_size)), f"{former} of {len(of_size)}")
            )
    headings = ("images a model trained on", "pairs", "mean excess", "found with 80 % power", "shown", "shown before")
    yield from table(headings, lines)


# -- small, tied and unbalanced designs -----------------------------------------------------------------


def design_units() -> Iterator[str]:
    yield from (
        "20 images",
        "20 images, one class",
        "50 images, classes of 3 to 12",
        "200 images, few right",
        "groups of 1 to 9",
    )


DESIGNED = 2_000  # null audits of one design


def judge_design(unit: str) -> Row:
    """Run null audits of simulated votes: whether an answer is right depends on the image, not on the side."""
    rng = np.random.default_rng(derive_seed(0, unit) % 2**31)
    rejected = 0
    for _ in range(DESIGNED):
        count = {"200 images, few right": 200, "groups of 1 to 9": 120}.get(unit, 50 if unit.startswith("50") else 20)
        labels = np.arange(count) % (1 if "one class" in unit else 5)
        if "3 to 12" in unit:
            labels = np.repeat(np.arange(7), [3, 3, 5, 6, 9, 12, 12])
        groups = np.arange(count)
        if unit.startswith("groups"):
            labels = np.zeros(count, dtype=np.int64)
            groups = np.repeat(np.arange(count), rng.integers(1, 10, size=count))[:count]
        ease = np.full(count, 0.03) if "few" in unit else rng.random(count)
        persons = rng.random((2, count))[:, groups]
        gains = (persons[0] < ease[groups]).astype(np.int64) - (persons[1] < ease[groups])
        sides = drawn_sides(rng, labels, groups)
        rejected += Design.of(sides, labels, groups).tail_p(gains, permutations=99, seed=0) <= 0.05
    return {"kind": unit, "rejected": rejected, "count": DESIGNED}


def report_design(rows: Sequence[Row]) -> Iterator[str]:
    yield "Exact tests of small and tied data cannot reach the full level; they must not exceed it."
    yield ""
    yield from level_lines("design", {row["kind"]: (row["rejected"], row["count"]) for row in rows}, alpha=0.05)


# -- bounds and intervals -------------------------------------------------------------------------------

SIMULATED = 300  # audits of one kind
BOUNDS = {
    f"{count} images, {classes} classes, memory {memory:g}": (count, classes, memory)
    for count, classes in ((20, 5), (50, 10), (200, 10), (200, 100))
    for memory in (0.0, 0.1)
}


def judge_bounds(unit: str) -> Row:
    """Run audits of simulated votes, which are right by memory of the image or, with probability .2, without it."""
    count, classes, memory = BOUNDS[unit]
    rng = np.random.default_rng(derive_seed(0, unit) % 2**31)
    labels, held, inside, width = np.arange(count) % classes, 0, 0, []
    truth = memory * 0.8
    for _ in range(SIMULATED):
        sides = drawn_sides(rng, labels, np.arange(count))
        right = rng.random((2, count)) < 0.2
        own = np.stack([sides, ~sides]) & (rng.random((2, count)) < memory)
        due = int((own & ~right).sum())
        answers = right | own
        wrong = (labels + 1) % max(2, classes)
        votes = [np.where(a, labels, wrong)[:, None].repeat(K, axis=1) for a in answers]
        decodings = []
        for direction, side in (("A", sides), ("B", ~sides)):
            target, reference = votes if direction == "A" else votes[::-1]
            names = [f"{place:04d}" for place in np.flatnonzero(side)]
            decodings.append(Decoding(direction, 0, "last", 1, "maximal", names, labels[side], target[side], reference[side]))
        units = score(decodings, [f"c{label}" for label in range(max(2, classes))], CONFIG)
        head = Findings.read(summarize(units, CONFIG, num_classes=max(2, classes))).head
        bound = 1.0 if head.upper_bound is None else head.upper_bound
        held += bound >= due / count
        inside += (head.low or 0.0) <= truth <= (head.high or 0.0)
        width.append(bound)
    return {"kind": unit, "held": held, "inside": inside, "bound": float(np.median(width)), "count": SIMULATED}


def report_bounds(rows: Sequence[Row]) -> Iterator[str]:
    yield "The bound is one-sided, at 95 %, on the number of answers due to memory in these images; the interval is on their expected share."
    yield ""
    headings = ("audit", "bound holds what is due", "median bound", "interval holds the expected share")
    yield from table(
        headings, ((r["kind"], rate(r["held"], r["count"]), f"{r['bound']:.3f}", rate(r["inside"], r["count"])) for r in rows)
    )


PARTS = (
    Part(
        "deja-vu-null",
        "Pairs of nets that saw none of the audited images, trained alike or differently (Fashion-MNIST, MLPs, six of fourteen rows hidden).",
        lambda: crossed(INNOCENTS, WORLDS), judge_innocents, report_innocents,
    ),
    Part(
        "deja-vu-plant",
        "Pairs of nets that each trained on their own side: is their memory shown with 1, 2, 3 and 5 pairs?",
        lambda: crossed(map(str, SIZES), GUILTY), judge_guilty, report_guilty,
    ),
    Part(
        "deja-vu-designs",
        "Small, tied and unbalanced designs without memory (simulated votes).",
        design_units, judge_design, report_design,
    ),
    Part(
        "deja-vu-bounds",
        "Upper bounds on memory, and intervals of the share of excess, for small, tied and large data (simulated votes).",
        lambda: iter(BOUNDS), judge_bounds, report_bounds,
    ),
)  # fmt: skip
