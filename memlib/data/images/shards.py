"""Shards: a source is decoded once into a memory-mapped uint8 array and an index.

`images.npy` is (num_examples, size, size, channels) uint8, or (num_examples, dim) float32 for points; if the recipe asks for
encoded storage, `images.arrow` holds one PNG or JPEG file per image. `index.parquet` (tables.INDEX) has one row per image,
sorted by example id, with label, boxes and the picture's rectangle in stored pixels. Training, embedding and every sweep
read this shard and never the source. Images of a large source stay in the blocks in which they were decoded; `blocks.json`
names these artifacts. See `memlib.data.images.stored` for reading images.
"""

import hashlib
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from PIL import Image

from memlib.data.examples import Example, Source, UnreadableImage
from memlib.data.images.stored import ENCODED, IMAGES, Storing, storing
from memlib.errors import DataError
from memlib.specs import DataSpec
from memlib.tables import INDEX, read_table, write_table

INDEX_FILE, BLOCKS_FILE = "index.parquet", "blocks.json"
WINDOWS = "windows.npy"  # windows of a text; images.npy in earlier stores
PAD_GREY = 128
CUT = "a box that reached outside was cut"
OUTSIDE_PIXELS, OUTSIDE_SHARE = 2, 0.01  # tolerance for boxes beyond the image: the larger of pixels and share of a side
TOGETHER, AHEAD = 16, 16  # images per task of a thread; number of tasks running or waiting at a time
NAMED = 5  # images named in an error


@dataclass(frozen=True)
class Written:
    """Index and oddities of a decoded source."""

    index: pa.Table  #: the index (tables.INDEX) of the source.
    oddities: Mapping[str, int]  #: number of images in which each oddity was corrected, by a description of the oddity.


