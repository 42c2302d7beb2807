"""Compare the memories of several déjà vu audits of the same images: which criterion, or which training, remembers more?

Audits are compared in pairs, image by image, where they audit the same images from the same sides. A difference is ranked,
that is tested, where three pairs of models or more on each side say how much training itself varies, and where both audits'
models have learnt the classes: what knows nothing of whole images has nothing to remember.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.audit import Cell
from memlib.audits.deja_vu.analysis import PAIRS_FOR_TRAINING
from memlib.findings import Interval, Row, estimate, settle, tested
from memlib.identity import derive_seed
from memlib.records import RunRecord
from memlib.stats.inference import percentile_interval, widened_interval, widened_p
from memlib.stats.totals import resampled_totals

METRIC, FAMILY = "difference in share_excess", "differences"
REPLICATES = 2000


@dataclass(frozen=True)
class Gains:
    """What an audit's models say of each image at the headline's setting.

    Attributes:
        images: (num_images,) ids and sides, in order.
        strata: (num_images,) class and side.
        gains: (num_pairs, num_images) 1 where only the target names the object, -1 where only the reference does, else 0. Of
            one model alone, held-out images count against it, and either side by its share of them; the mean is the excess.
    """

    images: pa.Table
    strata: NDArray[np.int64]
    gains: NDArray[np.float64]

    @classmethod
    def of(cls, run: RunRecord, units: pa.Table) -> Gains:
        """Return those of a run's headline."""
        params = json.loads(run.findings[0].params)
        for name in ("layer", "epoch", "crop", "k"):
            units = units.filter(pc.field(name) == params[name])
        units = units.sort_by([("pair", "ascending"), ("direction", "ascending"), ("example_id", "ascending")])
        count = units.num_rows // len(pc.unique(units["pair"]))
        first, label = units.slice(0, count), units["label"]
        right = [pc.equal(units[f"{side}_prediction"], label).to_numpy().astype(float) for side in ("target", "reference")]
        strata = 2 * first["label"].to_numpy() + pc.equal(first["direction"], "B").to_numpy().astype(np.int64)
        images = first.select(["direction", "example_id"]).combine_chunks()
        gains = (right[0] - right[1]).reshape(-1, count)
        if "reference" in params:
            held_out = strata % 2 == 1
            gains *= np.where(held_out, -count / held_out.sum(), count / (~held_out).sum())
        return cls(images, strata, gains)


def compare(cells: Sequence[Cell]) -> list[Row]:
    """Return a row for each two cells that audit the same images: the first one's share of excess minus the second one's.

    Differences that are ranked are tested together (Holm 1979); of the others `params.not_ranked` says why. Intervals of
    ranked differences are over examples and trainings, else over examples.

    Args:
        cells: audits that ended well.
    """
    gains = {cell.name: Gains.of(cell.run, cell.units) for cell in cells}
    level = max((first.alpha or 0.0 for cell in cells for first in cell.run.findings[:1]), default=0.05)
    ignorant = _ignorant(cells)
    rows = []
    for one, other in combinations(gains, 2):
        if not gains[one].images.equals(gains[other].images):
            continue
        rows.append(_difference(one, other, gains[one], gains[other], sorted({one, other} & ignorant)))
    return settle(rows, alpha=level or 0.05)


def _difference(one: str, other: str, first: Gains, second: Gains, ignorant: Sequence[str]) -> Row:
    """One row; the same resamples of the images serve both sides, which is what makes it paired."""
    params = {"cell": one, "other": other, "pairs": [len(first.gains), len(second.gains)]}
    apart = first.gains.mean(axis=0) - second.gains.mean(axis=0)
    count, value, seed = len(apart), float(apart.mean()), derive_seed(0, "difference", one, other)
    column = scipy.sparse.csr_array(apart[:, None].astype(np.float32))
    replicates = resampled_totals(column, first.strata, REPLICATES, seed=seed)[:, 0] / count
    reasons = [f"{name} knows too little of whole images" for name in ignorant]
    if len(first.gains) != len(second.gains) or len(first.gains) < PAIRS_FOR_TRAINING:
        reasons.append(f"each side needs the same number of pairs of models, {PAIRS_FOR_TRAINING} or more")
    if reasons:
        interval = Interval(*percentile_interval(replicates), "examples")
        return estimate(METRIC, {**params, "not_ranked": "; ".join(reasons)}, value, n=count, interval=interval)
    repeats = first.gains.mean(axis=1) - second.gains.mean(axis=1)  # pairs share their seeds
    low, high = widened_interval(replicates, repeats)
    return tested(
        METRIC, params, value, n=count, interval=Interval(max(-2.0, low), min(2.0, high), "examples and trainings"),
        p_value=widened_p(replicates, repeats), family=FAMILY,
    )  # fmt: skip


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
