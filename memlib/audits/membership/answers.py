"""Answers to other parts of memlib about a membership audit: rankings of examples or persons by each attack's scores.

The face of the audit names them; they load neither scipy nor torch, which are slow to load.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.ranking import DOCUMENT, EXAMPLE, Ranking
from memlib.findings import DESCRIPTIVE, Findings
from memlib.pipeline.tables import Tables

ATTACKS = (
    "lira", "lira_offline", "rmia", "rmia_offline", "calibrated_loss", "loss", "gap", "trajectory", "ratio", "min_k", "zlib",
)  # fmt: skip


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the units by every attack, the headline's first; only the headline's scores have p-values."""
    units, headline = tables["units"], findings.head.params.get("attack")
    members, by_chance = units["member"].to_numpy(zero_copy_only=False), findings.verdict.word != DESCRIPTIVE
    asked = [name for name in ATTACKS if name in units.column_names and units[name].null_count < units.num_rows]
    kind = DOCUMENT if "ratio" in asked else EXAMPLE
    return [
        Ranking(
            name=name,
            kind=kind,
            ids=units["unit"].to_pylist(),
            scores=_column(units, name),
            members=members,
            p_values=_p_values(units, members) if by_chance and name == headline else None,
            references=int((~members).sum()) if by_chance and name == headline else None,
            strata=units["label"].to_numpy() if by_chance else None,
            sizes=units["examples"].to_numpy(),
        )
        for name in sorted(asked, key=lambda name: name != headline)
    ]


def _column(units: pa.Table, name: str) -> NDArray[np.float64]:
    return np.asarray(units[name].to_numpy(), dtype=np.float64)


def _p_values(units: pa.Table, members: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return each unit's p-value: its rank among the non-members, including itself (Vovk 2005)."""
    others = np.asarray((~members).sum() - (~members).astype(np.int64), dtype=np.float64)
    above = np.rint((1 - _column(units, "above_nonmembers")) * others)
    found: NDArray[np.float64] = (1 + above) / (1 + others)
    return found
