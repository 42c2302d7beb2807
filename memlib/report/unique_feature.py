"""What the unique-feature page says and shows."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature import Recipe
from memlib.report.figures import (
    ACCENT,
    INK,
    MUTED,
    REFERENCE,
    TARGET,
    data_uri,
    new_figure,
    new_panels,
    percent_axis,
    save_figure,
)
from memlib.report.page import Page, Section, TableView

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


def verdict(summary: pa.Table) -> tuple[str, str, str]:
    """(kind, one sentence, its explanation): what a reader who reads nothing else must know.

    It rests on the paired differences to controls that never saw the feature, corrected for their number.
    """
    findings = Findings(summary)
    heads = {variant: findings.first(variant) for variant in findings.variants}
    first = heads[findings.variants[0]]
    if first["params"].get("null") == "other features":
        return _verdict_on_own(findings)
    if all(row["p_value"] is None for row in heads.values()):
        return "odd", "One seed says nothing about chance.", (
            "Whether a net memorizes varies with its seed, so a single one gives no proportion and no test; raise nets.seeds."
        )  # fmt: skip
    beyond = {variant: _beyond(findings, variant, ALPHA / len(heads)) for variant in heads}
    found = [variant for variant, rows in beyond.items() if rows]
    if len(heads) > 1:
        text = (
            f"Some score beyond the controls, at .05 over all scores and {len(heads)} variants: {', '.join(found) or 'none'}."
        )
        if found:
            return "found", f"{len(found)} of {len(heads)} variants remember the feature.", text
        return "not_found", f"None of {len(heads)} variants was shown to remember the feature.", text
    rows = beyond[findings.variants[0]]
    named = ", ".join(_score_name(row["params"]) for row in rows)
    text = f"{_in_words(first)} {_proportions(findings, first['params'])}"
    if rows:
        return "found", "The models remember the feature.", (
            f"{text} Of the {len(_differences(findings, findings.variants[0]))} scores of this run, these lie beyond their "
            f"controls at .05 corrected for their number: {named}."
        )  # fmt: skip
    if first["ci_high"] is not None and first["ci_high"] < 0:
        return "odd", "The comparison is upside down.", text + " That is not memory of the feature at its label."
    missed = " A smaller effect could have been missed."
    limit = ALPHA / max(1, len(_differences(findings, findings.variants[0])))
    if 0.5 ** first["n"] >= limit:  # of exchanges within pairs, the observed one and its equals
        missed = f" With {first['n']} pairs no effect, however large, could have passed; raise nets.seeds or data_seeds."
    return "not_found", "No memory of the feature was shown.", text + missed


def _differences(findings: Findings, variant: str) -> list[dict[str, Any]]:
    """A variant's tested differences between canary nets and controls, one a score."""
    rows = [row for row in findings.rows if row["params"].get("variant", "") == variant and row["p_value"] is not None]
    return [row for row in rows if row["params"].get("group") == "canary - control"]


def _beyond(findings: Findings, variant: str, level: float) -> list[dict[str, Any]]:
    """Those beyond the controls at a level that all of them share."""
    rows = _differences(findings, variant)
    return [row for row in rows if row["p_value"] < level / len(rows) and (row["ci_low"] is None or row["ci_low"] > 0)]


def _verdict_on_own(findings: Findings) -> tuple[str, str, str]:
    first, limit = findings.rows[0], ALPHA / len(findings.rows)
    found = [_score_name(row["params"]) for row in findings.rows if row["p_value"] < limit]
    text = _in_words(first)
    if found:
        listed = ", ".join(found)
        return "found", "The model reacts to this feature as to no other.", (
            f"{text} Beyond the other features at .05 over all {len(findings.rows)} scores: {listed}."
        )  # fmt: skip
    text += " A weaker memory could have been missed."
    if 1 / (first["n"] + 1) >= limit:
        text = f"{_in_words(first)} With {first['n']} other features no score could have passed; use a longer text."
    return "not_found", "The model does not single this feature out.", text


def _score_name(params: Mapping[str, Any]) -> str:
    return f"{METRIC_NAMES[params['metric']]} on {params['output'].replace('_', ' ')}"


