"""The report page of a sweep: its cells side by side."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.sweep.scores import Outcome, verdict
from memlib.audits.sweep.trends import Trend, points_of
from memlib.findings import SHOWN, Finding, cannot_reject
from memlib.report.figures import INK, MUTED, TARGET, new_figure, save_figure
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
) -> Content:
    """Return what the page of a sweep says, and save its figures to `folder` as SVG and PNG.

    Args:
        outcomes: outcome of each cell.
        folder: receives the figures.
        compared: findings that compare two cells each, by audit.
        along: trends along numeric keys.
    """
    done = [outcome for outcome in outcomes if outcome.run is not None]
    broken = [outcome for outcome in outcomes if outcome.run is None]
    sections = [_headlines(metric, cells, folder, n) for n, (metric, cells) in enumerate(_by_headline(done).items())]
    sections += [_audit(audit, [o for o in done if o.audit == audit]) for audit in dict.fromkeys(o.audit for o in done)]
    sections += [_along(trend, folder, number) for number, trend in enumerate(along)]
    sections += [_compared(audit, rows) for audit, rows in compared.items() if rows]
    if broken:
        rows = [(outcome.cell, outcome.problem) for outcome in broken]
        text = "Run the sweep again: only these cells will be computed."
        sections.insert(0, Section("Failed cells", text, TableView(("cell", "problem"), rows)))
    result = verdict(outcomes, compared)
    lead = "Every cell is an audit with its own run and report; this page compares them."
    return Content(
        meaning=meaning_of(
            result.word,
            shown="Of the cells that are listed as shown: anyone with the access that the audit assumes can do with these "
            "models what the cell's page says.",
            bounded="Anyone with the access that a cell's audit assumes gains at most the bound on that cell's page.",
        ),
        advice=advice_of(
            result.word,
            shown="Read the page of each cell that is listed as shown. Prefer one cell to another only where a difference "
            "between them is shown below.",
        ),
        limits=(
            "A difference between cells: that one cell shows memorization and another does not is not enough to tell them "
            "apart. Where no difference is tested above, the cells give no reason to prefer one.",
        ),
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


def _headlines(metric: str, outcomes: Sequence[Outcome], folder: Path, number: int) -> Section:
    """Return a section with a figure that shows each cell's headline and its interval."""
    figure = new_figure(height=max(1.6, 0.8 + 0.28 * len(outcomes)))
    axes = figure.axes[0]
    heads = [outcome.headline for outcome in outcomes]
    for place, row in enumerate(heads):
        if row.low is not None and row.high is not None:
            axes.plot([row.low, row.high], [place, place], color=MUTED, linewidth=2)
        axes.plot(row.value, place, "o", color=TARGET if row.verdict == SHOWN else INK)
    for null in {row.null_value for row in heads if row.null_value is not None}:
        axes.axvline(null, color=MUTED, linestyle="--", linewidth=1)
    axes.set_yticks(range(len(outcomes)), [outcome.cell for outcome in outcomes])
    axes.invert_yaxis()
    axes.set_xlabel(_in_words(metric))
    caption = (
        "Each cell's headline with its 95 % interval; dashed: the value under the null; red: shown by the cell's own test, "
        "without adjustment for the number of cells."
    )
    return Section(f"{_in_words(metric)} by cell", FigureView(save_figure(figure, folder, f"sweep_{number}"), caption))


