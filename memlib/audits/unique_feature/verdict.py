"""What a run says first, from its settled rows; the pages only show it."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from memlib.audits.unique_feature.recipe import Recipe
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Row, Verdict, cannot_reject

HEADLINE = "headline"
OWN = "own model"
NAMES = {
    "m_white": "white box (M)", "m_grey": "grey box (M)", "m_black": "black box (M)", "m_w": "white box (M_w, 2022)",
    "m_kl": "black box (M, 2022)",
}  # fmt: skip
NULLS = {
    "names": "other people's names", "letters": "random texts of the same form", "list": "other texts of the given list",
    "pictures": "other pictures of the same kind",
}  # fmt: skip


def limits(recipe: Recipe) -> Iterator[str]:
    """Name what the recipe cannot show, whatever the data."""
    if recipe.trained is not None:
        return
    for cell in recipe.cells if recipe.data_seeds == 1 else ():
        nets, canary, name = cell.recipe.nets, cell.recipe.canary, f"variant {cell.variant}: " if cell.variant else ""
        pairs = canary.count * nets.seeds
        pairs = min(pairs, nets.controls if nets.controls is not None else pairs)
        needed = recipe.score.alpha / max(1, len(recipe.variants))
        if nets.seeds > 1 and 0.5**pairs > needed:
            yield (
                f"{name}{pairs} pairs of a canary's model and its control cannot be significant, whatever they show "
                f"(2^-{pairs} is above {needed:.2g}): raise nets.seeds"
            )


def verdict(rows: Sequence[Row], *, alpha: float) -> Verdict:
    """The verdict on models that were trained for the audit.

    It rests on the headline of each variant; an effect that was not shown is never called absent.

    Args:
        rows: settled, the headlines first.
        alpha: level of each family.
    """
    heads = [row for row in rows if row["role"] == "test" and row["family"] == HEADLINE]
    if not heads:
        return _untested(rows)
    return _of_one(heads[0], rows) if len(heads) == 1 else _of_variants(heads, alpha)


def _untested(rows: Sequence[Row]) -> Verdict:
    if not any(_params(row).get("group") == "canary - control" for row in rows):
        return Verdict(INCONCLUSIVE, "Nothing was compared.", "There are no controls from the seeds of the canary's models.")
    return Verdict(
        INCONCLUSIVE, "One seed says nothing about chance.",
        "Whether a model memorizes varies with its seed, so a single one gives no test; raise nets.seeds.",
    )  # fmt: skip


def _of_one(head: Row, rows: Sequence[Row]) -> Verdict:
    text = " ".join(filter(None, [_effect(head), _single(rows, head), _others(rows)]))
    if head["verdict"] == SHOWN:
        return Verdict(SHOWN, "The models remember the feature.", text)
    if head["verdict"] == BOUNDED:
        limit = f"The one-sided 95 % upper bound of the difference, {_digits(head['upper_bound'])}, lies below it."
        return Verdict(
            BOUNDED, f"If the models remember the feature, it moves them by less than {_digits(head['bound'])}.",
            f"{limit} {text}",
        )  # fmt: skip
    sentence = "No memory of the feature was shown."
    if cannot_reject(head):
        sentence = "This run was too small to show memory of the feature."
    elif head["ci_high"] is not None and head["ci_high"] < 0:
        sentence = "The comparison is upside down: the feature lowers the score where it was seen."
    return Verdict(INCONCLUSIVE, sentence, f"{text} {missed(head)}")


def _of_variants(heads: Sequence[Row], alpha: float) -> Verdict:
    shown = [row for row in heads if row["verdict"] == SHOWN]
    names = ", ".join(_variant(row) for row in shown)
    family = f"Holm's correction over {len(heads)} variants at {alpha:g}"
    if shown:
        first = f"{_variant(shown[0])}: {_effect(shown[0])}"
        sentence = f"{len(shown)} of {len(heads)} variants remember the feature."
        return Verdict(SHOWN, sentence, f"Shown under {family}: {names}. {first}")
    each = " ".join(f"{_variant(row)}: {_effect(row)} {missed(row)}" for row in heads[:4])
    if all(row["verdict"] == BOUNDED for row in heads):
        sentence = f"If any variant remembers the feature, it moves its models by less than {_digits(heads[0]['bound'])}."
        return Verdict(BOUNDED, sentence, each)
    return Verdict(INCONCLUSIVE, f"None of {len(heads)} variants was shown to remember the feature.", f"{family}. {each}")


def _effect(row: Row) -> str:
    """The difference in words."""
    params = _params(row)
    interval = ""
    if row["ci_low"] is not None:
        interval = f" (95 % interval over {row['interval']} {_digits(row['ci_low'])} to {_digits(row['ci_high'])})"
    exchanged = "draws of the data" if params["exchanged"] == "data" else "canary nets and controls within pairs"
    return (
        f"{_upper(score_name(params))}: models that saw the feature score {_digits(row['value'])} higher than "
        f"their {params['pairs']} controls of the same seeds, which did not{interval}; exchanging {exchanged} gives "
        f"p = {row['p_adjusted']:.2g}."
    )


def _single(rows: Sequence[Row], head: Row) -> str:
    """How many single nets exceed the controls."""
    at = _params(head)
    for row in rows:
        params = _params(row)
        mine = all(params.get(name) == at.get(name) for name in ("variant", "metric", "output"))
        if mine and row["metric"] == "proportion_memorized" and params["criterion"] == "calibrated":
            expected = "" if row["null_value"] is None else f", where chance gives {100 * row['null_value']:.0f} %"
            return f"{100 * row['value']:.0f} % of single models exceed the controls' threshold{expected}."
    return "There are too few controls to say of a single model whether it remembers."


def _others(rows: Sequence[Row]) -> str:
    """Which other scores were shown in their own family."""
    others = [row for row in rows if row["role"] == "test" and str(row["family"]).startswith("scores")]
    found = [score_name(_params(row)) for row in others if row["verdict"] == SHOWN]
    if not others:
        return ""
    return f"Of the {len(others)} other scores, adjusted together, shown: {', '.join(found) or 'none'}."


def missed(row: Row) -> str:
    """What a test could have found and did not."""
    if cannot_reject(row) or row["detectable"] is None:
        return (
            f"No effect, however large, could have been shown: the smallest p-value that this size allows is "
            f"{row['smallest_p']:.2g}; raise nets.seeds."
        )
    upper = "" if row["upper_bound"] is None else f" With 95 % confidence it is below {_digits(row['upper_bound'])}."
    return f"A difference of {_digits(row['detectable'])} would have been found with a power of 80 %.{upper}"


def verdict_on_own(rows: Sequence[Row]) -> Verdict:
    """The verdict on a model that was trained elsewhere: each score's rank among null features, Holm over scores.

    Args:
        rows: settled, the headline first.
    """
    tests = [row for row in rows if row["role"] == "test"]
    at = _params(tests[0])
    others = f"{at['nulls']} {NULLS[str(at['null'])]}"
    found = [row for row in tests if row["verdict"] == SHOWN]
    text = f"The feature was compared with {others} in the same place. {_reaction(min(tests, key=lambda r: r['p_value']))}"
    if found:
        named = ", ".join(score_name(_params(row)) for row in found)
        sentence = f"The model reacts to this feature as to none of {others}."
        return Verdict(SHOWN, sentence, f"{text} Shown at {tests[0]['alpha']:g} over all {len(tests)} scores: {named}.")
    if tests[0]["verdict"] == BOUNDED:
        sentence = f"If the model knows the feature, it moves it by less than {_digits(tests[0]['bound'])} more than others."
        limit = f"The one-sided 95 % upper bound on {score_name(at)} is {_digits(tests[0]['upper_bound'])}."
        return Verdict(BOUNDED, sentence, f"{limit} {text}")
    if tests[0]["smallest_p"] * len(tests) > tests[0]["alpha"]:
        missed_ = (
            f"With {at['nulls']} of them no score could have been shown: the smallest p-value, {tests[0]['smallest_p']:.2g}, "
            f"times {len(tests)} scores is above {tests[0]['alpha']:g}."
        )
        return Verdict(INCONCLUSIVE, "This comparison was too small to single the feature out.", f"{text} {missed_}")
    missed_ = f"A weaker memory could have been missed: {_reaches(tests)} with a power of 80 %."
    return Verdict(INCONCLUSIVE, f"The feature was not singled out among {others}.", f"{text} {missed_}")


def _reaction(row: Row) -> str:
    params = _params(row)
    return (
        f"{_upper(score_name(params))}: it moves the model {_digits(row['value'])} more than they do on average; "
        f"p = {row['p_value']:.2g}, adjusted {row['p_adjusted']:.2g}."
    )


def _reaches(tests: Sequence[Row]) -> str:
    return "these would have been found: " + ", ".join(
        f"{_digits(row['detectable'])} ({score_name(_params(row))})" for row in tests if row["detectable"] is not None
    )


def _params(row: Row) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row["params"])
    return found


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def score_name(params: Row) -> str:
    """A score's name and output."""
    return f"{NAMES[params['metric']]} on {params['output'].replace('_', ' ')}"


def _variant(row: Row) -> str:
    return str(_params(row)["variant"])


def _digits(value: float) -> str:
    return f"{value:.3g}"
