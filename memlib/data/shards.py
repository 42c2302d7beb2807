"""Decoding once: a source becomes one memory-mapped uint8 array and an index that travels with it.

`images.npy` is (num_examples, size, size, channels) uint8, or (num_examples, dim) float32 for points; `index.parquet`
(tables.INDEX) has a row an image, sorted by example id, with label, boxes and the picture's rectangle in stored pixels.
Training, embedding and every sweep read this shard; nothing decodes an image twice.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from PIL import Image

from memlib.data.examples import Example, Source, UnreadableImage
from memlib.errors import UserError
from memlib.specs import DataSpec
from memlib.tables import INDEX, read_table, write_table

IMAGES, INDEX_FILE = "images.npy", "index.parquet"
WINDOWS = "windows.npy"  # of a text; images.npy in earlier stores
PAD_GREY = 128
CUT = "a box that reached outside was cut"
OUTSIDE_PIXELS, OUTSIDE_SHARE = 2, 0.01  # of a side: so far may a box reach outside
NAMED = 5  # how many offenders an error names


@dataclass(frozen=True)
class Written:
    """What a source was decoded into.

    Attributes:
        index: a tables.INDEX.
        oddities: what was put right in how many images, in words.
    """

    index: pa.Table
    oddities: Mapping[str, int]


def write_shard(
    source: Source,
    spec: DataSpec,
    folder: Path,
    *,
    threads: int = 2,
    progress: Callable[[int, int], None] | None = None,
) -> Written:
    """Decodes every image of `source` into `folder`.

    Args:
        source: the images.
        spec: stored size, how to resize, and what to do with unreadable images.
        folder: gets images.npy and index.parquet.
        threads: images decoded side by side.
        progress: called with (images done, images in all).

    Raises:
        UserError: for unreadable images and boxes far outside their image (unless left out), labels out of range,
            repeated ids; the message names the first few.
    """
    count, size = len(source), spec.image_size
    if count == 0:
        raise UserError("the source has no images")
    dim: int | None = getattr(source, "point_dim", None)
    shape = (count, size, size, spec.channels) if dim is None else (count, dim)
    dtype = np.uint8 if dim is None else np.float32
    pixels = np.lib.format.open_memmap(folder / IMAGES, mode="w+", dtype=dtype, shape=shape)
    rows: list[dict[str, Any]] = []
    broken: list[UnreadableImage] = []
    oddities: Counter[str] = Counter()
    for position, item in enumerate(_decoded(source, threads)):
        if isinstance(item, UnreadableImage):
            broken.append(item)
            rows.append(_unreadable_row(item, source.class_names))
        else:
            _check_example(item, source.class_names, dim)
            stored, row = _stored(item, spec, source.class_names) if dim is None else _point(item, source.class_names)
            pixels[position] = stored
            rows.append(row)
            oddities.update(item.oddities)
        if progress is not None:
            progress(position + 1, count)
    if broken and spec.unreadable == "error":
        names = "; ".join(str(error) for error in broken[:NAMED])
        more = f" and {len(broken) - NAMED} more" if len(broken) > NAMED else ""
        raise UserError(f"{len(broken)} unreadable images: {names}{more}. Mend them, or set data.unreadable to leave_out")
    empty = sorted(set(source.class_names) - {row["class_name"] for row in rows})
    if empty:
        raise UserError(f"class {empty[0]!r} has no image ({len(empty)} empty classes in all); every class needs some")
    pixels.flush()
    return Written(_write_index(rows, folder), oddities)


def examples_file(names: Collection[str]) -> str:
    """Return which of an artifact's files holds its stored examples: windows of a text, or images and points."""
    return WINDOWS if WINDOWS in names else IMAGES


def read_images(path: Path) -> NDArray[Any]:
    """The stored examples, memory-mapped.

    Images are (num_examples, size, size, channels) uint8, points (num_examples, dim) float32, windows of a text (num_windows,
    window) int32.
    """
    images: NDArray[Any] = np.load(path, mmap_mode="r")
    return images


def _decoded(source: Source, threads: int) -> Iterator[Example | UnreadableImage]:
    def read(index: int) -> Example | UnreadableImage:
        try:
            return _fitted(source[index])
        except UnreadableImage as error:
            return error

    block = 256
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(source), block):
            yield from pool.map(read, range(start, min(start + block, len(source))))


def _fitted(example: Example) -> Example:
    """Return an example whose boxes lie in its image: those that reach a little outside are cut.

    Raises:
        UnreadableImage: for boxes that lie outside, or are empty: they are of another picture.
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
        raise UserError(f"example {name} has label {example.label}, but there are {len(class_names)} classes")
    if dim is not None:
        if example.image.shape != (dim,) or not np.isfinite(example.image).all():
            raise UserError(f"example {name}: expected a point of {dim} finite numbers, not {example.image!r}")
        return
    if example.image.ndim != 3 or example.image.shape[2] != 3 or example.image.dtype != np.uint8:
        seen = f"{example.image.dtype} {example.image.shape}"
        raise UserError(f"example {name}: expected (height, width, 3) uint8 pixels, not {seen}")


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
    stored = np.full((size, size, 3), PAD_GREY, dtype=np.uint8)
    stored[top : top + new_height, left : left + new_width] = image
    if spec.channels == 1:
        stored = np.asarray(Image.fromarray(stored).convert("L"))[..., None]
    scale = np.array([new_width / width, new_height / height] * 2)
    boxes = example.boxes * scale + np.array([left, top] * 2)
    # outward to whole pixels, so that no part of the object is left outside
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
        "digest": hashlib.sha256(stored.tobytes()).hexdigest(),
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
            raise UserError(f"two examples are called {first['example_id']!r}; ids must be unique")
        if not first["example_id"]:
            raise UserError("an example has an empty id")
    table = pa.Table.from_pylist(rows, schema=INDEX.arrow)
    write_table(table, INDEX, folder / INDEX_FILE)
    return table


def read_index(path: Path) -> pa.Table:
    """The index of a shard (tables.INDEX), a row an image, sorted by example id."""
    return read_table(path)