def write_shard(
    source: Source,
    spec: DataSpec,
    folder: Path,
    *,
    rows: range | None = None,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Decode all images of `source`, or a block of them, into `folder`.

    Args:
        spec: stored size, resizing, and treatment of unreadable images.
        folder: folder for images.npy, or images.arrow, and index.parquet.
        rows: rows of the block; its index numbers them from 0.
        threads: number of images decoded in parallel.
        progress: called with (images done, total images).

    Raises:
        DataError: for unreadable images and boxes far outside their image (unless these images are left out),
            labels out of range, and repeated ids; the message names the first few.
    """
    chosen = range(len(source)) if rows is None else rows
    count = len(chosen)
    if count == 0:
        raise DataError("the source has no images")
    dim: int | None = getattr(source, "point_dim", None)
    entries: list[dict[str, Any]] = []
    broken: list[UnreadableImage] = []
    oddities: Counter[str] = Counter()
    shape = (count, spec.image_size, spec.image_size, spec.channels) if dim is None else (count, dim)
    with storing(folder, shape, spec.storage if dim is None else "raw") as storage:
        for position, item in enumerate(_decoded(source, chosen, spec, dim, storage, threads)):
            if isinstance(item, UnreadableImage):
                broken.append(item)
                entries.append(_unreadable_row(item, source.class_names))
                storage.add(b"")
            else:
                entries.append(item.row)
                oddities.update(item.oddities)
                storage.add(item.file)
            if progress is not None:
                progress(position + 1, count)
    if broken and spec.unreadable == "error":
        names = "; ".join(str(error) for error in broken[:NAMED])
        more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise DataError(f"{len(broken)} unreadable images: {names}{more}. Repair them, or set data.unreadable to leave_out")
    if rows is None:
        _refuse_empty_classes(source.class_names, {entry["class_name"] for entry in entries})
    return Written(_write_index(entries, folder), oddities)


def join_blocks(indexes: Sequence[pa.Table], class_names: Sequence[str], folder: Path) -> pa.Table:
    """Write the index of a shard whose images stay in blocks, and return it.

    Args:
        indexes: the indexes (tables.INDEX) of the blocks, in the order of the source.
        class_names: class names of the source.
        folder: folder for index.parquet.

    Raises:
        DataError: for classes without images, and repeated ids.
    """
    before = np.cumsum([0, *(index.num_rows for index in indexes)])
    place = indexes[0].schema.get_field_index("row")
    moved = [
        index.set_column(place, "row", pa.array(index["row"].to_numpy() + start))
        for index, start in zip(indexes, before, strict=False)
    ]
    table = pa.concat_tables(moved).sort_by("example_id").combine_chunks()
    ids = table["example_id"]
    twice = pc.equal(ids.slice(1), ids.slice(0, len(ids) - 1)).to_numpy()
    if twice.any():
        raise DataError(f"two examples are called {ids[int(twice.argmax())].as_py()!r}; ids must be unique")
    _refuse_empty_classes(class_names, set(pc.unique(table["class_name"]).to_pylist()))
    write_table(table, INDEX, folder / INDEX_FILE)
    return table


def _refuse_empty_classes(class_names: Sequence[str], found: Collection[str]) -> None:
    empty = sorted(set(class_names) - set(found))
    if empty:
        raise DataError(
            f"class {empty[0]!r} has no image ({len(empty)} empty classes in all); every class needs at least one"
        )


def examples_file(names: Collection[str]) -> str:
    """Return the name of the artifact's examples file: windows of a text, encoded images, or raw images and points."""
    return next((name for name in (WINDOWS, ENCODED) if name in names), IMAGES)


@dataclass(frozen=True)
class _Item:
    """A decoded image or point: its encoded file (or b""), its row of the index, and the oddities that were corrected."""

    file: bytes
    row: dict[str, Any]
    oddities: Sequence[str]


def _decoded(
    source: Source, rows: range, spec: DataSpec, dim: int | None, storage: Storing, threads: int
) -> Iterator[_Item | UnreadableImage]:
    names = source.class_names

    def read(index: int) -> _Item | UnreadableImage:
        try:
            example = _fitted(source[index])
        except UnreadableImage as error:
            return error
        _check_example(example, names, dim)
        stored, row = _stored(example, spec, names) if dim is None else _point(example, names)
        return _Item(storage.keep(rows.index(index), stored), row, example.oddities)

    def read_some(some: range) -> list[_Item | UnreadableImage]:
        return [read(index) for index in some]

    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[list[_Item | UnreadableImage]]] = deque()
        try:
            for start in range(0, len(rows), TOGETHER):
                waiting.append(pool.submit(read_some, rows[start : start + TOGETHER]))
                if len(waiting) == AHEAD:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:  # after an error, the remaining images need not be read
            for left in waiting:
                left.cancel()


def _fitted(example: Example) -> Example:
    """Clip boxes that reach slightly outside the image, and return the example.

    Raises:
        UnreadableImage: for boxes that reach further outside or are empty, and so must belong to another picture.
    """
    if not len(example.boxes):
        return example
    height, width = example.image.shape[:2]
    ends = np.array([width, height] * 2)
    cut = np.clip(example.boxes, 0, ends)
    beyond, room = np.abs(cut - example.boxes), np.maximum(OUTSIDE_PIXELS, OUTSIDE_SHARE * ends)
    for box, far, (x0, y0, x1, y1) in zip(example.boxes.tolist(), (beyond > room).any(axis=1), cut.tolist(), strict=True):
        if far or x0 >= x1 or y0 >= y1:
            seen = f"box ({', '.join(map(str, box))}) in an image of {width} x {height}"
            raise UnreadableImage(example.example_id, example.label, f"{seen}; boxes are x0, y0, x1, y1 inside the image")
    return replace(example, boxes=cut, oddities=(*example.oddities, CUT)) if beyond.any() else example


