"""What the forgetting page says and shows."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.forgetting import FORGOTTEN, NULL, RETAINED, TARGET, UNDECIDED, Recipe
from memlib.data.sets import CALIBRATION, QUERY
from memlib.report.figures import INK, MUTED, REFERENCE, data_uri, new_figure, save_figure
from memlib.report.figures import TARGET as TARGET_COLOUR
from memlib.report.page import Page, Section, TableView
from memlib.stats.divergence import ks_gap

KINDS = {RETAINED: "found", FORGOTTEN: "not_found", UNDECIDED: "odd"}
COLOURS = {QUERY: "#7a3b9a", CALIBRATION: REFERENCE, NULL: "#5f8f6b", RETAINED: "#b07d2b", TARGET: TARGET_COLOUR}
SHOWN_TARGETS = 4
EDGE = 1e-7
TICKS = (0.001, 0.1, 0.5, 0.9, 0.999, 0.99999)


def verdict(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> tuple[str, str, str]:
    """(kind, one sentence, its explanation) in words that need no statistics."""
    found = {row["params"]["target"]: row for row in rows if row["params"].get("kind") == TARGET}
    domain = (
        ""
        if recipe.null_has_the_domain
        else " The comparison models have seen no images like D_Q: a model that has learnt such images elsewhere looks like "
        "one that trained on D_Q, so 'retained' may mean either. Give a set `provider` of such images to tell them apart."
    )
    trust = " " + _trust(rows, recipe)
    if len(found) > 1:
        by = {name: row["params"]["verdict"] for name, row in found.items()}
        kind = RETAINED if RETAINED in by.values() else UNDECIDED if UNDECIDED in by.values() else FORGOTTEN
        listed = "; ".join(f"{name}: {verdict}" for name, verdict in by.items())
        count = sum(v == RETAINED for v in by.values())
        return KINDS[kind], f"{count} of {len(by)} models were found to retain D_Q.", f"{listed}.{trust}{domain}"
    ((_, row),) = found.items()
    which = row["params"]["verdict"]
    interval = f"rho = {row['value']:.2f} (95 % interval {row['ci_low']:.2f} to {row['ci_high']:.2f})"
    sentence = {
        RETAINED: "The model behaves as one that has used this data set.",
        FORGOTTEN: f"The model behaves as one that has used none of this data set, or much less than {_share(recipe)} of it.",
        UNDECIDED: "It cannot be said whether the model has used this data set.",
    }[which]
    level = f"{100 * recipe.verdict.alpha:g} %"
    explanation = {
        RETAINED: f"Of models that saw none of D_Q fewer than {level} would behave like this.",
        FORGOTTEN: f"Models that saw none of D_Q behave alike; of models that saw {_share(recipe)} of it fewer than {level} "
        "would.",
        UNDECIDED: f"Models that saw none of D_Q and models that saw {_share(recipe)} of it could both behave like this, or "
        "neither: a model that was trained otherwise, or outputs that are not its own.",
    }[which]
    return (
        KINDS[which],
        sentence,
        f"{explanation} {interval}; 0 is a model trained on D_Q, 1 one that was not.{trust}{domain}",
    )


def _share(recipe: Recipe) -> str:
    return f"{100 * recipe.verdict.retained_mix[QUERY]:g} %"


def _trust(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> str:
    shares = {
        (row["params"]["target"], row["params"]["verdict"]): row
        for row in rows
        if row["metric"] == "share_of_verdicts" and row["params"]["target"] in ("null models", "retained models")
    }
    said = []
    for group, title in (("null models", "saw none of D_Q"), ("retained models", f"saw {_share(recipe)} of D_Q")):
        counts = [f"{round(shares[group, v]['value'] * shares[group, v]['n'])} {v}" for v in (RETAINED, FORGOTTEN, UNDECIDED)]
        said.append(f"of {shares[group, RETAINED]['n']} models that {title}: {', '.join(counts)}")
    return f"The same rule, tried on models whose truth is known, says {'; '.join(said)}."


def build_page(
    recipe: Recipe,
    run: str,
    tables: Mapping[str, pa.Table],
    confidences: Mapping[tuple[str, str], NDArray[np.float64]],
    removed: Sequence[tuple[str, str]],
    show: Callable[[str], NDArray[np.uint8]],
    facts: Mapping[str, str],
    folder: Path,
) -> Page:
    """The page of a run; figures also go to `folder` as SVG and PNG.

    Args:
        recipe: what was run.
        run: its id.
        tables: units, examples, summary and curves by name.
        confidences: (num_examples,) of the first model of each group and target.
        removed: examples that were taken out of a set as copies of D_Q, and why.
        show: an example's picture.
        facts: rows of the last section.
        folder: gets the figures.
    """
    rows = [{**row, "params": json.loads(row["params"])} for row in tables["summary"].to_pylist()]
    kind, sentence, explanation = verdict(rows, recipe)
    compared = "the mean likelihood ratio of D_Q's examples" if recipe.verdict.statistic == "likelihood_ratio" else "rho"
    sections = [
        _rho_section(rows),
        _distribution_section(recipe, confidences, folder),
        _mix_section(tables["curves"], recipe, folder),
        _change_section(rows),
        _trust_section(rows),
        _examples_section(tables["examples"], rows, recipe, show),
        _membership_section(rows),
        _overlap_section(removed),
        Section(
            heading="What was run",
            paragraphs=[
                "Method: Liu and Tsaftaris 2020, Have you forgotten? (Eqs. 2 to 4). Their rule, rho below 1 means not "
                f"forgotten, errs half the time on models without D_Q, so the verdict compares {compared} with models whose "
                "truth is known. Likelihood ratios by example: LiRA (Carlini et al. 2022) with query and calibration models."
            ],
            table=TableView(("", ""), list(facts.items())),
        ),
    ]
    return Page(
        title=recipe.title, audit="forgetting", run=run, verdict=sentence, verdict_kind=kind, lead=explanation,
        numbers=_numbers(rows), sections=[section for section in sections if section is not None],
    )  # fmt: skip


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    found = [row for row in rows if row["params"].get("kind") == TARGET][:SHOWN_TARGETS]
    return [(f"{r['value']:.2f}", f"rho, {r['params']['target']}: {r['params']['verdict']}", _interval(r)) for r in found]


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["ci_low"] is None else f"95 %: {row['ci_low']:.2f} to {row['ci_high']:.2f}"


def _rho_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    found = []
    for row in rows:
        if row["metric"] != "rho":
            continue
        name = row["params"]["target"]
        ks = next((r for r in rows if r["metric"] == "ks_target" and r["params"]["target"] == name), None)
        counts = {
            r["params"]["verdict"]: round(r["value"] * r["n"])
            for r in rows
            if r["metric"] == "share_of_verdicts" and r["params"]["target"] == name and r["params"]["over"] == "models"
        }
        cells = (name, "" if ks is None else f"{ks['value']:.3f}", f"{row['value']:.3f}", _interval(row))
        found.append((*cells, ", ".join(f"{count} {v}" for v, count in counts.items() if count), _literal(row)))
    return Section(
        heading="rho",
        paragraphs=[
            "KS: the largest gap between the distributions of the confidences on D_Q of a query model and the model in "
            "question. rho divides it by the same gap for a calibration model. Intervals are over the seeds of the models "
            "and the examples of D_Q together. The last column is the paper's rule, which is no verdict here."
        ],
        table=TableView(("models", "KS", "rho", "interval", "verdicts", "rho < 1, as published"), found),
    )


def _literal(row: Mapping[str, Any]) -> str:
    return "not forgotten" if row["value"] < 1 else "forgotten"


def _distribution_section(
    recipe: Recipe, confidences: Mapping[tuple[str, str], NDArray[np.float64]], folder: Path
) -> Section:
    figure = new_figure()
    axes = figure.axes[0]
    query = confidences[QUERY, ""]
    targets = [name for name in recipe.targets if (TARGET, name) in confidences][:SHOWN_TARGETS]
    lines = [(QUERY, ""), (CALIBRATION, ""), (NULL, ""), *((TARGET, name) for name in targets)]
    for number, (group, name) in enumerate(lines):
        values = np.sort(confidences[group, name])
        share = np.arange(1, len(values) + 1) / len(values)
        style = "-" if group != TARGET else ["-", "--", ":", "-."][(number - 3) % 4]
        label = {QUERY: "query model", CALIBRATION: "calibration model", NULL: "null model"}.get(group, name)
        axes.step(_odds(values), share, where="post", color=COLOURS[group], ls=style, lw=1.6, label=label)
    for name in targets[:1]:
        gap, place = ks_gap(query, confidences[TARGET, name])
        low, high = sorted(float((values <= place).mean()) for values in (query, confidences[TARGET, name]))
        at = float(_odds(np.array([place]))[0])
        axes.plot([at, at], [low, high], color=INK, lw=2)
        axes.annotate(f"KS {gap:.2f}", (at, (low + high) / 2), xytext=(6, 0), textcoords="offset points", fontsize=8)
    axes.set_xticks(_odds(np.array(TICKS)), [f"{tick:g}" for tick in TICKS])
    axes.set_xlabel("confidence in the true class (scale of log odds)")
    axes.set_ylabel("share of D_Q at or below")
    axes.legend(frameon=False, fontsize=8)
    return Section(
        heading="Confidences on D_Q",
        paragraphs=["The first model of each kind. The bar marks the largest gap between the query model and the target."],
        svg=save_figure(figure, folder, "confidences"),
    )


def _odds(confidences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Log odds, where confidences near 1 can be told apart; float32 ends before the edges."""
    p = np.clip(confidences, EDGE, 1 - EDGE)
    found: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return found


