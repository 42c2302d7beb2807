"""The probe data D_r, on which the black-box scores are computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.splits import HELD_OUT, TRAIN, column
from memlib.data.stages import Shard, TrainingData
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.pipeline.stage import Artifact
from memlib.specs import ProbeSpec


def probe_inputs(data: TrainingData, probe: ProbeSpec, other: Artifact[Shard] | None, *roles: str) -> dict[str, str]:
    """Return the inputs of a stage that reads the probe data besides the examples of these roles."""
    held_out = [HELD_OUT] if probe.kind == "held_out" else []
    return data.inputs(*roles, *held_out) | ({"probe": other.key} if other is not None else {})


def probe_examples(data: TrainingData, probe: ProbeSpec, other: Artifact[Shard] | None, *, seed: int) -> NDArray[Any]:
    """Return the probe data D_r of the black box, in the shape of the training examples.

    Raises:
        UserError: if there are fewer than two probe examples, or if their shape or type differs from the training examples'.
    """
    shape = data.images.shape[1:]
    if probe.kind == "noise":
        rng = np.random.default_rng(derive_seed(seed, "probe data"))
        if data.images.dtype == np.uint8:
            noise: NDArray[Any] = rng.integers(0, 256, size=(probe.count, *shape), dtype=np.uint8)
            return noise
        seen = data.images[column(data.members(TRAIN), "row")]
        points: NDArray[Any] = rng.uniform(seen.min(axis=0), seen.max(axis=0), size=(probe.count, *shape)).astype(np.float32)
        return points
    if probe.kind == "held_out":
        images, rows = data.images, column(data.members(HELD_OUT), "row")
    else:
        assert other is not None
        images = other.content.images
        rows = np.arange(len(images))
    if images.shape[1:] != shape or images.dtype != data.images.dtype:
        seen_shape = " x ".join(str(side) for side in images.shape[1:])
        wanted = " x ".join(str(side) for side in shape)
        raise UserError(
            f"probe examples are {seen_shape} {images.dtype}, but the models take {wanted} {data.images.dtype}; change "
            "probe.data"
        )
    if len(rows) < 2:
        raise UserError(
            f"there are {len(rows)} probe examples, but a paired test needs two; raise split.held_out_per_class, or "
            "give more data in probe"
        )
    chosen: NDArray[Any] = images[_chosen(rows, probe, seed=seed)]
    return chosen


def held_out_labels(data: TrainingData, probe: ProbeSpec, *, seed: int) -> NDArray[np.int64] | None:
    """Return the labels of the probe examples, (num_examples,); None unless they are held-out examples."""
    if probe.kind != "held_out":
        return None
    return np.asarray(data.labels)[_chosen(column(data.members(HELD_OUT), "row"), probe, seed=seed)].astype(np.int64)


def _chosen(rows: NDArray[np.int64], probe: ProbeSpec, *, seed: int) -> NDArray[np.int64]:
    """Return the stored rows of the probe examples, in ascending order."""
    return np.sort(np.random.default_rng(derive_seed(seed, "probe data")).permutation(rows)[: probe.count])
