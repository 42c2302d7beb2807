import contextlib
import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from memlib.stats import inference
from memlib.stats.inference import (
    CutOff,
    TopShare,
    accuracy_curve,
    bootstrap_weights,
    difference_interval,
    exact_interval,
    exceedance_p,
    exchanges,
    largest_mean,
    mcnemar_p,
    mean_interval,
    paired_interval,
    paired_t,
    percentile_interval,
    permutation_p,
    threshold_rank,
    widened_interval,
    widened_p,
)
from memlib.stats.probe import Rows, probe_accuracies
from tests.assignments import assert_exact
from tests.chance import CHANCE


def slow_top_share(confidences: np.ndarray, hits: np.ndarray, share: float, rng: np.random.Generator) -> float:
    """The mean over random orders of the ties."""
    chosen = max(1, round(share * len(hits)))
    found = []
    for _ in range(4000):
        order = np.lexsort((rng.random(len(hits)), -confidences))
        found.append(hits[order[:chosen]].mean())
    return float(np.mean(found))


@pytest.mark.parametrize("share", [0.1, 0.33, 0.8, 1.0])
def test_ties_at_the_cut_count_in_expectation(share: float) -> None:
    rng = np.random.default_rng(0)
    confidences, hits = rng.integers(0, 4, size=30) / 4.0, rng.random(30) < 0.5
    found = top_share(confidences, hits, np.ones(30), share)
    assert found == pytest.approx(slow_top_share(confidences, hits, share, rng), abs=0.015)
    _, accuracies = accuracy_curve(confidences, hits)
    assert found == pytest.approx(accuracies[max(1, round(share * 30)) - 1])


