"""Verdict of a run, in words, from its settled rows; the pages only display it."""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from memlib.audits.unique_feature.recipe import HEADLINE, RANGE, Recipe
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Row, Verdict, cannot_reject
from memlib.stats.inference import exact_interval

NAMES = {
    "m_white": "white box (M)", "m_grey": "grey box (M)", "m_black": "black box (M)", "m_w": "white box (M_w, 2022)",
    "m_kl": "black box (M, 2022)",
}  # fmt: skip
NULLS = {
    "names": "other people's names", "letters": "random texts of the same form", "list": "other texts from the given list",
    "pictures": "other pictures of the same kind",
}  # fmt: skip


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    if recipe.trained is not None:
        return
    for cell in recipe.cells if recipe.data_seeds == 1 else ():
        nets, canary, name = cell.recipe.nets, cell.recipe.canary, f"variant {cell.variant}: " if cell.variant else ""
        pairs = canary.count * nets.seeds
        pairs = min(pairs, nets.controls if nets.controls is not None else pairs)
        needed = recipe.score.level / max(1, len(recipe.variants))
        smallest = RANGE * (1 - recipe.score.error ** (1 / pairs))
        if recipe.score.bound is not None:
            share = _largest_share(0, canary.count * nets.seeds)
            limit = f", but score.bound is {recipe.score.bound:g}" if smallest >= recipe.score.bound else ""
            yield (
                f"{name}{pairs} nets bound the mean difference by {smallest:.2f} at best, as few trainings may remember "
                f"much{limit}; they bound the share of trainings that score beyond what few controls reach by {share:.2f} at "
                "best; for smaller bounds, raise nets.seeds"
            )
        if nets.seeds > 1 and 0.5**pairs > needed:
            yield (
                f"{name}{pairs} pairs of a canary's model and its control are too few for a significant result "
                f"(the smallest p-value, 2^-{pairs}, is above {needed:.2g}); raise nets.seeds"
            )


def verdict(rows: Sequence[Row], *, alpha: float) -> Verdict:
    """Return the verdict on models that were trained for the audit.

    It rests on the headline of each variant; an effect that was not shown is never called absent.

    Args:
        rows: settled rows, the headlines first.
        alpha: significance level of each family.
    """
    heads = [row for row in rows if row["role"] == "test" and row["family"] == HEADLINE]
    if not heads:
        return _untested(rows)
    return _of_one(heads[0], rows) if len(heads) == 1 else _of_variants(heads, rows, alpha)


def _untested(rows: Sequence[Row]) -> Verdict:
    if not any(_params(row).get("group") == "canary - control" for row in rows):
        return Verdict(INCONCLUSIVE, "Nothing was compared.", "No control shares its seed with one of the canary's models.")
    return Verdict(
        INCONCLUSIVE, "Models from a single seed cannot tell memory from chance.",
        "Whether a model memorizes varies with its seed, so a single seed gives no test; raise nets.seeds.",
    )  # fmt: skip


def _of_one(head: Row, rows: Sequence[Row]) -> Verdict:
    text = " ".join(filter(None, [_effect(head), _single(rows, head), _others(rows)]))
    if head["verdict"] == SHOWN:
        return Verdict(SHOWN, "The models remember the feature.", text)
    if head["verdict"] == BOUNDED:
        limit = (
            f"The one-sided 95 % upper bound of the mean difference, {_digits(head['upper_bound'])}, lies below this limit, "
            "also if few trainings remember much."
        )
        return Verdict(
            BOUNDED,
            "If such trainings remember the feature, this raises their score by less than "
            f"{_digits(head['bound'])} on average.",
            f"{limit} {_share_beyond(rows, head)}{text}",
        )
    sentence = "No memory of the feature was shown."
    if cannot_reject(head):
        sentence = "This run was too small to show memory of the feature."
    elif head["ci_high"] is not None and head["ci_high"] < 0:
        sentence = "The effect points the wrong way: models that saw the feature score lower than their controls."
    return Verdict(INCONCLUSIVE, sentence, f"{text} {missed(head)}")


