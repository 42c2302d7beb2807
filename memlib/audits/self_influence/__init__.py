"""Self-influence (TracInCP): how strongly does each training example influence the model's prediction for that example?

Pruthi 2020; Hartley 2022, A.5:

    TracInCP(x) = sum over checkpoints i of  learning_rate_i * |gradient of loss(w_i, x)|^2

An example with high self-influence changes the model strongly by itself: it may be mislabelled, atypical, or carry something
that no other example has. Self-influence shows which examples could be memorized and should be inspected first, not that
they were memorized.
"""

from collections.abc import Mapping
from typing import Any

from memlib.audits.attacks import LABELLED, NOBODY, Attack, DataFacts
from memlib.audits.base import Audit, Metric
from memlib.audits.cells import CellSpec
from memlib.audits.self_influence.answers import rankings
from memlib.audits.self_influence.recipe import NOT_SHOWN, Recipe
from memlib.audits.self_influence.tables import UNITS
from memlib.tables import COMMON


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings: all do except those on single classes."""
    return "class" not in params


ATTACKS = (
    Attack(
        "influence of single examples (self-influence)", LABELLED, "", "gradients at checkpoints: the auditor's own view",
        NOBODY,
    ),
)  # fmt: skip


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return a self-influence audit of all data."""
    if facts.model is not None:
        return "it needs checkpoints of the training, which a given model does not have"
    change = {"title": "Self-influence", "split": {**facts.split, "train_per_class": None}}
    return CellSpec(name="self-influence", recipe="self_influence_smoke", set=change)


AUDIT = Audit(
    name="self-influence",
    question="Which training examples most strongly influence a classifier's predictions for those same examples?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS},
    in_brief=_in_brief,
    rankings=rankings,
    metrics={"influence_share": Metric("share of all self-influence that the most influential examples have", is_share=True)},
    attacks=ATTACKS,
    cell=_cell,
    not_shown=NOT_SHOWN,
)