def _mix_section(curves: pa.Table, recipe: Recipe, folder: Path) -> Section | None:
    points = [row for row in curves.to_pylist() if row["curve"] == "rho_by_share"]
    if len({row["x"] for row in points}) < 2:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    for series, colour in (("D_C and D_Q", TARGET_COLOUR), ("with other sets", MUTED)):
        mine = [row for row in points if row["series"] == series]
        axes.plot([r["x"] for r in mine], [r["y"] for r in mine], "o", color=colour, ms=4, alpha=0.7, label=series)
        means = {x: np.mean([r["y"] for r in mine if r["x"] == x]) for x in sorted({r["x"] for r in mine})}
        axes.plot(list(means), list(means.values()), "-", color=colour, lw=1)
    axes.axhline(1, color=INK, lw=0.8)
    axes.set_xlabel("share of D_Q in the training data")
    axes.set_ylabel("rho")
    axes.legend(frameon=False, fontsize=8)
    return Section(
        heading="rho by share of D_Q",
        paragraphs=[
            "Each dot is a model of its own seed. At share 0 rho scatters around 1: below 1 is no evidence by itself."
        ],
        svg=save_figure(figure, folder, "rho_by_share"),
    )


def _change_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    found = [row for row in rows if row["metric"] == "rho_change"]
    if not found:
        return None
    row = found[0]
    direction = {
        "above_null": "It moved towards a model that never saw D_Q.",
        "below_null": "It moved towards a model trained on D_Q.",
        "at_null": "No change was shown.",
    }[row["verdict"]]
    return Section(
        heading=f"From {row['params']['from']} to {row['params']['to']}",
        paragraphs=[
            f"rho changed by {row['value']:+.3f} (95 % interval {row['ci_low']:+.3f} to {row['ci_high']:+.3f}), on the same "
            f"examples and against the same models. {direction} Whether it has forgotten is for its own verdict to say."
        ],
    )


