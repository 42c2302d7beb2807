"""Exchange tests: permutation tests that exchange canary net and control within each pair.

The null hypothesis is sharp: for these canaries, the feature's presence in the training set changed nothing. Canary net and
control, which share seed and data, are then exchangeable, and the level holds however the nets were trained. All scores
are exchanged together, so that their maximum adjusts each of them for the number of scores (max-T).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, unit_weights
from memlib.audits.unique_feature.calibrated_maxima import ByLabel, exchanged_maxima
from memlib.identity import derive_seed
from memlib.stats.inference import exchanges, permutation_p
from memlib.stats.multiplicity import max_t_p
from memlib.stats.randomization import detectable


@dataclass(frozen=True)
class Exchanged:
    """Results of an exchange test of several scores."""

    p_values: NDArray[np.float64]  #: (num_scores,), one-sided.
    adjusted: NDArray[np.float64]  #: (num_scores,), adjusted by max-T over all scores.
    #: (num_scores,), standard deviation of the mean difference under exchanges, without the observed effect.
    deviations: NDArray[np.float64]
    smallest_p: float  #: smallest p-value that data of this size can give.
    over: str  #: the units that were exchanged: nets or data.
    num_units: int  #: their number.

    def detectable(self, deviation: float, level: float) -> float | None:
        """Return the mean difference that is found at a level with a power of 80 %; None if none can be."""
        return detectable(deviation, level, freedom=self.num_units - 1, smallest_p=self.smallest_p)


@dataclass(frozen=True)
class Score:
    """One score in all draws of the data."""

    draws: Sequence[Analysis]  #: one analysis per draw.
    setting: int | None  #: index among the settings of score_by_label; None for scores without a maximum.


def exchange(
    scores: Sequence[Score], by_label: Sequence[ByLabel], *, alpha: float, permutations: int, seed: int
) -> Exchanged | None:
    """Test scores by exchanging canary nets and controls within pairs.

    All pairs of a draw of the data are exchanged together if there are enough draws to reject.

    Args:
        scores: scores of the same nets.
        by_label: one cell per draw of the data.
        alpha: level that exchanges of whole draws must be able to reach.
        permutations: maximum number of exchanges.
        seed: seed of the random exchanges.

    Returns:
        the test's results; None if there are fewer than two pairs, a draw has no pairs, or all nets share one seed.
    """
    first = scores[0].draws
    counts = [len(draw.pairs) for draw in first]
    if sum(counts) < 2 or min(counts) == 0 or all(draw.one_seed for draw in first):
        return None
    whole = len(counts) > 1 and 2.0 ** -len(counts) <= alpha
    num_units = len(counts) if whole else sum(counts)
    signs = exchanges(num_units, permutations, seed=derive_seed(seed, "exchange"))
    smallest = 1 / (1 + len(signs))
    if whole:
        signs = np.repeat(signs, counts, axis=1)
    weights = unit_weights([draw.canary[draw.pairs[:, 0]] for draw in first])
    observed = np.array([weights @ np.concatenate([draw.gains for draw in score.draws]) for score in scores])
    null = np.stack([_null(score, by_label, signs, weights) for score in scores], axis=1)
    p = np.array([permutation_p(float(value), column) for value, column in zip(observed, null.T, strict=True)])
    deviations = np.array([_deviation(score, weights, whole=whole) for score in scores])
    return Exchanged(p, max_t_p(observed, null), deviations, smallest, "data" if whole else "nets", num_units)


def _deviation(score: Score, weights: NDArray[np.float64], *, whole: bool) -> float:
    """Return the standard deviation of the mean difference under exchanges, with the observed effect removed."""
    gains = np.concatenate([draw.gains for draw in score.draws])
    if whole:
        starts = np.cumsum([0, *(len(draw.pairs) for draw in score.draws)])[:-1]
        gains = np.add.reduceat(weights * gains, starts) * len(starts)
        weights = np.full(len(starts), 1 / len(starts))
    share = float(np.square(weights).sum())
    spread = float(np.square(weights * (gains - weights @ gains)).sum()) / (1 - share)
    return float(np.sqrt(max(spread, 1e-24)))


def _null(
    score: Score, by_label: Sequence[ByLabel], signs: NDArray[np.int8], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the score's mean difference under each exchange, (num_exchanges,)."""
    total, start = np.zeros(len(signs)), 0
    for place, draw in enumerate(score.draws):
        pairs = slice(start, start + len(draw.pairs))
        start = pairs.stop
        if score.setting is None:
            total += signs[:, pairs] @ (weights[pairs] * draw.gains)
            continue
        values = by_label[place].values(score.setting)
        further = np.setdiff1d(draw.controls, draw.pairs[:, 1])
        sides = (values[draw.pairs[:, 0]], values[draw.pairs[:, 1]], values[further])
        total += exchanged_maxima(*sides, signs[:, pairs], weights[pairs])
    return total
