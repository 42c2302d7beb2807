import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memlib.data.crops import Box, corner_crop, maximal_crop, official_crop, periphery_crop
from memlib.specs import CropSpec

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
def test_maximal_is_the_largest_rectangle_that_meets_no_box(boxes: list[Box], min_side: int) -> None:
    crop = maximal_crop(WHOLE, boxes, min_side=min_side)
    best = largest_area_by_trying_all(boxes, min_side)
    if crop is None:
        assert best == 0
        return
    x0, y0, x1, y1 = crop
    assert (x1 - x0) * (y1 - y0) == best
    assert min(x1 - x0, y1 - y0) >= min_side
    assert all(x1 <= b[0] or b[2] <= x0 or y1 <= b[1] or b[3] <= y0 for b in boxes)


@given(boxes_strategy())
@settings(max_examples=100, deadline=None)
def test_official_meets_no_box_and_is_never_larger_than_maximal(boxes: list[Box]) -> None:
    official, maximal = official_crop(WHOLE, boxes), maximal_crop(WHOLE, boxes)
    if official is not None:
        assert maximal is not None
        area = [(c[2] - c[0]) * (c[3] - c[1]) for c in (official, maximal)]
        assert area[0] <= area[1]
        assert all(official[2] <= b[0] or b[2] <= official[0] or official[3] <= b[1] or b[3] <= official[1] for b in boxes)


def test_official_never_joins_strips() -> None:
    boxes = [(0, 0, 2, 2), (6, 0, 8, 2)]  # below both, rows 2 to 9 are free; columns are cut at 2, 6 and 8
    assert maximal_crop(WHOLE, boxes) == (0, 2, 9, 9)
    boxes = [(0, 0, 4, 4), (4, 5, 9, 9)]  # free strips: only row 4
    assert official_crop(WHOLE, boxes) == (0, 4, 9, 5)
    assert official_crop(WHOLE, boxes, min_side=2) is None
    assert maximal_crop(WHOLE, boxes, min_side=2) == (4, 0, 9, 5)


def test_corner_is_the_lower_left() -> None:
    assert corner_crop((0, 0, 100, 50)) == (0, 35, 30, 50)
    assert corner_crop((10, 10, 20, 20), min_side=4) is None


def test_an_image_without_boxes_has_only_a_corner() -> None:
    none = np.zeros((0, 4), dtype=np.int64)
    assert periphery_crop(WHOLE, none, CropSpec()) is None
    assert periphery_crop(WHOLE, none, CropSpec(mode="corner")) == (0, 6, 3, 9)


@pytest.mark.parametrize(("min_side", "expected"), [(0.25, (0, 0, 3, 9)), (0.34, None)])
def test_the_minimum_side_is_a_fraction_of_the_image(min_side: float, expected: Box | None) -> None:
    box = np.array([[3, 0, 9, 9]])
    assert periphery_crop(WHOLE, box, CropSpec(min_side=min_side)) == expected
