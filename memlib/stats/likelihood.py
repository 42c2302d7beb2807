"""Confidences as log odds, and the likelihood ratio of a model's under models that have and have not seen an example.

After LiRA (Carlini et al. 2022, Membership inference attacks from first principles, section 5).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

CLIP = 30.0  # of log odds, as float32 probabilities end at 1
MANY_MODELS = 16  # from here on each example has variances of its own


def log_odds(scores: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """log p / (1 - p) of the true class, from logits, without the loss of digits near 1.

    Args:
        scores: (num_examples, num_classes) logits or log-probabilities.
        labels: (num_examples,).
    """
    values = scores.astype(np.float64)
    rows = np.arange(len(values))
    own = values[rows, labels].copy()
    values[rows, labels] = -np.inf
    top = values.max(axis=1)
    others = top + np.log(np.exp(values - top[:, None]).sum(axis=1))
    found: NDArray[np.float64] = np.clip(own - others, -CLIP, CLIP)
    return found


def odds_of(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """log p / (1 - p) of probabilities as they were given, which rounding may have brought to 0 or 1."""
    with np.errstate(divide="ignore"):
        found: NDArray[np.float64] = np.clip(np.log(probabilities) - np.log1p(-np.minimum(probabilities, 1)), -CLIP, CLIP)
    return found


def confidences(odds: NDArray[np.float64], decimals: int | None = None) -> NDArray[np.float64]:
    """The probabilities of the true class, rounded as the target's owner has rounded them, else to float32.

    Models are only compared at the same rounding: a distribution of rounded numbers differs from one that is not.
    """
    p: NDArray[np.float64] = 1 / (1 + np.exp(-odds))
    return np.round(p, decimals) if decimals is not None else p.astype(np.float32).astype(np.float64)


def decimals_of(probabilities: NDArray[np.floating]) -> int | None:
    """To how many decimals numbers were rounded; None for more than six."""
    for decimals in range(1, 7):
        if np.abs(probabilities - np.round(probabilities, decimals)).max(initial=0) < 1e-7:  # float32
            return decimals
    return None


def rounded(odds: NDArray[np.float64], decimals: int | None) -> NDArray[np.float64]:
    """Log odds as they would be if the probabilities had been rounded."""
    if decimals is None:
        return odds
    edge = 0.5 * 10.0**-decimals
    p = np.clip(confidences(odds, decimals), edge, 1 - edge)
    return np.log(p) - np.log1p(-p)


class Likelihoods:
    """Log-likelihood ratio of each example's log odds under query (in) and calibration (out) models.

    Both are normal in the log odds; variances are pooled over examples with fewer than 16 models (LiRA, section 5).
    """

    def __init__(self, inside: NDArray[np.float64], outside: NDArray[np.float64]) -> None:
        """inside, outside: (num_models, num_examples) log odds."""
        self.means = inside.mean(axis=0), outside.mean(axis=0)
        self.variances = _variances(inside), _variances(outside)

    def ratio(self, odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """(num_examples,) log-likelihood ratios in nats, positive where the target is like a query model."""
        inside, outside = (
            -0.5 * ((odds - mean) ** 2 / variance + np.log(variance))
            for mean, variance in zip(self.means, self.variances, strict=True)
        )
        found: NDArray[np.float64] = inside - outside
        return found


def _variances(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = odds.var(axis=0, ddof=1)
    if len(odds) < MANY_MODELS:
        spread = np.full_like(spread, spread.mean())
    floored: NDArray[np.float64] = np.maximum(spread, 1e-6)
    return floored
