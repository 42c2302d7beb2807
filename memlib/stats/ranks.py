"""Rank of a true item among candidates."""

import numpy as np
from numpy.typing import NDArray


def mid_rank(own: float, others: NDArray[np.floating]) -> float:
    """Return the share of candidates that are nearer than the true item, in [0, 1]; equal distances count one half.

    0: nearer than all candidates; its mean is 1/2 if the true item is one of many that are alike.

    Args:
        own: distance of the true item.
        others: (num_candidates,) distances of the candidates, at least one.

    Example:
        >>> import numpy as np
        >>> mid_rank(2.0, np.array([1.0, 2.0, 3.0, 4.0]))  # one is nearer, and one is as near
        0.375
    """
    assert len(others), "a rank needs a candidate"
    return float(((others < own).sum() + (others == own).sum() / 2) / len(others))
