"""Intensities of more than 8 bits, scaled once for a source: what is bright in one image is as bright in all."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.examples import Example, Source, UnreadableImage
from memlib.errors import UserError
from memlib.specs import IntensitySpec

DEPTHS = (8, 10, 12, 14, 16, 32)


class Scaled:
    """A source whose examples are all 8 bits a channel.

    They are scaled as the recipe says, else as a file says itself (DICOM's window), else integers by the smallest usual bit
    depth that holds the largest of the source and floats by [0, 1]. Whether that is needed shows when the first such image
    comes; then all are read for their largest value.

    Args:
        source: any.
        window: what is black and what is white, where a recipe says so.
    """

    def __init__(self, source: Source, window: IntensitySpec | None) -> None:
        self._source, self._window = source, window
        self._ends: tuple[float, float] | None = None if window is None else (window.low, window.high)
        self._lock = threading.Lock()
        self.class_names = source.class_names

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # its own, before it has any
            raise AttributeError(name)
        return getattr(self._source, name)  # what kinds of sources say of themselves

    def __getitem__(self, index: int) -> Example:
        example = self._source[index]
        if example.image.dtype == np.uint8 or hasattr(self._source, "point_dim"):
            return example
        if example.window is not None and self._window is None:
            return replace(example, image=scaled(example.image, *example.window))
        with self._lock:
            if self._ends is None:
                self._ends = self._find_ends()
        return replace(example, image=scaled(example.image, *self._ends))

    def content_digest(self) -> str:
        """Of the source; the window is in the recipe."""
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
    """Return which intensities are black and white in a source whose own lie between `low` and `high`.

    Raises:
        UserError: where nobody can know.
    """
    seen = f"intensities of this source go from {low:g} to {high:g}"
    if low < 0 or (floats and high > 1):
        raise UserError(
            f"{seen}: say what is black and what is white, as in data.intensities={{low: {low:g}, high: {high:g}}}"
        )
    if floats:
        return 0.0, 1.0
    depth = next(bits for bits in DEPTHS if high < 2**bits)
    return 0.0, float(2**depth - 1)


def scaled(image: NDArray[Any], low: float, high: float) -> NDArray[np.uint8]:
    """Return intensities (height, width) or (height, width, 3) as 8 bits RGB, black at `low` and white at `high`."""
    values = ((image.astype(np.float64) - low) / (high - low)).clip(0, 1)
    grey: NDArray[np.uint8] = (values * 255).round().astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2) if grey.ndim == 2 else grey


def in_words(oddities: Iterable[tuple[str, int]]) -> list[str]:
    """Return lines about what was put right in how many images."""
    return [f"{count} image{'s' if count > 1 else ''}: {what}" for what, count in oddities if count]
