"""Ledger of earlier audits of the same data: repeated testing finds something by chance sooner or later."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memlib.runs.fingerprints import have_common
from memlib.runs.records import DeletedRun, EarlierAudit, Fingerprints, Ledger, RunEntry
from memlib.sanitize import count_of

TRAINED = ("train", "train_nets", "train_pairs", "train_subset", "train_subsets", "train_documents", "fit_estimators")
"""Stages whose artifacts are audited models, or the answers of models that are not stored."""
ALIKE = 2  # number of common digests from which on audits of earlier versions are said to be of the same examples


def trained_in(refs: Iterable[str]) -> set[str]:
    """Return the given artifacts that stages of `TRAINED` made."""
    return {ref for ref in refs if ref.split("/")[0] in TRAINED}


@dataclass(frozen=True)
class Past:
    """A run that was published before, which the store holds or remembers."""

    line: EarlierAudit  #: what a run records of it.
    data: str  #: digest of its data.
    examples: frozenset[str]  #: the smallest digests of its examples; empty for a deleted run.
    fingerprints: Fingerprints | None  #: the fingerprints of its examples; None if they were not recorded.
    previous: Sequence[str]  #: runs that it names as published before.
    asks: str  #: digest of what it asks.

    @classmethod
    def of(cls, run: RunEntry) -> Past:
        """Return a run of the list of runs."""
        first = next((one for one in run["findings"] if one["p_value"] is not None), run["findings"][0])
        recorded = run["ledger"]
        line = EarlierAudit(
            run=run["run"],
            audit=run["audit"],
            finished=run["finished"],
            headline=first["metric"],
            p_value=first["p_value"],
            verdict=None if run["verdict"] is None else run["verdict"]["word"],
            look=recorded.get("look", ""),
            planned=recorded.get("planned", 1),
        )
        return cls(
            line,
            recorded["data"],
            frozenset(recorded.get("examples", [])),
            run.get("fingerprints"),
            recorded.get("previous", []),
            run["asks"],
        )

    @classmethod
    def of_deleted(cls, run: DeletedRun) -> Past:
        """Return a run that was deleted."""
        fields = run.model_dump(include=set(EarlierAudit.model_fields))
        return cls(EarlierAudit(**fields), run.data, frozenset(), run.fingerprints, run.previous, run.asks)

    @property
    def deleted(self) -> DeletedRun:
        """The record of the run that remains in the store when it is deleted."""
        return DeletedRun(
            **self.line.model_dump(),
            data=self.data,
            fingerprints=self.fingerprints,
            asks=self.asks,
            previous=list(self.previous),
        )


def entry(past: Iterable[Past], run: str, audit: str, now: Ledger, *, again: Collection[str] = ()) -> Ledger:
    """Return the ledger of a run when it is first published: its data, and its look among the earlier audits of that data.

    Data are the same if their sources are, or if they share a tenth of the examples of the smaller one.

    Args:
        past: the runs that were published before. Sweeps, and runs published before digests were recorded, have no data.
        audit: name of the run's audit, as in recipes.
        now: the run's data, look and planned looks.
        again: runs that this one repeats, which are the same look at the same models.

    Returns:
        the ledger; the earlier audits that it lists are not published.
    """
    known = [one for one in past if one.line.run != run]
    same = Same(now)
    earlier = [one.line for one in known if one.line.run not in again and same(one)]
    whole = now.model_copy(update={"earlier": sorted(earlier, key=lambda one: one.finished)})
    look, tests = look_of(whole, audit), [one for one in earlier if one.p_value is not None]
    said = {
        "number": look.number,
        "is_paid_for": look.is_paid_for,
        "audits": len(earlier),
        "tests": len(tests),
        "shown": sum(one.verdict == "shown" for one in tests),
        "unknown": sum(same.is_unknown(one) for one in known if one.line.p_value is not None and not same(one)),
        "previous": sorted({one.line.run for one in known} - {name for one in known for name in one.previous}),
    }
    return whole.model_copy(update=said)


class Same:
    """A condition on runs that were published before: they audited the data of a ledger, or a considerable part of them."""

    def __init__(self, now: Ledger) -> None:
        self._now, self._examples = now, set(now.examples)
        self._known: dict[int, bool] = {}  # by the place of fingerprints in memory, which runs on the same data share

    def __call__(self, one: Past) -> bool:
        """Return whether a run audited the same data, as far as is known."""
        now = self._now
        if now.data and one.data == now.data:
            return True
        if one.fingerprints is None or now.fingerprints is None:
            return len(one.examples & self._examples) >= ALIKE
        place = id(one.fingerprints)
        if place not in self._known:
            self._known[place] = have_common(one.fingerprints, now.fingerprints)
        return self._known[place]

    def is_unknown(self, one: Past) -> bool:
        """Return whether too little was recorded to compare a run's examples with those of the ledger."""
        return bool(one.data) and self._now.fingerprints is not None and one.fingerprints is None


