"""Trends of sweeps: is a trend shown along a key that changes nothing, also where every cell remembers as much, and found
where memory rises from cell to cell?
"""

import hashlib
import json
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.validity.harness import Part, Row, level_lines, rate, table
from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.trends import trends
from memlib.findings import settle, tested
from memlib.identity import derive_seed
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord

MEMORY, RISING, CELLS, SWEEPS, ALPHA = (0.0, 0.05, 0.1), (0.05, 0.1, 0.2), (5, 6, 8), 2_000, 0.05
KEY, IMAGES, CHANCE = "training.epochs", 400, 0.2


def cell(number: int, value: float) -> Outcome:
    """Return a finished déjà vu audit with a share excess; its model is its own."""
    changes, model = {KEY: 10 * (number + 1)}, hashlib.sha256(str(number).encode()).hexdigest()[:32]
    rows = settle([tested("share_excess", {}, value, n=IMAGES, p_value=0.5, family="headline")], alpha=ALPHA)
    run = RunRecord(
        run=f"r{number}", audit="deja_vu", title="t", finished=1.0, findings=[FindingRecord(**row.row()) for row in rows],
        artifacts={"scores": f"score/{number}"}, computed=[f"train/{model}"],
        verdict=VerdictRecord(word="inconclusive", sentence=""),
    )  # fmt: skip
    return Outcome(json.dumps(changes), "deja_vu", changes, run)


def share_excess(rng: np.random.Generator, memory: float) -> float:
    """Return the share excess of a cell whose models remember a share of their images and know some by chance."""
    known = rng.random((2, IMAGES)) < CHANCE
    return float(((known[0] | (rng.random(IMAGES) < memory)).astype(float) - known[1]).mean())


def compute(unit: str) -> Row:
    said, cells = unit.split("/")[0], int(unit.split("/")[1])
    memory, is_rising = float(said.removeprefix("to ")), said.startswith("to ")
    of_cells = [memory * (number / (cells - 1) if is_rising else 1) for number in range(cells)]
    rng, shown = np.random.default_rng(derive_seed(0, "trends", unit)), 0
    for _ in range(SWEEPS):
        (found,) = trends([cell(number, share_excess(rng, each)) for number, each in enumerate(of_cells)], alpha=ALPHA)
        assert found.row.is_test, "the trend is not tested"
        shown += found.row.verdict == "shown"
    return {"memory": memory, "rising": is_rising, "cells": cells, "shown": shown, "count": SWEEPS}


def report(rows: Sequence[Row]) -> Iterator[str]:
    yield f"{SWEEPS} sweeps along `{KEY}`, which is tested; {IMAGES} images a cell, the same memory in every cell or memory that rises evenly from none."
    yield ""
    even, rising = ([row for row in rows if row["rising"] is is_rising] for is_rising in (False, True))
    found = {f"{row['cells']} cells, memory {row['memory']:g}": (row["shown"], row["count"]) for row in even}
    yield from level_lines("sweep", found, alpha=ALPHA, hit="trend shown")
    yield ""
    named = ((f"{row['cells']} cells, memory rises to {row['memory']:g}", rate(row["shown"], row["count"])) for row in rising)
    yield from table(("sweep", "trend found"), named)


PARTS = (
    Part(
        "sweep-trends", "Is a trend shown along a key that changes nothing, also where all cells remember as much, and found where memory rises?",
        lambda: [f"{memory}/{cells}" for memory in (*(f"{m:g}" for m in MEMORY), *(f"to {m:g}" for m in RISING)) for cells in CELLS], compute, report,
    ),
)  # fmt: skip
