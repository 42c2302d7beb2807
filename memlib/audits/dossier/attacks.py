"""All attacks known to the field: those of the audits, and those that memlib does not have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.attacks import ALL, GENERATED, LABELLED, LABELS, PROBABILITIES, TEXTS, WEIGHTS, Attack
from memlib.specs.base import Kind, source_of

NOT_IN_MEMLIB: Sequence[Attack] = (
    Attack(
        "model inversion: a picture or record of a class from a classifier", LABELLED, "(iv) model inversion",
        "weights or outputs", PROBABILITIES, reason="memlib has no such attack",
    ),
    Attack(
        "reconstruction of training examples from weights or gradients", ALL, "(v) reconstruction",
        "weights, or the gradients of training", WEIGHTS, reason="memlib has no such attack",
    ),
    Attack(
        "label-only membership beyond the gap (boundary distances)", LABELLED, "(i) membership inference",
        "labels alone, thousands of queries per record", LABELS, reason="memlib has only the simplest of these (gap)",
    ),
    Attack(
        "quantile-regression membership", LABELLED, "(i) membership inference",
        "outputs on chosen records", PROBABILITIES, reason="memlib has no such attack",
    ),
    Attack(
        "properties of the whole training set", ALL, "",
        "outputs or weights", PROBABILITIES, reason="memlib has no such attack",
    ),
    Attack(
        "extraction from an aligned language model by prompts", TEXTS, "(iii) regurgitation of training data",
        "generated texts", GENERATED, reason="memlib has no such attack",
    ),
)  # fmt: skip


def attacks() -> Iterator[tuple[str, Attack]]:
    """Yield each attack with the audit that carries it out, as in recipes; "" if memlib does not have it."""
    yield from ((audit.field, attack) for audit in AUDITS.values() for attack in audit.attacks)
    yield from (("", attack) for attack in NOT_IN_MEMLIB)


def kind_of(recipe: Mapping[str, Any], audit: str) -> Kind:
    """Return the kind of data that a run's recipe is about.

    Args:
        recipe: recipe of the run, as plain JSON.
    """
    source = (recipe.get("data") or {}).get("source") or {}
    kinds = AUDITS[audit_of(audit)].kinds
    return source_of(source.get("kind")).holds if source or len(kinds) != 1 else next(iter(kinds))
