"""The gate on share_excess: how often do images pass whose true share of memorized images is above the limit?"""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.deja_vu.answers import shares
from memlib.audits.deja_vu.findings import summarize
from memlib.audits.deja_vu.recipe import Recipe
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.audits.judging import decide
from memlib.identity import derive_seed
from memlib.runs.run import Run

LIMIT, REPEATS, ALPHA = 0.05, 400, 0.05
ABOVE = {  # images, persons (None: one image each), true share, share that is right by chance
    "20 images, nothing known by chance": (20, None, 0.10, 0.0),
    "20 images": (20, None, 0.10, 0.1),
    "40 images": (40, None, 0.06, 0.1),
    "40 images, half known by chance": (40, None, 0.06, 0.5),
    "200 images": (200, None, 0.06, 0.1),
    "200 images, half known by chance": (200, None, 0.06, 0.5),
    "20 images of 10 persons": (20, 10, 0.10, 0.1),
    "40 images of 10 persons": (40, 10, 0.10, 0.1),
    "40 images of 20 persons": (40, 20, 0.06, 0.1),
    "200 images of 20 persons": (200, 20, 0.10, 0.1),
    "1,000 images of 100 persons": (1000, 100, 0.06, 0.1),
}
DIRECTION = {"20 images": 20, "40 images": 40}  # a gate on a single direction, which is not tested; truth .1
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
    if kind == "direction":
        return of_direction(name, DIRECTION[name])
    count, persons, share, chance = ABOVE[name] if kind == "above" else (WITHOUT[name], None, 0.0, 0.1)
    rng, passed, failed = np.random.default_rng(derive_seed(0, unit)), 0, 0
    repeats = REPEATS if count < 1000 else REPEATS // 4
    for _ in range(repeats):
        ends = shares(answers(rng, count, persons, share, chance), RECIPE)
        passed += ends is not None and ends[1] <= LIMIT
        failed += ends is not None and ends[0] > LIMIT
    return {"kind": kind, "name": name, "passed": passed, "failed": failed, "count": repeats}


def of_direction(name: str, count: int) -> Row:
    """Ask for the share excess of one direction alone; before, the upper end of its bootstrap interval decided."""
    rng, passed, failed, before = np.random.default_rng(derive_seed(0, f"direction/{name}")), 0, 0, 0
    config = RECIPE.decode.model_copy(update={"replicates": 200})
    for _ in range(REPEATS):
        units = answers(rng, count, None, 0.1, 0.1)
        summary = summarize(units, config, num_classes=3)
        run = SimpleNamespace(
            id="r", audit="deja-vu", summary=summary, tables={"summary": ""}, units=units, recipe=RECIPE.model_dump(mode="json"),
        )  # fmt: skip
        outcome = decide(cast(Run, run), fail_above=[f"share_excess[direction=A]={LIMIT}"]).outcome
        passed, failed = passed + (outcome == "passed"), failed + (outcome == "failed")
        own = units.filter(pc.equal(units["direction"], "A"))
        right, other = (pc.equal(own[f"{side}_prediction"], own["label"]).to_numpy() for side in ("target", "reference"))
        gains = right.astype(float) - other
        drawn = rng.choice(gains, size=(200, len(gains))).mean(axis=1)
        before += bool(np.quantile(drawn, 0.975) <= LIMIT)
    return {"kind": "direction", "name": name, "passed": passed, "failed": failed, "before": before, "count": REPEATS}


def report(rows: Sequence[Row]) -> Iterator[str]:
    above = {
        f"{row['name']}, truth {ABOVE[row['name']][2]:g}": (row["passed"], row["count"])
        for row in rows
        if row["kind"] == "above"
    }
    yield f"Limit {LIMIT:g}; the true share lies above it, so every pass is wrong."
    yield ""
    yield from level_lines("images", above, alpha=ALPHA, hit="passed")
    single = [row for row in rows if row["kind"] == "direction"]
    if single:
        yield ""
        cells = ((r["name"], rate(r["passed"], r["count"]), rate(r["before"], r["count"])) for r in single)
        yield from table(("one direction alone, truth 0.1", "passed", "passed before"), cells)
    without = [row for row in rows if row["kind"] == "without"]
    if without:
        yield ""
        cells = ((r["name"], rate(r["passed"], r["count"]), rate(r["failed"], r["count"])) for r in without)
        yield from table(("without memory", "passed", "failed"), cells)


PARTS = (
    Part(
        "gate", "How often does `memlib check` pass a share of memorized images above the limit, and images without memory?",
        lambda: [*(f"above/{name}" for name in ABOVE), *(f"direction/{name}" for name in DIRECTION), *(f"without/{name}" for name in WITHOUT)], compute, report,
    ),
)  # fmt: skip