def _trust_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    cells: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if row["metric"] == "share_of_verdicts":
            cells.setdefault((row["params"]["target"], row["params"]["over"]), {})[row["params"]["verdict"]] = row
    table = [
        (target, over, *(f"{round(by[v]['value'] * by[v]['n'])} of {by[v]['n']}" for v in (RETAINED, FORGOTTEN, UNDECIDED)))
        for (target, over), by in cells.items()
    ]
    return Section(
        heading="How far the verdicts can be trusted",
        paragraphs=[
            "Null models saw none of D_Q and retained models a known share: each is judged by the others. Resampled: the "
            "verdict on one of the models from redrawn examples of D_Q and four fifths of the auditor's models."
        ],
        table=TableView(("models", "over", RETAINED, FORGOTTEN, UNDECIDED), table),
    )


def _examples_section(
    examples: pa.Table, rows: Sequence[Mapping[str, Any]], recipe: Recipe, show: Callable[[str], NDArray[np.uint8]]
) -> Section | None:
    """Of the first target that was found to retain D_Q, else of the first."""
    frame = examples.to_pandas()
    retained = [
        row["params"]["target"] for row in rows if row["params"].get("verdict") == RETAINED and "kind" in row["params"]
    ]
    first = next(iter([*retained, *recipe.targets]))
    mine = (
        frame[(frame["target"] == first)].groupby(["example_id", "class_name"], as_index=False)["log_likelihood_ratio"].mean()
    )
    mine = mine.sort_values("log_likelihood_ratio", ascending=False)[: recipe.report.gallery]
    if not len(mine):
        return None
    return Section(
        heading="Examples that carry the signal",
        paragraphs=[
            f"D_Q's examples on which {first} is most like a model that trained on them and least like one that did not. "
            "An example that the domain makes easy can look the same: this is where to look first, not proof by example."
        ],
        pictures=[
            (
                data_uri(show(row.example_id), side=128),
                f"{row.example_id} ({row.class_name}): {row.log_likelihood_ratio:+.1f}",
            )
            for row in mine.itertuples()
        ],
    )


def _membership_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    found = [
        (
            row["params"]["target"],
            f"{100 * row['params']['false_positive_rate']:g} %",
            f"{100 * row['value']:.1f} %",
            _interval(row),
        )
        for row in rows
        if row["metric"] == "true_positive_rate"
    ]
    if not found:
        return None
    return Section(
        heading="Which examples were used",
        paragraphs=["How many of the examples a target has used its likelihood ratio finds, at a share of false alarms."],
        table=TableView(("models", "false positives", "true positives", "interval"), found),
    )


def _overlap_section(removed: Sequence[tuple[str, str]]) -> Section:
    count = len(removed)
    return Section(
        heading="Overlap with D_Q",
        paragraphs=[
            f"{count} examples of other sets are copies of one in D_Q and were taken out."
            if count
            else "No example of another set is a copy of one in D_Q, by equal pixels or a near copy."
        ],
        table=TableView(("example", "why"), list(removed[:24])) if count else None,
        details=TableView(("example", "why"), list(removed)) if count > 24 else None,
        details_title=f"All {count}",
    )
