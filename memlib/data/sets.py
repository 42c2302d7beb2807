"""Named sets of examples that share nothing: query set D_Q, calibration set D_C, and whatever else a mix may hold.

D_C may hold no image of D_Q (Liu 2020, section 3.3). Equal pixels are found by their digest; near copies (another
size, another compression) by the distance of small versions of the images. Whatever D_C or another set shares with
D_Q is taken out of that set and listed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from memlib.data.splits import LEFT_OUT, assert_disjoint, column, select
from memlib.errors import UserError
from memlib.identity import derive_seed
from memlib.specs import SetSpec
from memlib.stats.neighbors import nearest_neighbors
from memlib.tables import SPLITS

QUERY, CALIBRATION, PROVIDER = "query", "calibration", "provider"
SMALL = 16  # side of the versions that are compared
NAMED = 3


def draw_sets(
    index: pa.Table, images: NDArray[np.uint8], specs: Mapping[str, SetSpec], *, seed: int, near: float | None
) -> pa.Table:
    """Gives every example of the index the name of its set as role, class by class, or left_out.

    Args:
        index: tables.INDEX.
        images: (num_stored, height, width, channels) uint8, the shard's.
        specs: the sets in order; `query` and `calibration` are among them.
        seed: of the draw; it depends on the ids of each class and part alone.
        near: root mean square difference, in grey levels of versions of 16 x 16, below which two images are copies;
            None looks for equal pixels alone.

    Returns:
        tables.SPLITS, sorted by example id; `reason` says of what a removed example is a copy.

    Raises:
        UserError: when a class cannot fill a set, D_Q has one class, or another set is nothing but copies of D_Q.
    """
    entries = index.to_pylist()
    rows = [_row(entry) for entry in entries]
    parts = [entry["example_id"].split("/", 1)[0] for entry in entries]
    for name, spec in specs.items():
        if spec.part is not None and spec.part not in parts:
            raise UserError(
                f"sets.{name} is drawn from part {spec.part!r}, but the parts are {', '.join(sorted(set(parts)))}"
            )
        for label in sorted({entry["label"] for entry in entries}):
            free = [
                i
                for i, (entry, part) in enumerate(zip(entries, parts, strict=True))
                if entry["label"] == label and rows[i]["role"] == LEFT_OUT and not entry["unreadable"]
                and spec.part in (None, part)
            ]  # fmt: skip
            shuffled = np.random.default_rng(derive_seed(seed, "sets", spec.part or "", label)).permutation(len(free))
            wanted = len(free) if spec.per_class is None else spec.per_class
            if wanted > len(free):
                class_name = next(entry["class_name"] for entry in entries if entry["label"] == label)
                raise UserError(f"sets.{name} needs {wanted} examples of class {class_name!r}, but {len(free)} are left")
            for i in shuffled[:wanted]:
                rows[free[i]] |= {"role": name, "reason": None}
    for i, original in copies_of_query(entries, rows, images, near=near).items():
        rows[i] |= {"role": LEFT_OUT, "reason": f"in {rows[i]['role']}, {original}"}
    table = pa.Table.from_pylist(rows, schema=SPLITS.arrow)
    _check(table, specs)
    return table


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    reason = "surplus" if entry["unreadable"] is None else f"unreadable: {entry['unreadable']}"
    base = {name: entry[name] for name in ("example_id", "row", "label", "class_name")}
    return base | dict.fromkeys(("crop_x0", "crop_y0", "crop_x1", "crop_y1")) | {"role": LEFT_OUT, "reason": reason}


def copies_of_query(
    entries: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    images: NDArray[np.uint8],
    *,
    near: float | None,
) -> dict[int, str]:
    """Positions of examples of other sets that are copies of one in D_Q, and of which."""
    query = [i for i, row in enumerate(rows) if row["role"] == QUERY]
    others = [i for i, row in enumerate(rows) if row["role"] not in (QUERY, LEFT_OUT)]
    known = {entries[i]["digest"]: entries[i]["example_id"] for i in query}
    found = {i: f"a copy of {known[entries[i]['digest']]}" for i in others if entries[i]["digest"] in known}
    rest = [i for i in others if i not in found]
    if near is None or not query or not rest:
        return found
    small = {i: _small(images[entries[i]["row"]]) for i in (*query, *rest)}
    shard = (np.arange(len(query)), np.stack([small[i] for i in query]))
    closest, distances = nearest_neighbors(np.stack([small[i] for i in rest]), [shard], 1)
    for i, neighbor, distance in zip(rest, closest[:, 0], distances[:, 0], strict=True):
        apart = float(np.sqrt(distance / small[i].size))
        if apart < near:
            found[i] = f"a near copy of {entries[query[neighbor]]['example_id']} ({apart:.2f} grey levels apart)"
    return found


def _small(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("L")
    return np.asarray(picture.resize((SMALL, SMALL), Image.Resampling.BOX), dtype=np.float32).reshape(-1)


def _check(table: pa.Table, specs: Mapping[str, SetSpec]) -> None:
    query = select(table, QUERY)
    if len(set(query["label"].to_pylist())) < 2:
        raise UserError("D_Q has one class: its confidences tell nothing of what a model has learnt; give it two or more")
    for name in specs:
        members = select(table, name)
        lost = set(query["label"].to_pylist()) - set(members["label"].to_pylist())
        if lost:
            reasons = [r for r in table["reason"].to_pylist() if r is not None and r.startswith(f"in {name}, ")]
            seen = (
                f"after {len(reasons)} copies of D_Q were taken out ({'; '.join(reasons[:NAMED])})" if reasons else "at all"
            )
            raise UserError(f"sets.{name} has no example of {len(lost)} of D_Q's classes {seen}; it must overlap D_Q nowhere")
    assert_disjoint(table, {*specs, LEFT_OUT})


def mix_members(splits: pa.Table, mix: Mapping[str, float], *, seed: int) -> pa.Table:
    """The rows of the splits that a mix holds: of each set a share of every class, drawn at random.

    Args:
        splits: what draw_sets returns.
        mix: share of each set by its name, in (0, 1].
        seed: of the draws.
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
