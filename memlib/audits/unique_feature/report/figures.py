"""Sections with figures and pictures: scores, examples, epochs, draws of the data, removed pixels, canaries, units."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from memlib.audits.unique_feature.characterization import LATENT_UNIT, MEMORY_BY_EPOCH
from memlib.audits.unique_feature.page_content import OF_CONTROL, Boundary, Pictures
from memlib.audits.unique_feature.report.tables import correlation_table, variants_of
from memlib.audits.unique_feature.verdict import NAMES, NULLS, score_name
from memlib.findings import Findings
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
from memlib.report.format import format_interval
from memlib.report.page import FigureView, PicturesView, Section, TableView
from memlib.report.spreadsheet import of_curves

PANELS = 9  # maximum number of variants in a figure
OF_NET = ["variant", "data_seed", "net", "control"]
OF_SCORE = [*OF_NET, "metric", "output", "value"]
COLOURS = {"canary": TARGET, "control": REFERENCE}
MODELS = {"canary": "with the feature", "control": "control"}
UNITS = {
    "feature": ("by the feature only", TARGET),
    "control": ("by the feature only, controls", REFERENCE),
    "random": ("by random partners only", ACCENT),
}

BY_EPOCH = {
    "probability": "white-box M, probability", "logit": "white-box M, logit", "log_probability": "M_w (2022), nats",
    "divergence": "black-box M (2022), nats",
}  # fmt: skip
"""Scores that can be computed after every epoch, by their output."""

Lines = dict[str, tuple[list[float], list[float]]]
"""The points of a curve, by series."""


# -- scores -------------------------------------------------------------------------------------------


def nets_section(scores: pd.DataFrame, findings: Findings, folder: Path) -> Section:
    """Return the section on the scores of nets with and without the feature."""
    at = findings.head.params
    scores = scores[(scores["metric"] == at["metric"]) & (scores["output"] == at["output"])]
    figure, panels = _panels(findings)
    for variant, axes in panels.items():
        for series in ("control", "canary"):
            chosen = (scores["variant"] == variant) & (scores["control"] == (series == "control"))
            values = np.sort(scores[chosen]["value"].to_numpy())
            if len(values):
                share = (np.arange(len(values)) + 0.5) / len(values)
                marker = "o" if len(values) <= 60 else ""
                axes.plot(values, share, color=COLOURS[series], label=MODELS[series], lw=1.6, marker=marker, ms=3)
        axes.axvline(0, color=MUTED, lw=1)
        axes.set_xlabel("score of a model")
        percent_axis(axes.yaxis)
        axes.set_ylabel("models at or below")
    svg = _with_legend(figure, folder, "scores")
    return Section(
        "Each model and its control",
        "Each model trained with the feature in an example has a control: a model from the same seed that saw the same "
        "example without the feature. What the two curves share is how any such model reacts to the feature; the gap "
        f"between them is memory. Score: {NAMES[at['metric']]}, on {at['output'].replace('_', ' ')}.",
        FigureView(
            svg,
            "Share of models (vertical) whose score is at most the value on the horizontal axis.",
            scores[OF_SCORE].to_dict("records"),
        ),
    )


def nulls_section(units: pd.DataFrame, findings: Findings, folder: Path) -> Section:
    """Return the section that shows an external model's scores for the feature among those for other features."""
    tests = findings.tests()
    figure, drawn = new_panels(len(tests), columns=2), []
    for axes, row in zip(figure.axes, tests, strict=True):
        part = units[(units["metric"] == row.metric) & (units["output"] == row.params["output"])]
        drawn.append(part)
        axes.hist(part[part["feature"] != "canary"]["value"], bins=20, color=REFERENCE, label="others")
        axes.axvline(float(part[part["feature"] == "canary"]["value"].iloc[0]), color=TARGET, lw=2, label="the feature")
        axes.set_xlabel(score_name(row))
        axes.set_ylabel("features")
    svg = _with_legend(figure, folder, "null_features")
    return Section(
        "The feature among others of its kind",
        f"The model was also shown {NULLS[findings.head.params['null']]} in the same typeface and place. A feature that it "
        "remembers tends to stand out; not standing out is no proof that it is not remembered. The comparison is only as "
        "good as the choice of the other features: a model that knows names reacts more to any name than to random letters. "
        "Each label's score is centred by its mean over all features.",
        FigureView(
            svg,
            "Number of other features with each score (bars), and the score of the tested feature (line).",
            pd.concat(drawn)[["metric", "output", "feature", "value"]].to_dict("records"),
        ),
    )