@given(seed=st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_weights_act_as_copies(seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidences, hits = rng.integers(0, 5, size=20) / 5.0, rng.random(20) < 0.5
    weights = rng.integers(0, 4, size=20)
    weights[0] += 1
    weighted = top_share(confidences, hits, weights, 0.3)
    copies = np.repeat(confidences, weights), np.repeat(hits, weights)
    assert weighted == pytest.approx(top_share(*copies, np.ones(int(weights.sum())), 0.3))


def top_share(confidences: np.ndarray, hits: np.ndarray, weights: np.ndarray, share: float, width: float = np.inf) -> float:
    """The accuracy of the most confident share under one weighting."""
    top = TopShare(confidences, hits, share, weight=len(hits), width=width)
    return float(top.accuracy(weights[None] @ top.columns, float(weights.sum()))[0])


@given(seed=st.integers(0, 200), share=st.floats(0.05, 1.0))
@settings(max_examples=60, deadline=None)
def test_top_share_with_a_limited_width_equals_the_full_computation(seed: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    confidences, hits = rng.integers(0, 60, size=200) / 60.0, rng.random(200) < 0.5
    weights = rng.multinomial(200, np.full(200, 1 / 200)).astype(float)
    whole = top_share(confidences, hits, weights, share)
    assert top_share(confidences, hits, weights, share, width=7.0) == pytest.approx(whole)
    with contextlib.suppress(CutOff):  # which it says rather than to be wrong
        assert top_share(confidences, hits, weights, share, width=0.1) == pytest.approx(whole)


def test_top_share_raises_cut_off_if_the_cut_lies_beyond_the_levels() -> None:
    confidences, hits = np.arange(100.0), np.arange(100) % 2 == 0
    for weights in (np.repeat([0.0, 2.0], 50), np.repeat([2.0, 0.0], 50)):  # all on one half of the levels
        with pytest.raises(CutOff):
            top_share(confidences, hits, weights, 0.5, width=1.0)


def test_accuracy_curve_does_not_depend_on_row_order() -> None:
    rng = np.random.default_rng(0)
    confidences, hits = rng.integers(0, 6, size=50) / 6.0, rng.random(50) < 0.4
    order = rng.permutation(50)
    for a, b in zip(accuracy_curve(confidences, hits), accuracy_curve(confidences[order], hits[order]), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (3, 3), (10, 2), (2, 10), (40, 25)])
def test_mcnemar_equals_scipys_binomial(wins: int, losses: int) -> None:
    expected = scipy.stats.binomtest(wins, wins + losses, alternative="greater").pvalue if wins + losses else 1.0
    assert mcnemar_p(wins, losses) == pytest.approx(expected)


def test_bootstrap_keeps_every_stratum_at_its_size() -> None:
    strata = np.array([0] * 5 + [1] * 8)
    weights = np.concatenate(list(bootstrap_weights(strata, 300, seed=0)))
    assert weights.shape == (300, 13)
    assert np.allclose(weights[:, :5].sum(axis=1), 5)
    assert np.allclose(weights[:, 5:].sum(axis=1), 8)
    assert weights.mean(axis=0) == pytest.approx(np.ones(13), abs=0.25)
    again = np.concatenate(list(bootstrap_weights(strata, 300, seed=0)))
    assert np.array_equal(weights, again)


@pytest.mark.parametrize("size", [2, 3, 10])
def test_bootstrap_has_the_variance_of_the_mean_in_small_strata(size: int) -> None:
    values = np.random.default_rng(0).normal(size=(40, size))
    strata = np.repeat(np.arange(40), size)
    weights = np.concatenate(list(bootstrap_weights(strata, 4000, seed=0)))
    found = (weights @ values.ravel() / values.size).var()
    expected = values.var(axis=1, ddof=1).mean() / values.size
    assert found == pytest.approx(expected, rel=0.1)


def test_permutation_p_is_never_zero() -> None:
    assert permutation_p(9.0, np.zeros(99)) == 0.01
    assert permutation_p(0.0, np.zeros(99)) == 1.0


def test_intervals_hold_the_estimate_and_widen_with_variation_of_repeats() -> None:
    assert percentile_interval(np.arange(1001) / 1000) == pytest.approx((0.025, 0.975))
    low, high = paired_interval(np.zeros(10))
    assert -0.3 < low < 0 < high < 0.3
    assert paired_interval(np.ones(3))[0] < 1
    narrow = percentile_interval(np.random.default_rng(0).normal(size=2000) * 0.01)
    wide = widened_interval(np.random.default_rng(0).normal(size=2000) * 0.01, np.array([-0.1, 0.0, 0.1]))
    assert wide[0] < narrow[0]
    assert wide[1] > narrow[1]


@pytest.mark.parametrize(("freedom", "examples"), [(math.inf, 1.959964), (7.0, 2.364624)])
def test_the_widened_interval_adds_examples_and_trainings_in_quadrature(freedom: float, examples: float) -> None:
    """Trainings 1, 2, 3: deviation 1, error 1 / sqrt 3, Student's quantile for 2 degrees of freedom 4.302653."""
    replicates, repeats = np.array([1.7, 2.0, 2.3]), np.array([1.0, 2.0, 3.0])  # the deviation of the replicates is .3
    half = math.hypot(examples * 0.3, 4.302653 / math.sqrt(3))
    low, high = widened_interval(replicates, repeats, freedom=freedom)
    assert (low, high) == (pytest.approx(2 - half, abs=1e-5), pytest.approx(2 + half, abs=1e-5))


@pytest.mark.parametrize("freedom", [math.inf, 5.0])
def test_the_p_value_of_a_widened_interval_is_the_level_that_just_excludes_0(freedom: float) -> None:
    replicates, repeats = np.array([1.7, 2.0, 2.3]), np.array([1.0, 2.0, 3.0])
    p = widened_p(replicates, repeats, freedom=freedom)
    assert 0 < p < 1
    assert widened_interval(replicates, repeats, level=1 - p, freedom=freedom)[0] == pytest.approx(0, abs=1e-6)
    assert widened_p(-replicates, -repeats, freedom=freedom) == pytest.approx(p)
    assert widened_p(np.array([-1.0, 0.0, 1.0]), np.array([-1.0, 0.0, 1.0])) == 1.0


def test_the_interval_of_paired_differences_adds_half_a_win_and_half_a_loss_by_hand() -> None:
    """Four gains of 1, 0, 0, 1 and two units of +-1 / sqrt 2: mean 2 / 6, squares 3, variance (3 - 4 / 6) / 36."""
    half = 1.959964 * math.sqrt(3 - 4 / 6) / 6
    assert paired_interval(np.array([1.0, 0, 0, 1])) == pytest.approx((2 / 6 - half, 2 / 6 + half), abs=1e-5)
    assert paired_interval(np.array([1.0, 0, 0, 1]), level=0.5)[1] == pytest.approx(
        2 / 6 + half * 0.674490 / 1.959964, abs=1e-5
    )
    assert paired_interval(np.ones(2))[1] == 1.0
    assert paired_interval(-np.ones(2))[0] == -1.0


def test_the_interval_of_a_difference_of_means_combines_the_distances_of_the_ends() -> None:
    first, second = np.array([1.0, 0, 0, 1]), np.array([0.0, 0, -1, 0, 0])
    (low_1, high_1), (low_2, high_2) = paired_interval(first), paired_interval(second)
    expected = 0.7 - math.hypot(0.5 - low_1, high_2 + 0.2), 0.7 + math.hypot(high_1 - 0.5, -0.2 - low_2)
    assert difference_interval(first, second) == pytest.approx(expected)
    assert difference_interval(np.ones(1), -np.ones(1))[1] == 2.0
    mirrored = difference_interval(second, first)
    assert mirrored == pytest.approx((-expected[1], -expected[0]))


def test_the_probe_is_logistic_regression() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    y = (x @ rng.normal(size=(5, 3)) + rng.normal(size=(300, 3))).argmax(axis=1)
    train = np.arange(len(x)) < 200
    found = probe_accuracies(Rows([x], y, train), Rows([x], y, ~train), num_classes=3, weight_decay=1e-4)
    oracle = LogisticRegression(C=50, max_iter=500).fit(x[:200], y[:200])
    assert found[0] == pytest.approx(oracle.score(x[:200], y[:200]), abs=0.02)
    assert found[1] == pytest.approx(oracle.score(x[200:], y[200:]), abs=0.03)


def test_paired_t_equals_scipy_for_many_at_once() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 7, 3, 12))
    mean, p = paired_t(a - b)
    expected = scipy.stats.ttest_rel(a, b, axis=-1, alternative="greater")
    np.testing.assert_allclose(mean, (a - b).mean(axis=-1))
    np.testing.assert_allclose(p, expected.pvalue)


