"""The verdict of a déjà vu audit in plain words."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits.deja_vu.recipe import HEADLINES, SETS, STABILITY, Recipe
from memlib.findings import (
    BOUNDED,
    DESCRIPTIVE,
    INCONCLUSIVE,
    SHOWN,
    Verdict,
    cannot_reject,
    families_of,
    word_of,
)
from memlib.stats.randomization import smallest_two_class_p

UPSIDE_DOWN = "The difference points in the opposite direction to memorization."


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    side = recipe.split.train_per_class
    if not recipe.split.by_chance:
        yield (
            "the split does not draw the images of A and B at random, so nothing is tested; if they were drawn at random "
            "beforehand, set split.drawn_at_random: true"
        )
    if recipe.decode.stability is not None and recipe.decode.bound is not None:
        yield (
            "SSLMem (decode.stability) has no bound, so this run cannot end as bounded, even if naming objects stays below "
            "decode.bound: leave one of the two out"
        )
    if side is None:
        return
    if smallest_two_class_p(side, side) > recipe.decode.level:
        yield (
            f"with {side} audited image{'s' if side > 1 else ''} per class in each of A and B, no test of two classes can be "
            "significant: raise split.train_per_class"
        )


@dataclass(frozen=True)
class Recognition:
    """Recognition of whole images that the model was not trained on by their public neighbours.

    Attributes:
        share, low: share of the images, and the lower end of its 95 % interval.
        guessing: share that guessing would name.
    """

    share: float
    low: float
    guessing: float

    @property
    def is_blind(self) -> bool:
        """True if neighbours name no more than guessing: then they can name nothing that the model remembers, either."""
        return self.low <= self.guessing


def recognition(rows: Sequence[Mapping[str, Any]]) -> Recognition | None:
    """Return the recognition of whole images in the headline's layer, or where it is best; None if it was not measured.

    Args:
        rows: rows of the summary, the headline first.
    """
    chance = next((json.loads(row["params"])["chance"] for row in rows if row["metric"].startswith("accuracy_")), None)
    layer = json.loads(rows[0]["params"]).get("layer")
    found = [row for row in rows if row["metric"] == "knn_accuracy"]
    found = [row for row in found if json.loads(row["params"])["probe_layer"] == layer] or found
    if chance is None or not found:
        return None
    best = max(found, key=lambda row: float(row["ci_low"]))
    return Recognition(best["value"], best["ci_low"], chance)


def verdict(rows: Sequence[Mapping[str, Any]]) -> Verdict:
    """Return the run's verdict: what naming objects shows, and SSLMem if it was measured; either alone can show memory.

    Args:
        rows: settled rows of the summary, the headline first.
    """
    checks = [_checked(row) for row in rows if row["metric"] == SETS]
    names = _of_names(rows[0], families_of(rows, HEADLINES), checks, recognition(rows))
    measured = [row for row in rows if row["role"] == "test" and row["family"] == STABILITY]
    if not measured:
        return names
    word = word_of(rows, HEADLINES)
    row = min(measured, key=lambda row: float(row["p_adjusted"]))
    stands_closer = row["verdict"] == SHOWN
    return Verdict(word, _together(names, rows[0], stands_closer), f"{names.explanation} {_of_views(row)}")


def _together(names: Verdict, excess: Mapping[str, Any], stands_closer: bool) -> str:
    """State in one or two sentences what both families show."""
    closer = "views of its own training images closer together than other models do"
    if names.word == SHOWN:
        also = f"It also places {closer}" if stands_closer else f"It was not shown to place {closer}"
        return f"{names.sentence} {also}."
    if names.sentence == UPSIDE_DOWN:
        shown = f"The model places {closer}." if stands_closer else f"The model was not shown to place {closer}."
        return f"{shown} In naming their objects, the difference points in the opposite direction to memorization."
    if names.word == BOUNDED:
        limit = f"names the objects of fewer than {percent(excess['bound'])} of its training images from memory"
        if stands_closer:
            return f"The model places {closer}, but {limit}."
        return f"The model {limit}; whether it places {closer} was neither shown nor ruled out."
    if stands_closer:
        return f"The model places {closer}, but was not shown to name their objects."
    return names.sentence


def _of_views(row: Mapping[str, Any]) -> str:
    """Return the numbers of SSLMem, which has no bound, and what it would have found."""
    numbers = (
        f"(SSLMem {row['value']:.3f}, 95 % interval {row['ci_low']:.3f} to {row['ci_high']:.3f}; p = {row['p_adjusted']:.2g})"
    )
    if row["verdict"] == SHOWN:
        return (
            "The model places augmented views of its training images closer together than a model that did not see them "
            f"{numbers}; this measure does not ask for the object."
        )
    found = "" if row["detectable"] is None else f"; {row['detectable']:.3f} would have been found with a power of 80 %"
    said = f"Augmented views of training images were not shown to lie closer together {numbers}{found}."
    return f"{said} {_no_decision(row)}".strip()


@dataclass(frozen=True)
class _Checked:
    """Outcome of a comparison of the given sets without the model; see `sets.check_rows`."""

    by: str
    value: float
    p: float
    differs: bool
    detectable: float | None


def _checked(row: Mapping[str, Any]) -> _Checked:
    params = json.loads(row["params"])
    return _Checked(params["by"], row["value"], params["p"], params["differs"], params["detectable"])


def _of_names(
    excess: Mapping[str, Any], families: int, checks: Sequence[_Checked], recognized: Recognition | None
) -> Verdict:
    found = _of_excess(excess, families, checks, recognized)
    if found.word == DESCRIPTIVE or not checks:
        return found
    (missed,) = (check.detectable for check in checks if check.by == "backgrounds")
    limit = (
        ""
        if missed is None
        else f"; a difference of {percent(missed)} in what their backgrounds reveal would have been found, while no such "
        "size is known for the comparison of small versions of the images"
    )
    given = (
        "All this is given that the sets were drawn at random, as declared. Compared without the model, they were not found "
        f"to differ{limit}."
    )
    return Verdict(found.word, found.sentence, f"{found.explanation} {given}")


def _differing(numbers: str, checks: Sequence[_Checked]) -> Verdict:
    said = [
        f"backgrounds reveal {'more' if check.value > 0 else 'fewer'} objects in training than in held-out images, by "
        f"{percent(abs(check.value))}"
        if check.by == "backgrounds"
        else "small versions of the images tell training from held-out images"
        for check in checks
        if check.differs
    ]
    p = min(check.p for check in checks)
    text = (
        f"{_sentence(numbers)}. Without the model, {' and '.join(said)} (p = {p:.2g}): sets drawn at random seldom differ "
        "like this. Use held-out images that were drawn from the same images as the training images."
    )
    return Verdict(
        DESCRIPTIVE, "Nothing was tested: the sets differ, although they were declared to be drawn at random.", text
    )


def _of_excess(
    excess: Mapping[str, Any], families: int, checks: Sequence[_Checked], recognized: Recognition | None
) -> Verdict:
    numbers = _numbers(excess)
    if any(check.differs for check in checks):
        return _differing(numbers, checks)
    if excess["role"] != "test":
        text = (
            f"{_sentence(numbers)}. The images were not assigned to the sets at random, so any difference between the sets "
            "may be the cause, including memory."
        )
        return Verdict(DESCRIPTIVE, "Nothing was tested: the sets were not drawn at random.", text)
    if excess["verdict"] == SHOWN:
        text = (
            f"Shown nothing but the background, {numbers}. Anyone who has the model, labelled public images and the "
            "background of a training image can do the same."
        )
        return Verdict(SHOWN, "The model has memorized individual training images.", text)
    if excess["value"] < 0 and (excess["ci_high"] or 0) < 0:
        text = (
            f"{_sentence(numbers)}, which is not memory. Chance alone produces such intervals now and then; if it recurs "
            "with other seeds, look for an error in the data or the training."
        )
        return Verdict(INCONCLUSIVE, UPSIDE_DOWN, text)
    if excess["verdict"] == BOUNDED:
        sentence = f"From memory, this attack names the objects of fewer than {percent(excess['bound'])} of training images."
        text = (
            f"{_sentence(numbers)}; with 95 % confidence (one-sided), of at most {percent(excess['upper_bound'])}; other "
            f"attacks may find more. {_no_decision(excess)}{_missed(excess)}"
        )
        return Verdict(BOUNDED, sentence, text)
    if recognized is not None and recognized.is_blind:
        text = (
            f"{_sentence(numbers)}. But the nearest public images name whole images that the model was not trained on no "
            f"more often than guessing ({percent(recognized.share)}; guessing {percent(recognized.guessing)}), so they could "
            "not name what the model remembers, either: a model that has only learnt its training images by heart looks like "
            "this. The gap between training and other images (probe_gap) says whether it has."
        )
        return Verdict(INCONCLUSIVE, "This attack cannot see anything in this model, whether it remembers or not.", text)
    if cannot_reject(excess, families):
        alone = "reference" in json.loads(excess["params"])
        what = "the model's answers vary" if alone else "the models differ"
        text = f"{_sentence(numbers)}. On these {excess['n']} images {what} so little that no test could have shown memory."
        sentence = f"{_sentence(what)} on too few images to tell whether training images are memorized."
        return Verdict(INCONCLUSIVE, sentence, text)
    limit = (
        "No limit can be given, as fewer answers are right than chance explains."
        if excess["upper_bound"] is None
        else f"With 95 % confidence (one-sided), this attack names at most {percent(excess['upper_bound'])} of the objects "
        "because of training; others may find more."
    )
    text = f"{_sentence(numbers)}. {_no_decision(excess)}{limit} {_missed(excess)}"
    return Verdict(INCONCLUSIVE, "Memorization of individual training images was neither shown nor ruled out.", text)


def _numbers(row: Mapping[str, Any]) -> str:
    more, params = "more" if row["value"] >= 0 else "fewer", json.loads(row["params"])
    within = ", compared within classes," if params.get("within") else ""
    over = row["interval"]
    if "groups" in params:
        over += f", of which there are {params['groups']}, as precise as {params['effective_groups']:.0f} of equal size"
    p = "" if row["p_adjusted"] is None else f"; p = {row['p_adjusted']:.2g}"
    if "reference" in params:
        return (
            f"the model names {more} objects in its training images than in held-out images{within} beyond what backgrounds "
            f"reveal by themselves, by {percent(abs(row['value']))} of the images (95 % interval {percent(row['ci_low'])} to "
            f"{percent(row['ci_high'])} over {over}{p})"
        )
    return (
        f"the model names {more} objects in its training images than a model that never saw them{within or ','} by "
        f"{percent(abs(row['value']))} of the images (95 % interval {percent(row['ci_low'])} to "
        f"{percent(row['ci_high'])} over {over}{p})"
    )


def _no_decision(row: Mapping[str, Any]) -> str:
    """Say why nothing is shown although the interval excludes 0; nothing where it does not."""
    if row["ci_low"] is None or row["ci_low"] <= 0:
        return ""
    return (
        "The interval excludes 0, but intervals are approximate and decide nothing: the test does, and its adjusted p is "
        f"above {row['alpha']:g}. "
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _missed(row: Mapping[str, Any]) -> str:
    if row["detectable"] is None:
        return "On so few images, no amount of memory would be detected four times out of five."
    return f"Had {percent(row['detectable'])} been memorized, a run of this size would have shown it four times out of five."


def percent(value: float) -> str:
    """Return a share in per cent, with a decimal unless it is whole."""
    whole = abs(100 * value - round(100 * value)) <= 0.05
    return f"{100 * value:z.0f} %" if whole else f"{100 * value:z.1f} %"
