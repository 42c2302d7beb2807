"""Attacks against slow plain versions of their definitions, in which each example is a loop, and against plants and nulls."""

from functools import partial

import numpy as np
import pytest
import scipy.optimize
import scipy.special
import scipy.stats

from memlib.stats import shadows as shadows_module
from memlib.stats.membership import (
    Attack,
    Base,
    CalibratedLoss,
    Lira,
    Loss,
    Rmia,
    Trajectory,
    calibrated,
    fit_a,
    rmia,
    survey,
    variances,
)
from memlib.stats.operating import auc, auc_interval, operating_point
from memlib.stats.shadows import How, Moments, Shadows, Side, by_person
from tests.chance import most_of

ATTACKS: list[Attack] = [
    *(Lira(online, kind) for online in (True, False) for kind in ("pooled", "example", "shrunk")),
    Rmia(),
    Rmia(online=False, a=0.0),
    Rmia(online=False, a=1.0),
    Base(temperature=2.0),
    Loss(),
    CalibratedLoss(),
    Trajectory(),
]
BY_NAME = partial(pytest.mark.parametrize, "attack", ATTACKS, ids=str)


def world(
    seed: int, models: int, examples: int, *, shift: float = 1.0, queries: int = 1, spread: float = 1.0
) -> tuple[Shadows, np.ndarray, np.ndarray]:
    """Return shadows, a target's log odds, and its members; each example has its own difficulty."""
    rng = np.random.default_rng(seed)
    inside = rng.integers(0, 2, (models + 1, examples)).astype(bool)
    noise = rng.normal(size=(models + 1, 1, examples)) + 0.5 * rng.normal(size=(models + 1, queries, examples))
    odds = 3 * rng.normal(size=examples) + spread * noise + shift * inside[:, None]
    return Shadows(odds[1:], inside[1:]), odds[0], inside[0]


def plain_lira(shadows: Shadows, target: np.ndarray, online: bool, kind: str) -> np.ndarray:
    """Return LiRA's scores by loops; d0 by its definition."""
    sides = [shadows.inside, ~shadows.inside]
    scores = np.zeros(target.shape)
    for query, odds in enumerate(shadows.odds.swapaxes(0, 1)):
        values = [[odds[side[:, i], i] for i in range(odds.shape[1])] for side in sides]
        both = [i for i in range(odds.shape[1]) if len(values[0][i]) and len(values[1][i])]
        moved = np.mean([values[0][i].mean() - values[1][i].mean() for i in both])
        for i in range(odds.shape[1]):
            centres = [own[i].mean() if len(own[i]) else None for own in values]
            mean_in = centres[0] if centres[0] is not None else centres[1] + moved
            mean_out = centres[1] if centres[1] is not None else centres[0] - moved
            s_in, s_out = (np.sqrt(plain_variance(own, i, kind)) for own in values)
            value, norm = target[query, i], scipy.stats.norm
            tail = -norm.logsf(value, mean_out, s_out)
            ratio = norm.logpdf(value, mean_in, s_in) - norm.logpdf(value, mean_out, s_out)
            scores[query, i] = ratio if online else tail
    return scores.mean(axis=0)


def plain_variance(values: list[np.ndarray], i: int, kind: str) -> float:
    freedom = np.array([max(0, len(own) - 1) for own in values])
    squares = np.array([((own - own.mean()) ** 2).sum() if len(own) else 0.0 for own in values])
    pooled = squares.sum() / freedom.sum()
    if kind == "pooled" or (kind == "example" and freedom[i] == 0):
        return float(pooled)
    own_variance = squares[i] / max(1, freedom[i])
    if kind == "example":
        return float(own_variance)
    known = freedom > 0
    if not known[i]:
        return float(pooled)
    logs = np.log(squares[known] / freedom[known]) - scipy.special.digamma(freedom[known] / 2) + np.log(freedom[known] / 2)
    excess = logs.var(ddof=1) - scipy.special.polygamma(1, freedom[known] / 2).mean()
    if excess <= 0:
        return float(pooled)
    d0 = 2 * scipy.optimize.brentq(lambda x: scipy.special.polygamma(1, x) - excess, 1e-3, 1e6, xtol=1e-13, rtol=1e-14)
    level = np.exp(logs.mean() + scipy.special.digamma(d0 / 2) - np.log(d0 / 2))
    return float((d0 * level + freedom[i] * own_variance) / (d0 + freedom[i]))


