"""Scikit-learn's embedded table of breast tumors as points."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memlib.data.examples import NO_BOXES, Example
from memlib.identity import canonical_json
from memlib.specs import BreastCancerSource


class BreastCancer:
    """Tumors in 30 measurements, each standardized over the table; example ids are tumor-<row>."""

    point_dim = 30

    def __init__(self, spec: BreastCancerSource) -> None:
        self.class_names = ["malignant", "benign"]
        self._spec = spec

    def __len__(self) -> int:
        return len(self._table[1])

    def __getitem__(self, index: int) -> Example:
        points, labels = self._table
        return Example(f"tumor-{index:04d}", points[index], int(labels[index]), NO_BOXES)

    @cached_property
    def _table(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """The points, (569, 30), and their labels."""
        from sklearn.datasets import load_breast_cancer  # imported late: too slow to load when only planning

        bunch = load_breast_cancer()
        values = np.asarray(bunch.data, dtype=np.float64)
        points = (values - values.mean(axis=0)) / values.std(axis=0)
        return points.astype(np.float32), np.asarray(bunch.target, dtype=np.int64)

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the table comes with scikit-learn and does not change."""
        return canonical_json(self._spec)
