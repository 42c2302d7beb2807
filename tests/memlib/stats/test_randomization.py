"""Redraws of a design against brute force, and p-values that are exact."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.stats import randomization
from memlib.stats.inference import permutation_p
from memlib.stats.randomization import (
    Design,
    attributable_bound,
    attributable_least,
    detectable,
    detectable_answers,
    home_labels,
    signed_distribution,
    smallest_two_class_p,
    sum_distribution,
    two_sided_p,
)
from tests.assignments import assert_exact, assignments_of, each_observed
from tests.chance import least_of, most_of

RNG = np.random.default_rng(0)


def every_draw(design: Design, values: np.ndarray) -> list[float]:
    """Sums on the first side of all draws, by brute force."""
    by_group = {g: float(values[design.group == g].sum()) for g in np.unique(design.group)}
    strata = {g: int(design.stratum[design.group == g][0]) for g in by_group}
    first = {g: bool(design.first[design.group == g][0]) for g in by_group}
    choices = []
    for stratum in sorted(set(strata.values())):
        members = [g for g in by_group if strata[g] == stratum]
        taken = sum(first[g] for g in members)
        choices.append([sum(by_group[g] for g in chosen) for chosen in itertools.combinations(members, taken)])
    return [sum(parts) for parts in itertools.product(*choices)]


def every_difference(design: Design, values: np.ndarray) -> list[float]:
    """Difference of means within strata for each draw, weighted by n1 n2 / (n1 + n2), written out."""
    firsts = np.array(every_draw_of_sides(design))
    found = []
    for first in firsts:
        parts = []
        for stratum in np.unique(design.stratum):
            inside = design.stratum == stratum
            one, other = values[inside & first], values[inside & ~first]
            if len(one) and len(other):
                parts.append((len(one) * len(other) / (len(one) + len(other)), one.mean() - other.mean()))
        found.append(sum(weight * value for weight, value in parts) / sum(weight for weight, _ in parts) if parts else 0.0)
    return found


def every_draw_of_sides(design: Design) -> list[np.ndarray]:
    """First sides of all draws: bit g of the sum of 2^g over groups tells where group g is."""
    powers = np.array([2.0**group / (design.group == group).sum() for group in design.group])
    return [(round(total) >> design.group & 1).astype(bool) for total in every_draw(design, powers)]


def a_design(seed: int, *, groups: bool = False) -> tuple[Design, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], [6, 5])
    group = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8]) if groups else np.arange(11)
    side = rng.random(group.max() + 1) < 0.5
    values = rng.integers(-2, 3, size=11)
    return Design.of(side[group], labels, group), values


# -- every assignment as the observed one ---------------------------------------------------------------

ZEROS = np.zeros(8, dtype=np.int64)
PERSONS = np.repeat(np.arange(8), [1, 3, 1, 2, 5, 1, 4, 2])
DESIGNS = {
    "4 of 8": Design.of(np.arange(8) < 4, ZEROS),  # 70 draws
    "3 of 8": Design.of(np.arange(8) < 3, ZEROS),  # 56
    "2 of 4 twice": Design.of(np.arange(8) % 4 < 2, np.arange(8) // 4),  # 36
    "1 of 3 and 3 of 5": Design.of(np.isin(np.arange(8), [0, 3, 4, 5]), np.arange(8) // 3 > 0),  # 30
    "4 of 8 persons": Design.of(PERSONS < 4, np.zeros(len(PERSONS), dtype=np.int64), PERSONS),  # 70
    "2 of 4 persons twice": Design.of(PERSONS % 4 < 2, PERSONS // 4, PERSONS),  # 36
}
SYMMETRIC = [name for name in DESIGNS if name not in ("3 of 8", "1 of 3 and 3 of 5")]
VALUES = {"distinct": 2 ** np.arange(8), "tied": np.array([0, 1, -1, 1, 0, 2, 1, 0]), "equal": np.ones(8, dtype=np.int64)}


def values_of(design: Design, kind: str) -> np.ndarray:
    """A value for each unit, equal within a group."""
    return np.asarray(VALUES[kind][design.number])


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("by", ["sums", "every draw", "redraws", "drawn counts"])
def test_tails_are_exact_for_every_assignment(design: str, kind: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by in ("redraws", "drawn counts"):
        monkeypatch.setattr(randomization, "MOST_WORK", -1.0)  # no exact computation
    if by == "drawn counts":
        monkeypatch.setattr(randomization, "MOST_REDRAWN", -1)
    permutations = 0 if by == "redraws" else 100
    designs = each_observed(DESIGNS[design])
    assert_exact([one.tail_p(values_of(one, kind), permutations=permutations, seed=0) for one in designs])


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("kind", VALUES)
def test_one_sided_permutation_p_values_are_exact_for_every_assignment(design: str, kind: str) -> None:
    p_values = []
    for one in each_observed(DESIGNS[design]):
        values = values_of(one, kind)
        p_values.append(permutation_p(one.difference(values), one.redrawn_differences(values, 1, seed=0)))
    assert_exact(p_values)
    if kind == "distinct" and not DESIGNS[design].has_groups:
        assert len(set(p_values)) == len(p_values)


@pytest.mark.parametrize("design", SYMMETRIC)
@pytest.mark.parametrize("kind", VALUES)
def test_two_sided_permutation_p_values_are_exact_for_every_assignment(design: str, kind: str) -> None:
    """Exchanging the sides turns the sign of a difference, so that both tails of each are equally likely."""
    found = []
    for one in each_observed(DESIGNS[design]):
        values = values_of(one, kind)
        found.append(
            (one.difference(values), two_sided_p(one.difference(values), one.redrawn_differences(values, 1, seed=0)))
        )
    assert_exact([p for _, p in found])
    differences = np.array([difference for difference, _ in found])
    for difference, p in found:
        assert p == pytest.approx((np.abs(differences) >= abs(difference) - 1e-9).mean())


def test_two_sided_p_values_of_unequal_sides_are_exact_without_ties() -> None:
    values = VALUES["distinct"]
    designs = list(each_observed(DESIGNS["3 of 8"]))
    assert_exact([two_sided_p(one.difference(values), one.redrawn_differences(values, 1, seed=0)) for one in designs])
    assert_exact([two_sided_p(values[one.first].sum(), one.redrawn_sums(values, 1, seed=0)) for one in designs])


def test_given_redraws_are_used_as_they_are() -> None:
    design = next(each_observed(DESIGNS["2 of 4 persons twice"]))
    draws = assignments_of(design)
    assert len(draws) == 36
    assert np.array_equal(next(design.redraws(5, seed=0)), draws[1:])
    values = np.stack([values_of(design, "distinct"), values_of(design, "tied")], axis=1)
    assert design.redrawn_sums(values, 5, seed=0) == pytest.approx(draws[1:] @ values)


def test_only_large_differences_of_persons_of_unequal_size_are_significant() -> None:
    """No rejection points away from memory, though sums over persons of unequal size do not order the differences."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        gains = rng.integers(-1, 2, len(PERSONS)) + rng.integers(-1, 2, 8)[PERSONS]
        for one in each_observed(DESIGNS["4 of 8 persons"]):
            assert one.tail_p(gains, permutations=99, seed=0) > 0.2 or one.difference(gains) > 0


