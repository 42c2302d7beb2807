"""Many audits as one: the cells of a grid, a list of recipes, or both, and their findings side by side.

A sweep asks nothing of its own. Each cell is an audit with a run, results and a report; the sweep's table and page
compare them.
"""

from collections.abc import Mapping
from typing import Any

from memlib.audit import Audit
from memlib.audits.sweep.recipe import Recipe
from memlib.audits.sweep.tables import SWEEP


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: every cell's headline is."""
    return True


AUDIT = Audit(
    name="sweep",
    question="How do many audits compare: by epochs, regularisation, architecture, seed, or audit?",
    recipe=Recipe,
    tables={"sweep": SWEEP},
    in_brief=_in_brief,
    holds_others=True,
)