def _of_variants(heads: Sequence[Row], rows: Sequence[Row], alpha: float) -> Verdict:
    shown = [row for row in heads if row["verdict"] == SHOWN]
    names = ", ".join(_variant(row) for row in shown)
    family = f"Holm's correction over {len(heads)} variants at level {alpha:g}"
    if shown:
        first = f"{_variant(shown[0])}: {_effect(shown[0])}"
        sentence = f"In {len(shown)} of {len(heads)} variants the models remember the feature."
        return Verdict(SHOWN, sentence, f"Shown after {family}: {names}. {first}")
    if all(row["verdict"] == BOUNDED for row in heads):
        sentence = (
            "If trainings of any variant remember the feature, this raises their score by less than "
            f"{_digits(heads[0]['bound'])} on average."
        )
        bounds = (f"{_variant(row)}: {_share_beyond(rows, row)}{_effect(row)} {missed(row)}" for row in heads[:4])
        return Verdict(BOUNDED, sentence, " ".join(bounds))
    each = " ".join(f"{_variant(row)}: {_effect(row)} {missed(row)}" for row in heads[:4])
    return Verdict(
        INCONCLUSIVE, f"Memory of the feature was shown in none of {len(heads)} variants.", f"The tests use {family}. {each}"
    )  # fmt: skip


def _effect(row: Row) -> str:
    """Return the difference in words."""
    params = _params(row)
    interval = ""
    if row["ci_low"] is not None:
        interval = f" (95 % interval over {row['interval']}: {_digits(row['ci_low'])} to {_digits(row['ci_high'])})"
    exchanged = "whole draws of the data" if params["exchanged"] == "data" else "models and controls within pairs"
    return (
        f"{_upper(score_name(params))}: the mean difference between models that saw the feature and their "
        f"{params['pairs']} controls of the same seeds, which did not, is {_digits(row['value'])}{interval}; a test that "
        f"exchanges {exchanged} gives p = {row['p_adjusted']:.2g}."
    )


def _single(rows: Sequence[Row], head: Row) -> str:
    """Return how many single nets exceed the controls, in words."""
    row = _beyond(rows, head)
    if row is None:
        return "The controls do not suffice to judge single models."
    expected = "" if row["null_value"] is None else f"; by chance, {100 * row['null_value']:.0f} % would"
    return f"{100 * row['value']:.0f} % of the models exceed the threshold set by the controls{expected}."


def _beyond(rows: Sequence[Row], head: Row) -> Row | None:
    """Return the row of the share of nets beyond the threshold of the controls, on the score of a headline."""
    at = _params(head)
    for row in rows:
        params = _params(row)
        matches = all(params.get(name) == at.get(name) for name in ("variant", "metric", "output"))
        if matches and row["metric"] == "proportion_memorized" and params["criterion"] == "calibrated":
            return row
    return None


def _share_beyond(rows: Sequence[Row], head: Row) -> str:
    """Bound the share of trainings whose score lies beyond what few controls reach; this is not the share that remembers."""
    row = _beyond(rows, head)
    if row is None or not row["null_value"]:
        return ""
    high = _largest_share(row["value"] * row["n"], row["n"])
    return (
        f"With 95 % confidence, at most {100 * high:.0f} % of such trainings score beyond what 1 in "
        f"{round(1 / row['null_value'])} controls reaches. "
    )


def _largest_share(hits: float, count: int) -> float:
    """Return the one-sided 95 % upper bound of a share, of which `hits` were found in `count` nets (Clopper and Pearson)."""
    return exact_interval(hits, count, level=0.9)[1]


