"""Verdict of a run, in words, from its settled rows; the pages only display it."""

import math
from collections.abc import Iterator
from typing import Any

from memlib.audits.unique_feature.recipe import FEWEST_CONTROLS, FLIPS, HEADLINE, RANGE, Recipe
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Finding, Findings, Verdict, cannot_reject
from memlib.report.format import ceiled, format_interval, format_p, percent, say_p
from memlib.stats.operating import alarms_limit

NAMES = {
    "m_white": "white box (M)", "m_grey": "grey box (M)", "m_black": "black box (M)", "m_w": "white box (M_w, 2022)",
    "m_kl": "black box (M, 2022)", "self_influence": "self-influence", FLIPS: "flipped decisions",
}  # fmt: skip
QUANTITIES = {"canary": "M", "canary - control": "memory (M less the controls')"}  # quantities that are compared, by group
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
            count = canary.count * nets.seeds
            controls = count if nets.controls is None else nets.controls
            share = (
                f" by {alarms_limit(0, count, controls, recipe.score.level, error=recipe.score.error):.2f} at best"
                if controls >= FEWEST_CONTROLS and canary.count == 1
                else f" only from {FEWEST_CONTROLS} controls on (nets.controls), and of one canary"
            )
            limit = f", but score.bound is {recipe.score.bound:g}" if smallest >= recipe.score.bound else ""
            yield (
                f"{name}{pairs} nets bound the mean difference by {smallest:.2f} at best, as few trainings may remember "
                f"much{limit}; they bound the share of trainings that score beyond what few controls reach{share}; for "
                "smaller bounds, raise nets.seeds"
            )
        if nets.seeds > 1 and 0.5**pairs > needed:
            yield (
                f"{name}{pairs} pairs of a canary's model and its control are too few for a significant result "
                f"(the smallest p-value, 2^-{pairs}, is above {needed:.2g}); raise nets.seeds"
            )


def verdict(findings: Findings, *, alpha: float) -> Verdict:
    """Return the verdict on models that were trained for the audit.

    It rests on the headline of each variant; an effect that was not shown is never called absent.

    Args:
        findings: settled findings, the headlines first.
        alpha: significance level of each family.
    """
    heads = findings.tests(HEADLINE)
    if not heads:
        return _untested(findings)
    return _of_one(heads.head, findings) if len(heads) == 1 else _of_variants(heads, findings, alpha)


def _untested(findings: Findings) -> Verdict:
    if not findings.all(group="canary - control"):
        return Verdict(INCONCLUSIVE, "Nothing was compared.", "No control shares its seed with one of the canary's models.")
    return Verdict(
        INCONCLUSIVE, "Models from a single seed cannot tell memory from chance.",
        "Whether a model memorizes varies with its seed, so a single seed gives no test; raise nets.seeds.",
    )  # fmt: skip


def _of_one(head: Finding, findings: Findings) -> Verdict:
    text = " ".join(filter(None, [_effect(head), _single(findings, head), _others(findings)]))
    if head.verdict == SHOWN:
        return Verdict(SHOWN, "The models remember the feature.", text)
    if head.verdict == BOUNDED:
        limit = (
            f"The one-sided 95 % upper bound of the mean difference, {_digits(head.upper_bound)}, lies below this limit, "
            "also if few trainings remember much."
        )
        return Verdict(
            BOUNDED,
            f"If such trainings remember the feature, this raises their score by less than {_digits(head.bound)} on average.",
            f"{limit} {_share_beyond(findings, head)}{text}",
        )
    sentence = "No memory of the feature was shown."
    if cannot_reject(head):
        sentence = "This run was too small to show memory of the feature."
    elif head.high is not None and head.high < 0:
        sentence = "The effect points the wrong way: models that saw the feature score lower than their controls."
    return Verdict(INCONCLUSIVE, sentence, f"{text} {_missed(head)}")


