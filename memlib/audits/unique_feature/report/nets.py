"""Sections on nets: their scores, what the tests say, settings and pulls."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from memlib.audits.unique_feature.report.findings import (
    COLOURS,
    METRIC_NAMES,
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


def nulls_section(frame: Any, findings: Findings, folder: Path) -> Section:
    """An external model: the feature's scores among those of other features."""
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
            f"The same model is shown {others} in the same typeface and place. A feature that it does not know is one of "
            "them; one that it remembers stands out. The comparison is only as good as its kind: a model that knows names "
            "reacts more to any name than to random letters. Each label's score is centred by its mean over all features."
        ],
        svg=save_figure(figure, folder, "null_features"),
        figure_caption="How many other features reach each score (bars), and the score of the feature in question (line).",
    )


def own_section(findings: Findings) -> Section:
    """Each score's rank among null features, and what could have been found."""
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
    heads = ("score", "in units of", "the feature", "others, mean", "others", "rank", "adjusted (Holm)", "80 % power at")
    return Section(heading="Significance", table=TableView(heads, rows))


def tests_section(findings: Findings) -> Section:
    """Every test of a difference between canary nets and controls."""
    rows = []
    for row in findings.rows:
        params = row["params"]
        if params.get("group") != "canary - control" or params["statistic"] != "mean":
            continue
        at = {name: params.get(name, "") for name in ("variant", "metric", "output")}
        both = [findings.find(params["metric"], **at, group=g, statistic="mean") for g in ("canary", "control")]
        cells = [
            METRIC_NAMES[params["metric"]], params["output"].replace("_", " "),
            " / ".join(f"{r['value']:.3g}" for r in both if r), f"{row['value']:.3g}", interval_text(row),
            p_text(row["p_adjusted"]), _found_at(row), row["verdict"] or "not tested",
        ]  # fmt: skip
        rows.append(_with_variant(findings, params, cells))
    heads = ["score", "in units of", "with / without", "difference", "interval", "adjusted p", "80 % power at", "verdict"]
    return _table(
        findings, "What the feature's appearance changed", heads, rows,
        "Differences between canary nets and their controls, within pairs of one seed; with and without are means over all "
        "nets, so that they need not differ by as much. The first is the test of the run (Holm over variants); the "
        "other scores are a second family, adjusted together (max-T). The tests exchange canary nets and controls within "
        "their pairs: under the null, for these canaries, the feature changed nothing.",
    )  # fmt: skip


def proportions_section(findings: Findings) -> Section | None:
    """How many single nets could be called memorizing."""
    rows = []
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
    if not rows:
        return None
    heads = ["score", "in units of", "criterion", "with the feature", "without it", "interval", "adjusted p"]
    return _table(
        findings, "Single nets", heads, rows,
        "Calibrated: nets beyond a threshold that a control exceeds by chance as often as stated; it is estimated from the "
        "controls, so the test is beta-binomial and there is no interval over nets. Published: the papers' paired t-test "
        "over examples, which also calls nets memorizing that never saw the feature.",
    )  # fmt: skip


def changes_section(findings: Findings) -> Section | None:
    """How the headline changes from the first variant to the others."""
    rows = [
        (row["params"]["variant"], row["params"]["from"], f"{row['value']:.3g}", interval_text(row), str(row["n"]))
        for row in findings.rows
        if row["params"].get("statistic") == "change"
    ]
    if not rows:
        return None
    return Section(
        heading="From variant to variant",
        paragraphs=["How much larger the difference to the controls is than in the first variant; estimates, not tests."],
        table=TableView(("variant", "compared with", "change of the difference", "interval", "units"), rows),
    )


def _found_at(row: Mapping[str, Any]) -> str:
    """The effect that the test would have found with a power of 80 %."""
    if row["role"] != "test":
        return ""
    return "nothing" if row["detectable"] is None else f"{row['detectable']:.3g}"


def _with_variant(findings: Findings, params: Mapping[str, Any], cells: list[str]) -> list[str]:
    return [params.get("variant", ""), *cells] if findings.variants != [""] else cells


def _table(findings: Findings, heading: str, heads: list[str], rows: list[list[str]], text: str) -> Section:
    heads = ["variant", *heads] if findings.variants != [""] else heads
    return Section(
        heading=heading, paragraphs=[text], table=TableView(heads, rows[:24]),
        details=TableView(heads, rows) if len(rows) > 24 else None, details_title=f"All {len(rows)} rows",
    )  # fmt: skip


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
            "black box take the highest of all labels, each centred by the controls, so controls lie above zero too."
        ],
        svg=save_figure(figure, folder, "settings"),
        figure_caption="Each net's score in grey or black box (vertical) by its score in the white box (horizontal).",
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
