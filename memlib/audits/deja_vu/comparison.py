"""Comparison of several déjà vu audits of the same images: which objective or training procedure memorizes more?

Audits are compared in pairs, image by image, if they audit the same images with the same sides. A difference is ranked (that
is, tested) only if the sides were drawn at random, each audit has three or more pairs of models (to estimate the variation
between training runs), and the models of both audits have learnt the classes: a model that cannot name whole images cannot
name objects from memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations

import pyarrow as pa

from memlib.audits.base import Cell
from memlib.audits.deja_vu.gains import Gains, difference
from memlib.findings import Row, settle
from memlib.identity import derive_seed
from memlib.runs.records import RunRecord

METRIC, FAMILY = "difference in share_excess", "differences"


def compare(cells: Sequence[Cell]) -> list[Row]:
    """Return one row per pair of cells that audit the same images: the share excess of the first minus that of the second.

    Ranked differences are tested together (Holm 1979); for the others `params.not_ranked` gives the reason. The intervals of
    ranked differences cover the variation over examples and training runs; the other intervals, over examples only.

    Args:
        cells: completed audits.
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
        reasons += [f"the models of {name} know too little about whole images" for name in sorted({one, other} & ignorant)]
        params, seed = {"cell": one, "other": other}, derive_seed(0, "difference", one, other)
        rows.append(difference(METRIC, params, gains[one], gains[other], family=FAMILY, seed=seed, reasons=reasons))
    return settle(rows, alpha=level or 0.05)


def gains_of(run: RunRecord, units: pa.Table) -> Gains:
    """Return the gains of a run's models on each image at the headline's setting."""
    params = json.loads(run.findings[0].params)
    return Gains.of(units, params, alone="reference" in params)


def _ignorant(cells: Sequence[Cell]) -> set[str]:
    """Return the cells whose models name whole images no better than untrained models or, if there are none, than chance."""
    known = {cell.name: _knowledge(cell.run) for cell in cells}
    untrained = [known[cell.name] for cell in cells if json.loads(cell.run.findings[0].params)["epoch"] == 0]
    chance = [_chance(cell.run) for cell in cells]
    floor = max([high for ends in untrained if ends is not None for _, high in [ends]], default=max(chance, default=0.0))
    return {name for name, ends in known.items() if ends is not None and ends[0] <= floor}


def _knowledge(run: RunRecord) -> tuple[float, float] | None:
    """Return the interval of a run's best accuracy on whole images; None if none was measured."""
    rows = [row for row in run.findings if row.metric == "knn_accuracy" and row.value is not None]
    best = max(rows, key=lambda row: row.value or 0.0, default=None)
    return None if best is None or best.ci_low is None or best.ci_high is None else (best.ci_low, best.ci_high)


def _chance(run: RunRecord) -> float:
    values = [json.loads(row.params).get("chance", 0.0) for row in run.findings if row.metric == "accuracy_target"]
    return float(values[0]) if values else 0.0