def settings_section(scores: pd.DataFrame, findings: Findings, folder: Path) -> Section | None:
    """Return the section that compares white, grey and black box."""
    output = findings.head.params["output"]
    of_output = scores[scores["output"] == output]
    wide = of_output.pivot_table(index=OF_NET, columns="metric", values="value")
    others = [metric for metric in ("m_grey", "m_black") if metric in wide.columns and "m_white" in wide.columns]
    if not others or len(wide) < 4:
        return None
    figure = new_panels(len(others), columns=2)
    for axes, metric in zip(figure.axes, others, strict=True):
        for series in ("control", "canary"):
            part = wide[wide.index.get_level_values("control") == (series == "control")]
            axes.scatter(part["m_white"], part[metric], s=8, color=COLOURS[series], alpha=0.6, label=MODELS[series])
        axes.set_xlabel("white box")
        axes.set_ylabel(NAMES[metric])
    svg = _with_legend(figure, folder, "settings")
    return Section(
        "With less knowledge of the training data",
        "Each model's score in the white box against the scores of those who know less of the training data, on "
        f"{output} (2023, Figs. 6 and 7). Grey and black box take the maximum over labels, each centred by the controls, "
        "so that controls lie above zero as well.",
        FigureView(
            svg,
            "Each model's score in the grey or black box (vertical) by its score in the white box (horizontal).",
            of_output[of_output["metric"].isin(["m_white", *others])][OF_SCORE].to_dict("records"),
        ),
        correlation_table(findings),
    )


# -- pictures -----------------------------------------------------------------------------------------


def picture_section(pictures: Pictures, *, own: bool) -> Section | None:
    """Return the section that shows the canaries and their clean twins, as the models saw them.

    Args:
        own: whether the model was trained elsewhere, on examples that memlib has not seen.
    """
    trained = "The examples with the feature, as the models saw them, and without it, as the controls saw them."
    asked = "Examples on which the model was asked, with the feature inserted and without it; it may have seen it on others."
    return _gallery("The feature in its examples", asked if own else trained, pictures)


def attention_section(attention: Pictures) -> Section | None:
    """Return the section that shows where a net looks for the canary's class."""
    whose = "the model with the highest score bases"
    read = "No control is shown, as no model has one of the same seed and canary, so heat on the feature need not be memory"
    if any(caption.startswith(OF_CONTROL) for _, caption in attention):
        whose = "a model and its control of the same seed and canary, of all such pairs the one with the highest score, base"
        read = "Heat on the feature is memory only where the control, which never saw it, shows none"
    return _gallery(
        "What the model looks at",
        f"Parts of the image on which {whose} the canary's class, by GradCAM (warm: much, cold: little; 2023, Fig. 8). Other "
        "examples are of the canary's class; no model saw the held-out examples, which stand for others who carry the "
        f"feature. {read}: an illustration, not a test.",
        attention,
    )


def _gallery(heading: str, text: str, pictures: Pictures) -> Section | None:
    views = [(data_uri(image, side=128), caption) for image, caption in pictures]
    return Section(heading, text, PicturesView(views)) if views else None


# -- curves -------------------------------------------------------------------------------------------


def epoch_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the share of memorizing nets by epoch."""
    if not _has(curves, "proportion_by_epoch"):
        return None
    output = findings.head.params["output"]
    styles = {"published": {"ls": "--", "lw": 1.5}, "calibrated": {"ls": "-", "lw": 1.5}}
    figure, panels = _shares(curves, findings, "proportion_by_epoch", styles, output=output)
    for variant, axes in panels.items():
        for x, y in list(_lines(curves, "accuracy_by_epoch", variant=variant).values())[:1]:
            axes.plot(x, y, ":", color=INK, lw=1, label="accuracy")
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("epoch")
    svg = _with_legend(figure, folder, "by_epoch", size=7)
    return Section(
        "Through training",
        f"Share of models that each criterion flags as memorizing after each epoch (on {output}; 2023, Fig. 4). The "
        "dashed line of the controls is what the published criterion finds where there is nothing to find, so the share "
        "that it flags at the first epoch is no evidence of early memory.",
        FigureView(
            svg,
            "Share of models (vertical) that each criterion flags as memorizing after each epoch (horizontal), "
            "with and without the feature.",
            [*of_curves(curves, "proportion_by_epoch", output=output), *of_curves(curves, "accuracy_by_epoch")],
        ),
    )


def scores_by_epoch_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the mean scores of canary nets and controls after each epoch."""
    curve = "m_by_epoch"
    drawn = [
        (variant, output)
        for variant in variants_of(findings)
        for output in BY_EPOCH
        if _lines(curves, curve, variant=variant, output=output)
    ][:PANELS]
    if not drawn:
        return None
    figure = panels_for([f"{variant} {output}" for variant, output in drawn])
    for axes, (variant, output) in zip(figure.axes, drawn, strict=True):
        for series, (x, y) in sorted(_lines(curves, curve, variant=variant, output=output).items(), reverse=True):
            axes.plot(x, y, color=COLOURS[series], label=MODELS[series], lw=1.5)
        axes.axhline(0, color=MUTED, lw=0.8)
        axes.set_title(variant, fontsize=9)
        axes.set_xlabel("epoch")
        axes.set_ylabel(f"mean {BY_EPOCH[output]}")
    svg = _with_legend(figure, folder, "scores_by_epoch")
    return Section(
        "Scores through training",
        "Mean score of models that saw the feature and of controls after each epoch, those that stopped early at the epoch "
        "that was kept (2022, Fig. 3c); the gap is memory. A diagnostic: epochs are not tested.",
        FigureView(
            svg,
            "Mean score (vertical) after each epoch (horizontal), with and without the feature.",
            of_curves(curves, curve),
        ),
        *_by_epoch_table(findings),
    )


