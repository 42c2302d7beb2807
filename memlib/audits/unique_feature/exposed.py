"""Examples that carried a canary in the order of the score of the nets that were trained on them."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.findings import Findings
from memlib.pipeline.tables import Tables


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the examples by the mean of the headline's score over the nets; it has no p-value per example."""
    metric = findings.head.params.get("metric")
    counts = (pc.field("metric") == metric) & pc.field("own_label") & ~pc.field("control") & (pc.field("feature") == "canary")
    units = tables["units"].filter(counts & pc.field("example_id").is_valid())
    if not units.num_rows:
        return []
    by_id = pa.table(units.select(["example_id", "value"])).group_by("example_id").aggregate([("value", "mean")])
    scores = by_id["value_mean"].to_numpy()
    return [Ranking(str(metric), EXAMPLE, by_id["example_id"].to_pylist(), scores, np.ones(len(scores), dtype=bool))]
