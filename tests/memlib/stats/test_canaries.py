"""The audit of canaries: plants are found at planned looks, and claims compared only where unit and delta agree."""

import math

import numpy as np
import pytest

from memlib.errors import UserError
from memlib.stats.canaries import CanaryResult, Plan, audit_canaries
from memlib.stats.epsilon import audit_one_run, gaussian_epsilon, one_run_p
from memlib.stats.operating import auc_interval
from tests.chance import most_of

COINS = np.random.default_rng(1).integers(0, 2, 200).astype(bool)
GUESSES = (20, 60, 160)


def audit(scores: np.ndarray, coins: np.ndarray = COINS, **settings: object) -> CanaryResult:
    return audit_canaries({1: scores}, coins, Plan(redraws=999), **{"guesses": GUESSES, **settings})  # type: ignore[arg-type]


def test_an_audit_of_one_look_has_the_bound_of_one_run_of_its_scores() -> None:
    scores = np.random.default_rng(0).normal(size=200) + 0.5 * COINS
    result = audit(scores, seed=3, delta=1e-6)
    assert result.bound == audit_one_run(scores, COINS, guesses=GUESSES, delta=1e-6, level=0.05, seed=3)
    assert result.auc_interval == auc_interval(scores, COINS)
    assert result.bound is not None
    assert result.epsilon_per_record == result.bound.epsilon


def test_known_canaries_reach_the_ceiling() -> None:
    result = audit(COINS + 0.1 * np.random.default_rng(0).normal(size=200))
    assert (result.num_canaries, result.num_inserted) == (200, COINS.sum())
    assert (result.auc, result.looked.p_value, result.looked.stopped) == (1.0, 1 / 1000, 1)
    assert result.bound is not None
    assert result.bound.epsilon == result.bound.ceiling > 3
    assert result.auc_interval[1] == 1.0
    assert not result.stands_out


def test_a_claim_is_tested_for_one_record() -> None:
    """With k copies, epsilon is k times the claim for one record; p of 160 right guesses, times three numbers of guesses."""
    for repeats in (1, 3):
        result = audit(COINS * 1.0, claimed=0.5, repeats=repeats)
        assert result.claim is not None
        assert result.bound is not None
        expected = 3 * one_run_p(160, 160, 200, epsilon=0.5 * repeats)
        assert math.isclose(result.claim.p_value, expected, rel_tol=1e-9)
        assert result.epsilon_per_record == result.bound.epsilon / repeats


def test_copies_at_a_positive_delta_are_not_compared() -> None:
    result = audit(COINS * 1.0, claimed=0.5, repeats=2, delta=1e-5)
    assert result.claim is None
    assert result.epsilon_per_record is None
    assert audit(COINS * 1.0, claimed=0.5, delta=1e-5).claim is not None


def test_the_level_of_a_claim_is_divided_among_few_looks_or_kept_for_the_last() -> None:
    plan, rng = Plan(looks=8, epsilon_looks=4, redraws=999), np.random.default_rng(0)
    scores = {look: rng.normal(size=200) + (9 * COINS if look == 2 else 0) for look in range(1, 9)}
    every, last = (
        audit_canaries(scores, COINS, plan, guesses=GUESSES, claimed=1.0, scope=scope)
        for scope in ("checkpoints", "last")  # type: ignore[arg-type]
    )
    assert (every.bound_at, last.bound_at) == (2, 8)
    assert every.bound is not None
    assert every.bound.level == pytest.approx(0.05 / 6)
    assert every.claim is not None
    assert last.claim is not None
    assert every.claim.p_value <= 0.05 < last.claim.p_value
    assert last.bound is not None
    assert last.bound.level == 0.05


def test_a_true_claim_of_the_gaussian_mechanism_is_refuted_at_few_looks_no_more_often_than_the_level() -> None:
    """Each look is another release of a mechanism that is as private as claimed, at its worst."""
    noise, delta, tries, hits = 1.0, 1e-5, 60, 0
    claimed, plan = gaussian_epsilon(noise, delta=delta), Plan(looks=8, epsilon_looks=4, redraws=999)
    rng = np.random.default_rng(0)
    for _ in range(tries):
        coins = rng.random(200) < 0.5
        scores = {look: coins + noise * rng.normal(size=200) for look in (2, 4, 6, 8)}
        found = audit_canaries(scores, coins, plan, guesses=GUESSES, claimed=claimed, delta=delta)
        assert found.claim is not None
        hits += found.claim.p_value <= 0.05
    assert hits <= most_of(tries, 0.05)


def test_nearly_equal_coins_and_looks_without_losses_are_refused() -> None:
    with pytest.raises(UserError, match="1 of 30 canaries were inserted; draw more"):
        audit(np.zeros(30), np.arange(30) == 0, guesses=(3,))
    with pytest.raises(UserError, match="29 of 30 canaries were inserted; draw more"):
        audit(np.zeros(30), np.arange(30) > 0, guesses=(3,))
    for scores in ({}, {2: np.zeros(200)}):
        with pytest.raises(UserError, match="no losses at any of the 1 planned looks"):
            audit_canaries(scores, COINS, Plan(), guesses=GUESSES)