def _by_epoch_table(findings: Findings) -> list[TableView]:
    """Return the memory after some epochs, with intervals; nothing for nets of a single seed."""
    rows = [
        (row.params.get("variant", ""), BY_EPOCH[row.params["output"]], str(row.params["epoch"]), f"{row.value:.4f}",
         format_interval(row), "" if row.interval is None else row.interval.over)
        for row in findings.all(MEMORY_BY_EPOCH)
    ]  # fmt: skip
    data = findings.all(MEMORY_BY_EPOCH)
    headings = ("variant", "score", "epoch", "models that saw the feature less controls", "95 % interval", "over")
    return [TableView(headings, rows, folded="Memory after some epochs, with intervals", data=data)] if rows else []


def draws_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the share of memorizing nets by draw of the data."""
    if not _has(curves, "proportion_by_data_seed"):
        return None
    score = {name: findings.head.params[name] for name in ("metric", "output")}
    dots = {"ls": "", "ms": 5}
    styles = {"published": {**dots, "marker": "o", "mfc": "none"}, "calibrated": {**dots, "marker": "s"}}
    figure, panels = _shares(curves, findings, "proportion_by_data_seed", styles, **score)
    for axes in panels.values():
        axes.set_ylim(-0.02, 1.02)
        axes.set_xlabel("draw of the data")
    svg = _with_legend(figure, folder, "by_data_seed", size=7)
    return Section(
        "Variation between draws of the data",
        "Share of models that each criterion flags as memorizing on each draw of the data. The more it varies between "
        "draws, the less a single draw says; intervals on this page are over draws.",
        FigureView(
            svg,
            "Share of models (vertical) that each criterion flags as memorizing, by draw of data (horizontal).",
            of_curves(curves, "proportion_by_data_seed", **score),
        ),
    )


def boundary_section(boundaries: Sequence[Boundary], folder: Path) -> Section | None:
    """Return the section on class probabilities over the plane of two coordinates."""
    if not boundaries:
        return None
    figure = new_panels(2 * len(boundaries), columns=2)
    for place, boundary in enumerate(boundaries):
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
        "Decision boundaries",
        "Probability of the second class over the plane of the two informative coordinates (2023, Fig. 3b).",
        FigureView(
            save_figure(figure, folder, "boundaries"),
            "Warm: the second class is likely; cold: the first. The line marks equal odds; dots are training points.",
        ),
    )


def removal_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on the score as pixels of the feature are removed; None without such curves."""
    if not _has(curves, "m_by_removed_pixels"):
        return None
    output = findings.head.params["output"]
    figure, panels = _panels(findings)
    for variant, axes in panels.items():
        for series, (x, y) in _lines(curves, "m_by_removed_pixels", variant=variant, output=output).items():
            axes.plot(x, y, color=COLOURS[series], label=MODELS[series], marker="o", ms=3)
        axes.set_xlabel("pixels removed from the feature")
        axes.set_ylabel("mean white-box M")
    svg = _with_legend(figure, folder, "removed_pixels")
    return Section(
        "Parts of the feature",
        "Score of models that are shown the feature with some of its pixels removed (2023, Fig. 5).",
        FigureView(
            svg,
            "Mean white-box M (vertical) by the number of pixels removed from the feature (horizontal).",
            of_curves(curves, "m_by_removed_pixels", output=output),
        ),
    )


