"""The page of an audit of canaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from matplotlib.ticker import MaxNLocator

from memlib.audits.asked import CARRIED_OUT, NOT_ASKED, NOT_POSSIBLE, SERVICE, service_section
from memlib.audits.canaries.recipe import NOT_SHOWN, Recipe
from memlib.findings import SHOWN, Finding, Findings
from memlib.report.figures import REFERENCE, TARGET, new_figure, percent_axis, save_figure
from memlib.report.format import floored, format_interval, format_p, percent
from memlib.report.page import Content, FigureView, Section, TableView, advice_of, facts_table, filled, meaning_of

_MEANING = (
    "The training learns single examples by heart: whoever can query the model with likelihoods can tell random texts or "
    "pictures that it was trained on from those that it was not."
)
_MEANING_BY_TEXT = (
    "The training learns single examples by heart: whoever can ask the model to continue a text can tell random texts that "
    "it was trained on from those that it was not."
)
_SHOWN = "Train for fewer steps or at a lower rate, deduplicate, or train with differential privacy, and audit again."


def compose(recipe: Recipe, looks: pa.Table, summary: pa.Table, curves: pa.Table, folder: Path) -> Content:
    """Compose the content of a run's page, and save its figures to `folder`.

    Args:
        looks, summary, curves: tables.LOOKS, SUMMARY and CURVES.
    """
    findings, points = Findings.read(summary), curves.to_pylist()
    word = findings.verdict.word
    return Content(
        meaning=meaning_of(word, shown=_MEANING_BY_TEXT if findings.head.params.get("draws") else _MEANING, bounded=""),
        advice=advice_of(word, shown=_SHOWN),
        limits=NOT_SHOWN,
        terms=("canary", "AUC", "epsilon"),
        numbers=_numbers(findings),
        sections=[
            _looks(looks, points, folder),
            _scores(points, folder),
            _privacy(findings),
            _service(findings),
            Section(
                "What was run",
                "Method: fair coins put canaries into the training data (Steinke et al. 2023); the coins are one of many "
                "equally likely assignments, of which each planned look stops those with the largest statistics, within the "
                "share of the level that is spent by then.",
                facts_table(_facts(findings.head, recipe)),
            ),
        ],
    )


def _numbers(findings: Findings) -> list[tuple[str, str, str]]:
    head = findings.head
    found = [(f"{head.value:.2f}", "AUC: inserted canaries against those left out (0.5: guessing)", _interval(head))]
    bound = findings.get("epsilon_lower_bound")
    if bound is not None:
        perfect = f"a perfect attack: {bound.params['ceiling']:.2f}"
        found.append((f"{floored(bound.value):.2f}", f"epsilon, at least, at delta {bound.params['delta']:g}", perfect))
    return found


def _interval(row: Finding) -> str:
    return f"95 % interval {format_interval(row)}"


def _looks(looks: pa.Table, points: Sequence[Mapping[str, Any]], folder: Path) -> Section | None:
    rows = looks.to_pylist()
    if len(rows) == 1:
        return None
    figure = new_figure()
    axes = figure.axes[0]
    drawn = [one for one in points if one["curve"] == "auc_by_look"]
    axes.plot([one["x"] for one in drawn], [one["y"] for one in drawn], "o-", color=TARGET, ms=4)
    axes.axhline(0.5, color=REFERENCE, lw=0.8, ls="--")
    for row in rows:
        if row["stopped"]:
            axes.axvline(row["look"], color=TARGET, lw=1, ls=":")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="planned look", ylabel="AUC", xlim=(0.5, len(rows) + 0.5))
    caption = (
        "AUC of inserted canaries against those left out (vertical) at each look (horizontal). Dashed: guessing. "
        "Dotted: the stop."
    )
    cells = [
        (
            str(row["look"]), "missed" if row["step"] is None else f"{row['step']:,}",
            "" if row["auc"] is None else f"{row['auc']:.3f}", format_p(row["p_alone"]), percent(row["share"], 1),
            " ".join(name for name in ("stopped", "repeated") if row[name]),
            str(row["missing"]) if row["missing"] else "",
        )
        for row in rows
    ]  # fmt: skip
    headings = ("look", "step", "AUC", "p alone", "share of the level", "", "without a loss")
    return Section(
        "The looks",
        "The looks were planned with the coins. A look that was missed spends its share of the level; one that a resumed "
        "training passed once more counts as it was first recorded. The p-value of a look alone allows for no other look.",
        FigureView(save_figure(figure, folder, "auc_by_look"), caption, drawn),
        filled(headings, cells, rows),
    )


def _scores(points: Sequence[Mapping[str, Any]], folder: Path) -> Section:
    drawn = [one for one in points if one["curve"] == "inserted_by_score"]
    figure = new_figure()
    axes = figure.axes[0]
    axes.bar([one["x"] for one in drawn], [one["y"] for one in drawn], width=0.9 / len(drawn), color=TARGET)
    axes.axhline(0.5, color=REFERENCE, lw=0.8, ls="--")
    axes.set(xlabel="canaries by score, the best known ones last", ylabel="inserted", xlim=(0, 1), ylim=(0, 1.02))
    percent_axis(axes.xaxis)
    percent_axis(axes.yaxis)
    caption = "Share of inserted canaries (vertical) among parts of equal size by score (horizontal). Dashed: without memory."
    return Section(
        "Inserted canaries by score",
        "If the training remembers inserted canaries, most of those that it knows best were inserted. Shown at the look that "
        "decides.",
        FigureView(save_figure(figure, folder, "inserted_by_score"), caption, drawn),
    )


def _privacy(findings: Findings) -> Section | None:
    bound, claim = findings.get("epsilon_lower_bound"), findings.get("privacy_claim")
    if bound is None:
        return None
    decided = "" if claim is None else "refuted" if claim.verdict == SHOWN else "not refuted"
    if claim is not None and (claim.smallest_p or 0.0) > (claim.alpha or 0.0):
        decided = "not testable"
    cells = [(
        f"{floored(bound.value):.2f}", f"{bound.params['ceiling']:.2f}", str(bound.params["look"]),
        f"{bound.params['correct']} of {bound.params['guesses']}", f"{bound.params['delta']:g}", str(bound.params["repeats"]),
        "" if claim is None else f"{claim.params['epsilon']:g}", "" if claim is None else format_p(claim.p_adjusted), decided,
    )]  # fmt: skip
    headings = (
        "epsilon, at least", "a perfect attack", "look", "right guesses", "delta", "copies", "claimed for one record", "p",
        "the claim is",
    )  # fmt: skip
    return Section(
        "Is the training as private as claimed?",
        "A lower bound of epsilon under add/remove adjacency, for a canary with all its copies, from guesses whose number "
        "was fixed with the coins. Several looks divide the level among themselves. The claim has a level of its own, "
        "beside that of the test of memory. A small bound is no evidence of privacy.",
        TableView(headings, cells, data=[row for row in (bound, claim) if row is not None]),
    )


def _service(findings: Findings) -> Section | None:
    """State what was asked of a service, and which attacks its access allows."""
    row, came, share = (findings.get(name) for name in (SERVICE, "endings_returned", "inserted_returned"))
    scored = row is not None and row.params["level"] == "scores"
    attacks = {
        "likelihoods of canaries": CARRIED_OUT if scored else NOT_ASKED if row and row.params.get("forced") else NOT_POSSIBLE,
        "endings that are generated": "not asked for, as likelihoods say more" if scored else CARRIED_OUT,
    }
    more = {}
    if came is not None and share is not None:
        shown = f"{percent(share.value, 1)} (95 % interval {format_interval(share, percent)})"
        more["endings that came back"] = f"{int(came.value)} of {came.n}, in {came.params['draws']} answers each"
        more["inserted canaries whose ending came back"] = shown
    return service_section(findings, attacks, more)


def _facts(head: Finding, recipe: Recipe) -> dict[str, str]:
    scope = (
        {}
        if recipe.privacy is None
        else {"claim about": "all checkpoints" if recipe.privacy.scope == "checkpoints" else "the last model"}
    )
    params = head.params
    return {
        "canaries": f"{head.n:,}, {params['inserted']:,} inserted", "looks": f"{params['made']} of {params['looks']} planned",
        "statistic": params["statistic"], "spending": params.get("spending", ""), **scope,
    }  # fmt: skip