def test_paired_t_without_variance_has_defined_answers() -> None:
    mean, p = paired_t(np.array([[0.0, 0, 0], [0.25, 0.25, 0.25], [-0.25, -0.25, -0.25]]))
    np.testing.assert_array_equal(p, [1, 0, 1])
    np.testing.assert_array_equal(mean, [0, 0.25, -0.25])
    with pytest.raises(ValueError, match="at least two pairs, not 1"):
        paired_t(np.zeros((3, 1)))


def test_intervals_that_share_resamples_equal_those_of_dense_multinomials() -> None:
    rng, count = np.random.default_rng(0), 40
    drawn = np.random.default_rng(5).multinomial(count, np.full(count, 1 / count), size=300)
    half = math.sqrt(count / (count - 1)) * scipy.stats.t.ppf(0.975, count - 1)
    for values in rng.normal(size=(3, count)):
        expected = np.quantile(drawn @ values / count, scipy.stats.norm.cdf([-half, half]))
        assert mean_interval(values, replicates=300, seed=5) == pytest.approx(tuple(expected), abs=1e-12)
        assert mean_interval(values, replicates=300, seed=6) != mean_interval(values, replicates=300, seed=5)


def test_resamples_too_large_to_keep_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).normal(size=50)
    kept = mean_interval(values, replicates=200, seed=0)
    monkeypatch.setattr(inference, "_KEPT", 0)
    monkeypatch.setattr(inference, "_CELLS", 999)  # drawn in blocks
    assert mean_interval(values, replicates=200, seed=0) == kept


def test_the_mean_interval_of_fewer_than_ten_units_is_students() -> None:
    """Five values 1 to 5: mean 3, variance 2.5, quantile for 4 degrees of freedom 2.776445."""
    half = 2.776445 * math.sqrt(2.5 / 5)
    assert mean_interval(np.arange(1.0, 6), replicates=1, seed=0) == pytest.approx((3 - half, 3 + half), abs=1e-5)
    assert mean_interval(np.full(5, 0.3), replicates=1, seed=0) == (0.3, 0.3)
    nine, ten = (mean_interval(np.arange(float(count)), replicates=50, seed=0) for count in (9, 10))
    assert nine == pytest.approx(scipy.stats.t.interval(0.95, 8, 4.0, scipy.stats.sem(np.arange(9))))
    assert ten != pytest.approx(scipy.stats.t.interval(0.95, 9, 4.5, scipy.stats.sem(np.arange(10))), abs=1e-3)


def test_few_units_are_exchanged_in_every_way() -> None:
    signs = exchanges(5, 9999, seed=0)
    assert len(np.unique(signs, axis=0)) == len(signs) == 31  # all but the identity
    assert not (signs == 1).all(axis=1).any()
    many = exchanges(30, 500, seed=0)
    assert many.shape == (500, 30)
    assert set(np.unique(many)) == {-1, 1}
    assert np.array_equal(many, exchanges(30, 500, seed=0))


