"""Log odds of confidences, and their likelihood ratio between models that have and models that have not seen an example.

Based on LiRA (Carlini et al. 2022, Membership inference attacks from first principles, section 5).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

CLIP = 30.0  # limit of the absolute log odds, since float32 probabilities reach 1
MANY_MODELS = 16  # from this number of models on, variances are estimated per example


def log_odds(scores: NDArray[Any], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return log p / (1 - p) of the true class from logits, without loss of precision near p = 1.

    Args:
        scores: (num_examples, num_classes) logits or log-probabilities.
        labels: (num_examples,).

    Example:
        >>> import numpy as np
        >>> log_odds(np.log([[0.8, 0.1, 0.1]]), np.array([0])).round(2).tolist()  # log 4
        [1.39]
    """
    values = scores.astype(np.float64)
    rows = np.arange(len(values))
    own = values[rows, labels].copy()
    values[rows, labels] = -np.inf
    top = values.max(axis=1)
    others = top + np.log(np.exp(values - top[:, None]).sum(axis=1))
    odds: NDArray[np.float64] = np.clip(own - others, -CLIP, CLIP)
    return odds


def odds_of(probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log p / (1 - p) of given probabilities, which may have been rounded to 0 or 1."""
    with np.errstate(divide="ignore"):
        odds: NDArray[np.float64] = np.clip(np.log(probabilities) - np.log1p(-np.minimum(probabilities, 1)), -CLIP, CLIP)
    return odds


def confidences(odds: NDArray[np.float64], decimals: int | None = None) -> NDArray[np.float64]:
    """Return the probabilities of the true class, rounded to `decimals` or, if None, to float32.

    Rounding changes the distribution, so other models' outputs must be rounded like those of the target model.
    """
    p: NDArray[np.float64] = 1 / (1 + np.exp(-odds))
    return np.round(p, decimals) if decimals is not None else p.astype(np.float32).astype(np.float64)


def decimals_of(probabilities: NDArray[np.floating]) -> int | None:
    """Return the number of decimals to which numbers were rounded; None if there are more than six."""
    for decimals in range(1, 7):
        if np.abs(probabilities - np.round(probabilities, decimals)).max(initial=0) < 1e-7:  # float32 rounding
            return decimals
    return None


def rounded(odds: NDArray[np.float64], decimals: int | None) -> NDArray[np.float64]:
    """Return the log odds that result from rounding the probabilities to `decimals`; None: no rounding."""
    if decimals is None:
        return odds
    edge = 0.5 * 10.0**-decimals
    p = np.clip(confidences(odds, decimals), edge, 1 - edge)
    return np.log(p) - np.log1p(-p)


class Likelihoods:
    """Log-likelihood ratio of each example's log odds between query (in) and calibration (out) models.

    Log odds are modelled as normal; with fewer than 16 models, variances are pooled over examples (LiRA, section 5).
    """

    def __init__(self, inside: NDArray[np.float64], outside: NDArray[np.float64]) -> None:
        """Fit both normal distributions per example.

        Args:
            inside, outside: (num_models, num_examples) log odds under query and under calibration models.
        """
        self.means = inside.mean(axis=0), outside.mean(axis=0)
        self.variances = _variances(inside), _variances(outside)

    def ratio(self, odds: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return log-likelihood ratios (num_examples,) in nats; positive where the target resembles a query model."""
        inside, outside = (
            -0.5 * ((odds - mean) ** 2 / variance + np.log(variance))
            for mean, variance in zip(self.means, self.variances, strict=True)
        )
        ratios: NDArray[np.float64] = inside - outside
        return ratios


def _variances(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    spread = odds.var(axis=0, ddof=1)
    if len(odds) < MANY_MODELS:
        spread = np.full_like(spread, spread.mean())
    floored: NDArray[np.float64] = np.maximum(spread, 1e-6)
    return floored
