"""The page over all runs of a store: its parts, and their rendering as one file that needs no network and no server."""

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from markupsafe import Markup

from memlib.report.page import environment

GENERATOR = "memlib index"
FOLDER, FILE = "index", "index.html"  # the page, below the root of its store
MOST_OPEN = 20  # rows of a data set that are shown at once; the earlier ones are folded


@dataclass(frozen=True)
class RunRow:
    """A finished run."""

    run: str  #: run, link: its id, and the address of its page; "" if it has none.
    link: str
    finished: str  #: time of its publication.
    audit: str  #: audit, model, title: names of its audit and of its model, and title of its recipe.
    model: str
    title: str
    word: str  #: word, style: its verdict, and the style of the verdict.
    style: str
    headline: str  #: its first finding in words.
    notes: Sequence[str]  #: its sentence, and remarks on it.


@dataclass(frozen=True)
class DataGroup:
    """The runs on one data set."""

    name: str  #: name, digest: name of the data, and the beginning of their digest; "" for runs without one.
    digest: str
    rows: Sequence[RunRow]  #: the runs, newest first.
    lines: Sequence[tuple[str, Markup]]  #: a caption and a drawing of each headline over time.

    @property
    def counts(self) -> str:
        """Number of runs by verdict, in words."""
        return ", ".join(f"{count:,} {word}" for word, count in Counter(row.word for row in self.rows).items())

    @property
    def newest(self) -> Sequence[RunRow]:
        """The rows that are shown at once."""
        return self.rows[:MOST_OPEN]

    @property
    def earlier(self) -> Sequence[RunRow]:
        """The rows that are folded."""
        return self.rows[MOST_OPEN:]


@dataclass(frozen=True)
class Overview:
    """The page."""

    title: str  #: title, about, legend: heading, line below it, and explanation at the end of the page.
    about: str
    legend: str
    groups: Sequence[DataGroup]  #: runs by data set.
    #: heading, text and rows of runs that are not finished or cannot be read.
    problems: Sequence[tuple[str, str, Sequence[Sequence[str]]]]

    @property
    def audits(self) -> list[str]:
        """Audits of the runs."""
        return sorted({row.audit for group in self.groups for row in group.rows})

    @property
    def words(self) -> list[str]:
        """Verdicts of the runs."""
        return sorted({row.word for group in self.groups for row in group.rows})


def render(page: Overview) -> str:
    """Return the page as HTML; all text is escaped, and its one script, the filter, is allowed by its digest."""
    script = files("memlib.report").joinpath("overview.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    template = environment().get_template("overview.html.j2")
    return template.render(page=page, script=Markup(script), script_digest=digest, generator=GENERATOR)
