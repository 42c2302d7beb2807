"""The page of a comparison: two runs side by side, with their findings drawn as intervals."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from markupsafe import Markup

from memlib.audits import AUDITS, audit_of
from memlib.findings import DESCRIPTIVE, Finding, Findings, Verdict, Word
from memlib.pipeline.provenance import who
from memlib.report.format import format_interval, format_settings, format_value, in_words, say_p, varying_params
from memlib.report.intervals import Mark, bars
from memlib.report.page import Content, Page, Section, TableView
from memlib.running.comparison import Comparison, FindingChange
from memlib.running.publishing import said_of_looks
from memlib.runs.index import cells_of
from memlib.runs.records import RunRecord
from memlib.sanitize import count_of
from memlib.store import Store
from memlib.version import VERSION

MOST_OPEN = 30  # findings that differ and are shown at once; further ones are folded
STYLES = ("first", "second")
WITHOUT = "no verdict, as an earlier version of memlib published this run; run its audit again"


def page_of(found: Comparison, store: Store) -> Page:
    """Return the page of a comparison of two runs of a store."""
    name = audit_of(found.first.audit)
    row = found.headlines.row if not found.headlines.reason else None
    word: Word = row.verdict if row is not None and row.verdict is not None else DESCRIPTIVE  # type: ignore[assignment]
    names = (found.first.run, found.second.run)
    verdict = Verdict(word, found.headlines.sentence(*names), found.headlines.numbers(*names))
    imprint = {
        "drawn": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "by": who(),
        "memlib": f"memlib {VERSION}",
        "store": store.uri,
        "numbers": f"memlib diff {found.first.run} {found.second.run}; memlib verify checks the runs",
    }
    return Page(
        title=" and ".join(dict.fromkeys((found.first.title, found.second.title))),
        audit=name,
        run=f"{found.first.run} compared with {found.second.run}",
        question=AUDITS[name].question if name in AUDITS else "",
        verdict=verdict,
        content=_content(found, store),
        imprint=list(imprint.items()),
        level=None if row is None else row.alpha,
    )


def _content(found: Comparison, store: Store) -> Content:
    runs = (found.first, found.second)
    headings = ("", *(run.run for run in runs))
    recipe = [(change["key"], in_words(change["first"]), in_words(change["second"])) for change in found.recipe]
    counts = [(how, str(len(names)), ", ".join(names)) for how, names in found.artifacts.items() if names]
    return Content(
        sections=[
            Section("Verdicts", TableView(headings, _verdicts(runs, store))),
            Section("Recipes", TableView(headings, recipe) if recipe else "Both runs have the same recipe."),
            _findings(found),
            Section(
                "Artifacts", TableView(("", "count", "names"), counts, folded="Artifacts of both runs, and of one alone")
            ),
        ],
        limits=(
            "The cause of a difference, where more than one value of the recipe differs.",
            "Differences of other findings: they are not tested, not even where intervals lie apart, as runs share data and "
            "seeds.",
            "The best of many runs: the test is that of one pair. A sweep adjusts for the number of pairs that it compares.",
        ),
    )


def _verdicts(runs: Sequence[RunRecord], store: Store) -> list[tuple[str, ...]]:
    """Return a row for each fact about the runs that at least one of them has."""
    looks = (said_of_looks(run.audit, run.ledger, Findings.of_run(run), cells_of(store, run)) for run in runs)
    rows = {
        "title": [run.title for run in runs],
        "finished": [datetime.fromtimestamp(run.finished, tz=UTC).strftime("%Y-%m-%d %H:%M UTC") for run in runs],
        "verdict": [WITHOUT if run.verdict is None else run.verdict.word for run in runs],
        "result": ["" if run.verdict is None else run.verdict.sentence for run in runs],
        "earlier looks": list(looks),
        "memlib": [str(run.software.get("memlib", "")) for run in runs],
    }
    return [(name, *texts) for name, texts in rows.items() if any(texts)]


def _findings(found: Comparison) -> Section:
    """Return the findings that differ, with a drawing of each; those that do not are counted."""
    changed = [change for change in found.findings if not change.is_same]
    varying = varying_params([change.both_params for change in changed])
    rows = [_row(change, format_settings(varying, change.both_params)) for change in changed]
    headings = ("finding", "95 % intervals", found.first.run, found.second.run, "difference")
    same = len(found.findings) - len(changed)
    text = (
        f"In the drawings, the upper interval is that of {found.first.run}, the lower one that of {found.second.run}; each "
        "has its own scale, and the dashed line is the value under the null."
    )
    return Section(
        "Findings side by side",
        text if rows else "",
        TableView(headings, rows[:MOST_OPEN]) if rows else None,
        TableView(headings, rows[MOST_OPEN:], folded=f"{len(rows) - MOST_OPEN} further findings")
        if rows[MOST_OPEN:]
        else None,
        f"{count_of(same, 'finding')} {'is' if same == 1 else 'are'} the same in both runs." if same else "",
    )


def _row(change: FindingChange, setting: str) -> tuple[str, ...]:
    pair = (change.first, change.second)
    texts = ["-" if row is None else _said(row) for row in pair]
    marks = [
        Mark(row.value, row.low, row.high, style, text) for row, style, text in zip(pair, STYLES, texts, strict=True) if row
    ]
    null = next((row.null_value for row in pair if row is not None and row.null_value is not None), None)
    difference = format_value(change.difference) + (", intervals apart" if change.apart else "")
    return " ".join(filter(None, (change.metric, setting))), bars(marks, null=null) or Markup(), *texts, difference


def _said(row: Finding) -> str:
    """Return value, interval, p-value and verdict of a finding in words."""
    interval = format_interval(row)
    value = format_value(row.value) + (f" ({interval})" if interval else "")
    p_value = "" if row.p_adjusted is None else f"adjusted {say_p(row.p_adjusted)}"
    return ", ".join(filter(None, (value, p_value, row.verdict)))
