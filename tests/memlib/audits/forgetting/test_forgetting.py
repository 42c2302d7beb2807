"""rho's identities, traces and verdicts on simulated models whose truth is known, and refusals."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.stats
from pydantic import ValidationError

from memlib.audits.forgetting.distances import Distances, Observed, score, score_examples
from memlib.audits.forgetting.findings import curves, summarize
from memlib.audits.forgetting.recipe import FORGOTTEN, NO_TRACE, NULL, RETAINED, REVERSED, TARGET, UNDECIDED, Config, Recipe
from memlib.audits.forgetting.tables import EXAMPLES, UNITS
from memlib.audits.forgetting.trace import (
    Pool,
    _may_differ,
    count_found,
    estimate_effects,
    find_trace,
    follows,
    power_by_redraws,
    residuals,
    share_interval,
    share_limit,
)
from memlib.audits.forgetting.verdict import limits, outcomes_of
from memlib.audits.forgetting.verdict import outcome as outcome_of
from memlib.data.given_sets import Difference
from memlib.errors import RunError
from memlib.findings import BOUNDED, INCONCLUSIVE, SHOWN, Finding, Findings
from memlib.specs.data import CALIBRATION, KNOWN, QUERY, WITHHELD
from memlib.stats.difficulty import normal_scores
from memlib.stats.likelihood import Likelihoods, confidences, decimals_of, log_odds
from memlib.tables import CURVES, SUMMARY
from tests.chance import least_of, most_of

CONFIG = Config(replicates=100, resamples=50, permutations=999)
COUNT = 600
LABELS = np.arange(COUNT) % 3
ROLES = np.array([QUERY, KNOWN, WITHHELD])[(np.arange(COUNT) // 3) % 3]
POOL = Pool(ROLES, LABELS, np.arange(COUNT))
EASE = np.random.default_rng(9).normal(2, 1, COUNT)  # of each example, whichever model
MIX = {"mix": {"calibration": 1, "known": 1}}
IDS, NAMES = [f"e{i}" for i in range(COUNT)], ["c"] * COUNT


def model(
    group: str, number: int, share: float, *, target: str = "", seed: int = 0, surer: float = 0.0, known: bool = False
) -> Observed:
    """A model that has seen a share of D_Q, and maybe the known examples: seen examples have higher log odds."""
    rng = np.random.default_rng([seed, number, *group.encode(), *target.encode()])
    query = np.flatnonzero(ROLES == QUERY)
    member = np.isin(np.arange(COUNT), rng.permutation(query)[: round(share * len(query))]) | (known & (ROLES == KNOWN))
    odds = EASE + 2.0 * member + surer + rng.normal(0, 0.7, COUNT)
    return Observed(group, target, number, odds, members=member if group in (TARGET, "retained") else None)


UNSEEN = np.stack([model(NULL, i, 0.0).log_odds for i in range(8)])


def models(*targets: Observed, seed: int = 0, size: int = 10) -> list[Observed]:
    own = [model(QUERY, i, 1.0, seed=seed) for i in range(4)] + [model(CALIBRATION, i, 0.0, seed=seed) for i in range(4)]
    own += [model(NULL, i, 0.0, seed=seed) for i in range(size)]
    own += [model(RETAINED, i, 0.5, seed=seed) for i in range(size)]
    return [*own, *targets]


def without_withheld() -> Pool:
    return Pool(np.where(ROLES == QUERY, QUERY, "other"), LABELS, np.arange(COUNT))


def judged(*targets: Observed, size: int = 10, **changes: Any) -> Findings:
    what = recipe(dict.fromkeys([t.target for t in targets], MIX), **changes)
    return summarized(Distances(models(*targets, size=size), POOL, CONFIG), what)


ALIKE = Difference(0.5, 1.0, "ids", 240)


def summarized(distances: Distances, what: Recipe, checks: Difference = ALIKE) -> Findings:
    return Findings.read(summarize(distances, what, checks if what.is_declared else None))


def ends(row: Finding) -> tuple[float, float]:
    assert row.low is not None
    assert row.high is not None
    return row.low, row.high


def recipe(targets: dict[str, Any], **changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "data": {"source": {"kind": "digits"}},
        "sets": {"query": {}, "known": {"per_class": 9}, "withheld": {"per_class": 9}, "calibration": {}, "provider": {}},
        "model": {"architecture": "mlp"},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1},
        "targets": targets,
        "score": CONFIG.model_dump(),
        "verdict": {"models": 10},
    }
    return Recipe.model_validate(base | changes)


def test_the_query_model_has_rho_0_and_the_calibration_model_1() -> None:
    found = models()
    same = Observed(TARGET, "query", 0, found[0].log_odds), Observed(TARGET, "calibration", 0, found[4].log_odds)
    units = score(Distances([*found, *same], POOL, CONFIG)).to_pylist()
    rho = {
        (row["target"], row["query_model"], row["calibration_model"]): row["rho"] for row in units if row["group"] == TARGET
    }
    assert rho["query", 0, 0] == 0
    assert rho["calibration", 0, 0] == 1
    assert all(value == 1 for (target, _, c), value in rho.items() if target == "calibration" and c == 0)


def test_distance_to_the_target_equals_the_ks_statistic_of_scipy() -> None:
    found = models(model(TARGET, 0, 0.3, target="t"))
    row = next(r for r in score(Distances(found, POOL, CONFIG)).to_pylist() if r["group"] == TARGET)
    expected = scipy.stats.ks_2samp(*(confidences(m.log_odds[POOL.query]) for m in (found[0], found[-1]))).statistic
    assert row["ks_target"] == pytest.approx(expected)


def test_an_uninformative_calibration_set_gives_a_verdict_without_rho() -> None:
    same = [Observed(CALIBRATION, "", i, model(QUERY, 10 + i, 1.0).log_odds) for i in range(4)]
    observed = [m for m in models(model(TARGET, 0, 1.0, target="t")) if m.group != CALIBRATION] + same
    with pytest.raises(RunError, match="D_C cannot calibrate.*would divide by almost 0"):
        Distances(observed, without_withheld(), CONFIG)
    distances = Distances(observed, POOL, CONFIG)
    what = recipe({"t": MIX})
    found = summarized(distances, what)
    assert outcome_of(found.head) == RETAINED
    assert "rho is not given: D_C cannot calibrate" in found.verdict.explanation
    assert not found.all("rho")
    assert {row["rho"] for row in score(distances).to_pylist()} == {None}
    assert not [row for row in curves(distances, what).to_pylist() if row["curve"] == "rho_by_share"]


def test_log_odds_equal_values_computed_by_hand() -> None:
    scores = np.array([[0.0, 0.0, 0.0], [2.0, 0.0, -50.0], [-400.0, 400.0, 0.0]])
    found = log_odds(scores, np.array([0, 0, 1]))
    np.testing.assert_allclose(found, [np.log(0.5), 2.0, 30.0], atol=1e-9)
    np.testing.assert_allclose(log_odds(np.log([[0.9, 0.1]]), np.array([0])), [np.log(9)])


def test_rounded_outputs_are_recognised_and_compared_as_rounded() -> None:
    p = np.array([0.12, 0.5, 1.0])
    assert decimals_of(p) == 2
    assert decimals_of(np.array([0.1234567891])) is None
    assert decimals_of(np.array([1e-7])) is None  # a small probability is no rounded zero
    assert confidences(np.log(p[:2] / (1 - p[:2])), 1).tolist() == [0.1, 0.5]
    found = models()
    rounded = Observed(TARGET, "rounded", 0, found[4].log_odds, decimals=1)
    units = score(Distances([*found, rounded], POOL, CONFIG)).to_pylist()
    assert {r["rho"] for r in units if r["target"] == "rounded" and r["calibration_model"] == 0} == {1.0}


# -- the trace ------------------------------------------------------------------------------------------


def p_of(odds: np.ndarray, *, pool: Pool = POOL, permutations: int = 999) -> float:
    return find_trace(residuals(odds, UNSEEN), pool, permutations=permutations, seed=0).p_value


@pytest.mark.parametrize("alpha", [0.3, 0.05, 0.002])
def test_models_with_a_trace_are_counted_as_by_the_redraws_of_each(alpha: float) -> None:
    rng = np.random.default_rng(0)
    drawn = [rng.normal(size=COUNT) + strength * POOL.query for strength in np.linspace(0, 0.5, 20)]
    each = [find_trace(values, POOL, permutations=999, seed=seed).p_value <= alpha for seed, values in enumerate(drawn)]
    assert 0 < sum(each) < len(each)
    assert count_found(drawn, POOL, permutations=999, seeds=range(20), alpha=alpha) == sum(each)
    alone = [count_found([values], POOL, permutations=999, seeds=[seed], alpha=alpha) for seed, values in enumerate(drawn)]
    assert alone == each


def test_only_p_values_far_from_the_level_are_decided_by_the_redraws_of_others() -> None:
    assert _may_differ(0.05, 9999, 0.05)
    assert _may_differ(0.03, 9999, 0.05)
    assert not _may_differ(0.02, 9999, 0.05)
    assert not _may_differ(0.1, 9999, 0.05)
    assert not _may_differ(2e-4, 9999, 0.05)
    assert _may_differ(2e-4, 9999, 0.001)
    assert not _may_differ(1.0, 999, 0.0005)  # 999 redraws find nothing at that level


def test_normal_scores_equal_values_computed_by_hand() -> None:
    np.testing.assert_allclose(normal_scores(np.array([5.0, 1.0, 5.0])), scipy.stats.norm.ppf([2 / 3, 1 / 6, 2 / 3]))


def test_effects_and_their_covariance_equal_least_squares() -> None:
    """Regress on dummies of role and class, with errors from residuals summed by group."""
    rng = np.random.default_rng(0)
    roles, labels = rng.choice([QUERY, KNOWN, WITHHELD], 60), rng.integers(0, 3, 60)
    values, groups = rng.normal(size=60), np.arange(60) // 2
    found = estimate_effects(values, Pool(roles, labels, groups))
    x = np.column_stack([roles == QUERY, roles == KNOWN, *(labels == c for c in range(3))]).astype(float)
    beta, *_ = np.linalg.lstsq(x, values, rcond=None)
    np.testing.assert_allclose(found.values, beta[:2])
    residual = values - x @ beta
    sums = np.stack([(x * residual[:, None])[groups == g].sum(axis=0) for g in range(30)])
    bread = np.linalg.inv(x.T @ x)
    np.testing.assert_allclose(found.covariance, (bread @ sums.T @ sums @ bread * 30 / 25)[:2, :2])
    assert found.freedom == 25


@pytest.mark.parametrize(
    ("classes", "persons", "each"), [(50, 1, 1), (25, 2, 1), (10, 1, 20), (10, 2, 10), (10, 3, 5), (2, 60, 1)]
)
def test_share_limit_covers_the_true_share_in_sparse_designs(classes: int, persons: int, each: int) -> None:
    """With few examples or persons per class and set, the limit lies below the true share of .25 in at most 5 % of runs."""
    per_set = persons * each
    roles = np.tile(np.repeat([QUERY, KNOWN, WITHHELD], per_set), classes)
    labels = np.repeat(np.arange(classes), 3 * per_set)
    groups = np.arange(3 * per_set * classes) // each
    pool, below = Pool(roles, labels, groups), 0
    for seed in range(100):
        rng = np.random.default_rng([seed, classes, persons])
        noise = 0.7 * rng.normal(size=len(roles)) + 0.7 * rng.normal(size=groups.max() + 1)[groups]
        values = noise + 2.0 * (roles == KNOWN) + 0.5 * (roles == QUERY)
        below += share_limit(values, pool) < 0.25
    assert below <= 12  # 5 expected, 12 with probability .998


def test_share_limit_is_infinite_with_one_example_per_set() -> None:
    pool = Pool(np.array([QUERY, KNOWN, WITHHELD] * 2), np.repeat([0, 1], 3), np.arange(6) // 3 * 3 + np.arange(6) % 3)
    alone = Pool(pool.roles[:3], pool.labels[:3], np.arange(3))
    assert share_limit(np.array([0.0, 2.0, 0.0]), alone) == np.inf


def test_share_interval_is_unbounded_above_for_a_reversed_trace() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=COUNT) * 0.5 + 1.5 * (ROLES == KNOWN) - 0.3 * (ROLES == QUERY)
    estimate, _, high = share_interval(values, POOL)
    assert estimate < 0
    assert high == np.inf


@pytest.mark.parametrize("how", ["surer", "less sure", "temperature", "noise", "rounded", "one-sided", "of another ease"])
def test_innocent_targets_made_differently_are_accused_at_alpha(how: str) -> None:
    """Outputs that mislead the likelihood ratio do not mislead this test, because D_Q was drawn at random."""
    rejected = 0
    for seed in range(200):
        rng = np.random.default_rng([seed, 5])
        odds = EASE + rng.normal(0, 0.7, COUNT)
        odds = {
            "surer": odds + 4, "less sure": odds - 2, "temperature": odds * rng.uniform(0.3, 3), "noise": rng.normal(0, 1, COUNT),
            "rounded": np.round(odds), "one-sided": np.minimum(odds, 2.0), "of another ease": odds + rng.normal(0, 2, COUNT),
        }[how]  # fmt: skip
        roles = ROLES.copy()
        for label in range(3):
            mine = np.flatnonzero(label == LABELS)
            roles[mine] = rng.permutation(roles[mine])
        rejected += p_of(odds, pool=Pool(roles, LABELS, np.arange(COUNT)), permutations=199) <= 0.05
    assert rejected <= scipy.stats.binom.ppf(0.999, 200, 0.05)


@pytest.mark.parametrize(
    "change", [lambda odds: odds, lambda odds: odds / 2, lambda odds: odds + 4, lambda odds: np.tanh(odds / 9)]
)
def test_a_trace_is_found_at_any_temperature(change: Any) -> None:
    assert p_of(change(model(TARGET, 0, 0.5, target="t").log_odds)) <= 0.01


def test_persons_with_many_examples_keep_the_level_when_they_are_drawn_as_one() -> None:
    """With ten similar examples per person, draws of single examples reject far too often, draws of persons do not."""
    groups = np.repeat(np.arange(COUNT // 10), 10)
    alone = together = 0
    for seed in range(100):
        rng = np.random.default_rng([seed, 6])
        labels = np.zeros(COUNT, dtype=np.int64)
        roles = np.repeat(rng.permutation(np.array([QUERY, WITHHELD])[np.arange(COUNT // 10) % 2]), 10)
        odds = EASE + np.repeat(rng.normal(0, 2, COUNT // 10), 10)
        alone += p_of(odds, pool=Pool(roles, labels, np.arange(COUNT)), permutations=199) <= 0.05
        together += p_of(odds, pool=Pool(roles, labels, groups), permutations=199) <= 0.05
    assert alone > 25
    assert together <= most_of(100, 0.05)


def test_share_limit_covers_the_true_share_if_known_data_leave_traces() -> None:
    held = {0.0: 0, 0.5: 0, 1.0: 0}
    for share in held:
        for seed in range(40):
            values = residuals(model(TARGET, seed, share, known=True, target="t").log_odds, UNSEEN)
            held[share] += (limit := share_limit(values, POOL)) >= share
            assert share_interval(values, POOL)[0] <= limit
    assert min(held.values()) >= least_of(40, 0.95)
    values = residuals(model(TARGET, 0, 0.0, known=True, target="t").log_odds, UNSEEN)
    assert share_limit(values, POOL) < 0.3
    assert power_by_redraws(values, POOL, alpha=0.05, redraws=100, seed=0) == 1.0
    nothing = residuals(model(TARGET, 0, 0.0, target="t").log_odds, UNSEEN)
    assert power_by_redraws(nothing, POOL, alpha=0.05, redraws=100, seed=0) < 0.8


def test_shuffled_outputs_are_not_found_to_follow_the_labels() -> None:
    odds = model(TARGET, 0, 0.5, target="t").log_odds
    assert follows(odds, UNSEEN, LABELS, seed=0) == 0.001
    shuffled = np.random.default_rng(0).permutation(odds)
    assert follows(shuffled, UNSEEN, LABELS, seed=0) > 0.01


# -- verdicts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "known", "outcome", "word"),
    [
        (1.0, True, RETAINED, SHOWN),
        (0.5, False, RETAINED, SHOWN),
        (0.0, True, FORGOTTEN, BOUNDED),
        (0.0, False, NO_TRACE, INCONCLUSIVE),
    ],
)
def test_outcome_and_verdict_follow_from_share_and_known_data(share: float, known: bool, outcome: str, word: str) -> None:
    found = judged(model(TARGET, 0, share, known=known, target="t"), verdict={"models": 8, "share_bound": 0.5})
    head, (low, high) = found.head, ends(found.head)
    assert (head.metric, outcome_of(head)) == ("trace", outcome)
    assert head.verdict == word == found.verdict.word
    assert (head.detectable or 0) > 0
    assert low < head.value < high


def test_overzealous_unlearning_leaves_a_reversed_trace() -> None:
    plain = model(TARGET, 0, 0.0, known=True, target="t")
    target = Observed(TARGET, "t", 0, plain.log_odds - 2.0 * POOL.query, members=plain.members)
    head = judged(target).head
    assert outcome_of(head) == REVERSED
    assert head.value < 0


def test_without_withheld_examples_rho_is_an_estimate_and_the_verdict_inconclusive() -> None:
    target = model(TARGET, 0, 1.0, target="t")
    changes: dict[str, Any] = {"sets": {"query": {}, "calibration": {}, "provider": {}}}
    distances = Distances(models(target), without_withheld(), CONFIG)
    found = summarized(distances, recipe({"t": {"mix": {"query": 1}}}, **changes))
    assert (found.head.metric, outcome_of(found.head), found.head.role) == ("rho", UNDECIDED, "estimate")
    assert all(row.p_value is None and row.verdict is None for row in found)
    assert found.verdict.word == INCONCLUSIVE
    assert "withheld" in found.verdict.explanation


def test_a_draw_declared_elsewhere_is_withdrawn_where_models_without_it_know_its_sides_unlike() -> None:
    """Withheld examples with noisier labels are harder for every model, the auditor's null models included."""
    target, declared = model(TARGET, 0, 0.0, target="t", known=True), {"models": 10, "drawn_elsewhere": True}
    what = recipe({"t": MIX}, verdict=declared)
    plain = models(target)
    harder = [replace(each, log_odds=each.log_odds - 1.5 * (ROLES == WITHHELD)) for each in plain]
    fair, false = (summarized(Distances(each, POOL, CONFIG), what) for each in (plain, harder))
    assert not fair.first("declared_draw").params["contradicted"]
    assert "That draw is as declared (verdict.drawn_elsewhere)" in fair.verdict.explanation
    assert fair.tests()
    assert false.first("declared_draw").params["contradicted"]
    assert not false.tests()
    assert false.verdict.word == INCONCLUSIVE
    assert "models that saw neither know them unlike each other" in false.verdict.explanation
    dated = summarized(Distances(plain, POOL, CONFIG), what, Difference(0.9, 0.001, "dates", 240))
    assert dated.verdict.word == INCONCLUSIVE
    assert "but the sets can be told apart without any model (AUC 0.90, most by dates)" in dated.verdict.explanation


