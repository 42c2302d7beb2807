"""The coin tests against statistics counted by hand, their level under redrawn coins, and plants."""

import numpy as np
import pytest

from memlib.stats.coins import all_targets_p, coin_test, coin_tests, cuts, statistics
from memlib.stats.inference import permutation_p
from memlib.stats.operating import auc
from memlib.stats.randomization import Design
from tests.chance import most_of


def coins_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2, count).astype(bool)


def test_statistics_of_scores_are_ranks_and_top_counts() -> None:
    scores = np.random.default_rng(0).normal(size=250)
    columns = statistics(scores)
    order = np.argsort(-scores)
    assert columns[order[:3], 0].tolist() == [1.0, 249 / 250, 248 / 250]
    for place, size in enumerate(cuts(250), start=1):
        assert set(np.flatnonzero(columns[:, place])) == set(order[:size])


def test_statistics_of_tied_scores_share_their_places() -> None:
    columns = statistics(np.repeat([2.0, 1.0, 0.0], [4, 12, 24]))  # ten places: 4 units, then 6 places for 12 units
    assert columns[:, 1].tolist() == [1.0] * 4 + [0.5] * 12 + [0.0] * 24


def test_auc_p_is_the_permutation_p_of_the_auc_itself() -> None:
    member, strata = coins_of(1, 40), np.arange(40) % 2
    scores = np.random.default_rng(1).normal(size=40) + 0.4 * member
    result = coin_test(scores, member, strata, redraws=199, seed=3)
    sides = np.concatenate(list(Design(member, strata, np.arange(40)).redraws(199, seed=3)))
    assert result.auc == auc(scores, member)
    assert result.auc_p == permutation_p(result.auc, np.array([auc(scores, side) for side in sides]))


def test_level_is_kept_for_skewed_scores_of_rare_members() -> None:
    """Members are one fifth in one stratum and half in the other, where scores are higher: no redraw crosses strata."""
    rng, rejected, strata = np.random.default_rng(2), np.zeros(3, dtype=int), np.repeat([0, 1], 60)
    for seed in range(300):
        member = rng.random(120) < np.where(strata == 0, 0.2, 0.5)
        scores = rng.standard_exponential(120) ** 3 + 5 * strata
        result = coin_test(scores, member, strata, redraws=99, seed=seed)
        rejected += np.array([result.auc_p, result.tail_p, result.p_value]) <= 0.05
    assert rejected.max() <= most_of(300, 0.05)


def test_several_attacks_keep_the_level_of_the_family() -> None:
    rng, rejected = np.random.default_rng(3), 0
    for seed in range(200):
        member, base = coins_of(seed, 80), rng.normal(size=80)
        scores = np.stack([base, base + 0.1 * rng.normal(size=80), rng.normal(size=80)])
        results = coin_tests(scores, member, np.zeros(80, dtype=int), redraws=99, seed=seed)
        rejected += min(result.adjusted_p for result in results) <= 0.05
        assert all(result.adjusted_p >= result.p_value - 1e-12 for result in results)
    assert rejected <= most_of(200, 0.05)


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
