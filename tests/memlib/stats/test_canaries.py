"""The audit of canaries: nulls at their level, plants found, and claims compared only where unit and delta agree."""

import math

import numpy as np
import pytest

from memlib.errors import UserError
from memlib.stats.canaries import CanaryAudit, audit_canaries
from memlib.stats.epsilon import one_run_p

COINS = np.random.default_rng(1).integers(0, 2, 200).astype(bool)
GUESSES = (20, 60, 160)


def audit(scores: np.ndarray, coins: np.ndarray = COINS, **settings: object) -> CanaryAudit:
    return audit_canaries(scores, coins, **{"guesses": GUESSES, "redraws": 199, **settings})  # type: ignore[arg-type]


def test_scores_independent_of_the_coins_are_significant_at_most_at_the_level() -> None:
    """300 worlds: 15 false alarms of the test are expected, and at most 15 of the bound (which is conservative)."""
    rng = np.random.default_rng(0)
    shown, bounded = 0, 0
    for _ in range(300):
        result = audit(rng.normal(size=60), rng.integers(0, 2, 60).astype(bool), guesses=(6, 18, 48), redraws=99)
        shown, bounded = shown + (result.test.p_value <= 0.05), bounded + (result.bound.epsilon > 0)
    assert 3 <= shown <= 29  # 1 of 1,000 worlds each
    assert bounded <= 29


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


def test_nearly_equal_coins_are_refused() -> None:
    with pytest.raises(UserError, match="1 of 30 canaries were inserted; draw more"):
        audit(np.zeros(30), np.arange(30) == 0, guesses=(3,))
