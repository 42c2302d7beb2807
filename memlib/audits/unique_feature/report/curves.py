"""Sections with pictures and curves: examples, epochs, draws of the data, removed pixels, canaries, units."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from memlib.audits.unique_feature.report.findings import COLOURS, METRIC_NAMES, PANELS, Findings, Material
from memlib.report.figures import (
    ACCENT,
    INK,
    MUTED,
    REFERENCE,
    TARGET,
    data_uri,
    new_figure,
    new_panels,
    panels_for,
    percent_axis,
    save_figure,
)
from memlib.report.page import Section


def picture_section(material: Material, *, own: bool) -> Section | None:
    """Return the section that shows the canaries and their clean twins, as the models saw them.

    Args:
        material: the pictures.
        own: whether the model was trained elsewhere, on examples that memlib has not seen.
    """
    if not material.pictures:
        return None
    trained = "The examples with the feature, as the models saw them, and without it, as the controls saw them."
    asked = "Examples on which the model was asked, with the feature inserted and without it; it may have seen it on others."
    return Section(
        heading="The feature in its examples",
        paragraphs=[asked if own else trained],
        pictures=[(data_uri(image, side=128), caption) for image, caption in material.pictures],
    )


def attention_section(material: Material) -> Section | None:
    """Return the section that shows where a net looks for the canary's class."""
    if not material.attention:
        return None
    return Section(
        heading="What the model looks at",
        paragraphs=[
            "Parts of the image on which the model with the highest score bases the canary's class, by GradCAM (warm: much, "
            "cold: little; 2023, Fig. 8)."
        ],
        pictures=[(data_uri(image, side=128), caption) for image, caption in material.attention],
    )


