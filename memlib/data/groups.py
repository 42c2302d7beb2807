"""Groups of examples that belong to one person or are copies of one another: a random split keeps each group together."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray
from PIL import Image

from memlib.data.id_files import named_digest, said_of_examples
from memlib.data.images.stored import are_images
from memlib.data.splits import LEFT_OUT
from memlib.errors import UserError
from memlib.specs import GroupSpec

SMALL = 16  # side of the small versions that are compared
NEIGHBORS = 16  # nearest neighbours of each image that are considered as copies
ALIKE = 2.0  # root mean square difference, in grey levels, of small versions below which images look alike
ASKED, AMONG = 500, 10_000  # images in a check for copies: queries per role, images searched


def groups_of(
    entries: Sequence[Mapping[str, Any]], images: NDArray[np.uint8] | None, spec: GroupSpec | None
) -> NDArray[np.int64]:
    """Assign a group number to every example.

    Args:
        entries: rows of tables.INDEX.
        images: (num_stored, height, width, channels) uint8, needed for `near`; None if images are not compared.
        spec: the rules; None gives every example a group of its own.

    Returns:
        (num_examples,) int64 group numbers, counted from 0 in order of first appearance.

    Raises:
        UserError: when a pattern or file matches no example, the file cannot be read, or `near` is set for points.
    """
    if spec is None:
        return np.arange(len(entries))
    ids = [str(entry["example_id"]) for entry in entries]
    links = links_by_name(_by_pattern(ids, spec.pattern)) if spec.pattern is not None else []
    if spec.path is not None:
        links += links_by_name(_by_file(ids, spec.path))
    if spec.near is not None:
        if images is None or not are_images(images):
            raise UserError("group.near compares images, and these examples are points; use pattern or path")
        links += near_links(entries, images, spec.near)
    if spec.identical:
        links += links_by_name([entry["digest"] or None for entry in entries])
    return _components(len(entries), links)


def groups_digest(spec: GroupSpec | None) -> dict[str, str]:
    """Return the digest of the file of groups as stage inputs; an empty dict if there is no file."""
    if spec is None or spec.path is None:
        return {}
    return {"groups": named_digest(spec.path, setting="group.path")}


def groups_in(splits: pa.Table) -> NDArray[np.int64]:
    """Assign a group number to each row of a splits table, from its group column.

    A row without a group gets a group of its own.

    Args:
        splits: tables.SPLITS, of any version.

    Returns:
        (num_rows,) int64.
    """
    names = splits["group"].to_pylist() if "group" in splits.column_names else [None] * splits.num_rows
    places: dict[Any, int] = {}
    return np.array([places.setdefault(name if name is not None else (row,), len(places)) for row, name in enumerate(names)])


def small_version(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the grey levels (256,) of an image (height, width, channels) at 16 x 16, which are used to find copies."""
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("L")
    return np.asarray(picture.resize((SMALL, SMALL), Image.Resampling.BOX), dtype=np.float32).reshape(-1)


def near_links(entries: Sequence[Mapping[str, Any]], images: NDArray[np.uint8], near: float) -> list[tuple[int, int]]:
    """Return pairs of readable examples whose small versions differ by at most `near`, among nearest neighbours."""
    from memlib.stats.neighbors import nearest_neighbors

    rows = [i for i, entry in enumerate(entries) if entry["unreadable"] is None]
    if len(rows) < 2:
        return []
    small = np.stack([small_version(images[entries[i]["row"]]) for i in rows])
    count = min(NEIGHBORS + 1, len(rows))
    closest, distances = nearest_neighbors(small, [(np.arange(len(rows)), small)], count)
    apart = np.sqrt(distances / small.shape[1])
    return [(rows[i], rows[int(j)]) for i in range(len(rows)) for j in closest[i][apart[i] <= near] if i != j]


def near_copies(splits: pa.Table, images: NDArray[np.uint8]) -> list[tuple[str, str]]:
    """Return pairs of images that look alike and have different roles: for each queried image, its nearest such neighbour.

    This is a spot check, not a full search: at most 500 images of each role are compared with at most 10,000 images of all
    roles, both evenly spaced.

    Args:
        splits: splits table (tables.SPLITS).
        images: (num_images, height, width, channels) as stored.

    Returns:
        pairs of example ids whose small versions are at most `ALIKE` grey levels apart.
    """
    from memlib.stats.neighbors import nearest_neighbors

    used = splits.filter(pc.field("role") != LEFT_OUT)
    ids, rows = used["example_id"], used["row"].to_numpy()
    roles = pc.rank(used["role"].combine_chunks(), tiebreaker="dense").to_numpy()  # in order of their names
    if len(np.unique(roles)) < 2:
        return []
    queried = np.concatenate([_evenly(np.flatnonzero(roles == role), ASKED) for role in np.unique(roles)])
    among = _evenly(np.arange(len(ids)), AMONG)
    small = {int(place): small_version(images[rows[place]]) for place in {*queried.tolist(), *among.tolist()}}
    base = np.stack([small[place] for place in among.tolist()])
    queries = np.stack([small[place] for place in queried.tolist()])
    count = min(NEIGHBORS + 1, len(among))
    closest, distances = nearest_neighbors(queries, [(among, base)], count)
    apart = np.sqrt(distances / base.shape[1])
    copies: dict[frozenset[int], tuple[str, str]] = {}
    for place, others, far in zip(queried.tolist(), closest, apart, strict=True):
        other = next((int(o) for o, f in zip(others, far, strict=True) if f <= ALIKE and roles[o] != roles[place]), None)
        if other is not None:
            copies.setdefault(frozenset((place, other)), (ids[place].as_py(), ids[other].as_py()))
    return list(copies.values())


def _evenly(places: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = places[np.unique(np.linspace(0, len(places) - 1, min(most, len(places))).astype(int))]
    return chosen


def joined(groups: NDArray[np.int64], links: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Merge the groups that are joined by a link.

    Args:
        groups: (num_examples,) int.
    """
    first: dict[int, int] = {}
    members = [(first.setdefault(group, i), i) for i, group in enumerate(groups.tolist())]
    return _components(len(groups), [*members, *links])


def _by_pattern(ids: Sequence[str], pattern: str) -> list[str | None]:
    matches = [re.search(pattern, name) for name in ids]
    if not any(matches):
        raise UserError(f"group.pattern {pattern!r} matches no example id; ids look like {ids[0]!r}")
    return [None if match is None else match.group(1 if match.re.groups else 0) for match in matches]


def _by_file(ids: Sequence[str], path: str) -> list[str | None]:
    known = said_of_examples(path, "group", setting="group.path")
    if not known.keys() & set(ids):
        raise UserError(f"{path} names none of the {len(ids)} examples; ids look like {ids[0]!r}")
    if others := sorted(known.keys() - set(ids)):
        warnings.warn(
            f"{len(others)} of the {len(known)} ids in {path} are no example's, such as {others[0]!r} (ids look like "
            f"{ids[0]!r}); they group nothing",
            stacklevel=2,
        )
    return [known.get(name) for name in ids]


def links_by_name(names: Sequence[str | None]) -> list[tuple[int, int]]:
    """Return a link from each named example to the first one of that name."""
    first: dict[str, int] = {}
    return [(first.setdefault(name, i), i) for i, name in enumerate(names) if name is not None]


def _components(count: int, links: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    if not links:
        return np.arange(count)
    a, b = np.array(links).T
    graph = scipy.sparse.coo_array((np.ones(len(a)), (a, b)), shape=(count, count))
    components: NDArray[np.int64] = scipy.sparse.csgraph.connected_components(graph, directed=False)[1].astype(np.int64)
    return components