def test_the_tests_of_several_targets_form_one_family() -> None:
    targets = [model(TARGET, 0, share, known=True, target=name) for name, share in (("a", 1.0), ("b", 0.0), ("c", 0.0))]
    found = judged(*targets)
    assert {row.family for row in found.all("trace")} == {"targets"}
    assert found.head.params["target"] == "a"
    assert found.head.p_adjusted == pytest.approx(3 * (found.head.p_value or 0))
    sentence = (
        "1 of 3 targets (of 5 models each) were shown to have used this data set, 2 to contain little or no trace of it."
    )
    assert found.verdict.sentence == sentence
    assert found.first("found_share", target="null models").value <= 0.25
    assert found.first("found_share", target="retained models").value >= 0.75
    assert {row.role for row in found.all("found_share")} == {"diagnostic"}


def test_intervals_of_share_used_cover_the_true_share() -> None:
    held = given = 0
    for seed, share in itertools.product(range(8), (0.0, 0.5, 1.0)):
        for row in judged(model(TARGET, seed, share, known=True, target="t")).all("share_used"):
            low, high = ends(row)
            held, given = held + (low <= share <= high), given + 1
            assert row.role == "estimate"
            assert row.params["assumes"] == "used as the known examples were"
    assert given >= least_of(24, 0.85)  # the control is stronger than the strongest of ten once in eleven
    assert held >= least_of(given, 0.95)


