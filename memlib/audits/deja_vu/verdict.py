"""Put the findings of a déjà vu audit into plain words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlib.audits.deja_vu.recipe import Recipe
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Verdict, cannot_reject
from memlib.stats.randomization import smallest_two_class_p

UPSIDE_DOWN = "The comparison is upside down."


def limits(recipe: Recipe) -> Iterator[str]:
    """Name what the recipe cannot show, whatever the data."""
    side = recipe.split.train_per_class
    if not recipe.split.by_chance:
        yield (
            "who is in A and who in B was not drawn at random, so nothing is tested; if it was, say so "
            "(split.drawn_at_random: true)"
        )
    if side is None:
        return
    if smallest_two_class_p(side, side) > recipe.decode.alpha:
        yield (
            f"with {side} audited image{'s' if side > 1 else ''} of a class on each side no test of two classes can be "
            "significant: raise split.train_per_class"
        )


def verdict(rows: Sequence[Mapping[str, Any]]) -> Verdict:
    """The run's verdict, from its headline: the share of excess over both directions; memory without labels is told beside.

    Args:
        rows: of the summary, settled, the headline first.
    """
    said = _of_names(rows[0])
    held = next((row for row in rows if row["metric"] == "sslmem" and row["verdict"] == SHOWN), None)
    if held is None:
        return said
    told = (
        "It holds the augmented views of its training images closer together than a model that did not see them (SSLMem "
        f"{held['value']:.3f}, 95 % interval {held['ci_low']:.3f} to {held['ci_high']:.3f}; p = {held['p_adjusted']:.2g})"
    )
    if said.word == SHOWN or said.sentence == UPSIDE_DOWN:
        return Verdict(said.word, said.sentence, f"{said.explanation} {told}.")
    sentence = "The model holds its own training images closer than others, but was not shown to name their objects."
    if said.word == BOUNDED:
        sentence = (
            "The model holds its own training images closer than others, but names the objects of fewer than "
            f"{_percent(rows[0]['bound'])} of them from memory."
        )
    return Verdict(said.word, sentence, f"{said.explanation} {told}; this asks for no object.")


def _of_names(excess: Mapping[str, Any]) -> Verdict:
    numbers = _numbers(excess)
    if excess["role"] != "test":
        text = (
            f"{_sentence(numbers)}. Chance did not decide who was in which set, so this may come of any difference between "
            "the sets, memory among them."
        )
        return Verdict(DESCRIPTIVE, "Nothing was tested: the sets were not drawn at random.", text)
    if excess["verdict"] == SHOWN:
        text = (
            f"Shown nothing but the background, {numbers}. Whoever holds the model and the background of a photo can do the "
            "same."
        )
        return Verdict(SHOWN, "The model has memorized individual training images.", text)
    if excess["value"] < 0 and (excess["ci_high"] or 0) < 0:
        text = (
            f"{_sentence(numbers)}, which is not memory. Chance alone gives about one of forty runs such an interval; if it "
            "comes again with other seeds, look for a fault in the data or the training."
        )
        return Verdict(INCONCLUSIVE, UPSIDE_DOWN, text)
    if excess["verdict"] == BOUNDED:
        sentence = f"Memory of individual training images is below {_percent(excess['bound'])} of the images."
        text = f"{_sentence(numbers)}; with 95 % confidence at most {_percent(excess['upper_bound'])}. {_missed(excess)}"
        return Verdict(BOUNDED, sentence, text)
    if cannot_reject(excess):
        alone = "reference" in json.loads(excess["params"])
        what = "the model's answers vary" if alone else "the models differ"
        text = f"{_sentence(numbers)}. On these {excess['n']} images {what} so little that no test could have shown memory."
        sentence = f"{_sentence(what)} on too few images to tell whether training images are memorized."
        return Verdict(INCONCLUSIVE, sentence, text)
    limit = "" if excess["upper_bound"] is None else f"; memory of up to {_percent(excess['upper_bound'])} is not excluded"
    text = f"{_sentence(numbers)}{limit}. {_missed(excess)}"
    return Verdict(INCONCLUSIVE, "No memorization of individual training images was shown, and none is excluded.", text)


def _numbers(row: Mapping[str, Any]) -> str:
    more = "more" if row["value"] >= 0 else "fewer"
    p = "" if row["p_adjusted"] is None else f"; p = {row['p_adjusted']:.2g}"
    if "reference" in json.loads(row["params"]):
        return (
            f"the model names the object in {_percent(abs(row['value']))} {more} of its training images than of held-out "
            f"images, beyond what backgrounds give away by themselves (95 % interval {_percent(row['ci_low'])} to "
            f"{_percent(row['ci_high'])} over {row['interval']}{p})"
        )
    return (
        f"the model names the object in {_percent(abs(row['value']))} {more} of its training images than a model that never "
        f"saw them (95 % interval {_percent(row['ci_low'])} to {_percent(row['ci_high'])} over {row['interval']}{p})"
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _missed(row: Mapping[str, Any]) -> str:
    if row["detectable"] is None:
        return "The model and its reference answer every image alike, so no test could have found anything."
    return f"A run of this size finds memory of {_percent(row['detectable'])} of the images four times out of five."


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if abs(100 * value - round(100 * value)) > 0.05 else f"{100 * value:.0f} %"
