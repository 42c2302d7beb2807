"""The page of a forgetting audit."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.forgetting.recipe import NO_TRACE, NOT_SHOWN, NULL, RETAINED, REVERSED, TARGET, UNDECIDED, Recipe
from memlib.audits.forgetting.trace import FEWEST_RETAINED, FOUND
from memlib.audits.forgetting.verdict import found_of, outcome, outcomes_of, trained_on, trains_all
from memlib.findings import Finding, Findings
from memlib.report.figures import INK, MUTED, REFERENCE, data_uri, new_figure, save_figure
from memlib.report.figures import TARGET as TARGET_COLOUR
from memlib.report.format import format_interval, format_p, percent, say_p
from memlib.report.page import (
    Content,
    FigureView,
    PicturesView,
    Section,
    TableView,
    advice_of,
    facts_table,
    filled,
    first_words,
    meaning_of,
)
from memlib.report.spreadsheet import of_curves
from memlib.specs.data import CALIBRATION, QUERY
from memlib.stats.divergence import ks_gap

COLOURS = {QUERY: "#7a3b9a", CALIBRATION: REFERENCE, NULL: "#5f8f6b", RETAINED: "#b07d2b", TARGET: TARGET_COLOUR}
SHOWN_TARGETS = 4
LEAD_WORDS = 40  # of the box of the verdict; the rest follows below
MOST_REMOVED = 24  # removed examples that are listed without being asked for
EDGE = 1e-7
_FORGEABLE = (
    "The outputs of {} were supplied by the owner of the model. Outputs can be forged: an owner who can tell D_Q from the "
    "withheld examples can produce any result. The conclusions hold if the owner was asked for all examples of the pool at "
    "once, in mixed order and under uninformative names (memlib ids), or if the auditor ran the model."
)
_KNOWN = (
    "Known examples (sets.known) are said to be in every target. 'Known examples found' is how often the same test finds "
    "them, over redraws of as many withheld examples; where that is seldom, a missing trace of D_Q means nothing. The share "
    f"of D_Q that was used is estimated only where known examples are found in at least {percent(FOUND)} of redraws, stand "
    f"out no more than training data in at least {FEWEST_RETAINED} of the auditor's own models, and these models are found, "
    f"too."
)
TICKS = (0.001, 0.1, 0.5, 0.9, 0.999, 0.99999)
_TERMS = ("D_Q", "D_C", "H", "trace", "rho", "KS distance")
_METHOD = (
    "Method: D_Q (the data set under audit) and H (withheld examples) were drawn at random from one pool. Models that saw "
    "nothing of the pool predict how easy each example is. The target's ranks beyond that prediction are compared between "
    "D_Q and H; the null distribution comes from redraws of both. rho: Liu and Tsaftaris 2020, Have you forgotten? (Eqs. 2 "
    "to 4). Likelihood ratios of single examples: LiRA (Carlini et al. 2022) with query and calibration models."
)


def compose(
    recipe: Recipe,
    tables: Mapping[str, pa.Table],
    sizes: Mapping[str, int],
    removed: Sequence[tuple[str, str]],
    show: Callable[[str], NDArray[np.uint8] | None],
    folder: Path,
) -> Content:
    """Compose the content of a run's page, and save its figures to `folder`.

    Args:
        tables: examples, summary and curves, by name.
        sizes: number of examples of each set.
        removed: examples that were removed from a set as copies of D_Q's pool, and the reason for each.
        show: returns the picture of an example; None if it is no image.
    """
    findings, facts = Findings.read(tables["summary"]), _facts(recipe, sizes)
    word = findings.verdict.word
    lead, rest = first_words(findings.verdict.explanation, LEAD_WORDS)
    return Content(
        meaning=meaning_of(
            word,
            shown="Whoever holds the data set (D_Q) and can query the model can show that it was trained on at least part of "
            "it. It takes examples that chance withheld from D_Q, and models that are trained for comparison"
            f"{_trainings(recipe)}. The verdict is about D_Q as a whole, not about single examples.",
            bounded="Anyone who queries the model on D_Q finds at most the stated share of the trace that training data "
            "leave.",
        ),
        advice=_advice(word, findings, recipe),
        limits=NOT_SHOWN, terms=_TERMS, model=facts["model"], lead=lead, numbers=_numbers(findings),
        sections=[
            Section("How the verdict comes about", rest) if rest else None,
            _trace_section(findings, recipe),
            _rho_section(findings),
            _distribution_section(recipe, tables["curves"], folder),
            _mix_section(tables["curves"], folder),
            _change_section(findings),
            _known_models_section(findings, recipe),
            _examples_section(tables["examples"], findings, recipe, show),
            _overlap_section(removed),
            Section("What was run", _METHOD, facts_table(facts)),
        ],
    )  # fmt: skip


def _trainings(recipe: Recipe) -> str:
    return f" (here, {recipe.seeds} models trained alike were tested together)" if trains_all(recipe) else ""


def _advice(word: str, findings: Findings, recipe: Recipe) -> str:
    """Return the advice on the models that were shown to have used D_Q, and on those about which nothing was concluded."""
    outcomes = outcomes_of(findings)
    used = [name for name, which in outcomes.items() if which in (RETAINED, REVERSED)]
    unsettled = [name for name, which in outcomes.items() if which in (NO_TRACE, UNDECIDED)] if used else []
    shown = (
        f"If D_Q had to be removed, {_quoted(used)} {'have' if len(used) > 1 else 'has'} not forgotten it: retrain "
        "without D_Q, or continue unlearning, and audit the new model on the same withheld examples."
    )
    if unsettled:
        shown += (
            f" Do not report a pass for {_quoted(unsettled)}: nothing was concluded. For a model still to be "
            "trained, a larger D_Q, with as many examples withheld beforehand, could show a weaker trace."
        )
    return advice_of(
        word,
        shown=shown,
        more="audit more examples of D_Q, and more that were drawn with them and withheld; known examples (sets.known) "
        "show what would be found"
        if not trains_all(recipe)
        else "",
    )


def _quoted(names: Sequence[str]) -> str:
    return " and ".join(f"'{name}'" for name in names)


def _facts(recipe: Recipe, sizes: Mapping[str, int]) -> Mapping[str, str]:
    """Return the facts about the run for the last section."""
    training = recipe.training
    mixes = {name: target.mix for name, target in recipe.targets.items() if target.mix is not None}
    return {
        "sets": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "model": ", ".join(f"{k} {v}" for k, v in recipe.model.model_dump(mode="json").items() if k != "kind"),
        "training": f"{training.epochs} epochs, batch {training.batch_size or 'all'}",
        "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
        "models": f"{recipe.seeds} query, {recipe.seeds} calibration, {recipe.seeds} per mix, "
        f"{recipe.verdict.models} null, {recipe.verdict.models} retained",
        "null models train on": _mix(recipe.null_shares),
        "retained models train on": _mix(recipe.retained_shares),
        **{f"target {name}": _mix(mix) for name, mix in mixes.items()},
        "verdict": f"level {recipe.verdict.level:g} over all targets, {recipe.score.permutations} redraws of D_Q",
    }


def _mix(mix: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:g} % of {name}" for name, share in mix.items())


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    """Return the tiles (number, label, detail) of the first targets: the outcome, or rho if nothing could be tested."""
    headlines = findings.all(kind=TARGET)[:SHOWN_TARGETS]
    if headlines.all("rho"):
        return [(f"{row.value:.2f}", f"rho, {row.params['target']}", _interval(row)) for row in headlines]
    return [(outcome(row), row.params["target"], f"{say_p(row.p_adjusted)}, adjusted for all targets") for row in headlines]


def _interval(row: Finding) -> str:
    return f"95 %: {format_interval(row, '{:.2f}'.format)}"


def _trace_section(findings: Findings, recipe: Recipe) -> Section | None:
    traces, powers = findings.all("trace"), findings.all("control_power")
    if not traces:
        return None
    supplied = [name for name, target in recipe.targets.items() if target.outputs is not None]
    headings = (
        "model", "trained on", "outcome", "trace (95 %)", "adjusted p", "trace found with 80 % power",
        "known examples found", "share of D_Q used",
    )  # fmt: skip
    return Section(
        "Does D_Q stand out among examples like it?",
        "The trace is how much higher the model ranks D_Q than withheld examples of the same pool, beyond what models "
        "that saw neither would predict. It is measured in normal scores of ranks and weighted towards hard examples. If "
        "D_Q was not used, it makes no difference to the model which examples were drawn into D_Q, so the p-value is "
        "valid for any model, however it was trained. It is adjusted for all targets (Holm).",
        _KNOWN if powers else None,
        _not_found(powers),
        _FORGEABLE.format(", ".join(supplied)) if supplied else None,
        filled(
            headings,
            [_trace_cells(row, findings, recipe) for row in traces],
            findings.all("trace", "control_power", "share_used"),
        ),
    )


def _trace_cells(row: Finding, findings: Findings, recipe: Recipe) -> tuple[str, ...]:
    """Return the cells of a target's row."""
    name, interval = row.params["target"], format_interval(row, "{:.2f}".format)
    power = findings.get("control_power", target=name)
    return (
        name,
        trained_on(recipe, name),
        outcome(row),
        f"{row.value:+.2f}" + (f" ({interval})" if interval else ""),
        format_p(row.p_adjusted),
        "none" if row.detectable is None else f"{row.detectable:.2f}",
        "" if power is None else f"in {percent(power.value, 0)} of redraws",
        _share(findings.get("share_used", target=name)),
    )


