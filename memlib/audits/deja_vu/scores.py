"""Votes of the public neighbours on every audited example, and the four categories (Meehan 2023, section 4.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Config, Direction
from memlib.audits.deja_vu.tables import UNITS

CATEGORIES = ("memorized", "misrepresented", "correlated", "unassociated")


class Answers(NamedTuple):
    """What is said of each example: the class, (num_examples,), and the confidence in nats, at most 0."""

    prediction: NDArray[np.int64]
    confidence: NDArray[np.float64]

    def of(self, rows: NDArray[np.int64]) -> "Answers":
        """Return those of some examples."""
        return Answers(self.prediction[rows], self.confidence[rows])


@dataclass(frozen=True)
class Decoding:
    """The neighbours' classes for one direction of one pair of models, at one layer and epoch.

    Attributes:
        direction: A or B, the set whose crops were decoded. Of one model alone, A are its training images, B held out.
        pair, layer, epoch: which models.
        crop: the crop mode.
        example_ids: (num_examples,) str.
        labels: (num_examples,) int64.
        target: (num_examples, k_max) integer classes of the neighbours, nearest first.
        reference: the same, or the answers of what stands for a second model.
        groups: (num_examples,) names of the groups that were drawn as one, None for an example by itself.
    """

    direction: Direction
    pair: int
    layer: str
    epoch: int
    crop: str
    example_ids: Sequence[str] | pa.ChunkedArray
    labels: NDArray[np.int64]
    target: NDArray[np.int64]
    reference: NDArray[np.int64] | Answers
    groups: Sequence[str | None] | pa.ChunkedArray | None = None


def score(decodings: Iterable[Decoding], class_names: Sequence[str], config: Config) -> pa.Table:
    """Votes on every audited example.

    Returns:
        tables.UNITS.
    """
    from memlib.stats.neighbors import vote

    names, categories = pa.array(class_names, type=pa.string()), pa.array(CATEGORIES)
    parts = []
    for found in decodings:
        for k in config.k:
            target, target_confidence = vote(found.target[:, :k], tie=config.tie)
            given = found.reference
            reference, reference_confidence = given if isinstance(given, Answers) else vote(given[:, :k], tie=config.tie)
            count = len(found.labels)
            same = {"direction": found.direction, "pair": found.pair, "layer": found.layer, "epoch": found.epoch}
            category = _categories(target == found.labels, reference == found.labels)
            columns: dict[str, Any] = {
                **{name: pa.repeat(value, count) for name, value in {**same, "crop": found.crop, "k": k}.items()},
                "example_id": found.example_ids,
                "label": found.labels,
                "class_name": names.take(pa.array(found.labels)),
                "target_prediction": target,
                "reference_prediction": reference,
                "target_confidence": target_confidence,
                "reference_confidence": reference_confidence,
                "group": pa.nulls(count, pa.string()) if found.groups is None else found.groups,
                "category": categories.take(pa.array(category)),
            }
            parts.append(pa.table(columns, schema=UNITS.arrow))
    return pa.concat_tables(parts)


def categorize(target_right: NDArray[np.bool_], reference_right: NDArray[np.bool_]) -> list[str]:
    """The category of each example (section 4.2)."""
    return [CATEGORIES[i] for i in _categories(target_right, reference_right)]


def _categories(target_right: NDArray[np.bool_], reference_right: NDArray[np.bool_]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = np.where(target_right, np.where(reference_right, 2, 0), np.where(reference_right, 1, 3))
    return found
