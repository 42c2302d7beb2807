"""Compare the memories of several déjà vu audits of the same images: which criterion, or which training, remembers more?

Audits are compared in pairs, image by image, where they audit the same images from the same sides. A difference is ranked,
that is tested, where chance drew who trained on what, where three pairs of models or more on each side say how much training
itself varies, and where both audits' models have learnt the classes: who knows nothing of whole images remembers nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations

import pyarrow as pa

from memlib.audit import Cell
from memlib.audits.deja_vu.gains import Gains, difference
from memlib.findings import Row, settle
from memlib.identity import derive_seed
from memlib.records import RunRecord

METRIC, FAMILY = "difference in share_excess", "differences"


def compare(cells: Sequence[Cell]) -> list[Row]:
    """Return a row for each two cells that audit the same images: the first one's share of excess minus the second one's.

    Differences that are ranked are tested together (Holm 1979); of the others `params.not_ranked` says why. Intervals of
    ranked differences are over examples and trainings, else over examples.

    Args:
        cells: audits that ended well.
    """
    gains = {cell.name: gains_of(cell.run, cell.units) for cell in cells}
    level = max((first.alpha or 0.0 for cell in cells for first in cell.run.findings[:1]), default=0.05)
    ignorant = _ignorant(cells)
    untested = {cell.name for cell in cells if cell.run.findings[0].role != "test"}
    rows = []
    for one, other in combinations(gains, 2):
        if not gains[one].images.equals(gains[other].images):
            continue
        reasons = [f"{name} was not tested" for name in sorted({one, other} & untested)]
        reasons += [f"{name} knows too little of whole images" for name in sorted({one, other} & ignorant)]
        params, seed = {"cell": one, "other": other}, derive_seed(0, "difference", one, other)
        rows.append(difference(METRIC, params, gains[one], gains[other], family=FAMILY, seed=seed, reasons=reasons))
    return settle(rows, alpha=level or 0.05)


def gains_of(run: RunRecord, units: pa.Table) -> Gains:
    """Return what a run's models say of each image at its headline's setting."""
    params = json.loads(run.findings[0].params)
    return Gains.of(units, params, alone="reference" in params)


def _ignorant(cells: Sequence[Cell]) -> set[str]:
    """The cells whose models name whole images no better than untrained ones do, or than guessing where there are none."""
    known = {cell.name: _knowledge(cell.run) for cell in cells}
    untrained = [known[cell.name] for cell in cells if json.loads(cell.run.findings[0].params)["epoch"] == 0]
    chance = [_chance(cell.run) for cell in cells]
    floor = max([high for found in untrained if found is not None for _, high in [found]], default=max(chance, default=0.0))
    return {name for name, found in known.items() if found is not None and found[0] <= floor}


def _knowledge(run: RunRecord) -> tuple[float, float] | None:
    """The interval of a run's best accuracy on whole images; None where none was taken."""
    rows = [row for row in run.findings if row.metric == "knn_accuracy" and row.value is not None]
    best = max(rows, key=lambda row: row.value or 0.0, default=None)
    return None if best is None or best.ci_low is None or best.ci_high is None else (best.ci_low, best.ci_high)


def _chance(run: RunRecord) -> float:
    found = [json.loads(row.params).get("chance", 0.0) for row in run.findings if row.metric == "accuracy_target"]
    return float(found[0]) if found else 0.0
