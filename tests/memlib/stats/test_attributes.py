"""Attribute inference: guesses solved by hand, level under the null, memory of a hidden column found."""

import dataclasses

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.attributes import AttributeInference, _rates_and_interval, attribute_inference
from memlib.stats.blind import folds_by_group
from memlib.stats.randomization import Design, detectable
from tests.assignments import assert_exact, each_observed
from tests.chance import least_of


def world(
    seed: int, *, memory: float = 0.0, count: int = 200, per_person: int = 1
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], Design]:
    """Odds, values, classes and draw: the column depends on the class, the model on both; members' own values are surer."""
    rng = np.random.default_rng(seed)
    person = np.arange(count) // per_person
    labels = (np.arange(count) // per_person) % 2
    own = np.where(rng.random(count // per_person) < 0.6, np.arange(count // per_person) % 2, 2)
    values = own[person]
    first = np.zeros(count // per_person, dtype=bool)
    for label in (0, 1):
        rows = np.flatnonzero(np.arange(count // per_person) % 2 == label)
        first[rng.permutation(rows)[: len(rows) // 2]] = True
    odds = rng.normal(size=(count // per_person, 3))[person] + 0.5 * (np.arange(3) == values[:, None])  # all units
    odds += memory * (first[person][:, None] & (np.arange(3) == values[:, None]))
    return odds, values, labels, Design.of(first[person], labels, person if per_person > 1 else None)


def infer(seed: int, *, given: bool, memory: float = 0.0, per_person: int = 1) -> AttributeInference:
    odds, values, labels, design = world(seed, memory=memory, per_person=per_person)
    if given:
        prior = np.array([[0.6, 0.01, 0.39], [0.01, 0.6, 0.39]])
        return attribute_inference(odds, values, labels, design, prior=prior, permutations=99, seed=seed)
    folds = folds_by_group(design.group, 2, seed=1)
    return attribute_inference(odds, values, labels, design, folds=folds, permutations=99, seed=seed)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("per_person", [1, 2])
@pytest.mark.parametrize("odds", ["distinct", "tied"])
def test_p_values_of_attributes_are_exact_for_every_draw_of_the_members(given: bool, per_person: int, odds: str) -> None:
    """A prior that is estimated from the non-members changes with the draw, and is estimated again in every redraw."""
    rng = np.random.default_rng(0)
    person = np.arange(8 * per_person) // per_person
    labels, values = np.arange(8)[person] // 4, rng.integers(0, 3, 8)[person]
    first = np.arange(8)[person] % 4 < 2
    table = rng.normal(size=(len(person), 3)) if odds == "distinct" else rng.integers(0, 2, (len(person), 3)) * 1.0
    prior = np.array([[0.6, 0.01, 0.39], [0.01, 0.6, 0.39]]) if given else None
    design = Design.of(first, labels, person)
    assert_exact([
        attribute_inference(
            table, values, labels, one, prior=prior, folds=person % 2, permutations=1, seed=0
        ).p_value
        for one in each_observed(design)
    ])  # fmt: skip


@pytest.mark.parametrize(("given", "per_person"), [(True, 1), (False, 5)])
def test_intervals_of_a_column_that_is_guessed_from_the_population_cover_0(given: bool, per_person: int) -> None:
    found = [infer(seed, given=given, per_person=per_person) for seed in range(80)]
    assert sum(one.low <= 0 <= one.high for one in found) >= least_of(80, 0.93)
    assert np.mean([one.members for one in found]) > 0.5  # well guessed, but not from memory


@pytest.mark.parametrize("given", [True, False])
def test_memory_of_the_members_values_is_found(given: bool) -> None:
    found = [infer(seed, given=given, memory=3.0) for seed in range(20)]
    assert sum(one.p_value <= 0.05 for one in found) >= 18
    assert sum(one.low > 0 for one in found) >= 15
    assert all(one.members > one.non_members for one in found)


def test_guesses_are_the_largest_product_of_prior_and_confidence() -> None:
    prior = np.array([[0.9, 0.1]])
    odds = np.log(np.array([[0.2, 0.8], [0.05, 0.95], [0.2, 0.8], [0.05, 0.95]]) / np.array([[0.8, 0.2], [0.95, 0.05]] * 2))
    # .9 x .2 > .1 x .8, but .9 x .05 < .1 x .95
    values, labels, first = np.array([0, 1, 1, 0]), np.zeros(4, dtype=int), np.array([True, True, False, False])
    found = attribute_inference(odds, values, labels, Design.of(first, labels), prior=prior, permutations=999, seed=0)
    assert (found.members, found.non_members, found.difference, found.by_prior) == (1.0, 0.0, 1.0, 0.5)
    assert found.p_value == pytest.approx(1 / 6, abs=0.05)


def test_rates_and_difference_of_attributes_equal_those_of_the_design() -> None:
    odds, values, labels, design = world(4, memory=1.0)
    unequal = np.where(labels == 0, design.first, design.first & (np.arange(200) % 4 == 1))
    design = Design.of(unequal, labels)
    prior = np.full((2, 3), 1 / 3)
    found = attribute_inference(odds, values, labels, design, prior=prior, permutations=19, seed=0)
    right = (odds.argmax(axis=1) == values).astype(float)
    assert found.difference == pytest.approx(design.difference(right))
    assert found.members - found.non_members == pytest.approx(found.difference)
    assert found.by_prior == pytest.approx(1 / 3)


def test_tied_guesses_count_fractionally_whatever_the_order_of_values() -> None:
    labels, first = np.zeros(40, dtype=int), np.arange(40) % 2 == 0
    for values in (np.zeros(40, dtype=int), np.ones(40, dtype=int)):
        found = attribute_inference(
            np.zeros((40, 2)), values, labels, Design.of(first, labels), prior=np.full((1, 2), 0.5), permutations=19, seed=0
        )
        assert (found.p_value, found.detectable) == (1.0, None)
        assert (found.members, found.non_members) == (pytest.approx(0.5), pytest.approx(0.5))


def test_the_interval_is_newcombes() -> None:
    """Newcombe 1998, table II, method 10: 56/70 - 48/80."""
    first, labels = np.arange(150) < 70, np.zeros(150, dtype=int)
    right = np.concatenate([np.arange(70) < 56, np.arange(80) < 48])
    odds = np.where(right[:, None], [[1.0, 0.0]], [[0.0, 1.0]])
    found = attribute_inference(
        odds, labels, labels, Design.of(first, labels), prior=np.full((1, 2), 0.5), permutations=19, seed=0
    )
    assert (found.low, found.high) == (pytest.approx(0.0524, abs=5e-5), pytest.approx(0.3339, abs=5e-5))


def test_groups_that_are_all_guessed_alike_count_as_their_units() -> None:
    """One of the two units of each of ten persons is right: the sides vary less than single units, not more."""
    labels, persons, first = np.zeros(20, dtype=int), np.arange(20) // 2, np.arange(20) < 10
    odds = np.where((np.arange(20) % 2 == 0)[:, None], [[1.0, 0.0]], [[0.0, 1.0]])
    prior = np.full((1, 2), 0.5)
    whole, single = (
        attribute_inference(odds, labels, labels, Design.of(first, labels, groups), prior=prior, permutations=19, seed=0)
        for groups in (persons, None)
    )
    assert (whole.members, whole.difference) == (0.5, 0.0)
    assert (whole.low, whole.high) == pytest.approx((single.low, single.high))


def test_the_interval_ends_at_differences_of_1_and_minus_1() -> None:
    labels = np.zeros(6, dtype=int)
    for first, ends in ((np.arange(6) < 3, (-1.0, 1.0)), (np.arange(6) >= 3, (-1.0, 1.0))):
        odds = np.where((np.arange(6) < 3)[:, None], [[1.0, 0.0]], [[0.0, 1.0]])  # right on the first three units alone
        folds = np.arange(6) % 2
        found = attribute_inference(
            odds, labels, labels, Design.of(first, labels), prior=np.full((1, 2), 0.5), folds=folds, permutations=19, seed=0
        )
        assert found.difference == (1.0 if first[0] else -1.0)
        assert (found.high if first[0] else found.low) == ends[int(first[0])]
    whole = attribute_inference(odds, labels, labels, Design.of(np.ones(6, dtype=bool), labels), prior=np.full((1, 2), 0.5),
                                permutations=19, seed=0)  # fmt: skip
    assert (whole.members, whole.non_members, whole.low, whole.high) == (0.5, 0.0, -1.0, 1.0)
    correct, design = np.arange(6) % 2.0, Design.of(np.arange(6) < 3, labels)
    assert _rates_and_interval(correct, design, labels, deviation=1.0)[1] == (-1.0, 1.0)  # 1.96 deviations reach further


def test_the_interval_is_as_wide_as_differences_vary_with_an_estimated_prior() -> None:
    """Intervals of two independent rates covered 0 in .92 of worlds without memory."""
    unit = detectable(1.0, 0.05)
    assert unit is not None
    for seed in range(30):
        rng = np.random.default_rng(seed)
        values, labels, first = np.minimum(*rng.integers(0, 4, (2, 100))), rng.integers(0, 2, 100), rng.random(100) < 0.5
        odds, folds = rng.normal(size=(100, 4)), np.arange(100) % 5
        found = attribute_inference(odds, values, labels, Design.of(first, labels), folds=folds, permutations=99, seed=seed)
        assert found.detectable is not None
        assert found.high - found.low > 0.93 * 2 * 1.96 * found.detectable / unit


@pytest.mark.parametrize("count", [20, 37, 60])
def test_the_interval_of_guesses_that_are_all_right_is_narrow(count: int) -> None:
    """Rates may miss 1 by a rounding error, which must not decide the interval."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        values, labels, first = rng.integers(0, 2, count), rng.integers(0, 2, count), np.arange(count) % 2 == 0
        odds, folds = np.where(values[:, None] == np.arange(2), 9.0, -9.0), np.arange(count) % 5
        found = attribute_inference(odds, values, labels, Design.of(first, labels), folds=folds, permutations=99, seed=seed)
        assert found.difference == pytest.approx(0, abs=1e-12)
        assert -0.6 < found.low < 0 < found.high < 0.6


def test_copies_of_persons_do_not_narrow_the_interval() -> None:
    labels, first = np.zeros(60, dtype=int), np.arange(60) < 30
    right = np.arange(60) % 3 == 0
    odds = np.where(right[:, None], [[1.0, 0.0]], [[0.0, 1.0]])
    once = attribute_inference(
        odds, labels, labels, Design.of(first, labels), prior=np.full((1, 2), 0.5), permutations=19, seed=0
    )
    copies = np.arange(60).repeat(7)
    design = Design.of(first[copies], labels[copies], copies)
    many = attribute_inference(
        odds[copies], labels[copies], labels[copies], design, prior=np.full((1, 2), 0.5), permutations=19, seed=0
    )
    assert many.difference == pytest.approx(once.difference)
    assert many.high - many.low == pytest.approx(once.high - once.low, rel=0.05)


def test_the_estimated_prior_of_a_unit_knows_neither_its_fold_nor_members() -> None:
    odds, values, labels, design = world(2)
    folds = np.arange(200) // 2 % 2
    before = attribute_inference(0 * odds, values, labels, design, folds=folds, permutations=9, seed=0)
    changed = np.where(design.first & (folds == 0), 0, values)  # members' values enter no prior
    after = attribute_inference(0 * odds, changed, labels, design, folds=folds, permutations=9, seed=0)
    assert before.non_members == after.non_members
    assert dataclasses.asdict(before) != dataclasses.asdict(after)


def test_attribute_inference_refuses_values_without_odds_and_missing_priors() -> None:
    odds, values, labels, design = world(0)
    with pytest.raises(UserError, match="from -1 to 2, but there are odds for 3"):
        attribute_inference(
            odds, np.where(values == 0, -1, values), labels, design, prior=np.ones((2, 3)), permutations=9, seed=0
        )
    with pytest.raises(UserError, match="neither a prior nor two folds"):
        attribute_inference(odds, values, labels, design, permutations=9, seed=0)
