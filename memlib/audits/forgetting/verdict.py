"""Put the findings on each target, and on the whole run, into plain words."""

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
from memlib.audits.forgetting.trace import FOUND
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Verdict, cannot_reject
from memlib.specs.data import KNOWN, QUERY, WITHHELD
from memlib.stats.randomization import smallest_two_class_p

SENTENCES = {
    RETAINED: "The model has used this data set.",
    REVERSED: "The model treats this data set worse than data it never saw: a trace of having used it.",
    FORGOTTEN: "No trace of this data set was found in the model: at most {left} of what data that are in it leave.",
    NO_TRACE: "No trace of this data set was found; that does not show that it was not used.",
    UNDECIDED: "It cannot be said whether the model has used this data set.",
}


@dataclass(frozen=True)
class Control:
    """The positive control of a target.

    Attributes:
        effect: of the known examples.
        power: share of its redraws in which it is found.
        share: of D_Q that is estimated to be left as the known examples are.
        limit: its 95 % upper limit.
    """

    effect: float
    power: float
    share: float
    limit: float

    @property
    def holds(self) -> bool:
        """Whether it is found often enough for its absence in D_Q to mean something."""
        return self.effect > 0 and self.power >= FOUND


def limits(recipe: Recipe) -> Iterator[str]:
    """Name what the recipe cannot show, whatever the data."""
    if WITHHELD not in recipe.sets:
        yield "without sets.withheld, examples drawn at random with D_Q and given to nobody, there is no verdict, only rho"
        return
    if KNOWN not in recipe.sets:
        yield "without sets.known, examples that are known to be in every target, nothing can be called forgotten"
    smallest, level = 2 / (1 + recipe.score.permutations), recipe.verdict.alpha / len(recipe.targets)
    if smallest > level:
        yield (
            f"with {recipe.score.permutations} redraws no p-value lies below {smallest:.2g}, and one of "
            f"{len(recipe.targets)} targets needs {level:.2g}: raise score.permutations"
        )
    query, withheld = (recipe.sets[name].per_class for name in (QUERY, WITHHELD))
    if query is not None and withheld is not None and 2 * smallest_two_class_p(query, withheld) > level:
        yield (
            f"with {query} examples of a class in D_Q and {withheld} withheld no test of two classes can be significant: "
            "raise sets.withheld.per_class"
        )


def outcome(row: Mapping[str, Any]) -> str:
    """The outcome of a target by its settled headline row: its trace, or its rho where nothing could be tested."""
    if row["role"] != "test":
        return UNDECIDED
    if row["verdict"] == SHOWN:
        return RETAINED if row["value"] > 0 else REVERSED
    return FORGOTTEN if row["verdict"] == BOUNDED else NO_TRACE


class _Findings:
    """The rows of a summary, by target."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = rows
        self.heads = {row["params"]["target"]: row for row in rows if row["params"].get("kind") == TARGET}
        self.outcomes = {name: outcome(row) for name, row in self.heads.items()}

    def number(self, metric: str, target: str) -> float | None:
        """The value of a target's row of a metric; None without one."""
        found = (row for row in self._rows if row["metric"] == metric and row["params"].get("target") == target)
        row = next(found, None)
        return None if row is None else float(row["value"])

    def found_of(self, group: str) -> str:
        """Say how many of the auditor's models of a kind the test detects; empty where that was not tried."""
        rows = (row for row in self._rows if row["metric"] == "found_share" and row["params"]["target"] == f"{group} models")
        row = next(rows, None)
        return "" if row is None else f"{round(row['value'] * row['n'])} of {row['n']}"


