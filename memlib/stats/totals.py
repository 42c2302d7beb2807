"""Totals over many units under many weightings at once: resamples of a bootstrap, redraws of a design.

The summed columns are sparse, with one or two entries per unit; no array of weightings x units exceeds one block. Up to
`KEPT` weights are drawn by `bootstrap_weights` and `Design.redraws`, so that existing results do not change; larger numbers
of weights are drawn stratum by stratum with a faster method that has the same distribution.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.stats.inference import FEW, bootstrap_weights, percentile_interval
from memlib.stats.randomization import Design

KEPT = 2**28
_BLOCK = 2**23  # weights in memory at a time


def resampled_totals(
    columns: scipy.sparse.csr_array, strata: NDArray[np.int64], replicates: int, *, seed: int
) -> NDArray[np.float64]:
    """Return weighted sums of columns in each replicate of a stratified bootstrap; see `bootstrap_weights`.

    Args:
        columns: (num_units, num_columns) float32, the columns to sum.
        strata: (num_units,); units are resampled within their stratum.

    Returns:
        (replicates, num_columns).
    """
    if replicates * len(strata) <= KEPT:
        weights = bootstrap_weights(strata, replicates, seed=seed)
        return np.concatenate([np.asarray((columns.T @ part.T).T, dtype=np.float64) for part in weights])
    return _by_block(columns, strata, replicates, seed, lambda rng, rows, size: _resampled(rng, len(rows), size))


def resampled_differences(values: NDArray[np.floating], design: Design, replicates: int, *, seed: int) -> NDArray[np.float64]:
    """Return `Design.difference` in each replicate of a bootstrap over groups, stratified by stratum and side.

    Args:
        values: (num_units, num_columns).

    Returns:
        (replicates, num_columns), less the replicates in which no stratum has both sides; two rows of the observed
        differences if none is left.
    """
    cell = 2 * np.unique(design.stratum, return_inverse=True)[1] + ~design.first
    shape = (len(cell), int(cell.max()) + 1 + int(cell.max() + 1) % 2)
    place = np.arange(len(cell))
    parts = [
        scipy.sparse.csr_array((column.astype(np.float32), (place, cell)), shape=shape)
        for column in (np.ones(len(cell)), *values.T)
    ]
    totals = resampled_by_group(scipy.sparse.hstack(parts, format="csr"), design, replicates, seed=seed)
    sizes, *sums = (part.reshape(replicates, -1, 2) for part in np.split(totals, len(parts), axis=1))
    total = np.maximum(sizes.sum(axis=2), 1e-9)
    weight = (sizes.prod(axis=2) / total).sum(axis=1)
    kept = weight > 1e-9  # a replicate without a stratum that has both sides has no difference
    if not kept.any():
        return np.array([[design.difference(column) for column in values.T]] * 2)
    found = [((s[..., 0] * sizes[..., 1] - s[..., 1] * sizes[..., 0]) / total).sum(axis=1)[kept] for s in sums]
    differences: NDArray[np.float64] = np.stack(found, axis=1) / weight[kept, None]
    return differences


def resampled_by_group(columns: scipy.sparse.csr_array, design: Design, replicates: int, *, seed: int) -> NDArray[np.float64]:
    """Return weighted sums of columns in each replicate of a bootstrap over groups, stratified by stratum and side.

    Strata with a single group are merged by side, as one group has no spread.

    Args:
        columns: (num_units, num_columns) float32, the columns to sum.

    Returns:
        (replicates, num_columns).
    """
    strata = 2 * design.strata_of_groups + ~design.first_of_groups
    alone = np.bincount(strata)[strata] == 1
    strata = np.where(alone, strata % 2 - 2, strata)
    if not design.has_groups:  # in the order of the units, which may differ from that of the groups' numbers
        return resampled_totals(columns, strata[design.number], replicates, seed=seed)
    return resampled_totals(design.membership.T @ columns, strata, replicates, seed=seed)


def freedom_of(design: Design) -> float:
    """Return the degrees of freedom of a mean over groups of unequal size; infinite where each unit is a group of its own.

    It is the number of equally large groups whose mean would vary as much (`effective_groups`), less the number of strata,
    whose means are estimated, on the side where this is smaller.
    """
    if not design.has_groups:
        return math.inf
    first, strata = design.first_of_groups, design.strata_of_groups
    sides = [(effective_groups(design, side), len(np.unique(strata[side]))) for side in (first, ~first) if side.any()]
    return max(1.0, min(groups - count for groups, count in sides))


def groups_on_smaller_side(design: Design) -> int:
    """Return the number of groups on the side that has fewer."""
    on_first = int(design.first_of_groups.sum())
    return min(on_first, design.num_groups - on_first)


def effective_groups(design: Design, chosen: NDArray[np.bool_] | None = None) -> float:
    """Return the number of equally large groups whose mean would vary as much as that of the groups (Kish 1965).

    Args:
        chosen: (num_groups,) mask of the groups; all by default.
    """
    sizes = design.sizes if chosen is None else design.sizes[chosen]
    return float(sizes.sum() ** 2 / np.square(sizes).sum())


def grouped_interval(
    replicates: NDArray[np.float64], design: Design, *, level: float = 0.95, of_mean: bool = False
) -> tuple[float, float]:
    """Return the percentile interval of bootstrap replicates, with Student's quantiles for few groups.

    The percentiles are those at which a normal distribution reaches Student's quantile for `freedom_of` the design
    (Hesterberg 2015, section 5.1). Below 10 degrees of freedom, replicates have too few distinct values for such percentiles;
    their deviation times Student's quantile is then used. A single group on a side has no known spread: the interval is then
    infinite. Without groups, the percentiles are the usual ones.

    Args:
        replicates: (num_replicates,) from `resampled_by_group` or `resampled_differences`.
        level: coverage.
        of_mean: whether the replicates are of a mean, which a design has, too, whose units are all on one side.
    """
    freedom = freedom_of(design)
    if math.isinf(freedom):
        return percentile_interval(replicates, level=level)
    has_one_side = design.first_of_groups.all() or not design.first_of_groups.any()
    if (design.num_groups if of_mean and has_one_side else groups_on_smaller_side(design)) < 2:
        return -math.inf, math.inf
    quantile = float(scipy.stats.t.isf((1 - level) / 2, freedom))
    if freedom < FEW:
        centre, half = float(replicates.mean()), quantile * float(replicates.std())
        return centre - half, centre + half
    tail = scipy.stats.norm.sf(quantile)
    low, high = np.quantile(replicates, [tail, 1 - tail])
    return float(low), float(high)


def redrawn_totals(columns: scipy.sparse.csr_array, design: Design, count: int, *, seed: int) -> NDArray[np.float64]:
    """Return sums of columns over the units on the first side in each redraw of a design.

    Args:
        columns: (num_units, num_columns) float32, the columns to sum.

    Returns:
        (num_redraws, num_columns).
    """
    if design.given is not None or count * len(design.first) <= KEPT:
        sides = (part.T.astype(np.float32) for part in design.redraws(count, seed=seed))
        return np.concatenate([np.asarray((columns.T @ part).T, dtype=np.float64) for part in sides])
    by_group = design.membership.T @ columns
    strata, chosen = design.strata_of_groups, design.chosen_by_stratum
    return _by_block(
        by_group, strata, count, seed, lambda rng, rows, size: _subsets(rng, len(rows), int(chosen[strata[rows[0]]]), size)
    )


def _by_block(
    columns: scipy.sparse.csr_array,
    strata: NDArray[np.int64],
    count: int,
    seed: int,
    draw: Callable[[np.random.Generator, NDArray[np.int64], int], NDArray[np.float32]],
) -> NDArray[np.float64]:
    """Draw weights for a block of strata at a time and add up the totals; each block has its own seed."""
    total = np.zeros((columns.shape[1], count))
    for number, block in enumerate(_blocks_of(strata, max(1, _BLOCK // count))):
        rng = np.random.default_rng((seed, number))
        weights = np.concatenate([draw(rng, rows, count) for rows in block], axis=1)
        part = columns[np.concatenate(block)].tocoo()
        unit, column = (np.unique(axis, return_inverse=True) for axis in part.coords)  # units and columns that have entries
        shape = (len(column[0]), len(unit[0]))
        rows = scipy.sparse.csr_array((part.data, (column[1], unit[1])), shape=shape, dtype=np.float32)
        total[column[0]] += rows @ np.ascontiguousarray(weights[:, unit[0]].T)
    return total.T


def _blocks_of(strata: NDArray[np.int64], most: int) -> Iterator[list[NDArray[np.int64]]]:
    """Yield the members of strata in blocks of at most `most` units; a larger stratum is a block by itself."""
    order = np.argsort(strata, kind="stable")
    block: list[NDArray[np.int64]] = []
    for rows in np.split(order, np.flatnonzero(np.diff(strata[order])) + 1):
        if block and sum(map(len, block)) + len(rows) > most:
            yield block
            block = []
        block.append(rows)
    yield block


def _resampled(rng: np.random.Generator, count: int, replicates: int) -> NDArray[np.float32]:
    """Return weights (replicates, count) of n - 1 draws from n units, n / (n - 1) each; a single unit keeps weight 1."""
    draws = max(1, count - 1)
    weights = np.empty((replicates, count), dtype=np.float32)
    size = max(1, _BLOCK // count)
    for start in range(0, replicates, size):
        rows = min(size, replicates - start)
        drawn = rng.integers(0, count, size=(rows, draws), dtype=np.uint16 if count <= 2**16 else np.uint32).astype(np.int64)
        drawn += np.arange(rows)[:, None] * count
        weights[start : start + rows] = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
    weights *= count / draws
    return weights


def _subsets(rng: np.random.Generator, count: int, chosen: int, draws: int) -> NDArray[np.float32]:
    """Return indicators (draws, count) of uniformly random subsets of `chosen` units.

    Each unit is first included independently at random. All subsets of a given size are then equally likely, and remain so
    when surplus units are removed, or missing ones added, at random.
    """
    threshold = round(256 * chosen / count)
    inside = np.frombuffer(rng.bytes(draws * count), dtype=np.uint8).reshape(draws, count) < threshold
    surplus = inside.sum(axis=1) - chosen
    rows = np.flatnonzero(surplus)
    while len(rows):
        tried = rng.integers(0, count, size=len(rows))
        hit = inside[rows, tried] == (surplus[rows] > 0)
        changed = rows[hit]
        inside[changed, tried[hit]] ^= True
        surplus[changed] -= np.sign(surplus[changed])
        rows = rows[surplus[rows] != 0]
    return inside.astype(np.float32)