def _check_example(example: Example, class_names: list[str], dim: int | None) -> None:
    name = example.example_id
    if not 0 <= example.label < len(class_names):
        raise DataError(f"example {name} has label {example.label}, but there are {len(class_names)} classes")
    if dim is not None:
        if example.image.shape != (dim,) or not np.isfinite(example.image).all():
            raise DataError(f"example {name}: expected a point of {dim} finite numbers, not {example.image!r}")
        return
    if example.image.ndim != 3 or example.image.shape[2] != 3 or example.image.dtype != np.uint8:
        seen = f"{example.image.dtype} {example.image.shape}"
        raise DataError(f"example {name}: expected (height, width, 3) uint8 pixels, not {seen}")


def _point(example: Example, class_names: list[str]) -> tuple[NDArray[Any], dict[str, Any]]:
    stored = example.image.astype(np.float32)
    return stored, _row(example, class_names, stored)


def _stored(example: Example, spec: DataSpec, class_names: list[str]) -> tuple[NDArray[Any], dict[str, Any]]:
    size = spec.image_size
    height, width = example.image.shape[:2]
    scale_x = scale_y = size / max(width, height)
    if spec.resize == "squash":
        scale_x, scale_y = size / width, size / height
    new_width, new_height = max(1, round(width * scale_x)), max(1, round(height * scale_y))
    left, top = (size - new_width) // 2, (size - new_height) // 2
    image = example.image
    if (new_width, new_height) != (width, height):
        image = np.asarray(Image.fromarray(image).resize((new_width, new_height), Image.Resampling.BICUBIC))
    stored = image
    if (new_width, new_height) != (size, size):
        stored = np.full((size, size, 3), PAD_GREY, dtype=np.uint8)
        stored[top : top + new_height, left : left + new_width] = image
    if spec.channels == 1:
        stored = np.asarray(Image.fromarray(stored).convert("L"))[..., None]
    scale = np.array([new_width / width, new_height / height] * 2)
    boxes = example.boxes * scale + np.array([left, top] * 2)
    # round outward to whole pixels, so that the box covers the whole object
    boxes = np.concatenate([np.floor(boxes[:, :2] + 1e-9), np.ceil(boxes[:, 2:] - 1e-9)], axis=1).astype(np.int64)
    row = _row(example, class_names, stored) | {
        "boxes": boxes.reshape(-1).tolist(),
        "content": [left, top, left + new_width, top + new_height],
        "original_width": width,
        "original_height": height,
    }
    return stored, row


def _row(example: Example, class_names: list[str], stored: NDArray[Any]) -> dict[str, Any]:
    return {
        "example_id": example.example_id,
        "label": example.label,
        "class_name": class_names[example.label],
        "boxes": [],
        "content": [0, 0, 0, 0],
        "original_width": 0,
        "original_height": 0,
        "digest": hashlib.sha256(np.ascontiguousarray(stored).data).hexdigest(),
        "unreadable": None,
    }


def _unreadable_row(error: UnreadableImage, class_names: list[str]) -> dict[str, Any]:
    known = 0 <= error.label < len(class_names)
    return {
        "example_id": error.example_id,
        "label": error.label,
        "class_name": class_names[error.label] if known else "",
        "boxes": [],
        "content": [0, 0, 0, 0],
        "original_width": 0,
        "original_height": 0,
        "digest": "",
        "unreadable": error.reason,
    }


def _write_index(rows: list[dict[str, Any]], folder: Path) -> pa.Table:
    for row, entry in enumerate(rows):
        entry["row"] = row
    rows.sort(key=lambda entry: str(entry["example_id"]))
    for first, second in itertools.pairwise(rows):
        if first["example_id"] == second["example_id"]:
            raise DataError(f"two examples are called {first['example_id']!r}; ids must be unique")
        if not first["example_id"]:
            raise DataError("an example has an empty id; give every example an id")
    table = pa.Table.from_pylist(rows, schema=INDEX.arrow)
    write_table(table, INDEX, folder / INDEX_FILE)
    return table


def read_index(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Read the index of a shard (tables.INDEX), or some columns of it: one row per image, sorted by example id."""
    return read_table(path, columns)
