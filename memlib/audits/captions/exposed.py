"""Training pairs in the order of what their model names beyond the caption."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.findings import Findings
from memlib.pipeline.tables import Tables


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the pairs of A by the recall of unnamed objects under the models trained on A, which has no p-value."""
    head, units = findings.head.params, tables["units"]
    chosen = (pc.field("direction") == "A") & (pc.field("epoch") == head["epoch"]) & (pc.field("k") == head["k"])
    rows = units.filter(chosen & (pc.field("num_unnamed") > 0))
    recall = rows.append_column("recall", pc.divide(pc.cast(rows["a_recovered"], "double"), rows["num_unnamed"]))
    mean = recall.group_by("example_id").aggregate([("recall", "mean")]).sort_by("example_id")
    scores = mean["recall_mean"].to_numpy()
    return [Ranking("recall_unnamed", EXAMPLE, mean["example_id"].to_pylist(), scores, np.ones(len(scores), dtype=bool))]
