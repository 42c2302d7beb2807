"""Small worlds whose truth is known: log odds of a target and its shadow models, with or without memory of members."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.recipe import Recipe
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.units import Pool
from memlib.data.subsets import TARGET, toss
from memlib.tables import SPLITS

RECIPE: Mapping[str, Any] = {
    "data": {"source": {"kind": "digits"}, "image_size": 16, "channels": 1},
    "model": {"kind": "forest", "trees": 10},
    "shadows": {"count": 16},
    "score": {"redraws": 999},
}


def recipe_of(**changes: Any) -> Recipe:
    """Return a recipe with some keys changed."""
    return Recipe.model_validate({**RECIPE, **changes})


def answers_of_world(inside: NDArray[np.bool_], memory: NDArray[np.float64], rng: np.random.Generator) -> Answers:
    """Return answers to examples of different difficulty, with `memory` (num_examples,) nats more on training examples."""
    count = inside.shape[1]
    hardness = np.random.default_rng(7).normal(1, 2, count)
    odds = hardness + rng.normal(0, 1, inside.shape) + memory * inside
    return Answers(odds[:, None].astype(np.float32), odds > 0, np.zeros((len(inside), 0), dtype=bool))


def world(
    count: int = 400,
    *,
    memory: float | NDArray[np.float64] = 0.0,
    seed: int = 0,
    rows: NDArray[np.int64] | None = None,
    **changes: Any,
) -> Audited:
    """Return an audited pool of two classes.

    Args:
        count: number of examples.
        memory: how much higher the log odds of training examples are, in nats.
        seed: seed of coins and answers.
        rows: number of examples of each person; by default every example is by itself.
        changes: of the recipe.
    """
    recipe = recipe_of(**changes)
    groups = np.arange(count) if rows is None else np.repeat(np.arange(len(rows)), rows)
    numbers = [TARGET, *range(recipe.shadows.count)]
    coins = toss(groups, numbers, share=recipe.shadows.share, seed=seed)
    strength = np.broadcast_to(np.asarray(memory, dtype=np.float64), (len(groups),))
    answers = answers_of_world(coins, strength, np.random.default_rng(seed + 1000))
    table = splits_of(groups)
    return Audited(
        recipe=recipe,
        pool=Pool.of(table),
        rows=table,
        member=coins[0],
        target=Answers(answers.odds[:1], answers.correct[:1], answers.held_out[:1]),
        shadows=Answers(answers.odds[1:], answers.correct[1:], answers.held_out[1:]),
        inside=coins[1:],
        held_out=table.slice(0, 0),
        is_drawn=recipe.is_drawn,
    )


def splits_of(groups: NDArray[np.int64]) -> pa.Table:
    """Return rows of tables.SPLITS of two classes in turn; examples of a group share its class."""
    sizes = np.bincount(groups)
    names = [f"e{number:05d}" for number in range(len(groups))]
    first = dict(zip(groups[::-1].tolist(), names[::-1], strict=True))
    rows = [
        {
            "example_id": name, "row": place, "role": "train", "label": int(group % 2), "class_name": "ab"[group % 2],
            "group": first[group] if sizes[group] > 1 else None,
        }
        for place, (name, group) in enumerate(zip(names, groups.tolist(), strict=True))
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=SPLITS.arrow)
