"""The verdict on each target, and on the whole run, in plain words."""

from collections.abc import Iterator, Mapping, Sequence

from memlib.audits.forgetting.recipe import (
    FORGOTTEN,
    HEADLINES,
    NO_TRACE,
    RETAINED,
    REVERSED,
    TARGET,
    UNDECIDED,
    Recipe,
)
from memlib.audits.forgetting.trace import FEWEST_RETAINED, FOUND
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Finding, Findings, Verdict, cannot_reject, word_of
from memlib.report.format import percent, say_p
from memlib.specs.data import KNOWN, QUERY, WITHHELD
from memlib.stats.randomization import smallest_two_class_p

SENTENCES = {
    RETAINED: "The model has used this data set, at least in part.",
    REVERSED: "The model does worse on this data set than on data it never saw: a trace of having used it.",
    FORGOTTEN: "No trace of this data set was found in the model: at most {left} of the trace that known training data "
    "leave.",
    NO_TRACE: "No trace of this data set was found; this does not show that it was not used.",
    UNDECIDED: "This audit cannot tell whether the model has used this data set.",
}

UNLIKE = "models that saw neither know them unlike each other, by their labels, origin or quality"
_GIVEN = " All this is given that these examples were drawn from the training data after the training, as declared."


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield sentences on what the recipe cannot show, whatever the data."""
    if WITHHELD not in recipe.sets:
        yield "without sets.withheld (examples drawn at random with D_Q and withheld) there is no verdict, only rho"
        return
    if KNOWN not in recipe.sets:
        yield "without sets.known (examples known to be in every target) nothing can be called forgotten"
    elif recipe.verdict.models < FEWEST_RETAINED:
        yield (
            f"with {recipe.verdict.models} retained models nothing can be called forgotten: {FEWEST_RETAINED} show "
            "how strong the trace of training data can be (verdict.models)"
        )
    elif not all(recipe.is_controlled(name) for name in recipe.targets):
        yield (
            "nothing can be called forgotten in targets that were trained elsewhere: their owner may have trained harder on "
            "the known examples; draw these from the training data afterwards (verdict.known_drawn_afterwards)"
        )
    smallest, level = 2 / (1 + recipe.score.permutations), recipe.verdict.level / len(recipe.targets)
    if smallest > level:
        yield (
            f"with {recipe.score.permutations} redraws no p-value lies below {smallest:.2g}, but each of "
            f"{len(recipe.targets)} targets needs {level:.2g}: raise score.permutations"
        )
    query, withheld = (recipe.sets[name].per_class for name in (QUERY, WITHHELD))
    if query is not None and withheld is not None and 2 * smallest_two_class_p(query, withheld) > level:
        yield (
            f"with {query} examples per class in D_Q and {withheld} withheld, no test of two classes can be significant: "
            "raise sets.withheld.per_class"
        )


def outcome(row: Finding) -> str:
    """Return the outcome of a target from its settled headline: its trace, or its rho if nothing could be tested."""
    if not row.is_test:
        return UNDECIDED
    if row.verdict == SHOWN:
        return RETAINED if row.value > 0 else REVERSED
    return FORGOTTEN if row.verdict == BOUNDED else NO_TRACE


def outcomes_of(findings: Findings) -> dict[str, str]:
    """Return the outcome of each target from settled findings."""
    return {row.params["target"]: outcome(row) for row in findings.all(kind=TARGET)}


def found_of(row: Finding) -> str:
    """Return the number of the auditor's models of a kind that the test detects, in words: "3 of 10"."""
    return f"{round(row.value * row.n)} of {row.n}"


def trained_on(recipe: Recipe, name: str) -> str:
    """Return the share of D_Q that a target was trained on, in words; "unknown" for external targets."""
    mix = recipe.targets[name].mix
    if mix is None:
        return "unknown"
    return f"{percent(mix[QUERY], 0)} of D_Q" if QUERY in mix else "none of D_Q"