def _lines(curves: pa.Table, name: str, **params: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Return the points of a curve with these params, by series."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for row in curves.to_pylist():
        at = json.loads(row["params"])
        if row["curve"] == name and all(at.get(key, "") == value for key, value in params.items()):
            x, y = lines.setdefault(row["series"], ([], []))
            x.append(row["x"])
            y.append(row["y"])
    return lines


def _has(curves: pa.Table, name: str) -> bool:
    return name in set(curves["curve"].to_pylist())


def epoch_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the share of memorizing nets by epoch."""
    if not _has(curves, "proportion_by_epoch"):
        return None
    output, variants = findings.headline["output"], findings.variants[:PANELS]
    figure = panels_for(variants)
    for axes, variant in zip(figure.axes, variants, strict=True):
        for criterion, style in (("published", "--"), ("calibrated", "-")):
            lines = _lines(curves, "proportion_by_epoch", variant=variant, output=output, criterion=criterion)
            for series, (x, y) in lines.items():
                axes.plot(x, y, style, color=COLOURS[series], lw=1.5, label=f"{series}, {criterion}")
        for x, y in _lines(curves, "accuracy_by_epoch", variant=variant).values():
            axes.plot(x, y, ":", color=INK, lw=1, label="accuracy")
            break
        axes.set_ylim(0, 1.02)
        percent_axis(axes.yaxis)
        axes.set_xlabel("epoch")
        axes.set_title(variant, fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=7)
    return Section(
        heading="Through training",
        paragraphs=[
            f"Share of models that each criterion flags as memorizing after each epoch (on {output}; 2023, Fig. 4). The "
            "dashed line of the controls is what the published criterion finds where there is nothing to find, so the share "
            "that it flags at the first epoch is no evidence of early memory."
        ],
        svg=save_figure(figure, folder, "by_epoch"),
        figure_caption="Share of models (vertical) that each criterion flags as memorizing after each epoch (horizontal), "
        "with and without the feature.",
    )


def draws_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the share of memorizing nets by draw of the data."""
    if not _has(curves, "proportion_by_data_seed"):
        return None
    at, variants = findings.headline, findings.variants[:PANELS]
    figure = panels_for(variants)
    for axes, variant in zip(figure.axes, variants, strict=True):
        for criterion, marker in (("published", "o"), ("calibrated", "s")):
            lines = _lines(
                curves,
                "proportion_by_data_seed",
                variant=variant,
                metric=at["metric"],
                output=at["output"],
                criterion=criterion,
            )
            for series, (x, y) in lines.items():
                shown = COLOURS[series] if criterion == "calibrated" else "none"
                axes.plot(x, y, marker, color=COLOURS[series], mfc=shown, ms=5, label=f"{series}, {criterion}")
        axes.set_ylim(-0.02, 1.02)
        percent_axis(axes.yaxis)
        axes.set_xlabel("draw of the data")
        axes.set_title(variant, fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=7)
    return Section(
        heading="Variation between draws of the data",
        paragraphs=[
            "Share of models that each criterion flags as memorizing on each draw of the data. The more it varies between "
            "draws, the less a single draw says; intervals on this page are over draws."
        ],
        svg=save_figure(figure, folder, "by_data_seed"),
        figure_caption="Share of models (vertical) that each criterion flags as memorizing, by draw of data (horizontal).",
    )


def boundary_section(material: Material, folder: Path) -> Section | None:
    """Return the section on class probabilities over the plane of two coordinates."""
    if not material.boundaries:
        return None
    figure = new_panels(2 * len(material.boundaries), columns=2)
    for place, boundary in enumerate(material.boundaries):
        for side, (title, values) in enumerate((("without it", boundary.clean), ("with the feature", boundary.featured))):
            axes = figure.axes[2 * place + side]
            grid = np.linspace(boundary.extent[0], boundary.extent[1], values.shape[1])
            rows = np.linspace(boundary.extent[2], boundary.extent[3], values.shape[0])
            axes.contourf(grid, rows, values, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.7)
            axes.contour(grid, rows, values, levels=[0.5], colors=[INK], linewidths=1.2)
            colours = np.where(boundary.labels == 1, TARGET, REFERENCE)
            axes.scatter(boundary.points[:, 0], boundary.points[:, 1], c=colours, s=2)
            axes.set_title(f"{boundary.title}, {title}", fontsize=8)
            axes.grid(False)
    return Section(
        heading="Decision boundaries",
        paragraphs=["Probability of the second class over the plane of the two informative coordinates (2023, Fig. 3b)."],
        svg=save_figure(figure, folder, "boundaries"),
        figure_caption="Warm: the second class is likely; cold: the first. The line marks equal odds; dots are training "
        "points.",
    )


def removal_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the scores of parts of the feature."""
    if not _has(curves, "m_by_removed_pixels"):
        return None
    output, variants = findings.headline["output"], findings.variants[:PANELS]
    figure = panels_for(variants)
    for axes, variant in zip(figure.axes, variants, strict=True):
        for series, (x, y) in _lines(curves, "m_by_removed_pixels", variant=variant, output=output).items():
            axes.plot(
                x, y, color=COLOURS[series], label="with the feature" if series == "canary" else "control", marker="o", ms=3
            )
        axes.set_xlabel("pixels removed from the feature")
        axes.set_ylabel("mean white-box M")
        axes.set_title(variant, fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return Section(
        heading="Parts of the feature",
        paragraphs=["Score of models that are shown the feature with some of its pixels removed (2023, Fig. 5)."],
        svg=save_figure(figure, folder, "removed_pixels"),
        figure_caption="Mean white-box M (vertical) by the number of pixels removed from the feature (horizontal).",
    )


def canary_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on scores by canary."""
    metric = findings.headline.get("metric")
    lines = _lines(
        curves,
        "score_by_canary",
        variant=findings.variants[0] if findings.variants else "",
        metric=metric,
        output=findings.headline.get("output"),
    )
    if not lines:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    x, middle = lines["mean"]
    axes.vlines(x, lines["min"][1], lines["max"][1], color=MUTED, lw=2, label="lowest to highest model")
    axes.plot(x, middle, "o", color=TARGET, ms=4, label="mean")
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xlabel("canary, in order of its mean score")
    axes.set_ylabel(METRIC_NAMES[str(metric)])
    axes.legend(frameon=False)
    return Section(
        heading="Variation between canaries",
        paragraphs=[
            "Scores of the models of each canary (2022, Figs. 3a to 6). The dots show how scores vary between canaries, the "
            "lines how they vary between the models of one canary."
        ],
        svg=save_figure(figure, folder, "by_canary"),
        figure_caption="Score (vertical) of each canary's models: mean, and range from lowest to highest; canaries in order "
        "of their mean.",
    )


def latent_section(curves: pa.Table, folder: Path) -> Section | None:
    """Return the section on units of the last hidden layer that the feature excites."""
    if not _has(curves, "latent_by_unit"):
        return None
    figure = new_figure()
    axes = figure.axes[0]
    names = {
        "feature": ("by the feature only", TARGET),
        "control": ("by the feature only, controls", REFERENCE),
        "random": ("by random partners only", ACCENT),
    }
    for series, (x, y) in _lines(curves, "latent_by_unit").items():
        axes.plot(x, y, color=names[series][1], lw=1, label=names[series][0])
    axes.set_xlabel("unit of the last hidden layer")
    axes.set_ylabel("frequency, relative to the highest")
    axes.legend(frameon=False)
    return Section(
        heading="Units that the feature excites",
        paragraphs=[
            "Units that the feature excites and the clean example does not, over models from the same seed (2022, Fig. 3b). "
            "What controls share with models that saw the feature is not memory of it."
        ],
        svg=save_figure(figure, folder, "latent"),
        figure_caption="How often the feature excites each unit (vertical), relative to the most excited one, by unit "
        "(horizontal).",
    )
