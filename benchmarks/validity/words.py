"""The word of a run that has several headline families, in runs without memory."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.validity.exposure import findings, recipe
from benchmarks.validity.harness import Part, Row, level_lines
from memlib.audits.deja_vu.recipe import HEADLINE, HEADLINES, STABILITY
from memlib.audits.exposure import documents as documents_of_runs
from memlib.audits.exposure.recipe import HEADLINES as EXPOSURE_HEADLINES
from memlib.audits.exposure.recipe import DiscoverableSpec
from memlib.audits.exposure.scores import Scored
from memlib.findings import SHOWN, settle, tested, word_of
from memlib.identity import derive_seed
from memlib.stats.inference import permutation_p
from memlib.stats.randomization import Design

ALPHA, REPLICATIONS, PERMUTATIONS = 0.05, 2_000, 199
SIZE, REFERENCES, CANARIES, TEXTS = 10**6, 999, 3, 60
DISCOVERABLE = DiscoverableSpec(documents=TEXTS // 2, tries=(1,))
IMAGES, CLASSES = 200, 10


def exposure_p(rng: np.random.Generator, claim: Mapping[str, float] | None) -> tuple[bool, list[float]]:
    """Summarize a run whose model saw no canary: canaries and candidates cost alike, trained and held-out documents too."""
    costs = rng.integers(0, 2**30, CANARIES + REFERENCES)
    model = Scored(
        "", 0, 1, tuple(range(CANARIES)), ("inserted",) * CANARIES, (1,) * CANARIES, costs[:CANARIES], costs[CANARIES:], 1.0, {},
        claim,
    )  # fmt: skip
    settings = recipe(score={"method": "sampled", "alpha": ALPHA}).model_copy(update={"discoverable": DISCOVERABLE})
    held_out, bits = rng.permutation(TEXTS) < TEXTS // 2, rng.normal(40.0, 10.0, TEXTS)
    texts = pa.table(
        {
            "variant": [""] * TEXTS, "seed": [0] * TEXTS, "document": np.arange(TEXTS), "held_out": held_out, "copies": [1] * TEXTS,
            "bits": bits, "scheme_bits": bits, "greedy": [False] * TEXTS, "near": [0] * TEXTS,
        }
    )  # fmt: skip
    with (
        patch.object(documents_of_runs, "PERMUTATIONS", PERMUTATIONS),
        patch.object(documents_of_runs, "detectable_shift", lambda *_, **__: None),  # the power, on which no word rests
    ):
        rows = findings([model], settings, SIZE, documents=texts)
    return rows.verdict.word == SHOWN, [row.p_value or 0.0 for row in rows.tests(*EXPOSURE_HEADLINES)]


def deja_vu_p(rng: np.random.Generator) -> tuple[bool, list[float]]:
    """Test a pair of models whose answers and distances depend on the image and the training alone."""
    sides, labels = np.zeros(IMAGES, dtype=bool), np.arange(IMAGES) % CLASSES
    for label in range(CLASSES):
        members = rng.permutation(np.flatnonzero(labels == label))
        sides[members[: len(members) // 2]] = True
    design, seed = Design.of(sides, labels), int(rng.integers(2**31))
    right = (rng.random((2, IMAGES)) < rng.random(IMAGES)).astype(np.int64)
    gains, shift = right[0] - right[1], rng.normal(size=IMAGES)
    null = design.redrawn_differences(shift, PERMUTATIONS, seed=seed)
    p_values: dict[str, tuple[float, float]] = {
        HEADLINE: (design.difference(gains), design.tail_p(gains, permutations=PERMUTATIONS, seed=seed)),
        STABILITY: (design.difference(shift), permutation_p(design.difference(shift), null)),
    }
    rows = settle(
        [
            tested("share_excess" if family == HEADLINE else "sslmem", {}, value, n=IMAGES, p_value=p, family=family)
            for family, (value, p) in p_values.items()
        ],
        alpha=ALPHA,
        headlines=HEADLINES,
    )
    return word_of(rows, HEADLINES) == SHOWN, [p for _, p in p_values.values()]


CLAIM = {"epsilon": 0.1, "delta": 0.0, "noise": 20.0}  # of a training that used no canary, so that the claim is true
RUNS: Mapping[str, Callable[[np.random.Generator], tuple[bool, list[float]]]] = {
    "exposure: canaries, documents": lambda rng: exposure_p(rng, None),
    "exposure: canaries, documents, privacy claim": lambda rng: exposure_p(rng, CLAIM),
    "deja vu: share_excess, SSLMem": deja_vu_p,
}
PIECES = 8


def judge_words(unit: str) -> Row:
    """Judge a piece of the replications of a kind of run."""
    name, _ = unit.rsplit("/", 1)
    rng = np.random.default_rng(derive_seed(0, unit) % 2**31)
    count = REPLICATIONS // PIECES
    words: list[bool] = []
    p_values: list[list[float]] = []
    for _ in range(count):
        word, found = RUNS[name](rng)
        words.append(word)
        p_values.append(found)
    by_family: NDArray[np.bool_] = np.array(p_values) <= ALPHA
    return {
        "kind": name, "count": count, "now": sum(words), "before": int(by_family.any(axis=1).sum()),
        "families": by_family.sum(axis=0).tolist(),
    }  # fmt: skip


def report_words(rows: Sequence[Row]) -> Iterator[str]:
    """Report how often runs without memory are shown, with and without the adjustment over families."""
    yield f"Simulated: runs without memory, {REPLICATIONS} of each kind; alpha {ALPHA:g}. Before: any family's own p at most alpha. The families of a run share its data"
    yield f"(canaries and privacy claim) or not (documents). The claim, epsilon {CLAIM['epsilon']:g}, is true. Tests by redraws use {PERMUTATIONS} of them."
    yield ""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for key, heading in (("now", "word of the run, now"), ("before", "families unadjusted, before")):
        found = {
            k: (sum(r[key] for r in rows if r["kind"] == k), sum(r["count"] for r in rows if r["kind"] == k)) for k in kinds
        }
        yield from level_lines(f"run without memory: {heading}", found, alpha=ALPHA, hit="shown")
        yield ""


PARTS = (
    Part(
        "words",
        "Is a run without memory shown more often because it has several headline families?",
        lambda: (f"{name}/{piece}" for piece in range(PIECES) for name in RUNS), judge_words, report_words,
    ),
)  # fmt: skip
