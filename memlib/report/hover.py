"""The values of a figure on hover, without a script: invisible shapes with titles over markers, bars, lines and curves.

Names come from the labels of axes and artists. A label that begins with "_" names values on hover, but is in no legend.
Artists without a label are left out where the axes have no labels either, and so are unlabelled lines across the axes.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.container import BarContainer, ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter
from numpy.typing import NDArray

POINTS = 72  # per inch, the unit of an SVG
REACH = 5  # distance in points at which a value is shown
APART = 18  # least distance in points between the values of a curve without markers
MOST = 400  # largest number of points of one curve, or of markers of one kind, whose values are shown
STACKED = 2  # the same for markers, as those that lie on each other cannot be pointed at one by one
_NOTE = "memlib_note"  # attribute of artists
_DEFAULTS = ("_child", "_container", "_nolegend_")  # beginnings of matplotlib's own labels


@dataclass(frozen=True)
class Spot:
    """A place of a figure where a value is shown: a rectangle in the points of the SVG, a circle if its corners coincide."""

    x0: float
    y0: float
    x1: float
    y1: float
    text: str

    def drawn(self) -> Markup:
        """Return the invisible shape."""
        if (self.x0, self.y0) == (self.x1, self.y1):
            return Markup('<circle cx="{:.0f}" cy="{:.0f}" r="{}"><title>{}</title></circle>').format(
                self.x0, self.y0, REACH, self.text
            )
        wide, high = (max(abs(end - start), REACH) for start, end in ((self.x0, self.x1), (self.y0, self.y1)))
        left, top = (self.x0 + self.x1 - wide) / 2, (self.y0 + self.y1 - high) / 2
        return Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}</title></rect>').format(
            left, top, wide, high, self.text
        )


def note(artist: Artist, text: str) -> None:
    """Let a text, such as an interval, follow the values that markers show on hover."""
    setattr(artist, _NOTE, text)


def hover_marks(figure: Figure) -> Markup:
    """Return a group of invisible shapes that show the values of a figure, which was drawn, on hover."""
    spots = [spot for axes in figure.axes for spot in _Panel(axes).spots()]
    return Markup('<g class="values" fill-opacity="0">{}</g>').format(Markup().join(spot.drawn() for spot in spots))


def as_number(value: float) -> str:
    """Return a number with three digits, or as a whole one from 1,000."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def evenly(count: int, most: int) -> Sequence[int]:
    """Return at most `most` of the places 0 to count - 1, evenly spaced, the first and the last among them.

    Example:
        >>> list(evenly(9, 4)), list(evenly(3, 4))
        ([0, 3, 5, 8], [0, 1, 2])
    """
    if count <= most:
        return range(count)
    return [round(place * (count - 1) / (most - 1)) for place in range(most)]