@pytest.mark.parametrize("design", ["4 of 8", "2 of 4 twice", "1 of 3 and 3 of 5"])
@pytest.mark.parametrize("level", [0.06, 0.15])
def test_bounds_of_the_answers_due_to_a_side_miss_at_most_in_their_level_of_all_assignments(
    design: str, level: float
) -> None:
    """Answers without memory are fixed; memory turns wrong answers of the models of a unit's own side into right ones."""
    rng = np.random.default_rng(0)
    for _ in range(8):
        plain, memory, over = rng.random((2, 8)) < 0.4, rng.random(8) < 0.6, np.zeros(2)
        for one in each_observed(DESIGNS[design]):
            own = np.where(one.first, *plain)
            due = int((memory & ~own).sum())
            gains = plain[0].astype(int) - plain[1] + np.where(one.first, 1, -1) * (memory & ~own)
            right = (own | memory).astype(int)
            most = attributable_bound(one, gains, right, permutations=99, seed=0, level=level)
            least = attributable_least(one, gains, right, permutations=99, seed=0, level=level)
            over += [due and (most is None or most < due), least > due]
        assert (over <= level * len(assignments_of(DESIGNS[design])) + 1e-9).all()


def tail(design: Design, values: np.ndarray) -> float:
    """The share of all draws with at least the observed sum, for units in one stratum and no groups."""
    sums = assignments_of(design) @ values
    return float((sums >= values[design.first].sum()).mean())


