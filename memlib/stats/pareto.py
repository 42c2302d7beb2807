"""Settings that no other setting beats in both memorization and utility, with the probability of being one of them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memlib.identity import derive_seed

DRAWS, NORMAL = 10_000, 1.959963984540054


def pareto_probabilities(
    memory: Sequence[tuple[float, float]], utility: Sequence[tuple[float, float]], *, seed: int = 0
) -> NDArray[np.float64]:
    """Return the probability of each setting to be on the Pareto front: no other has less memory and more utility.

    Both quantities are redrawn from normal laws, independently of one another and between settings (parametric bootstrap), so
    that settings which share models or examples are told apart less well than they could be.

    Args:
        memory: value and half-width of the 95 % interval of each setting; less is better.
        utility: the same; more is better.

    Returns:
        (num_settings,) probabilities.

    Example:
        >>> from memlib.stats.pareto import pareto_probabilities
        >>> memory, utility = [(0.3, 0.01), (0.1, 0.01), (0.3, 0.01)], [(0.9, 0.01), (0.8, 0.01), (0.7, 0.01)]
        >>> pareto_probabilities(memory, utility).round(2).tolist()
        [1.0, 1.0, 0.0]
    """
    rng = np.random.default_rng(derive_seed(seed, "pareto"))
    drawn_memory, drawn_utility = (_drawn(rng, values) for values in (memory, utility))
    front = np.ones(drawn_memory.shape, dtype=bool)
    for other in range(len(memory)):
        beaten = (drawn_memory[:, [other]] < drawn_memory) & (drawn_utility[:, [other]] > drawn_utility)
        front &= ~beaten
    return np.asarray(front.mean(axis=0), dtype=np.float64)


def _drawn(rng: np.random.Generator, values: Sequence[tuple[float, float]]) -> NDArray[np.float64]:
    """Return normal redraws, (DRAWS, num_settings)."""
    centres, halves = np.array(values, dtype=np.float64).T
    return np.asarray(rng.normal(centres, halves / NORMAL, size=(DRAWS, len(values))), dtype=np.float64)
