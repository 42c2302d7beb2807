"""Answers to other parts of memlib about a self-influence audit: the ranking of training examples.

The face of the audit names them; they load neither scipy nor torch, which are slow to load.
"""

from collections.abc import Sequence

import numpy as np

from memlib.audits.ranking import EXAMPLE, Ranking
from memlib.findings import Findings
from memlib.pipeline.tables import Tables


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the training examples by self-influence, which has no p-value."""
    units = tables["units"]
    scores = units["self_influence"].to_numpy()
    return [Ranking("self_influence", EXAMPLE, units["example_id"].to_pylist(), scores, np.ones(len(scores), dtype=bool))]