@pytest.mark.parametrize(("controls", "rank"), [(18, 0), (19, 1), (20, 1), (38, 1), (39, 2), (99, 5)])
def test_the_threshold_leaves_alpha_to_a_new_score(controls: int, rank: int) -> None:
    assert threshold_rank(controls, 0.05) == rank


@pytest.mark.parametrize(("controls", "rank"), [(9, 1), (9, 9), (19, 1), (99, 5), (400, 3)])
def test_one_new_score_exceeds_the_kth_largest_of_n_controls_with_probability_k_of_n_plus_1(controls: int, rank: int) -> None:
    assert exceedance_p(1, 1, rank=rank, num_controls=controls) == pytest.approx(rank / (controls + 1), rel=1e-12)
    assert exceedance_p(0, 1, rank=rank, num_controls=controls) == 1.0


@pytest.mark.parametrize(("count", "controls"), [(3, 4), (4, 3), (2, 6), (5, 4)])
def test_counts_beyond_an_estimated_threshold_are_exact_over_all_orders(count: int, controls: int) -> None:
    """All orders of exchangeable scores are equally likely; only the places of the new scores among them matter."""
    for rank in range(1, controls + 1):
        hits = []
        for new in itertools.combinations(range(count + controls), count):
            threshold = sorted(set(range(count + controls)) - set(new), reverse=True)[rank - 1]
            hits.append(sum(place > threshold for place in new))
        found = [exceedance_p(hit, count, rank=rank, num_controls=controls) for hit in hits]
        assert_exact(found)
        assert found == pytest.approx([sum(other >= hit for other in hits) / len(hits) for hit in hits])


def test_exact_interval_of_zero_successes_equals_clopper_pearson() -> None:
    assert exact_interval(0, 20) == pytest.approx((0, 0.1684), abs=1e-4)


@pytest.mark.parametrize("count", [1, 7, 30])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_exact_intervals_end_where_a_tail_of_all_outcomes_is_half_of_the_error(count: int, level: float) -> None:
    tail = (1 - level) / 2
    ends = [exact_interval(hits, count, level=level) for hits in range(count + 1)]
    for hits, (low, high) in enumerate(ends):
        law = [(math.comb(count, k) * p**k * (1 - p) ** (count - k), k) for p in (low, high) for k in range(count + 1)]
        if hits:
            assert sum(share for share, k in law[: count + 1] if k >= hits) == pytest.approx(tail, abs=1e-9)
        if hits < count:
            assert sum(share for share, k in law[count + 1 :] if k <= hits) == pytest.approx(tail, abs=1e-9)
    for truth in np.linspace(0, 1, 101):
        covered = [k for k, (low, high) in enumerate(ends) if low <= truth <= high]
        assert sum(math.comb(count, k) * truth**k * (1 - truth) ** (count - k) for k in covered) >= level - 1e-9


@pytest.mark.parametrize("count", [1, 4, 10, 30])
@pytest.mark.parametrize("level", [0.05, 0.2])
def test_largest_mean_covers_over_all_outcomes_of_values_that_are_0_or_1(count: int, level: float) -> None:
    """Binary values vary most; at the bound itself the divergence from the mean is ln(1 / level) / n."""
    bounds = [largest_mean(np.arange(count) < hits, level=level) for hits in range(count + 1)]
    for truth in np.linspace(0, 1, 101):
        missed = [k for k, bound in enumerate(bounds) if bound < truth - 1e-7]
        assert sum(math.comb(count, k) * truth**k * (1 - truth) ** (count - k) for k in missed) <= level
    for hits, bound in list(enumerate(bounds))[1:-1]:
        mean = hits / count
        divergence = mean * math.log(mean / bound) + (1 - mean) * math.log((1 - mean) / (1 - bound))
        assert divergence == pytest.approx(math.log(1 / level) / count, rel=1e-5)
        assert bound > mean


@pytest.mark.parametrize("count", [5, 10, 60])
def test_largest_mean_equals_the_exact_bound_if_no_value_is_positive(count: int) -> None:
    assert largest_mean(np.zeros(count)) == pytest.approx(1 - 0.05 ** (1 / count), abs=1e-6)
    assert largest_mean(np.full(count, -0.3)) == largest_mean(np.zeros(count))
    assert largest_mean(np.ones(count)) == 1.0


Law = Callable[[np.random.Generator, int], NDArray[np.float64]]


def rare(share: float, much: float, rest: float = 0.0) -> Law:
    """A share of trainings remembers much; the others differ by as much from their controls as chance makes them."""
    return lambda rng, n: np.where(rng.random(n) < share, much, rng.normal(0, rest, n) if rest else 0.0)


