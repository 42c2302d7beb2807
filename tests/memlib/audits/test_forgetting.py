"""rho's identities, verdicts on simulated models whose truth is known, and refusals."""

import json
from typing import Any

import numpy as np
import pytest
import scipy.stats
from pydantic import ValidationError

from memlib.audits.forgetting import (
    FORGOTTEN,
    NULL,
    RETAINED,
    TARGET,
    UNDECIDED,
    Config,
    Distances,
    Judge,
    Observed,
    Recipe,
    VerdictSpec,
    curves,
    decide,
    score,
    score_examples,
    summarize,
)
from memlib.data.sets import CALIBRATION, QUERY
from memlib.errors import RunError
from memlib.stats.likelihood import Likelihoods, confidences, decimals_of, log_odds
from memlib.tables import CURVES, FORGETTING_EXAMPLES, FORGETTING_UNITS, SUMMARY

CONFIG = Config(replicates=100, resamples=20)
COUNT = 300
LABELS = np.arange(COUNT) % 3
EASE = np.random.default_rng(9).normal(2, 1, COUNT)  # of each example, whichever model


def model(group: str, number: int, share: float, *, target: str = "", seed: int = 0, surer: float = 0.0) -> Observed:
    """A model that has seen a share of D_Q: seen examples have higher log odds."""
    rng = np.random.default_rng([seed, number, *group.encode(), *target.encode()])
    member = np.isin(np.arange(COUNT), rng.permutation(COUNT)[: round(share * COUNT)])
    odds = EASE + 2.0 * member + surer + rng.normal(0, 0.7, COUNT)
    return Observed(group, target, number, odds, members=member if group == TARGET else None)


def models(*targets: Observed, seed: int = 0, size: int = 8) -> list[Observed]:
    own = [model(QUERY, i, 1.0, seed=seed) for i in range(4)] + [model(CALIBRATION, i, 0.0, seed=seed) for i in range(4)]
    own += [model(NULL, i, 0.0, seed=seed) for i in range(size)] + [model(RETAINED, i, 0.5, seed=seed) for i in range(size)]
    return [*own, *targets]


def recipe(targets: dict[str, Any], **changes: Any) -> Recipe:
    base: dict[str, Any] = {
        "data": {"source": {"kind": "digits"}},
        "sets": {"query": {}, "calibration": {}, "provider": {}},
        "model": {"architecture": "mlp"},
        "training": {"objective": {"kind": "supervised"}, "epochs": 1},
        "targets": targets,
        "score": CONFIG.model_dump(),
        "verdict": {"models": 8},
    }
    return Recipe.model_validate(base | changes)


def test_the_query_model_has_rho_0_and_the_calibration_model_1() -> None:
    found = models()
    same = Observed(TARGET, "query", 0, found[0].log_odds), Observed(TARGET, "calibration", 0, found[4].log_odds)
    units = score(Distances([*found, *same], LABELS, CONFIG)).to_pylist()
    rho = {
        (row["target"], row["query_model"], row["calibration_model"]): row["rho"] for row in units if row["group"] == TARGET
    }
    assert rho["query", 0, 0] == 0
    assert rho["calibration", 0, 0] == 1
    assert all(value == 1 for (target, _, c), value in rho.items() if target == "calibration" and c == 0)


def test_distances_are_scipys() -> None:
    found = models(model(TARGET, 0, 0.3, target="t"))
    row = next(r for r in score(Distances(found, LABELS, CONFIG)).to_pylist() if r["group"] == TARGET)
    expected = scipy.stats.ks_2samp(confidences(found[0].log_odds), confidences(found[-1].log_odds)).statistic
    assert row["ks_target"] == pytest.approx(expected)


def test_a_calibration_set_that_does_not_differ_is_refused() -> None:
    same = [Observed(CALIBRATION, "", i, model(QUERY, 10 + i, 1.0).log_odds) for i in range(4)]
    with pytest.raises(RunError, match="D_C cannot calibrate.*would divide by nothing"):
        Distances([m for m in models() if m.group != CALIBRATION] + same, LABELS, CONFIG)