def in_words(ledger: Ledger) -> str:
    """Return one line of text about the earlier audits of a run's data; "" if there are none."""
    audits, tests, shown = ledger.audits, ledger.tests, ledger.shown
    if ledger.number is None:
        with_test = [one for one in ledger.earlier if one.p_value is not None]
        audits, tests, shown = len(ledger.earlier), len(with_test), sum(one.verdict == "shown" for one in with_test)
    if not audits:
        return ""
    return (
        f"{count_of(audits, 'earlier audit')} of the same data in this store: {tests} with a test, {shown} with the verdict "
        "'shown'. Their p-values are not adjusted jointly. Only those that ask the same question are further looks; cells of "
        "one sweep are one."
    )


@dataclass(frozen=True)
class Look:
    """A run's look at its data, among all looks that ask the same question."""

    number: int  #: number of the look, from 1.
    planned: int  #: number of looks that the recipe plans.
    is_paid_for: bool  #: whether the level allows for all looks so far.

    def is_lost(self, p_value: float | None, alpha: float | None) -> bool:
        """Return whether a result is shown only because earlier looks at the data are not allowed for."""
        if self.is_paid_for or p_value is None or alpha is None:
            return False
        return p_value <= alpha < self.number * p_value

    def in_words(self, p_value: float | None = None, alpha: float | None = None) -> str:
        """Describe the number of the look, and its effect on the result; "" for a first, unplanned look.

        Args:
            p_value, alpha: the smallest adjusted p-value of the run's headline tests, and their level.
        """
        if self.is_paid_for:
            return _planned(self)
        more = f", of which {self.planned} were planned now" if self.planned > 1 else ""
        line = f"Look {self.number} at these data in this store{more}; the verdict does not allow for the earlier ones."
        if p_value is None or alpha is None or p_value > alpha:
            return line
        whole = min(1.0, self.number * p_value)
        if self.is_lost(p_value, alpha):
            return (
                f"Shown only if this were the first look at these data: {line[0].lower()}{line[1:]} Allowing for "
                f"{self.number} looks, p is {whole:.2g}, above the level of {alpha:g}. Treat the result as inconclusive, and "
                "repeat it on other data, or with looks that are planned beforehand (looks in the recipe of the first)."
            )
        return f"{line} Allowing for {self.number} looks, p is {whole:.2g}, still at most the level of {alpha:g}."


def look_of(ledger: Ledger, audit: str) -> Look:
    """Return a run's look at its data.

    Args:
        audit: name of its audit, as in recipes; other audits ask other questions.
    """
    if ledger.number is not None and ledger.is_paid_for is not None:
        return Look(ledger.number, ledger.planned, ledger.is_paid_for)
    before = {one.look or one.run: one.planned for one in ledger.earlier if one.audit == audit and one.p_value is not None}
    before.pop(ledger.look, None)
    number, planned = len(before) + 1, ledger.planned
    return Look(number, planned, number <= planned and all(others >= planned for others in before.values()))


def beside_in_words(ledger: Ledger, audit: str) -> str:
    """Return what is known of earlier audits of a run's data beside the number of the look; "" if there is nothing to say."""
    said = []
    if look_of(ledger, audit).number > 1:
        said.append("Looks in other stores are not known: these are the least that there were.")
    if ledger.shown:
        has = "has" if ledger.shown == 1 else "have"
        said.append(f"{count_of(ledger.shown, 'earlier audit')} of these data {has} the verdict 'shown'.")
    if ledger.unknown:
        said.append(
            f"{count_of(ledger.unknown, 'earlier audit')} in this store cannot be compared with this one: earlier versions "
            "of memlib recorded no fingerprints of the examples."
        )
    return " ".join(said)


def formerly_in_words(ledger: Ledger, audit: str) -> str:
    """Return the line about looks in its earlier wording, without the effect on the result, for pages of that time."""
    look = look_of(ledger, audit)
    if look.is_paid_for:
        return _planned(look)
    more = f", of which {look.planned} were planned now" if look.planned > 1 else ""
    return (
        f"Look {look.number} at these data in this store{more}; unadjusted for earlier looks: whoever looks often enough "
        "finds something by chance. Looks count as planned only if the recipe of the first states their number (looks)."
    )


def _planned(look: Look) -> str:
    planned = look.planned
    if planned == 1:
        return ""
    return f"Look {look.number} of {planned} planned at these data: each is tested at alpha / {planned}."


def planned_looks(recipe: Mapping[str, Any]) -> int:
    """Return the number of looks that a recipe plans, in the section that holds its level; 1 by default."""
    return max((part["looks"] for part in recipe.values() if isinstance(part, Mapping) and "looks" in part), default=1)