def _of_variants(heads: Findings, findings: Findings, alpha: float) -> Verdict:
    shown = heads.shown()
    names = ", ".join(row.params["variant"] for row in shown)
    family = f"Holm's correction over {len(heads)} variants at level {alpha:g}"
    if shown:
        first = f"{shown.head.params['variant']}: {_effect(shown.head)}"
        sentence = f"In {len(shown)} of {len(heads)} variants the models remember the feature."
        return Verdict(SHOWN, sentence, " ".join([f"Shown after {family}: {names}. {first}", *_changes(findings)]))
    bounded = all(row.verdict == BOUNDED for row in heads)
    each = " ".join(
        f"{row.params['variant']}: {_share_beyond(findings, row) if bounded else ''}{_effect(row)} {_missed(row)}"
        for row in heads[:4]
    )
    if bounded:
        sentence = (
            "If trainings of any variant remember the feature, this raises their score by less than "
            f"{_digits(heads.head.bound)} on average."
        )
        return Verdict(BOUNDED, sentence, each)
    return Verdict(
        INCONCLUSIVE, f"Memory of the feature was shown in none of {len(heads)} variants.", f"The tests use {family}. {each}"
    )  # fmt: skip


def _changes(findings: Findings) -> Iterator[str]:
    """Yield a sentence for each quantity on the variants that differ from their baselines on the headline's score."""
    head = findings.head.params
    for group, quantity in QUANTITIES.items():
        rows = findings.all(statistic="change", group=group, metric=head["metric"], output=head["output"]).tests()
        if not rows:
            continue
        found = [f"{change_in_words(row)} in {row.params['variant']} than in {row.params['from']}" for row in rows.shown()]
        said = f"{', '.join(found)} (adjusted p at most {_largest_p(rows.shown())})" if found else "no difference was shown"
        yield f"Mean {quantity} of {len(rows)} variants compared with their baselines: {said}."


def _largest_p(rows: Findings) -> str:
    return format_p(max(row.p_adjusted or 0.0 for row in rows))


def change_in_words(row: Finding) -> str:
    """Return the result of a comparison of variants in words; "" in a run that shows no memory."""
    if not row.is_test:
        return f"not tested: {row.params['not_tested']}" if "not_tested" in row.params else "not tested"
    if row.verdict == SHOWN:
        return "higher" if row.value > 0 else "lower"
    return "" if row.verdict is None else "no difference shown"


def _effect(row: Finding) -> str:
    """Return the difference in words."""
    interval = ""
    if row.interval is not None:
        interval = f" (95 % interval over {row.interval.over}: {format_interval(row, _digits)})"
    exchanged = "whole draws of the data" if row.params["exchanged"] == "data" else "models and controls within pairs"
    return (
        f"{_upper(score_name(row))}: the mean difference between models that saw the feature and their "
        f"{row.params['pairs']} controls of the same seeds, which did not, is {_digits(row.value)}{interval}; a "
        f"one-sided test, for which only a higher score is memory, exchanges {exchanged} and gives {say_p(row.p_adjusted)}."
    )


def _single(findings: Findings, head: Finding) -> str:
    """Return how many single nets exceed the controls, in words."""
    row = _beyond(findings, head)
    if row is None:
        return "The controls do not suffice to judge single models."
    expected = "" if row.null_value is None else f"; by chance, {percent(row.null_value, 0)} would"
    return f"{percent(row.value, 0)} of the models exceed the threshold set by the controls{expected}."


def _beyond(findings: Findings, head: Finding) -> Finding | None:
    """Return the share of nets beyond the threshold of the controls, on the score of a headline."""
    return of_score(findings, head, "proportion_memorized", criterion="calibrated")


def _share_beyond(findings: Findings, head: Finding) -> str:
    """Bound the share of trainings whose score lies beyond what few controls reach; this is not the share that remembers."""
    row = _beyond(findings, head)
    if row is None or not row.null_value:
        return ""
    if row.upper_bound is None:
        return (
            "What share of such trainings scores beyond what few controls reach cannot be bounded with so few controls, or "
            "with nets of several canaries. "
        )
    return (
        f"With 95 % confidence, at most {percent(ceiled(row.upper_bound), 0)} of such trainings score beyond what 1 in "
        f"{round(1 / row.null_value)} controls reaches. "
    )