def forgetter() -> Observed:
    """Return a target that is called forgotten."""
    targets = (model(TARGET, seed, 0.0, known=True, target="t") for seed in range(20))
    return next(target for target in targets if judged(target).verdict.word == BOUNDED)


def test_forgotten_cannot_be_bought_by_training_harder_on_the_known_examples() -> None:
    """All of D_Q leaves the usual trace of training data; known examples, supplied by the owner, leave a larger one."""
    plain = forgetter()
    harder = Observed(TARGET, "t", 0, plain.log_odds + 6.0 * (ROLES == KNOWN), members=plain.members)
    found = judged(harder)
    assert found.verdict.word == INCONCLUSIVE
    assert "the model was trained harder on them" in found.verdict.explanation
    assert not found.all("share_used")
    few = judged(plain, size=9).verdict
    assert few.word == INCONCLUSIVE
    assert "too few to know how strong the trace of training data can be" in few.explanation


def test_verdict_on_an_external_model_is_bounded_only_if_known_were_drawn_afterwards() -> None:
    """An owner may train on D_Q once and on the known examples often; both look like training data."""
    plain = forgetter()
    distances, theirs = Distances(models(plain), POOL, CONFIG), {"t": {"trained": {"model": "a:b", "version": "1"}}}
    found = summarized(distances, recipe(theirs))
    assert found.verdict.word == INCONCLUSIVE
    assert found.head.bound is None
    assert not found.all("share_used")
    declared = recipe(theirs, verdict={"models": 10, "known_drawn_afterwards": True})
    assert summarized(distances, declared).verdict.word == BOUNDED
    assert [text for text in limits(recipe(theirs)) if "verdict.known_drawn_afterwards" in text]
    assert not [text for text in limits(declared) if "verdict.known_drawn_afterwards" in text]