@dataclass(frozen=True)
class _Panel:
    """The axes of one panel of a figure."""

    axes: Axes

    def spots(self) -> Iterator[Spot]:
        """Yield the spots, from those at the back to those in front."""
        axes, inside = self.axes, {part for container in self.axes.containers for part in container.get_children()}
        lines = [line for line in axes.lines if line not in inside]
        for line in lines:
            yield from self._across(line)
        for container in axes.containers:
            if isinstance(container, BarContainer):
                yield from self._bars(container)
        for line in sorted(lines, key=has_markers):
            if all(self._scaled(line)):
                yield from self._points(line, line.get_xydata())
        for dots in axes.collections:
            if isinstance(dots, LineCollection) and dots not in inside:
                yield from self._segments(dots)
            elif isinstance(dots, PathCollection):
                yield from self._points(dots, dots.get_offsets())
        for container in axes.containers:
            if isinstance(container, ErrorbarContainer):
                yield from self._whiskers(container)

    def _scaled(self, line: Any) -> tuple[bool, bool]:
        """Return whether x and y of a line are data; a line across the axes has one that is not."""
        x, y = line.get_transform().contains_branch_seperately(self.axes.transData)
        return x, y

    def _across(self, line: Any) -> Iterator[Spot]:
        x_is_data, y_is_data = self._scaled(line)
        if x_is_data == y_is_data or not _label(line):
            return
        (left, right), (low, high) = self.axes.get_xlim(), self.axes.get_ylim()
        if x_is_data:
            x = float(line.get_xdata(orig=False)[0])
            yield from self._spot((x, x), (low, high), _joined(_label(line), self._said("x", x)))
        else:
            y = float(line.get_ydata(orig=False)[0])
            yield from self._spot((left, right), (y, y), _joined(_label(line), self._said("y", y)))

    def _bars(self, container: Any) -> Iterator[Spot]:
        upright = container.orientation != "horizontal"
        for bar in container.patches:
            (x0, y0), (x1, y1) = bar.get_bbox().get_points()
            along, across = (("y", y1 - y0), ("x", x0, x1)) if upright else (("x", x1 - x0), ("y", y0, y1))
            texts = _label(container), self._said_of_base(*across), self._said(*along)
            yield from self._spot((x0, x1), (y0, y1), _joined(*texts))

    def _points(self, artist: Any, points: Any) -> Iterator[Spot]:
        """Yield the values of a curve or of markers, at most MOST, without those that cannot be told apart by pointing."""
        label, noted, is_curve = _label(artist), getattr(artist, _NOTE, ""), not has_markers(artist)
        if not (label or noted or any(self._names.values())):
            return
        apart, last = APART if is_curve else STACKED, (-math.inf, -math.inf)
        found: NDArray[np.float64] = np.ma.filled(np.ma.asarray(points, dtype=float), np.nan)
        if not is_curve:
            found = found[np.lexsort(found.T[::-1])]
        kept = []
        for point, place in zip(found.tolist(), self._placed(found).tolist(), strict=True):
            if math.dist(last, place) >= apart:  # never for a place that is NaN
                last = place
                kept.append((*point, *place))
        for x, y, across, down in (kept[place] for place in evenly(len(kept), MOST)):
            if text := _joined(label, self._said("x", x), self._said("y", y), noted):
                yield Spot(across, down, across, down, text)

    def _segments(self, lines: LineCollection) -> Iterator[Spot]:
        for ends in lines.get_segments():
            for (x0, y0), (x1, y1) in pairwise(np.asarray(ends, dtype=float)):
                texts = _label(lines), self._said("x", x0, x1), self._said("y", y0, y1)
                yield from self._spot((x0, x1), (y0, y1), _joined(*texts))

    def _whiskers(self, container: Any) -> Iterator[Spot]:
        """Yield the values of an errorbar with their intervals; those of the last of x and y, if it has both."""
        line, _, bars = container.lines
        which = "y" if container.has_yerr else "x"
        for (x, y), ends in zip(line.get_xydata(), bars[-1].get_segments(), strict=True):
            low, high = sorted(end["xy".index(which)] for end in ends)
            shown = self._format(which)
            interval = f"\n95 % interval: {shown(low)} to {shown(high)}" if low < high else ""
            x_said, y_said = self._said("x", x), self._said("y", y)
            said = (x_said + interval, y_said) if which == "x" else (x_said, y_said + interval)
            yield from self._spot((x, x), (y, y), _joined(_label(container), *said))

    def _spot(self, xs: tuple[float, float], ys: tuple[float, float], text: str) -> Iterator[Spot]:
        """Yield the spot between two corners in data coordinates, as far as it lies within the axes."""
        point = xs[0] == xs[1] and ys[0] == ys[1]
        (x0, y0), (x1, y1) = self._placed(np.column_stack([xs, ys]), clipped=not point).tolist()
        if text and all(map(math.isfinite, (x0, y0, x1, y1))):
            yield Spot(x0, y0, x1, y1, text)

    def _placed(self, points: NDArray[np.float64], *, clipped: bool = False) -> NDArray[np.float64]:
        """Return the places of points in the SVG, (num_points, 2); those outside of the axes are NaN, or clipped."""
        figure = self.axes.get_figure(root=True)
        assert figure is not None
        box = self.axes.get_window_extent().padded(1)
        found = self.axes.transData.transform(points)
        inside = np.where(np.isfinite(found), np.clip(found, (box.x0, box.y0), (box.x1, box.y1)), np.nan)
        if not clipped:
            inside[(inside != found).any(axis=1)] = np.nan
        places: NDArray[np.float64] = (inside - (0, figure.bbox.height)) * (POINTS / figure.dpi) * (1, -1)
        return places

    def _said(self, which: str, value: float, end: float | None = None) -> str:
        """Return name and value, or the range to `end`; "" for an axis without numbers and names."""
        if which in self._silent:
            return ""
        shown = self._format(which)
        said = shown(value) if end is None or end == value else f"{shown(value)} to {shown(end)}"
        return f"{name}: {said}" if (name := self._names[which]) else said

    def _said_of_base(self, which: str, start: float, end: float) -> str:
        """Return name and range of the base of a bar; its name alone where the ticks have names."""
        middle = (start + end) / 2
        return self._said(which, middle) if self._named[which].get(middle) else self._said(which, start, end)

    @functools.cached_property
    def _silent(self) -> frozenset[str]:
        """The axes without numbers and names at their ticks."""
        axes = {which: self._axis(which) for which in "xy"}
        return frozenset(
            which
            for which, axis in axes.items()
            if isinstance(axis.get_major_formatter(), NullFormatter) or not len(axis.get_majorticklocs())
        )

    def _axis(self, which: str) -> Any:
        return self.axes.xaxis if which == "x" else self.axes.yaxis

    @functools.cached_property
    def _names(self) -> Mapping[str, str]:
        """The names of both axes."""
        return {which: self._name(which) for which in "xy"}

    def _name(self, which: str) -> str:
        """Return the name of an axis, which one of two axes that share it may have."""
        shared = self.axes.get_shared_x_axes() if which == "x" else self.axes.get_shared_y_axes()
        names = [getattr(axes, f"get_{which}label")() for axes in (self.axes, *shared.get_siblings(self.axes))]
        return next((str(name).partition(" (")[0] for name in names if name), "")

    @functools.cached_property
    def _named(self) -> Mapping[str, Mapping[float, str]]:
        """The names of ticks that were set one by one, by axis."""
        found: dict[str, Mapping[float, str]] = {"x": {}, "y": {}}
        for which in found:
            axis = self._axis(which)
            if isinstance(axis.get_major_locator(), FixedLocator):
                places = axis.get_majorticklocs()
                found[which] = dict(zip(map(float, places), axis.get_major_formatter().format_ticks(places), strict=True))
        return found

    def _format(self, which: str) -> Callable[[float], str]:
        """Return the format of values: by the axes' fmt_xdata or fmt_ydata, and as ticks that were set one by one."""
        names, shown = self._named[which], getattr(self.axes, f"fmt_{which}data") or as_number
        return lambda value: names.get(float(value)) or ("" if math.isnan(value) else shown(value))


def has_markers(artist: Any) -> bool:
    """Return whether an artist draws a marker at each of its points."""
    return isinstance(artist, PathCollection) or artist.get_marker() not in (None, "", " ", "None", "none")


def _label(artist: Any) -> str:
    """Return the name of an artist's values: its label, unless matplotlib gave it."""
    label = str(artist.get_label() or "")
    return "" if label.startswith(_DEFAULTS) else label.removeprefix("_")


def _joined(*texts: str) -> str:
    return "\n".join(filter(None, texts))
