"""The verdict of a déjà vu audit in plain words."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from memlib.audits.deja_vu.recipe import BEYOND, HEADLINE, HEADLINES, SETS, STABILITY, Recipe
from memlib.data.given_sets import p_of_draw
from memlib.findings import (
    BOUNDED,
    DESCRIPTIVE,
    INCONCLUSIVE,
    SHOWN,
    Finding,
    Findings,
    Verdict,
    cannot_reject,
    families_of,
    word_of,
)
from memlib.report.format import format_interval, percent, say_p
from memlib.stats.randomization import smallest_two_class_p

DIFFERENT = "Nothing was tested: the sets differ, although they were declared to be drawn at random."
UPSIDE_DOWN = "The difference points in the opposite direction to memorization."


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    side = recipe.split.train_per_class
    if not recipe.split.by_chance:
        yield (
            "the split does not draw the images of A and B at random, so nothing is tested; if they were drawn at random "
            "beforehand, set split.drawn_at_random: true"
        )
    boundless = {"SSLMem (decode.stability)": recipe.decode.stability, "memory beyond the class (beyond)": recipe.beyond}
    for what in (name for name, asked in boundless.items() if asked is not None and recipe.decode.bound is not None):
        yield (
            f"{what} has no bound, so this run cannot end as bounded, even if naming objects stays below decode.bound: leave "
            "one of the two out"
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
    """Recognition of whole images that the model was not trained on by their public neighbours."""

    share: float  #: share, low: share of these images that are named correctly, and the lower end of its 95 % interval.
    low: float
    guessing: float  #: share that guessing would name correctly.

    @property
    def is_blind(self) -> bool:
        """True if neighbours name no more than guessing does: then they cannot name what the model remembers, either."""
        return self.low <= self.guessing


def recognition(rows: Findings) -> Recognition | None:
    """Return the recognition of whole images at the headline's layer, else at the best layer; None if it was not measured."""
    answers = rows.get("accuracy_target")
    last = rows.all("knn_accuracy", epoch=None)  # earlier checkpoints say nothing of the one that is judged
    named = last.all(probe_layer=rows.head.params.get("layer")) or last
    if answers is None:
        return None
    found = [Recognition(row.value, row.low or 0.0, answers.params["chance"]) for row in named]
    return max(found, key=lambda one: one.low, default=None)


def verdict(rows: Findings) -> Verdict:
    """Return the run's verdict on naming objects, SSLMem and memory beyond the class; each alone can show memory."""
    found, tests = _of_objects(rows), rows.tests(BEYOND)
    if tests:
        explanation = f"{found.explanation} {said_beyond(tests)}"
        found = Verdict(word_of(rows, HEADLINES), _with_beyond(found, tests.shown()), explanation)
    if found.word == DESCRIPTIVE or not rows.all(SETS, by="backgrounds"):
        return found
    said = f"{found.sentence[0].lower()}{found.sentence[1:]}"  # nothing about a single model can prove who drew its sets
    return replace(found, sentence=f"If the sets were drawn at random, as declared: {said}")


def said_beyond(tests: Findings) -> str:
    """State which attributes are remembered beyond the class, and whether the images themselves are, from settled tests."""
    said = [f"{_asked(row)} {'shown' if row.verdict == SHOWN else 'not shown'} ({_found_beyond(row)})" for row in tests]
    return f"Beyond the class, given it: {'; '.join(said)}."


def _with_beyond(found: Verdict, shown: Findings) -> str:
    """State in one or two sentences the verdict on naming objects, and what is remembered beyond the class."""
    if not shown:
        more = " Whether more than the class is remembered was neither shown nor ruled out." if found.word == BOUNDED else ""
        return f"{found.sentence}{more}"
    named = [row.params["attribute"] for row in shown if "attribute" in row.params]
    what = []
    if named:
        what.append(f"name the {' and the '.join(named)} of a training image more often")
    if len(named) < len(shown):
        what.append("place the training image nearer to its background among others of its class and set")
    said = f"Given a background and the class of its object, models {' and '.join(what)} than models that did not see it"
    if found.word == SHOWN:
        return f"{found.sentence} {said}."
    return f"{said}. That they name objects from memory was not shown."


def _asked(row: Finding) -> str:
    return f"memory of {row.params['attribute']}" if "attribute" in row.params else "memory of the image among its class"


def _found_beyond(row: Finding) -> str:
    """Return a difference beyond the class with its interval and p-value; if not shown, also the detectable difference."""
    unit = "" if "attribute" in row.params else " in mean rank"
    numbers = f"{percent(row.value)}{unit}, 95 % interval {format_interval(row, percent)}; {say_p(row.p_adjusted)}"
    if row.verdict == SHOWN or (row.p_adjusted or 0.0) <= (row.alpha or 0.0):
        return numbers
    enough = "no size" if row.detectable is None else percent(row.detectable)
    return f"{numbers}; {enough} would have been found with a power of 80 %"


