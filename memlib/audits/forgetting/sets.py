"""Disjoint named sets of examples: the query set D_Q, the calibration set D_C, and any other sets of a mix.

D_C must not contain any image of D_Q (Liu 2020, section 3.3). Equal pixels are found by their digest; near copies (another
size, another compression) by the distance of small versions of the images. D_Q is drawn at random from a pool U of the
provider's examples, together with examples that are withheld from all models and, if there are any, examples known to be in
the model. Examples of other sets that are copies of examples in U are removed from those sets and listed.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.data.groups import groups_of, joined, near_links, small_version
from memlib.data.splits import LEFT_OUT, assert_disjoint, column, select
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.specs import GroupSpec, SetSpec
from memlib.specs.data import POOL, QUERY
from memlib.stats.randomization import home_labels
from memlib.tables import SPLITS

NAMED = 3

Entries = Sequence[Mapping[str, Any]]


def draw_sets(
    index: pa.Table,
    images: NDArray[np.uint8],
    specs: Mapping[str, SetSpec],
    *,
    seed: int,
    near: float | None,
    group: GroupSpec | None = None,
) -> pa.Table:
    """Assign a role to every example of the index, class by class: the name of its set, or left_out.

    The sets of the pool U are drawn together: first U, then the assignment of its groups (persons, near copies) to D_Q, the
    known and the withheld examples, with all assignments equally likely. Sets of the pool that come from different parts were
    drawn by the owner of the data, example by example; groups of several examples are left out of them.

    Args:
        index: tables.INDEX.
        images: (num_stored, height, width, channels) uint8, stored images of the shard.
        specs: the sets in order; `query` and `calibration` are among them.
        seed: seed of the draw, which depends only on the ids of each class and part.
        near: root mean square difference, in grey levels of 16 x 16 versions, below which two images are copies; None
            compares for equal pixels only.
        group: rules that define groups of examples, which are never separated.

    Returns:
        tables.SPLITS, sorted by example id; `reason` names the example of which a removed example is a copy.

    Raises:
        UserError: when a class cannot fill a set, D_Q has only one class, or all examples of a class in a set are copies.
    """
    entries = index.to_pylist()
    rows = [_row(entry) for entry in entries]
    parts = [entry["example_id"].split("/", 1)[0] for entry in entries]
    blocks = groups_of(entries, None, group)
    pool = [name for name in specs if name in POOL]
    together = len({specs[name].part for name in pool}) == 1
    for name, spec in specs.items():
        if spec.part is not None and spec.part not in parts:
            raise UserError(
                f"sets.{name} is drawn from part {spec.part!r}, but the parts are {', '.join(sorted(set(parts)))}"
            )
        if together and name == pool[0]:
            _draw_pool(entries, rows, parts, blocks, {each: specs[each] for each in pool}, seed=seed)
        elif not (together and name in pool):
            _draw_set(entries, rows, parts, name, spec, seed=seed)
    blocks = _join_copies(entries, rows, images, blocks, near=near)
    if together:
        _draw_sides(entries, rows, blocks, {each: specs[each] for each in pool}, seed=seed)
    else:
        _leave_out_groups(rows, blocks)
    for i, original in copies_of_pool(entries, rows, images, blocks, near=near).items():
        rows[i] |= {"role": LEFT_OUT, "reason": f"in {rows[i]['role']}, {original}"}
    _name_groups(entries, rows, blocks)
    table = pa.Table.from_pylist(rows, schema=SPLITS.arrow)
    _check(table, specs)
    return table


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    reason = "surplus" if entry["unreadable"] is None else f"unreadable: {entry['unreadable']}"
    base: dict[str, Any] = dict.fromkeys(SPLITS.arrow.names)
    base |= {name: entry[name] for name in ("example_id", "row", "label", "class_name")}
    return base | {"role": LEFT_OUT, "reason": reason}


def _free(entries: Entries, rows: Entries, parts: Sequence[str], part: str | None, label: int) -> list[int]:
    return [
        i
        for i, (entry, where) in enumerate(zip(entries, parts, strict=True))
        if entry["label"] == label and rows[i]["role"] == LEFT_OUT and not entry["unreadable"] and part in (None, where)
    ]


def _labels(entries: Entries) -> list[int]:
    return sorted({entry["label"] for entry in entries})


def _draw_set(
    entries: Entries, rows: list[dict[str, Any]], parts: Sequence[str], name: str, spec: SetSpec, *, seed: int
) -> None:
    for label in _labels(entries):
        free = _free(entries, rows, parts, spec.part, label)
        shuffled = np.random.default_rng(derive_seed(seed, "sets", spec.part or "", label)).permutation(len(free))
        wanted = len(free) if spec.per_class is None else spec.per_class
        _refuse_too_few(entries, name, label, wanted, len(free))
        for i in shuffled[:wanted]:
            rows[free[i]] |= {"role": name, "reason": None}


def _draw_pool(
    entries: Entries,
    rows: list[dict[str, Any]],
    parts: Sequence[str],
    blocks: NDArray[np.int64],
    pool: Mapping[str, SetSpec],
    *,
    seed: int,
) -> None:
    """Draw U in whole groups, class by class; D_Q is drawn from it afterwards."""
    part = next(iter(pool.values())).part
    free = [i for label in _labels(entries) for i in _free(entries, rows, parts, part, label)]
    numbers = np.unique(blocks[free], return_inverse=True)[1]
    homes = home_labels(np.array([entries[i]["label"] for i in free]), numbers)[numbers]
    for label in _labels(entries):
        of_class = [i for i, home in zip(free, homes, strict=True) if home == label]
        sizes = [spec.per_class for spec in pool.values()]
        given = sum(size for size in sizes if size is not None)
        _refuse_too_few(entries, " and ".join(pool), label, given + (None in sizes), len(of_class))
        wanted = len(of_class) if None in sizes else given
        taken = 0
        for members in _shuffled_blocks(of_class, blocks, derive_seed(seed, "pool", part or "", label)):
            if taken >= wanted:
                break
            taken += len(members)
            for i in members:
                rows[i] |= {"role": next(iter(pool)), "reason": None}


def _shuffled_blocks(members: Sequence[int], blocks: NDArray[np.int64], seed: int) -> Iterator[list[int]]:
    by_block: dict[int, list[int]] = {}
    for i in members:
        by_block.setdefault(int(blocks[i]), []).append(i)
    groups = list(by_block.values())
    for place in np.random.default_rng(seed).permutation(len(groups)):
        yield groups[place]


def _draw_sides(
    entries: Entries, rows: list[dict[str, Any]], blocks: NDArray[np.int64], pool: Mapping[str, SetSpec], *, seed: int
) -> None:
    """Draw the set of each group of U, within the class of most of the group's examples."""
    drawn = [i for i, row in enumerate(rows) if row["role"] in pool]
    numbers = np.unique(blocks[drawn], return_inverse=True)[1]
    homes = home_labels(np.array([entries[i]["label"] for i in drawn]), numbers)[numbers]
    for label in sorted(set(homes.tolist())):
        of_class = [i for i, home in zip(drawn, homes, strict=True) if home == label]
        shuffled = list(_shuffled_blocks(of_class, blocks, derive_seed(seed, "sides", int(label))))
        for name, start, end in _shares(pool, len(shuffled), len(of_class)):
            for i in itertools.chain.from_iterable(shuffled[start:end]):
                rows[i] |= {"role": name}


