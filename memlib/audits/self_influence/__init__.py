"""Self-influence: which training examples does a model lean on itself for? (TracInCP; Pruthi 2020, Hartley 2022, A.5)

    TracInCP(x) = sum over checkpoints i of  learning_rate_i * |gradient of loss(w_i, x)|^2

An example with high self-influence moves the model much by itself: mislabelled, atypical, or carrying something that
no other example has. It says what could be memorized and where to look first, not that it was.
"""

from collections.abc import Mapping
from typing import Any

from memlib.audit import Audit
from memlib.audits.self_influence.recipe import Recipe
from memlib.audits.self_influence.tables import UNITS


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: all but those of single classes."""
    return "class" not in params


AUDIT = Audit(
    name="self-influence",
    question="Which training examples does a classifier lean on itself for?",
    recipe=Recipe,
    tables={"units": UNITS},
    in_brief=_in_brief,
)
