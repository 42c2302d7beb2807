"""Dossier: all audits about one model or data set in one document, with the persons at risk and what was not asked.

A dossier measures nothing itself. Its verdict is adjusted over all audits that it lists, and over further looks at their
data, and names the runs beside it that say otherwise; the words of single audits stay as they are, marked as unadjusted. The
records of all audits are ranked together: p-values against records that the model was not trained on are joined by
Bonferroni's method, other scores give a place alone.
"""

from collections.abc import Mapping
from typing import Any

from memlib.audits.base import Audit
from memlib.audits.dossier.recipe import LEVEL, NOT_SHOWN, Recipe
from memlib.audits.dossier.tables import AUDITS, RISK
from memlib.tables import SUMMARY


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings: all do."""
    return True


AUDIT = Audit(
    name="dossier",
    question="What was remembered, who stands out, and what was not tested?",
    recipe=Recipe,
    tables={SUMMARY.name: SUMMARY, AUDITS.name: AUDITS, RISK.name: RISK},
    in_brief=_in_brief,
    not_shown=NOT_SHOWN,
    own_level=LEVEL,
)
