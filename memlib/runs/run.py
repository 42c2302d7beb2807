"""A finished run as an object with its verdict, tables and page, for notebooks and programs."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from memlib.errors import RunError
from memlib.runs.erasures import erased_on, erased_part
from memlib.runs.index import find_run, page_path, results_path
from memlib.runs.records import FindingRecord, Headline, RunEntry, RunRecord, VerdictRecord
from memlib.store import Store, chosen_store
from memlib.store.permissions import PRIVATE, make_folder, user_folder, write_file

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN_ROWS = 8  # number of findings shown in a notebook


class Run:
    """A finished run in a store.

    Args:
        store: the store that holds the run.
        record: the run's manifest.

    Attributes:
        store: the store that holds the run.
        record: the run's manifest, with the recipe, the artifacts, and the user and time of each publication.

    Example:
        >>> import memlib
        >>> run = memlib.open(memlib.list_runs()[0].id)
        >>> run.title, run.verdict.word, sorted(run.tables)
        ('moons', 'descriptive', ['curves', 'summary', 'units'])
        >>> run.units.num_rows, run.report.name
        (40, 'report.html')
    """

    def __init__(self, store: Store, record: RunRecord) -> None:
        self.store, self.record = store, record

    @property
    def id(self) -> str:
        """Name of the run: 12 hexadecimal digits."""
        return self.record.run

    @property
    def audit(self) -> str:
        """Name of the audit, as in recipes."""
        return self.record.audit

    @property
    def title(self) -> str:
        """Title of the run's recipe."""
        return self.record.title

    @property
    def verdict(self) -> VerdictRecord:
        """The verdict: `word` (shown, bounded, inconclusive, descriptive), `sentence` and `explanation`.

        Raises:
            RunError: for a run that was published before runs had verdicts.
        """
        if self.record.verdict is None:
            raise RunError(f"run {self.id}, of an earlier version of memlib, has no verdict; run its audit again")
        return self.record.verdict

    @property
    def findings(self) -> list[FindingRecord]:
        """Rows of the summary that the manifest repeats, the headline first."""
        return self.record.findings

    @property
    def recipe(self) -> dict[str, Any]:
        """The recipe with all defaults, as plain JSON."""
        return self.record.recipe

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """All published tables by name; each is read from the store when it is looked up."""
        return _Tables(self)

    @property
    def summary(self) -> pa.Table:
        """The summary, one row per metric and setting (docs/reference/tables.md); a sweep's is the table `sweep`."""
        return self.tables["summary" if "summary" in self.tables else next(iter(self.tables))]

    @property
    def units(self) -> pa.Table:
        """Scores of single examples, models or canaries (docs/reference/tables.md).

        Raises:
            KeyError: for a sweep, which has no table of units.
        """
        return self.tables["units"]

    @property
    def report(self) -> Path:
        """Local path of the run's page; a page on S3 is first copied to this machine, readable only by the current user.

        Raises:
            RunError: when the page is missing from the store.
        """
        path = page_path(self.record)
        content = self.store.published(path)
        if content is None:
            raise RunError(f"run {self.id} has no report in {self.store.uri}{_why(self.store, self.id)}; run its audit again")
        if self.store.is_local:
            return Path(self.store.root) / path
        page = user_folder("cache") / "pages" / f"{self.id}.html"
        make_folder(page.parent, PRIVATE.folder)
        page.unlink(missing_ok=True)
        write_file(page, content, PRIVATE.file)
        return page

    def published(self, path: str) -> bytes:
        """Return a published file, checked against the digest in the run's manifest.

        Args:
            path: path below the root of the store, as in the manifest.

        Raises:
            RunError: when the file is missing, or is not the one that was published.
        """
        content, expected = self.store.published(path), self.record.published.get(path)
        if content is None or hashlib.sha256(content).hexdigest() != expected:
            problem = "is missing from" if content is None else "differs from what was published in"
            why = _why(self.store, self.id) if content is None else ""
            raise RunError(f"{path} {problem} {self.store.uri}{why}; run the audit of run {self.id} again")
        return content

    def __repr__(self) -> str:
        sentence = "" if self.record.verdict is None else f": {self.record.verdict.sentence}"
        return f"<memlib run {self.id}, {self.audit}{sentence}>"

    def _repr_html_(self) -> str:
        """Return the verdict and the first findings as HTML for notebooks; all text is escaped."""
        rows = [("metric", "value", "95 % interval", "verdict")]
        rows += [(row.metric, _number(row.value), _interval(row), row.verdict or "") for row in self.findings[:SHOWN_ROWS]]
        lines = [
            Markup("<tr>{}</tr>").format(Markup().join(Markup("<td>{}</td>").format(cell) for cell in row)) for row in rows
        ]
        said = self.record.verdict
        text = ("", "") if said is None else (said.sentence, said.explanation)
        return str(Markup("<p><b>{}</b><br>{}</p><p>{}</p><table>{}</table>").format(self.title, *text, Markup().join(lines)))


