"""Model cards: what was audited, the verdicts with their numbers, their limits, and how to check and repeat them."""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.errors import UserError
from memlib.findings import Finding, Findings
from memlib.report.format import format_interval, format_value, say_p
from memlib.report.glossary import defined
from memlib.running.publishing import said_of_looks
from memlib.runs.index import cells_of
from memlib.runs.run import Run
from memlib.sanitize import plain
from memlib.sharing.aggregates import names_of, shared_findings
from memlib.specs.question import asks_digest

FORMAT = 1  # of the JSON
DIGITS = 16  # hexadecimal digits shown of a digest, as on pages
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$])")
AT_START = re.compile(r"^([-+=#]|\d+(?=[.)](\s|$)))")  # lists and headings
HEADINGS = ("finding", "value", "95 % interval", "p", "upper bound", "n")


@dataclass(frozen=True)
class Row:
    """A number of a card, as texts."""

    finding: str  #: metric and setting.
    value: str  #: value, interval: the value and its 95 % interval.
    interval: str
    p: str  #: its p-value, adjusted for the number of tests; "" for an estimate.
    bound: str  #: its upper bound, and the limit in the recipe below which the verdict is "bounded".
    n: str  #: number of units on which it is based.


@dataclass(frozen=True)
class Card:
    """The part of a model card on one run."""

    run: str  #: run, audit, title: id of the run, name of its audit on the command line, title of its recipe.
    audit: str
    title: str
    question: str  #: the question of the audit.
    word: str  #: word, sentence, explanation: its verdict.
    sentence: str
    explanation: str
    looks: str  #: remark on repeated looks at the data; "" for a first look.
    numbers: Sequence[Row]  #: the findings that decide the verdict.
    not_shown: Sequence[str]  #: the limits of the audit.
    finished: str  #: date of the run.
    memlib: str  #: version of memlib.
    data: str  #: data, recipe: digests of the data and of the recipe without titles and locations.
    recipe: str


def card_of(run: Run) -> Card:
    """Return the card of a run.

    Raises:
        RunError: for a run that was published before runs had verdicts.
    """
    record, audit = run.record, AUDITS[audit_of(run.audit)]
    findings = shared_findings(record)
    return Card(
        run=run.id,
        audit=audit.name,
        title=record.title,
        question=audit.question,
        word=run.verdict.word,
        sentence=run.verdict.sentence,
        explanation=run.verdict.explanation,
        looks=said_of_looks(record.audit, record.ledger, findings, cells_of(run.store, record)) if findings else "",
        numbers=_rows(findings, audit.headlines),
        not_shown=audit.not_shown,
        finished=f"{datetime.fromtimestamp(record.finished, tz=UTC):%Y-%m-%d}",
        memlib=str(record.software.get("memlib", "")),
        data=record.ledger.data,
        recipe=record.asks or asks_digest(record.recipe),
    )


def _rows(findings: Findings, headlines: Sequence[str]) -> list[Row]:
    """Return the tests that decide the verdict of a run, or its headline where nothing is tested."""
    tests = findings.tests(*headlines) if headlines else ()
    named = zip(names_of(findings), findings, strict=True)
    return [
        Row(
            finding=name,
            value=format_value(row.value),
            interval=format_interval(row),
            p=say_p(row.p_adjusted) if row.p_adjusted is not None else "",
            bound=_bound(row),
            n=f"{row.n:,}",
        )
        for name, row in named
        if row in (tests or findings[:1])
    ]


def _bound(row: Finding) -> str:
    if row.upper_bound is None:
        return ""
    allowed = "" if row.bound is None else f" (limit {format_value(row.bound)})"
    return f"{format_value(row.upper_bound)}{allowed}"


def markdown_of(cards: Sequence[Card]) -> str:
    """Return the section of a model card in Markdown; all text of runs is escaped."""
    lines = [
        "## Memorization audits",
        "",
        "What the model remembers of its training data, as audited with memlib. A verdict answers the question above it and "
        "no other.",
        "",
    ]
    for card in cards:
        lines += [*_section(card), ""]
    lines += ["### Words of the verdicts", ""]
    lines += [f"- **{word}**: {escaped(text)}" for word, text in defined({card.word for card in cards})]
    return "\n".join(lines) + "\n"


def _section(card: Card) -> list[str]:
    lines = [f"### {escaped(card.title or card.audit)}", "", f"*{escaped(card.question)}* (audit {escaped(card.audit)})", ""]
    lines += [f"**{card.word.capitalize()}.** {escaped(card.sentence)}", ""]
    lines += [line for text in (card.explanation, card.looks) if text for line in (escaped(text), "")]
    lines += [*_table(card.numbers), "", "What this audit does not show:", ""]
    lines += [f"- {escaped(text)}" for text in card.not_shown]
    data = f"data {card.data[:DIGITS]}, " if card.data else ""
    lines += [
        "",
        f"Run `{card.run}` of {card.finished}, memlib {escaped(card.memlib)}, {data}recipe {card.recipe[:DIGITS]} (digests). "
        f"With its store, `memlib verify {card.run}` checks every number; `memlib show {card.run} --json` prints the recipe.",
    ]
    return lines


def _table(rows: Sequence[Row]) -> list[str]:
    """Return a table of the numbers without the columns that are empty in every row."""
    cells = [[row.finding, row.value, row.interval, row.p, row.bound, row.n] for row in rows]
    kept = [place for place in range(len(HEADINGS)) if any(row[place] for row in cells)]
    lines = [[HEADINGS[place] for place in kept], ["---"] * len(kept)]
    lines += [[escaped(row[place]) for place in kept] for row in cells]
    return [f"| {' | '.join(line)} |" for line in lines]


def escaped(text: str) -> str:
    """Return text on one line that Markdown shows as it is: no markup, HTML, formulas or links.

    Args:
        text: any text; control characters are replaced.
    """
    line = SPECIAL.sub(r"\\\1", " ".join(plain(text).split()))
    line = line.replace("://", r":\//").replace("www.", r"www\.").replace("@", r"\@")
    return AT_START.sub(lambda found: f"{found[0]}\\" if found[0].isdigit() else f"\\{found[0]}", line)


def as_json(cards: Sequence[Card]) -> dict[str, Any]:
    """Return cards as plain JSON."""
    return {"format": FORMAT, "audits": [asdict(card) for card in cards]}


def cards_of(runs: Sequence[Run]) -> list[Card]:
    """Return the cards of some runs, which must be different ones.

    Raises:
        UserError: if a run is given twice.
    """
    names = [run.id for run in runs]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"run {twice} is given twice")
    return [card_of(run) for run in runs]
