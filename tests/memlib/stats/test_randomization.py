"""Redraws of a design against brute force, and p-values that are exact."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.stats import randomization
from memlib.stats.randomization import (
    Design,
    attributable_bound,
    detectable,
    home_labels,
    signed_distribution,
    sum_distribution,
    two_sided_p,
)

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


def a_design(seed: int, *, groups: bool = False) -> tuple[Design, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = np.repeat([0, 1], [6, 5])
    group = np.array([0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 8]) if groups else np.arange(11)
    side = rng.random(group.max() + 1) < 0.5
    values = rng.integers(-2, 3, size=11)
    return Design.of(side[group], labels, group), values


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("groups", [False, True])
def test_tails_are_counted_exactly(seed: int, groups: bool) -> None:
    design, values = a_design(seed, groups=groups)
    sums = np.array(every_draw(design, values.astype(float)))
    observed = values[design.first].sum()
    assert design.tail_p(values, permutations=10, seed=0) == pytest.approx((sums >= observed).mean())
    assert design.smallest_p(values.astype(float)) == pytest.approx((sums == sums.max()).mean())
    assert design.null_deviation(values.astype(float)) == pytest.approx(sums.std())
    drawn = design.redrawn_sums(values.astype(float), 4000, seed=1)
    assert set(np.round(drawn)) <= set(np.round(sums))
    assert drawn.mean() == pytest.approx(sums.mean(), abs=5 * max(0.01, sums.std()) / 60)


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=9), share=st.floats(0, 1))
def test_the_distribution_of_a_sum_without_replacement(values: list[int], share: float) -> None:
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
def test_sums_of_signs_are_counted_as_any_others(values: list[int], share: float) -> None:
    own, chosen = np.array(values), round(share * len(values))
    whole, start = sum_distribution(own, chosen)
    found, lowest = signed_distribution(len(own), int((own > 0).sum()), int((own < 0).sum()), chosen)
    assert lowest <= start + int(np.flatnonzero(whole)[0])
    for place, probability in enumerate(whole):
        here = start + place - lowest
        assert (found[here] if 0 <= here < len(found) else 0.0) == pytest.approx(probability, abs=1e-12)


def test_tails_of_many_strata_are_those_of_one_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_home_labels_and_two_sided_p() -> None:
    assert home_labels(np.array([2, 1, 1, 3, 2]), np.array([0, 0, 0, 1, 1])).tolist() == [1, 2]
    null = np.arange(-50, 50) * 1.0
    assert two_sided_p(0.0, null) == 1.0
    assert two_sided_p(49.0, null) == pytest.approx(2 * 2 / 101)
    assert two_sided_p(-60.0, null) == pytest.approx(2 / 101)


def test_what_is_detectable() -> None:
    assert detectable(1.0, 0.05) == pytest.approx(1.6449 + 0.8416, abs=1e-3)
    assert detectable(1.0, 0.05, two_sided=True) == pytest.approx(1.9600 + 0.8416, abs=1e-3)
    assert detectable(0.0, 0.05) is None


def test_the_attributable_bound_by_hand() -> None:
    """All own answers right and all other answers right: removing a of them leaves a losses, 2^-a."""
    first = np.arange(40) < 20
    design = Design(first, np.arange(40) % 20, np.arange(40))  # pairs, one on each side
    bound = attributable_bound(design, np.zeros(40, dtype=np.int64), np.ones(40, dtype=np.int64), permutations=9, seed=0)
    assert bound is not None
    assert math.isclose(0.5**4, 0.0625)
    assert bound >= 4
    nothing = np.zeros(40, dtype=np.int64)
    assert attributable_bound(design, nothing, nothing, permutations=9, seed=0) is None
