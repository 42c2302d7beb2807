"""The verdict of an audit of image-text models in plain words."""

import math
from collections.abc import Iterator

from memlib.audits.captions.findings import GAP
from memlib.audits.captions.recipe import HEADLINE, Recipe
from memlib.findings import DESCRIPTIVE, SHOWN, Finding, Findings, Verdict, cannot_reject, word_of
from memlib.report.format import format_interval, percent, say_p


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    if not recipe.split.by_chance:
        yield (
            "the split does not draw the pairs of A and B at random, so nothing is tested; if they were drawn at random "
            "beforehand, set split.drawn_at_random: true"
        )
    if recipe.encoders:
        if recipe.split.by_chance and len(recipe.directions) == 1:
            yield (
                "with one model alone, nothing examines whether pairs were drawn at random as declared, so nothing is "
                "tested: give a second model as b, trained on B or, like a public one, on neither"
            )
        return
    side = recipe.split.budget
    if math.comb(2 * side, min(side, 1000)) < math.ceil(1 / recipe.score.level):
        yield f"with {side} pairs in each of A and B, no test can be significant: raise split.train_per_class"
    if recipe.reference and not recipe.split.extra_per_class:
        yield (
            "no pairs are held out from both models, so that a difference in quality between them is not seen; set "
            "split.extra_per_class (the test does not need it)"
        )


def verdict(rows: Findings) -> Verdict:
    """Return the run's verdict."""
    head, word = rows.head, word_of(rows, (HEADLINE,))
    alone = not rows.all(GAP)  # models that are compared on two kinds of pairs, not with other models
    several = not alone or head.params["pairs"] > 1
    models, name, they = ("the models", "name", "they were") if several else ("the model", "names", "it was")
    declared = rows.get("declared_draw")
    if word == DESCRIPTIVE and declared is not None:
        return Verdict(DESCRIPTIVE, *_undrawn(declared, head))
    if word == DESCRIPTIVE:
        text = (
            f"{numbers(head)} The pairs were not assigned to the sets at random, so any difference between the sets may be "
            "the cause, including memory."
        )
        return Verdict(DESCRIPTIVE, "Nothing was tested: the sets were not drawn at random.", text)
    said = "" if declared is None else f" {_declared(declared)}"
    if word == SHOWN:
        than = f"of images that {they} not trained on" if alone else "models that did not see the image"
        return Verdict(
            SHOWN,
            f"From the caption of an image that {they} trained on, {models} {name} more of the objects that it does not "
            f"mention than {than}: {100 * head.value:.1f} percentage points more.",
            f"{numbers(head)} {_beside(rows, alone=alone)}".strip() + said,
        )
    opposite = head.value < 0 and (head.high or 0.0) < 0
    sentence = (
        "The difference points in the opposite direction to memorization."
        if opposite
        else f"That {models} {name} unmentioned objects of training images from memory was not shown."
    )
    missed = "no size" if head.detectable is None else f"an excess of {percent(head.detectable)}"
    text = f"{numbers(head)} {missed[0].upper()}{missed[1:]} would have been found with a power of 80 %."
    if cannot_reject(head):
        text += " With so few pairs, or so many equal answers, no result could have been significant."
    return Verdict(word, sentence, f"{text}{said} Not shown does not mean not remembered: this audit gives no upper bound.")


def _undrawn(declared: Finding, head: Finding) -> tuple[str, str]:
    """Return sentence and explanation for a declared draw on which no test can rest."""
    told = declared.params.get("told")
    by = "The words of the captions alone name" if declared.params["by"] == "words" else "Both models together name"
    if declared.params["contradicted"]:
        differ = f"But {told}" if told is not None else f"{by} the objects of A's images unlike those of B's"
        return (
            f"Nothing was tested: the declared draw is contradicted ({say_p(declared.value)}).",
            f"{numbers(head)} {differ}, so the pairs were not drawn at random, and what the pairs are may be the cause of "
            "any difference.",
        )
    return (
        "Nothing was tested: with one model alone, nothing examines whether the sets were drawn at random as declared.",
        f"{numbers(head)} Pairs of A may have easier captions. Give a second model as b, trained on B or, like a public one, "
        "on neither.",
    )


def _declared(declared: Finding) -> str:
    return (
        "As declared, pairs were assigned to the sets at random; neither what is known of them without a model, nor what the "
        f"words of the captions alone recall, nor what both models do contradicts it ({say_p(declared.value)}). Gains are "
        "adjusted for words and models."
    )


def numbers(head: Finding) -> str:
    """Return the headline with its interval and p-value in a sentence."""
    interval = "" if head.interval is None else f", 95 % interval {format_interval(head, percent)} over {head.interval.over}"
    p = f"; {say_p(head.p_adjusted)}" if head.is_test else ""
    return f"Excess recall of unnamed objects {percent(head.value)} ({head.n:,} pairs{interval}{p})."


def _beside(rows: Findings, *, alone: bool) -> str:
    """Return what is known without memory, in sentences; alone: of models without others for comparison."""
    own, other, words = (rows.get(f"recall_{name}") for name in ("target", "reference", "words"))
    if own is None or other is None or words is None:
        return ""
    of = (
        ("on pairs that were trained on", "on others")
        if alone
        else ("under models that were trained on the pair", "under others")
    )
    return (
        f"Recall is {percent(own.value)} {of[0]}, {percent(other.value)} {of[1]}, and {percent(words.value)} from the "
        "words of the caption alone."
    )