def test_share_used_is_omitted_if_retained_models_show_no_trace() -> None:
    """A model of another kind cannot be compared with models in which training data leave no trace."""
    distances = Distances(models(model(TARGET, 0, 0.0, known=True, target="t")), POOL, CONFIG)
    blind = [
        Observed(RETAINED, "", m.number, model(NULL, 50 + m.number, 0.0).log_odds, members=m.members)
        for m in distances.of(RETAINED)
    ]
    others = [m for m in distances.models.values() if m.group != RETAINED]
    assert not summarized(Distances([*others, *blind], POOL, CONFIG), recipe({"t": MIX})).all("share_used")


def test_a_more_confident_target_has_no_larger_share_used() -> None:
    """Withheld examples give the target's own false positive rate, known examples its true positive rate."""
    (row,) = judged(model(TARGET, 0, 0.0, known=True, surer=1.5, target="t")).all("share_used")
    assert row.value < 0.2


def test_distances_report_a_target_rounded_too_coarsely() -> None:
    sure = [Observed(m.group, m.target, m.number, m.log_odds + 8) for m in models()]
    Distances(sure, POOL, CONFIG)
    target = Observed(TARGET, "t", 0, sure[4].log_odds, decimals=1)
    assert "rounded to 1 decimals" in Distances([*sure, target], POOL, CONFIG).problems[1]


