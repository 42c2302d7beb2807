"""AUC, its interval, and operating points against pairs counted one by one, and against exchangeable scores."""

import math

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.operating import above_all, auc, auc_interval, operating_point, roc
from tests.chance import least_of, most_of


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


def test_auc_interval_covers_the_true_auc_of_shifted_normal_scores() -> None:
    rng, member, truth, covered = np.random.default_rng(0), np.arange(120) < 50, scipy.stats.norm.cdf(1 / np.sqrt(2)), 0
    for _ in range(400):
        low, high = auc_interval(rng.normal(size=120) + member, member)
        covered += low < truth < high
    assert covered >= least_of(400, 0.93)


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


@pytest.mark.parametrize("size", [1, 12])
def test_auc_interval_covers_the_auc_of_single_units_and_of_persons(size: int) -> None:
    shift, covered, naive = 1.0, 0, 0
    truth = 0.7602  # P(N(1, 1) > N(0, 1))
    for seed in range(200):
        rng = np.random.default_rng(seed)
        person = np.arange(40).repeat(size)
        member = person < 20
        own = rng.normal(size=40)[person] * 0.9 + rng.normal(size=len(person)) * np.sqrt(1 - 0.81)
        scores = own + shift * member
        low, high = auc_interval(scores, member, groups=person)
        covered += low <= truth <= high
        low, high = auc_interval(scores, member)
        naive += low <= truth <= high
    assert covered >= least_of(200, 0.93)
    if size > 1:
        assert naive < 150  # rows alone make the interval too narrow


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


def test_operating_point_of_exchangeable_scores_flags_the_nominal_share() -> None:
    """In 95 %, the Beta interval also holds the true false positive rate, which is known for uniform scores."""
    rng, member, flagged, covered = np.random.default_rng(1), np.arange(139) >= 99, 0, 0
    for _ in range(500):
        scores = rng.random(139)
        point = operating_point(scores, member, 0.05)
        flagged += point.hits
        covered += point.fpr_interval[0] < 1 - point.threshold < point.fpr_interval[1]
    assert 0.04 < flagged / (500 * 40) < 0.06
    assert least_of(500, 0.95) <= covered <= most_of(500, 0.95)