def test_log_odds_by_hand() -> None:
    scores = np.array([[0.0, 0.0, 0.0], [2.0, 0.0, -50.0], [-400.0, 400.0, 0.0]])
    found = log_odds(scores, np.array([0, 0, 1]))
    np.testing.assert_allclose(found, [np.log(0.5), 2.0, 30.0], atol=1e-9)
    np.testing.assert_allclose(log_odds(np.log([[0.9, 0.1]]), np.array([0])), [np.log(9)])


def test_rounded_outputs_are_recognised_and_compared_as_rounded() -> None:
    p = np.array([0.12, 0.5, 1.0])
    assert decimals_of(p) == 2
    assert decimals_of(np.array([0.1234567891])) is None
    assert confidences(np.log(p[:2] / (1 - p[:2])), 1).tolist() == [0.1, 0.5]
    found = models()
    rounded = Observed(TARGET, "rounded", 0, found[4].log_odds, decimals=1)
    units = score(Distances([*found, rounded], LABELS, CONFIG)).to_pylist()
    assert {r["rho"] for r in units if r["target"] == "rounded" and r["calibration_model"] == 0} == {1.0}


@pytest.mark.parametrize(
    ("value", "verdict"),
    [(0.2, RETAINED), (1.0, FORGOTTEN), (0.75, UNDECIDED), (1.9, FORGOTTEN), (3.0, UNDECIDED)],
)
def test_three_verdicts(value: float, verdict: str) -> None:
    """Above null models a target may be like calibration models; above both it is like none."""
    null, retained = np.array([0.8, 0.9, 1.0, 1.1, 1.2]), np.array([0.4, 0.5, 0.6, 0.7, 0.5])
    calibration = np.array([1.8, 1.9, 2.0, 1.9])
    assert decide(value, null, retained, alpha=0.05, calibration=calibration).verdict == verdict
    if value != 1.9:
        assert decide(value, null, retained, alpha=0.05).verdict == verdict


@pytest.mark.parametrize("statistic", ["likelihood_ratio", "rho"])
def test_noise_instead_of_a_models_outputs_is_not_called_forgotten(statistic: Any) -> None:
    rng = np.random.default_rng(5)
    noise = Observed(TARGET, "noise", 0, rng.normal(-6, 1, COUNT))
    judge = Judge(Distances(models(noise), LABELS, CONFIG), VerdictSpec(statistic=statistic, models=8))
    assert judge.judge(noise).verdict == UNDECIDED


def test_no_verdict_without_a_majority() -> None:
    shares = (0.0, 0.0, 1.0, 1.0)
    targets = [model(TARGET, i, share, target="t") for i, share in enumerate(shares)]
    distances = Distances(models(*targets), LABELS, CONFIG)
    examples = score_examples(list(distances.models.values()), [str(i) for i in range(COUNT)], LABELS, ["c"] * COUNT)
    rows = summarize(distances, examples, recipe({"t": {"mix": {"calibration": 1}}})).to_pylist()
    assert json.loads(rows[0]["params"])["verdict"] == UNDECIDED


def test_no_change_is_shown_between_models_of_one_kind() -> None:
    """Two mixes that are the same: the seeds of their models are in the interval of the change."""
    shown = 0
    what = recipe(
        {"a": {"mix": {"calibration": 1}}, "b": {"mix": {"calibration": 1}}}, compare=["a", "b"],
        score={"resamples": 0, "replicates": 100}, verdict={"models": 3},
    )  # fmt: skip
    for seed in range(40):
        rng = np.random.default_rng(seed)
        targets = [
            model(TARGET, i, 0.3, target=name, seed=seed, surer=float(rng.normal(0, 0.6))) for name in "ab" for i in range(4)
        ]
        distances = Distances(models(*targets, seed=seed, size=3), LABELS, Config(replicates=100))
        examples = score_examples(list(distances.models.values()), [str(i) for i in range(COUNT)], LABELS, ["c"] * COUNT)
        (row,) = [r for r in summarize(distances, examples, what).to_pylist() if r["metric"] == "rho_change"]
        shown += row["verdict"] != "at_null"
    assert shown <= 6  # 2 expected


def test_a_rounding_that_hides_everything_is_refused() -> None:
    sure = [Observed(m.group, m.target, m.number, m.log_odds + 8) for m in models()]
    Distances(sure, LABELS, CONFIG)
    target = Observed(TARGET, "t", 0, sure[4].log_odds, decimals=1)
    with pytest.raises(RunError, match="rounded to 1 decimals"):
        Distances([*sure, target], LABELS, CONFIG)


