"""What the page is made of, and the words its numbers get."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.report.figures import (
    MUTED,
    REFERENCE,
    TARGET,
)

ALPHA = 0.05
PANELS = 9
COLOURS = {"canary": TARGET, "control": REFERENCE, "feature": TARGET, "random": MUTED}
METRIC_NAMES = {
    "m_white": "white box (M)", "m_grey": "grey box (M)", "m_black": "black box (M)", "m_w": "white box (M_w, 2022)",
    "m_kl": "black box (M, 2022)",
}  # fmt: skip


@dataclass(frozen=True)
class Boundary:
    """Class probabilities of a net over the plane of the first two coordinates, without and with the feature.

    Attributes:
        title: which net.
        extent: x0, x1, y0, y1.
        clean, featured: (side, side) probability of class 1, rows from y0 to y1.
        points, labels: some training points (count, 2) and their classes.
    """

    title: str
    extent: tuple[float, float, float, float]
    clean: NDArray[np.float64]
    featured: NDArray[np.float64]
    points: NDArray[np.float64]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """What the page shows besides the tables.

    Attributes:
        pictures: canaries with and without the feature: (image, caption).
        attention: GradCAM heat maps laid over images: (image, caption).
        boundaries: of points.
        facts: rows of the last section.
    """

    pictures: Sequence[tuple[NDArray[np.uint8], str]] = ()
    attention: Sequence[tuple[NDArray[np.uint8], str]] = ()
    boundaries: Sequence[Boundary] = ()
    facts: Mapping[str, str] = field(default_factory=dict)


class Findings:
    """The summary, looked up by variant, metric and params."""

    def __init__(self, summary: pa.Table) -> None:
        self.rows = [{**row, "params": json.loads(row["params"])} for row in summary.to_pylist()]
        self.headline = self.rows[0]["params"] if self.rows else {}
        self.variants = list(dict.fromkeys(row["params"].get("variant", "") for row in self.rows))

    def find(self, name: str, **params: Any) -> dict[str, Any] | None:
        """The first row of a metric with these params, None when there is none."""
        for row in self.rows:
            if row["metric"] == name and all(row["params"].get(key, "") == value for key, value in params.items()):
                return row
        return None

    def first(self, variant: str) -> dict[str, Any]:
        """A variant's headline."""
        return next(row for row in self.rows if row["params"].get("variant", "") == variant)


def score_name(params: Mapping[str, Any]) -> str:
    """A score's name and output."""
    return f"{METRIC_NAMES[params['metric']]} on {params['output'].replace('_', ' ')}"


def in_words(row: Mapping[str, Any]) -> str:
    """A score and what its control says of it, as a clause."""
    params = row["params"]
    of = score_name(params)
    of = of[0].upper() + of[1:]
    if params.get("null") == "other features":
        return (
            f"{of}: the feature moves the model by {row['value']:.3g}, {row['n']} other features of the same kind by "
            f"{row['null_value']:.3g} on average; {p_text(row['p_value'])} for one of those to score as high."
        )
    interval = "" if row["ci_low"] is None else f" (95 % interval {digits(row['ci_low'])} to {digits(row['ci_high'])})"
    unit = f"{row['n']} draws of the data" if params["interval"] == "data" else f"{row['n']} pairs of nets from the same seed"
    return (
        f"{of}: where the feature stood in the training set the score is {digits(row['value'])} higher than where it was "
        f"left out{interval}; {unit}, {p_text(row['p_value'])}."
    )


def proportions(findings: Findings, params: Mapping[str, Any]) -> str:
    """How many nets with and without the feature are called memorizing."""
    at = {name: params.get(name, "") for name in ("variant", "metric", "output")} | {"criterion": "calibrated"}
    memorized, control = findings.find("proportion_memorized", **at), findings.find("proportion_control", **at)
    if memorized is None or control is None:
        return "There are too few controls to say of a single net whether it remembers."
    return (
        f"Of single nets, {percent_text(memorized['value'])} score higher than {level_text(params)} of the controls; "
        f"{percent_text(control['value'])} of the controls themselves do."
    )


def level_text(params: Mapping[str, Any]) -> str:
    """The share of controls that a single net has to exceed."""
    return f"{100 * (1 - params['alpha']):g} %"


def p_text(value: float | None) -> str:
    """A p-value, empty where there is none."""
    return "" if value is None else f"p = {value:.2g}"


def digits(value: float) -> str:
    """A number in three digits."""
    return f"{value:.3g}"


def percent_text(value: float) -> str:
    """A share as per cent."""
    return f"{100 * value:.1f} %"


def interval_text(row: Mapping[str, Any]) -> str:
    """A row's interval, empty where it has none."""
    if row["ci_low"] is None:
        return ""
    return f"95 %: {row['ci_low']:.3g} to {row['ci_high']:.3g}"
