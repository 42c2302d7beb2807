"""Answers to other parts of memlib about an audit of image-text models: values by training, and rankings of pairs.

The face of the audit names them; they load neither scipy nor torch, which are slow to load.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.base import Trainings
from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.findings import Finding, Findings
from memlib.pipeline.tables import Tables
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


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the pairs of A by the recall of unnamed objects under the models trained on A, which has no p-value."""
    head, units = findings.head.params, tables["units"]
    chosen = (pc.field("direction") == "A") & (pc.field("epoch") == head["epoch"]) & (pc.field("k") == head["k"])
    rows = units.filter(chosen & (pc.field("num_unnamed") > 0))
    recall = rows.append_column("recall", pc.divide(pc.cast(rows["a_recovered"], "double"), rows["num_unnamed"]))
    mean = recall.group_by("example_id").aggregate([("recall", "mean")]).sort_by("example_id")
    scores = mean["recall_mean"].to_numpy()
    return [Ranking("recall_unnamed", EXAMPLE, mean["example_id"].to_pylist(), scores, np.ones(len(scores), dtype=bool))]
