"""Canaries in a training elsewhere: does the training remember random examples that fair coins put into its data?

The coins are independent of one another and of the examples (Steinke, Nasr and Jagielski 2023, Algorithm 1), so that whatever
tells inserted canaries from the others was learned in the training. The losses are recorded at looks that were planned with
the coins, each of which can stop the training, at one level in all (see `memlib.stats.looks`). The training need not know
memlib: losses of the trained model are enough.

Nothing that is stored says which canary was inserted: losses are stored under pseudonyms, and published by look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from memlib.audits.attacks import IMAGES, PROBABILITIES, TEXTS, Attack, DataFacts, metric_begins
from memlib.audits.base import Audit, Leak, Metric
from memlib.audits.canaries.recipe import HEADLINE, HEADLINES, NOT_SHOWN, Recipe
from memlib.audits.canaries.tables import LOOKS
from memlib.identity import content_key
from memlib.specs.question import NAME_LENGTH, asks
from memlib.store import Store
from memlib.tables import COMMON


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings: single looks do not."""
    return "alone" not in params


def _limits(recipe: Recipe) -> Iterable[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    if recipe.step is not None:
        yield "step is chosen in the recipe, not in the plan of the canaries, so nothing is tested: leave it out"
    if recipe.privacy is not None and recipe.privacy.adjacency != "add-remove":
        yield (
            "the coins put records in or leave them out, so a claim about replacements is not compared: state it for "
            "add-remove adjacency"
        )


def _revealed(store: Store, recipe: Mapping[str, Any], artifacts: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    from memlib.audits.canaries.reveal import revealed

    return revealed(recipe)


def _run_of(recipe: Mapping[str, Any], scores: str) -> str:
    """Return the id of a run, wherever its files lie: they are identified by their content."""
    moved = {name: value for name, value in asks(recipe).items() if name not in ("canaries", "losses")}
    return content_key("run", version=2, spec=moved, inputs={"scores": scores})[:NAME_LENGTH]


def _cell(facts: DataFacts) -> str:
    """Return why a dossier cannot run the audit by itself."""
    return "its canaries must be in the training data: see memlib canaries make, and name the run"


ATTACKS = (
    Attack(
        "memory of inserted canaries", TEXTS | IMAGES, "(i) attribute and membership inference",
        "likelihoods of chosen examples", PROBABILITIES, metric_begins("canary_auc", "auc_at_look"),
    ),
    Attack(
        "lower bound of epsilon from canaries (one run)", TEXTS | IMAGES, "(i) attribute and membership inference",
        "likelihoods of chosen examples", PROBABILITIES, metric_begins("epsilon", "privacy_claim"),
    ),
)  # fmt: skip

AUDIT = Audit(
    name="canaries",
    question="Does a training remember random examples that fair coins put into its data, and is it as private as claimed?",
    recipe=Recipe,
    tables=COMMON | {"units": LOOKS},
    in_brief=_in_brief,
    headlines=HEADLINES,
    leaks={
        HEADLINE: Leak(
            "inserted canaries are more likely than those that were left out",
            "Train for fewer steps, deduplicate, or train with differential privacy, and audit again.",
        ),
    },
    limits=_limits,
    revealed=_revealed,
    run_of=_run_of,
    metrics={
        "canary_auc": Metric("probability that an inserted canary has the better score"),
        "privacy_claim": Metric("lower bound of epsilon"),
    },
    attacks=ATTACKS,
    cell=_cell,
    not_shown=NOT_SHOWN,
)