@pytest.mark.parametrize("first", [[0, 1, 2, 3], [0, 2, 4, 6], [1, 4, 6, 7]])
def test_bounds_of_the_answers_due_to_a_side_end_where_tails_of_all_draws_do(first: list[int]) -> None:
    """Levels are those of attained tails: a tail of just the level is rejected."""
    design = Design.of(np.isin(np.arange(8), first), ZEROS)
    gains, right = np.where(design.first, [2, 1, 2, 1, 0, 2, 1, 2], [0, -2, 1, -1, -2, 0, -1, -2]), np.full(8, 2)
    removed = randomization._without(design, gains, right)
    lower, upper = ([tail(design, sign * removed(count)) for count in range(17)] for sign in (-1, 1))
    for level in {*lower, *upper, 0.03} - {1.0}:
        most = attributable_bound(design, gains, right, permutations=99, seed=0, level=level + 1e-12)
        least = attributable_least(design, gains, right, permutations=99, seed=0, level=level + 1e-12)
        kept = [count for count in range(17) if lower[count] > level + 1e-12]
        assert most == (max(kept) if kept else None)
        assert least == min([count for count in range(17) if upper[count] > level + 1e-12], default=16)


def test_smallest_p_of_two_classes_is_one_of_all_pairs_of_draws() -> None:
    assert smallest_two_class_p(2, 2) == 1 / 36
    assert smallest_two_class_p(3, 2) == smallest_two_class_p(2, 3) == 1 / 100
    assert smallest_two_class_p(1, 1001) == 1 / 1002**2
    assert smallest_two_class_p(1001, 1001) == 0.0
    design = Design.of(np.arange(10) % 5 < 2, np.arange(10) // 5)
    assert design.smallest_p(design.first.astype(int)) == pytest.approx(smallest_two_class_p(2, 3))


def test_quick_p_is_the_normal_tail_of_the_continuous_sum() -> None:
    first, values = np.arange(200) < 100, np.where(np.arange(200) % 2 == 0, 1, -1)
    values[:20] = 1  # on the first side 60 of 1 and 40 of -1, on the second 50 and 50
    design = Design.of(first, np.zeros(200, dtype=np.int64))
    variance = 100 * 100 / 200 * (200 - 20**2 / 200) / 199
    assert design.quick_p(values, draws=9, seed=0) == pytest.approx(
        scipy.stats.norm.sf((20 - 10 - 0.5) / math.sqrt(variance))
    )
    assert design.null_deviation(values) == pytest.approx(math.sqrt(variance))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("groups", [False, True])
def test_tails_are_counted_exactly(seed: int, groups: bool) -> None:
    design, values = a_design(seed, groups=groups)
    sums = np.array(every_draw(design, values.astype(float)))
    differences = np.array(every_difference(design, values))
    assert design.tail_p(values, permutations=1000, seed=0) == pytest.approx(
        (differences >= design.difference(values) - 1e-9).mean()
    )
    redrawn = design.redrawn_differences(values, 4000, seed=1)
    assert redrawn.mean() == pytest.approx(differences.mean(), abs=5 * max(0.01, differences.std()) / 60)
    assert redrawn.std() == pytest.approx(differences.std(), rel=0.1)
    centred = values - np.array([values[design.stratum == stratum].mean() for stratum in design.stratum])
    about = np.array(every_draw(design, centred))
    assert design.smallest_p(values) == pytest.approx((about >= about.max() - 1e-9).mean())
    assert design.null_deviation(values) == pytest.approx(about.std())
    drawn = design.redrawn_sums(values.astype(float), 4000, seed=1)
    assert set(np.round(drawn)) <= set(np.round(sums))
    assert drawn.mean() == pytest.approx(sums.mean(), abs=5 * max(0.01, sums.std()) / 60)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=9), share=st.floats(0, 1))
def test_sum_distribution_equals_an_enumeration_of_all_subsets(values: list[int], share: float) -> None:
    chosen = round(share * len(values))
    found, lowest = sum_distribution(np.array(values), chosen)
    sums = [sum(part) for part in itertools.combinations(values, chosen)]
    for place, probability in enumerate(found):
        assert probability == pytest.approx(sums.count(lowest + place) / len(sums), abs=1e-12)


def test_large_designs_are_drawn_at_random() -> None:
    labels = np.zeros(40_000, dtype=np.int64)
    first = np.arange(40_000) % 2 == 0
    values = RNG.integers(-2, 3, size=40_000)
    p = Design.of(first, labels).tail_p(values, permutations=99, seed=0)
    assert 100 * p == pytest.approx(round(100 * p))


