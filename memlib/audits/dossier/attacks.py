"""Attacks known to the field, by the audits that carry them out: what was run, what was not, and what does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memlib.audits import AUDITS, audit_of
from memlib.audits.dossier.recipe import Access
from memlib.findings import Findings

Kind = Literal["images", "tables", "texts"]
IMAGES: frozenset[Kind] = frozenset({"images"})
TABLES: frozenset[Kind] = frozenset({"tables"})
TEXTS: frozenset[Kind] = frozenset({"texts"})
LABELLED = IMAGES | TABLES
ALL = LABELLED | TEXTS
TABULAR = ("table", "breast_cancer", "two_moons")  # kinds of sources whose examples are rows of numbers
EDPB = "EDPB Opinion 28/2024, par. 55"
"""The opinion lists the attacks against which the resistance of a model should be tested."""


def _names(*starts: str) -> Callable[[Findings], bool]:
    """Return a condition: a finding's metric begins with one of these words."""
    return lambda findings: any(row.metric.startswith(starts) for row in findings)


def _in_family(*families: str) -> Callable[[Findings], bool]:
    return lambda findings: bool(findings.tests(*families))


@dataclass(frozen=True)
class Attack:
    """An attack known to the field.

    Attributes:
        name: name of the attack.
        audit: name of the audit that carries it out, in recipes; "" if memlib has none.
        kinds: kinds of data to which it applies.
        item: item of the opinion's list (EDPB 28/2024, par. 55) under which it falls; "" for none.
        access: access that the attacker needs, in words.
        by: forms of release that give this access.
        is_in: condition under which a run of the audit contains the attack.
        reason: reason why it was not run: the setting of the recipe that asks for it, or why memlib does not have it.
    """

    name: str
    audit: str
    kinds: frozenset[Kind]
    item: str
    access: str
    by: frozenset[Access]
    is_in: Callable[[Findings], bool] = bool
    reason: str = "no run of this audit belongs to the dossier"


WEIGHTS: frozenset[Access] = frozenset({"weights"})
PROBABILITIES: frozenset[Access] = frozenset({"weights", "probabilities"})
GENERATED: frozenset[Access] = frozenset({"weights", "probabilities", "texts"})
LABELS: frozenset[Access] = frozenset({"weights", "probabilities", "labels"})
NOBODY: frozenset[Access] = frozenset()
ATTACKS: Sequence[Attack] = (
    Attack(
        "membership of single records or persons", "membership", LABELLED, "(i) membership inference",
        "outputs on chosen records, and the means to train models like the target", PROBABILITIES,
    ),
    Attack(
        "membership of documents", "membership", TEXTS, "(i) membership inference",
        "likelihoods of chosen documents", PROBABILITIES,
    ),
    Attack(
        "attribute inference from a table", "membership", TABLES, "(i) attribute inference",
        "outputs on records whose hidden column is set to each value", PROBABILITIES, _names("guessed_column"),
        "its recipe did not ask for it (score.hidden)",
    ),
    Attack(
        "object of a training image from its background (déjà vu)", "deja_vu", IMAGES, "(i) attribute inference",
        "embeddings of image crops, and public images", WEIGHTS,
    ),
    Attack(
        "attributes of a training image beyond its class", "deja_vu", IMAGES, "(i) attribute inference",
        "embeddings of image crops, and public images", WEIGHTS, _in_family("beyond the class"),
        "its recipe did not ask for it (beyond)",
    ),
    Attack(
        "use of a whole data set", "forgetting", LABELLED, "(i) membership inference",
        "outputs on the data set and on withheld examples", PROBABILITIES,
    ),
    Attack(
        "unique feature of a single training example", "unique_feature", IMAGES, "(i) attribute inference",
        "outputs on examples with and without the feature", PROBABILITIES,
    ),
    Attack(
        "secrets in training text: exposure", "exposure", TEXTS, "(ii) exfiltration",
        "likelihoods of chosen texts", PROBABILITIES,
    ),
    Attack(
        "secrets in training text: extraction", "exposure", TEXTS, "(iii) regurgitation of training data",
        "next-token probabilities", PROBABILITIES, _names("extracted"),
        "its recipe did not ask for it (extraction)",
    ),
    Attack(
        "continuation of training documents ((n, p)-discoverable)", "exposure", TEXTS, "(iii) regurgitation of training data",
        "sampled text after a known beginning", GENERATED, _in_family("documents"),
        "its recipe did not ask for it (discoverable)",
    ),
    Attack(
        "pictures of the hidden part of training images (RCDM)", "deja_vu", IMAGES, "(v) reconstruction",
        "embeddings of image crops, and a generator trained on public images", WEIGHTS, _names("reconstruction_"),
        "its recipe did not ask for it (reconstruct)",
    ),
    Attack(
        "influence of single examples (self-influence)", "self_influence", LABELLED, "",
        "gradients at checkpoints: the auditor's own view", NOBODY,
    ),
    Attack(
        "model inversion: a picture or record of a class from a classifier", "", LABELLED, "(iv) model inversion",
        "weights or outputs", PROBABILITIES, reason="memlib has no such attack",
    ),
    Attack(
        "reconstruction of training examples from weights or gradients", "", ALL, "(v) reconstruction",
        "weights, or the gradients of training", WEIGHTS, reason="memlib has no such attack",
    ),
    Attack(
        "label-only membership beyond the gap (boundary distances)", "", LABELLED, "(i) membership inference",
        "labels alone, thousands of queries per record", LABELS, reason="memlib has only the simplest of these (gap)",
    ),
    Attack(
        "quantile-regression membership", "", LABELLED, "(i) membership inference",
        "outputs on chosen records", PROBABILITIES, reason="memlib has no such attack",
    ),
    Attack(
        "properties of the whole training set", "", ALL, "",
        "outputs or weights", PROBABILITIES, reason="memlib has no such attack",
    ),
    Attack(
        "extraction from an aligned language model by prompts", "", TEXTS, "(iii) regurgitation of training data",
        "generated texts", GENERATED, reason="memlib has no such attack",
    ),
)  # fmt: skip


def kind_of(recipe: Mapping[str, Any], audit: str) -> Kind:
    """Return the kind of data that a run's recipe is about.

    Args:
        recipe: recipe of the run, as plain JSON.
        audit: its audit, as in recipes.
    """
    if audit == "exposure" or AUDITS[audit_of(audit)].variant_of(recipe) == "documents":
        return "texts"
    source = (recipe.get("data") or {}).get("source") or {}
    return "tables" if source.get("kind") in TABULAR else "images"
