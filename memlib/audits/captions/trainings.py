"""The excess recall of each pair of models, for gates that compare two runs; computed without scipy, which loads slowly."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.base import Trainings
from memlib.findings import Finding
from memlib.runs.run import Run

SETTING = ("k", "objects")  # of another run; its last epoch may be another one


def trainings(run: Run, row: Finding) -> Trainings | None:
    """Return the excess recall of each pair of models at the setting of a finding; None for other findings."""
    if row.metric != "recall_excess" or "copies" in row.params:
        return None
    units = run.units.filter(pc.field("direction") != "H").filter(pc.field("num_unnamed") > 0)
    for name in ("k", "epoch"):
        units = units.filter(pc.equal(units[name], row.params[name]))
    pairs = [units.filter(pc.equal(units["pair"], pair)) for pair in pc.unique(units["pair"]).to_pylist()]
    audited = frozenset(zip(*(pairs[0][name].to_pylist() for name in ("example_id", "direction")), strict=True))
    return Trainings(np.array([_excess(pair) for pair in pairs]), {name: row.params[name] for name in SETTING}, audited)


def _excess(pair: pa.Table) -> float:
    """Return the mean gain on A less that on B, as in `summary`: half of it, if there is a second model."""
    first, total = pc.equal(pair["direction"], "A").to_numpy(), pair["num_unnamed"].to_numpy()
    gain, scale = pair["a_recovered"].to_numpy() / total, 1.0
    if not pair["b_recovered"].null_count:
        gain, scale = gain - pair["b_recovered"].to_numpy() / total, 0.5
    return float(scale * (gain[first].mean() - gain[~first].mean()))