def _others(findings: Findings) -> str:
    """Return a sentence naming the other scores whose tests, adjusted within their own family, show memorization; "" if there
    are no other scores.
    """
    others = [row for row in findings.tests() if str(row.family).startswith("scores")]
    shown = [score_name(row) for row in others if row.verdict == SHOWN]
    if not others:
        return ""
    return f"Other scores that show memory (of {len(others)}, adjusted together): {', '.join(shown) or 'none'}."


def _missed(row: Finding) -> str:
    """State which effect a test that found nothing could have found."""
    if cannot_reject(row) or row.detectable is None:
        return (
            "No effect, however large, could have been shown: the smallest p-value that a run of this size can give is "
            f"{format_p(row.smallest_p)}; raise nets.seeds."
        )
    upper = "" if row.upper_bound is None else f" With 95 % confidence the difference is below {_digits(row.upper_bound)}."
    return f"A difference of {_digits(row.detectable)} would have been found with a power of 80 %.{upper}"


def verdict_on_external(findings: Findings) -> Verdict:
    """Return the verdict on an external model: each score's rank among null features, with Holm's adjustment over scores.

    Args:
        findings: settled findings, the headline first.
    """
    tests, head = findings.tests(), findings.head
    count, alpha = head.params["nulls"], head.alpha or 0.0
    others = f"{count} {NULLS[head.params['null']]}"
    strongest = min(tests, key=lambda row: row.p_value or 0.0)
    text = f"The feature was compared with {others} in the same place. {_reaction(strongest)}"
    if shown := tests.shown():
        named = ", ".join(map(score_name, shown))
        as_strong = round((strongest.p_value or 0.0) * (count + 1)) - 1
        of = f"{count - as_strong:,} of {others}" if as_strong > 0 else others
        sentence = f"The feature stands out: the model reacts to it more strongly than to {of}."
        return Verdict(SHOWN, sentence, f"{text} Shown at level {alpha:g} over all {len(tests)} scores: {named}.")
    if head.verdict == BOUNDED:
        sentence = (
            "If the model remembers the feature, its effect on the score exceeds that of others by less than "
            f"{_digits(head.bound)}."
        )
        limit = f"For the {score_name(head)}, the one-sided 95 % upper bound of this excess is {_digits(head.upper_bound)}."
        return Verdict(BOUNDED, sentence, f"{limit} {text}")
    if cannot_reject(head, len(tests)):
        missed = (
            f"With {count} features for comparison no effect could have been shown: the smallest p-value, "
            f"{format_p(head.smallest_p)}, times {len(tests)} scores is above {alpha:g}; "
            f"{math.ceil(len(tests) / alpha - 1e-9) - 1} are needed (score.null_features)."
        )
        return Verdict(INCONCLUSIVE, "This comparison was too small to single the feature out.", f"{text} {missed}")
    missed = f"Weaker memory could have been missed: {_reaches(tests)} with a power of 80 %."
    return Verdict(INCONCLUSIVE, f"The feature was not shown to stand out among {others}.", f"{text} {missed}")


def _reaction(row: Finding) -> str:
    side = "above" if row.value >= 0 else "below"
    return (
        f"{_upper(score_name(row))}: the feature's score is {_digits(abs(row.value))} {side} the mean of the others; "
        f"{say_p(row.p_value)}, adjusted {say_p(row.p_adjusted)}."
    )


def _reaches(tests: Findings) -> str:
    return "the tests find differences of " + ", ".join(
        f"{_digits(row.detectable)} ({score_name(row)})" for row in tests if row.detectable is not None
    )


def of_score(findings: Findings, like: Finding, metric: str, **params: Any) -> Finding | None:
    """Return the first finding of a metric on the same score as another: of the same variant, metric and output."""
    score = {name: like.params.get(name) for name in ("variant", "metric", "output")}
    return findings.get(metric, **score, **params)


def score_name(row: Finding) -> str:
    """Return the name and output of the score that a finding is about."""
    return f"{NAMES[row.params['metric']]} on {row.params['output'].replace('_', ' ')}"


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _digits(value: float | None) -> str:
    assert value is not None
    return f"{value:.3g}"