@pytest.mark.parametrize("kind", ["pooled", "example", "shrunk"])
@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize(("models", "queries"), [(4, 1), (12, 3)])
def test_lira_equals_the_loop_over_examples(models: int, queries: int, online: bool, kind: str) -> None:
    """With four models, some examples have no in-model or no out-model, and some have one."""
    shadows, target, _ = world(0, models, 140 // models, queries=queries)
    if models == 4:
        assert {0, 1} <= set(shadows.inside.sum(axis=0))
        assert {0, 1} <= set((~shadows.inside).sum(axis=0))
    if kind == "example":  # two nearly equal values would leave only the floor
        assert variances(Moments.of(shadows).outer, Moments.of(shadows).inner, "example").min() > 1e-5
    expected = plain_lira(shadows, target, online, kind)
    np.testing.assert_allclose(Lira(online, kind)(shadows, target), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_rmia_ratio_equals_its_definition_with_probabilities(online: bool, a: float) -> None:
    shadows, target, _ = world(1, 16, 60, queries=2)
    p, own = scipy.special.expit(shadows.odds), scipy.special.expit(target)
    p_out = np.stack([p[~shadows.inside[:, i], :, i].mean(axis=0) for i in range(60)], axis=1)
    reference = p.mean(axis=0) if online else ((1 + a) * p_out + 1 - a) / 2
    np.testing.assert_allclose(Rmia(online, a)(shadows, target), np.log(own / reference).mean(axis=0), rtol=1e-9, atol=1e-9)


def test_base_and_losses_equal_their_definitions() -> None:
    shadows, target, _ = world(2, 16, 60, queries=2)
    p, own = scipy.special.expit(shadows.odds), np.log(scipy.special.expit(target))
    out = np.stack([np.log(p[~shadows.inside[:, i], :, i]).mean(axis=0) for i in range(60)], axis=1)
    np.testing.assert_allclose(Base(2.0)(shadows, target), (own / 2 - np.log(p.mean(axis=0))).mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(Loss()(shadows, target), own.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(CalibratedLoss()(shadows, target), (own - out).mean(axis=0), rtol=1e-9, atol=1e-12)


def test_trajectory_equals_normal_densities_with_the_pooled_covariance() -> None:
    shadows, target, _ = world(3, 9, 40, queries=3)
    centres, covariances = [], []
    for side in (shadows.inside, ~shadows.inside):
        own = [shadows.odds[side[:, i], :, i] for i in range(40)]
        assert min(map(len, own)) >= 1
        centres.append(np.stack([values.mean(axis=0) for values in own]))
        residuals = np.concatenate([values - values.mean(axis=0) for values in own])
        covariance = residuals.T @ residuals / sum(len(values) - 1 for values in own)
        covariances.append(0.9 * covariance + 0.1 * np.diag(np.diag(covariance)))
    laws = [scipy.stats.multivariate_normal(np.zeros(3), covariance) for covariance in covariances]
    expected = laws[0].logpdf(target.T - centres[0]) - laws[1].logpdf(target.T - centres[1])
    np.testing.assert_allclose(Trajectory()(shadows, target), expected, rtol=1e-9, atol=1e-9)


@BY_NAME()
@pytest.mark.parametrize("models", [4, 13])
def test_survey_equals_each_model_against_all_others(attack: Attack, models: int) -> None:
    """With four models, a left-out model is sometimes the only one on its side."""
    shadows, _, _ = world(4, models, 50, queries=2)
    plain = np.stack([attack(shadows.without(model), shadows.odds[model]) for model in range(models)])
    found = survey(shadows, attack)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-9)


@BY_NAME()
def test_scores_do_not_depend_on_blocks_of_examples(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    shadows, target, _ = world(5, 6, 300, queries=2)
    whole = attack(shadows, target)
    monkeypatch.setattr(shadows_module, "_BLOCK", 1)  # 64 examples
    np.testing.assert_allclose(attack(shadows, target), whole, rtol=1e-12)


@BY_NAME()
def test_scores_of_float32_odds_equal_those_of_float64(attack: Attack) -> None:
    shadows, target, _ = world(6, 8, 100)
    single = Shadows(shadows.odds.astype(np.float32), shadows.inside)
    same = Shadows(single.odds.astype(np.float64), shadows.inside)
    scores = attack(single, target.astype(np.float32))
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, attack(same, target.astype(np.float32).astype(np.float64)), rtol=1e-12)


@BY_NAME()
def test_members_have_the_higher_scores(attack: Attack) -> None:
    shadows, target, member = world(7, 32, 600, shift=2.0)
    assert auc_interval(attack(shadows, target), member)[0] > 0.5


@BY_NAME()
def test_auc_is_one_half_when_the_column_of_members_is_permuted(attack: Attack) -> None:
    shadows, target, member = world(8, 16, 600, shift=2.0)
    scores, rng, outside = attack(shadows, target), np.random.default_rng(0), 0
    for _ in range(100):
        low, high = auc_interval(scores, rng.permutation(member))
        outside += not low < 0.5 < high
    assert outside <= most_of(100, 0.06)


@BY_NAME()
def test_scores_of_the_strongest_members_are_not_tied(attack: Attack) -> None:
    """Examples on which all shadows agree, and log odds at which p is nearly 1: larger ones give higher scores."""
    shadows, _, _ = world(9, 16, 1)
    alike = Shadows(np.repeat(shadows.odds, 50, axis=2), np.repeat(shadows.inside, 50, axis=1))
    scores = attack(alike, np.linspace(20, 30, 50)[None])
    if isinstance(attack, Trajectory) or (isinstance(attack, Lira) and attack.online):
        assert len(np.unique(scores)) == 50  # a likelihood ratio of unequal variances may fall again
    else:
        assert (np.diff(scores) > 0).all()


@pytest.mark.parametrize("attack", [Rmia(), Rmia(online=False), Rmia(online=False, a=1.0)], ids=str)
def test_ratio_tells_members_where_all_probabilities_are_nearly_1(attack: Rmia) -> None:
    """Log odds of about 45: 1 - p is below the rounding of p, but its ratio to the mean of 1 - p is not."""
    rng, member = np.random.default_rng(0), np.arange(200) < 100
    inside = rng.integers(0, 2, (17, 200)).astype(bool)
    inside[0] = member
    odds = (45 + rng.uniform(-0.5, 0.5, (17, 200)) + 2.0 * inside)[:, None]
    ratio = attack(Shadows(odds[1:], inside[1:]), odds[0])
    q, q_target = np.exp(-odds[1:, 0]), np.exp(-odds[0, 0])
    q_out = np.array([q[~inside[1:, i], i].mean() for i in range(200)])
    expected = q.mean(axis=0) if attack.online else (1 + attack.a) / 2 * q_out
    np.testing.assert_allclose(ratio, expected - q_target, rtol=1e-9, atol=1e-9 * q_target.min())
    assert auc(ratio, member) > 0.9


def test_offline_lira_keeps_its_order_where_the_normal_law_underflows() -> None:
    shadows = Shadows(np.array([-1.0, 1.0, 0.0, 0.5])[:, None, None] * np.ones(3), np.zeros((4, 3), dtype=bool))
    assert np.isfinite(Lira(online=False)(shadows, np.array([[1e2, 1e4, 1e6]]))).all()
    assert (np.diff(Lira(online=False)(shadows, np.array([[1e2, 1e4, 1e6]]))) > 0).all()


def test_one_sided_offline_lira_beats_the_two_sided_one_by_the_known_margin() -> None:
    """A shift by one deviation, 64 out models: AUC Phi(1 / sqrt 2) = .760 against .63 of the two-sided density."""
    rng, member = np.random.default_rng(10), np.arange(4000) < 2000
    shadows = Shadows(rng.normal(size=(64, 1, 4000)), np.zeros((64, 4000), dtype=bool))
    target = rng.normal(size=4000) + member
    one_sided = Lira(online=False, variance="pooled")(shadows, target[None])
    two_sided = np.square(target - shadows.odds[:, 0].mean(axis=0))
    assert auc(one_sided, member) == pytest.approx(0.76, abs=0.03)
    assert auc(two_sided, member) == pytest.approx(0.63, abs=0.03)
    assert operating_point(one_sided, member, 0.01).tpr > operating_point(two_sided, member, 0.01).tpr


@pytest.mark.parametrize(("models", "law"), [(4, "equal"), (16, "equal"), (64, "equal"), (16, "unequal"), (64, "unequal")])
@pytest.mark.parametrize("online", [True, False])
def test_shrunk_variances_are_as_good_as_the_better_of_pooled_and_own(models: int, law: str, online: bool) -> None:
    """Pooled ones are right where variances are equal; own ones where they differ and models are many."""
    found = np.zeros((8, 3))
    for seed, row in enumerate(found):
        rng = np.random.default_rng(seed)
        scale = 1.0 if law == "equal" else np.exp(rng.normal(size=800))
        inside = rng.integers(0, 2, (models + 1, 800)).astype(bool)
        odds = 3 * rng.normal(size=800) + scale * (rng.normal(size=(models + 1, 800)) + inside)
        shadows = Shadows(odds[1:, None], inside[1:])
        row[:] = [auc(Lira(online, kind)(shadows, odds[:1]), inside[0]) for kind in ("pooled", "example", "shrunk")]
    pooled, own, shrunk = found.mean(axis=0)
    assert shrunk >= max(pooled, own) - 0.01
    assert shrunk >= min(pooled, own) + (0.01 if (models, law) in ((4, "equal"), (64, "unequal")) else 0.0)


def test_shrunk_variances_recover_the_law_of_the_variances() -> None:
    """Inverse-gamma variances with d0 = 8: the posterior mean of precision is nearer to the truth than either extreme."""
    rng = np.random.default_rng(11)
    truth = 8 / rng.chisquare(8, 4000)
    shadows = Shadows((rng.normal(size=(6, 4000)) * np.sqrt(truth))[:, None], np.zeros((6, 4000), dtype=bool))
    moments = Moments.of(shadows)
    pooled, own, shrunk = (variances(moments.outer, moments.inner, kind)[0] for kind in ("pooled", "example", "shrunk"))
    assert np.polyfit(own, shrunk, 1) == pytest.approx([5 / 13, 8 / 13], rel=0.1)  # (d0 s0^2 + d v) / (d0 + d)
    pooled_error, own_error, error = (np.square(np.log(kind / truth)).mean() for kind in (pooled, own, shrunk))
    assert error < 0.8 * min(pooled_error, own_error)


def test_variances_are_pooled_within_pools() -> None:
    rng, pools = np.random.default_rng(25), np.arange(400) % 2
    shadows = Shadows(
        (rng.normal(size=(20, 400)) * np.where(pools, 3.0, 0.1))[:, None], np.zeros((20, 400), dtype=bool), pools
    )
    moments = Moments.of(shadows)
    spread = variances(moments.outer, moments.inner, "pooled", shadows.pools)[0]
    assert spread[pools == 1] == pytest.approx(9.0, rel=0.1)
    assert spread[pools == 0] == pytest.approx(0.01, rel=0.1)


def test_pool_without_two_models_per_example_falls_back_to_the_overall_variance() -> None:
    side = Side(np.array([5.0, 5.0, 1.0]), np.zeros((1, 3)), np.array([[4.0, 12.0, 0.0]]))
    assert variances(side, side, "pooled", np.array([0, 0, 1])).tolist() == [[2.0, 2.0, 2.0]]
    assert variances(side, side, "pooled", np.array([0, 1, 1])).tolist() == [[1.0, 3.0, 3.0]]


def test_lira_pools_residuals_rather_than_values() -> None:
    """Difficulties vary by 9 between examples; the variance within an example is 1 + .5^2."""
    shadows, _, _ = world(12, 40, 500, spread=1.0, shift=5.0)
    moments = Moments.of(shadows)
    assert variances(moments.outer, moments.inner, "pooled") == pytest.approx(1.25, rel=0.05)
    assert variances(moments.inner, moments.outer, "pooled") == pytest.approx(1.25, rel=0.05)


def test_pooled_lira_ranks_as_one_with_the_deviation_of_all_residuals() -> None:
    """With equal numbers of in- and out-models, degrees of freedom scale the published library's variances by one factor."""
    rng = np.random.default_rng(26)
    inside = rng.permuted(np.arange(10)[:, None] < 5 * np.ones((1, 200)), axis=0)
    odds, target = rng.normal(size=(10, 200)) + inside, rng.normal(size=200) + 1
    own, others = (odds.T[side.T].reshape(200, 5).T for side in (inside, ~inside))
    laws = [(side.mean(axis=0), (side - side.mean(axis=0)).std()) for side in (own, others)]
    published = np.subtract(*(scipy.stats.norm.logpdf(target, mean, deviation) for mean, deviation in laws))
    found = Lira(variance="pooled")(Shadows(odds[:, None], inside), target[None])
    np.testing.assert_array_equal(np.argsort(found), np.argsort(published))


def test_in_and_out_models_have_separate_variances() -> None:
    rng, inside = np.random.default_rng(13), np.arange(60)[:, None] % 2 * np.ones(400) > 0
    shadows = Shadows((rng.normal(size=(60, 400)) * np.where(inside, 0.5, 2.0))[:, None], inside)
    moments = Moments.of(shadows)
    assert variances(moments.inner, moments.outer, "pooled") == pytest.approx(0.25, rel=0.1)
    assert variances(moments.outer, moments.inner, "pooled") == pytest.approx(4.0, rel=0.1)


def test_lira_of_a_large_offset_loses_no_precision() -> None:
    shadows, target, _ = world(14, 8, 50)
    far = Shadows(shadows.odds + 1e6, shadows.inside)
    np.testing.assert_allclose(Lira()(far, target + 1e6), Lira()(shadows, target), rtol=1e-5, atol=1e-6)


def test_a_single_shadow_gives_no_variance() -> None:
    shadows, target, _ = world(15, 1, 10)
    with pytest.raises(AssertionError, match="needs two models"):
        Lira()(shadows, target)
    assert np.isfinite(Rmia()(shadows, target)).all()


@pytest.mark.parametrize("attack", [Rmia(), Rmia(online=False, a=1.0)], ids=str)
def test_leave_one_out_ratio_keeps_its_precision_if_the_left_out_model_dominates_the_mean(attack: Attack) -> None:
    """Without the model whose p is 1, the mean of the others is about exp(-50), beyond differences of rounded sums."""
    odds = np.array([40.0, -50.0, -51.0, -52.0])[:, None, None] * np.ones((4, 1, 2))
    inside = np.array([[False, True], [False, False], [False, True], [False, False]])
    shadows = Shadows(odds, inside)
    found = survey(shadows, attack)
    plain = [attack(shadows.without(model), odds[model]) for model in range(4)]
    np.testing.assert_allclose(found, plain, rtol=1e-9, atol=1e-12)
    assert found[0, 0] == pytest.approx(-np.log(np.exp([-50.0, -51.0, -52.0]).mean()), rel=1e-9)


def test_rmia_equals_the_pairs_counted_one_by_one() -> None:
    ratio, nonmember = np.round(np.random.default_rng(16).normal(size=80), 1), np.arange(80) % 3 == 0
    z = ratio[nonmember]
    halves = [((value > z) + 0.5 * (value == z)).mean() for value in ratio]
    scores, levels = rmia(ratio, nonmember)
    np.testing.assert_allclose(scores, halves)
    assert levels == len(set(np.round(halves, 9)))


@pytest.mark.parametrize("online", [True, False])
def test_rmia_at_gamma_1_ranks_as_base_with_the_same_reference(online: bool) -> None:
    shadows, target, member = world(17, 16, 400)
    ratio = Rmia(online)(shadows, target)
    base = Base(online=online)(shadows, target)
    np.testing.assert_array_equal(np.argsort(ratio, kind="stable"), np.argsort(base, kind="stable"))
    scores, levels = rmia(ratio, ~member)
    assert (np.diff(scores[np.argsort(base)]) >= 0).all()
    assert levels <= 2 * (~member).sum() + 1
    assert auc(scores, member) == pytest.approx(auc(base, member), abs=1e-12)  # only members tie between two non-members


def test_rmia_has_one_denominator_for_members_and_nonmembers() -> None:
    """On easy examples nearly all ratios tie. With one reference less for non-members, the denominator alone would decide."""
    rng, member = np.random.default_rng(18), np.arange(300) < 150
    ratio = np.where(rng.random(300) < 0.1, rng.normal(0, 2, 300), 0.0)  # no membership in it
    z = ratio[~member]
    above, tied = ratio[:, None] > z[None], ratio[:, None] == z[None]
    trap = (above + tied / 2).sum(axis=1) / np.where(member, len(z), len(z) - 1)
    scores, _ = rmia(ratio, ~member)
    easy = ratio == 0
    assert auc(trap[easy], member[easy]) == 0.0
    assert auc(scores[easy], member[easy]) == 0.5


def test_rmia_scores_of_the_null_are_at_chance() -> None:
    outside = 0
    for seed in range(60):
        shadows, target, member = world(seed + 500, 8, 200, shift=0.0)
        scores, _ = rmia(Rmia()(shadows, target), ~member)
        low, high = auc_interval(scores, member)
        outside += not low < 0.5 < high
    assert outside <= most_of(60, 0.07)


def test_fit_a_prefers_the_slope_that_is_best_on_other_targets() -> None:
    """Every example has its own difficulty and p far below 1, so that p_out matters: a = 1 calibrates, a = 0 less so."""
    rng = np.random.default_rng(19)
    inside = rng.integers(0, 2, (12, 500)).astype(bool)
    odds = (-4 + 2 * rng.normal(size=500) + 0.3 * rng.normal(size=(12, 500)) + 0.5 * inside)[:, None]
    shadows = Shadows(odds[:11], inside[:11])
    a = fit_a(shadows, seed=0)
    found = {slope: auc(Rmia(False, slope)(shadows, odds[11]), inside[11]) for slope in (0.0, a)}
    assert a >= 0.9
    assert found[a] > found[0.0] + 0.02
    assert fit_a(shadows, seed=0) == a


def test_trajectory_is_better_than_its_last_checkpoint_where_others_add_something() -> None:
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        inside = rng.integers(0, 2, (17, 500)).astype(bool)
        own = rng.normal(size=(17, 4, 500)) + rng.normal(size=(17, 1, 500))  # correlated checkpoints
        odds = 2 * rng.normal(size=500) + own + np.array([0.2, 1.0, 1.2, 1.0])[:, None] * inside[:, None]
        shadows, last = Shadows(odds[1:], inside[1:]), Shadows(odds[1:, 3:], inside[1:])
        whole, end = Trajectory()(shadows, odds[0]), Lira(variance="pooled")(last, odds[0, 3:])
        found.append((auc(whole, inside[0]), auc(end, inside[0])))
    whole_auc, end_auc = np.mean(found, axis=0)
    assert whole_auc > end_auc + 0.01


def test_trajectory_of_copied_checkpoints_ranks_as_one() -> None:
    """Four equal checkpoints are nearly one; LiRA's average of queries would be the same, their sum four times as large."""
    shadows, target, member = world(21, 16, 500)
    copied = Shadows(np.repeat(shadows.odds, 4, axis=1), shadows.inside)
    one, four = Lira(variance="pooled")(shadows, target), Trajectory()(copied, np.repeat(target, 4, axis=0))
    assert np.corrcoef(one, four)[0, 1] > 0.999
    assert np.abs(four).max() < 1.2 * np.abs(one).max()
    assert auc(four, member) == pytest.approx(auc(one, member), abs=1e-3)


@pytest.mark.parametrize("how", ["max", "sum", "trimmed"])
@pytest.mark.parametrize("attack", [Lira(online=False), Lira(), Lira(variance="pooled")], ids=str)
def test_the_number_of_rows_decides_neither_auc_nor_false_alarms(attack: Attack, how: How) -> None:
    """Persons of 1 to 60 rows, members by the same coin, and models that do not remember.

    The maximum of a target's own log odds ranks persons of many rows first; scores that are calibrated by person do not.
    """
    rank_of_many, flags, naive = [], [], []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        rows = np.floor(61 ** rng.random(300)).astype(int)
        many, persons = rows > np.median(rows), np.repeat(np.arange(300), rows)
        inside = rng.integers(0, 2, (33, 300)).astype(bool)
        odds = (2 * rng.normal(size=len(persons)) + rng.normal(size=(33, len(persons))))[:, None]
        scores = attack(Shadows(odds[1:], inside[1:][:, persons]).by_person(persons, how), by_person(odds[0], persons, how))
        low, high = auc_interval(scores, inside[0], level=0.9999)
        assert low < 0.5 < high
        rank_of_many.append(auc(scores, many))
        flags.append([(scores > np.quantile(scores, 0.9))[side].mean() for side in (many, ~many)])
        naive.append(auc(by_person(odds[0], persons, "max")[0], many))
    assert np.mean(rank_of_many) == pytest.approx(0.5, abs=0.07)
    assert np.ptp(np.mean(flags, axis=0)) < 0.08
    assert np.mean(naive) > 0.8


@pytest.mark.parametrize("attack", [Rmia(), Rmia(online=False), CalibratedLoss()], ids=str)
def test_calibrated_scores_spread_false_alarms_over_persons_of_few_and_many_rows(attack: Attack) -> None:
    """Without calibration, nearly all of the highest scores belong to persons of few rows."""
    shares = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        rows = np.floor(61 ** rng.random(300)).astype(int)
        persons = np.repeat(np.arange(300), rows)
        inside = rng.integers(0, 2, (33, 300)).astype(bool)
        odds = (2 * rng.normal(size=len(persons)) + rng.normal(size=(33, len(persons))))[:, None]
        shadows, target = (
            Shadows(odds[1:], inside[1:][:, persons]).by_person(persons, "sum"),
            by_person(odds[0], persons, "sum"),
        )
        both = attack(shadows, target), calibrated(shadows, attack, target)
        shares.append([(rows > np.median(rows))[scores > np.quantile(scores, 0.9)].mean() for scores in both])
    plain, fair = np.mean(shares, axis=0)
    assert plain < 0.2
    assert 0.35 < fair < 0.65


@pytest.mark.parametrize("attack", [Rmia(), CalibratedLoss(), Loss()], ids=str)
def test_calibrated_scores_find_members(attack: Attack) -> None:
    shadows, target, member = world(27, 24, 600, shift=2.0)
    assert auc_interval(calibrated(shadows, attack, target), member)[0] > 0.6


def test_a_remembered_person_is_found_by_each_aggregate() -> None:
    rng, persons = np.random.default_rng(23), np.repeat(np.arange(200), 6)
    inside = rng.integers(0, 2, (17, 200)).astype(bool)
    odds = (2 * rng.normal(size=1200) + rng.normal(size=(17, 1200)) + inside[:, persons])[:, None]
    found = {}
    for how in ("max", "sum", "trimmed"):
        shadows = Shadows(odds[1:], inside[1:][:, persons]).by_person(persons, how)
        found[how] = auc(Lira()(shadows, by_person(odds[0], persons, how)), inside[0])
    assert min(found.values()) > 0.6
    assert found["sum"] > found["max"]  # all rows are remembered, so the mean knows most


def test_a_target_with_another_number_of_examples_is_refused() -> None:
    shadows, target, _ = world(24, 4, 10)
    with pytest.raises(AssertionError, match="same examples"):
        Loss()(shadows, target[:, :9])
