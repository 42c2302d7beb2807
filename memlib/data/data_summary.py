"""Summaries of a source's content, in numbers and in words, to check that the intended data are audited."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.data.examples import Source, UnreadableImage
from memlib.sanitize import count_of
from memlib.tables import INDEX

LOOKED_AT = 50  # examples in a preview
THIN = 1.5  # pixels; a thinner box hides nothing
SEEN = pa.schema([INDEX.arrow.field(name) for name in (
    "unreadable", "class_name", "original_width", "original_height", "boxes", "content", "digest",
)])  # fmt: skip


class Understood(TypedDict):
    """Summary of a source's content.

    `widths` and `heights` are minimum, median and maximum in pixels of the original images, empty for points. `boxed` counts
    images with boxes, `thin` boxes about one pixel wide or high, and `repeated` images whose pixels occur more than once.
    `oddities` counts the images in which each oddity was corrected; `remarks` are the source's remarks on a layout that looks
    unintended; `schema` describes the columns of a table, as they were understood.
    """

    images: int
    unreadable: int
    classes: dict[str, int]
    widths: list[int]
    heights: list[int]
    boxed: int
    thin: int
    repeated: int
    oddities: dict[str, int]
    remarks: list[str]
    schema: NotRequired[list[str]]


def preview(source: Source) -> list[str]:
    """Describe evenly spaced examples of a source; its full content is known only once it is decoded."""
    count = len(source)
    rows: list[dict[str, Any]] = []
    oddities: Counter[str] = Counter()
    coordinates = 0
    for place in np.linspace(0, count - 1, min(LOOKED_AT, count)).astype(int).tolist():
        try:
            example = source[place]
        except UnreadableImage as error:
            rows.append({"unreadable": error.reason})
            continue
        height, width = example.image.shape[:2] if example.image.ndim > 1 else (0, 0)
        oddities.update(example.oddities)
        coordinates = example.image.size
        rows.append(
            {
                "unreadable": None,
                "class_name": source.class_names[example.label],
                "original_width": width,
                "original_height": height,
                "boxes": example.boxes.reshape(-1).tolist(),
                "content": [0, 0, width, height],
                "digest": str(place),
            }
        )
    summary = understood(pa.Table.from_pylist(rows, schema=SEEN), oddities, source)
    classes = count_of(len(source.class_names), "class", "classes")
    head = f"{count_of(count, 'example')} of {classes}; in a sample of {len(rows)}:"
    if not summary["images"]:
        reasons = Counter(row["unreadable"] for row in rows)
        return [f"{head} none can be read: {'; '.join(f'{count} {reason}' for reason, count in reasons.most_common(3))}"]
    said = "; ".join([*described(summary)[1:], *warnings(summary)])
    return [f"{head} {said or f'points with {coordinates:,} coordinates'}"]


def understood(index: pa.Table, oddities: Mapping[str, int], source: Source | None = None) -> Understood:
    """Summarize a source's content.

    Args:
        index: the source's index (tables.INDEX).
        oddities: number of images in which each oddity was corrected, by oddity.
        source: the source, whose remarks and schema are part of the summary.
    """
    whole = index.filter(pc.is_null(index["unreadable"]))
    classes = {entry["values"]: entry["counts"] for entry in pc.value_counts(whole["class_name"]).to_pylist()}
    repeated = pc.value_counts(whole["digest"]).field("counts").to_numpy() if whole.num_rows else np.zeros(0)
    return {
        "images": whole.num_rows,
        "unreadable": index.num_rows - whole.num_rows,
        "classes": dict(sorted(classes.items(), key=lambda item: -item[1])),  # ties in order of appearance
        "widths": _spread(whole["original_width"].to_numpy()),
        "heights": _spread(whole["original_height"].to_numpy()),
        "boxed": int((pc.list_value_length(whole["boxes"]).to_numpy() > 0).sum()),
        "thin": int((_sides(whole) < THIN).any(axis=1).sum()),
        "repeated": int(repeated[repeated > 1].sum()),
        "oddities": dict(sorted(oddities.items())),
        "remarks": list(getattr(source, "remarks", ())),
        "schema": list(getattr(source, "schema", ())),
    }


def _spread(sizes: NDArray[np.int64]) -> list[int]:
    return [int(np.quantile(sizes, q, method="nearest")) for q in (0, 0.5, 1)] if sizes.any() else []


def _sides(index: pa.Table) -> NDArray[np.float64]:
    """Return widths and heights (num_boxes, 2) of all boxes in pixels of the original images."""
    if not index.num_rows:
        return np.zeros((0, 2))
    boxes = pc.list_flatten(index["boxes"]).to_numpy().reshape(-1, 4).astype(np.float64)
    content = pc.list_flatten(index["content"]).to_numpy().reshape(-1, 4).astype(np.float64)
    came = np.stack([index["original_width"].to_numpy(), index["original_height"].to_numpy()], axis=1)
    counts = pc.list_value_length(index["boxes"]).to_numpy() // 4
    scale = came / np.maximum(content[:, 2:] - content[:, :2], 1)
    sides: NDArray[np.float64] = (boxes[:, 2:] - boxes[:, :2]) * np.repeat(scale, counts, axis=0)
    return sides


def described(said: Understood) -> list[str]:
    """Describe the images or points that were read, one line per fact."""
    most, least = (list(said["classes"].items())[place] for place in (0, -1))
    each = f"{least[1]:,} each" if most[1] == least[1] else f"{least[1]:,} ({least[0]}) to {most[1]:,} ({most[0]}) each"
    images = count_of(said["images"], "image" if said["widths"] else "point")
    lines = [f"{images} of {count_of(len(said['classes']), 'class', 'classes')}, {each}"]
    if said["widths"]:
        lines.append(f"{_range(said['widths'])} pixels wide, {_range(said['heights'])} high")
        have = "has" if said["boxed"] == 1 else "have"
        lines.append(f"{count_of(said['boxed'], 'image')} {have} boxes, {said['images'] - said['boxed']:,} have none")
    return [*lines, *said.get("schema", ())]


def _range(spread: Sequence[int]) -> str:
    least, middle, most = spread
    return f"{least:,}" if least == most else f"{least:,} to {most:,} (median {middle:,})"


def warnings(said: Understood) -> list[str]:
    """Describe what was corrected, and what looks unintended, one line per finding."""
    lines = [f"{count_of(count, 'image')}: {what}" for what, count in said["oddities"].items()]
    if said["unreadable"]:
        lines.append(f"{count_of(said['unreadable'], 'image')} could not be read and were left out")
    if said["thin"]:
        lines.append(
            f"{said['thin']:,} boxes are about one pixel wide or high, so almost the whole picture lies outside of them"
        )
    if said["repeated"]:
        alike = "with identical pixels" if said["widths"] else "with identical values"
        repeated = count_of(said["repeated"], "image" if said["widths"] else "point")
        lines.append(f"{repeated} occur more than once {alike} and may be on both sides of a split")
    return [*lines, *said["remarks"]]
