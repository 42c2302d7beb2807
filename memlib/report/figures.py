"""Figures as SVG, for the page, and as PNG where the recipe asks for it (report.png)."""

import base64
import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cbook import STEP_LOOKUP_MAP
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from memlib.report.format import percent
from memlib.report.hover import as_number, has_markers, hover_marks, note

INK, TARGET, REFERENCE, MUTED, ACCENT = "#1f2933", "#b3262e", "#33658a", "#9aa5b1", "#d9a441"

LONG = 1000  # characters of a tag that draws a curve of many points
_PNG = ContextVar("png", default=False)  # whether figures are written as PNG, too

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "figure.facecolor": "none",  # the colour of the page shows through, in dark mode, too
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.grid": True,
    "grid.color": "#e4e7eb",
    "svg.fonttype": "none",
    "text.parse_math": False,  # names from users may contain any character, including $
}


def new_figure(width: float = 6.4, height: float = 3.8) -> Figure:
    """Return an empty figure in the house style; width and height are in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.add_subplot()
    return figure


def new_panels(count: int, *, width: float = 3.2, height: float = 2.6, columns: int = 3) -> Figure:
    """Return a figure of several panels in the house style; width and height of each panel are in inches."""
    rows = -(-count // columns)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width * min(count, columns), height * rows), layout="constrained")
        for place in range(count):
            figure.add_subplot(rows, min(count, columns), place + 1)
    return figure


def panels_for(names: Sequence[str]) -> Figure:
    """Return a figure with one panel per name; a single panel has the size of a whole figure."""
    return new_panels(len(names)) if len(names) > 1 else new_figure()


@contextlib.contextmanager
def also_png() -> Iterator[None]:
    """Let `save_figure` write PNG files beside the SVG within this block."""
    before = _PNG.set(True)
    try:
        yield
    finally:
        _PNG.reset(before)


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write <name>.svg, which shows values on hover, and within `also_png` <name>.png; return the SVG markup for the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    drawn = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}), _thinned(figure):  # ids differ between the figures of a page
        canvas: Any = FigureCanvasSVG(figure)  # savefig would arrange and draw the figure twice
        canvas.print_svg(drawn, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        if _PNG.get():
            figure.savefig(folder / f"{name}.png", dpi=160, facecolor="white", metadata={"Software": None})
    markup = slim(drawn.getvalue()).replace("</svg>", f"{hover_marks(figure)}</svg>")
    (folder / f"{name}.svg").write_text(markup, encoding="utf-8")
    return markup


@contextlib.contextmanager
def _thinned(figure: Figure) -> Iterator[None]:
    """Draw curves and steps without markers through their corners alone within this block."""
    with contextlib.ExitStack() as undone:
        for line in (line for axes in figure.axes for line in axes.lines):
            axes: Any = line.axes
            if all(line.get_transform().contains_branch_seperately(axes.transData)) and not has_markers(line):
                undone.callback(line.set, data=line.get_data(), drawstyle=line.get_drawstyle())
                ends = np.ma.filled(line.get_xydata(), np.nan).T
                path = np.column_stack(STEP_LOOKUP_MAP[line.get_drawstyle()](*ends))
                line.set(data=corners(path).T, drawstyle="default")
        yield


def corners(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the points of a path that it cannot do without: its ends, corners, turns, and the ends of its gaps.

    Left out are repeated points and those within level and upright lines, which are nearly all of a curve of steps.

    Args:
        points: the path (num_points, 2), with NaN in its gaps.

    Example:
        >>> corners(np.array([[0, 0], [1, 0], [1, 0], [2, 0], [2, 1], [2, 3], [2, 2]])).tolist()
        [[0, 0], [2, 0], [2, 3], [2, 2]]
    """
    if len(points) < 3:
        return points
    points = points[np.append(True, (points[1:] != points[:-1]).any(axis=1))]
    kept, steps = np.ones(len(points), dtype=bool), np.diff(points, axis=0)
    for along, across in ((0, 1), (1, 0)):
        before, after = steps[:-1], steps[1:]
        straight = (before[:, across] == 0) & (after[:, across] == 0) & (before[:, along] * after[:, along] > 0)
        kept[1:-1] &= ~straight
    return points[kept]


