"""The verdict of an exposure audit in one sentence, and its explanation."""

import math
from collections.abc import Sequence

from memlib.audits.exposure.documents import said_of_documents
from memlib.audits.exposure.recipe import HEADLINE, HEADLINES, PRIVACY, Recipe
from memlib.findings import BOUNDED, DESCRIPTIVE, INCONCLUSIVE, SHOWN, Row, Verdict, Word, word_of

READABLE_BITS = 50
LISTED = (
    "List other secrets of the same kind, which the training text does not contain, in canaries.unseen; the given secrets "
    "are then ranked among them."
)


def verdict(rows: Sequence[Row], recipe: Recipe, *, size: int) -> Verdict:
    """State what the tests of a run show, and what they could have missed.

    Args:
        rows: settled rows of the summary, with params as mappings.
        recipe: the recipe of the run.
        size: |R|, the number of candidates.
    """
    word = word_of(rows, HEADLINES, refuting=(PRIVACY,))
    hits, searched = _extracted(rows)
    if (word == BOUNDED and hits) or word == DESCRIPTIVE:  # an extraction contradicts any bound
        word = INCONCLUSIVE
    canaries = _of_canaries(rows, recipe, size)
    found = [canaries, _of_privacy(rows), said_of_documents(rows)]
    if hits:
        text = f"Given the text around the secrets, but none of their symbols, a search extracted {hits} of {searched}."
        found.insert(1, (canaries[0], text, ""))
    said = sorted((part for part in found if part is not None), key=lambda part: part[0] != SHOWN)  # shown parts first
    if len(said) == 1 and not _heads(rows):
        return Verdict(*_without_null(rows, recipe))
    sentence, explanation = (" ".join(filter(None, texts)) for texts in list(zip(*said, strict=True))[1:])
    return Verdict(word, sentence, explanation)


Part = tuple[Word, str, str]
"""The word, the sentence and the explanation of one group of headline families."""


def _heads(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["family"] == HEADLINE]


def _of_canaries(rows: Sequence[Row], recipe: Recipe, size: int) -> Part:
    """State what the tests of canaries, or of given secrets, show."""
    heads, singles = _heads(rows), [row for row in rows if row["family"] == "canaries"]
    if not heads:
        return _without_null(rows, recipe)
    noun = "secret" if heads[0]["metric"] == "exposure_among_unseen" else "canary"
    word = word_of(heads, (HEADLINE,))
    if word == SHOWN:
        explained = f"{_how_exposed(heads, singles, noun, recipe, size)} {_untested(heads)}".strip()
        return SHOWN, _shown(heads, singles, noun, recipe), explained
    parts = [_missed(heads, singles, noun, recipe), _in_the_format(rows, heads, noun), _untested(heads)]
    missed = " ".join(filter(None, parts))
    if word == BOUNDED and not _extracted(rows)[0]:
        return BOUNDED, _bounded(heads, noun), missed
    what = "the given secrets" if noun == "secret" else "its inserted canaries"
    return INCONCLUSIVE, f"This audit does not show that {_model(recipe)} gives away {what}.", missed


def _without_null(rows: Sequence[Row], recipe: Recipe) -> Part:
    """State why given secrets could not be tested, and what to do."""
    if any(row["metric"] == "unseen_two_to_minus_exposure" for row in rows):
        return (
            INCONCLUSIVE,
            "This audit cannot tell whether the model gives away these secrets: none of them occurs just once in the text.",
            "Secrets in held-out text stand in only for secrets that occur once: what recurs may be common everywhere. The "
            f"exposures below are therefore no evidence of memory. {LISTED}",
        )
    text = recipe.data
    by_hold_out = recipe.trained is None and text.hold_out != "blocks" and text.unit != "token" and not text.paired
    once = (
        " Secrets that occur once can also be ranked among those of text that was held out at random (data.hold_out: blocks)."
        if by_hold_out
        else ""
    )
    return (
        INCONCLUSIVE,
        "This audit cannot tell whether the model gives away these secrets: secrets of the same kind that it never saw are "
        "missing.",
        "Real secrets are not spread evenly over everything that fits the format: a model that only knows their kind finds "
        f"even those likely that it never saw. The exposures below are therefore no evidence of memory. {LISTED}{once}",
    )


