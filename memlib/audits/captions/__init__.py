"""Déjà vu of image-text models: which objects does a model name that the caption does not mention? (Jayaraman 2024)

The caption of a training pair is encoded, and the nearest public images vote on the objects in the pair's own image. Objects
that the caption names, or that usually come with its words, are known without memory. What counts is the *recall of unnamed
objects* under the model that was trained on the pair less that under a model that was not:

    gain of a pair = (recall under the model trained on A - recall under the model trained on B)
    excess         = half the mean gain on A less half the mean gain on B

The sides of the pairs were drawn at random, so that without memory every redraw of the sides is as likely as the actual one;
the test redraws them. A difference of quality between two honest models moves the gains on A, on B and on held-out pairs
alike, and cancels out: the paper's gap on A alone does not (measured in evidence/results/captions.yaml).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from memlib.audits.attacks import IMAGES, PAIRS, WEIGHTS, Attack, DataFacts
from memlib.audits.base import Audit, Exported, Leak, Metric
from memlib.audits.captions.answers import rankings, trainings
from memlib.audits.captions.recipe import HEADLINE, NOT_SHOWN, Recipe
from memlib.audits.captions.tables import UNITS
from memlib.audits.cells import CellSpec
from memlib.findings import Finding, Findings, estimate
from memlib.tables import COMMON

if TYPE_CHECKING:
    from memlib.pipeline.stage import Runner


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings: those at the headline's setting do."""
    return all(params.get(name) in (None, headline.get(name)) for name in ("k", "epoch")) and "copies" not in params


def _limits(recipe: Recipe) -> Iterator[str]:
    from memlib.audits.captions.verdict import limits  # loads scipy

    return limits(recipe)


def _utility(rows: Findings) -> Finding | None:
    """Return the recall of objects that captions name, under models that were not trained on the pair."""
    row = rows.get("named_recall", by="reference")
    if row is None:
        return None
    return estimate("utility", {"measure": "recall of named objects"}, row.value, n=row.n, interval=row.interval)


def _exported(runner: Runner, recipe: Recipe) -> Exported:
    """Return the public images and the captions that the audit shows to models, with the set of each pair."""
    from memlib.audits.captions.retrieval import CAPTION, QUERIED
    from memlib.data.images.caption_stages import Captions, SplitPairs
    from memlib.data.splits import GIVEN, PUBLIC
    from memlib.data.stages import decode, members_of
    from memlib.observe.encoders import name_of

    shard = decode(runner, recipe.data)
    captions = runner.run(Captions(recipe.data, recipe.captions, shard))
    splits = runner.run(SplitPairs(recipe.split, shard, captions))
    public = members_of(splits, PUBLIC)["row"].to_pylist()
    asked = captions.content.chosen(members_of(splits, *QUERIED)["example_id"])
    texts = {name_of(row["row"], CAPTION, row["caption"]): row["caption"] for row in asked.to_pylist()}
    set_of = {role: name for name, role in GIVEN.items()}
    roles = zip(splits.content["example_id"].to_pylist(), splits.content["role"].to_pylist(), strict=True)
    sets = {example: set_of[role] for example, role in roles if role in set_of}
    pictures = ((name_of(row, None, shard.key), shard.content.images[row]) for row in public)
    return Exported(pictures, len(public), sets, {side.lower(): f"{side} and C" for side in recipe.directions}, texts)


ATTACKS = (
    Attack(
        "objects of a training image that its caption does not mention", IMAGES | PAIRS, "(i) attribute inference",
        "embeddings of captions and of public images", WEIGHTS,
    ),
)  # fmt: skip


def _cell(facts: DataFacts) -> CellSpec | str:
    """Return an audit of models that are trained on the pairs."""
    if facts.model is not None:
        return "it is for models of images and captions; name them under encoders in a cell of its own"
    if facts.kind != "pairs":
        return "it needs a caption and the objects of each image; name them under captions in a cell of its own"
    return CellSpec(name="captions", recipe="captions_smoke", set={"title": "Captions"})


LEAKS = {
    HEADLINE: Leak(
        "objects in training images that their captions do not mention are named more often than in other images",
        "Treat the model as confidentially as its training images; train again with fewer epochs or deduplicated pairs, and "
        "audit again.",
    ),
}

AUDIT = Audit(
    name="captions",
    question="Does an image-text model name objects of its training images that their captions do not mention?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS},
    in_brief=_in_brief,
    headlines=(HEADLINE,),
    leaks=LEAKS,
    limits=_limits,
    columns=("recall_excess", "recall_target", "recall_reference", "named_recall"),
    exported=_exported,
    utility=_utility,
    rankings=rankings,
    trainings=trainings,
    planned_trainings=lambda recipe: 0 if recipe.encoders else recipe.pairs,
    metrics={
        "recall_excess": Metric("objects that a caption does not mention and that are named only with memory", is_share=True)
    },
    attacks=ATTACKS,
    cell=_cell,
    not_shown=NOT_SHOWN,
)
