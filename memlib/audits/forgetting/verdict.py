"""The verdict on each target, and on the whole run, in plain words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits.forgetting.recipe import (
    FORGOTTEN,
    NO_TRACE,
    RETAINED,
    REVERSED,
    TARGET,
    UNDECIDED,
    Recipe,
)
from memlib.audits.forgetting.trace import FEWEST_RETAINED, FOUND
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Verdict, cannot_reject
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


_GIVEN = " All this is given that these examples were drawn from the training data after the training, as declared."


@dataclass(frozen=True)
class Control:
    """The positive control of a target.

    Attributes:
        effect: trace of the known examples.
        power: share of redraws in which the known examples are found.
        share: estimated trace of D_Q as a share of that of the known examples.
        limit: 95 % upper limit of the share.
        strength: how far the known examples stand out, in standard deviations of withheld ones.
        strongest: how far training data are taken to stand out at most, see `strongest_trace`.
        retained_found: share of the auditor's retained models in which the test detects D_Q.
    """

    effect: float
    power: float
    share: float
    limit: float
    strength: float
    strongest: float | None
    retained_found: float

    @property
    def holds(self) -> bool:
        """True if the control is found often enough for the absence of a trace of D_Q to mean something."""
        return self.effect > 0 and self.power >= FOUND

    @property
    def comparable(self) -> bool:
        """True if the known examples stand out no more than training data can."""
        return self.strongest is not None and self.strength <= self.strongest


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


def outcome(row: Mapping[str, Any]) -> str:
    """Return the outcome of a target from its settled headline row: its trace, or its rho if nothing could be tested."""
    if row["role"] != "test":
        return UNDECIDED
    if row["verdict"] == SHOWN:
        return RETAINED if row["value"] > 0 else REVERSED
    return FORGOTTEN if row["verdict"] == BOUNDED else NO_TRACE


def outcomes_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the outcome of each target from settled rows with params as mappings."""
    return {row["params"]["target"]: outcome(row) for row in rows if row["params"].get("kind") == TARGET}


def trained_on(recipe: Recipe, name: str) -> str:
    """Return how much of D_Q a target was trained on, as far as that is known."""
    mix = recipe.targets[name].mix
    if mix is None:
        return "unknown"
    return f"{_percent(mix[QUERY])} of D_Q" if QUERY in mix else "none of D_Q"


class _Findings:
    """The rows of a summary, by target."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.heads = {row["params"]["target"]: row for row in rows if row["params"].get("kind") == TARGET}
        self.outcomes = outcomes_of(rows)

    def number(self, metric: str, target: str) -> float | None:
        """Return the value of a metric for a target; None if there is no such row."""
        row = self.row(metric, target)
        return None if row is None else float(row["value"])

    def row(self, metric: str, target: str) -> Mapping[str, Any] | None:
        """Return the row of a metric for a target; None if there is none."""
        matches = (row for row in self._rows if row["metric"] == metric and row["params"].get("target") == target)
        return next(matches, None)

    def found_of(self, group: str) -> str:
        """State how many of the auditor's models of a kind the test detects; empty if that was not tested."""
        matches = (
            row for row in self._rows if row["metric"] == "found_share" and row["params"]["target"] == f"{group} models"
        )
        row = next(matches, None)
        return "" if row is None else f"{round(row['value'] * row['n'])} of {row['n']}"


def verdict(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> Verdict:
    """State the run's verdict in plain words.

    Args:
        rows: settled rows of the summary, with params as mappings.
        recipe: targets and sets.
    """
    findings = _Findings(rows)
    heads, outcomes = findings.heads, findings.outcomes
    word = SHOWN if any(row["verdict"] == SHOWN for row in heads.values()) else INCONCLUSIVE
    if all(row["verdict"] == BOUNDED for row in heads.values()):
        word = BOUNDED
    chosen = next((name for name, row in heads.items() if row["verdict"] == SHOWN), next(iter(heads)))
    explained = " ".join(
        filter(None, [_explained(chosen, findings, recipe), _contradicted(outcomes, recipe), _caution(recipe)])
    )
    if len(heads) == 1:
        return Verdict(
            word, SENTENCES[outcomes[chosen]].format(left=_percent(findings.number("share_limit", chosen))), explained
        )
    listed = "; ".join(f"{name}: {which}{_limit(name, findings)}" for name, which in outcomes.items())
    return Verdict(word, _together(list(outcomes.values())), f"{listed}. {chosen}: {explained}")


def _together(outcomes: Sequence[str]) -> str:
    """State the outcomes of several targets in one sentence."""
    if set(outcomes) == {UNDECIDED}:
        return f"This audit cannot tell whether any of the {len(outcomes)} models has used this data set."
    num_used = sum(which in (RETAINED, REVERSED) for which in outcomes)
    clauses = [f"{num_used} of {len(outcomes)} models were shown to have used this data set"]
    if FORGOTTEN in outcomes:
        clauses.append(f"{outcomes.count(FORGOTTEN)} to contain little or no trace of it")
    if NO_TRACE in outcomes:
        clauses.append(f"for {outcomes.count(NO_TRACE)} nothing can be concluded")
    return f"{', '.join(clauses)}."


def _limit(name: str, found: _Findings) -> str:
    limit = found.number("share_limit", name)
    return f" (at most {_percent(limit)} of the trace that known examples leave)" if found.outcomes[name] == FORGOTTEN else ""


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.0f} %"


