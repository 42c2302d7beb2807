"""Attacks known to the field, and the facts about data and model that decide which of them an audit can carry out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memlib.findings import Finding
from memlib.specs.base import Kind, Source

Access = Literal["weights", "probabilities", "labels", "texts", "internal"]
"""Forms of release, by the access that they give."""
IMAGES: frozenset[Kind] = frozenset({"images"})
TABLES: frozenset[Kind] = frozenset({"tables"})
PAIRS: frozenset[Kind] = frozenset({"pairs"})
TEXTS: frozenset[Kind] = frozenset({"texts"})
IDS: frozenset[Kind] = frozenset({"ids"})
LABELLED: frozenset[Kind] = frozenset({"images", "tables", "points"})
ALL = LABELLED | PAIRS | TEXTS
WEIGHTS: frozenset[Access] = frozenset({"weights"})
PROBABILITIES: frozenset[Access] = frozenset({"weights", "probabilities"})
GENERATED: frozenset[Access] = frozenset({"weights", "probabilities", "texts"})
LABELS: frozenset[Access] = frozenset({"weights", "probabilities", "labels"})
NOBODY: frozenset[Access] = frozenset()


def metric_begins(*starts: str) -> Callable[[Finding], bool]:
    """Return a condition: a finding's metric begins with one of these words."""
    return lambda finding: finding.metric.startswith(starts)


def in_family(*families: str) -> Callable[[Finding], bool]:
    """Return a condition: a finding is a test of one of these families."""
    return lambda finding: finding.is_test and finding.family in families


@dataclass(frozen=True)
class Attack:
    """An attack known to the field."""

    name: str  #: name of the attack.
    kinds: frozenset[Kind]  #: kinds of data to which it applies.
    item: str  #: item of the list in EDPB Opinion 28/2024, par. 55, under which it falls; "" for none.
    access: str  #: access that the attacker needs, in words.
    by: frozenset[Access]  #: forms of release that give this access.
    #: condition under which a finding of the audit is the attack's; None for all that are no other attack's.
    holds: Callable[[Finding], bool] | None = None
    #: reason why it was not run: the setting of the recipe that asks for it, or why memlib does not have it.
    reason: str = "no run of this audit belongs to the dossier"
    is_attack: bool = True  #: whether it is an attack; otherwise a number that an audit states beside its attacks.


def not_for(kinds: Collection[Kind], found: Collection[Kind]) -> str:
    """Return the reason why an attack on some kinds of data does not apply to others."""
    return f"for {_listed(kinds)}; the data are {_listed(found)}"


def _listed(kinds: Collection[Kind]) -> str:
    *first, last = sorted(kinds)
    return " and ".join(filter(None, (", ".join(first), last)))


@dataclass(frozen=True)
class DataFacts:
    """The facts that decide which audits apply to data, and how their recipes fit them."""

    source: Source  #: source of the data.
    persons: str = ""  #: regular expression that finds the person in an example's id (in a document's text); "" if unknown.
    #: an existing model, as in `trained` of recipes; None if the audits train models of their own.
    model: Mapping[str, Any] | None = None
    members: str = ""  #: file that lists the training examples of this model; "" if there is none.

    @property
    def kind(self) -> Kind:
        """The kind of the data."""
        return self.source.holds

    @property
    def split(self) -> dict[str, Any]:
        """The setting of a split that keeps the examples of a person together; empty if persons are unknown."""
        return {"group": {"pattern": self.persons}} if self.persons else {}
