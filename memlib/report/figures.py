"""Figures as SVG, for the page, and PNG, for other uses."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from numpy.typing import NDArray
from PIL import Image, ImageDraw

matplotlib.use("Agg")

INK, TARGET, REFERENCE, MUTED, ACCENT = "#1f2933", "#b3262e", "#33658a", "#9aa5b1", "#d9a441"

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
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


def save_figure(figure: Figure, folder: Path, name: str) -> str:
    """Write <name>.svg and <name>.png, and return the SVG markup for the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):  # element ids must differ between the figures of a page
        figure.savefig(folder / f"{name}.svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
        figure.savefig(folder / f"{name}.png", dpi=160, metadata={"Software": None})
    markup = (folder / f"{name}.svg").read_text()
    return markup[markup.index("<svg") :]


def percent_axis(axis: Any) -> None:
    """Label an axis of fractions in per cent."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


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
