"""Comparison of several déjà vu audits of the same images: which objective or training procedure memorizes more?

Audits are compared in pairs, image by image, if they audit the same images with the same sides. A difference is ranked (that
is, tested) only if the sides were drawn at random, each audit has three or more pairs of models (to estimate the variation
between training runs), and the models of both audits have learnt the classes: a model that cannot name whole images cannot
name objects from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pyarrow as pa

from memlib.audits.base import Cell
from memlib.audits.deja_vu.gains import Gains, difference
from memlib.findings import Finding, Findings, Interval, estimate, settle
from memlib.identity import derive_seed
from memlib.stats.inference import exact_interval

METRIC, FAMILY = "difference in share_excess", "differences"


def compare(cells: Sequence[Cell]) -> Findings:
    """Return a finding per pair of cells that audit the same images: the share excess of the first minus that of the second.

    Ranked differences are tested together (Holm 1979); for the others `params.not_ranked` gives the reason. The intervals of
    ranked differences cover the variation over examples and training runs; the other intervals, over examples only.
    """
    found = {cell.name: Findings.of_run(cell.run) for cell in cells}
    gains = {cell.name: gains_of(found[cell.name].head, cell.units) for cell in cells}
    level = max((rows.head.alpha or 0.0 for rows in found.values()), default=0.0)
    ignorant, untested = _ignorant(found), {name for name, rows in found.items() if not rows.head.is_test}
    rows = []
    for one, other in combinations(gains, 2):
        if not gains[one].images.equals(gains[other].images):
            continue
        reasons = [f"{name} was not tested" for name in sorted({one, other} & untested)]
        reasons += [f"the models of {name} know too little about whole images" for name in sorted({one, other} & ignorant)]
        params, seed = {"cell": one, "other": other}, derive_seed(0, "difference", one, other)
        rows.append(difference(METRIC, params, gains[one], gains[other], family=FAMILY, seed=seed, reasons=reasons))
    return settle(rows, alpha=level or 0.05)


def gains_of(headline: Finding, units: pa.Table) -> Gains:
    """Return the gains of a run's models on each image at the headline's setting."""
    return Gains.of(units, headline.params, alone="reference" in headline.params)


def utility(rows: Findings) -> Finding | None:
    """Return the accuracy of a linear probe of the last checkpoint on whole images that its model was not trained on.

    The probe reads the backbone, whose representation users of such models keep (Meehan 2023, Fig. 8), or the first probed
    layer of encoders without a layer of that name. The interval is over images; all pairs of models share them.
    """
    row = rows.get("probe_gap_backbone", epoch=None) or rows.get("probe_gap_projector", epoch=None)
    if row is None:
        return None
    accuracy, images = row.params["test_accuracy"], row.n / rows.head.params["pairs"]
    interval = Interval(*exact_interval(accuracy * images, round(images)), "examples")
    params = {"measure": "linear probe", "probe_layer": row.params["probe_layer"]}
    return estimate("utility", params, accuracy, n=row.n, interval=interval)


def _ignorant(cells: Mapping[str, Findings]) -> set[str]:
    """Return the cells whose models name whole images no better than untrained models or, if there are none, than chance."""
    known = {name: ends for name, rows in cells.items() if (ends := _knowledge(rows)) is not None}
    untrained = [ends.high or 0.0 for name, ends in known.items() if cells[name].head.params["epoch"] == 0]
    chance = [row.params.get("chance", 0.0) for rows in cells.values() for row in rows.all("accuracy_target")]
    floor = max(untrained, default=max(chance, default=0.0))
    return {name for name, ends in known.items() if ends.low <= floor}


def _knowledge(rows: Findings) -> Interval | None:
    """Return the interval of a run's best accuracy on whole images; None if none was measured."""
    best = max(rows.all("knn_accuracy", epoch=None), key=lambda row: row.value, default=None)
    return None if best is None else best.interval
