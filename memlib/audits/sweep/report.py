"""The report page of a sweep: its cells side by side."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.outcomes import Outcome
from memlib.audits.sweep.recipe import EQUAL_UTILITY, NOT_SHOWN
from memlib.audits.sweep.scores import verdict
from memlib.audits.sweep.trends import Trend
from memlib.audits.sweep.utility import changes_along, difference, in_words, is_equal, remarks_on, utilities
from memlib.findings import SHOWN, Finding, Interval, cannot_reject
from memlib.report.figures import (
    INK,
    MUTED,
    REFERENCE,
    TARGET,
    draw_interval,
    new_figure,
    new_panels,
    plain_ticks,
    save_figure,
)
from memlib.report.format import format_interval, format_p, format_settings, say_p, varying_params
from memlib.report.glossary import terms
from memlib.report.page import Content, FigureView, Section, TableView, advice_of, meaning_of

MOST_METRICS = 4  # columns that fit next to the cell names
SINGLED = ("target", "variant")  # params that single out one of several headlines of a cell


def compose(
    outcomes: Sequence[Outcome],
    folder: Path,
    compared: Mapping[str, Sequence[Finding]] = MappingProxyType({}),
    along: Sequence[Trend] = (),
    *,
    margin: float = EQUAL_UTILITY,
) -> Content:
    """Compose the content of a sweep's page, and save its figures to `folder`.

    Args:
        compared: findings that compare two cells each, by audit.
        along: trends along numeric keys.
        margin: difference within which utilities are equal.
    """
    useful = utilities(outcomes)
    changes = changes_along(along, useful, margin=margin)
    done = [outcome for outcome in outcomes if outcome.run is not None]
    broken = [outcome for outcome in outcomes if outcome.run is None]
    sections = [_headlines(metric, cells, useful, folder, n) for n, (metric, cells) in enumerate(_by_headline(done).items())]
    audits = dict.fromkeys(outcome.audit for outcome in done)
    sections += [_audit(audit, [outcome for outcome in done if outcome.audit == audit], useful) for audit in audits]
    sections += [
        _along(trend, changes.get((trend.audit, trend.key)), useful, folder, number) for number, trend in enumerate(along)
    ]
    sections += [_compared(audit, rows, useful, margin=margin) for audit, rows in compared.items() if rows]
    if broken:
        rows = [(outcome.cell, outcome.problem) for outcome in broken]
        text = "Run the sweep again: only these cells will be computed."
        sections.insert(0, Section("Failed cells", text, TableView(("cell", "problem"), rows)))
    result = verdict(outcomes, compared, remarks=remarks_on(along, changes))
    lead = "Every cell is an audit with its own run and report; this page compares them."
    return Content(
        meaning=meaning_of(
            result.word,
            shown="Of the cells that are listed as shown: anyone with the access that the audit assumes can do with these "
            "models what the cell's page says.",
            bounded="Anyone with the access that the audit of a tested cell assumes gains at most the bound on its page.",
        ),
        advice=advice_of(
            result.word,
            shown="Read the page of each cell that is listed as shown. Prefer one cell to another only where a difference "
            "between them is shown below.",
        ),
        limits=NOT_SHOWN,
        terms=tuple(terms()),
        lead=f"{result.explanation} {lead}".strip(),
        numbers=[(str(len(outcomes)), "cells", ""), (str(len({o.run.run for o in done if o.run})), "runs", "")],
        sections=sections,
    )


def _by_headline(done: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    by_metric: dict[str, list[Outcome]] = {}
    for outcome in done:
        by_metric.setdefault(outcome.headline.metric, []).append(outcome)
    return by_metric


def _headlines(metric: str, outcomes: Sequence[Outcome], useful: Mapping[str, Finding], folder: Path, number: int) -> Section:
    """Return a section with a figure that shows each cell's headline and, where measured, its utility, with intervals."""
    measured = {place: useful[o.cell] for place, o in enumerate(outcomes) if o.cell in useful}
    height = max(1.6, 0.8 + 0.28 * len(outcomes))
    figure = new_panels(2, width=3.6, height=height) if measured else new_figure(height=height)
    axes = figure.axes[0]
    heads = [outcome.headline for outcome in outcomes]
    for place, row in enumerate(heads):
        draw_interval(axes, place, row.value, row.low, row.high, color=TARGET if row.verdict == SHOWN else INK)
    for null in {row.null_value for row in heads if row.null_value is not None}:
        axes.axvline(null, color=MUTED, linestyle="--", linewidth=1, label="under the null")
    axes.set_yticks(range(len(outcomes)), [outcome.cell for outcome in outcomes])
    axes.invert_yaxis()
    axes.set_xlabel(_in_words(metric))
    caption = (
        "Each cell's headline with its 95 % interval; dashed: the value under the null; red: shown by the cell's own test, "
        "without adjustment for the number of cells."
    )
    if measured:
        _utilities_beside(axes, figure.axes[1], measured)
        caption += f" Right: {_measure_of(measured.values())}, with its 95 % interval over images."
    data = [{"cell": outcome.cell, **outcome.headline.row()} for outcome in outcomes]
    return Section(f"{_in_words(metric)} by cell", FigureView(save_figure(figure, folder, f"sweep_{number}"), caption, data))


