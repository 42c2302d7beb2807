"""Answers to other parts of memlib about a membership audit: rankings of examples or persons by each attack's scores.

The face of the audit names them; they load neither scipy nor torch, which are slow to load.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.recipe import FEWEST_OF_STRATUM
from memlib.audits.ranking import DOCUMENT, EXAMPLE, Ranking, strata_of
from memlib.findings import DESCRIPTIVE, SHOWN, Findings
from memlib.pipeline.tables import Tables

ATTACKS = (
    "lira", "lira_offline", "rmia", "rmia_offline", "calibrated_loss", "loss", "gap", "trajectory", "ratio", "ez", "wbc",
    "min_k", "zlib",
)  # fmt: skip


def rankings(tables: Tables, findings: Findings) -> Sequence[Ranking]:
    """Return the units by every attack, the headline's first; only the headline's scores have p-values, in a run that shows
    memory, and whose draw was examined if it was only declared: elsewhere a rank says nothing of a single unit.
    """
    units, headline = tables["units"], findings.head.params.get("attack")
    members, by_chance = units["member"].to_numpy(zero_copy_only=False), findings.verdict.word != DESCRIPTIVE
    declared = findings.get("declared_draw")
    strata = _strata(units["label"].to_numpy(), findings)
    shown = findings.verdict.word == SHOWN and (declared is None or declared.params.get("examined", False))
    asked = [name for name in ATTACKS if name in units.column_names and units[name].null_count < units.num_rows]
    kind = DOCUMENT if "ratio" in asked else EXAMPLE
    return [
        Ranking(
            name=name,
            kind=kind,
            ids=units["unit"].to_pylist(),
            scores=_column(units, name),
            members=members,
            p_values=_p_values(_column(units, name), members, strata) if shown and name == headline else None,
            references=int(np.bincount(strata[~members]).max(initial=0)) if shown and name == headline else None,
            strata=strata if by_chance else None,
            sizes=units["examples"].to_numpy(),
        )
        for name in sorted(asked, key=lambda name: name != headline)
    ]


def _strata(labels: NDArray[np.int64], findings: Findings) -> NDArray[np.int64]:
    """Return the strata of the test, as `Units.strata`: if there are fewer than classes, small classes share one."""
    classes = len(np.unique(labels))
    return strata_of(labels, fewest=FEWEST_OF_STRATUM if findings.head.params.get("strata", classes) < classes else 0)


def _column(units: pa.Table, name: str) -> NDArray[np.float64]:
    return np.asarray(units[name].to_numpy(), dtype=np.float64)


def _p_values(scores: NDArray[np.float64], members: NDArray[np.bool_], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each unit's p-value: its rank among the non-members of its stratum, including itself (Vovk 2005)."""
    found = np.ones(len(scores))
    for stratum in np.unique(strata):
        here = strata == stratum
        others = np.sort(scores[here & ~members])
        itself = (~members[here]).astype(np.int64)
        reached = len(others) - np.searchsorted(others, scores[here], side="left") - itself
        found[here] = (1 + reached) / (1 + len(others) - itself)
    return found