def trains_all(recipe: Recipe) -> bool:
    """Return whether the auditor trains every target, each from several seeds."""
    return all(target.mix is not None for target in recipe.targets.values())


def verdict(findings: Findings, recipe: Recipe) -> Verdict:
    """State the run's verdict in plain words."""
    heads, outcomes = findings.all(kind=TARGET), outcomes_of(findings)
    word = word_of(heads, HEADLINES) if heads.tests() else INCONCLUSIVE
    chosen = heads.shown().strongest() if heads.shown() else heads.head
    name = chosen.params["target"]
    parts = (_explained(chosen, findings, recipe), _contradicted(outcomes, recipe), _caution(recipe))
    explained = " ".join(filter(None, parts))
    if len(heads) == 1:
        return Verdict(word, SENTENCES[outcomes[name]].format(left=_left(name, findings)), explained)
    listed = "; ".join(_outcome_in_words(row, findings, recipe) for row in heads)
    return Verdict(word, _together(list(outcomes.values()), recipe), f"{listed}. {name}: {explained}")


def _together(outcomes: Sequence[str], recipe: Recipe) -> str:
    """State the outcomes of several targets in one sentence."""
    noun = f"targets (of {recipe.seeds} models each)" if trains_all(recipe) else "models"
    if set(outcomes) == {UNDECIDED}:
        return f"This audit cannot tell whether any of the {len(outcomes)} {noun} has used this data set."
    num_used = sum(which in (RETAINED, REVERSED) for which in outcomes)
    clauses = [f"{num_used} of {len(outcomes)} {noun} were shown to have used this data set"]
    if FORGOTTEN in outcomes:
        clauses.append(f"{outcomes.count(FORGOTTEN)} to contain little or no trace of it")
    if NO_TRACE in outcomes:
        clauses.append(f"for {outcomes.count(NO_TRACE)} nothing can be concluded")
    return f"{', '.join(clauses)}."


def _outcome_in_words(row: Finding, findings: Findings, recipe: Recipe) -> str:
    """Return a target's outcome with its p-value and, if no use was shown, the share of the known trace that may be left."""
    name, which = row.params["target"], outcome(row)
    numbers = [say_p(row.p_adjusted)] if row.is_test else []
    if which in (FORGOTTEN, NO_TRACE) and (left := _left(name, findings)):
        needed = percent(recipe.verdict.share_bound)
        numbers.append(f"may keep up to {left} of the trace that known examples leave; forgotten means less than {needed}")
    return f"{name}: {which}" + (f" ({'; '.join(numbers)})" if numbers else "")


def _left(name: str, findings: Findings) -> str:
    """Return the largest share of the known examples' trace that D_Q may leave in a target; "" if it is unknown."""
    limit = findings.get("share_limit", target=name)
    return "" if limit is None else percent(limit.value, 0)


def _explained(row: Finding, findings: Findings, recipe: Recipe) -> str:
    """Explain the outcome of a target from its headline."""
    name, which = row.params["target"], outcome(row)
    declared = findings.get("declared_draw")
    if which == UNDECIDED and declared is not None and declared.params["contradicted"]:
        return (
            "D_Q and the withheld examples were declared to be drawn at random from one pool (verdict.drawn_elsewhere), but "
            f"{declared.params.get('told', UNLIKE)} ({say_p(declared.value)}). So nothing was tested. rho = {row.value:.2f}, "
            "the measure of the paper, is only an estimate."
        )
    if which == UNDECIDED:
        return (
            "No examples were drawn at random with D_Q and withheld (sets.withheld), so nothing shows how the model treats "
            f"examples like D_Q that it never saw. rho = {row.value:.2f}, the measure of the paper, is only an estimate."
        )
    tested = (
        f"The {row.params['examples']} examples of D_Q were compared with {row.params['withheld']} examples that were drawn "
        f"at random with them and withheld ({say_p(row.p_adjusted)}, level {recipe.verdict.level:g} over all targets)."
    )
    if declared is not None:
        tested += (
            " That draw is as declared (verdict.drawn_elsewhere); neither what is known of the examples without a model nor "
            f"models that saw none of them contradict it ({say_p(declared.value)})."
        )
    if which in (RETAINED, REVERSED):
        return (
            f"{tested} The p-value says how rarely a model that used none of D_Q would show such a difference by chance, "
            "however it was trained."
        )
    if which == FORGOTTEN:
        return (
            f"{tested} Examples that are known to be in the model are found in "
            f"{percent(findings.first('control_power', target=name).value, 0)} of redraws. The trace of D_Q is at most "
            f"{_left(name, findings)} of their trace (95 % limit over all targets): up to that share of D_Q could remain if "
            "D_Q was used like these examples, or all of D_Q if it was used far less."
            + ("" if recipe.targets[name].mix is not None else _GIVEN)
        )
    if cannot_reject(row):
        return f"{tested} With so few examples, no result could have been significant."
    return f"{tested} {_missed(name, findings, recipe)}"