def _shares(pool: Mapping[str, SetSpec], num_groups: int, num_examples: int) -> Iterator[tuple[str, int, int]]:
    """Yield (set, first group, end) in proportion to the sets' sizes; a set without a size gets the remaining groups."""
    sizes = {name: spec.per_class for name, spec in pool.items()}
    given = sum(size for size in sizes.values() if size is not None)
    whole = max(given, num_examples) if None in sizes.values() else given
    start, total = 0, 0.0
    for name, size in sizes.items():
        total += whole - given if size is None else size
        end = round(num_groups * total / whole)
        yield name, start, end
        start = end


def _refuse_too_few(entries: Entries, name: str, label: int, wanted: int, free: int) -> None:
    if wanted > free:
        class_name = next(entry["class_name"] for entry in entries if entry["label"] == label)
        raise UserError(f"sets.{name} needs {wanted} examples of class {class_name!r}, but only {free} are left")


def _join_copies(
    entries: Entries,
    rows: Entries,
    images: NDArray[np.uint8],
    blocks: NDArray[np.int64],
    *,
    near: float | None,
) -> NDArray[np.int64]:
    """Merge the groups of examples of the pool that are copies of one another."""
    pool = [i for i, row in enumerate(rows) if row["role"] in POOL]
    first: dict[str, int] = {}
    links = [(first.setdefault(entries[i]["digest"], i), i) for i in pool]
    if near is not None:
        near_pairs = near_links([entries[i] for i in pool], images, near)
        links += [(pool[a], pool[b]) for a, b in near_pairs]
    return joined(blocks, links)


def _leave_out_groups(rows: list[dict[str, Any]], blocks: NDArray[np.int64]) -> None:
    """Leave out every group of several examples, in whatever sets, from a pool that was drawn by the owner of the data.

    The owner drew single examples, not groups: a whole group is less likely than a single example to fall into one set.
    """
    members: dict[int, int] = {}
    for row, block in zip(rows, blocks.tolist(), strict=True):
        if row["role"] in POOL:
            members[block] = members.get(block, 0) + 1
    for row, block in zip(rows, blocks.tolist(), strict=True):
        if row["role"] in POOL and members[block] > 1:
            row |= {
                "role": LEFT_OUT,
                "reason": f"in {row['role']}, one of several examples of a group that were drawn singly",
            }