def test_models_that_cannot_be_told_apart_leave_it_undecided() -> None:
    null = np.array([0.8, 0.9, 1.0, 1.1, 1.2])
    assert decide(1.0, null, null, alpha=0.05).verdict == UNDECIDED
    assert decide(1.0, np.ones(3), np.ones(3), alpha=0.05).verdict == UNDECIDED


@pytest.mark.parametrize("statistic", ["likelihood_ratio", "rho"])
def test_null_plant_and_the_level_of_the_verdict(statistic: Any) -> None:
    """Nothing of D_Q is called retained at alpha; half and all of it are found."""
    wrong = found = 0
    spec = VerdictSpec(statistic=statistic, alpha=0.05, models=8)
    for seed in range(40):
        targets = [model(TARGET, 0, share, target=str(share), seed=seed) for share in (0.0, 0.5, 1.0)]
        judge = Judge(Distances(models(*targets, seed=seed), LABELS, Config(replicates=100)), spec)
        verdicts = [judge.judge(target).verdict for target in targets]
        wrong += verdicts[0] == RETAINED
        found += verdicts[1:] == [RETAINED, RETAINED]
    assert wrong <= 7  # 2 expected, 7 with probability .999
    assert found >= 36


def test_a_surer_target_is_not_called_forgotten_by_rho() -> None:
    """More epochs or more data: rho above 1 although all of D_Q was used."""
    target = model(TARGET, 0, 1.0, target="t", surer=4.0)
    distances = Distances(models(target), LABELS, CONFIG)
    assert distances.rho(target)[..., 0].mean() > 1
    assert Judge(distances, VerdictSpec(statistic="rho", models=8)).judge(target).verdict == UNDECIDED
    assert Judge(distances, VerdictSpec(models=8)).judge(target).verdict == RETAINED


def test_the_likelihood_ratio_by_hand_and_who_was_used() -> None:
    known = Likelihoods(np.array([[3.0], [5.0]]), np.array([[0.0], [2.0]]))  # means 4 and 1, variances 2 and 2
    assert known.ratio(np.array([4.0]))[0] == pytest.approx(9 / 4)
    target = [model(TARGET, i, 0.5, target="t") for i in range(3)]
    found = models(*target)
    ids = [f"e{i}" for i in range(COUNT)]
    examples = score_examples(found, ids, LABELS, ["c"] * COUNT)
    assert examples.schema.names == FORGETTING_EXAMPLES.arrow.names
    summary = summarize(Distances(found, LABELS, CONFIG), examples, recipe({"t": {"mix": {"calibration": 1, "query": 0.5}}}))
    rates = [row for row in summary.to_pylist() if row["metric"] == "true_positive_rate"]
    assert [json.loads(row["params"])["false_positive_rate"] for row in rates] == [0.01]  # .1 % needs thousands
    assert 0.2 < rates[0]["value"] < 0.9


def test_nobody_was_used_gives_no_more_than_the_false_positives() -> None:
    rng = np.random.default_rng(0)
    target = [
        Observed(TARGET, "t", i, model(TARGET, i, 0.0, target="t").log_odds, members=rng.random(COUNT) < 0.5)
        for i in range(20)
    ]
    found = models(*target)
    examples = score_examples(found, [str(i) for i in range(COUNT)], LABELS, ["c"] * COUNT)
    summary = summarize(Distances(found, LABELS, CONFIG), examples, recipe({"t": {"mix": {"calibration": 1}}}))
    (row,) = [row for row in summary.to_pylist() if row["metric"] == "true_positive_rate"]
    assert row["value"] < 0.03