def two(share: float, high: float, low: float) -> Law:
    return lambda rng, n: np.where(rng.random(n) < share, high, low)


def clipped(draw: Law) -> Law:
    return lambda rng, n: np.clip(draw(rng, n), -1, 1)


LAWS: dict[str, Law] = {
    # rare and strong; the first two are those of which a bootstrap or t interval missed .33 to .74
    "a tenth at .8": rare(0.1, 0.8),
    "a twentieth at .8": rare(0.05, 0.8),
    "a fifth at .5": rare(0.2, 0.5),
    "a fiftieth at 1": rare(0.02, 1.0),
    "a hundredth at 1": rare(0.01, 1.0),
    "a third at .9": rare(1 / 3, 0.9),
    "a tenth at .8, the rest near 0": rare(0.1, 0.8, 0.02),
    "a twentieth at 1, the rest around 0": rare(0.05, 1.0, 0.1),
    "half at .1": rare(0.5, 0.1),
    "nine tenths at .9": rare(0.9, 0.9),
    # bimodal
    "bimodal": two(0.3, 0.9, -0.2),
    "bimodal around 0": two(0.5, 0.5, -0.5),
    "bimodal, both above 0": two(0.2, 1.0, 0.3),
    "all at 1 or 0": two(0.4, 1.0, 0.0),
    "all at 1 or -1": two(0.5, 1.0, -1.0),
    "seldom 1, else -.1": two(0.05, 1.0, -0.1),
    "two normal laws": clipped(lambda rng, n: np.where(rng.random(n) < 0.5, rng.normal(0.6, 0.1, n), rng.normal(0, 0.1, n))),
    # heavy within [-1, 1]
    "heavy within [-1, 1]": clipped(lambda rng, n: rng.standard_cauchy(n) / 10),
    "heavy and shifted": clipped(lambda rng, n: 0.2 + rng.standard_cauchy(n) / 20),
    "heavy on one side": clipped(lambda rng, n: np.abs(rng.standard_cauchy(n)) / 20),
    "t with 2 degrees of freedom": clipped(lambda rng, n: rng.standard_t(2, n) / 5),
    "lognormal": clipped(lambda rng, n: rng.lognormal(-3, 1.5, n)),
    "Pareto": clipped(lambda rng, n: rng.pareto(1.2, n) / 20),
    "beta, mass at both ends": lambda rng, n: 2 * rng.beta(0.2, 0.2, n) - 1,
    "beta, mass at 0 and a tail": lambda rng, n: rng.beta(0.1, 0.9, n),
    "uniform": lambda rng, n: rng.uniform(-1, 1, n),
    "uniform above 0": lambda rng, n: rng.uniform(0, 1, n),
    "normal": clipped(lambda rng, n: rng.normal(0.1, 0.3, n)),
    "constant": lambda rng, n: np.full(n, 0.4),
}  # fmt: skip
COUNTS, DRAWS = (5, 10, 20), 400


@pytest.mark.parametrize("law", LAWS)
def test_the_bound_of_the_largest_mean_covers_rare_and_strong_memory(law: str) -> None:
    """No lower Clopper-Pearson limit of the rate at which bounds miss the mean may exceed .05, with Bonferroni over laws.

    The limits' level is that of a false alarm in a million over all laws and numbers of units together.
    """
    rng = np.random.default_rng(7)
    many = LAWS[law](rng, 10**6)
    least = float(many.mean() - 5 * many.std() / len(many) ** 0.5)  # the truth is simulated, too
    for count in COUNTS:
        below = sum(largest_mean(LAWS[law](rng, count)) < least for _ in range(DRAWS))
        low, _ = exact_interval(below, DRAWS, level=1 - 2 * CHANCE / (len(LAWS) * len(COUNTS)))
        assert low <= 0.05, f"{below} of {DRAWS} with {count} units"


@pytest.mark.parametrize("count", COUNTS)
def test_a_normal_interval_fails_as_a_bound_on_rare_and_strong_memory(count: int) -> None:
    rng, law = np.random.default_rng(8), LAWS["a twentieth at .8"]
    below = 0
    for draw in range(DRAWS):
        values = law(rng, count)
        below += mean_interval(values, replicates=200, seed=draw, level=0.9)[1] < 0.04
    low, _ = exact_interval(below, DRAWS, level=1 - 2 * CHANCE)
    assert low > 0.05