def _others(rows: Sequence[Row]) -> str:
    """Return which of the other scores show memory within their own family, in words."""
    others = [row for row in rows if row["role"] == "test" and str(row["family"]).startswith("scores")]
    shown = [score_name(_params(row)) for row in others if row["verdict"] == SHOWN]
    if not others:
        return ""
    return f"Other scores that show memory (of {len(others)}, adjusted together): {', '.join(shown) or 'none'}."


def missed(row: Row) -> str:
    """State which effect a test that found nothing could have found."""
    if cannot_reject(row) or row["detectable"] is None:
        return (
            f"No effect, however large, could have been shown: the smallest p-value that a run of this size can give is "
            f"{row['smallest_p']:.2g}; raise nets.seeds."
        )
    upper = (
        "" if row["upper_bound"] is None else f" With 95 % confidence the difference is below {_digits(row['upper_bound'])}."
    )
    return f"A difference of {_digits(row['detectable'])} would have been found with a power of 80 %.{upper}"


def verdict_on_own(rows: Sequence[Row]) -> Verdict:
    """Return the verdict on an external model: each score's rank among null features, with Holm's adjustment over scores.

    Args:
        rows: settled rows, the headline first.
    """
    tests = [row for row in rows if row["role"] == "test"]
    at = _params(tests[0])
    others = f"{at['nulls']} {NULLS[str(at['null'])]}"
    shown = [row for row in tests if row["verdict"] == SHOWN]
    text = f"The feature was compared with {others} in the same place. {_reaction(min(tests, key=lambda r: r['p_value']))}"
    if shown:
        named = ", ".join(score_name(_params(row)) for row in shown)
        sentence = f"The feature stands out: the model reacts to it more strongly than to {others}."
        return Verdict(SHOWN, sentence, f"{text} Shown at level {tests[0]['alpha']:g} over all {len(tests)} scores: {named}.")
    if tests[0]["verdict"] == BOUNDED:
        sentence = (
            "If the model remembers the feature, its effect on the score exceeds that of others by less than "
            f"{_digits(tests[0]['bound'])}."
        )
        limit = (
            f"For the {score_name(at)}, the one-sided 95 % upper bound of this excess is {_digits(tests[0]['upper_bound'])}."
        )
        return Verdict(BOUNDED, sentence, f"{limit} {text}")
    if tests[0]["smallest_p"] * len(tests) > tests[0]["alpha"]:
        missed_ = (
            f"With {at['nulls']} features for comparison no effect could have been shown: the smallest p-value, "
            f"{tests[0]['smallest_p']:.2g}, times {len(tests)} scores is above {tests[0]['alpha']:g}; "
            f"{math.ceil(len(tests) / tests[0]['alpha'] - 1e-9) - 1} are needed (score.null_features)."
        )
        return Verdict(INCONCLUSIVE, "This comparison was too small to single the feature out.", f"{text} {missed_}")
    missed_ = f"Weaker memory could have been missed: {_reaches(tests)} with a power of 80 %."
    return Verdict(INCONCLUSIVE, f"The feature was not shown to stand out among {others}.", f"{text} {missed_}")


def _reaction(row: Row) -> str:
    params = _params(row)
    side = "above" if row["value"] >= 0 else "below"
    return (
        f"{_upper(score_name(params))}: the feature's score is {_digits(abs(row['value']))} {side} the mean of the others; "
        f"p = {row['p_value']:.2g}, adjusted p = {row['p_adjusted']:.2g}."
    )


def _reaches(tests: Sequence[Row]) -> str:
    return "the tests find differences of " + ", ".join(
        f"{_digits(row['detectable'])} ({score_name(_params(row))})" for row in tests if row["detectable"] is not None
    )


def _params(row: Row) -> dict[str, Any]:
    params: dict[str, Any] = json.loads(row["params"])
    return params


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def score_name(params: Row) -> str:
    """Return the name and output of a score."""
    return f"{NAMES[params['metric']]} on {params['output'].replace('_', ' ')}"


def _variant(row: Row) -> str:
    return str(_params(row)["variant"])


def _digits(value: float) -> str:
    return f"{value:.3g}"
