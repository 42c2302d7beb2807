"""Points of the accuracy curve (Meehan 2023, Fig. 3) and choice of the gallery examples (A.1)."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.deja_vu.analysis import settings, split_by
from memlib.audits.deja_vu.recipe import DIRECTIONS
from memlib.stats.inference import accuracy_curve
from memlib.tables import CURVES, point

CURVE_POINTS = 200


HELD_OUT = "_held_out"  # suffix of the series for held-out images


def curves(units: pa.Table, *, alone: bool = False) -> pa.Table:
    """Return label-inference accuracy by share of most confident examples (Fig. 3), averaged over directions and pairs.

    Args:
        units: tables.UNITS.
        alone: True if there is no second model; training and held-out images are then separate series.

    Returns:
        tables.CURVES, curve accuracy_by_confidence, series target and reference; with a single model also target_held_out
        and reference_held_out.
    """
    if alone:
        sides = {direction: units.filter(pc.field("direction") == direction) for direction in DIRECTIONS}
        return pa.concat_tables([_curves(part, "" if side == "A" else HELD_OUT) for side, part in sides.items()])
    return _curves(units, "")


def _curves(units: pa.Table, suffix: str) -> pa.Table:
    shares = np.unique(np.concatenate([np.geomspace(0.01, 1, CURVE_POINTS // 2), np.linspace(0.01, 1, CURVE_POINTS // 2)]))
    rows = []
    for setting, part in settings(units):
        for side in ("target", "reference"):
            lines = []
            for _, group in split_by(part, ("pair", "direction")):
                members = part.take(group)
                right = members[f"{side}_prediction"].to_numpy() == members["label"].to_numpy()
                x, y = accuracy_curve(members[f"{side}_confidence"].to_numpy(), right)
                chosen = np.maximum(1, np.round(shares * len(x))).astype(int)
                lines.append(y[chosen - 1])
            rows += [
                point("accuracy_by_confidence", side + suffix, setting, x_, y_)
                for x_, y_ in zip(shares, np.mean(lines, axis=0), strict=True)
            ]
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def most_memorized(units: pa.Table, count: int) -> pa.Table:
    """Return the memorized examples on which the target's confidence most exceeds the reference's (A.1)."""
    return _chosen(units, "memorized", count, lambda target, reference: target - reference)


def most_correlated(units: pa.Table, count: int) -> pa.Table:
    """Return the correlated examples with the highest confidence under both models (A.1), by the lower of the two."""
    return _chosen(units, "correlated", count, np.minimum)


def _chosen(units: pa.Table, category: str, count: int, merit: Any) -> pa.Table:
    members = units.filter(pc.field("category") == category)
    value = merit(members["target_confidence"].to_numpy(), members["reference_confidence"].to_numpy())
    keys = pa.table({"merit": pa.array(-value), "example_id": members["example_id"]})
    return members.take(pc.sort_indices(keys, [(name, "ascending") for name in keys.column_names])[:count])
