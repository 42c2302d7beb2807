"""First answers of `memlib look`: how often is an innocent model shown, and a guilty one found, by what people bring?"""

import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import memlib
from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.findings import BOUNDED, SHOWN
from memlib.identity import derive_seed

ALPHA, WORLDS, BATCH = 0.05, 400, 20
INNOCENT = {
    "forest of other rows, random hold-out": "fixed",
    "forest of other rows, coins": "coins",
    "its probabilities and labels alone, random hold-out": "fixed",
    "scores without memory, random hold-out": "fixed",
    "scores that follow persons of eight rows, random hold-out": "fixed",
}
GUILTY = {"forest of the members, random hold-out": "fixed", "scores .5 standard deviations apart, coins": "coins"}
COUNT = 160  # examples


def world(rng: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.str_]]:
    """Return examples of two classes, with labels that noise makes hard."""
    points = rng.normal(size=(COUNT, 4))
    return points, np.where(points[:, 0] + rng.normal(size=COUNT) > 0, "yes", "no")


def chosen(rng: np.random.Generator, drawn: str, labels: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Return the members: each by a coin, or half of each class."""
    if drawn == "coins":
        return rng.random(len(labels)) < 0.5
    member = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        member[rows[: len(rows) // 2]] = True
    return member


def brought(name: str, drawn: str, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return the things of a situation."""
    from sklearn.ensemble import RandomForestClassifier

    points, labels = world(rng)
    member = chosen(rng, drawn, labels)
    if name.startswith("scores"):
        return (_scores(name, member, rng),)
    seed = int(rng.integers(2**31))
    own = (points[member], labels[member]) if name in GUILTY else world(rng)
    model = RandomForestClassifier(30, random_state=seed).fit(*own)
    if name.startswith("its probabilities"):
        shares, order = model.predict_proba(points), list(model.classes_)
        lines = [f"{label},{a},{b},{int(inside)}" for label, (a, b), inside in zip(labels, shares, member, strict=True)]
        Path("outputs.csv").write_text("\n".join([f"label,p_{order[0]},p_{order[1]},member", *lines]) + "\n")
        return ("outputs.csv",)
    return (points[member], labels[member]), (points[~member], labels[~member]), model


def _scores(name: str, member: NDArray[np.bool_], rng: np.random.Generator) -> str:
    count, person = len(member), np.arange(len(member))
    values = rng.normal(size=count)
    if "persons" in name:
        person = np.arange(count) // 8
        member = (rng.permutation(count // 8) < count // 16)[person]
        values = rng.normal(size=count // 8)[person] + 0.3 * values
    if name in GUILTY:
        values -= 0.5 * member
    order = rng.permutation(count)
    lines = [f"p{person[row]},{values[row]},{'yes' if member[row] else 'no'}" for row in order]
    Path("scores.csv").write_text("\n".join(["patient,loss,member", *lines]) + "\n")
    return "scores.csv"


def compute(unit: str) -> Row:
    name, batch = unit.rsplit("/", 1)
    drawn = (INNOCENT | GUILTY)[name]
    row: Row = {"name": name, "shown": 0, "bounded": 0, "count": BATCH}
    before = Path.cwd()
    for number in range(BATCH):
        rng = np.random.default_rng(derive_seed(0, name, int(batch), number))
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            os.chdir(folder)
            try:
                found = memlib.look(*brought(name, drawn, rng), drawn=drawn, store=f"{folder}/store")  # type: ignore[arg-type]
            finally:
                os.chdir(before)
            assert found.run is not None
            row["shown"] += found.run.verdict.word == SHOWN
            row["bounded"] += found.run.verdict.word == BOUNDED
    return row


def report(rows: Sequence[Row]) -> Iterator[str]:
    totals = {
        name: [sum(row[key] for row in rows if row["name"] == name) for key in ("shown", "bounded", "count")]
        for name in INNOCENT | GUILTY
    }
    totals = {name: counts for name, counts in totals.items() if counts[2]}
    yield f"{COUNT} examples, half of them members by the draw that is declared; each time new data, a new model and a new store."
    yield ""
    innocent = {name: (counts[0], counts[2]) for name, counts in totals.items() if name in INNOCENT}
    yield from level_lines("innocent", innocent, alpha=ALPHA, hit="shown")
    yield ""
    cells = ((name, rate(counts[0], counts[2])) for name, counts in totals.items() if name in GUILTY)
    yield from table(("guilty", "shown"), cells)
    bounded, count = (sum(counts[place] for counts in totals.values()) for place in (1, 2))
    yield ""
    yield f"Bounded: {rate(bounded, count)} of all looks, which the simple attacks cannot state."


PARTS = (
    Part(
        "look", "How often does the first answer of memlib look show an innocent model, and find a guilty one?",
        lambda: [f"{name}/{batch}" for batch in range(WORLDS // BATCH) for name in INNOCENT | GUILTY], compute, report,
    ),
)  # fmt: skip
