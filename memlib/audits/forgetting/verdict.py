"""What is said of a target, and of a run."""

import math
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
from memlib.data.sets import KNOWN, QUERY, WITHHELD
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Verdict, cannot_reject

SENTENCES = {
    RETAINED: "The model has used this data set.",
    REVERSED: "The model treats this data set worse than data it never saw: a trace of having used it.",
    FORGOTTEN: "No trace of this data set was found in the model, and at most {left} of it could be left.",
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
    if query is not None and withheld is not None and 2 / math.comb(query + withheld, query) ** 2 > level:
        yield (
            f"with {query} examples of a class in D_Q and {withheld} withheld no test of two classes can be significant: "
            "raise sets.withheld.per_class"
        )


def outcome(row: Mapping[str, Any]) -> str:
    """The outcome of a settled row of a target's trace."""
    if row["verdict"] == SHOWN:
        return RETAINED if row["value"] > 0 else REVERSED
    return FORGOTTEN if row["verdict"] == BOUNDED else NO_TRACE


def verdict(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> Verdict:
    """The run's verdict in plain words.

    Args:
        rows: of the summary, settled, with params as mappings.
        recipe: targets and sets.
    """
    found = {row["params"]["target"]: row for row in rows if row["params"].get("kind") == TARGET}
    outcomes = {name: row["params"]["outcome"] for name, row in found.items()}
    word = SHOWN if any(row["verdict"] == SHOWN for row in found.values()) else INCONCLUSIVE
    if all(row["verdict"] == BOUNDED for row in found.values()):
        word = BOUNDED
    if len(found) == 1:
        ((_, row),) = found.items()
        return Verdict(word, _sentence(row), f"{_explained(row, rows, recipe)} {_caution(recipe)}".strip())
    used = sum(which in (RETAINED, REVERSED) for which in outcomes.values())
    listed = "; ".join(f"{name}: {which}{_limit(found[name])}" for name, which in outcomes.items())
    first = next((row for row in found.values() if row["verdict"] == SHOWN), next(iter(found.values())))
    text = f"{listed}. {first['params']['target']}: {_explained(first, rows, recipe)} {_caution(recipe)}"
    return Verdict(word, f"{used} of {len(found)} models were shown to have used this data set.", text.strip())


def _sentence(row: Mapping[str, Any]) -> str:
    return SENTENCES[row["params"]["outcome"]].format(left=_percent(row["params"].get("share_limit")))


def _limit(row: Mapping[str, Any]) -> str:
    limit = row["params"].get("share_limit")
    return f" (at most {_percent(limit)} of D_Q could be left)" if row["params"]["outcome"] == FORGOTTEN else ""


def _percent(share: float | None) -> str:
    return "an unknown share" if share is None else f"{100 * share:.0f} %"


def _explained(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> str:
    at = row["params"]
    if row["role"] != "test":
        return (
            "No examples were withheld at random with D_Q (sets.withheld), so nothing tells what the model would do with "
            f"examples like D_Q that it never saw. rho = {row['value']:.2f}, the paper's number, is an estimate alone."
        )
    tested = (
        f"D_Q's {at['examples']} examples were compared with {at['withheld']} that were drawn at random with them and given "
        f"to nobody (p = {row['p_adjusted']:.2g}, level {recipe.verdict.alpha:g} over all targets)."
    )
    if at["outcome"] in (RETAINED, REVERSED):
        return (
            f"{tested} So rarely would a model that used none of D_Q show such a difference by chance, however it was "
            "trained."
        )
    if cannot_reject(row):
        return f"{tested} With so few examples no outputs, however telling, could have been significant."
    if at["outcome"] == FORGOTTEN:
        return (
            f"{tested} Examples that are known to be in the model are found in {_percent(at['control_power'])} of redraws; "
            f"at most {_percent(at['share_limit'])} of D_Q could be left in the same way (95 % limit)."
        )
    return f"{tested} {_missed(at, rows, recipe)}"


def _missed(at: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> str:
    if at.get("control_power") is not None:
        text = f"Examples that are known to be in the model are found in {_percent(at['control_power'])} of redraws only"
        if at["control_power"] >= FOUND:
            text = (
                "Examples that are known to be in the model are found, but more of D_Q than the recipe allows could be left"
            )
        return f"{text} (95 % limit: {_percent(at.get('share_limit'))}), so absence is not shown."
    power = next((r for r in rows if r["metric"] == "found_share" and r["params"]["target"] == "retained models"), None)
    share = _percent(recipe.verdict.retained_mix["query"])
    seen = "" if power is None else (
        f"Of the auditor's own models that saw {share} of D_Q the same test finds {round(power['value'] * power['n'])} of "
        f"{power['n']}, which says what it finds in models trained like them. "
    )  # fmt: skip
    return f"{seen}Without examples that are known to be in the model (sets.known) absence cannot be shown."


def _caution(recipe: Recipe) -> str:
    if any(target.outputs is not None for target in recipe.targets.values()):
        return (
            "The outputs were supplied: an owner who knows which examples were withheld can make them say anything, so they "
            "should be asked for all examples at once, in mixed order."
        )
    return ""
