"""Gains of the target over the reference on each image, and their paired differences between audits or checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.sides import PAIRS_FOR_TRAINING, numbers_of_groups, sampled_units
from memlib.findings import Finding, Interval, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.inference import widened_interval, widened_p
from memlib.stats.randomization import Design
from memlib.stats.totals import freedom_of, grouped_interval, resampled_differences

REPLICATES = 2000
CHANGE, CHANGES = "change in share_excess", "changes"


@dataclass(frozen=True)
class Gains:
    """Gains on each image at one setting; the difference between their means over the two sides is the share excess."""

    images: pa.Table  #: (num_images,) ids and sides (directions), sorted.
    design: Design  #: the draw of the sides.
    #: (num_pairs, num_images) 1/2 where only the model trained on A names the object, -1/2 where only the model trained on B
    #: does, else 0. With a single model, its reference takes the place of the model trained on B, and gains are 1, -1 and 0.
    gains: NDArray[np.float64]

    @classmethod
    def of(cls, units: pa.Table, setting: Mapping[str, Any], *, alone: bool) -> Gains:
        """Return the gains at one layer, epoch, crop and k; `alone` is True if there is no second model."""
        for name in ("layer", "epoch", "crop", "k"):
            units = units.filter(pc.field(name) == setting[name])
        units = units.sort_by([("pair", "ascending"), ("direction", "ascending"), ("example_id", "ascending")])
        count = units.num_rows // len(pc.unique(units["pair"]))
        first, label = units.slice(0, count), units["label"]
        right = [pc.equal(units[f"{side}_prediction"], label).to_numpy().astype(float) for side in ("target", "reference")]
        of_a, labels = pc.equal(first["direction"], "A").to_numpy(), first["label"].to_numpy()
        groups = numbers_of_groups(first)
        gains = (right[0] - right[1]).reshape(-1, count)
        gains = gains if alone else 0.5 * np.where(of_a, gains, -gains)
        images = first.select(["direction", "example_id"]).combine_chunks()
        return cls(images, Design.of(of_a, labels, groups), gains)


def difference(
    metric: str,
    params: Mapping[str, Any],
    first: Gains,
    second: Gains,
    *,
    family: str,
    seed: int,
    reasons: Sequence[str] = (),
) -> Finding:
    """Return the first share excess minus the second; both use the same resamples of the images.

    Args:
        metric, params: those of the finding; for an untested difference, the reasons are added as params.not_ranked.
        first, second: gains on the same images. Pairs with the same number share their seeds.
        reasons: reasons not to test the difference; if there are too few pairs of models, this reason is added.
    """
    params = {**params, "pairs": [len(first.gains), len(second.gains)]}
    design, apart = first.design, first.gains.mean(axis=0) - second.gains.mean(axis=0)
    count, value = len(apart), design.difference(apart)
    sampled = sampled_units(design)
    replicates = resampled_differences(apart[:, None], design, REPLICATES, seed=seed)[:, 0]
    if len(first.gains) != len(second.gains) or len(first.gains) < PAIRS_FOR_TRAINING:
        reasons = [*reasons, f"each side needs the same number of pairs of models, {PAIRS_FOR_TRAINING} or more"]
    if reasons:
        low, high = grouped_interval(replicates, design)
        interval = Interval(max(-2.0, low), min(2.0, high), sampled)
        return estimate(metric, {**params, "not_ranked": "; ".join(reasons)}, value, n=count, interval=interval)
    repeats = np.array([design.difference(one - other) for one, other in zip(first.gains, second.gains, strict=True)])
    freedom = freedom_of(design)
    low, high = widened_interval(replicates, repeats, freedom=freedom)
    return tested(
        metric, params, value, n=count, interval=Interval(max(-2.0, low), min(2.0, high), f"{sampled} and trainings"),
        p_value=widened_p(replicates, repeats, freedom=freedom), family=family, either_direction=True,
    )  # fmt: skip


def change_rows(units: pa.Table, headline: Mapping[str, Any], *, alone: bool, seed: int) -> Iterator[Finding]:
    """Yield, for each layer and each epoch after the first, the share excess minus that at the first epoch.

    Args:
        units: tables.UNITS.
        headline: crop and k of the headline, and the layer if only one is followed.
        alone: True if there is no second model.
    """
    for name, value in headline.items():
        units = units.filter(pc.field(name) == value)
    for layer in pc.unique(units["layer"]).to_pylist():
        of_layer = units.filter(pc.field("layer") == layer)
        since, *epochs = sorted(pc.unique(of_layer["epoch"]).to_pylist())
        before = Gains.of(of_layer, {**headline, "layer": layer, "epoch": since}, alone=alone)
        for epoch in epochs:
            params = {**headline, "layer": layer, "epoch": epoch, "since": since}
            after = Gains.of(of_layer, params, alone=alone)
            drawn = derive_seed(seed, "change", layer, epoch)
            yield difference(CHANGE, params, after, before, family=CHANGES, seed=drawn)