def slim(svg: str) -> str:
    """Return an SVG of matplotlib's in fewer characters, which makes up for the values on hover.

    Numbers have two decimals, and one in long curves. Ids that nothing refers to are left out: other figures have them, too.
    """
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    referred = set(re.findall(r"#([\w.-]+)", svg))
    svg = re.sub(r' id="([\w.-]+)"', lambda found: found[0] if found[1] in referred else "", svg)
    svg = re.sub(r"<[^>]*>", _in_short, svg)
    svg = re.sub(r">\s+<", "><", svg)
    return re.sub(r"<g([^>]*)>((?:<use [^>]*/>){2,})</g>", _with_one_style, svg)


def _in_short(tag: re.Match[str]) -> str:
    digits = 1 if len(tag[0]) > LONG else 2
    text = re.sub(r"\d+\.\d+", lambda number: f"{round(float(number[0]), digits):g}", tag[0])
    return re.sub(r"\s+", " ", text)


def _with_one_style(group: re.Match[str]) -> str:
    """Return a group of markers, with the style that all of them have on the group."""
    styles = set(re.findall(r' style="[^"]*"', group[2]))
    if len(styles) != 1 or " style=" in group[1]:
        return group[0]
    (style,) = styles
    return f"<g{group[1]}{style}>{group[2].replace(style, '')}</g>"


def draw_interval(
    axes: Any, height: float, value: float, low: float | None, high: float | None, *,
    color: str, line: Any = MUTED, width: float = 2,
) -> None:  # fmt: skip
    """Draw a value at some height with its 95 % interval, of which the upper end or both may be unknown."""
    if low is not None:
        ends = [low, value if high is None else high]
        axes.plot(ends, [height, height], color=line, linewidth=width, solid_capstyle="butt", label="_95 % interval")
    (dot,) = axes.plot(value, height, "o", color=color)
    if low is not None:
        until = "" if high is None else f" to {as_number(high)}"
        note(dot, f"95 % interval: {'' if until else 'at least '}{as_number(low)}{until}")


def percent_axis(axis: Any) -> None:
    """Label an axis of fractions in per cent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    setattr(axis.axes, f"fmt_{axis.axis_name}data", percent)  # on hover


def plain_ticks(axis: Any) -> None:
    """Label the decades of a logarithmic axis with plain numbers, as math text is disabled."""
    from matplotlib.ticker import NullFormatter, StrMethodFormatter

    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


def data_uri(image: NDArray[np.uint8], *, side: int = 96) -> str:
    """Return a PNG data URI of a uint8 image (height, width, 1 or 3), scaled so that its longer side has `side` pixels.

    Images smaller than that are enlarged without smoothing.
    """
    picture = Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image)
    resampling = Image.Resampling.NEAREST if max(picture.size) < side else Image.Resampling.LANCZOS
    scale = side / max(picture.size)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    buffer = io.BytesIO()
    picture.resize(size, resampling).save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def outlined(image: NDArray[np.uint8], box: Sequence[int], *, scale: int = 3) -> NDArray[np.uint8]:
    """Return the image enlarged by `scale`, with the outline of the crop `box` (x0, y0, x1, y1, half open) drawn on it."""
    picture = Image.fromarray(image).resize((image.shape[1] * scale, image.shape[0] * scale), Image.Resampling.NEAREST)
    x0, y0, x1, y1 = (side * scale for side in box)
    ImageDraw.Draw(picture).rectangle((x0, y0, x1 - 1, y1 - 1), outline=(255, 64, 160), width=2)
    return np.asarray(picture)
