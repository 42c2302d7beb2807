"""The units of a membership audit: examples or, with groups, persons; with the answers of the target and of its shadows."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.recipe import FEWEST_OF_STRATUM
from memlib.audits.membership.shadows import Answers
from memlib.audits.ranking import strata_of
from memlib.data.groups import groups_in
from memlib.stats.randomization import home_labels
from memlib.stats.shadows import Shadows, by_person

Combined = Literal["sum", "max", "trimmed"]


@dataclass(frozen=True)
class Pool:
    """The examples of the pool that are audited, in order of example id."""

    ids: Sequence[str]  #: ids, class_names: (num_examples,) id and name of the class.
    class_names: Sequence[str]
    labels: NDArray[np.int64]  #: labels, groups: (num_examples,) class and group.
    groups: NDArray[np.int64]

    @classmethod
    def of(cls, members: pa.Table, listed: NDArray[np.bool_] | None = None) -> "Pool":
        """Return the pool in rows of tables.SPLITS, or the part of it that an owner's list names."""
        kept = members if listed is None else members.filter(pa.array(listed))
        groups = np.unique(groups_in(kept), return_inverse=True)[1]
        return cls(kept["example_id"].to_pylist(), kept["class_name"].to_pylist(), kept["label"].to_numpy(), groups)

    @property
    def has_groups(self) -> bool:
        """True if some examples belong together, so that the units are persons."""
        return int(self.groups.max()) + 1 < len(self.groups)

    def first(self) -> NDArray[np.int64]:
        """Return the place of the first example of each unit, in the order of the units: (num_units,)."""
        return np.unique(self.groups, return_index=True)[1]

    def by_unit(self, values: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return values that are equal within a group, one per unit: (..., num_examples) to (..., num_units)."""
        return values[..., self.first()]


@dataclass(frozen=True)
class Copies:
    """Non-members that have a copy among the members, by the rule of `memlib overlap`."""

    found: NDArray[np.bool_]  #: (num_examples,) whether the example is one.
    #: largest distance of small versions of images, in grey levels, that count as alike; 0: they were not compared.
    near: float = 0.0
    #: smallest share of common runs of four words of documents that count as alike; 0: they were not compared.
    shared: float = 0.0


@dataclass(frozen=True)
class Units:
    """Examples or persons, with the answers of all models."""

    names: Sequence[str]  #: (num_units,) id of the unit's first example.
    sizes: NDArray[np.int64]  #: (num_units,) number of the unit's examples.
    labels: NDArray[np.int64]  #: (num_units,) class of most of the unit's examples.
    class_names: Sequence[str]  #: (num_units,) names of these classes.
    member: NDArray[np.bool_]  #: (num_units,) whether the target was trained on the unit.
    odds: NDArray[np.float32]  #: (num_queries, num_units) the target's log odds.
    correct: NDArray[np.float32]  #: (num_units,) the target's share of right answers.
    shadows: Shadows  #: the log odds and the training sets of the shadow models.
    shadows_correct: NDArray[np.float32]  #: (num_models, num_units) their shares of right answers.
    #: log odds of the target and of its shadow models through training, with checkpoints in place of queries, the last one at
    #: the end; None if only the trained models answered.
    through: tuple[NDArray[np.float32], Shadows] | None = None
    word: str = ""  #: the word for units, in the plural; by default examples or persons.
    merges: bool = False  #: whether small classes share a stratum, see `strata`.
    #: (num_units,) non-members with an example that has a copy among the members; None: none has.
    copied: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def strata(self) -> NDArray[np.int64]:
        """The strata within which membership is redrawn, and units compared: (num_units,).

        They are the classes. Where each unit had a coin of its own (memlib's, or a declared one that the numbers of members
        by class do not contradict), any draw of as many units is as likely as any other, and classes of fewer than five units
        share a stratum, as hardly anything could be tested within them. The labels alone decide.
        """
        return strata_of(self.labels, fewest=FEWEST_OF_STRATUM if self.merges else 0)

    @property
    def apart(self) -> NDArray[np.bool_]:
        """The units that limits are about: all but non-members whose content is the members', too (num_units,)."""
        return np.ones(len(self), dtype=bool) if self.copied is None else ~self.copied

    @cached_property
    def paired(self) -> NDArray[np.bool_]:
        """The units whose stratum has members and non-members: nothing is compared with the others (num_units,)."""
        place = np.unique(self.strata, return_inverse=True)[1]
        inside, outside = (np.bincount(place, weights=side) for side in (self.member, ~self.member))
        paired: NDArray[np.bool_] = ((inside > 0) & (outside > 0))[place]
        return paired

    @property
    def are_persons(self) -> bool:
        """True if some units have several examples."""
        return bool((self.sizes > 1).any())

    @property
    def noun(self) -> str:
        """The word for units, in the plural."""
        return self.word or ("persons" if self.are_persons else "examples")


def units_of(
    pool: Pool, target: Answers, shadows: Answers, member: NDArray[np.bool_], inside: NDArray[np.bool_], combined: Combined
) -> Units:
    """Combine the answers on a person's examples, for the target and for every shadow model alike.

    A person is then compared with herself in models that were not trained on her, so that the number of her examples does not
    matter.

    Args:
        target, shadows: answers on these examples.
        member: (num_examples,) whether the target was trained on the example.
        inside: (num_models, num_examples) training sets of the shadow models.
        combined: how the log odds of a person's examples are combined.
    """
    first = pool.first()
    labels = home_labels(pool.labels, pool.groups) if pool.has_groups else pool.labels
    named = dict(zip(pool.labels.tolist(), pool.class_names, strict=True))
    return Units(
        names=[pool.ids[place] for place in first.tolist()],
        sizes=np.bincount(pool.groups),
        labels=labels,
        class_names=[named[label] for label in labels.tolist()],
        member=pool.by_unit(member),
        odds=_combined(target.odds, pool, combined)[0],
        correct=_shares(target.correct, pool)[0],
        shadows=_shadows(Shadows(shadows.odds, inside), pool, combined),
        shadows_correct=_shares(shadows.correct, pool),
        through=_through(target, shadows, pool, inside, combined),
    )


def _through(
    target: Answers, shadows: Answers, pool: Pool, inside: NDArray[np.bool_], combined: Combined
) -> tuple[NDArray[np.float32], Shadows] | None:
    if target.earlier is None or shadows.earlier is None:
        return None
    own, others = (np.concatenate([each.earlier, each.odds[:, :1]], axis=1) for each in (target, shadows))
    return _combined(own, pool, combined)[0], _shadows(Shadows(others, inside), pool, combined)


def _combined(odds: NDArray[np.float32], pool: Pool, combined: Combined) -> NDArray[np.float32]:
    return by_person(odds, pool.groups, combined) if pool.has_groups else odds


def _shadows(shadows: Shadows, pool: Pool, combined: Combined) -> Shadows:
    return shadows.by_person(pool.groups, combined) if pool.has_groups else shadows


def _shares(correct: NDArray[np.bool_], pool: Pool) -> NDArray[np.float32]:
    """Return each unit's share of right answers, (num_models, num_units)."""
    if not pool.has_groups:
        return correct.astype(np.float32)
    sizes = np.bincount(pool.groups)
    sums = [np.bincount(pool.groups, weights=row) for row in correct]
    return (np.array(sums).reshape(len(correct), len(sizes)) / sizes).astype(np.float32)
