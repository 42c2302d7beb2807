"""Sweep: many audits run as one (the cells of a grid, a list of recipes, or both), with their findings side by side.

A sweep makes no measurements itself. Each cell is an audit with its own run, results and report; the sweep's table and
page compare them.
"""

from collections.abc import Mapping
from typing import Any

from memlib.audits.base import Audit
from memlib.audits.sweep.recipe import NOT_SHOWN, Recipe, run_of
from memlib.audits.sweep.scores import SWEEP


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings: the headlines of all cells do."""
    return True


def _run_of(recipe: Mapping[str, Any], scores: str) -> str:
    """Return the id of a sweep, which is known before its cells have run: they are one look at the data."""
    return run_of(Recipe.model_validate(recipe))


AUDIT = Audit(
    name="sweep",
    question="How do the results of many audits compare across epochs, regularization, architectures, seeds or audits?",
    recipe=Recipe,
    tables={"sweep": SWEEP},
    in_brief=_in_brief,
    run_of=_run_of,
    not_shown=NOT_SHOWN,
)
