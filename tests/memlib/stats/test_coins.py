"""The coin tests against statistics counted by hand, their level under redrawn coins, and plants."""

import itertools

import numpy as np
import pytest
import scipy

from memlib.stats.coins import all_targets_p, coin_test, coin_tests, counts_p, cuts, smallest_p, statistics
from memlib.stats.inference import permutation_p
from memlib.stats.operating import auc
from memlib.stats.randomization import Design
from tests.assignments import assert_exact, each_observed


def coins_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, count).astype(bool)


def test_statistics_of_scores_are_ranks_and_top_counts() -> None:
    scores = np.random.default_rng(0).normal(size=250)
    columns = statistics(scores)
    order = np.argsort(-scores)
    assert columns[order[:3], 0].tolist() == [1.0, 249 / 250, 248 / 250]
    for place, size in enumerate(cuts(250), start=1):
        assert set(np.flatnonzero(columns[:, place])) == set(order[:size])


def test_cuts_double_up_to_a_tenth_of_the_units() -> None:
    assert cuts(200) == [10, 20]  # a tenth itself is a cut
    assert cuts(199) == [10]
    assert cuts(1) == [1]
    assert cuts(20) == cuts(100) == [10]
    assert cuts(19) == [9]


def test_statistics_of_tied_scores_share_their_places() -> None:
    columns = statistics(np.repeat([2.0, 1.0, 0.0], [4, 12, 24]))  # ten places: 4 units, then 6 places for 12 units
    assert columns[:, 1].tolist() == [1.0] * 4 + [0.5] * 12 + [0.0] * 24


def test_auc_p_is_the_permutation_p_of_the_auc_itself() -> None:
    member, strata = coins_of(1, 40), np.arange(40) % 2
    scores = np.random.default_rng(1).normal(size=40) + 0.4 * member
    result = coin_test(scores, member, strata, redraws=199, seed=3)
    sides = np.concatenate(list(Design(member, strata, np.arange(40)).redraws(199, seed=3)))
    assert result.auc == auc(scores, member, blocks=strata)
    assert result.auc_p == permutation_p(result.auc, np.array([auc(scores, side, blocks=strata) for side in sides]))


