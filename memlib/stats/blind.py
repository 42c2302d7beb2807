"""Can members be told from non-members without the model? A linear classifier of the side of a draw, from features alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memlib.stats.inference import permutation_p
from memlib.stats.randomization import Design

RIDGE = 0.1  # penalty per unit, for standardized features


@dataclass(frozen=True)
class Blind:
    """Agreement of the sides with what a classifier predicts from features.

    Attributes:
        auc: probability that a unit of the first side is ranked above one of the second side by a classifier that was fitted
            to the other folds; .5 by chance.
        p_value: share of redraws of the sides whose fitted classifiers agree with them as well.
    """

    auc: float
    p_value: float


def tell_sides(features: NDArray[np.floating], design: Design, folds: NDArray[np.int64], *, redraws: int, seed: int) -> Blind:
    """Fit ridge regressions of the side on the features, each to all folds but one, and test their predictions by redraws.

    The statistic is the sum over units of the predicted times the actual side, each less the mean of its stratum. For every
    redraw the regressions are fitted again, so that the test is exact whatever the features (Fisher 1935).

    Args:
        features: (num_units, num_features).
        design: the draw that was declared.
        folds: (num_units,) fold of each unit; groups are whole.
        redraws: number of redraws.
        seed: seed of the redraws.

    Example:
        >>> import numpy as np
        >>> first = np.arange(40) % 2 == 0
        >>> design = Design.of(first, labels=np.zeros(40, dtype=int))
        >>> folds = np.arange(40) // 2 % 5
        >>> blind = tell_sides(first[:, None].astype(float), design, folds, redraws=99, seed=0)  # the side itself
        >>> blind.auc > 0.99, round(blind.p_value, 2)
        (True, 0.01)
    """
    spread = features.std(axis=0)
    scaled = (features - features.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    sides = np.concatenate([design.first[None], *design.redraws(redraws, seed=seed)]).astype(np.float64).T
    strata = np.unique(design.stratum, return_inverse=True)[1]
    counts = np.bincount(strata)[:, None]
    means = np.stack([np.bincount(strata, weights=column) for column in sides.T], axis=1) / counts
    sides -= means[strata]
    predicted = np.empty_like(sides)
    for fold in np.unique(folds):
        inside = folds == fold
        rest = scaled[~inside]
        penalty = RIDGE * len(rest) * np.eye(features.shape[1])
        predicted[inside] = scaled[inside] @ np.linalg.solve(rest.T @ rest + penalty, rest.T @ sides[~inside])
    agreement = (predicted * sides).sum(axis=0)
    ranks = np.argsort(np.argsort(predicted[:, 0])) + 1
    first, count = int(design.first.sum()), len(design.first)
    auc = (ranks[design.first].sum() - first * (first + 1) / 2) / max(1, first * (count - first))
    return Blind(float(auc), permutation_p(float(agreement[0]), agreement[1:]))
