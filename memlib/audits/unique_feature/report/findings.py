"""Data behind the page, and the formatting of its numbers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.verdict import NAMES
from memlib.report.figures import (
    MUTED,
    REFERENCE,
    TARGET,
)

PANELS = 9
MOST_ROWS = 24  # maximum number of rows of a table that is not folded
COLOURS = {"canary": TARGET, "control": REFERENCE, "feature": TARGET, "random": MUTED}
METRIC_NAMES = NAMES


@dataclass(frozen=True)
class Boundary:
    """Class probabilities of a net over the plane of the first two coordinates, without and with the feature.

    Attributes:
        title: name of the net.
        extent: x0, x1, y0, y1.
        clean, featured: (side, side) probability of class 1 without and with the feature, rows from y0 to y1.
        points, labels: a sample of training points (count, 2) and their classes.
    """

    title: str
    extent: tuple[float, float, float, float]
    clean: NDArray[np.float64]
    featured: NDArray[np.float64]
    points: NDArray[np.float64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """Contents of the page besides the tables.

    Attributes:
        pictures: canaries with and without the feature, as (image, caption).
        attention: images overlaid with GradCAM heat maps, as (image, caption).
        boundaries: decision boundaries, for data that are points.
        facts: rows of the last section.
    """

    pictures: Sequence[tuple[NDArray[np.uint8], str]] = ()
    attention: Sequence[tuple[NDArray[np.uint8], str]] = ()
    boundaries: Sequence[Boundary] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Findings:
    """Summary of a run, searchable by metric and params."""

    def __init__(self, summary: pa.Table) -> None:
        self.rows = [{**row, "params": json.loads(row["params"])} for row in summary.to_pylist()]
        self.headline = self.rows[0]["params"] if self.rows else {}
        self.tests = [row for row in self.rows if row["role"] == "test"]
        self.variants = list(dict.fromkeys(row["params"].get("variant", "") for row in self.rows))

    def find(self, name: str, **params: Any) -> dict[str, Any] | None:
        """Return the first row of a metric with these params, or None if there is none."""
        for row in self.rows:
            if row["metric"] == name and all(row["params"].get(key, "") == value for key, value in params.items()):
                return row
        return None

    def is_headline(self, params: Mapping[str, Any]) -> bool:
        """Return whether params name the score of the headline, for any variant."""
        return all(params.get(name) == self.headline.get(name) for name in ("metric", "output"))


def p_text(value: float | None) -> str:
    """Format a p-value; return an empty string if there is none."""
    return "" if value is None else f"p = {value:.2g}"


def percent_text(value: float) -> str:
    """Format a share as a percentage."""
    return f"{100 * value:.1f} %"


def interval_text(row: Mapping[str, Any]) -> str:
    """Format a row's 95 % interval and the units that it is over, proportions in per cent; empty if there is none."""
    if row["ci_low"] is None:
        return ""
    low, high = (
        percent_text(row[end]) if row["metric"].startswith("proportion") else f"{row[end]:.3g}"
        for end in ("ci_low", "ci_high")
    )
    return f"{low} to {high} (over {row['interval']})"
