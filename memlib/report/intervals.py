"""Small drawings of values with their intervals as SVG, in the colours of the page and with the numbers as hover texts."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

WIDTH, STEP = 220, 14  # of a drawing of bars, and the distance between its bars
HEIGHT = 72  # of a strip
MARGIN, RADIUS = 6, 3.5
MOST_MARKS = 60  # of a strip
IN_PRINT = {"null": Markup(' stroke-dasharray="3 3"'), "found": Markup(' fill="#b3202c"')}
"""Attributes for WeasyPrint, which applies no style sheet within drawings; style sheets win over them elsewhere."""


@dataclass(frozen=True)
class Mark:
    """A value with its interval."""

    value: float | None  #: the value; None or NaN draws nothing.
    low: float | None  #: low, high: ends of its interval; None where it has none, or where its end is open.
    high: float | None
    style: str  #: CSS class of its colour: found, not_found, odd, first or second.
    hover: str  #: text shown on hover, which also describes the mark to screen readers.
    link: str = ""  #: address that the mark leads to; "" for none.

    @property
    def numbers(self) -> list[float]:
        """The finite ones among value and ends."""
        return [number for number in (self.value, self.low, self.high) if number is not None and math.isfinite(number)]


def bars(marks: Sequence[Mark], *, null: float | None = None, bound: float | None = None) -> Markup:
    """Draw intervals below each other on a common scale; "" if no mark has a number.

    Args:
        marks: the intervals from top to bottom.
        null: the value under the null hypothesis, drawn as a dashed line.
        bound: a bound that was fixed beforehand, drawn as a solid line.
    """
    numbers = [number for mark in marks for number in mark.numbers]
    if not numbers:
        return Markup()
    height = STEP * len(marks) + 2
    lines = {style: number for style, number in (("null", null), ("bound", bound)) if number is not None}
    scale = _Scale.of([*numbers, *lines.values()], MARGIN, WIDTH - MARGIN)
    drawn = [_line(style, scale(number), 0, scale(number), height) for style, number in lines.items()]
    for place, mark in enumerate(marks):
        at = STEP * place + STEP / 2 + 1
        drawn.append(_mark(mark, [(scale(number), at) for number in mark.numbers], (WIDTH - MARGIN / 2, at)))
    return _svg(WIDTH, height, "; ".join(mark.hover for mark in marks if mark.numbers), drawn)


def strip(marks: Sequence[Mark]) -> Markup:
    """Draw values side by side, as over time, with upright intervals; "" if no mark has a number.

    Args:
        marks: the values from left to right; only the last MOST_MARKS are drawn.
    """
    kept = marks[-MOST_MARKS:]
    numbers = [number for mark in kept for number in mark.numbers]
    if not numbers:
        return Markup()
    scale = _Scale.of(numbers, HEIGHT - MARGIN, MARGIN)
    drawn = []
    for place, mark in enumerate(kept):
        at = STEP * place + STEP / 2
        drawn.append(_mark(mark, [(at, scale(number)) for number in mark.numbers], (at, MARGIN / 2)))
    return _svg(STEP * len(kept), HEIGHT, f"{len(kept)} values, the newest: {kept[-1].hover}", drawn)


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, numbers: Sequence[float], start: float, end: float) -> "_Scale":
        return cls(min(numbers), max(numbers), start, end)

    def __call__(self, number: float) -> float:
        share = 0.5 if self.high == self.low else (number - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def _mark(mark: Mark, points: Sequence[tuple[float, float]], far: tuple[float, float]) -> Markup:
    """Return one mark with its hover text; `points` are its value and ends, and `far` the end of an open interval."""
    if not points:
        return Markup()
    ends = list(points) + ([far] if mark.low is not None and mark.high is None else [])
    shapes = list(_shapes(mark.style, ends, points[0] if mark.value is not None and math.isfinite(mark.value) else None))
    group = Markup('<g class="mark {}"><title>{}</title>{}</g>').format(mark.style, mark.hover, Markup().join(shapes))
    return Markup('<a href="{}">{}</a>').format(mark.link, group) if mark.link else group


def _shapes(style: str, ends: Sequence[tuple[float, float]], value: tuple[float, float] | None) -> Iterator[Markup]:
    if len(ends) > 1:
        yield _line("", *min(ends), *max(ends))
    if value is not None:
        yield Markup('<circle cx="{:.1f}" cy="{:.1f}" r="{}"{}/>').format(*value, RADIUS, IN_PRINT.get(style, ""))


def _line(style: str, x0: float, y0: float, x1: float, y1: float) -> Markup:
    text = Markup('<line class="{}" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"{}/>')
    return text.format(style, x0, y0, x1, y1, IN_PRINT.get(style, ""))


def _svg(width: float, height: float, label: str, drawn: Sequence[Markup]) -> Markup:
    start = '<svg class="marks" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
    return Markup(start).format(width, height, label) + Markup().join(drawn) + Markup("</svg>")
