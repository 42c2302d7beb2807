"""Counterfactual memorization and influence: what changes with an example in the training set (Feldman and Zhang 2020).

Over models whose training sets were drawn by independent coins, an example's memorization is the difference between the
shares of right answers on it among models that were and were not trained on it; its influence on another example is the
same difference for the answers on that one.
"""

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray


@dataclass(frozen=True)
class Differences:
    """Differences of two proportions, in and out, one per example or pair; all arrays have one shape."""

    num_in: NDArray[np.int64]  #: num_in, num_out: numbers of models with and without the example in their training sets.
    num_out: NDArray[np.int64]
    hits_in: NDArray[np.int64]  #: hits_in, hits_out: numbers of right answers among them.
    hits_out: NDArray[np.int64]

    @property
    def share_in(self) -> NDArray[np.float64]:
        """Share of right answers with the example; NaN without a model."""
        return _share(self.hits_in, self.num_in)

    @property
    def share_out(self) -> NDArray[np.float64]:
        """Share of right answers without the example; NaN without a model."""
        return _share(self.hits_out, self.num_out)

    @property
    def difference(self) -> NDArray[np.float64]:
        """Difference of the shares."""
        return self.share_in - self.share_out

    def interval(self, level: float = 0.95) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the ends of the hybrid score interval (Newcombe 1998, method 10), over models."""
        low_in, high_in = wilson(self.hits_in, self.num_in, level)
        low_out, high_out = wilson(self.hits_out, self.num_out, level)
        share_in, share_out, difference = self.share_in, self.share_out, self.difference
        low = difference - np.hypot(share_in - low_in, high_out - share_out)
        high = difference + np.hypot(high_in - share_in, share_out - low_out)
        return low, high

    def p_values(self) -> NDArray[np.float64]:
        """Return p-values of Fisher's exact test against "no more right answers with the example"."""
        hits = self.hits_in + self.hits_out
        p: NDArray[np.float64] = scipy.stats.hypergeom.sf(self.hits_in - 1, self.num_in + self.num_out, hits, self.num_in)
        return np.clip(p, 0.0, 1.0)


def wilson(
    hits: NDArray[np.integer | np.floating], counts: NDArray[np.integer | np.floating], level: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of Wilson's score interval (1927) of proportions; 0 and 1 without a trial.

    Args:
        hits, counts: hits among trials; effective numbers of trials need not be whole.
        level: coverage.

    Example:
        >>> import numpy as np
        >>> [end.round(3).tolist() for end in wilson(np.array([81]), np.array([263]))]  # Newcombe 1998, table I
        [[0.255], [0.366]]
    """
    z2 = float(scipy.stats.norm.isf((1 - level) / 2)) ** 2
    empty = counts == 0
    trials = np.where(empty, 1, counts)
    share = np.where(empty, 0.5, hits / trials)
    centre = share + z2 / (2 * trials)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / (4 * trials)) / trials)
    scale = 1 + z2 / trials
    low, high = (centre - half) / scale, (centre + half) / scale
    return np.where(empty, 0.0, np.clip(low, 0, 1)), np.where(empty, 1.0, np.clip(high, 0, 1))


def memorization(correct: NDArray[np.bool_], inside: NDArray[np.bool_]) -> Differences:
    """Return the memorization of each example (Feldman and Zhang 2020, Eq. 1; Zhang 2021).

    Args:
        correct: (num_models, num_examples) bool, right answers.
        inside: (num_models, num_examples) bool, examples in the training set of each model.

    Example:
        >>> import numpy as np
        >>> inside = np.array([[True], [True], [False], [False]])
        >>> memorization(inside.copy(), inside).difference.tolist()  # right exactly where it was trained on
        [1.0]
    """
    num_in = inside.sum(axis=0)
    return Differences(num_in, len(inside) - num_in, (correct & inside).sum(axis=0), (correct & ~inside).sum(axis=0))


def influence(held_out: NDArray[np.bool_], inside: NDArray[np.bool_]) -> Differences:
    """Return the influence of each example of a pool on each held-out example: (num_examples, num_held_out).

    Args:
        held_out: (num_models, num_held_out), right answers on held-out examples.
        inside: (num_models, num_examples), the examples whose influence is asked for, in each model's training set.
    """
    members, answers = inside.astype(np.float64), held_out.astype(np.float64)
    hits_in = np.rint(members.T @ answers).astype(np.int64)
    num_in = np.broadcast_to(inside.sum(axis=0)[:, None], hits_in.shape)
    return Differences(num_in, len(inside) - num_in, hits_in, held_out.sum(axis=0)[None] - hits_in)


def _share(hits: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    shares = np.full(np.shape(hits), np.nan)
    np.divide(hits, counts, out=shares, where=np.asarray(counts) > 0)
    return shares