def _not_found(powers: Findings) -> str:
    """Return a warning about targets in which the known examples are not found."""
    seldom = [f"'{row.params['target']}' ({percent(row.value, 0)})" for row in powers if row.value < FOUND / 2]
    if not seldom:
        return ""
    return (
        f"Known examples are seldom found in {', '.join(seldom)}: either they were not in its training data, or its outputs "
        "are unusual. Clarify this before relying on either outcome."
    )


def _share(row: Finding | None) -> str:
    if row is None:
        return ""
    ends = format_interval(row, lambda end: f"{100 * end:.0f}")
    return f"{percent(row.value, 0)} ({ends} %), if {row.params['assumes']}"


def _rho_section(findings: Findings) -> Section | None:
    rhos = findings.all("rho")
    if not rhos:
        return None
    ks = {row.params["target"]: f"{row.value:.3f}" for row in findings.all("ks_target")}
    cells = [(name := row.params["target"], ks.get(name, ""), f"{row.value:.3f}", _interval(row)) for row in rhos]
    return Section(
        "rho, the measure of the paper",
        "KS is the largest gap between two distributions of confidence on D_Q: that of a query model, which was trained "
        "on D_Q, and that of the model under audit. rho divides it by the same gap for a calibration model, which was "
        "not trained on D_Q. By design, 0 should mean that the model behaves like one trained on D_Q, and 1 like one "
        f"that was not; in practice it depends on how confident a model is of all data{_of_known(rhos)}. Intervals are "
        "over the seeds of the models and the examples of D_Q together. The paper calls rho below 1 'not forgotten'; no "
        "verdict rests on it here, and where it points another way than the outcome above, the outcome holds: it alone is "
        "tested.",
        TableView(("models", "KS", "rho", "interval of rho"), cells, data=findings.all("rho", "ks_target")),
    )


