"""Training images in the order in which only the model that was trained on them names their objects."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.findings import Findings
from memlib.pipeline.tables import Tables

OF_SETTING = ("layer", "epoch", "crop", "k")


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the images of both sides at the headline's setting.

    The score is the confidence of the neighbours' vote, exp(-entropy), where it is right and the other model's is not, else
    0; its mean over pairs of models. It has no p-value.
    """
    at = findings.head.params
    if not set(OF_SETTING) <= at.keys():  # an audit of stability alone
        return []
    parts = [part.filter(_at(part, at)) for part in tables.parts("units")]
    units = pa.concat_tables(parts)
    right = pc.equal(units["target_prediction"], units["label"])
    alone = pc.and_(right, pc.not_equal(units["reference_prediction"], units["label"]))
    score = np.where(alone.to_numpy(), np.exp(np.nan_to_num(units["target_confidence"].to_numpy())), 0.0)
    scored = pa.table({"id": units["example_id"], "side": units["direction"], "score": score})
    by_id = scored.group_by(["id", "side"], use_threads=False).aggregate([("score", "mean")])
    members = pc.equal(by_id["side"], "A").to_numpy()
    return [Ranking("share_excess", EXAMPLE, by_id["id"].to_pylist(), by_id["score_mean"].to_numpy(), members)]


def _at(units: pa.Table, params: Mapping[str, Any]) -> pa.ChunkedArray:
    """Return whether each row belongs to the given setting."""
    rows = pa.chunked_array([pa.repeat(True, units.num_rows)])
    for name in OF_SETTING:
        rows = pc.and_(rows, pc.equal(units[name], params[name]))
    return rows
