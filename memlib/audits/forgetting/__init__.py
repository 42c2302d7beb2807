"""Forgetting: has this model used, or forgotten, this data set? (Liu and Tsaftaris 2020)

The query set D_Q is the data in question, D_C a calibration set of the same domain that shares no example with it.
Query models train on D_Q, calibration models on D_C, both as the target did. Of every model only the confidence in
the true class of each example of D_Q is used, and its distribution:

    rho = KS(query model, target) / KS(query model, calibration model)        (Eqs. 2 to 4)

near 0 where the target treats D_Q as a model that trained on it, 1 where it treats it as one that did not. "rho < 1:
not forgotten" (Algorithm 1) is no verdict: without D_Q rho scatters around 1, a target that has learnt the domain of D_Q
elsewhere treats it as known, and likelihood ratios of query and calibration models move with the target's overall
confidence. So rho is an estimate, and the verdict rests on a random draw (see `trace`): D_Q and withheld examples H were
drawn from one pool U, H was given to nobody, and the target is asked for both.

    retained            D_Q ranks above H, beyond redraws of both
    unlearned too hard  it ranks below: a trace of another kind
    forgotten           neither, and examples that are known to be in the target are found where D_Q is not
    no trace found      neither, without a positive control that is found in 80 % of redraws
    undecided           nothing was withheld
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memlib.audit import Audit
from memlib.audits.forgetting.recipe import Recipe
from memlib.audits.forgetting.tables import EXAMPLES, UNITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memlib.stage import Runner


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: traces, rho, and what the test finds in known models."""
    return bool({"kind", "from", "alpha", "models", "assumes"} & params.keys())


def _limits(recipe: Recipe) -> Iterable[str]:
    from memlib.audits.forgetting.verdict import limits  # loads scipy

    return limits(recipe)


def _asked(runner: Runner, recipe: Recipe) -> tuple[NDArray[Any], dict[str, int]]:
    """Return the stored examples, and the rows of D_Q and of those drawn with it, by id."""
    from memlib.audits.forgetting.stages import DrawSets
    from memlib.data.splits import select
    from memlib.data.stages import decode
    from memlib.specs.data import POOL

    shard = decode(runner, recipe.data)
    members = select(runner.run(DrawSets(recipe, shard)).content, *POOL)
    return shard.content.images, dict(zip(members["example_id"].to_pylist(), members["row"].to_pylist(), strict=True))


AUDIT = Audit(
    name="forgetting",
    question="Has a model used, or forgotten, this data set?",
    recipe=Recipe,
    tables={"units": UNITS, "examples": EXAMPLES},
    in_brief=_in_brief,
    limits=_limits,
    asked=_asked,
)
