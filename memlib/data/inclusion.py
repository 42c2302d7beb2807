"""Training sets of many models, drawn by independent coins.

Every group of examples (a person, copies of one picture; else each example by itself) is in a model's training set with the
same probability, independently of all other groups and models. A model's coins depend on its number alone, so a set of 64
models is part of every larger set.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memlib.identity import derive_seed

TARGET = -1
"""Number of the target among the models; shadow models are numbered from 0."""


def name_of(number: int) -> str:
    """Return the name of a model in messages and progress bars."""
    return "target" if number == TARGET else f"shadow {number}"


def toss(groups: NDArray[np.int64], numbers: Sequence[int], *, share: float, seed: int) -> NDArray[np.bool_]:
    """Draw the training set of each model: a mask (num_models, num_examples) of its examples.

    Args:
        groups: (num_examples,) group of each example.
        share: probability that a group is in a training set.

    Example:
        >>> import numpy as np
        >>> coins = toss(np.array([0, 0, 1, 2]), range(100), share=0.5, seed=0)
        >>> coins.shape, bool((coins[:, 0] == coins[:, 1]).all()), bool(30 < coins[:, 2].sum() < 70)
        ((100, 4), True, True)
        >>> bool((toss(np.array([0, 0, 1, 2]), [7], share=0.5, seed=0) == coins[7]).all())
        True
    """
    group = np.unique(groups, return_inverse=True)[1]
    count = int(group.max(initial=-1)) + 1
    coins = np.zeros((len(numbers), len(groups)), dtype=bool)
    for place, number in enumerate(numbers):
        draw = np.random.default_rng(derive_seed(seed, "inclusion", number)).random(count)
        coins[place] = (draw < share)[group]
    return coins
