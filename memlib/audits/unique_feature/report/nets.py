"""Sections on nets: scores, tests, levels of access, and self-influence of the canaries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memlib.audits.unique_feature.report.findings import (
    COLOURS,
    METRIC_NAMES,
    MOST_ROWS,
    PANELS,
    Findings,
    interval_text,
    p_text,
    percent_text,
)
from memlib.audits.unique_feature.verdict import NULLS, score_name
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


def _headline_scores(frame: Any, findings: Findings) -> Any:
    at = findings.headline
    scores = frame[(frame["metric"] == at.get("metric")) & (frame["output"] == at.get("output")) & frame["own_label"]]
    return scores[(scores["draw"] == 0) & (scores["feature"] == "canary")]


def nets_section(frame: Any, findings: Findings, folder: Path) -> Section:
    """Return the section on the scores of nets with and without the feature."""
    scores = _headline_scores(frame, findings)
    variants = findings.variants[:PANELS]
    figure = panels_for(variants)
    for axes, variant in zip(figure.axes, variants, strict=True):
        for control, series in ((True, "control"), (False, "canary")):
            values = np.sort(scores[(scores["variant"] == variant) & (scores["control"] == control)]["value"].to_numpy())
            if len(values):
                share = (np.arange(len(values)) + 0.5) / len(values)
                label = "with the feature" if series == "canary" else "control"
                axes.plot(
                    values, share, color=COLOURS[series], label=label, lw=1.6, marker="o" if len(values) <= 60 else "", ms=3
                )
        axes.axvline(0, color=MUTED, lw=1)
        axes.set_xlabel("score of a model")
        percent_axis(axes.yaxis)
        axes.set_ylabel("models at or below")
        if len(variants) > 1:
            axes.set_title(variant, fontsize=9)
    figure.axes[0].legend(frameon=False, fontsize=8)
    at = findings.headline
    return Section(
        heading="Each model and its control",
        paragraphs=[
            "Each model trained with the feature in an example has a control: a model from the same seed that saw the same "
            "example without the feature. What the two curves share is how any such model reacts to the feature; the gap "
            f"between them is memory. Score: {METRIC_NAMES[at['metric']]}, on {at['output'].replace('_', ' ')}."
        ],
        svg=save_figure(figure, folder, "scores"),
        figure_caption="Share of models (vertical) whose score is at most the value on the horizontal axis.",
    )


def nulls_section(frame: Any, findings: Findings, folder: Path) -> Section:
    """Return the section that shows an external model's scores for the feature among those for other features."""
    tests = [row["params"] for row in findings.tests]
    figure = new_panels(len(tests), columns=2)
    for axes, params in zip(figure.axes, tests, strict=True):
        part = frame[(frame["metric"] == params["metric"]) & (frame["output"] == params["output"])]
        axes.hist(part[part["feature"] != "canary"]["value"], bins=20, color=REFERENCE, label="others")
        axes.axvline(float(part[part["feature"] == "canary"]["value"].iloc[0]), color=TARGET, lw=2, label="the feature")
        axes.set_xlabel(score_name(params))
    figure.axes[0].legend(frameon=False, fontsize=8)
    others = NULLS[str(findings.headline["null"])]
    return Section(
        heading="The feature among others of its kind",
        paragraphs=[
            f"The model was also shown {others} in the same typeface and place. A feature that it remembers tends to "
            "stand out; not standing out is no proof that it is not remembered. The comparison is only as good as the choice "
            "of the other features: a model that knows names reacts more to any name than to random letters. Each label's "
            "score is centred by its mean over all features."
        ],
        svg=save_figure(figure, folder, "null_features"),
        figure_caption="Number of other features with each score (bars), and the score of the tested feature (line).",
    )


def own_section(findings: Findings) -> Section:
    """Return the section with the rank test of each score among null features, and the effect that it could have found."""
    rows = []
    for row in findings.tests:
        params = row["params"]
        at = {name: params[name] for name in ("metric", "output")}
        both = [findings.find(params["metric"], **at, group=group) for group in ("feature", "others")]
        rows.append(
            (
                METRIC_NAMES[params["metric"]], params["output"], *(f"{r['value']:.3g}" for r in both if r is not None),
                str(params["nulls"]), p_text(row["p_value"]), p_text(row["p_adjusted"]), _found_at(row),
            )
        )  # fmt: skip
    heads = (
        "score", "output", "the feature", "mean of others", "number of others", "p-value by rank", "adjusted (Holm)",
        "80 % power at",
    )  # fmt: skip
    return Section(heading="Significance", table=TableView(heads, rows))


def tests_section(findings: Findings) -> Section:
    """Return the section with all tests of differences between canary nets and controls."""
    rows, main = [], []
    for row in findings.rows:
        params = row["params"]
        if params.get("group") != "canary - control" or params["statistic"] != "mean":
            continue
        at = {name: params.get(name, "") for name in ("variant", "metric", "output")}
        both = [findings.find(params["metric"], **at, group=g, statistic="mean") for g in ("canary", "control")]
        cells = [
            METRIC_NAMES[params["metric"]], params["output"].replace("_", " "),
            " / ".join(f"{r['value']:.3g}" for r in both if r), f"{row['value']:.3g}", interval_text(row),
            p_text(row["p_adjusted"]), _found_at(row), row["verdict"] or ("" if row["role"] == "test" else "not tested"),
        ]  # fmt: skip
        rows.append(_with_variant(findings, params, cells))
        main += [rows[-1]] if findings.is_headline(params) else []
    heads = [
        "score",
        "output",
        "with / without",
        "difference",
        "95 % interval",
        "adjusted p-value",
        "80 % power at",
        "verdict",
    ]
    return _table(
        findings, "What the feature changed", heads, rows, main,
        "Differences between the models that saw the feature and their controls, within pairs from the same seed. The means "
        "with and without the feature are over all models, so they need not differ by exactly this amount. The score "
        "shown first carries the verdict (Holm over variants); the other scores form a second family, adjusted together "
        "(max-T). The tests exchange models and controls within their pairs: under the null, the feature "
        "changed nothing for these canaries. The test finds a difference of the size under '80 % power at' with a "
        "probability of 80 %.",
    )  # fmt: skip