DESIGNS = {
    "4 of 8": Design.of(np.arange(8) < 4, np.zeros(8, dtype=int)),
    "2 of 8": Design.of(np.arange(8) < 2, np.zeros(8, dtype=int)),
    "2 of 4 twice": Design.of(np.arange(8) % 4 < 2, np.arange(8) // 4),
    "1 of 5 and 2 of 4": Design.of(np.isin(np.arange(9), [0, 5, 6]), np.arange(9) // 5),
}
SCORES = {
    "distinct": np.array([0.1, 0.5, 2.0, 3.3, 7.0, 4.2, 9.0, 1e6, -1.0]),
    "tied": np.array([0.0, 0, 1, 1, 1, 2, 3, 3, 2]),
    "of two values": np.array([0.0, 0, 0, 0, 0, 1, 1, 1, 0]),
}


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize("scores", SCORES)
def test_p_values_are_exact_for_every_assignment_of_the_coins(design: str, scores: str) -> None:
    """The AUC alone, the top alone, both together, and attacks that rank alike, which need no adjustment."""
    found = []
    for one in each_observed(DESIGNS[design]):
        mine = SCORES[scores][: len(one.first)]
        copies = np.stack([mine, np.cbrt(mine), mine])
        single = coin_test(mine, one.first, one.stratum, redraws=1, seed=0, given=one.given)
        assert coin_tests(copies, one.first, one.stratum, redraws=1, seed=0, given=one.given) == [single] * 3
        found.append(single)
    for p_values in ([one.auc_p for one in found], [one.tail_p for one in found], [one.p_value for one in found]):
        assert_exact(p_values)


def test_several_attacks_are_adjusted_by_the_largest_standardized_statistic() -> None:
    """Written out: the rank and the one cut of each attack, over 199 redraws."""
    rng, member = np.random.default_rng(3), coins_of(3, 80)
    scores = np.stack([rng.normal(size=80) + member, rng.normal(size=80)])
    sides = np.concatenate([member[None], *Design.of(member, np.zeros(80, dtype=int)).redraws(199, seed=4)])
    sums = np.concatenate([sides @ statistics(row) for row in scores], axis=1)
    standard = (sums - sums[1:].mean(axis=0)) / sums[1:].std(axis=0)
    expected = [
        [(1 + (standard[1:, columns].max(axis=1) >= standard[0, column] - 1e-9).sum()) / 200 for column in columns]
        for columns in ([0, 1, 2, 3], [0, 1], [2, 3], [1], [3])
    ]
    first, second = coin_tests(scores, member, np.zeros(80, dtype=int), redraws=199, seed=4)
    assert (first.adjusted_p, second.adjusted_p) == (min(expected[0][:2]), min(expected[0][2:]))
    assert (first.p_value, second.p_value) == (min(expected[1]), min(expected[2]))
    assert (first.tail_p, second.tail_p) == (expected[3][0], expected[4][0])


def test_rare_and_strong_memory_is_found_at_the_top_but_not_by_the_auc() -> None:
    found = np.zeros(2, dtype=int)
    for seed in range(20):
        rng, member = np.random.default_rng(seed), coins_of(seed + 100, 2000)
        memorized = member & (rng.random(2000) < 0.02)
        scores = rng.normal(size=2000) + 6 * memorized
        result = coin_test(scores, member, np.zeros(2000, dtype=int), redraws=199, seed=seed)
        found += np.array([result.auc_p, result.p_value]) <= 0.01
    assert found[0] <= 10
    assert found[1] >= 18


def test_weak_and_common_memory_is_found_by_the_auc() -> None:
    found = 0
    for seed in range(20):
        member = coins_of(seed + 200, 2000)
        scores = np.random.default_rng(seed).normal(size=2000) + 0.25 * member
        found += coin_test(scores, member, np.zeros(2000, dtype=int), redraws=199, seed=seed).p_value <= 0.01
    assert found == 20


def test_members_with_lower_scores_are_not_found() -> None:
    member = coins_of(4, 400)
    scores = np.random.default_rng(4).normal(size=400) - 3 * member
    assert coin_test(scores, member, np.zeros(400, dtype=int), redraws=99, seed=0).p_value > 0.9


def test_order_of_units_and_scale_of_scores_change_only_the_random_draws() -> None:
    member = coins_of(5, 100)
    scores = np.random.default_rng(5).normal(size=100) + member
    strata = np.zeros(100, dtype=int)
    first = coin_test(scores, member, strata, redraws=99, seed=0)
    assert coin_test(np.exp(scores), member, strata, redraws=99, seed=0) == first


def test_a_single_attack_is_not_adjusted() -> None:
    member = coins_of(6, 60)
    result = coin_test(np.random.default_rng(6).normal(size=60), member, np.zeros(60, dtype=int), redraws=99, seed=0)
    assert result.adjusted_p == result.p_value


@pytest.mark.parametrize(("p_values", "combined"), [([0.01, 0.03], 0.04), ([0.9, 0.9], 1.0), ([0.2], 0.4)])
def test_all_targets_p_is_twice_the_mean(p_values: list[float], combined: float) -> None:
    assert all_targets_p(p_values) == pytest.approx(combined)


@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_counts_of_independent_coins_are_rejected_at_most_at_the_level(rate: float) -> None:
    """By sums over the numbers of members of four strata."""
    sizes = np.array([2, 3, 4, 6])
    strata, rejected = np.repeat(np.arange(4), sizes), {0.05: 0.0, 0.2: 0.0}
    for counts in itertools.product(*(range(size + 1) for size in sizes)):
        member = np.concatenate([np.arange(size) < count for size, count in zip(sizes, counts, strict=True)])
        p = counts_p(member, strata, rate, draws=1999, seed=0)
        weight = float(scipy.stats.binom.pmf(counts, sizes, rate).prod())
        for level in rejected:
            rejected[level] += weight * (p <= level)
    assert all(share <= level + 0.01 for level, share in rejected.items())  # of the 1,999 tosses


def test_counts_that_differ_by_stratum_and_those_of_a_stratified_split_are_found() -> None:
    rng, strata = np.random.default_rng(0), np.repeat(np.arange(40), 10)
    assert counts_p(rng.random(400) < np.where(strata % 2, 0.7, 0.3), strata, 0.5, draws=999, seed=0) <= 0.01
    assert counts_p(np.arange(400) % 2 == 0, strata, 0.5, draws=999, seed=0) <= 0.01
    assert counts_p(rng.random(400) < 0.5, strata, 0.5, draws=999, seed=0) > 0.05


def test_the_smallest_p_is_one_in_the_number_of_draws_within_strata() -> None:
    member, strata = np.array([True, False, False, True, True, False, False]), np.array([0, 0, 0, 1, 1, 1, 2])
    assert smallest_p(member, strata) == pytest.approx(1 / (3 * 3))
    assert smallest_p(np.arange(10_000) % 2 == 0, np.zeros(10_000, dtype=int)) < 1e-300


def test_the_test_sees_what_the_auc_within_strata_shows() -> None:
    """Memory in a small stratum whose scores lie around those of a large one, and none that is an accident of the strata."""
    rng, strata = np.random.default_rng(0), np.repeat([0, 1], [120, 120])
    member = rng.random(240) < 0.5
    scores = np.where(strata == 0, rng.normal(0, 0.1, 240), rng.normal(0, 9, 240) + 12 * member)
    found = coin_test(scores, member, strata, redraws=999, seed=0)
    assert found.auc > 0.5
    assert found.p_value < 0.05
    by_stratum = np.where(strata == 0, rng.normal(0, 1, 240), rng.normal(9, 1, 240))
    assert coin_test(by_stratum, member, strata, redraws=999, seed=0).auc_p > 0.01