def _utilities_beside(left: Any, axes: Any, measured: Mapping[int, Finding]) -> None:
    """Draw the utility of each cell at the height of its headline in the panel on the left."""
    for place, row in measured.items():
        draw_interval(axes, place, row.value, row.low, row.high, color=REFERENCE)
    axes.set_ylim(left.get_ylim())
    axes.set_yticks(left.get_yticks(), [])
    axes.set_xlabel("utility")


MEASURED = ("measure", "probe_layer")  # params of a utility; the second of probes alone


def _measure_of(rows: Iterable[Finding]) -> str:
    """Describe the measure of utility in words."""
    kinds = dict.fromkeys(" at ".join(str(row.params[name]) for name in MEASURED if name in row.params) for row in rows)
    return f"utility on examples that the models were not trained on ({', '.join(kinds)})"


def _audit(audit: str, outcomes: Sequence[Outcome], useful: Mapping[str, Finding]) -> Section:
    """Return a section with one row per cell and one column per metric; other findings are in the published table."""
    known = dict.fromkeys(row.metric for outcome in outcomes for row in outcome.findings)
    metrics = [name for name in AUDITS[audit_of(audit)].columns if name in known] or list(known)[:MOST_METRICS]
    varying = varying_params([outcome.headline.params for outcome in outcomes])
    varying += [name for name in SINGLED if name not in varying]
    measured = [useful[outcome.cell] for outcome in outcomes if outcome.cell in useful]
    rows = []
    for outcome in outcomes:
        assert outcome.run is not None
        head, verdict = outcome.headline, outcome.run.verdict
        about = f"{_in_words(head.metric)} {format_settings(varying, head.params)}".strip()
        word = "" if verdict is None else verdict.word
        cells = [_cell(outcome, metric) for metric in metrics] + [_said_of(useful.get(outcome.cell))]
        rows.append((outcome.cell, outcome.run.run, word, about, format_p(head.p_adjusted), *cells))
    changes = [(o.cell, json.dumps(dict(o.changes), sort_keys=True)) for o in outcomes]
    text = (
        f"Cells of the {_in_words(audit)} audit: the word of each cell's own verdict; its headline, which is the test with "
        "the smallest p-value, adjusted within the cell; and the finding of every metric that comes closest to it in its "
        "settings, with 95 % intervals. Shares are fractions of 1; docs/reference/tables.md gives the units."
    )
    if measured:
        text += f" Last: {_measure_of(measured)}, with its interval over images."
    headings = ("cell", "run", "verdict", "headline", "p of it", *map(_in_words, metrics), "utility" if measured else "")
    return Section(
        f"{_in_words(audit)}: findings",
        text,
        TableView(headings if measured else headings[:-1], rows if measured else [row[:-1] for row in rows]),
        TableView(("cell", "changes"), changes, folded="Changes of each cell to its recipe"),
    )


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def _along(trend: Trend, change: Finding | None, useful: Mapping[str, Finding], folder: Path, number: int) -> Section:
    """Return a section on the headline and the utility along a key, and on the test for a trend."""
    row, longest = trend.row, max(trend.strata, key=len)
    panels = {trend.strata[0][0][2].metric: [(x, head) for x, _, head in longest]}
    if change is not None:
        panels["utility"] = [(x, useful[cell]) for x, cell, _ in longest if cell in useful]
    figure = new_panels(2, height=2.8) if change is not None else new_figure(height=2.8)
    for axes, (name, points), colour in zip(figure.axes, panels.items(), (TARGET, REFERENCE), strict=False):
        _draw_along(axes, points, colour)
        axes.set_xlabel(trend.key)
        axes.set_ylabel(name)
    text = f"Correlation with the rank of {trend.key}: {row.value:.2f} over {row.n} cells. "
    if not row.is_test:
        text += f"It is not tested, because {row.params['not_tested']}."
    elif cannot_reject(row):
        text += "There are too few cells to show a trend; at least five are needed."
    else:
        direction = "rises" if row.value > 0 else "falls"
        shown = f"it {direction}" if row.verdict == SHOWN else "a trend is neither shown nor ruled out"
        text += f"By permuting the cells, {say_p(row.p_value)}, adjusted {format_p(row.p_adjusted)}: {shown}."
    caption = "Each cell's headline with its 95 % interval."
    data = [{"cell": cell, trend.key: x, **head.row()} for x, cell, head in longest]
    if change is not None:
        text += f" {in_words(trend, change)} {_sampled(change)}"
        caption = "Each cell's headline, and its utility, with their 95 % intervals."
    return Section(f"Along {trend.key}", text, FigureView(save_figure(figure, folder, f"along_{number}"), caption, data))