def _in_words(row: Mapping[str, Any]) -> str:
    params = row["params"]
    of = _score_name(params)
    of = of[0].upper() + of[1:]
    if params.get("null") == "other features":
        return (
            f"{of}: the feature moves the model by {row['value']:.3g}, {row['n']} other features of the same kind by "
            f"{row['null_value']:.3g} on average; {_p(row['p_value'])} for one of those to score as high."
        )
    interval = "" if row["ci_low"] is None else f" (95 % interval {_signed(row['ci_low'])} to {_signed(row['ci_high'])})"
    unit = f"{row['n']} draws of the data" if params["interval"] == "data" else f"{row['n']} pairs of nets from the same seed"
    return (
        f"{of}: where the feature stood in the training set the score is {_signed(row['value'])} higher than where it was "
        f"left out{interval}; {unit}, {_p(row['p_value'])}."
    )


def _proportions(findings: Findings, params: Mapping[str, Any]) -> str:
    at = {name: params.get(name, "") for name in ("variant", "metric", "output")} | {"criterion": "calibrated"}
    memorized, control = findings.find("proportion_memorized", **at), findings.find("proportion_control", **at)
    if memorized is None or control is None:
        return "There are too few controls to say of a single net whether it remembers."
    return (
        f"Of single nets, {_percent(memorized['value'])} score higher than {_level(params)} of the controls; "
        f"{_percent(control['value'])} of the controls themselves do."
    )


def _level(params: Mapping[str, Any]) -> str:
    return f"{100 * (1 - params['alpha']):g} %"


def _p(value: float | None) -> str:
    return "" if value is None else f"p = {value:.2g}"


def _signed(value: float) -> str:
    return f"{value:.3g}"


def build_page(
    recipe: Recipe, run: str, units: pa.Table, summary: pa.Table, curves: pa.Table, material: Material, folder: Path
) -> Page:
    """The page of a run; figures also go to `folder` as SVG and PNG.

    Args:
        recipe: what was run.
        run: its id.
        units, summary, curves: tables.UNIQUE_FEATURE_UNITS, SUMMARY and CURVES.
        material: pictures, boundaries and facts.
        folder: gets the figures.
    """
    findings = Findings(summary)
    kind, sentence, explanation = verdict(summary)
    frame = units.to_pandas()
    sections = [
        _nulls_section(frame, folder) if recipe.trained is not None else _nets_section(frame, findings, folder),
        _significance_section(findings, recipe),
        _picture_section(material),
        _draws_section(curves, findings, folder),
        _epoch_section(curves, findings, folder),
        _boundary_section(material, folder),
        _settings_section(frame, findings, folder),
        _removal_section(curves, findings, folder),
        _attention_section(material),
        _canary_section(curves, findings, folder),
        _latent_section(curves, folder),
        _pull_section(findings),
        Section(
            heading="What was run",
            paragraphs=[
                "Methods: Hartley et al. 2023, Neural networks memorise personal information from one sample (Eqs. 1 to 3), "
                "and Hartley and Tsaftaris 2022, Unintended memorisation of unique features in neural networks."
            ],
            table=TableView(("", ""), list(material.facts.items())),
        ),
    ]
    return Page(
        title=recipe.title, audit="unique-feature", run=run, verdict=sentence, verdict_kind=kind, lead=explanation,
        numbers=_numbers(findings), sections=[section for section in sections if section is not None],
    )  # fmt: skip


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    at = {name: findings.headline.get(name, "") for name in ("variant", "metric", "output")}
    shown = []
    for group, title in (
        ("canary - control", "difference that the feature's appearance made"),
        ("canary", "mean score with the feature"),
        ("control", "mean score without it"),
    ):
        row = findings.find(str(at["metric"]), **at, group=group, statistic="mean")
        if row is not None:
            shown.append((f"{row['value']:.3g}", title, _interval(row)))
    criterion = "calibrated" if findings.find("proportion_memorized", **at, criterion="calibrated") else "published"
    for name, title in (("proportion_memorized", "with the feature"), ("proportion_control", "without it")):
        row = findings.find(name, **at, criterion=criterion)
        if row is not None:
            shown.append(
                (_percent(row["value"]), f"of nets called memorizing, {title} ({criterion} criterion)", _interval(row))
            )
    for row in findings.rows[:2] if not shown else ():
        where = f"{METRIC_NAMES.get(row['params']['metric'], '')}, {row['params']['output']}"
        shown.append((f"{row['value']:.3g}", where, f"other features {row['null_value']:.3g}, {_p(row['p_value'])}"))
    return shown


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _interval(row: Mapping[str, Any]) -> str:
    if row["ci_low"] is None:
        return ""
    return f"95 %: {row['ci_low']:.3g} to {row['ci_high']:.3g}"