@settings(max_examples=60, deadline=None)
@given(values=st.lists(st.integers(-1, 1), min_size=1, max_size=40), share=st.floats(0, 1))
def test_distribution_of_sums_of_signs_equals_the_general_one(values: list[int], share: float) -> None:
    own, chosen = np.array(values), round(share * len(values))
    whole, start = sum_distribution(own, chosen)
    found, lowest = signed_distribution(len(own), int((own > 0).sum()), int((own < 0).sum()), chosen)
    assert lowest <= start + int(np.flatnonzero(whole)[0])
    for place, probability in enumerate(whole):
        here = start + place - lowest
        assert (found[here] if 0 <= here < len(found) else 0.0) == pytest.approx(probability, abs=1e-12)


def test_tails_of_many_strata_equal_those_of_one_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = np.repeat(np.arange(30), 20)
    first, values = np.arange(600) % 2 == 0, np.random.default_rng(1).integers(-1, 2, size=600)
    design = Design.of(first, labels)
    total = np.ones(1)
    for label in range(30):
        total = np.convolve(total, sum_distribution(values[labels == label], 10)[0])
    at = int(values[first].sum()) + int((values < 0).sum())
    assert design.tail_p(values, permutations=9, seed=0) == pytest.approx(total[at:].sum(), rel=1e-9)
    monkeypatch.setattr(randomization, "MOST_WORK", 0.0)
    slow = design.tail_p(values, permutations=20_000, seed=0)
    monkeypatch.setattr(randomization, "MOST_REDRAWN", 0)
    fast = design.tail_p(values, permutations=20_000, seed=0)  # by how often each value is drawn
    for p in (slow, fast):
        assert p == pytest.approx(total[at:].sum(), abs=0.015)


def test_redraws_keep_counts_and_groups() -> None:
    design, _ = a_design(3, groups=True)
    for sides in design.redraws(50, seed=0):
        for draw in sides:
            Design.of(draw, np.repeat([0, 1], [6, 5]), design.group)  # whole groups
            for stratum in np.unique(design.stratum):
                mine = design.stratum == stratum
                assert len(set(design.group[mine & draw])) == len(set(design.group[mine & design.first]))


def test_a_group_on_two_sides_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one side"):
        Design.of(np.array([True, False]), np.zeros(2, dtype=np.int64), np.zeros(2, dtype=np.int64))


def test_home_labels_are_most_frequent_and_two_sided_p_counts_both_tails() -> None:
    assert home_labels(np.array([2, 1, 1, 3, 2]), np.array([0, 0, 0, 1, 1])).tolist() == [1, 2]
    null = np.arange(-50, 50) * 1.0
    assert two_sided_p(0.0, null) == 1.0
    assert two_sided_p(49.0, null) == pytest.approx(2 * 2 / 101)
    assert two_sided_p(-60.0, null) == pytest.approx(2 / 101)


def test_detectable_equals_the_normal_quantiles_for_a_power_of_80_percent() -> None:
    assert detectable(1.0, 0.05) == pytest.approx(1.6449 + 0.8416, abs=1e-3)
    assert detectable(1.0, 0.05, two_sided=True) == pytest.approx(1.9600 + 0.8416, abs=1e-3)
    assert detectable(0.0, 0.05) is None


def test_attributable_bound_of_20_pairs_is_at_least_4_and_none_without_right_answers() -> None:
    """All models answer all images correctly; removing a right answers leaves a losses, with p = 2^-a."""
    first = np.arange(40) < 20
    design = Design(first, np.arange(40) % 20, np.arange(40))  # pairs, one on each side
    bound = attributable_bound(design, np.zeros(40, dtype=np.int64), np.ones(40, dtype=np.int64), permutations=9, seed=0)
    assert bound is not None
    assert math.isclose(0.5**4, 0.0625)
    assert bound >= 4
    nothing = np.zeros(40, dtype=np.int64)
    assert attributable_bound(design, nothing, nothing, permutations=9, seed=0) is None


# -- groups of unequal size -----------------------------------------------------------------------------


