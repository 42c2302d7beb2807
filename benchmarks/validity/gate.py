"""The gate on share_excess: how often do images pass whose true share of memorized images is above the limit?"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.deja_vu.gate import shares
from memlib.audits.deja_vu.recipe import Recipe
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.identity import derive_seed

LIMIT, REPEATS, ALPHA = 0.05, 400, 0.05
ABOVE = {  # images, persons (None: one image each), true share, share that is right by chance
    "20 images, nothing known by chance": (20, None, 0.10, 0.0),
    "20 images": (20, None, 0.10, 0.1),
    "40 images": (40, None, 0.06, 0.1),
    "40 images, half known by chance": (40, None, 0.06, 0.5),
    "200 images": (200, None, 0.06, 0.1),
    "200 images, half known by chance": (200, None, 0.06, 0.5),
    "200 images of 20 persons": (200, 20, 0.10, 0.1),
    "1,000 images of 100 persons": (1000, 100, 0.06, 0.1),
}
WITHOUT = {"20 images": 20, "200 images": 200, "400 images": 400, "1,000 images": 1000}
RECIPE = Recipe.model_validate(
    {
        "data": {"source": {"kind": "scenes"}}, "split": {"train_per_class": 5}, "decode": {"k": [5], "permutations": 400},
        "training": {"objective": {"kind": "vicreg"}, "epochs": 5},
    }
)  # fmt: skip


def answers(rng: np.random.Generator, count: int, persons: int | None, share: float, chance: float) -> pa.Table:
    """Return the units of one pair; the model of an image's own side names it from memory in a share of all persons."""
    found = []
    for direction in ("A", "B"):
        size = count // 2
        labels = rng.integers(0, 2, size=size)
        person = np.arange(size) // (1 if persons is None else count // persons)
        right = rng.random((2, size)) < chance
        right[0] |= (rng.random(int(person.max()) + 1) < share)[person]
        votes = np.where(right, labels, 2)[:, :, None].repeat(5, axis=2)
        names = [f"{direction}{place:04d}" for place in range(size)]
        groups = None if persons is None else [f"{direction}{number}" for number in person]
        found.append(Decoding(direction, 0, "last", 5, "maximal", names, labels, votes[0], votes[1], groups))
    return score(found, ["cat", "dog", "hen"], RECIPE.decode)


def compute(unit: str) -> Row:
    kind, name = unit.split("/")
    count, persons, share, chance = ABOVE[name] if kind == "above" else (WITHOUT[name], None, 0.0, 0.1)
    rng, passed, failed = np.random.default_rng(derive_seed(0, unit)), 0, 0
    repeats = REPEATS if count < 1000 else REPEATS // 4
    for _ in range(repeats):
        ends = shares(answers(rng, count, persons, share, chance), RECIPE)
        passed += ends is not None and ends[1] <= LIMIT
        failed += ends is not None and ends[0] > LIMIT
    return {"kind": kind, "name": name, "passed": passed, "failed": failed, "count": repeats}


def report(rows: Sequence[Row]) -> Iterator[str]:
    above = {
        f"{row['name']}, truth {ABOVE[row['name']][2]:g}": (row["passed"], row["count"])
        for row in rows
        if row["kind"] == "above"
    }
    yield f"Limit {LIMIT:g}; the true share lies above it, so every pass is wrong."
    yield ""
    yield from level_lines("images", above, alpha=ALPHA, hit="passed")
    without = [row for row in rows if row["kind"] == "without"]
    if without:
        yield ""
        cells = ((r["name"], rate(r["passed"], r["count"]), rate(r["failed"], r["count"])) for r in without)
        yield from table(("without memory", "passed", "failed"), cells)


PARTS = (
    Part(
        "gate", "How often does `memlib check` pass a share of memorized images above the limit, and images without memory?",
        lambda: [*(f"above/{name}" for name in ABOVE), *(f"without/{name}" for name in WITHOUT)], compute, report,
    ),
)  # fmt: skip