def _explained(name: str, found: _Findings, recipe: Recipe) -> str:
    row, which = found.heads[name], found.outcomes[name]
    at = row["params"]
    if which == UNDECIDED:
        return (
            "No examples were drawn at random with D_Q and withheld (sets.withheld), so nothing shows how the model treats "
            f"examples like D_Q that it never saw. rho = {row['value']:.2f}, the measure of the paper, is only an estimate."
        )
    tested = (
        f"The {at['examples']} examples of D_Q were compared with {at['withheld']} examples that were drawn at random with "
        f"them and withheld (p = {row['p_adjusted']:.2g}, level {recipe.verdict.level:g} over all targets)."
    )
    if which in (RETAINED, REVERSED):
        return (
            f"{tested} The p-value says how rarely a model that used none of D_Q would show such a difference by chance, "
            "however it was trained."
        )
    if which == FORGOTTEN:
        return (
            f"{tested} Examples that are known to be in the model are found in "
            f"{_percent(found.number('control_power', name))} of redraws. The trace of D_Q is at most "
            f"{_percent(found.number('share_limit', name))} of their trace (95 % limit over all targets): up to that share "
            "of D_Q could remain if D_Q was used like these examples, or all of D_Q if it was used far less."
            + ("" if recipe.targets[name].mix is not None else _GIVEN)
        )
    if cannot_reject(row):
        return f"{tested} With so few examples, no result could have been significant."
    return f"{tested} {_missed(name, found, recipe)}"


def _missed(name: str, found: _Findings, recipe: Recipe) -> str:
    power, limit = found.number("control_power", name), found.number("share_limit", name)
    if power is None:
        share, hits = _percent(recipe.verdict.retained_mix[QUERY]), found.found_of(RETAINED)
        seen = f"Of the auditor's own models that saw {share} of D_Q, the same test finds {hits}. " if hits else ""
        return f"{seen}Without examples that are known to be in the model (sets.known), absence cannot be shown."
    if power < FOUND:
        return (
            f"Examples that are known to be in the model are found in only {_percent(power)} of redraws, so absence is not "
            "shown."
        )
    if not recipe.is_controlled(name):
        return (
            "Examples that are known to be in the model are found, but its owner may have trained harder on them than on "
            "D_Q, so absence is not shown. Draw them from the training data after the training "
            "(verdict.known_drawn_afterwards)."
        )
    row = found.row("control_strength", name)
    strongest = None if row is None else row["params"].get("strongest")
    if strongest is None:
        return (
            f"Fewer than {FEWEST_RETAINED} of the auditor's own models were trained on examples of D_Q (verdict.models): too "
            "few to know how strong the trace of training data can be at most. So absence is not shown."
        )
    if row is not None and row["value"] > strongest:
        return (
            f"Examples that are known to be in the model stand out by {row['value']:.1f} standard deviations of withheld "
            f"ones, more than training data in the auditor's own models ({strongest:.1f}): the model was trained harder on "
            "them. Absence is not shown."
        )
    left = "no share of their trace fits D_Q" if limit is None else f"D_Q may keep up to {_percent(limit)} of their trace"
    return f"Examples that are known to be in the model are found, but {left}, so absence is not shown."


def _contradicted(outcomes: Mapping[str, str], recipe: Recipe) -> str:
    """State where the outcome contradicts what is known of a target that the auditor trained."""
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
    supplied = [name for name, target in recipe.targets.items() if target.outputs is not None]
    if not supplied:
        return ""
    which = f" of {' and '.join(supplied)}" if len(recipe.targets) > 1 else ""
    return (
        f"The outputs{which} were supplied by the owner of the model. An owner who knows which examples were withheld can "
        "forge them, so all examples should be requested at once, in mixed order."
    )
