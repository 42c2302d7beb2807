"""Attacks known to the field, by the audits that carry them out: what was run, what was not, and what does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from memlib.audits import AUDITS, audit_of
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
        access: access that the attacker needs.
        is_in: condition under which a run of the audit contains the attack.
        reason: reason why it was not run: the setting of the recipe that asks for it, or why memlib does not have it.
    """

    name: str
    audit: str
    kinds: frozenset[Kind]
    item: str
    access: str
    is_in: Callable[[Findings], bool] = bool
    reason: str = "no run of this audit belongs to the dossier"


ATTACKS: Sequence[Attack] = (
    Attack(
        "membership of single records or persons", "membership", LABELLED, "(i) membership inference",
        "outputs on chosen records, and the means to train models like the target",
    ),
    Attack(
        "membership of documents", "membership", TEXTS, "(i) membership inference",
        "likelihoods of chosen documents",
    ),
    Attack(
        "attribute inference from a table", "membership", TABLES, "(i) attribute inference",
        "outputs on records whose hidden column is set to each value", _names("guessed_column"),
        "score.hidden names no column",
    ),
    Attack(
        "object of a training image from its background (déjà vu)", "deja_vu", IMAGES, "(i) attribute inference",
        "embeddings of image crops, and public images",
    ),
    Attack(
        "attributes of a training image beyond its class", "deja_vu", IMAGES, "(i) attribute inference",
        "embeddings of image crops, and public images", _in_family("beyond the class"),
        "beyond names no attribute",
    ),
    Attack(
        "use of a whole data set", "forgetting", LABELLED, "(i) membership inference",
        "outputs on the data set and on withheld examples",
    ),
    Attack(
        "unique feature of a single training example", "unique_feature", IMAGES, "(i) attribute inference",
        "outputs on examples with and without the feature",
    ),
    Attack(
        "secrets in training text: exposure", "exposure", TEXTS, "(ii) exfiltration",
        "likelihoods of chosen texts",
    ),
    Attack(
        "secrets in training text: extraction", "exposure", TEXTS, "(iii) regurgitation of training data",
        "next-token probabilities", _names("extracted"),
        "extraction is not asked for",
    ),
    Attack(
        "continuation of training documents ((n, p)-discoverable)", "exposure", TEXTS, "(iii) regurgitation of training data",
        "sampled text after a known beginning", _in_family("documents"),
        "discoverable is not asked for",
    ),
    Attack(
        "pictures of the hidden part of training images (RCDM)", "deja_vu", IMAGES, "(v) reconstruction",
        "embeddings of image crops, and a generator trained on public images", _names("reconstruction_"),
        "reconstruct is not asked for",
    ),
    Attack(
        "influence of single examples (self-influence)", "self_influence", LABELLED, "",
        "gradients at checkpoints: the auditor's own view",
    ),
    Attack(
        "model inversion: a picture or record of a class from a classifier", "", LABELLED, "(iv) model inversion",
        "weights or outputs", reason="memlib has no such attack",
    ),
    Attack(
        "reconstruction of training examples from weights or gradients", "", ALL, "(v) reconstruction",
        "weights, or the gradients of training", reason="memlib has no such attack",
    ),
    Attack(
        "label-only membership beyond the gap (boundary distances)", "", LABELLED, "(i) membership inference",
        "labels alone, thousands of queries per record", reason="memlib has the gap attack alone",
    ),
    Attack(
        "quantile-regression membership", "", LABELLED, "(i) membership inference",
        "outputs on chosen records", reason="memlib has no such attack",
    ),
    Attack(
        "properties of the whole training set", "", ALL, "",
        "outputs or weights", reason="memlib has no such attack",
    ),
    Attack(
        "extraction from an aligned language model by prompts", "", TEXTS, "(iii) regurgitation of training data",
        "generated texts", reason="memlib has no such attack",
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
