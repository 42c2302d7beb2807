"""Drawings show values and intervals to scale, in the order given, with their numbers as hover texts."""

import math
import re
from collections.abc import Callable, Sequence

import pytest
from markupsafe import Markup

from memlib.report.intervals import MARGIN, MOST_MARKS, STEP, WIDTH, Mark, bars, strip

EVIL = '"><script>alert(1)</script>'


def places(svg: str, kind: str, name: str) -> list[float]:
    """Return a coordinate of all shapes of a kind."""
    return [
        float(value) for shape in re.findall(rf"<{kind} [^>]*>", svg) for value in re.findall(rf' {name}="([^"]*)"', shape)
    ]


def test_bars_share_one_scale_from_the_smallest_to_the_largest_number() -> None:
    svg = bars([Mark(1.0, 0.0, 2.0, "first", "a"), Mark(3.0, 2.0, 4.0, "second", "b")], null=1.0)
    inner = WIDTH - 2 * MARGIN
    assert places(svg, "circle", "cx") == [MARGIN + inner / 4, MARGIN + 3 * inner / 4]
    assert places(svg, "line", "x1") == [MARGIN + inner / 4, MARGIN, MARGIN + inner / 2]  # the null first
    assert places(svg, "line", "x2") == [MARGIN + inner / 4, MARGIN + inner / 2, MARGIN + inner]
    first, second = places(svg, "circle", "cy")
    assert second - first == STEP
    assert re.findall("<title>(.*?)</title>", svg) == ["a", "b"]


def test_a_bound_is_a_solid_line_on_the_scale_of_the_bars() -> None:
    svg = bars([Mark(1.0, 0.0, 2.0, "first", "a")], null=0.0, bound=4.0)
    assert '<line class="null" x1="6.0"' in svg
    assert '<line class="bound" x1="214.0"' in svg
    assert '<circle cx="58.0"' in svg  # a quarter of the way from 0 to 4


def test_an_interval_without_an_upper_end_reaches_the_edge() -> None:
    svg = bars([Mark(1.0, 0.0, None, "first", "a"), Mark(3.0, 2.0, 4.0, "second", "b")])
    assert places(svg, "line", "x2")[0] > places(svg, "line", "x2")[1] > places(svg, "circle", "cx")[1]


def test_a_strip_goes_from_left_to_right_and_larger_values_lie_higher() -> None:
    svg = strip([Mark(float(value), None, None, "found", str(value)) for value in (1, 3, 2)])
    x, y = places(svg, "circle", "cx"), places(svg, "circle", "cy")
    assert x == [STEP / 2, 3 * STEP / 2, 5 * STEP / 2]
    assert y[1] < y[2] < y[0]
    assert y[2] == (y[0] + y[1]) / 2


def test_a_strip_draws_the_last_marks_of_many() -> None:
    svg = strip([Mark(1.0, None, None, "found", f"number {place}") for place in range(MOST_MARKS + 5)])
    assert len(places(svg, "circle", "cx")) == MOST_MARKS
    assert "<title>number 4</title>" not in svg
    assert "<title>number 5</title>" in svg
    assert "<title>number 64</title>" in svg


@pytest.mark.parametrize("draw", [bars, strip])
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_marks_without_a_number_are_not_drawn(draw: Callable[[Sequence[Mark]], Markup], value: float | None) -> None:
    empty, full = Mark(value, None, None, "found", "nothing"), Mark(1.0, None, None, "found", "one")
    assert draw([empty]) == ""
    svg = str(draw([empty, full]))
    assert svg.count("<circle") == 1
    assert "<title>nothing</title>" not in svg


@pytest.mark.parametrize("draw", [bars, strip])
def test_texts_and_links_of_drawings_are_escaped(draw: Callable[[Sequence[Mark]], Markup]) -> None:
    svg = str(draw([Mark(1.0, 0.0, 2.0, EVIL, EVIL, EVIL)]))
    assert "<script" not in svg
    assert svg.count("&lt;script&gt;") == 4