def _named(variant: str) -> str:
    return variant or "all nets"


def _headline_scores(frame: Any, findings: Findings) -> Any:
    at = findings.headline
    mine = frame[(frame["metric"] == at.get("metric")) & (frame["output"] == at.get("output")) & frame["own_label"]]
    return mine[(mine["draw"] == 0) & (mine["feature"] == "canary")]


def _nets_section(frame: Any, findings: Findings, folder: Path) -> Section:
    mine = _headline_scores(frame, findings)
    variants = findings.variants[:PANELS]
    figure = new_panels(len(variants)) if len(variants) > 1 else new_figure()
    for axes, variant in zip(figure.axes, variants, strict=True):
        for control, series in ((True, "control"), (False, "canary")):
            values = np.sort(mine[(mine["variant"] == variant) & (mine["control"] == control)]["value"].to_numpy())
            if len(values):
                share = (np.arange(len(values)) + 0.5) / len(values)
                label = "with the feature" if series == "canary" else "control"
                axes.plot(
                    values, share, color=COLOURS[series], label=label, lw=1.6, marker="o" if len(values) <= 60 else "", ms=3
                )
        axes.axvline(0, color=MUTED, lw=1)
        axes.set_xlabel("score of a net")
        percent_axis(axes.yaxis)
        axes.set_ylabel("nets at or below")
        if len(variants) > 1:
            axes.set_title(variant, fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=8)
    at = findings.headline
    return Section(
        heading="Every net, with its control beside it",
        paragraphs=[
            "Each net with the feature in one training example has a control from the same seed that saw the same example "
            "without it. What both curves share is what features of this kind do to any such net; where they part is memory. "
            f"Score: {METRIC_NAMES[at['metric']]}, on {at['output'].replace('_', ' ')}."
        ],
        svg=save_figure(figure, folder, "scores"),
        figure_caption="Share of nets whose score is at most the value on the horizontal axis.",
    )


def _nulls_section(frame: Any, folder: Path) -> Section:
    black = frame[(frame["metric"] == "m_black")]
    outputs = list(dict.fromkeys(black["output"]))
    figure = new_panels(len(outputs), columns=2)
    for axes, output in zip(figure.axes, outputs, strict=True):
        part = black[black["output"] == output]
        axes.hist(part[part["feature"] != "canary"]["value"], bins=20, color=REFERENCE, label="other features")
        axes.axvline(float(part[part["feature"] == "canary"]["value"].iloc[0]), color=TARGET, lw=2, label="the feature")
        axes.set_xlabel(f"black-box M on {output}")
    figure.axes[0].legend(frameon=False, fontsize=8)
    return Section(
        heading="The feature among others that the model cannot know",
        paragraphs=[
            "The same model is shown other texts in the same typeface and place. A feature that it does not know is one of "
            "them; one that it remembers stands out. Pixel noise would be no fair comparison: any text differs from noise."
        ],
        svg=save_figure(figure, folder, "null_features"),
    )


