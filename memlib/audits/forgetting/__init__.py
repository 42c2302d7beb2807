"""Forgetting audit: has a model used, or forgotten, a data set? (Liu and Tsaftaris 2020)

The query set D_Q is the data set under audit; the calibration set D_C is of the same domain and shares no example with it.
Query models are trained on D_Q and calibration models on D_C, both in the same way as the target. The audit uses only the
distribution of each model's confidence in the true class over the examples of D_Q:

    rho = KS(query model, target) / KS(query model, calibration model)        (Eqs. 2 to 4)

rho is near 0 if the target treats D_Q like a model that trained on it, and near 1 if it treats D_Q like a model that did not.
"rho < 1: not forgotten" (Algorithm 1) is not a valid verdict: rho lies below 1 for some models that never saw D_Q, a target
that has learnt the domain of D_Q elsewhere treats D_Q as known, and likelihood ratios of query and calibration models move
with the target's overall confidence. So rho is only an estimate, and the verdict rests on a random draw (see `trace`): D_Q
and withheld examples H were drawn from one pool U, no model is trained on H, and the target is evaluated on both.

    retained            D_Q ranks above H by more than redraws of both explain
    unlearned too hard  D_Q ranks below H: a trace of another kind
    forgotten           neither, and D_Q keeps at most a small share of the trace that known training examples leave
    no trace found, inconclusive  neither, and no such bound: no positive control holds, or the bound is too large
    undecided           nothing was withheld
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memlib.audits.attacks import IMAGES, PROBABILITIES, Attack, DataFacts
from memlib.audits.base import Audit, Leak, Metric
from memlib.audits.cells import CellSpec
from memlib.audits.forgetting.recipe import HEADLINES, NOT_SHOWN, TARGETS, Recipe
from memlib.audits.forgetting.tables import EXAMPLES, UNITS
from memlib.tables import COMMON

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memlib.pipeline.stage import Runner


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params is part of the brief listing: traces, rho, and results on known models."""
    return bool({"kind", "from", "alpha", "models", "assumes"} & params.keys())


def _limits(recipe: Recipe) -> Iterable[str]:
    from memlib.audits.forgetting.verdict import limits  # loads scipy

    return limits(recipe)


def _queried(runner: Runner, recipe: Recipe) -> tuple[NDArray[Any], dict[str, int]]:
    """Return the stored examples, and the rows of the examples of D_Q's pool by id."""
    from memlib.audits.forgetting.stages import DrawSets
    from memlib.data.splits import select
    from memlib.data.stages import decode
    from memlib.specs.data import POOL

    shard = decode(runner, recipe.data)
    members = select(runner.run(DrawSets(recipe, shard)).content, *POOL)
    return shard.content.images, dict(zip(members["example_id"].to_pylist(), members["row"].to_pylist(), strict=True))


ATTACKS = (
    Attack(
        "use of a whole data set", IMAGES, "(i) membership inference", "outputs on the data set and on withheld examples",
        PROBABILITIES,
    ),
)  # fmt: skip


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return a forgetting audit of a part of the data, drawn at random."""
    if facts.model is not None:
        return "for a given model it needs a data set that chance chose for its training; see memlib init --for outputs"
    group = {"group": facts.split["group"]} if facts.split else {}
    return CellSpec(name="forgetting", recipe="forgetting_smoke", set={"title": "Use of a data set", **group})


LEAKS = {
    TARGETS: Leak(
        "the data set in question (D_Q) was used in training, at least in part",
        "If it should not have been used, or should have been forgotten, train again without it, and audit the new model.",
    ),
}

AUDIT = Audit(
    name="forgetting",
    question="Has a model used, or forgotten, a data set (D_Q)?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS, "examples": EXAMPLES},
    in_brief=_in_brief,
    headlines=HEADLINES,
    leaks=LEAKS,
    limits=_limits,
    queried=_queried,
    metrics={"trace": Metric("trace of the data set in the model's answers (1: as after training on all of it)")},
    attacks=ATTACKS,
    cell=_cell,
    not_shown=NOT_SHOWN,
)
