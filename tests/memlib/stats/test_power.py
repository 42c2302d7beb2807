"""Simulated power: what is said to be found four times out of five is, and is not found more often than that."""

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.stats.inference import permutation_p
from memlib.stats.power import MOST_GROUPS, detectable_shift
from memlib.stats.randomization import Design
from tests.chance import least_of, most_of

ALPHA = 0.05


def made(kind: str, rng: np.random.Generator) -> tuple[Design, NDArray[np.float64]]:
    count = MOST_GROUPS + 500 if kind == "many" else 120
    labels, groups = np.arange(count) % 3, np.arange(count)
    if kind == "persons":  # of 1 to 30 images; a person's images are of one class
        groups = np.repeat(np.arange(count), rng.integers(1, 31, size=count))[:count]
        labels = groups % 3
    names = np.unique(groups)
    first = np.zeros(count, dtype=bool)
    for label in range(3):
        own = rng.permutation(names[np.isin(names, groups[labels == label])])
        first[np.isin(groups, own[: len(own) // 2 + (kind == "unequal") * len(own) // 4])] = True
    values = rng.standard_t(3, count) if kind == "heavy" else rng.normal(size=count)
    return Design.of(first, labels, groups), values + 2 * rng.normal(size=count)[groups] * (kind == "persons") + labels


@pytest.mark.parametrize("kind", ["plain", "heavy", "unequal", "persons", "many"])
def test_detectable_shift_is_found_in_four_of_five_tries(kind: str) -> None:
    design, values = made(kind, np.random.default_rng(0))
    effect = detectable_shift(design, values, alpha=ALPHA, seed=1)
    assert effect is not None
    found, tries = 0, 100 if kind == "many" else 400
    for number, first in enumerate(np.concatenate(list(design.redraws(tries, seed=2)))):
        drawn = Design(first, design.stratum, design.group)
        raised = values + np.where(first, 0.5, -0.5) * effect
        found += permutation_p(drawn.difference(raised), drawn.redrawn_differences(raised, 199, seed=number)) <= ALPHA
    assert least_of(tries, 0.74) <= found <= most_of(tries, 0.86)  # .06 for the two simulations


def test_detectable_shift_returns_none_if_no_effect_could_be_significant() -> None:
    first, labels = np.arange(4) < 2, np.zeros(4, dtype=np.int64)  # the smallest p of 2 of 4 is 1/6
    assert detectable_shift(Design.of(first, labels), np.arange(4.0), alpha=0.05, seed=0) is None
    assert detectable_shift(Design.of(first, labels), np.zeros(4), alpha=0.3, seed=0) is None  # nothing varies
    one_side = Design.of(np.ones(9, dtype=bool), np.zeros(9, dtype=np.int64))
    assert detectable_shift(one_side, np.arange(9.0), alpha=0.05, seed=0) is None


def test_detectable_shift_grows_with_the_spread_and_with_a_stricter_level() -> None:
    design, values = made("plain", np.random.default_rng(3))
    one, two = (detectable_shift(design, scale * values, alpha=0.05, seed=0) for scale in (1.0, 2.0))
    strict = detectable_shift(design, values, alpha=0.01, seed=0)
    assert one is not None
    assert two is not None
    assert strict is not None
    assert two == pytest.approx(2 * one)
    assert strict > one
