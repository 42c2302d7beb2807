"""A toy source: stripes, across or along."""

import numpy as np

from memlib.data.examples import NO_BOXES, Example
from memlib.identity import canonical_json
from memlib.specs.data import StripesSource


class Stripes:
    """Images of stripes; the class is their direction."""

    def __init__(self, spec: StripesSource) -> None:
        self._spec, self.class_names = spec, ["across", "along"]

    def __len__(self) -> int:
        return self._spec.num_examples

    def __getitem__(self, index: int) -> Example:
        image = np.zeros((16, 16, 3), dtype=np.uint8)
        image[index % 3 :: 3] = 255
        label = index % 2
        return Example(f"stripe-{index:05d}", image.transpose(1, 0, 2).copy() if label else image, label, NO_BOXES)

    def content_digest(self) -> str:
        """Return the spec as canonical JSON, as stripes are a function of their spec."""
        return canonical_json(self._spec)
