"""Two-sided tests of a change between two variants of an experiment: paired by sign flips, unpaired by Welch's t."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from memlib.stats.inference import exchanges
from memlib.stats.randomization import two_sided_p

_CELLS = 2**22  # values exchanged at a time


def flipped_p(differences: NDArray[np.float64], *, permutations: int, seed: int) -> float:
    """Return the two-sided p-value of the mean of paired differences, whose signs are flipped under the null.

    Args:
        differences: (num_units,).
        permutations: maximum number of sign patterns; all of them are used if they are few.
        seed: seed of the drawn patterns.

    Example:
        >>> import numpy as np
        >>> flipped_p(np.array([1.0, 2, 3, 4]), permutations=99, seed=0)  # 2 of 16 sign patterns
        0.125
    """
    largest = float(np.abs(differences).max(initial=0.0))
    if largest == 0:
        return 1.0
    scaled = differences / largest
    return two_sided_p(float(scaled.sum()), exchanges(len(scaled), permutations, seed=seed) @ scaled)


def welch_p(
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    *,
    permutations: int,
    seed: int,
    orders: NDArray[np.int64] | None = None,
) -> float:
    """Return the two-sided permutation p-value of Welch's t of two independent samples; 1 if all values are equal.

    It is exact where the samples have one distribution, and holds for many units that share only their mean (Janssen 1997).

    Args:
        first, second: values of the units, at least two each.
        permutations: number of random exchanges of units between the samples.
        orders: (num_exchanges, num_units) orders of all units, first sample first, to use instead of random exchanges.

    Example:
        >>> import numpy as np
        >>> welch_p(np.arange(6.0), np.arange(6.0) + 30, permutations=999, seed=0) < 0.01
        True
    """
    pooled = np.concatenate([first, second])
    if not np.ptp(pooled):
        return 1.0
    pooled = (pooled - pooled.mean()) / np.ptp(pooled)
    exchanged = _exchanged(pooled, permutations, seed=seed) if orders is None else (pooled[orders],)
    null = np.concatenate([_welch_t(values, len(first)) for values in exchanged])
    return two_sided_p(float(_welch_t(pooled[None], len(first))[0]), null)


def _exchanged(pooled: NDArray[np.float64], permutations: int, *, seed: int) -> Iterator[NDArray[np.float64]]:
    """Yield random orders of the values, (some permutations, num_values)."""
    rng, size = np.random.default_rng(seed), max(1, _CELLS // len(pooled))
    for start in range(0, permutations, size):
        yield rng.permuted(np.broadcast_to(pooled, (min(size, permutations - start), len(pooled))), axis=1)


def _welch_t(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return Welch's t of the first `count` columns against the others, (num_rows,), for values in [-1, 1]."""
    sides = values[:, :count], values[:, count:]
    apart = sides[0].mean(axis=1) - sides[1].mean(axis=1)
    error = np.sqrt(sum(side.var(axis=1, ddof=1) / side.shape[1] for side in sides))
    t: NDArray[np.float64] = apart / np.maximum(error, 1e-9)
    return t
