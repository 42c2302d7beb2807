"""Gains of the target over the reference on each image, and their paired differences between audits or checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.audits.deja_vu.analysis import PAIRS_FOR_TRAINING
from memlib.findings import Interval, Row, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.inference import percentile_interval, widened_interval, widened_p
from memlib.stats.totals import resampled_totals

REPLICATES = 2000
CHANGE, CHANGES = "change in share_excess", "changes"


@dataclass(frozen=True)
class Gains:
    """Gain of the target over the reference on each image at one setting; the mean over images is the share excess.

    Attributes:
        images: (num_images,) ids and sides (directions), sorted.
        strata: (num_images,) class and side as one number.
        gains: (num_pairs, num_images) 1 where only the target names the object, -1 where only the reference does, else 0.
            With a single model, the gains on held-out images are negated, and those of each side are scaled by
            num_images / (number of images on that side).
    """

    images: pa.Table
    strata: NDArray[np.int64]
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
        strata = 2 * first["label"].to_numpy() + pc.equal(first["direction"], "B").to_numpy().astype(np.int64)
        images = first.select(["direction", "example_id"]).combine_chunks()
        gains = (right[0] - right[1]).reshape(-1, count)
        if alone:
            held_out = strata % 2 == 1
            gains *= np.where(held_out, -count / held_out.sum(), count / (~held_out).sum())
        return cls(images, strata, gains)


def difference(
    metric: str,
    params: Mapping[str, Any],
    first: Gains,
    second: Gains,
    *,
    family: str,
    seed: int,
    reasons: Sequence[str] = (),
) -> Row:
    """Return a row with the first share excess minus the second; both use the same resamples of the images.

    Args:
        metric, params: metric and params of the row; for an untested difference, the reasons are added as params.not_ranked.
        first, second: gains on the same images. Pairs with the same number share their seeds.
        family: family of tests.
        seed: seed of the resamples.
        reasons: reasons not to test the difference; if there are too few pairs of models, this reason is added.
    """
    params = {**params, "pairs": [len(first.gains), len(second.gains)]}
    apart = first.gains.mean(axis=0) - second.gains.mean(axis=0)
    count, value = len(apart), float(apart.mean())
    column = scipy.sparse.csr_array(apart[:, None].astype(np.float32))
    replicates = resampled_totals(column, first.strata, REPLICATES, seed=seed)[:, 0] / count
    if len(first.gains) != len(second.gains) or len(first.gains) < PAIRS_FOR_TRAINING:
        reasons = [*reasons, f"each side needs the same number of pairs of models, {PAIRS_FOR_TRAINING} or more"]
    if reasons:
        interval = Interval(*percentile_interval(replicates), "examples")
        return estimate(metric, {**params, "not_ranked": "; ".join(reasons)}, value, n=count, interval=interval)
    repeats = first.gains.mean(axis=1) - second.gains.mean(axis=1)
    low, high = widened_interval(replicates, repeats)
    return tested(
        metric, params, value, n=count, interval=Interval(max(-2.0, low), min(2.0, high), "examples and trainings"),
        p_value=widened_p(replicates, repeats), family=family, either_direction=True,
    )  # fmt: skip


def change_rows(units: pa.Table, headline: Mapping[str, Any], *, alone: bool, seed: int) -> Iterator[Row]:
    """Yield a row for each layer and epoch: the share excess minus that before fine-tuning, at the headline's crop and k.

    Args:
        units: tables.UNITS.
        headline: crop and k.
        alone: True if there is no second model.
        seed: seed of the resamples.
    """
    setting = {name: headline[name] for name in ("crop", "k")}
    for name, value in setting.items():
        units = units.filter(pc.field(name) == value)
    for layer in pc.unique(units["layer"]).to_pylist():
        of_layer = units.filter(pc.field("layer") == layer)
        since, *epochs = sorted(pc.unique(of_layer["epoch"]).to_pylist())
        before = Gains.of(of_layer, {**setting, "layer": layer, "epoch": since}, alone=alone)
        for epoch in epochs:
            params = {**setting, "layer": layer, "epoch": epoch, "since": since}
            after = Gains.of(of_layer, params, alone=alone)
            drawn = derive_seed(seed, "change", layer, epoch)
            yield difference(CHANGE, params, after, before, family=CHANGES, seed=drawn)
