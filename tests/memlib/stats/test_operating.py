"""AUC, its interval, and operating points against pairs counted one by one, and against exchangeable scores."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.inference import exact_interval
from memlib.stats.operating import (
    _clustered_variance,
    _influence,
    _score_interval,
    above_all,
    auc,
    auc_interval,
    even_shares,
    interval_within,
    most_alarms,
    operating_point,
    rank_above,
    roc,
)


def tied_scores(seed: int, count: int = 60) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, 12, count) / 2.0, rng.integers(0, 2, count).astype(bool)


def pairs_won(scores: np.ndarray, member: np.ndarray) -> np.ndarray:
    """Return 1, 1/2 or 0 for each pair of a member and a non-member."""
    own, others = scores[member][:, None], scores[~member][None]
    return (own > others) + 0.5 * (own == others)


@pytest.mark.parametrize("seed", range(4))
def test_auc_is_the_share_of_pairs_won_with_ties_half(seed: int) -> None:
    scores, member = tied_scores(seed)
    assert auc(scores, member) == pytest.approx(pairs_won(scores, member).mean(), abs=1e-12)
    assert auc(-scores, member) == pytest.approx(1 - auc(scores, member), abs=1e-12)


def pairs_of(scores: NDArray[np.float64], member: NDArray[np.bool_], blocks: NDArray[np.int64]) -> float:
    """The AUC, pair by pair."""
    won = [
        float(scores[i] > scores[j]) + 0.5 * float(scores[i] == scores[j])
        for i in np.flatnonzero(member) for j in np.flatnonzero(~member) if blocks[i] == blocks[j]
    ]  # fmt: skip
    return float(np.mean(won))


@pytest.mark.parametrize("blocks", [1, 3])
def test_auc_is_the_share_of_pairs_won_within_blocks(blocks: int) -> None:
    rng = np.random.default_rng(blocks)
    scores, member, block = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4, np.arange(40) % blocks
    assert auc(scores, member, blocks=block) == pytest.approx(pairs_of(scores, member, block))
    assert auc(-scores, member, blocks=block) == pytest.approx(1 - pairs_of(scores, member, block))


def test_auc_interval_is_delongs_for_many_units() -> None:
    rng = np.random.default_rng(3)
    member = np.arange(600) < 240
    scores = np.where(member, rng.exponential(2.0, 600), rng.normal(size=600))  # unlike Hanley and McNeil's law
    wins = (scores[member][:, None] > scores[~member]).astype(float)
    error = np.sqrt(wins.mean(axis=1).var(ddof=1) / 240 + wins.mean(axis=0).var(ddof=1) / 360)
    low, high = auc_interval(scores, member)
    value = auc(scores, member)
    assert low <= value - 1.95 * error
    assert high >= value + 1.95 * error
    assert high - low < 2.3 * 1.96 * error


def plain_variances(scores: np.ndarray, member: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """The variance of an AUC over single units, and over groups, written out (DeLong et al. 1988; Obuchowski 1997)."""
    own, others = np.flatnonzero(member), np.flatnonzero(~member)
    won = pairs_won(scores, member)
    alone, by_group = 0.0, dict.fromkeys(groups.tolist(), 0.0)
    for side, placed in ((own, won.mean(axis=1)), (others, won.mean(axis=0))):
        for unit, error in zip(side.tolist(), placed - placed.mean(), strict=True):
            alone += error**2 / (len(side) - 1) / len(side)
            by_group[int(groups[unit])] += error / math.sqrt((len(side) - 1) * len(side))
    count = len(by_group)
    return alone, sum(total**2 for total in by_group.values()) * (count / (count - 1) if count < len(groups) else 1)


def test_the_variance_of_two_clusters_is_twice_the_sum_of_their_squared_sums() -> None:
    influence, pairs = np.array([0.1, 0.2, -0.4, 0.3]), np.array([7, 7, 2, 2])
    assert _clustered_variance(influence, pairs) == pytest.approx((0.3**2 + 0.1**2) * 2 / 1)
    assert _clustered_variance(influence, np.array([0, 0, 1, 2])) == pytest.approx((0.3**2 + 0.4**2 + 0.3**2) * 3 / 2)
    assert _clustered_variance(influence, np.arange(4)) == pytest.approx(0.01 + 0.04 + 0.16 + 0.09)  # no clusters: as it is
    assert _clustered_variance(influence, np.zeros(4, dtype=np.int64)) == pytest.approx(0.2**2)  # one: no factor


@pytest.mark.parametrize("seed", range(4))
def test_auc_interval_of_groups_has_the_variance_written_out(seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(10), 4)
    member = groups % 3 == 0  # 16 of 40
    scores = np.round(rng.normal(size=10)[groups] + rng.normal(size=40) + 0.5 * member, 1)
    alone, together = plain_variances(scores, member, groups)
    assert _clustered_variance(_influence(scores, member, None), np.arange(40)) == pytest.approx(alone)
    assert _clustered_variance(_influence(scores, member, None), groups) == pytest.approx(together)
    value, quantile = auc(scores, member), 1.959964
    for inflation in (1.0, 2.0):
        sizes = [count / max(1.0, together / alone) / inflation for count in (16, 24)]
        inverse = _score_interval(value, *sizes, quantile)
        half = quantile * math.sqrt(together * inflation)
        expected = max(0.0, min(inverse[0], value - half)), min(1.0, max(inverse[1], value + half))
        assert auc_interval(scores, member, groups=groups, inflation=inflation) == pytest.approx(expected, abs=1e-6)


def test_auc_interval_of_identical_copies_is_that_of_as_many_units_as_groups() -> None:
    """Five equal rows of each person tell no more than one: their variance is that of ten single units with 10 / 9."""
    rng, member = np.random.default_rng(0), np.arange(10) < 5
    scores, copies = rng.normal(size=10), np.arange(10).repeat(5)
    once, many = plain_variances(scores, member, np.arange(10))[0], plain_variances(scores[copies], member[copies], copies)[1]
    assert many == pytest.approx(once * (4 * 5) / 24 * 10 / 9)  # 24 of 25 rows are free, not 4 of 5
    narrow, wide = (auc_interval(scores[copies], member[copies], groups=groups) for groups in (None, copies))
    assert wide[1] - wide[0] > 1.5 * (narrow[1] - narrow[0])


@pytest.mark.parametrize("value", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("sizes", [(10.0, 10.0), (4.0, 25.0)])
def test_score_intervals_end_where_hanley_and_mcneils_law_reaches_the_estimate(
    value: float, sizes: tuple[float, float]
) -> None:
    """Q1 = theta / (2 - theta), Q2 = 2 theta^2 / (1 + theta), each side with the mean of both numbers (Newcombe's method 5)."""
    low, high = _score_interval(value, *sizes, 1.96)
    middle = sum(sizes) / 2
    for theta in (low, high):
        if 0 < theta < 1:
            one, two = theta / (2 - theta), 2 * theta**2 / (1 + theta)
            variance = theta * (1 - theta) + (middle - 1) * (one - theta**2) + (middle - 1) * (two - theta**2)
            assert abs(theta - value) == pytest.approx(1.96 * math.sqrt(variance / (sizes[0] * sizes[1])), abs=1e-6)
    assert (low == 0) == (value == 0)
    assert (high == 1) == (value == 1)
    mirrored = _score_interval(1 - value, *sizes, 1.96)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-6)