def deciding(entry: RunEntry) -> Headline:
    """Return the headline of a run: if it was tested for several models, the test with the smallest adjusted p-value."""
    first = entry["findings"][0]
    of_headline = first["metric"], first.get("family")
    tests = [
        row
        for row in entry["findings"]
        if (row["metric"], row.get("family")) == of_headline and row.get("p_adjusted") is not None
    ]
    return min(tests, key=lambda row: row["p_adjusted"] or 0.0, default=first)


@dataclass(frozen=True)
class ListedRun:
    """A finished run in a list of runs.

    Attributes:
        id: name of the run, which `memlib.open` takes.
        audit, title: name of its audit, as in recipes, and title of its recipe.
        finished: time of its publication, in local time.
        verdict: shown, bounded, inconclusive or descriptive; "" for a run from before runs had verdicts.
        headline, value, p_value: metric, value and unadjusted p-value of its headline, see `deciding`.
    """

    id: str
    audit: str
    title: str
    finished: datetime
    verdict: str
    headline: str
    value: float | None
    p_value: float | None

    @classmethod
    def of(cls, entry: RunEntry) -> ListedRun:
        """Return the run of an entry of the list of runs."""
        headline, finished = deciding(entry), datetime.fromtimestamp(entry["finished"]).astimezone()
        verdict = entry["verdict"]["word"] if entry["verdict"] else headline["verdict"] or ""
        of_headline = headline["metric"], headline["value"], headline["p_value"]
        return cls(entry["run"], entry["audit"], entry["title"], finished, verdict, *of_headline)


class _Tables(Mapping[str, "pa.Table"]):
    """Published tables of a run, each read when it is looked up."""

    def __init__(self, run: Run) -> None:
        self._run, self._record = run, run.record

    def __getitem__(self, name: str) -> pa.Table:
        import pyarrow as pa

        from memlib.tables import read_bytes

        if name not in self._record.results:
            raise KeyError(name)
        folder = results_path(name, self._record.audit, self._record.run).rpartition("/")[0]
        paths = [path for path in self._record.published if path.rpartition("/")[0] == folder]
        if not paths:
            raise RunError(f"the manifest of run {self._record.run} does not list the files of {name}; run its audit again")
        return pa.concat_tables(read_bytes(self._run.published(path)) for path in paths)

    def __iter__(self) -> Iterator[str]:
        return iter(self._record.results)

    def __len__(self) -> int:
        return len(self._record.results)


def open(run: str, *, store: str | None = None, trust: str | os.PathLike[str] | None = None) -> Run:
    """Open a finished run.

    Args:
        run: name of the run, or a unique prefix of the name.
        store: folder or s3:// prefix; by default MEMLIB_STORE, or memlib-store in the current folder.
        trust: file with a public key (Ed25519, PEM) from outside the store that must have signed the run; by default
            MEMLIB_TRUST.

    Raises:
        UserError: when there is no store.
        Untrusted: when the trusted key has not signed the run.
        NoSuchRun: when no run or more than one run in it matches.
        RunError: when the run's manifest cannot be read.

    Example:
        >>> import memlib
        >>> memlib.open(memlib.list_runs()[0].id[:6]).audit
        'self_influence'
    """
    opened = Store(chosen_store(store), trust=None if trust is None else Path(trust))
    opened.check_known()
    return Run(opened, find_run(opened, run))


def _why(store: Store, run: str) -> str:
    """Return a clause that names an erasure as the reason why a file of a run is missing; "" if nothing was erased of it."""
    part = erased_part(store, run)
    return "" if part is None else f" (the run was {erased_on(part)})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _interval(row: FindingRecord) -> str:
    if row.ci_low is None:
        return ""
    return f"{row.ci_low:.3g} to {row.ci_high:.3g}" if row.ci_high is not None else f"at least {row.ci_low:.3g}"
