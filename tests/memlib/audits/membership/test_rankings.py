"""Attacks on worlds whose models were also asked after earlier epochs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.rankings import survey_halves, survey_models
from memlib.audits.membership.shadows import Answers
from memlib.specs import TrainingSpec
from memlib.stats.membership import Trajectory
from memlib.stats.operating import auc
from memlib.stats.shadows import Shadows
from tests.memlib.audits.membership.worlds import world


def followed(memory: float, *, seed: int = 0, **settings: Any) -> Audited:
    """Return a world whose final models remember nothing, and those of two earlier epochs `memory` nats."""
    audited, rng = world(seed=seed, **settings), np.random.default_rng(seed + 5000)

    def more(answers: Answers, inside: NDArray[np.bool_]) -> Answers:
        noise = rng.normal(size=(len(inside), 2, inside.shape[1]))
        return replace(answers, earlier=(noise + memory * inside[:, None]).astype(np.float32))

    score = audited.recipe.score.model_copy(update={"attacks": ("lira", "trajectory"), "headline": "trajectory"})
    return replace(
        audited,
        recipe=audited.recipe.model_copy(update={"score": score}),
        target=more(audited.target, audited.member[None]),
        shadows=more(audited.shadows, audited.inside),
    )


@pytest.mark.parametrize("batch_size", [16, None])
def test_self_influence_weighs_each_epoch_by_its_learning_rate(batch_size: int | None) -> None:
    optimizer = {"learning_rate": 0.1, "schedule": "cosine", "warmup_epochs": 0, "final_fraction": 0.0}
    training = TrainingSpec.model_validate(
        {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": batch_size, "checkpoint_epochs": [1, 2],
         "optimizer": optimizer, "augment": None}
    )  # fmt: skip
    audited, norms = world(64), np.random.default_rng(0).random((3, 64))
    audited = replace(audited, norms=norms, recipe=audited.recipe.model_copy(update={"training": training}))
    steps = 1 if batch_size is None else int(audited.member.sum()) // batch_size
    rates = [0.05 * (1 + np.cos(np.pi * (epoch * steps - 1) / (4 * steps))) for epoch in (1, 2, 4)]
    np.testing.assert_allclose(audited.self_influence, rates @ norms)


def test_the_trajectory_finds_memory_seen_only_in_earlier_epochs() -> None:
    rankings = followed(1.0).rankings
    lira, trajectory = rankings.all
    assert trajectory.test is not None
    assert lira.test is not None
    assert trajectory.test.adjusted_p <= 0.01 < lira.test.adjusted_p
    assert auc(trajectory.scores, rankings.units.member) > 0.7


def test_the_trajectory_is_tested_by_the_coins_of_its_target_which_its_scores_do_not_know() -> None:
    """Scores that do not depend on the coins, and the test of these coins, which is exact: see the tests of coins."""
    audited = followed(1.0, count=80)
    other = replace(audited, member=~audited.member)
    scores, turned = (one.rankings.head.scores for one in (audited, other))
    np.testing.assert_array_equal(scores, turned)
    test, reverse = audited.rankings.head.test, other.rankings.head.test
    assert test is not None
    assert reverse is not None
    assert test.auc == auc(scores, audited.rankings.units.member, blocks=audited.units.strata)
    assert reverse.auc == pytest.approx(1 - test.auc)
    assert test.p_value < 0.05 < reverse.p_value


def test_the_trajectory_flags_persons_of_few_and_many_rows_equally_often() -> None:
    flags = []
    for seed in range(6):
        rows = np.floor(41 ** np.random.default_rng(seed).random(200)).astype(np.int64)
        found = followed(0.0, seed=seed, rows=rows, shadows={"count": 32}).rankings.head.scores
        many = rows > np.median(rows)
        flags.append([(found > np.quantile(found, 0.9))[side].mean() for side in (many, ~many)])
    assert np.ptp(np.mean(flags, axis=0)) < 0.08


@pytest.mark.parametrize("half", [8])
def test_the_survey_attacks_all_models_by_their_trajectories(half: int) -> None:
    rankings = followed(1.0).rankings
    shadows = rankings.given("trajectory")[1]
    assert shadows.odds.shape[1] == 3
    scores, results = survey_models(rankings)
    np.testing.assert_allclose(scores[5], Trajectory()(shadows.without(5), shadows.odds[5]), rtol=1e-6, atol=1e-6)
    assert min(result.auc for result in results) > 0.6
    first = Shadows(shadows.odds[:half], shadows.inside[:half])
    later = survey_halves(rankings, half)[1]
    np.testing.assert_allclose(later[0], Trajectory()(first, shadows.odds[half]))