def _distribution_section(recipe: Recipe, curves: pa.Table, folder: Path) -> Section:
    figure = new_figure()
    axes = figure.axes[0]
    confidences = _confidences(curves)
    targets = list(recipe.targets)[:SHOWN_TARGETS]
    lines = [(QUERY, QUERY), (CALIBRATION, CALIBRATION), (NULL, NULL), *((TARGET, name) for name in targets)]
    for number, (group, name) in enumerate(lines):
        values = np.sort(confidences[group, name])
        share = np.arange(1, len(values) + 1) / len(values)
        style = "-" if group != TARGET else ["-", "--", ":", "-."][(number - 3) % 4]
        label = name if group == TARGET else f"{group} model"
        axes.step(_odds(values), share, where="post", color=COLOURS[group], ls=style, lw=1.6, label=label)
    pair = confidences[QUERY, QUERY], confidences[TARGET, targets[0]]
    gap, place = ks_gap(*pair)
    low, high = sorted(float((values <= place).mean()) for values in pair)
    at = float(_odds(np.array([place]))[0])
    axes.plot([at, at], [low, high], color=INK, lw=2, label=f"_largest gap, KS {gap:.2f}")
    axes.annotate(f"KS {gap:.2f}", (at, (low + high) / 2), xytext=(6, 0), textcoords="offset points", fontsize=8)
    axes.set_xticks(_odds(np.array(TICKS)), [f"{tick:g}" for tick in TICKS])
    axes.set_xlabel("confidence in the true class (log-odds scale)")
    axes.fmt_xdata = _of_odds
    axes.set_ylabel("share of D_Q at or below")
    axes.legend(frameon=False, fontsize=8)
    return Section(
        "Confidences on D_Q",
        "Shown for the first model of each kind. The vertical bar marks the largest gap between the query model and the "
        "first target.",
        FigureView(
            save_figure(figure, folder, "confidences"),
            "Share of D_Q (vertical) on which a model's confidence in the true class is at most the given value "
            "(horizontal), one line per model.",
            [
                row
                for row in of_curves(curves, "confidence_ecdf")
                if (json.loads(row["params"])["group"], row["series"]) in lines
            ],
        ),
    )


