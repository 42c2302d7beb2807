"""Scaling of intensities of more than 8 bits, once per source, so that its images stay comparable in brightness."""

import math
import threading
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.examples import Example, Source, UnreadableImage
from memlib.errors import DataError
from memlib.specs import IntensitySpec

DEPTHS = (8, 10, 12, 14, 16, 32)


class Scaled:
    """A source whose images all have 8 bits per channel.

    Intensities are scaled by the window in the recipe. Without one, they are scaled by the window in the file (DICOM). If the
    file has none either, integers are scaled by the smallest common bit depth that holds the source's largest value, and
    floats are taken to lie in [0, 1]. To find the source's range of values, all its images are read once, when the first
    image needs it.

    Args:
        source: the source to wrap.
        window: intensities of black and white, if the recipe states them.
    """

    def __init__(self, source: Source, window: IntensitySpec | None) -> None:
        self._source, self._window = source, window
        self._ends: tuple[float, float] | None = None if window is None else (window.low, window.high)
        self._lock = threading.Lock()
        self.class_names = source.class_names

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # own attributes, before __init__ has set them
            raise AttributeError(name)
        return getattr(self._source, name)  # optional attributes of the source, such as point_dim and remarks

    def __getitem__(self, index: int) -> Example:
        example = self._source[index]
        if example.image.dtype == np.uint8 or hasattr(self._source, "point_dim"):
            return example
        if example.window is not None and self._window is None:
            return _scale(example, example.window, " that their file states")
        with self._lock:
            if self._ends is None:
                self._ends = self._find_ends()
        return _scale(example, self._ends, " of the recipe" if self._window else ", which hold the source's largest value")

    def content_digest(self) -> str:
        """Return the source's digest; the window is in the recipe."""
        return self._source.content_digest()

    def _find_ends(self) -> tuple[float, float]:
        lows, highs, floats = [], [], False
        for index in range(len(self._source)):
            try:
                example = self._source[index]
            except UnreadableImage:
                continue
            image = example.image
            if image.dtype != np.uint8 and example.window is None:
                lows.append(float(image.min(initial=0)))
                highs.append(float(image.max(initial=0)))
                floats = floats or image.dtype.kind == "f"
        return ends_of(min(lows), max(highs), floats=floats)


def ends_of(low: float, high: float, *, floats: bool) -> tuple[float, float]:
    """Return the intensities of black and white for a source whose intensities lie between `low` and `high`.

    Raises:
        DataError: when the intensities are negative, or floats above 1, so that black and white cannot be inferred.
    """
    range_text = f"intensities of this source range from {low:g} to {high:g}"
    if low < 0 or (floats and high > 1):
        raise DataError(
            f"{range_text}: set the intensities of black and white, as in data.intensities={{low: {low:g}, high: {high:g}}}"
        )
    if floats:
        return 0.0, 1.0
    depth = next(bits for bits in DEPTHS if high < 2**bits)
    return 0.0, float(2**depth - 1)


def scaled(image: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Convert intensities (height, width) or (height, width, 3) to 8-bit RGB, black at `low` and white at `high`."""
    values = ((image.astype(np.float64) - low) / (high - low)).clip(0, 1)
    grey: NDArray[np.uint8] = (values * 255).round().astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2) if grey.ndim == 2 else grey


def _scale(example: Example, window: tuple[float, float], whose: str) -> Example:
    how = _how(window, whose)
    return replace(example, image=scaled(example.image, *window), oddities=(*example.oddities, how))


def _how(window: tuple[float, float], whose: str) -> str:
    """Describe how an image's intensities are scaled; images are counted by this description."""
    low, high = window
    bits = math.log2(high + 1) if high > 0 else 0.0
    return f"scaled as {bits:.0f} bits{whose}" if low == 0 and bits in range(1, 33) else f"scaled by the window{whose}"
