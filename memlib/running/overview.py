"""The overview of a store: all runs by data and model, with their verdicts over time, as one page."""

import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from markupsafe import Markup

from memlib.audits import AUDITS, audit_of
from memlib.audits.last_stages import REPORT_FILE
from memlib.errors import UserError
from memlib.findings import Finding, Findings
from memlib.report.format import format_interval, format_value, say_p
from memlib.report.intervals import MOST_MARKS, Mark, strip
from memlib.report.overview import FILE, FOLDER, GENERATOR, DataGroup, Overview, RunRow, render
from memlib.report.page import STYLES
from memlib.running.publishing import lost_in_words
from memlib.runs.index import list_runs, rows_of
from memlib.runs.ledger import Look
from memlib.runs.records import RunEntry
from memlib.runs.requests import unfinished
from memlib.runs.run import ListedRun, deciding
from memlib.sanitize import count_of
from memlib.store import Store
from memlib.store.permissions import replace_file
from memlib.version import VERSION

DIGITS = 16  # hexadecimal digits shown of a digest
LOST, WITHOUT = "shown, lost by looks", "no verdict"
LEGEND = (
    f"Values are the first finding of each run, with its 95 % interval. The verdict '{LOST}' would be 'shown' if the run had "
    "been the first look at its data. Verdicts are not adjusted for the number of runs on this page. Drawings leave out the "
    "cells of sweeps."
)

Link = Callable[[str], str]


@dataclass(frozen=True)
class WrittenOverview:
    """A page over all runs of a store.

    Attributes:
        address: address of the page.
        runs: number of the runs that it lists.
        problems: number of the runs that have not ended, or whose manifests cannot be read.
    """

    address: str
    runs: int
    problems: int


def write_overview(store: Store, folder: Path | None = None) -> WrittenOverview:
    """Write the overview of a store.

    Args:
        folder: folder of the page; by default `index` below a local store, and memlib-index in the current folder for others.

    Raises:
        UserError: when the page cannot be written, or the folder holds an index.html that is not an overview.
    """
    if folder is None and store.is_local:
        overview = overview_of(store, _link_from(store, Path(store.root, FOLDER)))
        try:
            return _written(overview, store.publish(f"{FOLDER}/{FILE}", render(overview).encode(), secret=True))
        except OSError as error:
            raise UserError(f"cannot write to {store.uri} ({error.strerror}); give a folder: memlib index FOLDER") from error
    folder = Path("memlib-index") if folder is None else folder.expanduser()
    path = folder / FILE
    if path.exists() and f'content="{GENERATOR}"' not in path.read_text(encoding="utf-8", errors="replace"):
        raise UserError(f"{path} was not written by memlib index; choose another folder")
    overview = overview_of(store, _link_from(store, folder.absolute()))
    replace_file(path, render(overview).encode())
    return _written(overview, str(path))


def _written(overview: Overview, address: str) -> WrittenOverview:
    problems = sum(len(rows) for _, _, rows in overview.problems)
    return WrittenOverview(address, sum(len(group.rows) for group in overview.groups), problems)


def _link_from(store: Store, folder: Path) -> Link:
    """Return a function from a path in the store to the address that a page in a folder links to.

    Links within the store are relative, so that they hold wherever the store is moved to.
    """
    if not store.is_local:
        return lambda path: ""
    root, folder = Path(store.root).resolve(), folder.resolve()
    start = Path(os.path.relpath(root, folder)).as_posix() if folder.is_relative_to(root) else root.as_uri()
    return lambda path: f"{start}/{path}"


def overview_of(store: Store, link: Link) -> Overview:
    """Return the overview of a store, from its index of runs.

    Args:
        link: function that returns the address of a file of the store; "" if the page cannot link to it.
    """
    listing = store.listing("runs")
    listed = list_runs(store, listing=listing, described=True)
    waiting = unfinished(store)
    seen = _Seen.of(listed.entries)
    groups: dict[str, list[RunEntry]] = defaultdict(list)
    for entry in listed.entries:
        groups[seen.data_of(entry)].append(entry)
    problems: list[tuple[str, str, Sequence[Sequence[str]]]] = [
        (
            "Not ended",
            "Runs that are under way, or were interrupted; resume one with memlib resume RUN.",
            [(one.run, audit_of(one.audit), one.title, f"started {_time(one.started)}") for one in waiting],
        ),
        (
            "Damaged",
            "Runs whose manifests cannot be read; run their audits again, and check the store with memlib verify.",
            list(listed.damaged.items()),
        ),
    ]
    return Overview(
        title="Memorization audits",
        about=f"{store.uri} · {count_of(len(listed.entries), 'run')} · drawn {_time(time.time())} UTC by memlib {VERSION}",
        legend=LEGEND + ("" if store.is_local else " Open the page of a run with memlib open RUN."),
        groups=[seen.group(data, entries, listing, link) for data, entries in groups.items()],
        problems=[problem for problem in problems if problem[2]],
    )