def proportions_section(findings: Findings) -> Section | None:
    """Return the section on the share of single nets that meet each criterion."""
    rows, main = [], []
    for row in findings.rows:
        params = row["params"]
        if row["metric"] != "proportion_memorized":
            continue
        at = {name: params.get(name, "") for name in ("variant", "metric", "output", "criterion")}
        control = findings.find("proportion_control", **at)
        null = percent_text(row["null_value"]) if row["null_value"] is not None else ""
        cells = [
            METRIC_NAMES[params["metric"]], params["output"].replace("_", " "), params["criterion"],
            percent_text(row["value"]), percent_text(control["value"]) if control else null, interval_text(row),
            p_text(row["p_adjusted"]),
        ]  # fmt: skip
        rows.append(_with_variant(findings, params, cells))
        main += [rows[-1]] if findings.is_headline(params) else []
    if not rows:
        return None
    heads = ["score", "output", "criterion", "with the feature", "without it", "95 % interval", "adjusted p-value"]
    return _table(
        findings, "Single models", heads, rows, main,
        "Share of models that each criterion flags as memorizing. Calibrated: the score exceeds a threshold that a control "
        "exceeds by chance as often as stated. The threshold is estimated from the controls, so the test is beta-binomial "
        "and there is no interval over models. Published: the papers' paired t-test over examples, which also flags models "
        "that never saw the feature.",
    )  # fmt: skip


def changes_section(findings: Findings) -> Section | None:
    """Return the section on changes in the headline from the first variant to the others."""
    rows = [
        (row["params"]["variant"], row["params"]["from"], f"{row['value']:.3g}", interval_text(row), str(row["n"]))
        for row in findings.rows
        if row["params"].get("statistic") == "change"
    ]
    if not rows:
        return None
    return Section(
        heading="Changes between variants",
        paragraphs=[
            "Increase in the difference from the controls, relative to the first variant. These are estimates, not tests."
        ],
        table=TableView(("variant", "compared with", "change of the difference", "interval", "units"), rows),
    )


def _found_at(row: Mapping[str, Any]) -> str:
    """Return the effect that the test would have found with a power of 80 %, as text."""
    if row["role"] != "test":
        return ""
    return "none, however large" if row["detectable"] is None else f"{row['detectable']:.3g}"


def _with_variant(findings: Findings, params: Mapping[str, Any], cells: list[str]) -> list[str]:
    return [params.get("variant", ""), *cells] if findings.variants != [""] else cells


def _table(
    findings: Findings, heading: str, heads: list[str], rows: list[list[str]], main: list[list[str]], text: str
) -> Section:
    """Return a section that shows the rows of the headline's score; the other rows are folded."""
    heads = ["variant", *heads] if findings.variants != [""] else heads
    main = main or rows
    return Section(
        heading=heading, paragraphs=[text], table=TableView(heads, main[:MOST_ROWS]),
        details=TableView(heads, rows) if len(rows) > len(main[:MOST_ROWS]) else None,
        details_title=f"All {len(rows)} rows, with the other scores",
    )  # fmt: skip


def settings_section(frame: Any, findings: Findings, folder: Path) -> Section | None:
    """Return the section that compares white, grey and black box."""
    output = findings.headline.get("output")
    scores = frame[(frame["draw"] == 0) & (frame["feature"] == "canary") & frame["own_label"]]
    wide = scores[scores["output"] == output].pivot_table(
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
            row["params"].get("variant", "all models"),
            " and ".join(METRIC_NAMES[name] for name in row["params"]["of"].split(" and ")),
            row["params"]["output"],
            f"{row['value']:.2f}",
            interval_text(row),
            str(row["n"]),
        )
        for row in findings.rows
        if row["metric"] == "correlation" and row["params"]["output"] == output
    ]
    return Section(
        heading="With less knowledge of the training data",
        paragraphs=[
            f"Each model's score in the white box against the scores of those who know less of the training data, on "
            f"{output} (2023, Figs. 6 and 7). Grey and black box take the maximum over labels, each centred by the controls, "
            "so that controls lie above zero as well."
        ],
        svg=save_figure(figure, folder, "settings"),
        figure_caption="Each model's score in the grey or black box (vertical) by its score in the white box (horizontal).",
        table=TableView(
            ("variant", "scores", "output", "correlation over models that saw the feature", "interval", "models"), rows
        )
        if rows
        else None,
    )


def pull_section(findings: Findings) -> Section | None:
    """Return the section on the self-influence of canaries, trained with and without the feature."""
    rows = [
        (row["params"].get("variant", ""), row["params"]["example"], row["params"]["group"], f"{row['value']:.3g}")
        for row in findings.rows
        if row["metric"] == "self_influence_canary"
    ]
    if not rows:
        return None
    return Section(
        heading="Self-influence of the canaries",
        paragraphs=[
            "Self-influence of each canary in models from the same seed, trained with the feature in it and without (2022)."
        ],
        table=TableView(("variant", "canary", "trained", "self-influence"), rows),
    )
