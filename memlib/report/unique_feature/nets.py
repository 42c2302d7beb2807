"""Sections on nets: their scores, what the tests say, settings and pulls."""

import math
from pathlib import Path
from typing import Any

import numpy as np

from memlib.audits.unique_feature import Recipe
from memlib.report.figures import (
    MUTED,
    REFERENCE,
    TARGET,
    new_panels,
    panels_for,
    percent_axis,
    save_figure,
)
from memlib.report.page import Section, TableView
from memlib.report.unique_feature.findings import COLOURS, METRIC_NAMES, PANELS, Findings, interval_text, p_text, percent_text


def _headline_scores(frame: Any, findings: Findings) -> Any:
    at = findings.headline
    mine = frame[(frame["metric"] == at.get("metric")) & (frame["output"] == at.get("output")) & frame["own_label"]]
    return mine[(mine["draw"] == 0) & (mine["feature"] == "canary")]


def nets_section(frame: Any, findings: Findings, folder: Path) -> Section:
    """Scores of nets with and without the feature."""
    mine = _headline_scores(frame, findings)
    variants = findings.variants[:PANELS]
    figure = panels_for(variants)
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


def nulls_section(frame: Any, folder: Path) -> Section:
    """One's own model: its score among those of other features."""
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


def significance_section(findings: Findings, recipe: Recipe) -> Section:
    """Every test that was made, corrected for their number."""
    if recipe.trained is not None:
        nulls = [
            (
                METRIC_NAMES[r["params"]["metric"]],
                r["params"]["output"],
                f"{r['value']:.4g}",
                f"{r['null_value']:.4g}",
                str(r["n"]),
                p_text(r["p_value"]),
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
            pair = " / ".join(percent_text(r["value"]) for r in (with_, without) if r)
        else:
            at = {name: params.get(name, "") for name in ("variant", "metric", "output")}
            both = [findings.find(params["metric"], **at, group=g, statistic="mean") for g in ("canary", "control")]
            pair = " / ".join(f"{r['value']:.3g}" for r in both if r)
        value = percent_text(row["value"]) if row["metric"] == "proportion_excess" else f"{row['value']:.3g}"
        cells = (
            METRIC_NAMES[params["metric"]],
            params["output"].replace("_", " "),
            title,
            pair,
            value,
            interval_text(row),
            p_text(row["p_value"]),
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


def settings_section(frame: Any, findings: Findings, folder: Path) -> Section | None:
    """White, grey and black box beside one another."""
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
            interval_text(row),
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


def pull_section(findings: Findings) -> Section | None:
    """Self-influence of the canaries, trained with the feature in them and without."""
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
