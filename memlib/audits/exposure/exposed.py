"""Canaries in the order of their exposure."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc

from memlib.audits.exposure.recipe import CANARIES
from memlib.audits.ranking import CANARY, Ranking
from memlib.findings import DESCRIPTIVE, Findings
from memlib.pipeline.tables import Tables

EXACT = ("pruned", "enumerated")  # methods of tables.UNITS


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the canaries in the last model of the first variant, with their p-values; they are named by number."""
    units = tables["units"]
    first = units.filter((pc.field("variant") == units["variant"][0]) & (pc.field("seed") == units["seed"][0]))
    last = first.filter(pc.field("epoch") == pc.max(first["epoch"]))
    members = pc.greater(last["insertions"], 0).to_numpy(zero_copy_only=False)
    is_tested = findings.verdict.word != DESCRIPTIVE and last["p_value"].null_count < last.num_rows
    is_exact = all(method in EXACT for method in pc.unique(last["method"]).to_pylist())
    smallest = min((row.smallest_p for row in findings.tests(CANARIES) if row.smallest_p), default=1 / (1 + (~members).sum()))
    return [
        Ranking(
            name="exposure",
            kind=CANARY,
            ids=list(map(str, last["canary"].to_pylist())),
            scores=np.asarray(last["exposure"].to_numpy(), dtype=np.float64),
            members=members,
            p_values=np.asarray(last["p_value"].to_numpy(), dtype=np.float64) if is_tested else None,
            references=None if is_exact else round(1 / smallest) - 1,
        )
    ]
