"""Distances between two distributions of numbers for the same examples."""

import numpy as np
from numpy.typing import NDArray

_CELLS = 2**22  # weights processed at a time


def ks_gap(a: NDArray[np.floating], b: NDArray[np.floating]) -> tuple[float, float]:
    """Return the two-sample Kolmogorov-Smirnov distance, the largest gap between empirical distributions, and its position.

    This is the intended meaning of Liu 2020, Eq. 2; read literally, Eqs. 1 and 2 evaluate each distribution at its own order
    statistics and give 0.

    Args:
        a, b: (count,) each, with at least one number.

    Example:
        >>> import numpy as np
        >>> gap, place = ks_gap(np.array([0.1, 0.2, 0.9]), np.array([0.8, 0.9, 0.95]))
        >>> round(gap, 2), place  # two of three numbers of `a` lie at or below .2, and none of `b`
        (0.67, 0.2)
    """
    points = np.unique(np.concatenate([a, b]))
    gaps = np.abs(_share_below(a, points) - _share_below(b, points))
    largest = int(gaps.argmax())
    return float(gaps[largest]), float(points[largest])


def _share_below(values: NDArray[np.floating], points: NDArray[np.floating]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = np.searchsorted(np.sort(values), points, side="right") / len(values)
    return shares


def weighted_ks(a: NDArray[np.floating], b: NDArray[np.floating], weights: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the Kolmogorov-Smirnov distance in each replicate of a bootstrap over examples.

    Args:
        a, b: (num_examples,) numbers of the same examples under two models.
        weights: (num_replicates, num_examples), how often each example was drawn; all rows have the same sum.

    Returns:
        (num_replicates,) distances.

    Example:
        >>> import numpy as np
        >>> a, b = np.array([0.1, 0.2, 0.9]), np.array([0.8, 0.9, 0.95])
        >>> weighted_ks(a, b, np.array([[1.0, 1.0, 1.0], [3.0, 0.0, 0.0]])).round(2).tolist()
        [0.67, 1.0]
    """
    both = np.concatenate([a, b])
    order = np.argsort(both, kind="stable")
    sign = np.where(order < len(a), 1.0, -1.0).astype(np.float32)
    example = order % len(a)
    last = np.append(np.diff(both[order]) > 0, True)  # among equal numbers, only the gap after the last one counts
    distances = []
    for start in range(0, len(weights), max(1, _CELLS // len(both))):
        part = weights[start : start + max(1, _CELLS // len(both))]
        gaps = np.cumsum(part[:, example] * sign, axis=1, dtype=np.float64)[:, last]
        distances.append(np.abs(gaps).max(axis=1) / part.sum(axis=1))
    return np.concatenate(distances)
