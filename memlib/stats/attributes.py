"""Attribute inference on tables: is a hidden column guessed better for members than for rows that the model never saw?

The attacker knows a row's class and all other columns, and asks the model about the row with each value of the hidden column
in turn. The guess is the value with the largest product of a prior and the model's confidence in the true class (Fredrikson
et al. 2014; Yeom et al. 2018, section 5). Guesses that are right for non-members as well come from the population, not from
memory: only the difference counts (Jayaraman and Evans 2022).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.stats.counterfactual import wilson
from memlib.stats.inference import permutation_p
from memlib.stats.randomization import Design, detectable

SMOOTHING = 1.0  # pseudo-count of each value in each class
LEVEL = 0.05


@dataclass(frozen=True)
class AttributeInference:
    """Rates at which a hidden column is guessed, on members and on non-members."""

    members: float  #: rate of right guesses on members, with strata weighted as in `difference`.
    non_members: float  #: the same on non-members.
    #: members minus non-members within strata, which count by n1 n2 / (n1 + n2) (Mantel and Haenszel 1959).
    difference: float
    #: low, high: 95 % interval of the difference (Newcombe 1998, method 10), over groups of units if there are groups; wider
    #: where the difference varies more in redraws than that of two independent rates, as with an estimated prior.
    low: float
    high: float
    p_value: float  #: one-sided, of redraws of the members; the smaller, the better members are guessed.
    #: difference that the test finds with a power of 80 % at .05; None if no redraw changes the difference.
    detectable: float | None
    by_prior: float  #: rate of right guesses by the prior alone, without the model, on all units.
    units: int  #: number of units.


def attribute_inference(
    odds: NDArray[np.floating],
    values: NDArray[np.int64],
    labels: NDArray[np.int64],
    design: Design,
    *,
    prior: NDArray[np.float64] | None = None,
    folds: NDArray[np.int64] | None = None,
    permutations: int,
    seed: int,
) -> AttributeInference:
    """Guess a hidden column with a model, and test by redraws if members are guessed better than non-members.

    Without a given prior, the prior of a unit is estimated from the non-members of the other folds, so that members and
    non-members of a fold are guessed with the same prior. It is estimated again in every redraw, so that the test is exact.

    Args:
        odds: (num_units, num_values) log odds of the true class if the column is set to each value.
        values: (num_units,) true value, int from 0; leave out units whose value is missing.
        labels: (num_units,) classes from 0.
        design: the draw of the members (the first side), within class.
        prior: (num_classes, num_values) shares of each value within each class, of rows that are not in the design.
        folds: (num_units,) fold of each unit, whole groups, at least two; needed if `prior` is None. Must not depend on the
            sides.

    Raises:
        UserError: for a value without odds, or neither a prior nor folds.

    Example:
        >>> import numpy as np
        >>> member, value = np.arange(80) < 40, np.arange(80) % 2
        >>> odds = np.where(member[:, None] & (value[:, None] == np.arange(2)), 3.0, 0.0)  # surest at the members' own values
        >>> labels = np.zeros(80, dtype=int)
        >>> found = attribute_inference(
        ...     odds, value, labels, Design.of(member, labels), prior=np.full((1, 2), 0.5), permutations=199, seed=0
        ... )
        >>> found.members, found.non_members, found.p_value < 0.01
        (1.0, 0.5, True)
    """
    _check(odds, values, prior, folds)
    guess = _Guess(odds, values, labels, prior, np.zeros(len(values), dtype=np.int64) if folds is None else folds)
    strata = np.unique(design.stratum, return_inverse=True)[1]
    correct, by_prior = guess.correct(design.first), guess.correct_by_prior(design.first)
    observed = _difference(correct, design.first, strata)
    if prior is None:
        null = np.array([_difference(guess.correct(side), side, strata) for side in _redrawn(design, permutations, seed)])
    else:  # the guesses do not depend on the draw
        null = design.redrawn_differences(correct, permutations, seed=seed)
    p_value, least = permutation_p(observed, null), detectable(float(null.std()), LEVEL)
    rates, ends = _rates_and_interval(correct, design, strata, deviation=0.0 if prior is not None else float(null.std()))
    return AttributeInference(*rates, observed, *ends, p_value, least, float(by_prior.mean()), len(values))


class _Guess:
    """Guesses of the hidden column for any draw of the members."""

    def __init__(
        self,
        odds: NDArray[np.floating],
        values: NDArray[np.int64],
        labels: NDArray[np.int64],
        prior: NDArray[np.float64] | None,
        folds: NDArray[np.int64],
    ) -> None:
        self._log_confidence = -np.logaddexp(0.0, -odds.astype(np.float64))
        self._values, self._labels, self._prior = values, labels, prior
        self._fold = np.unique(folds, return_inverse=True)[1]

    def correct(self, first: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return 1 where the true value scores best, 1 / n where it is one of n tied best values, else 0: (num_units,)."""
        return self._right(self._log_confidence + self._log_prior(first))

    def correct_by_prior(self, first: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Score guesses made from the prior alone, in the same way as `correct`: (num_units,)."""
        return self._right(self._log_prior(first))

    def _right(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        best = scores >= scores.max(axis=1, keepdims=True) - 1e-12
        right: NDArray[np.float64] = best[np.arange(len(scores)), self._values] / best.sum(axis=1)
        return right

    def _log_prior(self, first: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Return the log prior of each value for each unit, (num_units, num_values)."""
        if self._prior is not None:
            return np.asarray(np.log(np.maximum(self._prior, 1e-300))[self._labels])
        classes, folds, width = int(self._labels.max()) + 1, int(self._fold.max()) + 1, self._log_confidence.shape[1]
        place = self._labels * folds + self._fold
        by_fold = _counts(self._values[~first], place[~first], width, classes * folds).reshape(classes, folds, width)
        elsewhere = by_fold.sum(axis=1, keepdims=True) - by_fold + SMOOTHING
        shares = elsewhere / elsewhere.sum(axis=2, keepdims=True)
        return np.asarray(np.log(shares).reshape(-1, width)[place])


def _counts(values: NDArray[np.int64], labels: NDArray[np.int64], num_values: int, num_classes: int) -> NDArray[np.float64]:
    counts = np.bincount(labels * num_values + values, minlength=num_classes * num_values)
    return counts.reshape(num_classes, num_values).astype(np.float64)


def _redrawn(design: Design, permutations: int, seed: int) -> Iterator[NDArray[np.bool_]]:
    for sides in design.redraws(permutations, seed=seed):
        yield from sides


def _difference(correct: NDArray[np.float64], first: NDArray[np.bool_], strata: NDArray[np.int64]) -> float:
    """Return the difference of the sides' rates within strata, see `Design.difference`; 0 if no stratum has both sides."""
    ours, all_of_them = np.bincount(strata, weights=first), np.bincount(strata)
    balance = ours * (1 - ours / all_of_them)
    gain = np.bincount(strata, weights=correct * first) - ours * np.bincount(strata, weights=correct) / all_of_them
    return float(gain.sum() / balance.sum()) if balance.sum() > 0 else 0.0


def _rates_and_interval(
    correct: NDArray[np.float64], design: Design, strata: NDArray[np.int64], *, deviation: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the rates of the two sides at the same weights of strata, and the interval of their difference.

    The interval reaches at least 1.96 standard deviations of the difference in redraws to either side.
    """
    ours, all_of_them = np.bincount(strata, weights=design.first), np.bincount(strata)
    balance = ours * (1 - ours / all_of_them)
    if not balance.sum() > 0:
        return (float(correct[design.first].mean()) if design.first.any() else 0.0, 0.0), (-1.0, 1.0)
    share = balance / balance.sum()
    parts = []
    for side, count in ((design.first, ours), (~design.first, all_of_them - ours)):
        weight = np.where(side, (share / np.maximum(count, 1))[strata], 0.0)
        rate = min(1.0, float(weight @ correct))
        units = _effective_units(correct - rate, weight, rate, design.number)
        low, high = wilson(np.array(rate * units), np.array(units))
        parts.append((rate, float(low), float(high)))
    (one, low_1, high_1), (other, low_2, high_2) = parts
    least = float(scipy.stats.norm.isf(0.025)) * deviation
    down, up = max(least, math.hypot(one - low_1, high_2 - other)), max(least, math.hypot(high_1 - one, other - low_2))
    return (one, other), (max(-1.0, one - other - down), min(1.0, one - other + up))


def _effective_units(
    errors: NDArray[np.float64], weight: NDArray[np.float64], rate: float, number: NDArray[np.int64]
) -> float:
    """Return the number of independent units whose rate varies as much as this weighted rate over groups.

    It is at most Kish's number for the weights. Where all units of the side agree, so that nothing is known about the
    dependence within groups, each group counts as one unit.
    """
    units = 1 / float(np.square(weight).sum())
    by_group = np.bincount(number, weights=weight)
    groups = int((by_group > 0).sum())
    if groups == int((weight > 0).sum()):
        return units
    if not 0 < rate < 1:
        return 1 / float(np.square(by_group).sum())
    variance = float(np.square(np.bincount(number, weights=weight * errors)).sum()) * groups / max(1, groups - 1)
    return min(units, rate * (1 - rate) / variance) if variance > 0 else units


def _check(
    odds: NDArray[np.floating], values: NDArray[np.int64], prior: NDArray[np.float64] | None, folds: NDArray[np.int64] | None
) -> None:
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < odds.shape[1]:
        raise UserError(
            f"values of the hidden column range from {values.min()} to {values.max()}, but there are odds for "
            f"{odds.shape[1]}; number the values from 0 and leave out units without a value"
        )
    if prior is None and (folds is None or len(np.unique(folds)) < 2):
        raise UserError("attribute inference has neither a prior nor two folds of units; give one of them")
