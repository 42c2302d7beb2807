"""Votes of the public neighbours on every audited example, and the four categories (Meehan 2023, section 4.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.tables import UNITS

CATEGORIES = ("memorized", "misrepresented", "correlated", "unassociated")
Direction = Literal["A", "B"]
DIRECTIONS: tuple[Direction, ...] = ("A", "B")


@dataclass(frozen=True)
class Decoding:
    """The neighbours' classes for one direction of one pair of models, at one layer and epoch.

    Attributes:
        direction: A or B, the set whose crops were decoded.
        pair, layer, epoch: which models.
        crop: the crop mode.
        example_ids: (num_examples,) str.
        labels: (num_examples,) int64.
        target, reference: (num_examples, k_max) int64 classes of the neighbours, nearest first.
        groups: (num_examples,) names of the groups that were drawn as one, None for an example by itself.
    """

    direction: Direction
    pair: int
    layer: str
    epoch: int
    crop: str
    example_ids: Sequence[str]
    labels: NDArray[np.int64]
    target: NDArray[np.int64]
    reference: NDArray[np.int64]
    groups: Sequence[str | None] | None = None


def score(decodings: Iterable[Decoding], class_names: Sequence[str], config: Config) -> pa.Table:
    """Votes on every audited example.

    Returns:
        tables.UNITS.
    """
    from memlib.stats.neighbors import vote

    names = np.asarray(class_names, dtype=object)
    parts = []
    for found in decodings:
        for k in config.k:
            target, target_confidence = vote(found.target[:, :k], len(class_names), tie=config.tie)
            reference, reference_confidence = vote(found.reference[:, :k], len(class_names), tie=config.tie)
            count = len(found.labels)
            columns: dict[str, Any] = {
                "example_id": list(found.example_ids),
                "direction": [found.direction] * count,
                "pair": [found.pair] * count,
                "layer": [found.layer] * count,
                "epoch": [found.epoch] * count,
                "crop": [found.crop] * count,
                "k": [k] * count,
                "label": found.labels,
                "class_name": list(names[found.labels]),
                "target_prediction": target,
                "reference_prediction": reference,
                "target_confidence": target_confidence,
                "reference_confidence": reference_confidence,
                "group": [None] * count if found.groups is None else list(found.groups),
                "category": categorize(target == found.labels, reference == found.labels),
            }
            parts.append(pa.table(columns, schema=UNITS.arrow))
    return pa.concat_tables(parts)


def categorize(target_right: NDArray[np.bool_], reference_right: NDArray[np.bool_]) -> list[str]:
    """The category of each example (section 4.2)."""
    place = np.where(target_right, np.where(reference_right, 2, 0), np.where(reference_right, 1, 3))
    return [CATEGORIES[i] for i in place]