def test_blocks_count_in_the_influence_by_their_pairs() -> None:
    """Two of three pairs of units lie in the second block, whose own influence counts two thirds."""
    scores, member = np.array([3.0, 1.0, 2.0, 1.0, 5.0, 4.0]), np.array([True, False, True, False, False, False])
    blocks = np.array([0, 0, 1, 1, 1, 2])
    second = _influence(scores[2:5], member[2:5], None)
    assert _influence(scores, member, blocks) == pytest.approx(np.concatenate([[0, 0], second * 2 / 3, [0]]))
    assert second == pytest.approx([0, 0.5 * math.sqrt(2) / 2, -0.5 * math.sqrt(2) / 2])


def test_auc_interval_of_a_perfect_order_is_not_a_point() -> None:
    member = np.arange(20) >= 10
    low, high = auc_interval(np.arange(20.0), member)
    assert 0.7 < low < 0.9
    assert high == 1.0
    mirrored = auc_interval(-np.arange(20.0), member)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_auc_interval_is_widened_by_the_root_of_the_inflation() -> None:
    rng = np.random.default_rng(0)
    member = np.arange(4000) < 2000
    scores = rng.normal(size=4000) + 0.3 * member
    (low, high), (lower, higher) = auc_interval(scores, member), auc_interval(scores, member, inflation=4.0)
    assert (higher - lower) / (high - low) == pytest.approx(2.0, rel=0.02)


def test_roc_has_the_shares_at_each_threshold_and_the_auc_as_its_area() -> None:
    scores, member = tied_scores(5)
    false, true = roc(scores, member)
    for fpr, tpr, threshold in zip(false, true, [math.inf, *np.unique(scores)[::-1]], strict=True):
        assert fpr == pytest.approx((scores[~member] >= threshold).mean())
        assert tpr == pytest.approx((scores[member] >= threshold).mean())
    assert np.trapezoid(true, false) == pytest.approx(auc(scores, member))
    assert (false[0], true[0], false[-1], true[-1]) == (0, 0, 1, 1)