def _missed(name: str, findings: Findings, recipe: Recipe) -> str:
    """State why the absence of a trace is not shown for a target."""
    power = findings.get("control_power", target=name)
    if power is None:
        share, found = (
            percent(recipe.verdict.retained_mix[QUERY], 0),
            findings.get("found_share", target=f"{RETAINED} models"),
        )
        seen = (
            f"Of the auditor's own models that saw {share} of D_Q, the same test finds {found_of(found)}. " if found else ""
        )
        return f"{seen}Without examples that are known to be in the model (sets.known), absence cannot be shown."
    if power.value < FOUND:
        return (
            f"Examples that are known to be in the model are found in only {percent(power.value, 0)} of redraws, so absence "
            "is not shown."
        )
    if not recipe.is_controlled(name):
        return (
            "Examples that are known to be in the model are found, but its owner may have trained harder on them than on "
            "D_Q, so absence is not shown. Draw them from the training data after the training "
            "(verdict.known_drawn_afterwards)."
        )
    strength = findings.first("control_strength", target=name)
    strongest = strength.params.get("strongest")
    if strongest is None:
        return (
            f"Fewer than {FEWEST_RETAINED} of the auditor's own models were trained on examples of D_Q (verdict.models): too "
            "few to know how strong the trace of training data can be at most. So absence is not shown."
        )
    if strength.value > strongest:
        return (
            f"Examples that are known to be in the model stand out by {strength.value:.1f} standard deviations of withheld "
            f"ones, more than training data in the auditor's own models ({strongest:.1f}): the model was trained harder on "
            "them. Absence is not shown."
        )
    limit = _left(name, findings)
    bound = percent(recipe.verdict.share_bound)
    left = f"D_Q may keep up to {limit} of their trace (bound: {bound})" if limit else "no share of their trace fits D_Q"
    return f"Examples that are known to be in the model are found, but {left}, so absence is not shown."


def _contradicted(outcomes: Mapping[str, str], recipe: Recipe) -> str:
    """State the outcomes that contradict the known training data of targets that the auditor trained."""
    said = []
    for name, which in outcomes.items():
        mix = recipe.targets[name].mix
        used, found = mix is not None and QUERY in mix, which in (RETAINED, REVERSED)
        if used and not found:
            said.append(f"{name} is known to have been trained on {trained_on(recipe, name)}, and the test did not find it.")
        if mix is not None and not used and found:
            said.append(f"{name} is known to have been trained on {trained_on(recipe, name)}: a false alarm.")
    return " ".join(said)


def _caution(recipe: Recipe) -> str:
    """State that outputs which the owner supplied can be forged."""
    supplied = [name for name, target in recipe.targets.items() if target.outputs is not None]
    if not supplied:
        return ""
    which = f" of {' and '.join(supplied)}" if len(recipe.targets) > 1 else ""
    return (
        f"The outputs{which} were supplied by the owner of the model. An owner who knows which examples were withheld can "
        "forge them, so all examples should be requested at once, in mixed order."
    )