def _of_objects(rows: Findings) -> Verdict:
    """Return the verdict on naming objects and, if it was measured, SSLMem; either alone can show memory."""
    names, views = _of_names(rows), rows.tests(STABILITY)
    if not views:
        return names
    row = views.strongest()
    sentence = _together(names, rows.head, row.verdict == SHOWN)
    return Verdict(word_of(rows, (HEADLINE, STABILITY)), sentence, f"{names.explanation} {_of_views(row)}")


def _together(names: Verdict, excess: Finding, stands_closer: bool) -> str:
    """State in one or two sentences what naming objects and SSLMem show."""
    closer = "lie closer together than in models that did not see them"
    shown = f"Views of training images {closer}" if stands_closer else f"That views of training images {closer} was not shown"
    if names.word == SHOWN:
        return f"{names.sentence} {shown}{', too' if stands_closer else ''}."
    if names.sentence == UPSIDE_DOWN:
        return f"{shown}. In naming their objects, the difference points in the opposite direction to memorization."
    if names.word == BOUNDED:
        assert excess.bound is not None
        if stands_closer:
            return f"{shown}, but from memory, this attack names the objects of fewer than {percent(excess.bound)} of them."
        return f"{names.sentence} Whether views of them {closer} was neither shown nor ruled out."
    return f"{shown}, but naming their objects from memory was not shown." if stands_closer else names.sentence


def _of_views(row: Finding) -> str:
    """Return what SSLMem shows, with its numbers; if it shows nothing, also the effect that would have been found."""
    numbers = f"(SSLMem {row.value:.3f}, 95 % interval {format_interval(row)}; {say_p(row.p_adjusted)})"
    if row.verdict == SHOWN:
        return (
            "Augmented views of training images lie closer together than in models that did not see them "
            f"{numbers}; this measure does not ask for the object."
        )
    found = "" if row.detectable is None else f"; {row.detectable:.3f} would have been found with a power of 80 %"
    said = f"Augmented views of training images were not shown to lie closer together {numbers}{found}."
    return f"{said} {_no_decision(row)}".strip()


def _of_names(rows: Findings) -> Verdict:
    """Return the verdict on naming objects; for sets declared to be drawn at random, also how far this was checked."""
    found, check = _of_excess(rows), rows.get(SETS, by="backgrounds")
    if found.word != DESCRIPTIVE and rows.get(SETS, by="models") is not None:
        given = (
            "That the sets were drawn at random is as declared; neither what the models of both find easy nor what is known "
            f"of the images without a model contradicts it ({_least_p(rows.all(SETS))})."
        )
        return Verdict(found.word, found.sentence, f"{found.explanation} {given}")
    if found.word == DESCRIPTIVE or check is None:
        return found
    missed = check.params["detectable"]
    limit = (
        ""
        if missed is None
        else f"; a difference of {percent(missed)} in what their backgrounds reveal would have been found, while no such "
        "size is known for the comparison of names, dates, sizes and small versions of the images"
    )
    given = (
        "All this is given that the sets were drawn at random, as declared. Compared without the model, they were not found "
        f"to differ{limit}. Held-out images that are harder by less than that can look like memory."
    )
    return Verdict(found.word, found.sentence, f"{found.explanation} {given}")


def _least_p(checks: Findings) -> str:
    """Return the p-value of a declared draw over its comparisons."""
    known = checks.first(SETS, by="features").params["p"]
    return say_p(p_of_draw(known, [check.params["p"] for check in checks if check.params["by"] != "features"]))


def _differing(numbers: str, checks: Findings) -> Verdict:
    said = " and ".join(_how_they_differ(check) for check in checks.all(differs=True))
    text = (
        f"{_sentence(numbers)}. But {said} ({_least_p(checks)}): sets drawn at random seldom differ like this. Give sets "
        "that were drawn from the same images."
    )
    return Verdict(DESCRIPTIVE, DIFFERENT, text)


def _how_they_differ(check: Finding) -> str:
    """State in a clause how sets differ that were declared to be drawn at random."""
    by, more, apart = check.params["by"], "more" if check.value > 0 else "fewer", percent(abs(check.value))
    if by == "features":
        return str(check.params["told"])
    if by == "backgrounds":
        return f"backgrounds reveal {more} objects in training than in held-out images, by {apart}"
    return (
        f"the models of both sets find the same one easier: together they name {more} objects in A than in B, by {apart} of "
        "the images, or with another confidence"
    )


