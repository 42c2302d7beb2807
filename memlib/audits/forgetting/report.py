"""Build the page of the forgetting audit."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.forgetting.recipe import NULL, RETAINED, TARGET, Recipe
from memlib.audits.forgetting.verdict import outcome
from memlib.findings import verdict_of, with_params
from memlib.report.figures import INK, MUTED, REFERENCE, data_uri, new_figure, save_figure
from memlib.report.figures import TARGET as TARGET_COLOUR
from memlib.report.page import KINDS, Page, Section, TableView, meaning_of
from memlib.specs.data import CALIBRATION, QUERY
from memlib.stats.divergence import ks_gap

COLOURS = {QUERY: "#7a3b9a", CALIBRATION: REFERENCE, NULL: "#5f8f6b", RETAINED: "#b07d2b", TARGET: TARGET_COLOUR}
SHOWN_TARGETS = 4
EDGE = 1e-7
_FORGEABLE = (
    "The outputs of {} were supplied by who has the model. Outputs can be forged: an owner who can tell D_Q from the "
    "withheld examples can make them say anything. They say what is said here if the owner was asked for all examples "
    "of the pool at once, in mixed order and under names that say nothing (memlib ids), or if the auditor ran the model."
)
TICKS = (0.001, 0.1, 0.5, 0.9, 0.999, 0.99999)
_TERMS = (
    "D_Q", "D_C", "H", "trace", "rho", "KS distance", "null", "p-value", "95 % interval", "power", "diagnostic", "bounded",
    "inconclusive", "external model",
)  # fmt: skip
_NOT_SHOWN = (
    "Whether a single example of D_Q was used: the verdict is about D_Q as a whole.",
    "Whether other data of the same owner were used: only D_Q was asked about.",
    "That an unlearning method works in general: a verdict is about these models and this data set.",
    "Anything about a model other than the one that was asked: that it is the one in use has to be known from elsewhere.",
)


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
    rows = with_params(tables["summary"])
    said = verdict_of(rows)
    sections = [
        _trace_section(rows, [name for name, target in recipe.targets.items() if target.outputs is not None]),
        _rho_section(rows),
        _distribution_section(recipe, confidences, folder),
        _mix_section(tables["curves"], recipe, folder),
        _change_section(rows),
        _known_models_section(rows, recipe),
        _examples_section(tables["examples"], rows, recipe, show),
        _membership_section(rows),
        _overlap_section(removed),
        Section(
            heading="What was run",
            paragraphs=[
                "Method: D_Q, the data in question, and H, withheld examples, are a random draw from one pool. Models that "
                "saw none of it predict how easy each example is; the target's ranks beyond that are compared between D_Q "
                "and H, and with redraws of both. rho: Liu and Tsaftaris 2020, Have you forgotten? (Eqs. 2 to 4). "
                "Likelihood ratios by example: LiRA (Carlini et al. 2022) with query and calibration models."
            ],
            table=TableView(("", ""), list(facts.items())),
        ),
    ]
    return Page(
        meaning=meaning_of(
            said.word,
            shown="Whoever can query the model on D_Q, and on like examples that were withheld, can show that it was "
            "trained on D_Q: "
            "the data's owner, or a regulator. No single example is revealed by that.",
            bounded="Whoever queries the model on D_Q finds at most the stated share of the trace that data in its "
            "training leave.",
        ),
        limits=_NOT_SHOWN, terms=_TERMS, model=facts.get("model", ""),
        title=recipe.title, audit="forgetting", run=run, verdict=said.sentence, verdict_kind=KINDS[said.word],
        lead=said.explanation, numbers=_numbers(rows), sections=[section for section in sections if section is not None],
    )  # fmt: skip


def confidences_of(curves: pa.Table) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return the points of the ECDFs by group and target."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in curves.to_pylist():
        if row["curve"] == "confidence_ecdf":
            group = json.loads(row["params"])["group"]
            found.setdefault((group, row["series"] if group == "target" else ""), []).append(row["x"])
    return {key: np.array(values) for key, values in found.items()}


def facts_of(recipe: Recipe, sizes: Mapping[str, int]) -> Mapping[str, str]:
    """Return what was run, for the last section; `sizes` counts the examples of each set."""
    training = recipe.training
    mixes = {name: target.mix for name, target in recipe.targets.items() if target.mix is not None}
    return {
        "sets": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "model": ", ".join(f"{k} {v}" for k, v in recipe.model.model_dump(mode="json").items() if k != "kind"),
        "training": f"{training.epochs} epochs, batch {training.batch_size or 'all'}",
        "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
        "models": f"{recipe.seeds} query, {recipe.seeds} calibration, {recipe.seeds} of each mix, "
        f"{recipe.verdict.models} null, {recipe.verdict.models} retained",
        "null models train on": _mix(recipe.null_shares),
        "retained models train on": _mix(recipe.retained_shares),
        **{f"target {name}": _mix(mix) for name, mix in mixes.items()},
        "verdict": f"level {recipe.verdict.alpha:g} over all targets, {recipe.score.permutations} redraws of D_Q",
    }


def _mix(mix: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:g} % of {name}" for name, share in mix.items())


def _numbers(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    found = [row for row in rows if row["params"].get("kind") == TARGET][:SHOWN_TARGETS]
    if any(row["metric"] == "rho" for row in found):
        return [(f"{r['value']:.2f}", f"rho, {r['params']['target']}", _interval(r)) for r in found]
    return [(outcome(r), r["params"]["target"], f"p = {r['p_adjusted']:.2g}, over all targets") for r in found]


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["ci_low"] is None else f"95 %: {row['ci_low']:.2f} to {row['ci_high']:.2f}"


def _trace_section(rows: Sequence[Mapping[str, Any]], supplied: Sequence[str]) -> Section | None:
    traces = [row for row in rows if row["metric"] == "trace"]
    if not traces:
        return None
    shares, powers = (
        {row["params"]["target"]: row for row in rows if row["metric"] == metric}
        for metric in ("share_used", "control_power")
    )
    table = [
        (
            row["params"]["target"],
            outcome(row),
            f"{row['value']:+.2f}" + (f" ({row['ci_low']:.2f} to {row['ci_high']:.2f})" if row["ci_low"] is not None else ""),
            f"{row['p_adjusted']:.2g}",
            "nothing" if row["detectable"] is None else f"{row['detectable']:.2f}",
            _power(powers.get(row["params"]["target"])), _share(shares.get(row["params"]["target"])),
        )
        for row in traces
    ]  # fmt: skip
    headings = (
        "model", "outcome", "trace (95 %)", "p, adjusted", "found with 80 % power", "known examples found",
        "share of D_Q used",
    )  # fmt: skip
    return Section(
        heading="Does D_Q stand out among examples like it?",
        paragraphs=[
            "Trace: how much higher the model ranks D_Q than withheld examples of the same pool, beyond what models that saw "
            "neither lead one to expect, in normal scores of ranks, weighted towards hard examples. If D_Q was not used, who "
            "was drawn into it changes nothing, so the p-value holds for any model, however it was trained. Adjusted: over "
            "all targets (Holm).",
            *([_FORGEABLE.format(", ".join(supplied))] if supplied else []),
        ],
        table=TableView(headings, table),
    )


def _power(row: Mapping[str, Any] | None) -> str:
    return "none in the recipe" if row is None else f"in {100 * row['value']:.0f} % of redraws"


def _share(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    share = f"{100 * row['value']:.0f} % ({100 * row['ci_low']:.0f} to {100 * row['ci_high']:.0f})"
    return f"{share}, if {row['params']['assumes']}"


def _rho_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    if not any(row["metric"] == "rho" for row in rows):
        return None
    found = []
    for row in rows:
        if row["metric"] != "rho":
            continue
        name = row["params"]["target"]
        ks = next((r for r in rows if r["metric"] == "ks_target" and r["params"]["target"] == name), None)
        found.append((name, "" if ks is None else f"{ks['value']:.3f}", f"{row['value']:.3f}", _interval(row)))
    return Section(
        heading="rho, the paper's number",
        paragraphs=[
            "KS: the largest gap between the distributions of the confidences on D_Q of a query model and the model in "
            "question. rho divides it by the same gap for a calibration model: 0 as a model trained on D_Q, 1 as one that "
            "was not. Intervals are over the seeds of the models and the examples of D_Q together. The paper calls rho "
            "below 1 'not forgotten'; without D_Q rho scatters around 1 and moves with how the model was trained, so it "
            "decides nothing here."
        ],
        table=TableView(("models", "KS", "rho", "interval"), found),
    )


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
        figure_caption="Share of D_Q (vertical) on which a model is at most as confident in the true class (horizontal), "
        "one line for each model.",
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
        figure_caption="rho (vertical) by the share of D_Q in the training data (horizontal); the line joins the means.",
    )


def _change_section(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    found = [row for row in rows if row["metric"] == "rho_change"]
    if not found:
        return None
    row = found[0]
    return Section(
        heading=f"From {row['params']['from']} to {row['params']['to']}",
        paragraphs=[
            f"rho changed by {row['value']:+.3f} (95 % interval {row['ci_low']:+.3f} to {row['ci_high']:+.3f}, over "
            f"{row['interval']}), on the same examples and against the same models. Whether D_Q has left a trace is for each "
            "model's own test to say."
        ],
    )


def _known_models_section(rows: Sequence[Mapping[str, Any]], recipe: Recipe) -> Section | None:
    found = [row for row in rows if row["metric"] == "found_share"]
    if not found:
        return None
    share = f"{100 * recipe.verdict.retained_mix[QUERY]:g} %"
    seen = {f"{NULL} models": "nothing of the pool", f"{RETAINED} models": f"{share} of D_Q"}
    table = [
        (row["params"]["target"], seen[row["params"]["target"]], f"{round(row['value'] * row['n'])} of {row['n']}")
        for row in found
    ]
    return Section(
        heading="The same test on models whose truth is known",
        paragraphs=[
            f"The auditor's own models, each tested alone at {found[0]['params']['alpha']:.2g}, as one target is. "
            "Null models should not be found; how often retained models are says what the test finds in models trained "
            "like them, no others."
        ],
        table=TableView(("models", "trained on", "found"), table),
    )


def _examples_section(
    examples: pa.Table, rows: Sequence[Mapping[str, Any]], recipe: Recipe, show: Callable[[str], NDArray[np.uint8]]
) -> Section | None:
    """Of the first target that was found to retain D_Q, else of the first."""
    frame = examples.to_pandas()
    frame = frame[frame["role"] == QUERY]
    retained = [row["params"]["target"] for row in rows if row["metric"] == "trace" and outcome(row) == RETAINED]
    first = next(iter([*retained, *recipe.targets]))
    mine = frame[frame["target"] == first].groupby(["example_id", "class_name"], as_index=False)["residual"].mean()
    mine = mine.sort_values("residual", ascending=False)[: recipe.report.gallery]
    if not len(mine):
        return None
    return Section(
        heading="Examples that carry the signal",
        paragraphs=[
            f"D_Q's examples that {first} ranks furthest above what models that saw none of them lead one to expect. Some "
            "withheld examples stand out as far: this is where to look first, not proof by example."
        ],
        pictures=[
            (
                data_uri(show(row.example_id), side=128),
                f"{row.example_id} ({row.class_name}): {row.residual:+.1f}",
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
            f"{count} examples of other sets are copies of one in D_Q's pool, or of its groups, and were taken out."
            if count
            else "No example of another set is a copy of one in D_Q's pool, by equal pixels or a near copy."
        ],
        table=TableView(("example", "why"), list(removed[:24])) if count else None,
        details=TableView(("example", "why"), list(removed)) if count > 24 else None,
        details_title=f"All {count}",
    )
