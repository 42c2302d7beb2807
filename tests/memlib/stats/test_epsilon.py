"""Empirical lower bounds of epsilon: published values, slow plain twins, exact error rates, nulls and planted privacy."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import scipy

from memlib.errors import UserError
from memlib.stats.epsilon import (
    GaussianBound,
    audit_one_run,
    correct_guesses,
    correct_in_pairs,
    exceeds,
    gaussian_epsilon,
    gaussian_one_run,
    most_in_pairs,
    one_run_ceiling,
    one_run_epsilon,
    one_run_p,
    per_record,
    refutes_gaussian,
    split_epsilon,
)
from memlib.stats.inference import exact_interval

LEVEL = 0.05
NUM_SCORES = 10_000  # of either kind, in jax_privacy's published values


def normal_quantiles(mean: float, count: int = NUM_SCORES) -> np.ndarray:
    return np.asarray(scipy.stats.norm.ppf((np.arange(count) + 0.5) / count)) + mean


def hull_guesses(ins: np.ndarray, outs: np.ndarray) -> list[tuple[int, int]]:
    """Return (right, all) of the guesses "in" at each threshold on the convex hull of the ROC, as jax_privacy tries them."""
    thresholds = np.append(np.union1d(ins, outs), np.inf)
    hull: list[tuple[int, int]] = []
    for x, y in zip(*(np.searchsorted(np.sort(scores), thresholds).tolist() for scores in (ins, outs)), strict=True):
        while len(hull) > 1:
            (x0, y0), (x1, y1) = hull[-2:]
            if (y1 - y0) * (x - x1) > (y - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append((x, y))
    guesses = [(len(ins) - x, len(ins) - x + len(outs) - y) for x, y in hull]
    return sorted(guesses, key=lambda pair: -exact_interval(*pair)[0] if pair[1] else 0.0)  # the promising ones first


def plain_p(correct: int, guesses: int, num_canaries: int, epsilon: float, delta: float) -> float:
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    law = [math.comb(guesses, k) * q**k * (1 - q) ** (guesses - k) for k in range(guesses + 1)]
    averages = [sum(law[correct - i : correct]) / i for i in range(1, correct + 1)]
    return min(1.0, sum(law[correct:]) + 2 * num_canaries * delta * max(averages, default=0.0))


def plain_refutes(correct: int, guesses: int, num_canaries: int, noise: float, level: float) -> bool:
    normal = scipy.stats.norm
    r, h = [level * correct / num_canaries], [level * (guesses - correct) / num_canaries]
    for i in reversed(range(correct)):
        h.append(max(h[-1], float(normal.cdf(normal.ppf(r[-1]) - 1 / noise))))
        r.append(min(1.0, r[-1] + i / (guesses - i) * (h[-1] - h[-2])))
    return r[-1] + h[-1] > guesses / num_canaries


# One run


@pytest.mark.parametrize("epsilon", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("delta", [0.0, 1e-4, 0.02])
def test_p_of_one_run_equals_a_slow_plain_version(epsilon: float, delta: float) -> None:
    for correct, guesses in ((0, 1), (1, 1), (3, 9), (9, 9), (40, 60), (150, 200), (199, 200), (20, 200)):
        assert one_run_p(correct, guesses, 200, epsilon=epsilon, delta=delta) == pytest.approx(
            plain_p(correct, guesses, 200, epsilon, delta), rel=1e-9, abs=1e-12
        )


def test_p_of_one_run_maximizes_over_all_averages_even_with_many_guesses() -> None:
    steps = np.arange(1, 5001)
    for epsilon in (0.0, 1.0, 6.0):
        law = scipy.stats.binom(6000, scipy.special.expit(epsilon))
        averages = (law.sf(5000 - steps - 1) - law.sf(4999)) / steps
        expected = min(1.0, law.sf(4999) + 2 * 6000 * 1e-6 * averages.max())
        assert one_run_p(5000, 6000, 6000, epsilon=epsilon, delta=1e-6) == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_bound_of_one_run_is_the_last_refuted_epsilon() -> None:
    bound = one_run_epsilon(90, 100, 1000, delta=1e-5, level=LEVEL)
    grid = np.linspace(0, 8, 400)
    refuted = [one_run_p(90, 100, 1000, epsilon=epsilon, delta=1e-5) <= LEVEL for epsilon in grid]
    assert refuted == [epsilon <= bound for epsilon in grid]
    assert one_run_p(90, 100, 1000, epsilon=bound, delta=1e-5) == pytest.approx(LEVEL)


def test_bounds_of_65_right_guesses_equal_known_values() -> None:
    pure = one_run_epsilon(65, 65, 1000, delta=0.0, level=LEVEL)
    q = LEVEL ** (1 / 65)  # q^65 = alpha
    assert pure == pytest.approx(math.log(q / (1 - q))) == pytest.approx(3.054, abs=5e-4)
    assert one_run_epsilon(65, 65, 1000, delta=1e-5, level=LEVEL) == pytest.approx(3.0260, abs=5e-5)


@pytest.mark.parametrize(
    ("guesses", "ceiling"), [(10, 1.05), (50, 2.78), (100, 3.49), (200, 4.19), (500, 5.11), (1000, 5.81)]
)
def test_ceilings_of_one_run_equal_known_values(guesses: int, ceiling: float) -> None:
    assert one_run_ceiling(guesses, 1000, delta=0.0, level=LEVEL) == pytest.approx(ceiling, abs=0.005)


@pytest.mark.parametrize(("mean", "expected"), [(0, 0.0), (1, 1.13346), (2, 2.311945), (4, 4.395568)])
def test_one_run_gives_jax_privacys_values_of_epsilon_one_run(mean: float, expected: float) -> None:
    tried = hull_guesses(normal_quantiles(mean), normal_quantiles(0))
    share, best = LEVEL / len(tried), 0.0
    for correct, guesses in tried:
        if one_run_p(correct, guesses, 2 * NUM_SCORES, epsilon=best, delta=1e-6) <= share:
            best = one_run_epsilon(correct, guesses, 2 * NUM_SCORES, delta=1e-6, level=share)
    assert best == pytest.approx(expected, rel=1e-5)


def test_an_odd_number_of_guesses_has_one_more_in_than_out() -> None:
    scores, coins = [5.0, 4.0, 3.0, 2.0, 1.0], [True, True, False, False, True]
    assert correct_guesses(scores, coins, guesses=(1, 2, 3, 4, 5), seed=0) == (1, 1, 2, 3, 3)
    assert correct_guesses(scores, np.invert(coins), guesses=(1, 2, 3, 4, 5), seed=0) == (0, 1, 1, 1, 2)


def test_equal_scores_give_no_bound_even_if_rows_are_ordered_by_membership() -> None:
    coins = np.arange(1000) < 500
    assert 400 < correct_guesses(np.zeros(1000), coins, guesses=(1000,), seed=0)[0] < 600
    assert audit_one_run(np.zeros(1000), coins, guesses=(100, 1000), delta=0.0, level=LEVEL, seed=0).epsilon == 0


def test_several_numbers_of_guesses_share_the_level() -> None:
    coins = np.arange(200) % 2 == 0
    scores = np.where(np.arange(200) < 150, coins, 0.5)  # 75 outs at the bottom, 75 ins at the top
    bound = audit_one_run(scores, coins, guesses=(50, 150), delta=0.0, level=LEVEL, seed=0)
    assert (bound.guesses, bound.correct, bound.num_canaries, bound.tried) == (150, 150, 200, (50, 150))
    assert bound.epsilon == one_run_epsilon(150, 150, 200, delta=0.0, level=LEVEL / 2) == bound.ceiling


@pytest.mark.parametrize("guesses", [(), (0,), (11,), (5, 5)])
def test_numbers_of_guesses_beyond_the_canaries_are_refused(guesses: Sequence[int]) -> None:
    with pytest.raises(UserError, match=r"from 1 to the number of canaries \(10\)"):
        audit_one_run(np.arange(10.0), np.arange(10) % 2 == 0, guesses=guesses, delta=0.0, level=LEVEL, seed=0)


def test_scores_that_are_not_finite_and_wrong_numbers_of_coins_are_refused() -> None:
    with pytest.raises(UserError, match="1 NaN"):
        audit_one_run([0.0, math.nan], [True, False], guesses=(1,), delta=0.0, level=LEVEL, seed=0)
    with pytest.raises(UserError, match="2 scores but 3 coins"):
        audit_one_run([0.0, 1.0], [True, False, True], guesses=(1,), delta=0.0, level=LEVEL, seed=0)
    with pytest.raises(UserError, match="delta is 1"):
        one_run_epsilon(1, 1, 1, delta=1.0, level=LEVEL)
    with pytest.raises(UserError, match="level is 0.95"):
        one_run_epsilon(1, 1, 1, delta=0.0, level=0.95)


# Error rates: the law of the right guesses of a known mechanism is binomial, so that the rate is exact


def error_rate(guesses: int, *, right: float, epsilon: float, delta: float) -> float:
    """Return the probability that the bound is above epsilon, guesses being right with probability `right` each."""
    counts = np.arange(guesses + 1)
    wrong = [one_run_epsilon(int(v), guesses, guesses, delta=delta, level=LEVEL) > epsilon + 1e-6 for v in counts]
    return float(scipy.stats.binom.pmf(counts, guesses, right) @ wrong)


@pytest.mark.parametrize("guesses", [10, 47, 200])
@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_one_run_bound_exceeds_the_true_epsilon_of_randomized_response_at_most_at_its_level(
    guesses: int, epsilon: float
) -> None:
    rate = error_rate(guesses, right=float(scipy.special.expit(epsilon)), epsilon=epsilon, delta=0.0)
    assert 0.2 * LEVEL < rate <= LEVEL  # valid, and not for want of power
    assert error_rate(guesses, right=float(scipy.special.expit(epsilon + 1)), epsilon=epsilon, delta=0.0) > 2 * LEVEL


def test_bound_of_one_run_holds_for_a_mechanism_that_reveals_a_coin_with_probability_delta() -> None:
    delta, q = 0.002, float(scipy.special.expit(1.0))
    assert error_rate(200, right=delta + (1 - delta) * q, epsilon=1.0, delta=delta) <= LEVEL


def test_scores_without_information_rarely_give_a_bound_above_zero() -> None:
    rng = np.random.default_rng(0)
    found = sum(
        audit_one_run(rng.normal(size=100), rng.random(100) < 0.5, guesses=(20, 100), delta=0.0, level=LEVEL, seed=0).epsilon
        > 0
        for _ in range(400)
    )
    assert found <= scipy.stats.binom.ppf(0.999, 400, LEVEL)


@pytest.mark.parametrize("epsilon", [0.0, 1.0])
def test_bounds_of_many_runs_rarely_exceed_randomized_response(epsilon: float) -> None:
    rng, right, wrong = np.random.default_rng(1), float(scipy.special.expit(epsilon)), 0
    for world in range(100):
        told = rng.random((2, 80)) < right
        ins, outs = told[0] + 0.01 * rng.random(80), ~told[1] + 0.01 * rng.random(80)
        wrong += split_epsilon(ins, outs, delta=0.0, level=LEVEL, seed=world, splits=20).epsilon > epsilon
    assert wrong <= scipy.stats.binom.ppf(0.999, 100, LEVEL)


# Many runs


@pytest.mark.parametrize("mean", [1, 2])
def test_bounds_of_many_runs_stay_below_a_gaussian_mechanism(mean: float) -> None:
    ins, outs, truth = normal_quantiles(mean, 1000), normal_quantiles(0, 1000), gaussian_epsilon(1 / mean, delta=1e-6)
    median = split_epsilon(ins, outs, delta=1e-6, level=LEVEL, seed=0)
    one = split_epsilon(ins, outs, delta=1e-6, level=LEVEL, seed=0, splits=1)
    assert all(0 < bound.epsilon < min(truth, bound.ceiling) for bound in (median, one))
    assert (len(median.counts), len(one.counts)) == (100, 1)


def test_median_over_splits_is_a_bound_that_half_of_the_splits_reach() -> None:
    rng = np.random.default_rng(2)
    bound = split_epsilon(rng.normal(2, 1, 100), rng.normal(size=101), delta=0.0, level=LEVEL, seed=0, splits=6)
    each = []
    for hits, missed, alarms, passed in bound.counts.tolist():
        hit, miss, alarm, right = (
            exact_interval(part, count, level=1 - LEVEL / 2)
            for part, count in ((hits, 50), (missed, 50), (alarms, 51), (passed, 51))
        )
        each.append(max(math.log(hit[0] / alarm[1]), math.log(right[0] / miss[1])))
    assert bound.epsilon == pytest.approx(sorted(each)[3])
    assert (bound.counts[:, :2].sum(axis=1) == 50).all()
    assert (bound.counts[:, 2:].sum(axis=1) == 51).all()


def test_a_single_score_cannot_be_split() -> None:
    with pytest.raises(UserError, match="at least 2"):
        split_epsilon([1.0], [0.0, 0.0], delta=0.0, level=LEVEL, seed=0)


# The Gaussian trade-off curve


@pytest.mark.parametrize(
    ("correct", "guesses", "published"),
    [(10, 10, 1.226), (15, 15, 1.8776), (25, 25, 2.7534), (40, 40, 3.6179), (255, 268, 4.1374), (404, 429, 4.1832), (621, 686, 3.6537)],
)  # fmt: skip
def test_gaussian_bound_equals_that_of_privacyguard_within_its_grid(correct: int, guesses: int, published: float) -> None:
    bound = gaussian_one_run(correct, guesses, 1000, delta=1e-5, level=LEVEL)
    next_on_grid = gaussian_epsilon(bound.noise + 0.01, delta=1e-5)
    assert next_on_grid - 1e-3 <= published <= bound.epsilon + 1e-3  # the first refuted noise of a grid of .01


def test_gaussian_bound_of_65_right_guesses_equals_known_values() -> None:
    bound = gaussian_one_run(65, 65, 1000, delta=1e-5, level=LEVEL)
    assert bound.epsilon == bound.ceiling == pytest.approx(4.601, abs=1e-3)
    assert isinstance(bound, GaussianBound)


@pytest.mark.parametrize(("mean", "expected"), [(0, 0.0), (1, 2.164749), (2, 4.7218075), (4, 9.133752)])
def test_gaussian_bound_gives_jax_privacys_values_of_epsilon_one_run_fdp(mean: float, expected: float) -> None:
    tried = hull_guesses(normal_quantiles(mean), normal_quantiles(0))
    share, best, noise = LEVEL / len(tried), 0.0, math.inf
    for correct, guesses in tried:
        if refutes_gaussian(correct, guesses, 2 * NUM_SCORES, noise=noise, level=share):
            bound = gaussian_one_run(correct, guesses, 2 * NUM_SCORES, delta=1e-6, level=share)
            best, noise = bound.epsilon, bound.noise
    assert best == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("noise", [0.3, 0.9, 2.0, 20.0])
def test_gaussian_refutation_equals_a_slow_plain_version(noise: float) -> None:
    for correct in range(0, 61, 3):
        found = refutes_gaussian(correct, 60, 100, noise=noise, level=LEVEL)
        assert found == plain_refutes(correct, 60, 100, noise, LEVEL)


def test_gaussian_noise_is_where_the_refutation_ends() -> None:
    bound = gaussian_one_run(55, 60, 100, delta=1e-5, level=LEVEL)
    assert refutes_gaussian(55, 60, 100, noise=bound.noise * 1.0001, level=LEVEL)
    assert not refutes_gaussian(55, 60, 100, noise=bound.noise * 0.9999, level=LEVEL)
    assert bound.epsilon < bound.ceiling


def test_half_of_the_guesses_right_give_a_gaussian_bound_of_zero() -> None:
    bound = gaussian_one_run(30, 60, 100, delta=1e-5, level=LEVEL)
    assert (bound.epsilon, bound.noise) == (0.0, math.inf)


def test_gaussian_bound_rarely_exceeds_a_gaussian_mechanism() -> None:
    """Canaries with coins +-1/2 and noise of 1 have exactly the Gaussian curve; guess the top and bottom half by sign."""
    rng, found = np.random.default_rng(3), 0
    for _ in range(200):
        coins = rng.random(100) < 0.5
        right = correct_guesses(coins + rng.normal(size=100), coins, guesses=(60,), seed=0)[0]
        found += refutes_gaussian(right, 60, 100, noise=1.0, level=LEVEL)
    assert found <= scipy.stats.binom.ppf(0.999, 200, LEVEL)


@pytest.mark.parametrize("noise", [0.05, 0.5, 1.0, 4.0, 50.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 0.01])
def test_gaussian_epsilon_equals_that_of_dp_accounting(noise: float, delta: float) -> None:
    dp_accounting = pytest.importorskip("dp_accounting")
    assert gaussian_epsilon(noise, delta=delta) == pytest.approx(
        dp_accounting.get_epsilon_gaussian(noise, delta), rel=1e-6, abs=1e-9
    )


def test_gaussian_epsilon_needs_a_positive_delta() -> None:
    with pytest.raises(UserError, match="delta is 0"):
        gaussian_epsilon(1.0, delta=0.0)


# Claims


def test_claim_about_one_run_is_refuted_exactly_up_to_the_bound() -> None:
    coins = np.arange(100) % 2 == 0
    scores = coins + np.random.default_rng(4).normal(scale=0.4, size=100)
    bound = audit_one_run(scores, coins, guesses=(20, 60), delta=1e-4, level=LEVEL, seed=0)
    assert 0 < bound.epsilon < bound.ceiling
    assert exceeds(bound, bound.epsilon - 1e-6).p_value <= LEVEL < exceeds(bound, bound.epsilon + 1e-6).p_value
    assert exceeds(bound, bound.ceiling - 1e-6).smallest_p <= LEVEL < exceeds(bound, bound.ceiling + 1e-6).smallest_p


def test_claim_that_is_not_finite_is_refused() -> None:
    bound = audit_one_run([1.0, 0.0], [True, False], guesses=(2,), delta=0.0, level=LEVEL, seed=0)
    for claimed in (-1.0, math.nan):
        with pytest.raises(UserError, match="claimed epsilon"):
            exceeds(bound, claimed)


def test_bound_for_persons_is_divided_by_their_records_only_without_delta() -> None:
    assert per_record(6.0, 60) == pytest.approx(0.1)
    assert per_record(6.0, 2, delta=1e-5) is None
    assert per_record(6.0, 1, delta=1e-5) == 6.0
    with pytest.raises(UserError, match="is 0"):
        per_record(6.0, 0)


@pytest.mark.parametrize("rates", [(0.9, 0.1), (0.7, 0.3), (0.5, 0.5)])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_guesses_in_pairs_hold_for_coins_that_depend_on_the_stratum(rates: tuple[float, float], delta: float) -> None:
    """By sums over all coins of eight canaries whose scores tell their stratum, and nothing else; beyond half of the guesses."""
    strata, scores = np.repeat([0, 1], 4), np.array([9.0, 8.0, 7.0, 6.0, 4.0, 3.0, 2.0, 1.0])
    chances = np.array(rates)[strata]
    found: dict[str, dict[float, float]] = {"pairs": {}, "all": {}}
    for number in range(2**8):
        coins = number >> np.arange(8) & 1 == 1
        weight = float(np.where(coins, chances, 1 - chances).prod())
        for name in found:
            counts = (
                correct_in_pairs(scores, coins, strata, guesses=(8,), seed=0)
                if name == "pairs"
                else correct_guesses(scores, coins, guesses=(8,), seed=0)
            )
            p = one_run_p(counts[0], 8, 8, epsilon=0.0, delta=delta)
            found[name][p] = found[name].get(p, 0.0) + weight
    too_often = {
        name: max(sum(w for p, w in by_p.items() if p <= level) - level for level in by_p if level < 0.5)
        for name, by_p in found.items()
    }
    assert too_often["pairs"] <= 1e-12
    assert (too_often["all"] > 0.2) is (rates != (0.5, 0.5))


def test_pairs_are_of_one_stratum_and_taken_by_their_difference() -> None:
    strata = np.array([0, 0, 0, 1, 1, 2])
    scores = np.array([5.0, 0.0, 3.0, 9.0, 8.5, 7.0])
    inside = np.array([True, False, False, False, True, True])
    assert most_in_pairs(strata) == 4  # the third of the first stratum and the single one of the last have no partner
    assert correct_in_pairs(scores, inside, strata, guesses=(2, 4), seed=0) == (2, 2)
    with pytest.raises(UserError, match="number of canaries"):
        correct_in_pairs(scores, inside, strata, guesses=(6,), seed=0)
    with pytest.raises(UserError, match="guesses come in pairs"):
        correct_in_pairs(scores, inside, strata, guesses=(3,), seed=0)


def test_memory_is_found_by_pairs_within_many_small_strata() -> None:
    rng = np.random.default_rng(0)
    strata, coins = np.repeat(np.arange(100), 2), rng.random(200) < 0.5
    scores = 50.0 * strata + 3 * coins + rng.normal(size=200)
    bound = audit_one_run(scores, coins, guesses=(50, 100), delta=0.0, level=0.05, seed=0, strata=strata)
    assert bound.epsilon > 0.3