@dataclass(frozen=True)
class _Seen:
    """The runs of a store."""

    entries: Mapping[str, RunEntry]  #: the runs by id.
    findings: Mapping[str, Findings]  #: the findings of their entries.
    lost: set[str]  #: runs whose verdict is lost by earlier looks at their data.
    replaced: set[str]  #: runs whose recipe and data a newer run has, too.

    @classmethod
    def of(cls, entries: Sequence[RunEntry]) -> "_Seen":
        rows, audits = rows_of(entries), {AUDITS[name].field: AUDITS[name] for name in AUDITS}
        findings = {entry["run"]: Findings(map(Finding.of, entry["findings"])) for entry in entries}
        known = [(audits[entry["audit"]], entry) for entry in entries if entry["audit"] in audits]
        lost = {entry["run"] for audit, entry in known if audit.is_lost(_look(entry), findings[entry["run"]])}
        replaced = {entry["run"] for entry in entries if entry["asks"] and not rows[entry["run"]]["current"]}
        return cls({entry["run"]: entry for entry in entries}, findings, lost, replaced)

    def cells(self, sweep: RunEntry) -> dict[str, RunEntry]:
        """Return the completed cells of a sweep that can be read."""
        return {cell: self.entries[run] for cell, run in sweep["cells"].items() if run is not None and run in self.entries}

    def data_of(self, entry: RunEntry) -> str:
        """Return the digest of a run's data; for a sweep, that of its cells if they share one."""
        digests = {cell["ledger"]["data"] for cell in self.cells(entry).values()} or {entry["ledger"]["data"]}
        return digests.pop() if len(digests) == 1 else ""

    def group(self, data: str, entries: Sequence[RunEntry], listing: Mapping[str, object], link: Link) -> DataGroup:
        """Return the runs on one data set, newest first."""
        rows = {}
        for entry in entries:
            path = f"runs/{entry['run']}/{REPORT_FILE}"
            rows[entry["run"]] = self._row(entry, link(path) if path in listing else "")
        names = dict.fromkeys(name for entry in entries if (name := _subject(entry)[0]))
        name = " or ".join(names) if data else "Sweeps over several data sets, and runs without a digest of their data"
        return DataGroup(name or "Data without a name", data[:DIGITS], list(rows.values()), list(self._lines(entries, rows)))

    def _row(self, entry: RunEntry, link: str) -> RunRow:
        word = LOST if entry["run"] in self.lost else ListedRun.of(entry).verdict or WITHOUT
        return RunRow(
            run=entry["run"],
            link=link,
            finished=_time(entry["finished"]),
            audit=audit_of(entry["audit"]),
            model=_subject(entry)[1],
            title=entry["title"],
            word=word,
            style=STYLES.get(word, "odd"),
            headline=_headline(Finding.of(deciding(entry))),
            notes=list(filter(None, self._notes(entry))),
        )

    def _notes(self, entry: RunEntry) -> Iterator[str]:
        """Yield the sentence of a run, and remarks on looks, cells and versions."""
        if entry["verdict"] is None:
            yield f"Run {entry['run']}, of an earlier version of memlib, has no verdict; run its audit again."
        else:
            yield entry["verdict"]["sentence"]
        if audit_of(entry["audit"]) in AUDITS and not entry["cells"]:
            yield AUDITS[audit_of(entry["audit"])].said_of_look(_look(entry), self.findings[entry["run"]])
        if entry["cells"]:
            yield from self._of_cells(entry)
        elif (look := entry["ledger"].get("look", "")) not in ("", entry["run"]):
            yield f"Cell of sweep {look}."
        if entry["run"] in self.replaced:
            yield "A newer run has the same recipe and data."

    def _of_cells(self, sweep: RunEntry) -> Iterator[str]:
        read = self.cells(sweep)
        failed = sum(run is None for run in sweep["cells"].values())
        missing = len(sweep["cells"]) - failed - len(read)
        counts = [count_of(len(sweep["cells"]), "cell")] + [f"{failed} failed"] * (failed > 0)
        yield ", ".join(counts + [f"{missing} cannot be read"] * (missing > 0)) + "."
        yield lost_in_words([cell for cell, entry in read.items() if entry["run"] in self.lost])

    def _lines(self, entries: Sequence[RunEntry], rows: Mapping[str, RunRow]) -> Iterator[tuple[str, Markup]]:
        """Yield a drawing of each headline over time, for runs of one audit and model that are no cells of sweeps."""
        lines: dict[tuple[str, ...], list[Mark]] = defaultdict(list)
        for entry in reversed(entries):
            row, first = rows[entry["run"]], self.findings[entry["run"]].head
            if not entry["cells"] and entry["ledger"].get("look", "") in ("", entry["run"]):
                hover = f"{row.finished}, run {row.run}: {row.word}; {row.headline}"
                mark = Mark(first.value, first.low, first.high, row.style, hover, row.link)
                lines[row.audit, row.model, first.metric].append(mark)
        for names, marks in lines.items():
            if len(marks) > 1 and (drawing := strip(marks)):
                *subject, metric = filter(None, names)
                count = (
                    f"{len(marks):,} runs" if len(marks) <= MOST_MARKS else f"the newest {MOST_MARKS} of {len(marks):,} runs"
                )
                ends = [number for mark in marks[-MOST_MARKS:] for number in mark.numbers]
                scale = f"{format_value(min(ends))} to {format_value(max(ends))}"
                yield f"{', '.join(subject)}: {metric.replace('_', ' ')} of {count} over time, on a scale of {scale}", drawing


def _subject(entry: RunEntry) -> tuple[str, str]:
    subject = entry.get("subject", {"data": "", "model": ""})
    return subject["data"], subject["model"]


def _look(entry: RunEntry) -> Look:
    ledger = entry["ledger"]
    return Look(ledger.get("number", 1), ledger.get("planned", 1), ledger.get("is_paid_for", True))


def _headline(first: Finding) -> str:
    """Return a finding in words: metric, value, interval and p-value."""
    value = " ".join(filter(None, (first.metric.replace("_", " "), format_value(first.value))))
    interval = format_interval(first)
    p_value = first.p_value
    return value + (f" ({interval})" if interval else "") + ("" if p_value is None else f", {say_p(p_value)}")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M")
