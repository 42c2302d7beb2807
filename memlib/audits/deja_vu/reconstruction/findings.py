"""The findings on reconstructions, tested by redrawing the sides, as naming objects is.

The gain of an image is by how much model A draws it better than model B. If nothing is remembered, the side of an image
changes no picture: images, noise, candidates and judges are the same whatever the side, so that every draw of the sides is as
likely as the actual one. The findings report a mean over images: the model that was trained on an image less the other model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.reconstruction.judging import (
    AVERAGED,
    COPIES,
    FIRST,
    NEAREST,
    RANK,
    RANK_PIXELS,
    SPREAD_HIDDEN,
    SPREAD_SHOWN,
)
from memlib.audits.deja_vu.tables import NEIGHBORS
from memlib.audits.sides import Audited
from memlib.findings import Finding, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.inference import exchanges, permutation_p

FAMILY, BEYOND_FAMILY = "reconstruction", "reconstruction beyond public images"
GAIN, MEAN, BEYOND_PUBLIC = "reconstruction_gain", "reconstruction_mean", "reconstruction_beyond_public"
SMALLER_IS_BETTER = (RANK, RANK_PIXELS)
DESCRIBED = (COPIES, SPREAD_HIDDEN, SPREAD_SHOWN)  # of the pictures themselves: neither model is better for more of them


def reconstruction_rows(judged: Sequence[pa.Table], splits: pa.Table, config: Config) -> Iterator[Finding]:
    """Yield findings on every measure of every source of pictures.

    `reconstruction_gain`: own model less the other; for pictures from neighbours, tested in a family of its own.
    `reconstruction_beyond_public`: pictures must also surpass the nearest public image and the mean of the neighbours, which
    need no generator; the p-value is the largest of the three (an intersection-union test).
    `reconstruction_mean`: under either model.

    Args:
        judged: tables.RECONSTRUCTIONS of each pair.
        splits: tables.SPLITS.
        config: level, permutations, replicates, seed.
    """
    table = pa.concat_tables(judged)
    sources, measures = (pc.unique(table[name]).to_pylist() for name in ("source", "measure"))
    level, most = config.level / sum(map(_is_tested, measures)), pc.max(table["candidates"]).as_py()
    for measure in measures:
        if measure.endswith(FIRST):
            continue  # read beside the measure itself
        found = {source: values for source in sources if (values := _Values.of(table, source, measure)) is not None}
        for source, values in found.items():
            audited = Audited(_rows_of(values.ids, splits), config, use=f"reconstruction {measure} {source}")
            params = {"measure": measure, "source": source, "pairs": len(judged), "candidates": most, **audited.params}
            own, other = audited.own(values.by_model)
            yield from audited.diagnostics(MEAN, params, {"target": own, "reference": other})
            if measure in DESCRIBED:
                continue
            gains = values.gains(smaller_is_better=measure in SMALLER_IS_BETTER)
            if source != NEIGHBORS or not _is_tested(measure):
                interval, value = audited.of_difference(gains), audited.design.difference(gains.mean(axis=0)) / 2
                yield estimate(GAIN, params, value, n=audited.count, interval=interval)
                continue
            null = audited.redrawn(gains.mean(axis=0), seed=audited.seed)
            seed = derive_seed(audited.seed, "power")
            gain = audited.tested(GAIN, params, gains, null, family=FAMILY, level=level, seed=seed)
            yield gain
            first = measure if measure in SMALLER_IS_BETTER else f"{measure}{FIRST}"
            public = {other: _Values.of(table, other, first) for other in (NEAREST, AVERAGED)}
            ours = _Values.of(table, NEIGHBORS, first)
            if ours is not None and None not in public.values():
                assert ours.ids == values.ids, "a measure is undefined for some sources only"
                yield _beyond(gain, ours, public, audited)


def _is_tested(measure: str) -> bool:
    return measure not in DESCRIBED and not measure.endswith(FIRST)


def _rows_of(ids: Sequence[str], splits: pa.Table) -> pa.Table:
    return splits.take(pc.index_in(pa.array(ids), value_set=splits["example_id"].combine_chunks()))


@dataclass(frozen=True)
class _Values:
    """One measure of the pictures from one source, for the images on which it is defined under all models."""

    ids: list[str]  #: (num_images,).
    by_model: NDArray[np.float64]  #: (num_pairs, 2, num_images), under the models trained on A and on B.

    @classmethod
    def of(cls, table: pa.Table, source: str, measure: str) -> _Values | None:
        """Return a measure of the pictures from a source; None if no image has a value under all models."""
        here = table.filter((pc.field("source") == source) & (pc.field("measure") == measure))
        here = here.sort_by([("pair", "ascending"), ("model", "ascending"), ("example_id", "ascending")])
        ids, pairs = sorted(pc.unique(here["example_id"]).to_pylist()), len(pc.unique(here["pair"]))
        if not ids:
            return None
        values = pc.fill_null(here["value"], np.nan).to_numpy().reshape(pairs, 2, len(ids))
        known = np.isfinite(values).all(axis=(0, 1))
        return (
            cls([name for name, is_known in zip(ids, known, strict=True) if is_known], values[:, :, known])
            if known.any()
            else None
        )

    def gains(self, *, smaller_is_better: bool) -> NDArray[np.float64]:
        """Return by how much the model trained on A is better than the model trained on B, (num_pairs, num_images)."""
        apart: NDArray[np.float64] = self.by_model[:, 0] - self.by_model[:, 1]
        return -apart if smaller_is_better else apart


def _beyond(gain: Finding, ours: _Values, public: Mapping[str, _Values | None], audited: Audited) -> Finding:
    """Test whether the own model's pictures surpass the other model's and all pictures that need no generator.

    Comparisons with the latter are paired within images, whose signs are flipped (by group where images belong together).
    Names are compared by one picture each: for a share of several, differences would not be symmetric where names are rare.

    Args:
        gain: the test against the other model, over all pictures.
        ours, public: the measure of pictures from neighbours, and of pictures that need no generator, by source.
    """
    sign, design = (-1.0 if gain.params["measure"] in SMALLER_IS_BETTER else 1.0), audited.design
    own = audited.own(ours.by_model)[0].mean(axis=0) * sign
    apart: dict[str, NDArray[np.float64]] = {}
    p_values = {"other model": gain.p_value or 0.0}
    signs = exchanges(design.num_groups, audited.config.permutations, seed=audited.seed)
    for name, other in public.items():
        assert other is not None
        assert other.ids == ours.ids, "a measure is undefined for some sources only"
        apart[name] = own - audited.own(other.by_model)[0].mean(axis=0) * sign
        sums = np.bincount(design.number, weights=apart[name])
        p_values[name] = permutation_p(float(sums.sum()), np.asarray(signs @ sums, np.float64))
    least = min(apart.values(), key=lambda one: float(one.mean()))
    params = {**gain.params, **{f"p, {name}": float(f"{p:.3g}") for name, p in p_values.items()}}
    return tested(
        BEYOND_PUBLIC, params, float(least.mean()),
        n=audited.count, interval=audited.of_mean(least, least=-1.0), family=BEYOND_FAMILY, p_value=max(p_values.values()),
        smallest_p=max(gain.smallest_p or 0.0, 1 / (1 + len(signs))),
    )  # fmt: skip
