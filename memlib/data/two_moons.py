"""Two moons with an uninformative third coordinate (Hartley 2023, Fig. 3), after the authors' notebook."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from memlib.data.examples import NO_BOXES, Example
from memlib.identity import canonical_json, derive_seed
from memlib.specs import TwoMoonsSource


class TwoMoons:
    """Points (x, y, z): x and y are mean-centred moons, z is noise; the class is the moon."""

    point_dim = 3

    def __init__(self, spec: TwoMoonsSource) -> None:
        self.class_names = ["upper", "lower"]
        self._spec = spec

    def __len__(self) -> int:
        return self._spec.num_examples

    def __getitem__(self, index: int) -> Example:
        points, labels = self._drawn
        return Example(f"point-{index:07d}", points[index], int(labels[index]), NO_BOXES)

    @cached_property
    def _drawn(self) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        from sklearn.datasets import make_moons  # imported late: too slow to load when only planning

        spec, seed = self._spec, derive_seed(self._spec.seed, "two moons") % 2**32  # scikit-learn takes 32 bits
        points, labels = make_moons(spec.num_examples, noise=spec.noise, random_state=seed)
        points = points - points.mean(axis=0)
        z = np.random.default_rng(derive_seed(spec.seed, "two moons", "z")).normal(0, 1, len(points)) * spec.z_noise
        return np.column_stack([points, z]).astype(np.float32), labels.astype(np.int64)

    def content_digest(self) -> str:
        """Return the spec as canonical JSON: the points are a function of it."""
        return canonical_json(self._spec)
