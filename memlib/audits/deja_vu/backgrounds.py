"""The reference for a single model: classifiers that name an object from its background crop (Meehan's follow-up).

Each audited image is classified by a classifier that was fitted to the other folds. Folds mix training and held-out images,
and the classifiers do not know which is which, so redrawing which images were held out does not change their answers.
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

from memlib.audits.deja_vu.embedding import ShownRows, View, shown_rows
from memlib.audits.deja_vu.scores import Answers
from memlib.audits.sides import numbers_of_groups
from memlib.data.stages import Shard, class_names_of
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs.backgrounds import BackgroundSpec, CropNetwork
from memlib.store import Attempt
from memlib.tables import read_table

if TYPE_CHECKING:
    import torch

ANSWERS = "answers.parquet"


@dataclass(frozen=True)
class Background(Stage[pa.Table]):
    """Fit a classifier to the background crops of all folds but one, and classify the crops of that fold."""

    declared: ClassVar[Declared] = Declared("background", 1)
    title: ClassVar[str] = "learn backgrounds"
    place: ClassVar[Place] = "anywhere"

    classifier: BackgroundSpec
    fold: int  #: number of the fold left out, from 0.
    view: View  #: the audited images and their crop.
    shard: Artifact[Shard]
    splits: Artifact[pa.Table]

    @property
    def spec(self) -> Mapping[str, Any]:
        """Classifier, fold and crop."""
        shown = {"classes": self._num_classes, **self.view.spec()}
        return {"classifier": self.classifier.model_dump(mode="json"), "fold": self.fold, **shown}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The examples of both sides, and their groups, if any."""
        names = self._groups
        grouped = {} if names is None or names.null_count == len(names) else {"splits": self.splits.key}
        return {"shard": self.shard.key, "examples": self._shown.digest, **grouped}

    @property
    def units(self) -> float:
        """Number of crops."""
        return float(self._shown.members.num_rows)

    @property
    def label(self) -> str:
        """Crop and fold."""
        return f"{self.view.crop.mode if self.view.crop else 'whole'}, fold {self.fold + 1} of {self.classifier.folds}"

    @property
    def _shown(self) -> ShownRows:
        return shown_rows(self.splits, self.shard, self.view)

    @property
    def _groups(self) -> pa.ChunkedArray | None:
        members = self._shown.members
        return members["group"] if "group" in members.column_names else None  # older splits have no groups

    @property
    def _num_classes(self) -> int:
        return len(class_names_of(self.splits))

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write one row per image of the fold: example_id, prediction and confidence."""
        from memlib.observe.backgrounds import answers_of, cut_crops, folds_of, name_with_network, name_with_words

        classifier, members, boxes = self.classifier, self._shown.members, self._shown.crops
        assert boxes is not None, "a background is a crop"
        labels, ids = members["label"].to_numpy(), members["example_id"]
        groups = numbers_of_groups(members)
        in_fold = folds_of(ids.to_pylist(), labels, groups, classifier.folds, classifier.seed) == self.fold
        side = classifier.model.input_size if isinstance(classifier, CropNetwork) else classifier.side
        crops = cut_crops(self.shard.content.images, members["row"].to_numpy(), boxes, side=side)
        seed, known = (
            derive_seed(classifier.seed, "background", self.fold), (crops[~in_fold], labels[~in_fold], crops[in_fold])
        )  # fmt: skip
        if isinstance(classifier, CropNetwork):
            probabilities = name_with_network(
                classifier, *known, num_classes=self._num_classes, seed=seed, device=device, progress=attempt.progress
            )
        else:
            probabilities = name_with_words(classifier, *known, num_classes=self._num_classes, seed=seed)
        prediction, confidence = answers_of(probabilities)
        answers = {"example_id": ids.filter(pa.array(in_fold)), "prediction": prediction, "confidence": confidence}
        pq.write_table(pa.table(answers), attempt.path(ANSWERS), compression="zstd")

    @classmethod
    def open(cls, artifact: Artifact[pa.Table]) -> pa.Table:
        """Return a table of one row per image: example_id, prediction, confidence (negative entropy in nats, at most 0)."""
        return read_table(artifact.path(ANSWERS))


@dataclass(frozen=True)
class Backgrounds:
    """Answers of the classifiers of all folds for one crop mode."""

    kind: str  #: kind of classifier.
    parts: Sequence[Artifact[pa.Table]]  #: answers of each fold.

    @property
    def key(self) -> Any:
        """Keys by which downstream stages refer to the answers."""
        return [part.key for part in self.parts]

    def answers(self, ids: pa.ChunkedArray) -> Answers:
        """Return the answers for some images, in the order of `ids`."""
        table = pa.concat_tables([part.content for part in self.parts])
        places = pc.index_in(ids, value_set=table["example_id"].combine_chunks())
        assert not places.null_count, "a background was not shown to its classifier"
        chosen = table.take(places)
        prediction: NDArray[np.int64] = chosen["prediction"].to_numpy()
        return Answers(prediction, chosen["confidence"].to_numpy())
