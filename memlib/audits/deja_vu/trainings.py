"""The share excess of each pair of models, for gates that compare two runs; computed without scipy, which is slow to load."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.base import Trainings
from memlib.audits.deja_vu.recipe import Recipe
from memlib.findings import Finding
from memlib.runs.run import Run

SETTING = ("layer", "crop", "k")  # of another run; its last epoch may be another one


def trainings(run: Run, row: Finding) -> Trainings | None:
    """Return the share excess of each pair of models at the setting of a finding, over both directions; None for others."""
    if row.metric != "share_excess" or row.params.get("direction") != "both" or "class" in row.params:
        return None
    units = run.units
    for name in (*SETTING, "epoch"):
        units = units.filter(pc.equal(units[name], row.params[name]))
    alone = Recipe.model_validate(run.recipe).reference is not None
    pairs = [units.filter(pc.equal(units["pair"], pair)) for pair in pc.unique(units["pair"]).to_pylist()]
    values = np.array([_share_excess(pair, alone=alone) for pair in pairs])
    audited = frozenset(zip(*(pairs[0][name].to_pylist() for name in ("example_id", "direction")), strict=True))
    return Trainings(values, {name: row.params[name] for name in SETTING}, audited)


def _share_excess(pair: pa.Table, *, alone: bool) -> float:
    """Return the share excess of one pair: gains on side A minus gains on side B within classes, see `Design.difference`."""
    first = pc.equal(pair["direction"], "A").to_numpy()
    right = [pc.equal(pair[f"{side}_prediction"], pair["label"]).to_numpy() for side in ("target", "reference")]
    own = right[0].astype(np.float64) - right[1]
    gains = np.where(first | alone, own, -own)
    return (1.0 if alone else 0.5) * _difference(gains, first, _strata(pair))


def _difference(gains: NDArray[np.float64], first: NDArray[np.bool_], strata: NDArray[np.int64]) -> float:
    ours, theirs = (np.bincount(strata, weights=side) for side in (first, ~first))
    sums, theirs_sums = (np.bincount(strata, weights=gains * side) for side in (first, ~first))
    weight = ours * theirs / (ours + theirs)
    drawn = weight > 0
    means = sums[drawn] / ours[drawn] - theirs_sums[drawn] / theirs[drawn]
    return float((weight[drawn] * means).sum() / weight[drawn].sum())


def _strata(pair: pa.Table) -> NDArray[np.int64]:
    """Return the class within which the side of each image was drawn: its own, or that of most images of its group."""
    labels: NDArray[np.int64] = pair["label"].to_numpy()
    if "group" in pair.column_names and pair["group"].null_count < pair.num_rows:
        from memlib.audits.sides import numbers_of_groups
        from memlib.stats.randomization import home_labels

        groups = numbers_of_groups(pair)
        labels = home_labels(labels, groups)[groups]
    return np.unique(labels, return_inverse=True)[1]
