"""Déjà vu with one model alone: models that saw none of the audited images, and models that did."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from benchmarks.validity.deja_vu import (
    AUDITED,
    BASE,
    CONFIG,
    COPIES,
    REDRAWS,
    WORLDS,
    crops,
    draw_rows,
    drawn_sides,
    labels_of,
    neighbours,
    smallest_p,
    units_of,
)
from benchmarks.validity.harness import Part, Row, crossed, level_lines, rate, table
from benchmarks.validity.nets import How, images, train
from memlib.audits.deja_vu.findings import summarize
from memlib.audits.deja_vu.scores import Answers, Decoding, score
from memlib.findings import Findings
from memlib.identity import derive_seed
from memlib.observe.backgrounds import answers_of, folds_of, name_with_network, name_with_words
from memlib.specs import ModelSpec
from memlib.specs.backgrounds import BackgroundSpec, CropNetwork, VisualWords

SIDE = 14
NETWORK = CropNetwork(kind="network", model=ModelSpec(width=8, projector=(32,), input_size=SIDE), epochs=15, batch_size=32)
WORDS = VisualWords(kind="visual_words", words=64, side=SIDE, patch_size=4, stride=2)
CPU = torch.device("cpu")


def backgrounds(
    found: BackgroundSpec, shown: NDArray[np.float32], labels: NDArray[np.int64], groups: NDArray[np.int64]
) -> Answers:
    """Return the answers of all folds' classifiers for images with their middle hidden, (num_images, 196)."""
    low, high = images("FashionMNIST")[0].min(), images("FashionMNIST")[0].max()
    grey = np.clip((shown - low) / (high - low) * 255, 0, 255).astype(np.uint8).reshape(-1, 1, SIDE, SIDE)
    pictures = np.repeat(grey, 3, axis=1)
    fold = folds_of([f"{place:04d}" for place in range(len(labels))], labels, groups, found.folds, found.seed)
    probabilities = np.zeros((len(labels), 10))
    for number in range(found.folds):
        held_out, seed = fold == number, derive_seed(found.seed, number)
        known = (pictures[~held_out], labels[~held_out], pictures[held_out])
        probabilities[held_out] = (
            name_with_network(found, *known, num_classes=10, seed=seed, device=CPU, progress=lambda done, total: None)
            if isinstance(found, CropNetwork)
            else name_with_words(found, *known, num_classes=10, seed=seed)
        )
    return Answers(*answers_of(probabilities))


def units_alone(
    votes: Sequence[NDArray[np.int64]], known: Answers, sides: NDArray[np.bool_], rows: NDArray[np.int64],
    persons: NDArray[np.int64] | None,
) -> pa.Table:  # fmt: skip
    """Return tables.UNITS, computed from the votes of every model on all audited images."""
    decodings = []
    for model, votes_of_model in enumerate(votes):
        for direction, side in (("A", sides), ("B", ~sides)):
            places = np.flatnonzero(side)
            names, groups = (
                [f"{place:04d}" for place in places],
                None if persons is None else [f"p{p}" for p in persons[side]],
            )
            target, reference = votes_of_model[side], known.of(places)
            decodings.append(
                Decoding(direction, model, "last", 1, "maximal", names, labels_of(rows[side]), target, reference, groups)
            )
    return score(decodings, [f"c{label}" for label in range(10)], CONFIG)


def tested(units: pa.Table, reference: str) -> Findings:
    """Return the tests, the headline first."""
    return Findings.read(summarize(units, CONFIG, num_classes=10, reference=reference)).tests()


# -- models that saw none of the images -----------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """The construction of innocent models: how they are trained, and the reference beside them."""

    how: How = BASE
    more: int = 0  # further training images
    models: int = 1
    persons: bool = False
    reference: BackgroundSpec = NETWORK


INNOCENTS = {
    "one model, network": Kind(),
    "one model, visual words": Kind(reference=WORDS),
    "three models, network": Kind(models=3),
    "model far better than its reference: 2,000 more images": Kind(more=2000),
    "model of another design, trained longer": Kind(how=replace(BASE, widths=(256, 256), epochs=120)),
    "persons with four images, split as one": Kind(persons=True),
}