def _confidences(curves: pa.Table) -> dict[tuple[str, str], NDArray[np.float64]]:
    """Return the points of the empirical distributions of confidence, by group and series."""
    points: dict[tuple[str, str], list[float]] = {}
    for row in curves.to_pylist():
        if row["curve"] == "confidence_ecdf":
            points.setdefault((json.loads(row["params"])["group"], row["series"]), []).append(row["x"])
    return {key: np.array(values) for key, values in points.items()}


def _odds(confidences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log odds, which spread out confidences near 1; clipped at EDGE, about the resolution of float32."""
    p = np.clip(confidences, EDGE, 1 - EDGE)
    odds: NDArray[np.float64] = np.log(p) - np.log1p(-p)
    return odds


def _of_odds(odds: float) -> str:
    """Return the confidence at a place of the axis, as text."""
    return f"{1 / (1 + np.exp(-odds)):.4g}"


def _mix_section(curves: pa.Table, folder: Path) -> Section | None:
    points = of_curves(curves, "rho_by_share")
    if len({row["x"] for row in points}) < 2:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    for series, colour in (("D_C and D_Q", TARGET_COLOUR), ("with other sets", MUTED)):
        of_series = [row for row in points if row["series"] == series]
        axes.plot([r["x"] for r in of_series], [r["y"] for r in of_series], "o", color=colour, ms=4, alpha=0.7, label=series)
        means = {x: np.mean([r["y"] for r in of_series if r["x"] == x]) for x in sorted({r["x"] for r in of_series})}
        axes.plot(list(means), list(means.values()), "-", color=colour, lw=1, label=f"_{series}, mean")
    axes.axhline(1, color=INK, lw=0.8)
    axes.set_xlabel("share of D_Q in the training data")
    axes.set_ylabel("rho")
    axes.legend(frameon=False, fontsize=8)
    return Section(
        "rho by share of D_Q",
        "Each dot is a model trained from a different seed. Dots at share 0 used none of D_Q; where they lie below 1, a "
        "value below 1 is no evidence of use.",
        FigureView(
            save_figure(figure, folder, "rho_by_share"),
            "rho (vertical) by the share of D_Q in the training data (horizontal); lines connect the means.",
            points,
        ),
    )


def _of_known(rhos: Findings) -> str:
    """Return the mean rho of the auditor's own models, whose training data are known, in words."""
    known = [rhos.get("rho", target=f"{group} models") for group in (NULL, RETAINED)]
    found = [f"{row.params['target']} {row.value:.2f}" for row in known if row is not None]
    return f" (here {' and '.join(found)} on average)" if found else ""


def _change_section(findings: Findings) -> Section | None:
    row = findings.get("rho_change")
    if row is None:
        return None
    assert row.interval is not None
    return Section(
        f"From {row.params['from']} to {row.params['to']}",
        f"rho changed by {row.value:+.3f} (95 % interval {format_interval(row, '{:+.3f}'.format)}, over "
        f"{row.interval.over}), on the same examples and against the same models. Whether D_Q has left a trace is decided "
        "by the test of each model, not by this change.",
    )


def _known_models_section(findings: Findings, recipe: Recipe) -> Section | None:
    shares = findings.all("found_share")
    if not shares:
        return None
    seen = {f"{NULL} models": _mix(recipe.null_shares), f"{RETAINED} models": _mix(recipe.retained_shares)}
    cells = [(row.params["target"], seen[row.params["target"]], found_of(row)) for row in shares]
    return Section(
        "The same test on models with known training data",
        "These are the auditor's own models, each tested separately like a single target, at level "
        f"{shares.head.params['alpha']:.2g}. Null models should not be found. The share of retained models that is "
        "found shows the power of the test for models trained like them, and for no others. Where a target has several "
        "models, the mean of their outputs is tested, in which the same trace is easier to find than in each of them.",
        TableView(("models", "trained on", "found"), cells, data=shares),
    )


def _examples_section(
    examples: pa.Table, findings: Findings, recipe: Recipe, show: Callable[[str], NDArray[np.uint8] | None]
) -> Section | None:
    """Show the examples of the first target that was found to retain D_Q or, if there is none, of the first target."""
    frame = examples.to_pandas()
    frame = frame[frame["role"] == QUERY]
    retained = [name for name, which in outcomes_of(findings).items() if which == RETAINED]
    first = next(iter([*retained, *recipe.targets]))
    strongest = frame[frame["target"] == first].groupby(["example_id", "class_name"], as_index=False)["residual"].mean()
    strongest = strongest.sort_values("residual", ascending=False)[: recipe.report.gallery]
    if not len(strongest):
        return None
    rows = [(row.example_id, row.class_name, f"{row.residual:+.1f}") for row in strongest.itertuples()]
    pictures = [
        (data_uri(picture, side=128), f"{name} ({label}): {value}")
        for name, label, value in rows
        if (picture := show(name)) is not None
    ]
    return Section(
        "Examples with the strongest signal",
        f"Examples of D_Q that {first} ranks furthest above the prediction of models that saw none of them. Some "
        "withheld examples stand out just as far: the examples shown are worth a look, but prove nothing individually.",
        PicturesView(pictures) if pictures else TableView(("example", "class", "above the prediction"), rows),
    )


def _overlap_section(removed: Sequence[tuple[str, str]]) -> Section:
    count, headings = len(removed), ("example", "reason")
    return Section(
        "Overlap with D_Q",
        f"{count} examples of other sets were removed because they are copies of an example in D_Q's pool, or belong to "
        "the same group as such an example."
        if count
        else "No example of another set is an exact or near copy of an example in D_Q's pool.",
        TableView(headings, removed[:MOST_REMOVED]) if count else None,
        TableView(headings, removed, folded=f"All {count}") if count > MOST_REMOVED else None,
    )