def test_operating_point_counts_strictly_above_the_kth_largest_nonmember() -> None:
    scores = np.array([*range(1, 20), 19.5, 15.0, 14.0, 20.0])  # 19 non-members 1..19, then members
    member = np.arange(len(scores)) >= 19
    point = operating_point(scores, member, 0.25)
    assert (point.rank, point.threshold, point.hits, point.tpr) == (5, 15.0, 2, 0.5)  # 15 itself is not above
    assert point.expected_fpr == 0.25
    assert point.tpr_interval == pytest.approx((0.067586, 0.932414), abs=1e-6)  # Clopper-Pearson of 2 of 4
    assert point.fpr_interval == pytest.approx(tuple(scipy.stats.beta(5, 15).ppf([0.025, 0.975])))


@pytest.mark.parametrize(("fpr", "needed"), [(0.01, 99), (0.001, 999), (0.05, 19)])
def test_operating_point_refuses_too_few_nonmembers(fpr: float, needed: int) -> None:
    enough, few = (np.arange(count + 5.0) for count in (needed, needed - 1))
    assert operating_point(enough, np.arange(len(enough)) < 5, fpr).rank == 1
    with pytest.raises(UserError, match=f"with {needed - 1} non-members: provide at least {needed}, or report .* above all"):
        operating_point(few, np.arange(len(few)) < 5, fpr)


def test_above_all_takes_the_largest_nonmember() -> None:
    scores, member = tied_scores(2)
    scores[np.flatnonzero(member)[:3]] = 99.0
    point = above_all(scores, member)
    assert point.hits == (scores[member] > scores[~member].max()).sum() >= 3
    assert point.threshold == scores[~member].max()
    assert point.expected_fpr == 1 / ((~member).sum() + 1)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_operating_points_flag_the_expected_share_of_members_over_all_orders(rank: int) -> None:
    """All orders of 4 members among 5 non-members are equally likely; a member is above the k-th largest in k / 6."""
    tpr = []
    for members in itertools.combinations(range(9), 4):
        point = operating_point(np.arange(9.0), np.isin(np.arange(9), members), rank / 6)
        assert (point.rank, point.expected_fpr) == (rank, pytest.approx(rank / 6))
        tpr.append(point.tpr)
    assert np.mean(tpr) == pytest.approx(rank / 6)


def test_the_interval_of_the_true_false_positive_rate_leaves_a_fortieth_on_each_side() -> None:
    """The k-th largest of n uniform scores lies above 1 - rate if at least k of n do: a binomial tail."""
    point = operating_point(np.arange(30.0), np.arange(30) >= 20, 3 / 21)
    low, high = point.fpr_interval
    assert scipy.stats.binom.sf(point.rank - 1, 20, low) == pytest.approx(0.025)
    assert scipy.stats.binom.cdf(point.rank - 1, 20, high) == pytest.approx(0.025)


SIZES = [(250, 250), (100, 400), (400, 30), (1000, 1000)]


def share_limits(count: int, error: float) -> NDArray[np.float64]:
    """Return the upper one-sided Clopper-Pearson limits of a share for 0 to `count` hits."""
    hits = np.arange(count + 1)
    with np.errstate(invalid="ignore"):
        return np.where(hits == count, 1.0, scipy.stats.beta.isf(error, hits + 1, count - hits))


@pytest.mark.parametrize("fpr", [0.01, 0.1])
@pytest.mark.parametrize(("members", "nonmembers"), SIZES)
def test_limits_of_true_alarms_keep_their_error_at_the_worst_share(members: int, nonmembers: int, fpr: float) -> None:
    """By sums over all outcomes: the rate of the rank is on the wrong side, or else the share at that rank is missed."""
    rank, error = rank_above(nonmembers, members, fpr, 0.05)
    wrong_rate = scipy.stats.beta(rank, nonmembers + 1 - rank).cdf(fpr)
    limits = share_limits(members, error)
    shares = np.concatenate([limits[1:-1] - 1e-9, limits[1:-1] + 1e-9, np.linspace(0.001, 0.999, 99)])
    hits = np.arange(members + 1)
    missed = [scipy.stats.binom.pmf(hits, members, share)[limits < share].sum() for share in shares]
    assert wrong_rate + (1 - wrong_rate) * max(missed) == pytest.approx(0.05, abs=0.006)
    assert wrong_rate + (1 - wrong_rate) * max(missed) <= 0.05 + 1e-9


@pytest.mark.parametrize(("members", "nonmembers"), SIZES)
def test_limits_of_true_alarms_hold_for_members_who_rank_as_non_members(members: int, nonmembers: int) -> None:
    """By sums over the numbers of members above the rank, which follow a beta-binomial law in any exchangeable order."""
    hits = np.arange(members + 1)
    rank, error = rank_above(nonmembers, members, 0.05, 0.05)
    chances = scipy.stats.betabinom.pmf(hits, members, rank, nonmembers + 1 - rank)
    assert chances[share_limits(members, error) < 0.05].sum() <= 0.05