def verdict(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> Verdict:
    """The run's verdict in plain words.

    Args:
        rows: of the summary, settled, with params as mappings.
        recipe: targets and sets.
    """
    found = _Findings(rows)
    heads, outcomes = found.heads, found.outcomes
    word = SHOWN if any(row["verdict"] == SHOWN for row in heads.values()) else INCONCLUSIVE
    if all(row["verdict"] == BOUNDED for row in heads.values()):
        word = BOUNDED
    chosen = next((name for name, row in heads.items() if row["verdict"] == SHOWN), next(iter(heads)))
    explained = f"{_explained(chosen, found, recipe)} {_caution(recipe)}".strip()
    if len(heads) == 1:
        return Verdict(
            word, SENTENCES[outcomes[chosen]].format(left=_percent(found.number("share_limit", chosen))), explained
        )
    listed = "; ".join(f"{name}: {which}{_limit(name, found)}" for name, which in outcomes.items())
    return Verdict(word, _together(list(outcomes.values())), f"{listed}. {chosen}: {explained}")


def _together(outcomes: Sequence[str]) -> str:
    """One sentence on several targets."""
    if set(outcomes) == {UNDECIDED}:
        return f"It cannot be said whether any of the {len(outcomes)} models has used this data set."
    used = sum(which in (RETAINED, REVERSED) for which in outcomes)
    said = [f"{used} of {len(outcomes)} models were shown to have used this data set"]
    if FORGOTTEN in outcomes:
        said.append(f"{outcomes.count(FORGOTTEN)} to hold little or no trace of it")
    if NO_TRACE in outcomes:
        said.append(f"of {outcomes.count(NO_TRACE)} nothing can be said")
    return f"{', '.join(said)}."


def _limit(name: str, found: _Findings) -> str:
    limit = found.number("share_limit", name)
    return f" (at most {_percent(limit)} of the trace that known data leave)" if found.outcomes[name] == FORGOTTEN else ""


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.0f} %"


def _explained(name: str, found: _Findings, recipe: Recipe) -> str:
    row, which = found.heads[name], found.outcomes[name]
    at = row["params"]
    if which == UNDECIDED:
        return (
            "No examples were withheld at random with D_Q (sets.withheld), so nothing tells what the model would do with "
            f"examples like D_Q that it never saw. rho = {row['value']:.2f}, the paper's number, is an estimate alone."
        )
    tested = (
        f"D_Q's {at['examples']} examples were compared with {at['withheld']} that were drawn at random with them and given "
        f"to nobody (p = {row['p_adjusted']:.2g}, level {recipe.verdict.alpha:g} over all targets)."
    )
    if which in (RETAINED, REVERSED):
        return (
            f"{tested} So rarely would a model that used none of D_Q show such a difference by chance, however it was "
            "trained."
        )
    if which == FORGOTTEN:
        return (
            f"{tested} Examples that are known to be in the model are found in "
            f"{_percent(found.number('control_power', name))} of redraws. The trace of D_Q is at most "
            f"{_percent(found.number('share_limit', name))} of theirs (95 % limit over all targets): so much of D_Q could be "
            "left if it was used as they were, or all of it if it was used far less."
        )
    if cannot_reject(row):
        return f"{tested} With so few examples no outputs, however telling, could have been significant."
    return f"{tested} {_missed(name, found, recipe)}"


def _missed(name: str, found: _Findings, recipe: Recipe) -> str:
    power, limit = found.number("control_power", name), found.number("share_limit", name)
    if power is None:
        share, hits = _percent(recipe.verdict.retained_mix[QUERY]), found.found_of(RETAINED)
        seen = f"Of the auditor's own models that saw {share} of D_Q the same test finds {hits}. " if hits else ""
        return f"{seen}Without examples that are known to be in the model (sets.known) absence cannot be shown."
    if power < FOUND:
        return (
            f"Examples that are known to be in the model are found in {_percent(power)} of redraws only, so absence is not "
            "shown."
        )
    left = "no share of their trace explains it" if limit is None else f"up to {_percent(limit)} of their trace could be left"
    return f"Examples that are known to be in the model are found; of D_Q {left}, so absence is not shown."


def _caution(recipe: Recipe) -> str:
    if any(target.outputs is not None for target in recipe.targets.values()):
        return (
            "The outputs were supplied: an owner who knows which examples were withheld can make them say anything, so they "
            "should be asked for all examples at once, in mixed order."
        )
    return ""
