"""A classifier of sides without the model: exact under the declared draw, and it finds what differs."""

import numpy as np
import pytest

from memlib.stats.blind import tell_sides
from memlib.stats.randomization import Design
from tests.chance import most_of


def drawn(rng: np.random.Generator, count: int = 120) -> Design:
    persons, labels, sides = np.arange(count) // 3, np.arange(count) // 3 % 2, np.zeros(count // 3, dtype=bool)
    for label in (0, 1):
        sides[rng.permutation(np.flatnonzero(np.arange(count // 3) % 2 == label))[: count // 12]] = True
    return Design.of(sides[persons], labels, persons)


@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_sides_are_told_apart_by_features_that_differ_and_not_by_chance(shift: float) -> None:
    found, aucs = 0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        design = drawn(rng)
        of_person = rng.normal(size=(40, 10))
        features = of_person[design.group] + 0.3 * rng.normal(size=(120, 10))
        features[:, 0] += shift * design.first
        told = tell_sides(features, design, design.group % 4, redraws=99, seed=seed)
        found += told.p_value <= 0.05
        aucs.append(told.auc)
    if shift:
        assert found >= 40
        assert np.mean(aucs) > 0.7
    else:
        assert found <= most_of(60, 0.05)


def test_constant_features_give_a_p_value_of_1() -> None:
    design = drawn(np.random.default_rng(0))
    told = tell_sides(np.ones((120, 2)), design, design.group % 4, redraws=19, seed=0)
    assert told.p_value == 1.0