def judge_innocents(unit: str) -> Row:
    name, number = unit.rsplit("/", 1)
    kind, rng = INNOCENTS[name], np.random.default_rng([int(number), derive_seed(1, name) % 2**31])
    rows, public, rest = draw_rows(rng)
    persons = None
    if kind.persons:
        persons = np.repeat(np.arange(AUDITED // COPIES), COPIES)
        rows = np.repeat(rows[: AUDITED // COPIES], COPIES)
    queries, (x, y) = crops(rows, rng if kind.persons else None), images("FashionMNIST")
    groups = np.arange(AUDITED) if persons is None else persons
    known = backgrounds(kind.reference, queries, labels_of(rows), groups)
    votes = [
        neighbours(train(x, y, [rng.permutation(rest)[: AUDITED + kind.more]], kind.how, seed=seed), queries, public)[0]
        for seed in (derive_seed(int(number), name, model) % 2**31 for model in range(kind.models))
    ]
    p_values: dict[str, list[float]] = {}
    for _ in range(REDRAWS):
        units = units_alone(votes, known, drawn_sides(rng, labels_of(rows), groups), rows, persons)
        for test, p in smallest_p(tested(units, kind.reference.kind)).items():
            p_values.setdefault(test, []).append(p)
    return {"kind": name, "p": p_values}


def report_innocents(rows: Sequence[Row]) -> Iterator[str]:
    by_test: dict[str, list[float]] = {}
    for row in rows:
        for test, values in row["p"].items():
            by_test.setdefault(f"{row['kind']}: {test}", []).extend(values)
    yield f"{WORLDS} draws of data and nets, {REDRAWS} redraws of who is held out for each; {AUDITED} audited images."
    yield ""
    counts = {name: (sum(p <= 0.05 for p in values), len(values)) for name, values in by_test.items()}
    yield from level_lines("innocent model: test", counts, alpha=0.05)


# -- models that trained on half of the images ----------------------------------------------------------

SIZES, GUILTY = (100, 200, 400), 20
REFERENCES = {"network": NETWORK, "visual words": WORDS}


def judge_guilty(unit: str) -> Row:
    size, number = (int(part) for part in unit.split("/"))
    rng = np.random.default_rng([number, size, 1])
    shuffled = rng.permutation(60_000)
    rows, public = shuffled[: 2 * size], shuffled[2 * size : 2 * size + 2000]
    sides, queries = drawn_sides(rng, labels_of(rows), np.arange(2 * size)), crops(rows, None)
    half = min(int(sides.sum()), int((~sides).sum()))
    trained_on = [rows[sides][:half], rows[~sides][:half]]
    x, y = images("FashionMNIST")
    under_a, under_b = neighbours(train(x, y, trained_on, BASE, seed=derive_seed(number, size) % 2**31), queries, public)
    pair = Findings.read(summarize(units_of([(under_a, under_b)], sides, rows, None), CONFIG, num_classes=10)).head
    result: Row = {"size": size, "two models": [pair.verdict == "shown", pair.value, pair.detectable]}
    for name, reference in REFERENCES.items():
        known = backgrounds(reference, queries, labels_of(rows), np.arange(2 * size))
        for which, votes in ((name, under_a), (f"{name}, the other half's net", under_b)):
            head = tested(units_alone([votes], known, sides, rows, None), reference.kind).head
            result[which] = [head.verdict == "shown", head.value, head.detectable]
    return result


def report_guilty(rows: Sequence[Row]) -> Iterator[str]:
    lines = []
    for size in SIZES:
        of_size = [row for row in rows if row["size"] == size]
        for name in ("two models", *REFERENCES, *(f"{name}, the other half's net" for name in REFERENCES)):
            if of_size:
                shown, value, detectable = (np.array([row[name][place] for row in of_size]) for place in range(3))
                lines.append(
                    (size, name, f"{value.mean():.3f}", f"{detectable.mean():.3f}", rate(int(shown.sum()), len(of_size)))
                )
    yield from table(("images the model trained on", "reference", "mean excess", "found with 80 % power", "shown"), lines)


PARTS = (
    Part(
        "deja-vu-alone-null",
        "A single net that saw none of the audited images, compared with classifiers of backgrounds (Fashion-MNIST, MLPs, six of fourteen rows hidden).",
        lambda: crossed(INNOCENTS, WORLDS), judge_innocents, report_innocents,
    ),
    Part(
        "deja-vu-alone-plant",
        "A single net that trained on half of the audited images: is its memory shown, and how does this compare with two nets?",
        lambda: crossed(map(str, SIZES), GUILTY), judge_guilty, report_guilty,
    ),
)  # fmt: skip