def _untested(heads: Sequence[Row]) -> str:
    count = max(int(row["params"].get("recurring", 0)) for row in heads)
    if not count:
        return ""
    verb = "recurs" if count == 1 else "recur"
    return f"{count} further given {_plural('secret', count)} {verb} in the text and could not be compared with unseen ones."


def _in_the_format(rows: Sequence[Row], heads: Sequence[Row], noun: str) -> str:
    """State exposures in R that lie above the upper bound among unseen secrets; they measure something else."""
    bounds = [row["upper_bound"] for row in heads if row["upper_bound"] is not None]
    tested = {row["params"]["canary"] for row in rows if row["family"] == "canaries"}
    among = [row["value"] for row in rows if row["metric"] == "exposure" and row["params"].get("canary") in tested]
    if noun != "secret" or not bounds or not among or max(among) <= max(bounds):
        return ""
    return (
        f"Ranked among all texts that fit the format instead, the secrets reach up to {max(among):.1f} bits. A model that "
        "only knows this kind of secret reaches such values too; what it knows beyond the kind is what was tested."
    )


def _shown(heads: Sequence[Row], singles: Sequence[Row], noun: str, recipe: Recipe) -> str:
    total = len({row["params"]["canary"] for row in singles})
    named = len({row["params"]["canary"] for row in singles if row["verdict"] == SHOWN})
    every = f"{'given' if noun == 'secret' else 'inserted'} {_plural(noun, total)}"
    where = _where(heads, recipe)
    if not named:
        return f"{where} gives away information about the {total} {every} together; by rank, no single one stands out."
    return f"{where} gives away {named} of {total} {every}."


def _where(heads: Sequence[Row], recipe: Recipe) -> str:
    """Name the models that give secrets away, as the subject of the sentence."""
    if len(heads) == 1:
        return _model(recipe).capitalize()
    hits = [row["params"]["variant"] for row in heads if row["verdict"] == SHOWN]
    if len(hits) == len(heads):
        return "Every variant"
    return f"Variant {hits[0]!r}" if len(hits) == 1 else f"At least one of {len(hits)} variants (out of {len(heads)})"


def _model(recipe: Recipe) -> str:
    return "the model" if recipe.seeds == 1 else f"the training ({recipe.seeds} seeds)"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else {"canary": "canaries", "secret": "secrets"}[noun]


def _how_exposed(heads: Sequence[Row], singles: Sequence[Row], noun: str, recipe: Recipe, size: int) -> str:
    shown = [row for row in singles if row["verdict"] == SHOWN]
    head = min(heads, key=lambda row: float(row["p_adjusted"]))
    parts = [f"All {_plural(noun, 2)} together: p = {_p(head['p_adjusted'])}{_of_family(heads)}."]
    if shown:
        most = max(shown, key=lambda row: float(row["value"]))
        parts.append(_outsider(most, recipe, size) if noun == "canary" else _stands_out(most, head, recipe))
    return " ".join(parts)


def _stands_out(most: Row, head: Row, recipe: Recipe) -> str:
    """Describe what anyone who can query the model and knows other secrets of the kind could do."""
    unseen, times = head["params"]["unseen"], most["params"]["insertions"]
    as_likely = round((1 + unseen) * 2 ** -most["value"]) - 1
    over = f", summed over {recipe.seeds} models" if recipe.seeds > 1 else ""
    occurred = "occurred" if recipe.trained is None else "is listed as having occurred"  # memlib has not seen that text
    return (
        f"The secret that stands out most {occurred} {times} {_times(times)} in the training data. Of {unseen} secrets of "
        f"its kind that were never seen, {as_likely or 'none'} {'is' if as_likely < 2 else 'are'} as likely{over}. Whoever "
        "can ask the model how likely a text is can tell such a secret from others of its kind."
    )


def _outsider(most: Row, recipe: Recipe, size: int) -> str:
    """Describe what anyone who can query the model could do."""
    bits, times = most["value"], most["params"]["insertions"]
    mean = f", the mean over {recipe.seeds} models" if recipe.seeds > 1 else ""
    law = " (extrapolated)" if most["params"].get("method") == "extrapolated" else ""
    space = math.log2(size)
    return (
        f"The most exposed canary occurred {times} {_times(times)} in the training data and has {bits:.1f} bits of "
        f"exposure{law}{mean}: whoever can ask the model how likely a text is needs only one in "
        f"2^{bits - 1:.1f}{_fraction(bits - 1)} of the guesses needed on average without the model. There are 2^{space:.1f} "
        f"possible canaries: at {space:.1f} bits the first guess is right."
    )


