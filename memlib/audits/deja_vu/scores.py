"""The public neighbours' votes on every audited example, and the four categories (Meehan 2023, section 4.2)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Config, Direction
from memlib.audits.deja_vu.tables import UNITS

CATEGORIES = ("memorized", "misrepresented", "correlated", "unassociated")


class Answers(NamedTuple):
    """Predicted class of each example, (num_examples,), and the confidence in nats, at most 0, (num_examples,)."""

    prediction: NDArray[np.int64]
    confidence: NDArray[np.float64]

    def of(self, rows: NDArray[np.int64]) -> "Answers":
        """Return the answers for some of the examples."""
        return Answers(self.prediction[rows], self.confidence[rows])


def ease(right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how easy examples are for a model: the surest wrong answers first, the surest right ones last.

    Args:
        right: (num_examples,) whether the model's answer is right.
        confidence: (num_examples,).

    Example:
        >>> import numpy as np
        >>> ease(np.array([True, True, False, False]), np.array([-0.1, -0.9, -0.2, -0.8])).tolist()
        [4.0, 1.0, -3.0, -2.0]
    """
    sure: NDArray[np.float64] = scipy.stats.rankdata(confidence)
    return np.where(right, sure, -sure)


@dataclass(frozen=True)
class Decoding:
    """The neighbours' classes for one direction of one pair of models, at one layer and epoch."""

    direction: Direction  #: A or B, the set whose crops were decoded. With a single model, B is held out.
    pair: int  #: pair, layer, epoch: number of the pair of models, decoded layer, checkpoint.
    layer: str
    epoch: int
    crop: str  #: the crop mode.
    example_ids: Sequence[str] | pa.ChunkedArray  #: (num_examples,) str.
    labels: NDArray[np.int64]  #: (num_examples,) int64.
    #: (num_examples, k_max) integer classes of the neighbours under the target model, nearest first.
    target: NDArray[np.int64]
    #: the same under the reference model, or the answers of the classifier that replaces it.
    reference: NDArray[np.int64] | Answers
    #: (num_examples,) names of the groups that the split assigned together, None for an ungrouped example.
    groups: Sequence[str | None] | pa.ChunkedArray | None = None


def score(decodings: Iterable[Decoding], class_names: Sequence[str], config: Config) -> pa.Table:
    """Return the votes on every audited example.

    Returns:
        tables.UNITS.
    """
    from memlib.stats.neighbors import vote

    names, categories = pa.array(class_names, type=pa.string()), pa.array(CATEGORIES)
    parts = []
    for decoding in decodings:
        for k in config.k:
            target, target_confidence = vote(decoding.target[:, :k], tie=config.tie)
            given = decoding.reference
            reference, reference_confidence = given if isinstance(given, Answers) else vote(given[:, :k], tie=config.tie)
            count = len(decoding.labels)
            setting = {
                "direction": decoding.direction,
                "pair": decoding.pair,
                "layer": decoding.layer,
                "epoch": decoding.epoch,
            }
            category = categorize(target == decoding.labels, reference == decoding.labels)
            columns: dict[str, Any] = {
                **{name: pa.repeat(value, count) for name, value in {**setting, "crop": decoding.crop, "k": k}.items()},
                "example_id": decoding.example_ids,
                "label": decoding.labels,
                "class_name": names.take(pa.array(decoding.labels)),
                "target_prediction": target,
                "reference_prediction": reference,
                "target_confidence": target_confidence,
                "reference_confidence": reference_confidence,
                "group": pa.nulls(count, pa.string()) if decoding.groups is None else decoding.groups,
                "category": categories.take(pa.array(category)),
            }
            parts.append(pa.table(columns, schema=UNITS.arrow))
    return pa.concat_tables(parts)


def categorize(target_right: NDArray[np.bool_], reference_right: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the category of each example (section 4.2) as its place in CATEGORIES, (num_examples,)."""
    numbers: NDArray[np.int64] = np.where(target_right, np.where(reference_right, 2, 0), np.where(reference_right, 1, 3))
    return numbers
