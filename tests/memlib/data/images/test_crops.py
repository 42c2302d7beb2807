import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.data.images.crops import Box, corner_crop, maximal_crop, official_crop, periphery_crop, periphery_crops
from memlib.specs import CropMode, CropSpec
from memlib.tables import INDEX

SIDE = 9
WHOLE = (0, 0, SIDE, SIDE)


def boxes_strategy() -> st.SearchStrategy[list[Box]]:
    edges = st.tuples(st.integers(0, SIDE - 1), st.integers(1, SIDE)).map(lambda e: (min(e[0], e[1] - 1), e[1]))
    return st.lists(st.tuples(edges, edges).map(lambda e: (e[0][0], e[1][0], e[0][1], e[1][1])), max_size=5)


def largest_area_by_trying_all(boxes: list[Box], min_side: int) -> int:
    taken = np.zeros((SIDE, SIDE), dtype=bool)
    for x0, y0, x1, y1 in boxes:
        taken[y0:y1, x0:x1] = True
    best = 0
    for x0, x1 in itertools.combinations(range(SIDE + 1), 2):
        for y0, y1 in itertools.combinations(range(SIDE + 1), 2):
            if min(x1 - x0, y1 - y0) >= min_side and not taken[y0:y1, x0:x1].any():
                best = max(best, (x1 - x0) * (y1 - y0))
    return best


@given(boxes_strategy(), st.integers(1, 4))
@settings(max_examples=150, deadline=None)
def test_maximal_crop_is_the_largest_rectangle_outside_all_boxes(boxes: list[Box], min_side: int) -> None:
    crop = maximal_crop(WHOLE, boxes, min_side=min_side)
    best = largest_area_by_trying_all(boxes, min_side)
    if crop is None:
        assert best == 0
        return
    x0, y0, x1, y1 = crop
    assert (x1 - x0) * (y1 - y0) == best
    assert min(x1 - x0, y1 - y0) >= min_side
    assert all(x1 <= b[0] or b[2] <= x0 or y1 <= b[1] or b[3] <= y0 for b in boxes)


def official_by_pixels(boxes: list[Box], threshold: float, width: int = SIDE, height: int = SIDE) -> Box | None:
    """The rule of the authors' code, pixel by pixel: in each column between neighbouring edges, runs of free rows."""
    taken = np.zeros((height, width), dtype=bool)
    for x0, y0, x1, y1 in boxes:
        taken[y0:y1, x0:x1] = True
    cuts, found = sorted({0, width, *(b[0] for b in boxes), *(b[2] for b in boxes)}), []
    for left, right in zip(cuts, cuts[1:], strict=False):
        top = 0
        for row in range(height + 1):
            if row == height or taken[row, left:right].any():
                found.append((left, top, right, row))
                top = row + 1
    large = [(x0, y0, x1, y1) for x0, y0, x1, y1 in found if y1 > y0 and min(x1 - x0, y1 - y0) > threshold]
    return max(large, key=lambda crop: min(crop[2] - crop[0], crop[3] - crop[1]), default=None)


@given(boxes_strategy(), st.sampled_from([0.0, 1.0, 2.25, 3.0]))
@settings(max_examples=150, deadline=None)
def test_official_crop_equals_the_authors_rule(boxes: list[Box], threshold: float) -> None:
    crop = official_crop(WHOLE, boxes, threshold=threshold)
    assert crop == official_by_pixels(boxes, threshold)
    if crop is not None:
        assert all(crop[2] <= b[0] or b[2] <= crop[0] or crop[3] <= b[1] or b[3] <= crop[1] for b in boxes)


def test_official_crop_equals_the_authors_rule_on_4000_layouts() -> None:
    rng = np.random.default_rng(0)
    none = 0
    for _ in range(4000):
        width, height = rng.integers(12, 41, size=2)
        corners = [np.sort(rng.integers(0, side + 1, size=(2, rng.integers(1, 7))), axis=0) for side in (width, height)]
        count = min(part.shape[1] for part in corners)
        boxes = [
            (*map(int, (x0, y0, x1, y1)),) for (x0, x1), (y0, y1) in zip(*(part.T[:count] for part in corners), strict=True)
        ]
        boxes = [box for box in boxes if box[2] > box[0] and box[3] > box[1]]
        threshold = float(rng.choice([0.0, 0.25 * min(width, height)]))
        crop = official_crop((0, 0, int(width), int(height)), boxes, threshold=threshold)
        assert crop == official_by_pixels(boxes, threshold, int(width), int(height))
        none += crop is None
    assert 0 < none < 2000


