"""Audit of canaries that fair coins put into a training set: a test of memory, a bound of epsilon and a test of a claim.

Two questions are asked, each at its own level: whether the scores depend on the coins at all (redrawn coins), and whether the
training can have been as private as its owner claims (one run, Steinke 2023). The coins put canaries in or leave them out,
which is add/remove adjacency.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.coins import CoinTest, coin_test
from memlib.stats.epsilon import Bound, ClaimTest, audit_one_run, exceeds, per_record
from memlib.stats.operating import auc_interval

FEWEST_OF_EACH = 2  # for an interval of the AUC
FEWEST_REDRAWS = 19


@dataclass(frozen=True)
class CanaryAudit:
    """The result of an audit of canaries."""

    num_canaries: int  #: num_canaries, num_inserted: numbers of canaries, and of those given to the trainer.
    num_inserted: int
    test: CoinTest  #: the test that the scores depend on the coins.
    auc_interval: tuple[float, float]  #: 95 % confidence interval of `test.auc`.
    bound: Bound  #: lower bound of epsilon for a canary with all its repeats.
    repeats: int  #: number of times that each inserted canary was given to the trainer.
    epsilon_per_record: float | None  #: the bound for a single record; None if there are repeats and delta is positive.
    claim: ClaimTest | None  #: the test of the claimed epsilon per record; None without a claim, or if it cannot be compared.


def audit_canaries(
    scores: NDArray[np.floating],
    inside: NDArray[np.bool_],
    *,
    guesses: Sequence[int],
    repeats: int = 1,
    claimed: float | None = None,
    delta: float = 0.0,
    level: float = 0.05,
    redraws: int = 9999,
    seed: int = 0,
) -> CanaryAudit:
    """Test for memory of canaries, bound epsilon, and test the claimed epsilon if there is one.

    Args:
        scores: (num_canaries,), higher for canaries that the model knows.
        inside: (num_canaries,) bool, independent fair coins.
        guesses: numbers of guesses of the bound, fixed before the scores were seen.
        repeats: number of times that each inserted canary was given to the trainer.
        claimed: claimed epsilon for one record, under add/remove adjacency and at `delta`.
        delta: delta of the bound and of the claim.
        level: probability with which the bound may be wrong.
        redraws: number of redraws of the coins.
        seed: seed of redraws and of the order of ties.

    Raises:
        UserError: when nearly all coins are equal, or a number is out of bounds.

    Example:
        >>> import numpy as np
        >>> coins = np.random.default_rng(0).integers(0, 2, 100).astype(bool)
        >>> audit = audit_canaries(coins * 1.0, coins, guesses=(80,), claimed=1.0, redraws=199)
        >>> audit.test.p_value, round(audit.bound.epsilon, 2), audit.claim.p_value < 1e-6
        (0.005, 3.27, True)
    """
    if redraws < FEWEST_REDRAWS:
        raise UserError(f"{redraws} redraws are too few for a p-value of .05; give at least {FEWEST_REDRAWS}, better 9999")
    inserted = int(inside.sum())
    if min(inserted, len(inside) - inserted) < FEWEST_OF_EACH:
        raise UserError(f"{inserted} of {len(inside)} canaries were inserted; draw more, so that there are some of each kind")
    bound = audit_one_run(scores, inside, guesses=guesses, delta=delta, level=level, seed=seed)
    return CanaryAudit(
        num_canaries=len(inside),
        num_inserted=inserted,
        test=coin_test(scores, inside, np.zeros(len(inside), dtype=np.int64), redraws=redraws, seed=seed),
        auc_interval=auc_interval(scores, inside),
        bound=bound,
        repeats=repeats,
        epsilon_per_record=per_record(bound.epsilon, repeats, delta=delta),
        claim=_tested(bound, claimed, repeats),
    )


def _tested(bound: Bound, claimed: float | None, repeats: int) -> ClaimTest | None:
    """Test a claim for one record: at delta 0, epsilon for all repeats is at most `repeats` times epsilon for one record."""
    if claimed is None or (repeats > 1 and bound.delta > 0):
        return None
    return exceeds(bound, claimed * repeats)