def _sampled(change: Finding) -> str:
    """Name the variation that the interval of a change of utility covers."""
    assert change.interval is not None
    covered = "images, training runs and any curvature" if "trainings" in change.interval.over else "images only"
    return f"The interval of utility covers {covered}."


def _draw_along(axes: Any, points: Sequence[tuple[float, Finding]], colour: str) -> None:
    places, values = [x for x, _ in points], [row.value for _, row in points]
    ends = [(row.value if row.low is None else row.low, row.value if row.high is None else row.high) for _, row in points]
    spread = [[abs(v - pair[side]) for v, pair in zip(values, ends, strict=True)] for side in (0, 1)]
    axes.errorbar(places, values, yerr=spread, color=colour, marker="o", ms=5, capsize=4)
    if min(places) > 0 and max(places) / min(places) >= 16:
        axes.set_xscale("log")
        plain_ticks(axes.xaxis)


def _compared(audit: str, rows: Sequence[Finding], useful: Mapping[str, Finding], *, margin: float) -> Section:
    """Return a section with one row per ranked pair of cells; the other pairs are folded."""
    ranked, unranked, equal = [], [], []
    for row in rows:
        params = row.params
        numbers: tuple[str, ...] = (f"{params['cell']} - {params['other']}", f"{row.value:.3f}", format_interval(row))
        if useful:
            apart = _apart(useful, params)
            numbers += ("" if apart is None else f"{apart.low:.3f} to {apart.high:.3f}",)
            if row.verdict == SHOWN and is_equal(apart, margin):
                equal.append(params["cell" if row.value < 0 else "other"])
        if row.p_adjusted is None:
            unranked.append((*numbers, params["not_ranked"]))
            continue
        more = params["cell" if row.value > 0 else "other"] if row.verdict == SHOWN else "neither"
        ranked.append((*numbers, format_p(row.p_value), format_p(row.p_adjusted), more))
    headings: tuple[str, ...] = ("cells", rows[0].metric, "95 % interval")
    if useful:
        headings += ("95 % interval of the difference in utility (over images)",)
    text = (
        "Cells that audit the same images are compared image by image. A difference is ranked if both cells have three or "
        "more pairs of models, from which the variation between training runs can be estimated, and if the models of both "
        "cells name whole images better than untrained models do. Ranked differences have intervals over images and training "
        "runs, and their p-values are adjusted together (Holm). The other differences have intervals over images only; they "
        "do not apply to future training runs, and are no reason to choose a cell."
    )
    if useful and ranked:
        as_useful = "memorize less than a cell whose trained models are as useful on these images"
        which = f": {', '.join(dict.fromkeys(equal))} {as_useful}" if equal else ""
        text += f" {len(equal)} shown differences are at equal utility of the trained models (within {margin:.2g}){which}."
    return Section(
        f"{_in_words(audit)}: cells compared",
        text if ranked else f"{text} None of these can be ranked.",
        TableView(
            (*headings, "p", "p, adjusted", "more memorization shown in"),
            ranked,
            data=[row for row in rows if row.p_adjusted is not None],
        )
        if ranked
        else None,
        TableView(
            (*headings, "reason for not ranking"),
            unranked,
            folded=f"{len(unranked)} unranked differences",
            data=[row for row in rows if row.p_adjusted is None],
        )
        if unranked
        else None,
    )


def _apart(useful: Mapping[str, Finding], params: Mapping[str, Any]) -> Interval | None:
    """Return the interval of the difference in utility of the two cells of a comparison; None if one was not measured."""
    pair = [useful[params[name]] for name in ("cell", "other") if params[name] in useful]
    return difference(pair[0], pair[1]) if len(pair) == 2 else None


def _cell(outcome: Outcome, metric: str) -> str:
    """Return the headline, or the finding of another metric that shares most params with it, as text."""
    head = outcome.headline
    rows = [head] if head.metric == metric else outcome.findings.all(metric)
    return _said_of(max(rows, key=lambda row: _agreements(head.params, row.params), default=None))


def _said_of(row: Finding | None) -> str:
    """Return a value and its interval as text; "" for none."""
    if row is None or math.isnan(row.value):
        return ""
    interval = "" if row.high is None else f" ({format_interval(row, _digits)})"
    return f"{_digits(row.value)}{interval}"


def _digits(value: float) -> str:
    return f"{round(value, 6) + 0.0:.3g}"


def _agreements(settings: Mapping[str, Any], others: Mapping[str, Any]) -> int:
    """Return the number of params in which two findings agree."""
    return sum(others.get(name) == value for name, value in settings.items())
