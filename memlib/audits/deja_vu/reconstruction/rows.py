"""The findings on reconstructions, tested by redrawing the sides, as naming objects is.

The value of an image is what model A draws better than model B. If nothing is remembered, the side of an image changes no
picture: images, noise, candidates and judges are the same whatever the side, so that every draw of the sides is as likely as
the actual one. What is reported is the mean over images of the model that was trained on an image minus the other model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.deja_vu.analysis import numbers_of_groups, sampled_units
from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.reconstruction.judging import COPIES, NEAREST, RANK, RANK_PIXELS, SPREAD_HIDDEN, SPREAD_SHOWN
from memlib.audits.deja_vu.reconstruction.sampling import NEIGHBORS
from memlib.findings import Finding, Interval, diagnostic, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.inference import exchanges, mean_interval, permutation_p
from memlib.stats.power import detectable_shift
from memlib.stats.randomization import Design
from memlib.stats.totals import grouped_interval, resampled_differences

FAMILY, BEYOND_FAMILY = "reconstruction", "reconstruction beyond the nearest public image"
GAIN, OWN, OTHER, BEYOND = "reconstruction_gain", "reconstruction_own", "reconstruction_other", "reconstruction_beyond_public"
SMALLER_IS_BETTER = (RANK, RANK_PIXELS)
DESCRIBED = (COPIES, SPREAD_HIDDEN, SPREAD_SHOWN)  # of the pictures themselves: neither model is better for more of them


@dataclass(frozen=True)
class _Values:
    """One measure of the pictures from one source, oriented so that more is better: (num_images,) under either model.

    Attributes:
        ids: the images.
        by_model: means over pairs under the model trained on A and under the model trained on B.
    """

    ids: Sequence[str]
    by_model: tuple[NDArray[np.float64], NDArray[np.float64]]


def reconstruction_rows(judged: Sequence[pa.Table], splits: pa.Table, config: Config) -> Iterator[Finding]:
    """Yield findings on every measure of every source of pictures.

    `reconstruction_gain`: own model minus the other; for pictures from neighbours, tested in a family of its own. What a
    picture shows must also surpass the nearest public image, which anyone has: `reconstruction_beyond_public`, whose p-value
    is the larger of both (an intersection-union test). `reconstruction_own` and `_other` are means under either model.

    Args:
        judged: tables.RECONSTRUCTIONS of each pair.
        splits: tables.SPLITS.
        config: level, permutations, replicates, seed.
    """
    table = pa.concat_tables(judged)
    pairs = len(judged)
    sources = pc.unique(table["source"]).to_pylist()
    for measure in pc.unique(table["measure"]).to_pylist():
        for source in sources:
            values = _values(table, source, measure)
            if values is None:
                continue
            who = splits.take(pc.index_in(pa.array(values.ids), value_set=splits["example_id"].combine_chunks()))
            yield from _rows_of(values, who, {"measure": measure, "source": source, "pairs": pairs}, config)
        nearest, ours = _values(table, NEAREST, measure), _values(table, NEIGHBORS, measure)
        if nearest is not None and ours is not None and measure not in (RANK_PIXELS, *DESCRIBED):
            who = splits.take(pc.index_in(pa.array(ours.ids), value_set=splits["example_id"].combine_chunks()))
            yield _beyond(ours, nearest, who, {"measure": measure, "source": NEIGHBORS, "pairs": pairs}, config)


def _values(table: pa.Table, source: str, measure: str) -> _Values | None:
    """Return a measure by image and model, averaged over pairs, without images that have no value; None if none has."""
    here = table.filter((pc.field("source") == source) & (pc.field("measure") == measure))
    here = here.filter(pc.is_finite(here["value"]))
    if not here.num_rows:
        return None
    means = here.group_by(["example_id", "model"], use_threads=False).aggregate([("value", "mean")])
    means = means.sort_by([("example_id", "ascending"), ("model", "ascending")])
    ids, values = means["example_id"].to_pylist()[::2], means["value_mean"].to_numpy().reshape(-1, 2)
    sign = -1.0 if measure in SMALLER_IS_BETTER else 1.0
    return _Values(ids, (sign * values[:, 0], sign * values[:, 1]))


def _design(who: pa.Table) -> Design:
    first = pc.equal(who["role"], "target").to_numpy()
    return Design.of(first, who["label"].to_numpy(), numbers_of_groups(who))


def _own_and_other(values: _Values, design: Design) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    under_a, under_b = values.by_model
    return np.where(design.first, under_a, under_b), np.where(design.first, under_b, under_a)


def _rows_of(values: _Values, who: pa.Table, params: Mapping[str, object], config: Config) -> Iterator[Finding]:
    measure, source = str(params["measure"]), str(params["source"])
    design, sign = _design(who), -1.0 if measure in SMALLER_IS_BETTER else 1.0
    seed = derive_seed(config.seed, "reconstruction", measure, source)
    for metric, side in zip((OWN, OTHER), _own_and_other(values, design), strict=True):
        interval = Interval(*_mean_interval(side * sign, design, config, seed), sampled_units(design))
        yield diagnostic(metric, params, float(side.mean()) * sign, n=len(side), interval=interval)
    if measure in DESCRIBED:
        return
    apart = values.by_model[0] - values.by_model[1]
    gain = design.difference(apart) / 2
    replicates = resampled_differences(apart[:, None], design, config.replicates, seed=derive_seed(seed, "bootstrap"))[:, 0]
    interval = Interval(*grouped_interval(replicates / 2, design), sampled_units(design))
    if source != NEIGHBORS or measure == RANK_PIXELS:
        yield estimate(GAIN, params, gain, n=len(apart), interval=interval)
        return
    null = design.redrawn_differences(apart, config.permutations, seed=seed) / 2
    enough = detectable_shift(design, apart, alpha=config.level, seed=derive_seed(seed, "power"))
    yield tested(
        GAIN, params, gain, n=len(apart), interval=interval, p_value=permutation_p(gain, null), family=FAMILY,
        detectable=None if enough is None else enough / 2, smallest_p=_smallest_p(null),
    )  # fmt: skip


def _smallest_p(null: NDArray[np.float64]) -> float:
    return 1 / (1 + len(null)) if np.ptp(null) else 1.0


def _mean_interval(values: NDArray[np.float64], design: Design, config: Config, seed: int) -> tuple[float, float]:
    """Return the interval of a mean over images, or over groups of them by their totals."""
    if not design.has_groups:
        return mean_interval(values, replicates=config.replicates, seed=seed)
    means = np.bincount(design.number, weights=values) / design.sizes
    return mean_interval(means, replicates=config.replicates, seed=seed)


def _beyond(ours: _Values, nearest: _Values, who: pa.Table, params: Mapping[str, object], config: Config) -> Finding:
    """Test whether what the own model draws surpasses both the other model's pictures and the nearest public image.

    The second comparison is paired within images (by group where images belong together), whose signs are flipped.
    """
    assert ours.ids == nearest.ids, "a measure is undefined for some sources only"
    design = _design(who)
    seed = derive_seed(config.seed, "reconstruction", str(params["measure"]), "public")
    own, public = (_own_and_other(values, design)[0] for values in (ours, nearest))
    difference = own - public
    p_public = _flipped(np.bincount(design.number, weights=difference), config, seed)
    apart = ours.by_model[0] - ours.by_model[1]
    null = design.redrawn_differences(apart, config.permutations, seed=seed) / 2
    p_other = permutation_p(design.difference(apart) / 2, null)
    interval = Interval(*_mean_interval(difference, design, config, seed), sampled_units(design))
    ends = {"p_other_model": round(p_other, 6), "p_public_image": round(p_public, 6)}
    return tested(
        BEYOND, {**params, **ends}, float(difference.mean()), n=len(difference), interval=interval,
        p_value=max(p_other, p_public), family=BEYOND_FAMILY, smallest_p=_smallest_p(null),
    )  # fmt: skip


def _flipped(sums: NDArray[np.float64], config: Config, seed: int) -> float:
    """Return the one-sided p-value of a sum of differences whose signs are flipped."""
    return permutation_p(float(sums.sum()), exchanges(len(sums), config.permutations, seed=seed) @ sums)