def persons_of(seed: int, *, share: float = 0.5, count: int = 40) -> tuple[Design, np.ndarray]:
    """Draw persons with 1 to 60 units, in two classes; return their design and an ease for each unit, alike in a person."""
    rng = np.random.default_rng(seed)
    persons = np.repeat(np.arange(count), rng.integers(1, 61, count))
    labels, sides = np.arange(count) % 2, np.zeros(count, dtype=bool)
    for label in (0, 1):
        members = rng.permutation(np.flatnonzero(labels == label))
        sides[members[: round(share * len(members))]] = True
    return Design.of(sides[persons], labels[persons], persons), rng.random(count)[persons]


def test_difference_and_p_value_ignore_a_constant_added_to_all_values() -> None:
    design, ease = persons_of(0)
    values = np.random.default_rng(0).integers(-1, 2, len(ease))
    assert design.difference(values + 7) == pytest.approx(design.difference(values))
    assert design.tail_p(values + 7, permutations=199, seed=0) == design.tail_p(values, permutations=199, seed=0)


@pytest.mark.parametrize("pair", [True, False])
def test_detectable_answers_are_found_with_a_power_near_80_percent(pair: bool) -> None:
    found = tries = 0
    for draw in range(30):
        rng = np.random.default_rng([draw, int(pair)])
        right, labels = rng.random((2, 80)) < 0.15, np.arange(80) % 4
        gains, wrong = right[0].astype(np.int64) - right[1], ((~right[0]).astype(int), (~right[1] & pair).astype(int))
        sides = [np.isin(np.arange(80), np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:10] for c in range(4)]))
                 for _ in range(5)]  # fmt: skip
        due = detectable_answers(Design.of(sides[0], labels), gains, wrong, alpha=0.05, seed=draw)
        assert due is not None
        for side in sides[1:]:
            chosen = rng.permutation(np.flatnonzero(np.where(side, *wrong)))[:due]
            memory = gains.copy()
            memory[chosen] += np.where(side[chosen], 1, -1)
            found, tries = found + (Design.of(side, labels).tail_p(memory, permutations=99, seed=0) <= 0.05), tries + 1
    assert least_of(tries, 0.72) <= found <= most_of(tries, 0.92)


def test_no_memory_is_detected_where_every_answer_is_right_or_nobody_differs_in_side() -> None:
    labels, side, none = np.zeros(8, dtype=np.int64), np.arange(8) < 4, np.zeros(8, dtype=np.int64)
    assert detectable_answers(Design.of(side, labels), none, (none, none), alpha=0.05, seed=0) is None
    assert detectable_answers(Design.of(side, side.astype(np.int64)), none, (none + 1, none), alpha=0.05, seed=0) is None


def test_answers_that_no_draw_can_test_count_towards_the_bound() -> None:
    """With classes on one side only, redraws do not change what the model remembers of them."""
    labels = np.concatenate([np.zeros(100, dtype=np.int64), 1 + np.arange(50)])
    first = np.concatenate([np.arange(100) % 2 == 0, np.arange(50) % 2 == 0])
    gains = np.where(labels > 0, np.where(first, 1, -1), 0)
    bound = attributable_bound(Design.of(first, labels), gains, (labels > 0).astype(int), permutations=99, seed=0)
    assert bound == 50
    assert attributable_bound(Design.of(first, labels), gains, np.zeros(150, dtype=int), permutations=99, seed=0) is None


def test_detectable_answers_exist_at_the_small_level_of_many_looks() -> None:
    design, ease = persons_of(1, count=80)
    none = np.zeros(len(ease), dtype=np.int64)
    assert detectable_answers(design, none, (none + 1, none + 1), alpha=0.004, seed=0) is not None


@pytest.mark.parametrize("planted", [0.0, 0.05, 0.1])
def test_quick_p_of_many_unequal_groups_is_close_to_the_permutation_p(planted: float) -> None:
    rng = np.random.default_rng(0)
    sizes, homes, first = rng.integers(1, 9, 300), rng.integers(0, 4, 300), np.zeros(300, dtype=bool)
    for home in range(4):
        mine = rng.permutation(np.flatnonzero(homes == home))
        first[mine[: len(mine) // 3]] = True
    groups = np.repeat(np.arange(300), sizes)
    design = Design.of(first[groups], homes[groups], groups)
    gains = rng.integers(-1, 2, len(groups)) + design.first * (rng.random(len(groups)) < planted)
    quick, slow = design.quick_p(gains, draws=199, seed=0), design.tail_p(gains, permutations=9_999, seed=1)
    assert not design.is_even
    assert abs(quick - slow) < 0.02 + 5 * math.sqrt(slow * (1 - slow) / 9_999)
