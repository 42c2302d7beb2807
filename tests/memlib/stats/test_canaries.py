"""The audit of canaries: nulls at their level, plants found, and claims compared only where unit and delta agree."""

import math

import numpy as np
import pytest

from memlib.errors import UserError
from memlib.stats.canaries import CanaryAudit, audit_canaries
from memlib.stats.coins import coin_test
from memlib.stats.epsilon import audit_one_run, one_run_p
from memlib.stats.operating import auc_interval

COINS = np.random.default_rng(1).integers(0, 2, 200).astype(bool)
GUESSES = (20, 60, 160)


def audit(scores: np.ndarray, coins: np.ndarray = COINS, **settings: object) -> CanaryAudit:
    return audit_canaries(scores, coins, **{"guesses": GUESSES, "redraws": 199, **settings})  # type: ignore[arg-type]


def test_an_audit_is_the_coin_test_and_the_bound_of_one_run_of_its_scores() -> None:
    """Both are exact, see the tests of coins and of epsilon; nothing is added to them here."""
    scores = np.random.default_rng(0).normal(size=200) + 0.5 * COINS
    result = audit(scores, seed=3, level=0.1, delta=1e-6)
    assert result.test == coin_test(scores, COINS, np.zeros(200, dtype=int), redraws=199, seed=3)
    assert result.bound == audit_one_run(scores, COINS, guesses=GUESSES, delta=1e-6, level=0.1, seed=3)
    assert result.auc_interval == auc_interval(scores, COINS)
    assert result.epsilon_per_record == result.bound.epsilon


def test_known_canaries_reach_the_ceiling() -> None:
    result = audit(COINS + 0.1 * np.random.default_rng(0).normal(size=200))
    assert (result.num_canaries, result.num_inserted) == (200, COINS.sum())
    assert (result.test.auc, result.test.p_value) == (1.0, 1 / 200)
    assert result.bound.epsilon == result.bound.ceiling > 3
    assert result.auc_interval[1] == 1.0


def test_a_claim_is_tested_for_one_record() -> None:
    """With k copies, epsilon is k times the claim for one record; p of 160 right guesses, times three numbers of guesses."""
    for repeats in (1, 3):
        result = audit(COINS * 1.0, claimed=0.5, repeats=repeats)
        assert result.claim is not None
        expected = 3 * one_run_p(160, 160, 200, epsilon=0.5 * repeats)
        assert math.isclose(result.claim.p_value, expected, rel_tol=1e-9)
        assert result.epsilon_per_record == result.bound.epsilon / repeats


def test_copies_at_a_positive_delta_are_not_compared() -> None:
    result = audit(COINS * 1.0, claimed=0.5, repeats=2, delta=1e-5)
    assert result.claim is None
    assert result.epsilon_per_record is None
    assert audit(COINS * 1.0, claimed=0.5, delta=1e-5).claim is not None


def test_nearly_equal_coins_and_few_redraws_are_refused() -> None:
    with pytest.raises(UserError, match="18 redraws are too few"):
        audit(COINS * 1.0, redraws=18)
    assert audit(COINS * 1.0, redraws=19).test.p_value == 1 / 20
    with pytest.raises(UserError, match="1 of 30 canaries were inserted; draw more"):
        audit(np.zeros(30), np.arange(30) == 0, guesses=(3,))
    with pytest.raises(UserError, match="29 of 30 canaries were inserted; draw more"):
        audit(np.zeros(30), np.arange(30) > 0, guesses=(3,))