def _significance_section(findings: Findings, recipe: Recipe) -> Section:
    if recipe.trained is not None:
        nulls = [
            (
                METRIC_NAMES[r["params"]["metric"]],
                r["params"]["output"],
                f"{r['value']:.4g}",
                f"{r['null_value']:.4g}",
                str(r["n"]),
                _p(r["p_value"]),
            )
            for r in findings.rows
        ]
        own = ("score", "output", "the feature", "mean of other features", "other features", "p (rank among them)")
        return Section(heading="Significance", table=TableView(own, nulls))
    single = any(row["params"].get("criterion") == "calibrated" for row in findings.rows)
    alpha = findings.headline["alpha"]
    rows = []
    for row in findings.rows:
        params = row["params"]
        if row["metric"] not in ("proportion_excess",) and params.get("group") != "canary - control":
            continue
        variant = params.get("variant", "")
        title = (
            f"nets beyond controls, {params['criterion']}"
            if row["metric"] == "proportion_excess"
            else "mean score, paired difference"
        )
        pair = ""
        if row["metric"] == "proportion_excess":
            at = {name: params.get(name, "") for name in ("variant", "metric", "output", "criterion")}
            with_, without = findings.find("proportion_memorized", **at), findings.find("proportion_control", **at)
            pair = " / ".join(_percent(r["value"]) for r in (with_, without) if r)
        else:
            at = {name: params.get(name, "") for name in ("variant", "metric", "output")}
            both = [findings.find(params["metric"], **at, group=g, statistic="mean") for g in ("canary", "control")]
            pair = " / ".join(f"{r['value']:.3g}" for r in both if r)
        value = _percent(row["value"]) if row["metric"] == "proportion_excess" else f"{row['value']:.3g}"
        cells = (
            METRIC_NAMES[params["metric"]],
            params["output"].replace("_", " "),
            title,
            pair,
            value,
            _interval(row),
            _p(row["p_value"]),
        )
        rows.append([variant, *cells] if findings.variants != [""] else [*cells])
    heads = ["setting", "output", "what", "with / without", "difference", "interval", "p"]
    heads = ["variant", *heads] if findings.variants != [""] else heads
    note = (
        f"Calibrated: a net counts when its score ranks among the highest {100 * alpha:g} % of the controls of other seeds. "
        if single
        else f"There are too few controls to call a single net memorizing at {alpha:g}, so only the experiment as a whole is "
        f"tested; {math.ceil(1 / alpha)} controls are enough, 100 are better. "
    )
    return Section(
        heading="Significance",
        paragraphs=[
            note
            + "Published: the papers' paired t-test over examples, which speaks of one net and also calls nets memorizing "
            "that never saw the feature; it is shown for comparison, and its controls beside it.",
        ],
        table=TableView(heads, rows[:24]),
        details=TableView(heads, rows) if len(rows) > 24 else None,
        details_title=f"All {len(rows)} comparisons",
    )


def _picture_section(material: Material) -> Section | None:
    if not material.pictures:
        return None
    return Section(
        heading="The feature in its examples",
        paragraphs=["The canaries as the models saw them, and the clean twins that the controls saw."],
        pictures=[(data_uri(image, side=128), caption) for image, caption in material.pictures],
    )


def _attention_section(material: Material) -> Section | None:
    if not material.attention:
        return None
    return Section(
        heading="What the model looks at",
        paragraphs=[
            "GradCAM of the canary's class in the net with the highest score (warm: much, cold: little; 2023, Fig. 8)."
        ],
        pictures=[(data_uri(image, side=128), caption) for image, caption in material.attention],
    )


