"""The headline attack within slices of the units: by class, by a subgroup column, and by right and wrong answers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memlib.audits.membership.alarms import area, true_alarms
from memlib.audits.membership.audited import Audited
from memlib.audits.membership.recipe import SLICES
from memlib.findings import Finding, diagnostic, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.coins import coin_test
from memlib.stats.randomization import home_labels

CLASS, ANSWER = "class", "the target's answer"  # what slices are by, beside the subgroup column
FEWEST = 10  # members, and non-members, of a slice
MOST = 50  # classes; the largest ones are looked at


@dataclass(frozen=True)
class Slice:
    """A part of the units."""

    by: str  #: criterion of the division: the class, the target's answer, or the name of a column.
    value: str  #: common value of the units in the slice.
    units: NDArray[np.bool_]  #: (num_units,) mask of the units in the slice.
    is_fixed: bool = True  #: True if the slice was fixed before the coins were tossed.


def slice_findings(audited: Audited, subgroup: Mapping[str, str]) -> list[Finding]:
    """Return AUC and true alarms of the headline attack within each slice, with a test where the slice allows one.

    Args:
        audited: pool, answers and coins.
        subgroup: values of the subgroup column by example id; empty without one.
    """
    return [row for part in slices_of(audited, subgroup) for row in _rows(part, audited)] + _left_out(audited)


def slices_of(audited: Audited, subgroup: Mapping[str, str]) -> list[Slice]:
    """Return the slices by class, subgroup and answer, in this order."""
    found = list(_by_subgroup(audited, subgroup))
    return [*_by_class(audited), *found, *_by_answer(audited)] if audited.has_classes else found


def _by_class(audited: Audited) -> Iterator[Slice]:
    units = audited.units
    labels, counts = np.unique(units.labels, return_counts=True)
    names = dict(zip(units.labels.tolist(), units.class_names, strict=True))
    largest = np.sort(labels[np.argsort(-counts, kind="stable")[:MOST]])
    for label in largest.tolist() if len(labels) > 1 else []:
        yield Slice(CLASS, names[label], units.labels == label)


def _left_out(audited: Audited) -> list[Finding]:
    """Return the number of classes beyond the largest ones, if there are any."""
    count = len(np.unique(audited.units.labels))
    params = {"slice": CLASS, "examined": MOST}
    return [diagnostic("slices_left_out", params, count - MOST, n=count)] if audited.has_classes and count > MOST else []


def _by_subgroup(audited: Audited, subgroup: Mapping[str, str]) -> Iterator[Slice]:
    """Yield a slice for each value of the subgroup column; a person has the value of most of her examples."""
    if not subgroup:
        return
    assert audited.recipe.score.subgroup is not None
    values = ["missing" if name not in subgroup else f"{subgroup[name]}" for name in audited.pool.ids]
    names, codes = np.unique(np.array(values, dtype=object).astype(str), return_inverse=True)
    of_units = home_labels(codes, audited.pool.groups)
    for code, name in enumerate(names.tolist()):
        if (of_units == code).any():
            yield Slice(audited.recipe.score.subgroup, name, of_units == code)


def _by_answer(audited: Audited) -> Iterator[Slice]:
    """Yield the units that the target answers rightly and wrongly (of a person: at least half, or less).

    A model that remembers answers its members rightly, so the answer is an outcome of the coins: given the answer, draws of
    the coins are no longer equally likely, and redraws within the slice test nothing. These slices are only described.
    """
    right = audited.units.correct >= 0.5
    yield Slice(ANSWER, "right", right, is_fixed=False)
    yield Slice(ANSWER, "wrong", ~right, is_fixed=False)


def _rows(part: Slice, audited: Audited) -> Iterator[Finding]:
    """Yield the findings on a slice; if it is too small, only its size."""
    member, scores = audited.units.member[part.units], audited.rankings.head.scores[part.units]
    inside, outside, count = int(member.sum()), int((~member).sum()), len(member)
    named = {"slice": part.by, "value": part.value}
    params = {**named, "members": inside, "nonmembers": outside}
    if min(inside, outside) < FEWEST:
        yield diagnostic("small_slice", {**params, "fewest": FEWEST}, count, n=count)
        return
    params["attack"] = audited.recipe.score.headline
    noun = audited.units.noun
    value, interval = area(scores, member, audited.units.strata[part.units], noun)
    if part.is_fixed and audited.is_tested:
        yield tested(
            "auc_of_slice", params, value, n=count, p_value=_p_value(part, audited), family=SLICES, null_value=0.5,
            interval=interval, either_direction=True, smallest_p=1 / (1 + audited.recipe.score.redraws),
        )  # fmt: skip
    else:
        yield estimate("auc_of_slice", params, value, n=count, interval=interval)
    even = audited.even[part.units]
    rows = true_alarms(named, scores[even], member[even], audited.recipe.score.false_alarms, noun=noun, of="_of_slice")
    yield from [row for row in rows if row.metric == "true_alarms_of_slice"][:1] or rows[:1]


def _p_value(part: Slice, audited: Audited) -> float:
    """Return the joint p-value of the AUC and the tail, by redraws of the slice's coins within classes."""
    units, config = audited.units, audited.recipe.score
    seed, own = derive_seed(config.seed, "slice", part.by, part.value), part.units
    scores, member, strata = audited.rankings.head.scores[own], units.member[own], units.strata[own]
    return coin_test(scores, member, strata, redraws=config.redraws, seed=seed).p_value