def canary_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on scores by canary."""
    score = {name: findings.head.params[name] for name in ("metric", "output")}
    lines = _lines(curves, "score_by_canary", variant=variants_of(findings)[0], **score)
    if not lines:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    x, middle = lines["mean"]
    axes.vlines(x, lines["min"][1], lines["max"][1], color=MUTED, lw=2, label="lowest to highest model")
    axes.plot(x, middle, "o", color=TARGET, ms=4, label="mean")
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xlabel("canary, in order of its mean score")
    axes.set_ylabel(NAMES[score["metric"]])
    svg = _with_legend(figure, folder, "by_canary", size=10)
    return Section(
        "Variation between canaries",
        "Scores of the models of each canary (2022, Figs. 3a to 6). The dots show how scores vary between canaries, the "
        "lines how they vary between the models of one canary.",
        FigureView(
            svg,
            "Score (vertical) of each canary's models: mean, and range from lowest to highest; canaries in order "
            "of their mean.",
            of_curves(curves, "score_by_canary", variant=variants_of(findings)[0], **score),
        ),
    )


def latent_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    """Return the section on units of the last hidden layer that the feature excites."""
    lines = _lines(curves, "latent_by_unit")
    if not lines:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    for series, (x, y) in lines.items():
        label, colour = UNITS[series]
        axes.plot(x, y, color=colour, lw=1, label=label)
    axes.set_xlabel("unit of the last hidden layer")
    axes.set_ylabel("frequency, relative to the highest")
    svg = _with_legend(figure, folder, "latent", size=10)
    return Section(
        "Units that the feature excites",
        "Units that the feature excites and the clean example does not, over models from the same seed (2022, Fig. 3b). "
        "What controls share with models that saw the feature is not memory of it. Only controls of the same seed are "
        "compared; intervals are over canaries and leave out the variation between these controls.",
        FigureView(
            svg,
            "How often the feature excites each unit (vertical), relative to the most excited one, by unit (horizontal).",
            of_curves(curves, "latent_by_unit"),
        ),
        *_latent_table(findings),
    )


def _latent_table(findings: Findings) -> list[TableView]:
    """Return the unit that was chosen on half of the canaries, estimated on the other half; nothing for few canaries."""
    rows = [
        (
            row.params.get("variant", ""),
            str(row.params["unit"]),
            str(row.params["controls"]),
            row.params["group"],
            f"{row.value:.4f}",
            format_interval(row),
        )
        for row in findings.all(LATENT_UNIT)
    ]
    headings = (
        "variant", "unit, chosen on the other canaries", "controls of this seed", "share of examples that excite it", "mean",
        "95 % interval",
    )  # fmt: skip
    return [TableView(headings, rows, data=findings.all(LATENT_UNIT))] if rows else []


def _with_legend(figure: Figure, folder: Path, name: str, *, size: int = 8) -> str:
    """Save a figure with a legend in its first panel, and return it as SVG."""
    figure.axes[0].legend(frameon=False, fontsize=size)
    return save_figure(figure, folder, name)


def _panels(findings: Findings) -> tuple[Figure, dict[str, Any]]:
    """Return a figure with one panel per variant, and the axes of each variant."""
    variants = variants_of(findings)[:PANELS]
    figure = panels_for(variants)
    for axes, variant in zip(figure.axes, variants, strict=True):
        axes.set_title(variant, fontsize=9)
    return figure, dict(zip(variants, figure.axes, strict=True))


def _shares(
    curves: pa.Table, findings: Findings, name: str, styles: Mapping[str, Mapping[str, Any]], **params: Any
) -> tuple[Figure, dict[str, Any]]:
    """Return a figure of the shares of nets flagged by each criterion, in the criterion's style, and the axes by variant."""
    figure, panels = _panels(findings)
    for variant, axes in panels.items():
        for criterion, style in styles.items():
            for series, (x, y) in _lines(curves, name, variant=variant, criterion=criterion, **params).items():
                axes.plot(x, y, color=COLOURS[series], label=f"{series}, {criterion}", **style)
        percent_axis(axes.yaxis)
    return figure, panels


def _lines(curves: pa.Table, name: str, **params: Any) -> Lines:
    """Return the points of a curve with these params, by series; a param "" also matches a missing param."""
    lines: Lines = {}
    for row in of_curves(curves, name, **params):
        x, y = lines.setdefault(row["series"], ([], []))
        x.append(row["x"])
        y.append(row["y"])
    return lines


def _has(curves: pa.Table, name: str) -> bool:
    return name in curves["curve"].to_pylist()