def _name_groups(entries: Entries, rows: list[dict[str, Any]], blocks: NDArray[np.int64]) -> None:
    """Record the groups of the pool; each is named after the id of its first example."""
    members: dict[int, list[int]] = {}
    for i, (row, block) in enumerate(zip(rows, blocks.tolist(), strict=True)):
        if row["role"] in POOL:
            members.setdefault(block, []).append(i)
    for group in members.values():
        for i in group if len(group) > 1 else ():
            rows[i]["group"] = entries[group[0]]["example_id"]


def copies_of_pool(
    entries: Entries,
    rows: Entries,
    images: NDArray[np.uint8],
    blocks: NDArray[np.int64],
    *,
    near: float | None,
) -> dict[int, str]:
    """Find examples outside the pool that are copies of an example in it or belong to one of its groups.

    Returns:
        position in `entries` of each such example, with a description that names the example of the pool.
    """
    from memlib.stats.neighbors import nearest_neighbors

    pool = [i for i, row in enumerate(rows) if row["role"] in POOL]
    others = [i for i, row in enumerate(rows) if row["role"] not in (*POOL, LEFT_OUT)]
    known = {entries[i]["digest"]: entries[i]["example_id"] for i in pool}
    copies = {i: f"a copy of {known[entries[i]['digest']]}" for i in others if entries[i]["digest"] in known}
    named = {int(blocks[i]): entries[i]["example_id"] for i in pool}
    copies |= {i: f"of the group of {named[int(blocks[i])]}" for i in others if i not in copies and int(blocks[i]) in named}
    rest = [i for i in others if i not in copies]
    if near is None or not pool or not rest:
        return copies
    small = {i: small_version(images[entries[i]["row"]]) for i in (*pool, *rest)}
    shard = (np.arange(len(pool)), np.stack([small[i] for i in pool]))
    closest, distances = nearest_neighbors(np.stack([small[i] for i in rest]), [shard], 1)
    for i, neighbor, distance in zip(rest, closest[:, 0], distances[:, 0], strict=True):
        apart = float(np.sqrt(distance / small[i].size))
        if apart < near:
            copies[i] = f"a near copy of {entries[pool[neighbor]]['example_id']} ({apart:.2f} grey levels apart)"
    return copies


def _check(table: pa.Table, specs: Mapping[str, SetSpec]) -> None:
    query = select(table, QUERY)
    if len(set(query["label"].to_pylist())) < 2:
        raise UserError(
            "D_Q has one class, so confidences say nothing about what a model has learnt; use two or more classes"
        )
    for name in (name for name in specs if name in POOL):
        lost = set(select(table, *POOL)["label"].to_pylist()) - set(select(table, name)["label"].to_pylist())
        if lost:
            raise UserError(
                f"sets.{name} has no example of {len(lost)} of the classes in D_Q's pool; give each set of the pool enough "
                "examples of every class (per_class), or use fewer classes"
            )
    for name in specs:
        members = select(table, name)
        lost = set(query["label"].to_pylist()) - set(members["label"].to_pylist())
        if lost:
            reasons = [r for r in table["reason"].to_pylist() if r is not None and r.startswith(f"in {name}, ")]
            seen = f"after {len(reasons)} copies of D_Q were removed ({'; '.join(reasons[:NAMED])})" if reasons else "at all"
            raise UserError(
                f"sets.{name} has no example of {len(lost)} of D_Q's classes {seen}; add examples that are not in D_Q"
            )
    assert_disjoint(table, {*specs, LEFT_OUT})


def mix_members(splits: pa.Table, mix: Mapping[str, float], *, seed: int) -> pa.Table:
    """Return the rows of the splits table that belong to a mix: a random share of every class of each set.

    Args:
        splits: result of `draw_sets`.
        mix: share of each set by its name, in (0, 1].
    """
    chosen = []
    for name, share in sorted(mix.items()):
        members = select(splits, name)
        labels = column(members, "label")
        for label in np.unique(labels):
            places = np.flatnonzero(labels == label)
            count = max(1, round(share * len(places)))
            drawn = np.random.default_rng(derive_seed(seed, "mix", name, int(label))).permutation(places)[:count]
            chosen += [members["example_id"][int(place)].as_py() for place in drawn]
    wanted = set(chosen)
    return splits.filter(pa.array([name in wanted for name in splits["example_id"].to_pylist()], type=pa.bool_()))