def test_official_crop_never_joins_columns_and_must_exceed_the_threshold() -> None:
    boxes = [(0, 0, 2, 2), (6, 0, 8, 2)]  # below both, rows 2 to 9 are free; columns are cut at 2, 6 and 8
    assert maximal_crop(WHOLE, boxes) == (0, 2, 9, 9)
    assert official_crop(WHOLE, boxes) == (2, 0, 6, 9)
    assert official_crop(WHOLE, boxes, threshold=3.9) == (2, 0, 6, 9)
    assert official_crop(WHOLE, boxes, threshold=4) is None
    assert official_crop((0, 0, 30, 10), [(10, 4, 30, 6)]) == (0, 0, 10, 10)  # of area 100; the row above has 80


def test_official_crop_must_exceed_the_minimum_share_of_the_side() -> None:
    box = np.array([[3, 0, 9, 9]])
    assert periphery_crop(WHOLE, box, CropSpec(mode="official", min_side=0.33)) == (0, 0, 3, 9)
    assert periphery_crop(WHOLE, box, CropSpec(mode="official", min_side=1 / 3)) is None
    assert periphery_crop(WHOLE, box, CropSpec(min_side=1 / 3)) == (0, 0, 3, 9)


def test_corner_crop_is_the_lower_left_in_truncated_pixels() -> None:
    assert corner_crop((0, 0, 100, 50)) == (0, 35, 30, 50)
    assert corner_crop((0, 0, 9, 6)) == (0, 5, 2, 6)  # 2.7 and 1.8 pixels
    assert corner_crop((0, 0, 100, 3)) is None


def test_an_image_without_boxes_has_only_a_corner_crop() -> None:
    none = np.zeros((0, 4), dtype=np.int64)
    assert periphery_crop(WHOLE, none, CropSpec()) is None
    assert periphery_crop(WHOLE, none, CropSpec(mode="corner")) == (0, 7, 2, 9)


@pytest.mark.parametrize(("min_side", "expected"), [(0.25, (0, 0, 3, 9)), (0.34, None)])
def test_the_minimum_side_is_a_fraction_of_the_image(min_side: float, expected: Box | None) -> None:
    box = np.array([[3, 0, 9, 9]])
    assert periphery_crop(WHOLE, box, CropSpec(min_side=min_side)) == expected


@pytest.mark.parametrize("mode", ["maximal", "official", "corner"])
def test_periphery_crops_of_many_images_equal_those_of_single_images(mode: CropMode) -> None:
    """1,500 layouts have no, one or several boxes, some beyond the edge, some in padded or unreadable images."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(1500):
        left, top = rng.integers(0, 4, size=2)
        width, height = rng.integers(6, 14, size=2)
        corners = rng.integers(-1, 15, size=(int(rng.choice([0, 1, 1, 1, 2, 3])), 2, 2))
        boxes = np.concatenate([corners.min(axis=1), corners.max(axis=1) + 1], axis=1)
        content = [int(left), int(top), int(left + width), int(top + height)]
        unreadable = "broken" if number % 50 == 7 else None
        rows.append({"unreadable": unreadable, "content": content, "boxes": boxes.reshape(-1).tolist()})
    fields = [INDEX.arrow.field(name) for name in ("unreadable", "content", "boxes")]
    for min_side in (0.05, 0.2, 0.3):
        spec = CropSpec(mode=mode, min_side=min_side)
        found = periphery_crops(pa.Table.from_pylist(rows, schema=pa.schema(fields)), spec)
        crops = 0
        for row, crop in zip(rows, found.tolist(), strict=True):
            boxes = np.array(row["boxes"], dtype=np.int64).reshape(-1, 4)
            expected = None if row["unreadable"] else periphery_crop(tuple(row["content"]), boxes, spec)
            assert tuple(crop) == (expected or (-1, -1, -1, -1)), row
            crops += expected is not None
        assert crops > 300
    assert periphery_crops(pa.Table.from_pylist([], schema=pa.schema(fields)), spec).shape == (0, 4)
