"""Overlap of two data sets: examples of one that have a copy, or nearly one, in the other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.data.groups import small_version
from memlib.data.images.captions import words_of

if TYPE_CHECKING:
    from memlib.data.stages import Shard

IDENTICAL, ALIKE, CAPTION = "identical", "alike", "caption"
OVERLAP = pa.schema([(name, pa.string()) for name in ("example_id", "other_id", "by")] + [("distance", pa.float64())])
SHINGLE = 4  # words in a row that are compared
BLOCK = 4096  # captions compared with all others at a time


@dataclass(frozen=True)
class Set:
    """One of two data sets."""

    ids: Sequence[str]  #: (num_examples,) ids.
    digests: Sequence[str | None]  #: (num_examples,) digest of each image; None for one that could not be read.
    rows: NDArray[np.int64]  #: (num_examples,) stored rows.
    images: NDArray[np.uint8] | None  #: (num_stored, height, width, channels) uint8; None if the examples are no images.
    captions: Mapping[str, str]  #: caption by id; empty if there are none.

    @classmethod
    def of(
        cls,
        shard: Shard,
        *,
        captions: Mapping[str, str] | None = None,
        only: Collection[str] | None = None,
        looks: bool = True,
    ) -> Set:
        """Return the examples of a shard.

        Args:
            captions: caption by id; None if there are none.
            only: ids of the examples that are taken; None: all.
            looks: whether images are compared by their small versions, too.
        """
        index = shard.index
        if only is not None:
            index = index.filter(pc.is_in(index["example_id"], value_set=pa.array(list(only), pa.string())))
        readable = zip(index["digest"].to_pylist(), index["unreadable"].to_pylist(), strict=True)
        return cls(
            ids=index["example_id"].to_pylist(),
            digests=[None if unreadable else digest for digest, unreadable in readable],
            rows=index["row"].to_numpy(),
            images=shard.images if looks and shard.has_images else None,
            captions=captions or {},
        )


def overlap(first: Set, second: Set, *, near: float, shared: float) -> pa.Table:
    """Return the examples of the first set that have a copy in the second one, with the schema OVERLAP, in order of id.

    A row is identical (equal stored pixels or coordinates; distance 0), alike (small versions of the images differ by at most
    `near` grey levels, the distance), or caption (captions share at least `shared` of their shingles of four words; the
    distance is one minus this share). Of several copies of an example, the nearest of each kind is given.

    Args:
        near: largest root mean square difference in grey levels of images that are alike.
        shared: smallest Jaccard index of the shingles of captions that are alike.
    """
    found = [*_identical(first, second)]
    same = {row["example_id"] for row in found}
    if first.images is not None and second.images is not None:
        found += [row for row in _alike(first, second, near) if row["example_id"] not in same]
    if first.captions and second.captions:
        found += _captions(first.captions, second.captions, shared)
    return pa.Table.from_pylist(sorted(found, key=lambda row: (row["example_id"], row["by"])), schema=OVERLAP)


def _row(name: str, other: str, by: str, distance: float) -> dict[str, Any]:
    return {"example_id": name, "other_id": other, "by": by, "distance": distance}


def _identical(first: Set, second: Set) -> Iterator[dict[str, Any]]:
    known: dict[str, str] = {}
    for name, digest in zip(second.ids, second.digests, strict=True):
        if digest:
            known.setdefault(digest, name)
    for name, digest in zip(first.ids, first.digests, strict=True):
        if digest and digest in known:
            yield _row(name, known[digest], IDENTICAL, 0.0)


def _alike(first: Set, second: Set, near: float) -> Iterator[dict[str, Any]]:
    from memlib.stats.neighbors import nearest_neighbors  # loads PyTorch

    small = []
    for one in (first, second):
        assert one.images is not None
        kept = [place for place, digest in enumerate(one.digests) if digest]
        versions = [small_version(one.images[one.rows[place]]) for place in kept]
        small.append((kept, np.stack(versions) if versions else np.zeros((0, 1), dtype=np.float32)))
    (asked, queries), (among, base) = small
    if not asked or not among:
        return
    nearest, distances = nearest_neighbors(queries, [(np.arange(len(among)), base)], 1)
    apart = np.sqrt(distances[:, 0] / base.shape[1])
    for place in np.flatnonzero(apart <= near).tolist():
        yield _row(first.ids[asked[place]], second.ids[among[int(nearest[place, 0])]], ALIKE, float(apart[place]))


def _captions(first: Mapping[str, str], second: Mapping[str, str], shared: float) -> Iterator[dict[str, Any]]:
    names, other_names = list(first), list(second)
    for row, column, index in alike_captions(list(first.values()), list(second.values()), shared):
        order = np.lexsort((column, -index, row))
        for place in order[np.unique(row[order], return_index=True)[1]].tolist():
            yield _row(names[row[place]], other_names[column[place]], CAPTION, float(1 - index[place]))


def alike_captions(
    first: Sequence[str], second: Sequence[str], shared: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]]:
    """Yield the pairs of captions that have enough shingles in common, for one block of the first captions after another.

    Args:
        first, second: captions; one without words is like no other.
        shared: smallest Jaccard index of the shingles of two captions that are alike.

    Yields:
        (num_pairs,) rows of the first captions, rows of the second ones, and the Jaccard index.
    """
    numbers: dict[tuple[str, ...], int] = {}
    ours, theirs = (_shingles(captions, numbers) for captions in (first, second))
    ones, others = (
        scipy.sparse.csr_array((np.ones(len(column)), (row, column)), shape=(len(captions), max(len(numbers), 1)))
        for (row, column), captions in ((ours, first), (theirs, second))
    )
    counts = np.asarray(ones.sum(axis=1)), np.asarray(others.sum(axis=1))
    for start in range(0, len(first), BLOCK):
        common = scipy.sparse.coo_array(ones[start : start + BLOCK] @ others.T)
        row, column = common.coords[0] + start, common.coords[1]
        index = common.data / (counts[0][row] + counts[1][column] - common.data)
        kept = index >= shared
        yield row[kept].astype(np.int64), column[kept].astype(np.int64), index[kept]


def _shingles(captions: Any, numbers: dict[tuple[str, ...], int]) -> tuple[list[int], list[int]]:
    """Return caption and number of each different shingle; short captions are one shingle, and empty ones none."""
    rows, columns = [], []
    for place, caption in enumerate(captions):
        words = words_of(caption)
        found = (
            {tuple(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))} if words else set()
        )
        for shingle in sorted(found):
            rows.append(place)
            columns.append(numbers.setdefault(shingle, len(numbers)))
    return rows, columns