def _missed(heads: Sequence[Row], singles: Sequence[Row], noun: str, recipe: Recipe) -> str:
    """State what was tested and what would have been found; finding nothing is no proof of absence."""
    head = min(heads, key=lambda row: float(row["p_adjusted"]))
    total = len({row["params"]["canary"] for row in singles})
    parts = [f"{total} {_plural(noun, total)}{_in_nets(recipe)}: p = {_p(head['p_adjusted'])}{_of_family(heads)}."]
    if head["smallest_p"] > recipe.score.level / len(heads):
        parts.append(
            f"A test of this size cannot show anything: no rank gives a p below {_p(head['smallest_p'])}.{_more(noun)}"
        )
    alone = max((row["detectable"] for row in singles if row["detectable"] is not None), default=None)
    if alone is not None:
        parts.append(f"A single {noun} would have been found at {alone:.1f} bits{_unit(noun)} or more.")
    elif head["smallest_p"] <= recipe.score.level / len(heads):
        parts.append(f"No single {noun} could have been found in a test of this size.{_more(noun)}")
    if head["detectable"] is not None and len(singles) > len(heads):
        parts.append(f"All together would have been found at a mean of {head['detectable']:.1f} bits or more.")
    parts.append("A smaller exposure may exist.")
    if all(row["upper_bound"] is not None for row in heads):
        bits = max(row["upper_bound"] for row in heads)
        parts.append(f"None has more than {bits:.1f} bits{_unit(noun)} (95 % upper bound).")
    return " ".join(parts)


def _bounded(heads: Sequence[Row], noun: str) -> str:
    of = "given secret" if noun == "secret" else noun
    return f"No {of} has more than {heads[0]['bound']:g} bits{_unit(noun)}."


def _more(noun: str) -> str:
    return " List more unseen secrets." if noun == "secret" else " Raise score.references or the size of the format."


def _unit(noun: str) -> str:
    return " of exposure among unseen secrets of its kind" if noun == "secret" else " of exposure"


def _in_nets(recipe: Recipe) -> str:
    return f" in {recipe.seeds} models each" if recipe.seeds > 1 else ""


def _of_family(heads: Sequence[Row]) -> str:
    return f" (adjusted for {len(heads)} variants)" if len(heads) > 1 else ""


def _times(count: int) -> str:
    return "time" if count == 1 else "times"


def _p(value: float) -> str:
    return f"{value:.2g}"


def _fraction(bits: float) -> str:
    return f" (1 in {2**bits:,.0f})" if bits < READABLE_BITS else ""


def _extracted(rows: Sequence[Row]) -> tuple[int, int]:
    """Return how many secrets the search that was given none of their symbols extracted, and how many it searched for."""
    searches = [
        row
        for row in rows
        if row["metric"] == "extracted" and row["params"]["search"] == "shortest_path" and row["params"]["known"] == 0
    ]
    return round(sum(row["value"] * row["n"] for row in searches)), sum(row["n"] for row in searches)


def floored(epsilon: float) -> float:
    """Round a lower bound of epsilon down to two decimals: rounded up, it would not be a bound."""
    return math.floor(100 * epsilon) / 100


def _of_privacy(rows: Sequence[Row]) -> Part | None:
    """State which claim of privacy a canary refutes; None if none is refuted, which confirms no claim."""
    refuted = [row for row in rows if row["metric"] == "privacy_claim" and row["verdict"] == SHOWN]
    if not refuted:
        return None
    worst = min(refuted, key=lambda row: float(row["p_adjusted"]))
    claim = worst["params"]
    name = f" of variant {claim['variant']!r}" if claim.get("variant") else ""
    return (
        SHOWN,
        f"The training{name} is not as private as claimed.",
        f"It claims epsilon {claim['epsilon']:.3g} at delta {claim['delta']:g}; canary {claim['canary']}, which occurred in "
        f"{claim['insertions']} {'window' if claim['insertions'] == 1 else 'windows'}, ranks too low for that "
        f"(p = {_p(worst['p_adjusted'])}): epsilon is at least {floored(worst['value']):.2f}. Noise or clipping may be "
        "missing.",
    )