def _of_excess(rows: Findings) -> Verdict:
    excess, recognized = rows.head, recognition(rows)
    numbers = _numbers(excess)
    if rows.all(SETS, differs=True):
        return _differing(numbers, rows.all(SETS))
    if not excess.is_test:
        text = (
            f"{_sentence(numbers)}. The images were not assigned to the sets at random, so any difference between the sets "
            "may be the cause, including memory."
        )
        return Verdict(DESCRIPTIVE, "Nothing was tested: the sets were not drawn at random.", text)
    if excess.verdict == SHOWN:
        close = "" if (excess.low or 0) > 0 else " The approximate interval reaches 0: the test decides, but only just."
        text = (
            f"{excess.n} images were audited: {_measured(excess)}.{close} Which of them are remembered is not shown. Anyone "
            "who has the model, labelled public images and the background of a training image can do the same."
        )
        return Verdict(SHOWN, _remembered(excess), text)
    if (excess.high or 0) < 0:
        text = (
            f"{_sentence(numbers)}, which is not memory. Chance alone produces such intervals now and then; if it recurs "
            "with other seeds, look for an error in the data or the training."
        )
        return Verdict(INCONCLUSIVE, UPSIDE_DOWN, text)
    if excess.verdict == BOUNDED:
        assert excess.bound is not None
        assert excess.upper_bound is not None
        sentence = f"From memory, this attack names the objects of fewer than {percent(excess.bound)} of training images."
        text = (
            f"{_sentence(numbers)}; with 95 % confidence (one-sided), of at most {percent(excess.upper_bound)}; other "
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
    if cannot_reject(excess, families_of(rows, HEADLINES)):
        what = "the model's answers vary" if "reference" in excess.params else "the models differ"
        text = f"{_sentence(numbers)}. On these {excess.n} images {what} so little that no test could have shown memory."
        sentence = f"{_sentence(what)} on too few images to tell whether training images are memorized."
        return Verdict(INCONCLUSIVE, sentence, text)
    limit = (
        "No limit can be given, as fewer answers are right than chance explains."
        if excess.upper_bound is None
        else f"With 95 % confidence (one-sided), this attack names at most {percent(excess.upper_bound)} of the objects "
        "because of training; others may find more."
    )
    text = f"{_sentence(numbers)}. {_no_decision(excess)}{limit} {_missed(excess)}"
    return Verdict(INCONCLUSIVE, "Memorization of individual training images was neither shown nor ruled out.", text)


def _remembered(row: Finding) -> str:
    """State how much was shown to be remembered."""
    share = percent(row.value)
    if "reference" in row.params:
        return (
            "The model remembers some of its training images: from backgrounds alone, it names more objects in them than in "
            f"held-out images, by {share} of the images beyond what backgrounds reveal."
        )
    return (
        "The models remember some of their training images: from backgrounds alone, they name more objects in them than "
        f"models that never saw these images, by {share} of the images."
    )


def _numbers(row: Finding) -> str:
    """Return the difference in words, with its interval and p-value."""
    within = ", compared within classes," if row.params.get("within") else ""
    more = "more" if row.value >= 0 else "fewer"
    compared = (
        f"the model names {more} objects in its training images than in held-out images{within} beyond what backgrounds "
        "reveal by themselves,"
        if "reference" in row.params
        else f"models name {more} objects in their own training images than models that never saw them{within or ','}"
    )
    return f"{compared} by {percent(abs(row.value))} of the images ({_measured(row)})"


def _measured(row: Finding) -> str:
    """Return the interval of the difference, the units that it samples, and the adjusted p-value."""
    assert row.interval is not None
    over = row.interval.over
    if "groups" in row.params:
        over += (
            f", of which there are {row.params['groups']}, as precise as {row.params['effective_groups']:.0f} of equal size"
        )
    p = "" if row.p_adjusted is None else f"; {say_p(row.p_adjusted)}"
    return f"95 % interval {format_interval(row, percent)} over {over}{p}"


def _no_decision(row: Finding) -> str:
    """Say why nothing is shown although the interval lies above 0; "" for any other interval."""
    if row.low is None or row.low <= 0:
        return ""
    return (
        "The interval excludes 0, but intervals are approximate and decide nothing: the test does, and its adjusted p is "
        f"above {row.alpha:g}. "
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:]


def _missed(row: Finding) -> str:
    if row.detectable is None:
        return "On so few images, no amount of memory would be detected four times out of five."
    return f"Had {percent(row.detectable)} been memorized, a run of this size would have shown it four times out of five."