def _lines(curves: pa.Table, name: str, **params: Any) -> dict[str, tuple[list[float], list[float]]]:
    """The points of a curve by series, at these params."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    for row in curves.to_pylist():
        at = json.loads(row["params"])
        if row["curve"] == name and all(at.get(key, "") == value for key, value in params.items()):
            x, y = found.setdefault(row["series"], ([], []))
            x.append(row["x"])
            y.append(row["y"])
    return found


def _has(curves: pa.Table, name: str) -> bool:
    return name in set(curves["curve"].to_pylist())


def _epoch_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    if not _has(curves, "proportion_by_epoch"):
        return None
    output, variants = findings.headline["output"], findings.variants[:PANELS]
    figure = new_panels(len(variants)) if len(variants) > 1 else new_figure()
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
            f"Share of nets called memorizing after each epoch (on {output}; 2023, Fig. 4). The controls' dashed line is "
            "what the published one finds where there is nothing to find: its share at the first epoch is no early memory."
        ],
        svg=save_figure(figure, folder, "by_epoch"),
    )


def _draws_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    if not _has(curves, "proportion_by_data_seed"):
        return None
    at, variants = findings.headline, findings.variants[:PANELS]
    figure = new_panels(len(variants)) if len(variants) > 1 else new_figure()
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
        heading="From draw to draw of the data",
        paragraphs=[
            "The share of nets called memorizing on each draw of the data. How far it varies from draw to draw is how "
            "little a single draw's number says; intervals here are over draws."
        ],
        svg=save_figure(figure, folder, "by_data_seed"),
    )


def _boundary_section(material: Material, folder: Path) -> Section | None:
    if not material.boundaries:
        return None
    figure = new_panels(2 * len(material.boundaries), columns=2)
    for place, boundary in enumerate(material.boundaries):
        for side, (title, values) in enumerate((("without", boundary.clean), ("with the feature", boundary.featured))):
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
    )


def _settings_section(frame: Any, findings: Findings, folder: Path) -> Section | None:
    output = findings.headline.get("output")
    mine = frame[(frame["draw"] == 0) & (frame["feature"] == "canary") & frame["own_label"]]
    wide = mine[mine["output"] == output].pivot_table(
        index=["variant", "data_seed", "net", "control"], columns="metric", values="value"
    )
    others = [metric for metric in ("m_grey", "m_black") if metric in wide.columns and "m_white" in wide.columns]
    if not others or len(wide) < 4:
        return None
    figure = new_panels(len(others), columns=2)
    for axes, metric in zip(figure.axes, others, strict=True):
        for control in (True, False):
            part = wide[wide.index.get_level_values("control") == control]
            colour = COLOURS["control" if control else "canary"]
            axes.scatter(
                part["m_white"],
                part[metric],
                s=8,
                color=colour,
                alpha=0.6,
                label="control" if control else "with the feature",
            )
        axes.set_xlabel("white box")
        axes.set_ylabel(METRIC_NAMES[metric])
    figure.axes[0].legend(frameon=False, fontsize=8)
    rows = [
        (
            row["params"].get("variant", "all nets"),
            row["params"]["of"],
            row["params"]["output"],
            f"{row['value']:.2f}",
            _interval(row),
            str(row["n"]),
        )
        for row in findings.rows
        if row["metric"] == "correlation" and row["params"]["output"] == output
    ]
    return Section(
        heading="With less and less access",
        paragraphs=[
            f"Each net's score in the white box against what an outsider sees, on {output} (2023, Figs. 6 and 7). Grey and "
            "black box take the highest of all labels, so their scores lie high for controls too."
        ],
        svg=save_figure(figure, folder, "settings"),
        table=TableView(("variant", "scores", "output", "correlation over canary nets", "interval", "nets"), rows)
        if rows
        else None,
    )


def _removal_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
    if not _has(curves, "m_by_removed_pixels"):
        return None
    output, variants = findings.headline["output"], findings.variants[:PANELS]
    figure = new_panels(len(variants)) if len(variants) > 1 else new_figure()
    for axes, variant in zip(figure.axes, variants, strict=True):
        for series, (x, y) in _lines(curves, "m_by_removed_pixels", variant=variant, output=output).items():
            axes.plot(
                x, y, color=COLOURS[series], label="with the feature" if series == "canary" else "control", marker="o", ms=3
            )
        axes.set_xlabel("pixels taken out of the feature")
        axes.set_ylabel("mean white-box M")
        axes.set_title(variant, fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=8)
    return Section(
        heading="Parts of the feature",
        paragraphs=["The score when the nets are shown the feature with some of its pixels taken out (2023, Fig. 5)."],
        svg=save_figure(figure, folder, "removed_pixels"),
    )


def _canary_section(curves: pa.Table, findings: Findings, folder: Path) -> Section | None:
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
    axes.vlines(x, lines["min"][1], lines["max"][1], color=MUTED, lw=2, label="lowest to highest net")
    axes.plot(x, middle, "o", color=TARGET, ms=4, label="mean")
    axes.axhline(0, color=INK, lw=0.8)
    axes.set_xlabel("canary, in order of its mean score")
    axes.set_ylabel(METRIC_NAMES[str(metric)])
    axes.legend(frameon=False)
    return Section(
        heading="From canary to canary",
        paragraphs=["Scores of the nets of each canary (2022, Figs. 3a to 6): the dots differ by canary, the lines by seed."],
        svg=save_figure(figure, folder, "by_canary"),
    )


def _latent_section(curves: pa.Table, folder: Path) -> Section | None:
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
    axes.set_ylabel("how often, relative to the highest")
    axes.legend(frameon=False)
    return Section(
        heading="Which units the feature excites",
        paragraphs=[
            "Units that the feature excites and the clean example does not, over nets from the same seed (2022, Fig. 3b). "
            "What controls share with nets that saw the feature is no memory of it."
        ],
        svg=save_figure(figure, folder, "latent"),
    )


def _pull_section(findings: Findings) -> Section | None:
    rows = [
        (row["params"].get("variant", ""), row["params"]["example"], row["params"]["group"], f"{row['value']:.3g}")
        for row in findings.rows
        if row["metric"] == "self_influence_canary"
    ]
    if not rows:
        return None
    return Section(
        heading="The canaries' pull",
        paragraphs=[
            "Self-influence of a canary in models from the same seed, trained with the feature in it and without (2022)."
        ],
        table=TableView(("variant", "canary", "trained", "self-influence"), rows),
    )