def test_limits_of_true_alarms_over_all_orders_of_five_members_and_eight_non_members() -> None:
    """The limit equals that of the number of members above the rank, and is below the rate in at most the stated share."""
    scores, limits = np.arange(13.0), []
    rank, error = rank_above(8, 5, 0.25, 0.2)
    for places in itertools.combinations(range(13), 5):
        member = np.isin(np.arange(13), places)
        limits.append(most_alarms(scores, member, 0.25, error=0.2))
        above = int((scores[member] > np.sort(scores[~member])[-rank]).sum())
        assert limits[-1] == share_limits(5, error)[above]
    assert np.mean(np.array(limits) < 0.25) <= 0.2
    assert min(limits) < 0.6


def test_of_tied_units_some_are_named_at_random() -> None:
    """Right answers alone: whoever keeps a rate of 1 % names one in 80 of those with a right answer."""
    right, member = np.arange(4000) % 5 > 0, np.arange(4000) < 2000
    assert 0.01 < most_alarms(right * 1.0, member, 0.01) < 0.03
    assert most_alarms(np.arange(2.0), np.array([True, False]), 0.5) == 1.0  # a single non-member says nothing of one half


@pytest.mark.parametrize("shift", [0.0, 2.9])
@pytest.mark.parametrize("sizes", [[200], [2] * 100, [1, 2, 3] * 40, [10] * 20, [80, 60, *[2] * 30]])
def test_intervals_within_strata_of_any_size_cover_the_auc(sizes: list[int], shift: float) -> None:
    """60 draws, whose strata have effects of their own; right intervals fail once in 100,000 times."""
    rng, strata = np.random.default_rng(0), np.repeat(np.arange(len(sizes)), sizes)
    truth, missed = scipy.stats.norm.cdf(shift / math.sqrt(2)), 0
    for _ in range(60):
        member = rng.random(len(strata)) < 0.5
        scores = rng.normal(size=len(strata)) + shift * member + 3 * rng.normal(size=len(sizes))[strata]
        low, high = interval_within(scores, member, strata)
        missed += not low <= truth <= high
    assert missed <= 11


def test_an_interval_within_strata_of_single_pairs_is_that_of_a_share_and_without_pairs_is_everything() -> None:
    scores = np.array([1.0, 0.0] * 12 + [0.0, 1.0] * 8)
    assert interval_within(scores, np.arange(40) % 2 == 0, np.arange(40) // 2) == pytest.approx(
        exact_interval(12, 20), abs=0.02
    )
    assert interval_within(scores, np.arange(40) % 2 == 0, np.arange(40)) == (0.0, 1.0)
    low, high = interval_within(np.arange(20.0), np.arange(20) >= 10, np.zeros(20, dtype=int))  # a perfect order
    assert (0.6 < low < 0.9, high) == (True, 1.0)


def test_intervals_of_strong_attacks_on_few_members_cover() -> None:
    """An AUC of .92 with 8 of 200 units inside: DeLong's variance alone would miss one interval in eight."""
    rng, shift = np.random.default_rng(1), math.sqrt(2) * scipy.stats.norm.ppf(0.92)
    member, missed = np.arange(200) < 8, 0
    for _ in range(400):
        low, _ = interval_within(rng.normal(size=200) + shift * member, member, np.zeros(200, dtype=int))
        missed += low > 0.92
    assert missed <= 30  # of 10 expected; at a rate of one in eight, hardly ever


def test_even_shares_keep_as_many_units_as_have_the_same_share_in_every_stratum() -> None:
    rng = np.random.default_rng(0)
    strata, chance = np.repeat([0, 1, 2], [400, 300, 2]), np.repeat([0.9, 0.2, 1.0], [400, 300, 2])
    member = rng.random(702) < chance
    kept = even_shares(member, strata, seed=1)
    ratio = member.sum() / (~member).sum()
    for stratum in (0, 1):
        inside, outside = (int((kept & side & (strata == stratum)).sum()) for side in (member, ~member))
        assert abs(inside - ratio * outside) < 1
        assert outside in ((~member & (strata == stratum)).sum(), int((member & (strata == stratum)).sum() / ratio))
    assert not kept[strata == 2].any()  # members alone
    even = np.arange(400) % 2 == 0
    assert even_shares(even, np.arange(400) // 100, seed=1).all()
    small = np.repeat(np.arange(1001), [2000, *[2] * 1000])  # a class with 30 % members, and pairs
    of_small = np.concatenate([np.arange(2000) < 600, np.arange(2000) % 2 == 0])
    pairs = even_shares(of_small, small, seed=0)[2000:]
    ratio = of_small.sum() / (~of_small).sum()
    assert abs(pairs[::2].sum() / pairs[1::2].sum() - ratio) < 0.06  # a fraction of a member by lot