def test_the_summary_has_everything_and_keeps_its_schemas() -> None:
    before = [Observed(TARGET, "before", 0, model(TARGET, 0, 1.0, target="b").log_odds)]
    after = [Observed(TARGET, "after", 0, model(TARGET, 0, 0.1, target="a").log_odds)]
    mixed = [model(TARGET, i, 0.5, target="half") for i in range(3)]
    distances = Distances(models(*before, *after, *mixed), LABELS, CONFIG)
    examples = score_examples(list(distances.models.values()), [str(i) for i in range(COUNT)], LABELS, ["c"] * COUNT)
    what = recipe(
        {"before": {"outputs": {"path": "b"}}, "after": {"outputs": {"path": "a"}},
         "half": {"mix": {"calibration": 1, "query": 0.5}}},
        compare=["before", "after"],
    )  # fmt: skip
    summary = summarize(distances, examples, what)
    assert summary.schema.names == SUMMARY.arrow.names
    assert score(distances).schema.names == FORGETTING_UNITS.arrow.names
    drawn = curves(distances, what)
    assert drawn.schema.names == CURVES.arrow.names
    rows = [{**row, "params": json.loads(row["params"])} for row in summary.to_pylist()]
    head = rows[0]
    assert (head["metric"], head["params"]["target"], head["params"]["verdict"]) == ("rho", "before", RETAINED)
    assert head["ci_low"] < head["value"] < head["ci_high"] < 1
    (change,) = [row for row in rows if row["metric"] == "rho_change"]
    assert change["verdict"] == "above_null"
    assert change["value"] == pytest.approx(
        next(r["value"] for r in rows if r["metric"] == "rho" and r["params"]["target"] == "after") - head["value"]
    )
    shares = [r for r in rows if r["metric"] == "share_of_verdicts" and r["params"]["over"] == "resampled"]
    assert {r["n"] for r in shares} == {20}
    keys = [(row["metric"], json.dumps(row["params"])) for row in rows]
    assert len(set(keys)) == len(keys)


def test_intervals_of_rho_cover_its_mean() -> None:
    """Over repeated draws of all models the interval holds the value of many models."""
    many = Distances(models(*[model(TARGET, i, 0.5, target="t", seed=99) for i in range(60)], seed=99), LABELS, CONFIG)
    truth = float(np.mean([many.rho(m)[..., 0].mean() for m in many.models.values() if m.group == TARGET]))
    held = 0
    for seed in range(30):
        targets = [model(TARGET, i, 0.5, target="t", seed=seed) for i in range(4)]
        distances = Distances(models(*targets, seed=seed, size=3), LABELS, Config(replicates=100))
        examples = score_examples(list(distances.models.values()), [str(i) for i in range(COUNT)], LABELS, ["c"] * COUNT)
        what = recipe({"t": {"mix": {"calibration": 1, "query": 0.5}}}, score={"resamples": 0, "replicates": 100})
        row = summarize(distances, examples, what).to_pylist()[0]
        held += row["ci_low"] <= truth <= row["ci_high"]
    assert held >= 26


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sets": {"query": {}}}, "sets lacks calibration"),
        ({"targets": {"t": {"mix": {"nope": 1}}}}, "targets.t names nope"),
        ({"targets": {"t": {}}}, "give one of mix, trained and outputs, not none"),
        ({"targets": {"t": {"mix": {"query": 1}, "outputs": {"path": "x"}}}}, "not mix and outputs"),
        ({"targets": {"t": {"trained": {"model": "a:b"}}}}, "trained.weights says"),
        ({"targets": {"t": {"mix": {"query": 1.5}}}}, "less than or equal to 1"),
        ({"targets": {}}, "at least 1 item"),
        ({"compare": ["t", "u"]}, "compare names two of the targets t"),
        ({"verdict": {"null_mix": {"query": 1}}}, "must have seen none of it"),
        ({"verdict": {"retained_mix": {"calibration": 1}}}, "holds nothing of D_Q"),
        ({"training": {"objective": {"kind": "vicreg"}, "epochs": 1}}, "makes no classifier"),
        ({"training": {"objective": {"kind": "supervised"}, "epochs": 1, "patience": 1}}, "have no use here"),
    ],
)
def test_recipes_that_make_no_sense(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        recipe(changes.pop("targets", {"t": {"mix": {"query": 1}}}), **changes)


def test_what_null_models_train_on_by_default() -> None:
    targets = {"t": {"mix": {"query": 1}}}
    assert recipe(targets).null_shares == {"calibration": 1.0, "provider": 1.0}
    assert recipe(targets).null_has_the_domain
    other = recipe(targets, sets={"query": {}, "calibration": {}, "other": {}}, verdict={"null_mix": {"other": 1}})
    assert not other.null_has_the_domain  # images of whatever kind
    without = recipe(targets, sets={"query": {}, "calibration": {}})
    assert without.null_shares == {"calibration": 0.8}
    assert not without.null_has_the_domain