def _audit(audit: str, outcomes: Sequence[Outcome]) -> Section:
    """Return a section with one row per cell and one column per metric; other findings are in the published table."""
    known = dict.fromkeys(row.metric for outcome in outcomes for row in outcome.findings)
    metrics = [name for name in AUDITS[audit_of(audit)].columns if name in known] or list(known)[:MOST_METRICS]
    varying = varying_params([outcome.headline.params for outcome in outcomes])
    varying += [name for name in SINGLED if name not in varying]
    rows = []
    for outcome in outcomes:
        assert outcome.run is not None
        head, verdict = outcome.headline, outcome.run.verdict
        about = f"{_in_words(head.metric)} {format_settings(varying, head.params)}".strip()
        word = "" if verdict is None else verdict.word
        cells = [_cell(outcome, metric) for metric in metrics]
        rows.append((outcome.cell, outcome.run.run, word, about, format_p(head.p_adjusted), *cells))
    changes = [(o.cell, json.dumps(dict(o.changes), sort_keys=True)) for o in outcomes]
    text = (
        f"Cells of the {_in_words(audit)} audit: the word of each cell's own verdict; its headline, which is the test with "
        "the smallest p-value, adjusted within the cell; and the finding of every metric that comes closest to it in its "
        "settings, with 95 % intervals. Shares are fractions of 1; docs/schema.md gives the units."
    )
    return Section(
        f"{_in_words(audit)}: findings",
        text,
        TableView(("cell", "run", "verdict", "headline", "p of it", *map(_in_words, metrics)), rows),
        TableView(("cell", "changes"), changes, folded="Changes of each cell to its recipe"),
    )


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def _along(trend: Trend, folder: Path, number: int) -> Section:
    """Return a section on the headline along a key, and on the test for a trend."""
    points, row = points_of(trend), trend.row
    figure = new_figure(height=2.8)
    axes = figure.axes[0]
    spread = [[abs(v - end) for v, end in zip(points["value"], points[side], strict=True)] for side in ("low", "high")]
    axes.errorbar(points["x"], points["value"], yerr=spread, color=TARGET, marker="o", ms=5, capsize=4)
    axes.set_xlabel(trend.key)
    axes.set_ylabel(trend.strata[0][0][2].metric)
    if min(points["x"]) > 0 and max(points["x"]) / min(points["x"]) >= 16:
        axes.set_xscale("log")
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
    return Section(f"Along {trend.key}", text, FigureView(save_figure(figure, folder, f"along_{number}"), caption))


def _compared(audit: str, rows: Sequence[Finding]) -> Section:
    """Return a section with one row per ranked pair of cells; the other pairs are folded."""
    ranked, unranked = [], []
    for row in rows:
        params = row.params
        numbers = (f"{params['cell']} - {params['other']}", f"{row.value:.3f}", format_interval(row))
        if row.p_adjusted is None:
            unranked.append((*numbers, params["not_ranked"]))
            continue
        more = params["cell" if row.value > 0 else "other"] if row.verdict == SHOWN else "neither"
        ranked.append((*numbers, format_p(row.p_value), format_p(row.p_adjusted), more))
    headings = ("cells", rows[0].metric, "95 % interval")
    text = (
        "Cells that audit the same images are compared image by image. A difference is ranked if both cells have three or "
        "more pairs of models, from which the variation between training runs can be estimated, and if the models of both "
        "cells name whole images better than untrained models do. Ranked differences have intervals over images and training "
        "runs, and their p-values are adjusted together (Holm). The other differences have intervals over images only; they "
        "do not apply to future training runs, and are no reason to choose a cell."
    )
    return Section(
        f"{_in_words(audit)}: cells compared",
        text if ranked else f"{text} None of these can be ranked.",
        TableView((*headings, "p", "p, adjusted", "more memorization shown in"), ranked) if ranked else None,
        TableView((*headings, "reason for not ranking"), unranked, folded=f"{len(unranked)} unranked differences")
        if unranked
        else None,
    )


def _cell(outcome: Outcome, metric: str) -> str:
    """Return the headline, or the finding of another metric that shares most params with it, as text."""
    head = outcome.headline
    rows = [head] if head.metric == metric else outcome.findings.all(metric)
    row = max(rows, key=lambda row: _agreements(head.params, row.params), default=None)
    if row is None or math.isnan(row.value):
        return ""
    interval = "" if row.high is None else f" ({format_interval(row, _digits)})"
    return f"{_digits(row.value)}{interval}"


def _digits(value: float) -> str:
    return f"{round(value, 6) + 0.0:.3g}"


def _agreements(settings: Mapping[str, Any], others: Mapping[str, Any]) -> int:
    """Return the number of params in which two findings agree."""
    return sum(others.get(name) == value for name, value in settings.items())
