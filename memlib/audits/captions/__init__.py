"""Déjà vu of image-text models: which objects does a model name that the caption does not mention? (Jayaraman 2024)

The caption of a training pair is encoded, and the nearest public images vote on the objects in the pair's own image. Objects
that the caption names, or that usually come with its words, are known without memory. What counts is the *recall of unnamed
objects* under the model that was trained on the pair less that under a model that was not:

    gain of a pair = (recall under the model trained on A - recall under the model trained on B)
    excess         = half the mean gain on A less half the mean gain on B

The sides of the pairs were drawn at random, so that without memory every redraw of the sides is as likely as the actual one;
the test redraws them. A difference of quality between two honest models moves the gains on A, on B and on held-out pairs
alike, and cancels out: the paper's gap on A alone does not (facts in docs/results.md).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from memlib.audits.base import Audit
from memlib.audits.captions.exposed import rankings
from memlib.audits.captions.recipe import HEADLINE, Recipe
from memlib.audits.captions.tables import UNITS
from memlib.tables import COMMON


def _in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Return whether a finding with these params appears in short listings: those at the headline's setting do."""
    return all(params.get(name) in (None, headline.get(name)) for name in ("k", "epoch")) and "copies" not in params


def _limits(recipe: Recipe) -> Iterator[str]:
    from memlib.audits.captions.verdict import limits  # loads scipy

    return limits(recipe)


NOT_SHOWN = (
    "That a pair is not remembered: this audit gives no upper bound, and memory that shows otherwise than by objects among "
    "neighbours is not looked for.",
    "What a single pair gave away: a gain on one pair may be chance; only means over many pairs are tested.",
    "Whether the public images are free of the audited ones: near copies are looked for by small versions and equal captions "
    "alone.",
)

AUDIT = Audit(
    name="captions",
    question="Does an image-text model name objects of its training images that their captions do not mention?",
    recipe=Recipe,
    tables=COMMON | {"units": UNITS},
    in_brief=_in_brief,
    headlines=(HEADLINE,),
    limits=_limits,
    columns=("recall_excess", "recall_target", "recall_reference", "named_recall"),
    rankings=rankings,
    not_shown=NOT_SHOWN,
)
