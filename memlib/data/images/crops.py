"""Background ("periphery") crops: rectangles that contain no part of the object.

Meehan 2023, section 3.1 uses "the largest possible crop that does not intersect with any bounding box"; A.8 uses the
lower-left corner instead if there are no boxes. Rectangles are (x0, y0, x1, y1) in pixels, half open: columns x0 <= x < x1
and rows y0 <= y < y1.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.specs import CORNER, CropSpec

Box = tuple[int, int, int, int]
NONE = (-1, -1, -1, -1)


def periphery_crops(index: pa.Table, spec: CropSpec) -> NDArray[np.int64]:
    """Return the crops of many images, each equal to the result of `periphery_crop`.

    Args:
        index: tables.INDEX, or its columns unreadable, content and boxes.

    Returns:
        (num_images, 4) int64; -1 if an image has no crop or could not be read.
    """
    count = index.num_rows
    content = pc.list_flatten(index["content"]).to_numpy().reshape(count, 4).astype(np.int64)
    readable = pc.is_null(index["unreadable"]).to_numpy(zero_copy_only=False) if count else np.zeros(0, dtype=bool)
    if spec.mode == "corner":
        crops = _corner_crops(content)
        crops[~readable] = -1
        return crops
    boxes = pc.list_flatten(index["boxes"]).to_numpy().reshape(-1, 4).astype(np.int64)
    counts = pc.list_value_length(index["boxes"]).to_numpy() // 4
    starts = np.cumsum(counts) - counts
    crops = np.full((count, 4), -1, dtype=np.int64)
    alone = np.flatnonzero(readable & (counts == 1))
    inside = _clipped(boxes[starts[alone]], content[alone])
    plain = ((inside[:, :2] < inside[:, 2:]).all(axis=1)) if len(alone) else np.zeros(0, dtype=bool)
    of_one_box = _official_crops if spec.mode == "official" else _maximal_crops
    crops[alone[plain]] = of_one_box(content[alone[plain]], inside[plain], spec.min_side)
    for row in np.concatenate([np.flatnonzero(readable & (counts > 1)), alone[~plain]]).tolist():
        x0, y0, x1, y1 = content[row].tolist()
        crops[row] = periphery_crop((x0, y0, x1, y1), boxes[starts[row] : starts[row] + counts[row]], spec) or NONE
    return crops


def _maximal_crops(content: NDArray[np.int64], box: NDArray[np.int64], min_side: float) -> NDArray[np.int64]:
    """Return `maximal_crop` for images with one box each: the best of the four strips beside the box."""
    least = np.maximum(1, np.ceil(_least(content, min_side) - 1e-9).astype(np.int64))
    crops = np.full_like(content, -1)
    best = np.full((len(content), 4), -1, dtype=np.int64)
    for strip in _strips(content, box, "left", "above", "below", "right"):
        sides = strip[:, 2:] - strip[:, :2]
        size = np.stack([sides.prod(axis=1), sides.min(axis=1), -strip[:, 1], -strip[:, 0]], axis=1)
        differs = size != best
        first = differs.argmax(axis=1)
        rows = np.arange(len(content))
        better = differs.any(axis=1) & (size[rows, first] > best[rows, first]) & (sides.min(axis=1) >= least)
        crops[better], best[better] = strip[better], size[better]
    return crops


def _official_crops(content: NDArray[np.int64], box: NDArray[np.int64], min_side: float) -> NDArray[np.int64]:
    """Return `official_crop` for images with one box each: a full-height strip beside the box, or a strip of its width."""
    crops, best = np.full_like(content, -1), _least(content, min_side)
    for strip in _strips(content, box, "left", "over", "under", "right"):
        shorter = (strip[:, 2:] - strip[:, :2]).min(axis=1)
        better = shorter > best
        crops[better], best[better] = strip[better], shorter[better]
    return crops


def _strips(content: NDArray[np.int64], box: NDArray[np.int64], *names: str) -> list[NDArray[np.int64]]:
    (c0, c1, c2, c3), (b0, b1, b2, b3) = content.T, box.T
    strips = {
        "left": (c0, c1, b0, c3), "right": (b2, c1, c2, c3),
        "above": (c0, c1, c2, b1), "below": (c0, b3, c2, c3), "over": (b0, c1, b2, b1), "under": (b0, b3, b2, c3),
    }  # fmt: skip
    return [np.stack(strips[name], axis=1) for name in names]


def _least(content: NDArray[np.int64], min_side: float) -> NDArray[np.float64]:
    sides: NDArray[np.float64] = min_side * (content[:, 2:] - content[:, :2]).min(axis=1)
    return sides


def _corner_crops(content: NDArray[np.int64]) -> NDArray[np.int64]:
    sides = (CORNER * (content[:, 2:] - content[:, :2])).astype(np.int64)
    x0, y1 = content[:, 0], content[:, 3]
    crops = np.stack([x0, y1 - sides[:, 1], x0 + sides[:, 0], y1], axis=1)
    crops[(sides <= 0).any(axis=1)] = -1
    return crops


def _clipped(boxes: NDArray[np.int64], content: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([np.maximum(boxes[:, :2], content[:, :2]), np.minimum(boxes[:, 2:], content[:, 2:])], axis=1)


def periphery_crop(content: Box, boxes: NDArray[np.int64], spec: CropSpec) -> Box | None:
    """Return the crop of one image, or None if no rectangle has the required shorter side.

    Args:
        content: the part of the stored image that shows the picture (all of it unless it was padded).
        boxes: (num_boxes, 4) int, the boxes of the objects.
        spec: the kind of crop, and its minimum side as a fraction of the content's shorter side.
    """
    if spec.mode == "corner":
        return corner_crop(content)
    least = spec.min_side * min(content[2] - content[0], content[3] - content[1])
    if not len(boxes):
        return None
    inside = [_clip((int(b[0]), int(b[1]), int(b[2]), int(b[3])), content) for b in boxes]
    if spec.mode == "official":
        return official_crop(content, inside, threshold=least)
    return maximal_crop(content, inside, min_side=max(1, int(np.ceil(least - 1e-9))))


def maximal_crop(content: Box, boxes: Sequence[Box], *, min_side: int = 1) -> Box | None:
    """Return the rectangle of largest area within `content` that intersects no box and has sides of at least `min_side`.

    Exact for any number of boxes: each side of a maximal rectangle touches the content's edge or a box, so its left side is
    some box's right edge (or the content's left), and so on. For each pair of left and right sides, the boxes between them
    leave free vertical gaps; the tallest gap is the best for the pair. Among rectangles of equal area, the one with the
    longer shorter side wins, then the topmost, then the leftmost.
    """
    lefts = sorted({content[0], *(box[2] for box in boxes)})
    rights = sorted({content[2], *(box[0] for box in boxes)})
    best: tuple[int, int, int, int] | None = None  # area, shorter side, -top, -left
    crop: Box | None = None
    for left in lefts:
        for right in rights:
            if right - left < min_side:
                continue
            for top, bottom in _free_gaps(content, [b for b in boxes if b[0] < right and b[2] > left]):
                if bottom - top < min_side:
                    continue
                size = ((right - left) * (bottom - top), min(right - left, bottom - top), -top, -left)
                if best is None or size > best:
                    best, crop = size, (left, top, right, bottom)
    return crop


def _free_gaps(content: Box, boxes: Sequence[Box]) -> list[tuple[int, int]]:
    gaps, top = [], content[1]
    for box in sorted(boxes, key=lambda b: b[1]):
        if box[1] > top:
            gaps.append((top, box[1]))
        top = max(top, box[3])
    if content[3] > top:
        gaps.append((top, content[3]))
    return gaps


def official_crop(content: Box, boxes: Sequence[Box], *, threshold: float = 0.0) -> Box | None:
    """Return the free rectangle with the largest shorter side between neighbouring box edges, as in the authors' code.

    The image is cut into columns at every left and right edge of a box; neighbouring columns are never joined. In each
    column, the gaps between the boxes that cross it are candidates. The crop can therefore be smaller than `maximal_crop`,
    or missing. Ties go to the leftmost, then the topmost. The authors' code finds no crop if a box ends beyond the right
    edge; here boxes are clipped to the edge.

    Args:
        content: the part of the stored image that shows the picture.
        boxes: the objects, within `content`.
        threshold: pixels that the shorter side must exceed.
    """
    cuts = sorted({content[0], content[2], *(box[0] for box in boxes), *(box[2] for box in boxes)})
    crop, best = None, threshold
    for left, right in itertools.pairwise(cuts):
        for top, bottom in _free_gaps(content, [b for b in boxes if b[0] < right and b[2] > left]):
            if (shorter := min(right - left, bottom - top)) > best:
                crop, best = (left, top, right, bottom), shorter
    return crop


def corner_crop(content: Box) -> Box | None:
    """Return the lower-left corner, 0.3 width x 0.3 height truncated to pixels, ignoring boxes (Meehan 2023, A.8, code)."""
    width, height = int(CORNER * (content[2] - content[0])), int(CORNER * (content[3] - content[1]))
    return (content[0], content[3] - height, content[0] + width, content[3]) if width and height else None


def _clip(box: Box, content: Box) -> Box:
    return (max(box[0], content[0]), max(box[1], content[1]), min(box[2], content[2]), min(box[3], content[3]))
