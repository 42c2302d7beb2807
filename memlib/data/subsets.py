"""One training set per model, each drawn from a pool of examples."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.groups import groups_in
from memlib.data.inclusion import toss
from memlib.data.splits import TRAIN, column
from memlib.data.stages import Seen, TrainingData


@dataclass(frozen=True)
class Subsets:
    """The training sets of some models, each drawn from the pool by independent coins.

    Attributes:
        data: the pool (role TRAIN) and other examples.
        numbers: numbers of the models, see `memlib.data.inclusion`.
        share: probability that an example, or a group of examples, is in a training set.
        seed: seed of the coins.
    """

    data: TrainingData
    numbers: tuple[int, ...]
    share: float
    seed: int

    @property
    def spec(self) -> Mapping[str, Any]:
        """The coins; together with the pool they determine the training sets."""
        return {"models": list(self.numbers), "share": self.share, "coins": self.seed}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples, their roles and their groups."""
        return {"shard": self.data.shard.key, "splits": self.data.splits.key}

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """A mask (num_models, num_pool) of each model's training set; the pool is in order of example id."""
        return toss(groups_in(self.data.members(TRAIN)), self.numbers, share=self.share, seed=self.seed)

    def seen_by(self, place: int) -> Seen:
        """Return the training examples of the model at a place in `numbers`."""
        members = self.data.members(TRAIN)
        inside = self.inside[place]
        return Seen(column(members, "row")[inside], column(members, "label")[inside])

    def __reduce__(self) -> tuple[Any, ...]:
        return (Subsets, (self.data, self.numbers, self.share, self.seed))  # without the drawn coins
