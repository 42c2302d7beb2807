"""A test, without any model, that sets drawn by somebody else look as if they were drawn at random, as their owner declares.

Sets that differ by more than chance would be mistaken for memory: by their dates, sizes, names or content. All audits of the
same sets come to the same result, as none of them tests more than what is known of the examples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from memlib.data.blind_features import BlindFeatures, blind_features, joined, naming_of, owner_names, text_features
from memlib.data.groups import groups_in
from memlib.data.stages import TrainingData
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs.base import Source
from memlib.stats.blind import BlindBaseline, folds_by_group, tested_baseline
from memlib.stats.difficulty import CONTRADICTED
from memlib.stats.randomization import Design, home_labels
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

    from memlib.data.images.caption_stages import CaptionSet

CHECKS = "checks.parquet"
FOLDS, REDRAWS = 5, 999


@dataclass(frozen=True)
class CompareSets(Stage["Difference"]):
    """Compare two sets that were declared to be drawn at random, without any model: checks.parquet."""

    declared: ClassVar[Declared] = Declared("compare_sets", 3)
    title: ClassVar[str] = "compare the given sets"
    place: ClassVar[Place] = "cores"

    source: Source  #: of the data; says what the ids of examples are.
    data: TrainingData
    roles: tuple[str, str]  #: of the examples of the two sets.
    seed: int
    captions: Artifact[CaptionSet] | None = None  #: texts of the examples.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The sets, what is read of them, and the seed of the redraws."""
        read = {"names": naming_of(self.source), "content": self.source.holds != "ids"}
        return {"roles": list(self.roles), "seed": self.seed, **read}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples, their sets and captions."""
        captions = {} if self.captions is None else {"captions": self.captions.key}
        return {"shard": self.data.shard.key, "splits": self.data.splits.key} | captions

    @property
    def units(self) -> float:
        """Number of examples."""
        return float(self.data.members(*self.roles).num_rows)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write one row: AUC, p_value, the family of features that tells most, and the number of units."""
        members = self.data.members(*self.roles)
        ids, groups = members["example_id"], groups_in(members)  # numbered from 0
        features = features_of(ids.to_pylist(), self.data, self.source)
        if self.captions is not None:
            features = joined([features, text_features(self.captions.content.chosen(ids)["caption"].to_pylist())])
        first = np.zeros(int(groups.max()) + 1, dtype=bool)
        first[groups] = pc.equal(members["role"], self.roles[0]).to_numpy()
        labels = home_labels(members["label"].to_numpy(), groups)
        found = tested_draw(features.by_group(groups), first, labels, seed=derive_seed(self.seed, "sets"))
        row = {"auc": found.auc, "p_value": found.p_value, "most": found.most, "n": len(first)}
        pq.write_table(pa.Table.from_pylist([row]), attempt.path(CHECKS), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[Difference]) -> Difference:
        """Return the result."""
        return Difference(**read_table(artifact.path(CHECKS)).to_pylist()[0])


@dataclass(frozen=True)
class Difference:
    """Result of `CompareSets`."""

    auc: float  #: probability that an example of the first set is ranked above one of the second; .5 by chance.
    p_value: float
    most: str  #: the family of features that tells most.
    n: int  #: number of examples, or of groups of examples.

    @property
    def contradicts(self) -> bool:
        """True if a declared draw is contradicted by this alone: half of the level is spent on it in every audit."""
        return self.p_value <= CONTRADICTED / 2

    @property
    def told(self) -> str:
        """A clause: the sets can be told apart, with the numbers."""
        return f"the sets can be told apart without any model (AUC {self.auc:.2f}, most by {self.most})"


def p_of_draw(known: float, models: Sequence[float]) -> float:
    """Return the p-value of a declared draw over all its tests, one half of the level for what is known without a model.

    All audits of the same sets spend the same on that test, so that they come to the same result; the other half is for tests
    that an audit makes with models (weighted Bonferroni).

    Args:
        known: p-value of what is known without a model.
        models: p-values of the other tests.

    Example:
        >>> p_of_draw(0.01, [0.5, 0.004])
        0.016
    """
    return min(1.0, 2 * min([known, *(len(models) * p for p in models)]))


def tested_draw(features: BlindFeatures, first: NDArray[np.bool_], labels: NDArray[np.int64], *, seed: int) -> BlindBaseline:
    """Test by redraws within classes if features of units tell those of the first set from the others.

    Args:
        features: of the units, such as examples, or persons.
        first: (num_units,) bool.
        labels: (num_units,) classes within which the sets were drawn.
        seed: seed of folds and redraws.
    """
    folds = folds_by_group(np.arange(len(first)), FOLDS, seed=seed)
    return tested_baseline(
        features.values, features.families, Design.of(first, labels), folds, redraws=REDRAWS, seed=seed
    )  # fmt: skip


def features_of(ids: Sequence[str], data: TrainingData, source: Source) -> BlindFeatures:
    """Return what is known of some examples without a model."""
    index = data.shard.content.index
    places = pc.index_in(pa.array(ids), value_set=index["example_id"].combine_chunks())
    images = None if source.holds == "ids" else data.images  # a point is its row's number
    return blind_features(index.take(places), images, names=owner_names(source, ids))
