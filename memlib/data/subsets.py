"""One training set per model: drawn from a pool of examples by coins, or the examples of a role.

Every group of examples (a person, copies of one picture; else each example by itself) is in a model's training set with the
same probability, independently of all other groups and models. A model's coins depend on its number alone, so a set of 64
models is part of every larger set.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.groups import groups_in
from memlib.data.splits import TRAIN, VALIDATION, column
from memlib.data.stages import Seen, TrainingData, digest_of, rows_of
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


@dataclass(frozen=True)
class Subsets:
    """The training sets of some models, each drawn from the pool by independent coins."""

    data: TrainingData  #: the pool (role TRAIN) and other examples.
    numbers: tuple[int, ...]  #: numbers of the models, see `memlib.data.subsets`.
    share: float  #: probability that an example, or a group of examples, is in a training set.
    seed: int  #: seed of the coins.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The coins; together with the pool they determine the training sets."""
        return {"models": list(self.numbers), "share": self.share, "coins": self.seed}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples, their roles and their groups."""
        return {"shard": self.data.shard.key, "splits": self.data.splits.key}

    @property
    def label(self) -> str:
        """The first and the last model."""
        first, last = self.numbers[0], self.numbers[-1]
        return name_of(first) if len(self.numbers) == 1 else f"shadows {first} to {last}"

    @property
    def num_classes(self) -> int:
        """The number of classes among the examples of the pool."""
        return self.data.num_classes

    @property
    def epoch_size(self) -> int:
        """The number of examples that a model sees in an epoch: the expected size of a training set."""
        pool: int = self.data.members(TRAIN).num_rows
        return round(self.share * pool)

    @property
    def validation(self) -> NDArray[np.int64]:
        """The stored rows of the examples for early stopping."""
        return column(self.data.members(VALIDATION), "row")

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


@dataclass(frozen=True)
class RoleSets:
    """The training sets of some models, each the examples of one role; keys identify them by their content."""

    data: TrainingData  #: the examples and their roles.
    roles: tuple[str, ...]  #: the role of each model: its name, which ends with its number.
    num_classes: int  #: number of classes of the data.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The number of classes."""
        return {"num_classes": self.num_classes}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The shard's key, and the digest of each training set."""
        return {"shard": self.data.shard.key, "examples": [digest_of(self.data.splits, role) for role in self.roles]}

    @property
    def label(self) -> str:
        """The first and the last model."""
        first, last = self.roles[0], self.roles[-1]
        return first if len(self.roles) == 1 else f"{first} to {last.rpartition(' ')[2]}"

    @property
    def epoch_size(self) -> None:
        """None: an epoch is a pass through the training sets, which are of one size."""
        return None

    @property
    def validation(self) -> NDArray[np.int64]:
        """No rows: there are no examples for early stopping."""
        return np.zeros(0, dtype=np.int64)

    def seen_by(self, place: int) -> Seen:
        """Return the training examples of the model at a place in `roles`."""
        return rows_of(self.data.splits, self.roles[place])
