"""The report page of a self-influence audit."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.self_influence.recipe import NOT_SHOWN, Recipe
from memlib.findings import Finding, Findings, Verdict
from memlib.report.figures import TARGET, data_uri, new_figure, percent_axis, plain_ticks, save_figure
from memlib.report.format import format_interval, percent
from memlib.report.page import Content, FigureView, PicturesView, Section, TableView, facts_table

_MEANING = (
    "The predictions for the examples at the top of the list depend most on the examples themselves. They are the first "
    "candidates for being memorized or mislabelled; what an outsider could gain from them was not examined."
)
_ADVICE = (
    "Inspect the examples at the top of the list before the model is released: correct wrong labels, leave out what should "
    "not be remembered, train again, and run an audit with a test, such as unique-feature or deja-vu, on those that stay."
)
_NOT_COMPARED = "Nothing was compared, so the order of the examples below means nothing."
_AGAIN = "Run this audit again on earlier checkpoints, or after a training with a lower learning rate."


def compose(
    recipe: Recipe,
    units: pa.Table,
    summary: pa.Table,
    curves: pa.Table,
    show: Callable[[str], NDArray[np.uint8] | None],
    facts: Mapping[str, str],
    folder: Path,
) -> Content:
    """Compose the content of a run's page, and save its figures to `folder`.

    Args:
        units, summary, curves: tables.UNITS, SUMMARY and CURVES.
        show: returns an example's picture, or None if the examples are not images.
        facts: rows of the last section.
    """
    findings = Findings.read(summary)
    top = [row for row in findings.all("influence_share") if np.isfinite(row.value)]
    count = recipe.report.gallery
    return Content(
        meaning=_MEANING if top else _NOT_COMPARED,
        advice=_ADVICE if top else _AGAIN,
        limits=NOT_SHOWN,
        terms=("self-influence",),
        lead=_lead(findings.verdict, top),
        numbers=[
            *((percent(row.value, 1), _of_top(row), _interval(row)) for row in top),
            *(
                (f"{row.value:.2f}", f"rank correlation of {_halves(row)} of this one training (1: the same order)", "")
                for row in findings.all("checkpoint_agreement")
            ),
        ],
        sections=[
            _curve(curves, folder),
            _gallery("Highest self-influence", units.slice(0, count), show),
            _gallery("Lowest self-influence", units.slice(max(0, units.num_rows - count)), show),
            _classes(findings),
            Section(
                "What was run",
                "Method: TracInCP (Pruthi et al. 2020) with exact squared gradient norms over all parameters (Hartley 2022, "
                "A.5).",
                facts_table(facts),
            ),
        ],
    )


def _lead(verdict: Verdict, top: Sequence[Finding]) -> str:
    """Return the text of the verdict's box, which begins with the share that equal examples would hold."""
    equal = f"If all examples were equal, the share would be {_equal_share(top[0])[1]}. " if top else ""
    return f"{equal}Nothing was tested. {verdict.explanation}"


def _of_top(row: Finding) -> str:
    """Return the label of a top share of the examples: their number, and the share that they would hold if all were equal."""
    top, equal = _equal_share(row)
    which = "the most influential" if top == 1 else f"the {top:,} most influential"
    return f"of self-influence in {which} of {row.n:,} examples (if all were equal: {equal})"


def _equal_share(row: Finding) -> tuple[int, str]:
    """Return the number of examples in a top share, and the percentage that they would hold if all examples were equal."""
    top = max(1, round(row.params["top"] * row.n))
    return top, percent(top / row.n, 1)


def _halves(row: Finding) -> str:
    return "the two checkpoints" if len(row.params["checkpoints"]) == 2 else "odd and even checkpoints"


def _interval(row: Finding) -> str:
    ends = format_interval(row, lambda value: percent(value, 1))
    return f"95 % interval over examples: {ends}" if ends else ""


def _curve(curves: pa.Table, folder: Path) -> Section:
    figure = new_figure()
    axes = figure.axes[0]
    axes.plot(curves["x"].to_pylist(), curves["y"].to_pylist(), color=TARGET, lw=2)
    axes.set_xscale("log")
    plain_ticks(axes.xaxis)
    axes.set_ylim(0, 1.02)
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    axes.set_xlabel("most influential share of the examples")
    axes.set_ylabel("their share of all self-influence")
    caption = "Share of all self-influence (vertical) held by the most influential share of the examples (horizontal)."
    return Section(
        "Concentration of self-influence",
        FigureView(save_figure(figure, folder, "influence_by_rank"), caption, curves.to_pylist()),
    )


def _gallery(heading: str, units: pa.Table, show: Callable[[str], NDArray[np.uint8] | None]) -> Section:
    pictures, rows = [], []
    for row in units.to_pylist():
        picture = show(row["example_id"])
        caption = f"{row['example_id']}: {row['class_name']}, {row['self_influence']:.3g}"
        if picture is not None:
            pictures.append((data_uri(picture, side=128), caption))
        rows.append((str(row["rank"]), row["example_id"], row["class_name"], f"{row['self_influence']:.4g}"))
    data = units.select(["rank", "example_id", "class_name", "self_influence"]).to_pylist()
    table = TableView(("rank", "example", "class", "self-influence"), rows, data=data)
    return Section(heading, PicturesView(pictures) if pictures else table)


def _classes(findings: Findings) -> Section:
    means = sorted(findings.all("self_influence_mean"), key=lambda row: -row.value)
    cells = [(str(row.params["class"]), f"{row.value:.4g}", str(row.n)) for row in means]
    return Section("By class", TableView(("class", "mean self-influence", "examples"), cells, data=means))