def test_from_sixteen_models_on_variances_are_each_examples_own() -> None:
    odds = np.random.default_rng(0).normal(size=(16, 2)) * [0.1, 5.0]
    few, many = (Likelihoods(odds[:count], odds[:count]).variances[0] for count in (15, 16))
    assert few[0] == few[1]
    assert many[1] > 100 * many[0]


def test_likelihood_ratio_equals_a_value_computed_by_hand() -> None:
    known = Likelihoods(np.array([[3.0], [5.0]]), np.array([[0.0], [2.0]]))  # means 4 and 1, variances 2 and 2
    assert known.ratio(np.array([4.0]))[0] == pytest.approx(9 / 4)
    found = models(*[model(TARGET, i, 0.5, target="t") for i in range(3)])
    assert score_examples(found, POOL, IDS, NAMES).schema.names == EXAMPLES.arrow.names


def test_summary_covers_all_targets_and_their_comparison_in_fixed_schemas() -> None:
    before = [Observed(TARGET, "before", 0, model(TARGET, 0, 1.0, target="b").log_odds)]
    after = [Observed(TARGET, "after", 0, model(TARGET, 0, 0.1, target="a").log_odds)]
    mixed = [model(TARGET, i, 0.5, target="half") for i in range(3)]
    distances = Distances(models(*before, *after, *mixed), POOL, CONFIG)
    what = recipe(
        {"before": {"outputs": {"path": "b"}}, "after": {"outputs": {"path": "a"}},
         "half": {"mix": {"calibration": 1, "known": 1, "query": 0.5}}},
        compare=["before", "after"],
    )  # fmt: skip
    summary = summarize(distances, what)
    assert summary.schema.names == SUMMARY.arrow.names
    assert score(distances).schema.names == UNITS.arrow.names
    drawn = curves(distances, what)
    assert drawn.schema.names == CURVES.arrow.names
    found = Findings.read(summary)
    outcomes = outcomes_of(found)
    assert outcomes["before"] == outcomes["half"] == RETAINED
    sentence, *others = summary["sentence"].to_pylist()
    assert sentence
    assert not any(others)
    rho = {name: found.first("rho", target=name) for name in ("before", "after")}
    low, high = ends(rho["before"])
    assert low < rho["before"].value < high < 1
    (change,) = found.all("rho_change")
    assert change.value == pytest.approx(rho["after"].value - rho["before"].value)
    assert ends(change)[0] > 0
    assert all((row.verdict is None) == (not row.is_test) for row in found)
    keys = list(zip(summary["metric"].to_pylist(), summary["params"].to_pylist(), strict=True))
    assert len(set(keys)) == len(keys)


@pytest.mark.long
def test_intervals_of_rho_cover_its_mean_over_models() -> None:
    """Over repeated draws of all models, the interval holds the mean of many models."""
    many = Distances(models(*[model(TARGET, i, 0.5, target="t", seed=99) for i in range(60)], seed=99), POOL, CONFIG)
    truth = float(np.mean([many.rho(m)[..., 0].mean() for m in many.models.values() if m.group == TARGET]))
    held = 0
    for seed in range(30):
        targets = [model(TARGET, i, 0.5, target="t", seed=seed) for i in range(4)]
        distances = Distances(models(*targets, seed=seed, size=3), POOL, Config(replicates=100))
        what = recipe({"t": {"mix": {"calibration": 1, "known": 1, "query": 0.5}}})
        low, high = ends(summarized(distances, what).first("rho"))
        held += low <= truth <= high
    assert held >= least_of(30, 0.95)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sets": {"query": {}}}, "sets has no calibration; add it"),
        ({"targets": {"t": {"mix": {"nope": 1}}}}, "targets.t names nope"),
        ({"targets": {"t": {}}}, "give one of mix, trained and outputs, not none"),
        ({"targets": {"t": {"mix": {"query": 1}, "outputs": {"path": "x"}}}}, "not mix and outputs"),
        ({"targets": {"t": {"trained": {"model": "a:b"}}}}, "give trained.weights"),
        ({"targets": {"t": {"mix": {"query": 1.5}}}}, "less than or equal to 1"),
        ({"targets": {}}, "at least 1 item"),
        ({"compare": ["t", "u"]}, "compare must name two of the targets t"),
        ({"verdict": {"null_mix": {"query": 1}}}, "must not train on any examples of the pool"),
        ({"verdict": {"null_mix": {"withheld": 1}}}, "must not train on any examples of the pool"),
        ({"targets": {"t": {"mix": {"query": 1, "withheld": 1}}}}, "no model may train on"),
        (
            {"targets": {"t": {"mix": {"query": 1}}}, "sets": {"query": {}, "calibration": {}, "known": {"per_class": 1}}},
            "known: 1",
        ),
        (
            {"sets": {"query": {"part": "a"}, "calibration": {}, "withheld": {"part": "b", "per_class": 1}}},
            "set verdict.drawn_elsewhere",
        ),
        ({"sets": {"query": {}, "calibration": {}, "withheld": {}}}, "set per_class for one of them"),
        ({"group": {"near": 1.0}}, "near_duplicates already joins near copies"),
        ({"verdict": {"retained_mix": {"query": 1, "withheld": 1}}}, "no model may train on"),
        ({"verdict": {"retained_mix": {"calibration": 1}}}, "contains no examples of D_Q"),
        ({"training": {"objective": {"kind": "vicreg"}, "epochs": 1}}, "does not train a classifier"),
        ({"training": {"objective": {"kind": "supervised"}, "epochs": 1, "patience": 1}}, "have no effect here"),
    ],
)
def test_recipes_with_contradictory_sets_or_targets_are_refused(changes: dict[str, Any], said: str) -> None:
    other = {"withheld": {"per_class": 1}} if "withheld" in str(changes) else {"provider": {}}
    changes = {"sets": {"query": {}, "calibration": {}, **other}} | changes
    with pytest.raises(ValidationError, match=said):
        recipe(changes.pop("targets", {"t": {"mix": {"query": 1}}}), **changes)


def test_null_and_retained_shares_have_defaults_from_the_sets_and_the_mix() -> None:
    targets = {"t": {"mix": {"query": 1, "known": 1}}}
    assert recipe(targets).null_shares == {"calibration": 1.0, "provider": 1.0}
    assert recipe(targets).retained_shares == {"calibration": 1.0, "query": 0.5, "known": 1.0}
    without = recipe({"t": {"mix": {"query": 1}}}, sets={"query": {}, "calibration": {}})
    assert without.null_shares == {"calibration": 0.8}
    assert without.retained_shares == {"calibration": 1.0, "query": 0.5}
