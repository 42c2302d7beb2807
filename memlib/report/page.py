"""The report page: sections of blocks (text, tables, figures, pictures), rendered to one file that needs no network.

A new kind of block needs a class here, with `kind` and `words`, and a macro of that kind in page.html.j2, listed in `macros`.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from memlib.findings import Verdict
from memlib.report.glossary import defined
from memlib.report.spreadsheet import Rows, csv_uri

_SCRIPTED = re.compile(r"(javascript|vbscript|data:(?!image/|text/csv))", re.IGNORECASE)
_BLANKS = re.compile(r"[\s\x00-\x1f]+")
STYLES = {"shown": "found", "bounded": "not_found", "inconclusive": "odd", "descriptive": "odd"}
"""Style of the verdict box, by the word of the verdict."""
_DRAW_FIRST = (
    "To test next time, hold examples out at random before the model is trained. Do not use these numbers as evidence of "
    "memory or of its absence."
)
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
COMMON_TERMS = (
    "external model", "null", "p-value", "95 % interval", "power", *STYLES, "diagnostic", "model seed", "checkpoint",
)  # fmt: skip
"""Terms of every audit; the words of verdicts are among them."""
MOST_TILES = 5  # maximum number of tiles per row


@dataclass(frozen=True)
class TableView:
    """A table."""

    kind: ClassVar[str] = "table"
    #: headings, rows: text of its cells; or drawings from `memlib.report.intervals`, which are Markup.
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: str = ""  #: title of a table that is shown on request; "" for one that is always visible.
    data: Rows = ()  #: the rows of published tables that it shows, which the page offers as CSV; empty for none.

    def words(self) -> str:
        """Return the text of the table."""
        cells = (cell for row in self.rows for cell in row if not isinstance(cell, Markup))
        return f"{self.folded} {' '.join(self.headings)} {' '.join(cells)}"


@dataclass(frozen=True)
class FigureView:
    """A figure."""

    kind: ClassVar[str] = "figure"
    svg: str  #: SVG from `save_figure`.
    caption: str  #: caption, which also describes the figure for screen readers.
    data: Rows = ()  #: the rows of published tables that it shows, which the page offers as CSV; empty for none.

    def words(self) -> str:
        """Return the caption."""
        return self.caption


@dataclass(frozen=True)
class PicturesView:
    """Pictures side by side: data URI and caption of each."""

    kind: ClassVar[str] = "pictures"
    pictures: Sequence[tuple[str, str]]

    def words(self) -> str:
        """Return the captions."""
        return " ".join(caption for _, caption in self.pictures)


@dataclass(frozen=True)
class ExampleView:
    """One example: pictures of it, and rows of pictures that it is compared with."""

    kind: ClassVar[str] = "example"
    caption: str  #: text beside the pictures.
    pictures: Sequence[tuple[str, str]]  #: data URI and description of each.
    #: title, and data URI, caption, description and emphasis of each picture.
    rows: Sequence[tuple[str, Sequence[tuple[str, str, str, bool]]]] = ()

    def words(self) -> str:
        """Return "": captions name examples and classes, which are not terms of the glossary."""
        return ""


@dataclass(frozen=True)
class WordsView:
    """A text whose tokens are shaded."""

    kind: ClassVar[str] = "shaded"
    caption: str  #: text above it.
    #: text of each token; its shade, from -4 to 4, 0 for none; and what is said of it on request.
    tokens: Sequence[tuple[str, int, str]]

    def words(self) -> str:
        """Return "": people's texts have no terms of the glossary."""
        return ""


Block = str | TableView | FigureView | PicturesView | ExampleView | WordsView
"""A paragraph, or a view that the template has a macro for."""


@dataclass(frozen=True, init=False)
class Section:
    """A section of the page: a heading and its blocks from top to bottom; blocks that are None or "" are left out."""

    heading: str
    blocks: Sequence[Block]
    is_folded: bool  #: whether the section is shown on request: it is for readers who know the method.

    def __init__(self, heading: str, *blocks: Block | None, is_folded: bool = False) -> None:
        """Keep the blocks that are neither None nor empty."""
        object.__setattr__(self, "heading", heading)
        object.__setattr__(self, "is_folded", is_folded)
        object.__setattr__(self, "blocks", tuple(block for block in blocks if block))


@dataclass(frozen=True)
class Content:
    """The part of a page that its audit composes: everything but heading, verdict and imprint."""

    sections: Sequence[Section | None]  #: sections of the page; None stands for a section that this run does not have.
    #: value, name and interval of the few numbers on which the verdict is based.
    numbers: Sequence[tuple[str, str, str]] = ()
    meaning: str = ""  #: what an outsider could do with the finding.
    advice: str = ""  #: what the reader should do next.
    limits: Sequence[str] = ()  #: limitations of the audit, whatever its result.
    #: the audit's own terms; the end of the page defines those, and terms of all audits, that occur in the text.
    terms: Sequence[str] = ()
    model: str = ""  #: the audited model.
    about: Mapping[str, str] = field(default_factory=dict)  #: further facts for the head of the page, by heading.
    first: int = 3  #: number of sections that are always visible; the others are for readers who know the method.
    lead: str = ""  #: the evidence in the verdict's box, where it is not the verdict's whole explanation.


@dataclass(frozen=True)
class Page:
    """A report page."""

    title: str  #: title, audit, run: the parts of the page's heading.
    audit: str
    run: str
    question: str  #: the question that the audit answers.
    verdict: Verdict  #: verdict of the run.
    content: Content  #: the part of the page that the audit composes.
    imprint: Sequence[tuple[str, str]] = ()  #: lines about the origin of the page, as heading and text.
    level: float | None = None  #: significance level of the tests that decide the verdict; None without such tests.
    about: Mapping[str, str] = field(default_factory=dict)  #: what the page is about, by heading.
    sure: str = ""  #: how often so strong a result comes without memory, in a sentence; "" if nothing is shown.

    @property
    def lead(self) -> str:
        """The evidence in the verdict's box."""
        return self.content.lead or self.verdict.explanation

    @property
    def style(self) -> str:
        """Style of the verdict's box."""
        return STYLES[self.verdict.word]

    @property
    def sections(self) -> Sequence[Section]:
        """The sections that this run has, those that are always visible first."""
        return [*self.visible, *self.folded]

    @property
    def visible(self) -> Sequence[Section]:
        """The sections that are always visible."""
        return [one for one in self._all if not one.is_folded][: self.content.first]

    @property
    def folded(self) -> Sequence[Section]:
        """The sections for readers who know the method."""
        visible = self.visible
        return [one for one in self._all if not any(one is other for other in visible)]

    @property
    def _all(self) -> Sequence[Section]:
        return [section for section in self.content.sections if section is not None]


def facts_table(facts: Mapping[str, str]) -> TableView:
    """Return a table of facts about a run, without headings."""
    return TableView(("", ""), list(facts.items()))


def filled(headings: Sequence[str], rows: Sequence[Sequence[str]], data: Rows = ()) -> TableView:
    """Return a table without the columns that are empty in every row; `data` are the published rows behind it."""
    kept = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    return TableView([headings[place] for place in kept], [[row[place] for place in kept] for row in rows], data=data)


def meaning_of(word: str, *, shown: str, bounded: str) -> str:
    """Return a description of what an outsider could do with a finding.

    Args:
        word: the verdict's word.
        shown, bounded: the texts for these two verdicts.
    """
    match word:
        case "shown":
            return shown
        case "bounded":
            return bounded
        case "descriptive":
            return (
                "Nothing was tested. The numbers describe this model on these data, not what an outsider could gain from it."
            )
        case _:
            return (
                "Nothing was shown, and that proves no absence. The verdict says how large an effect this audit would have "
                "found, if any."
            )


def advice_of(word: str, *, shown: str, descriptive: str = _DRAW_FIRST, more: str = "", before: str = "") -> str:
    """Return the advice to the reader that goes with a verdict.

    Args:
        word: the verdict's word.
        shown, descriptive: the texts for these two verdicts.
        before: text that precedes the advice if the verdict is inconclusive.
        more: possible additions to the audit of an external model, for which no further models can be trained; "" otherwise.
    """
    match word:
        case "shown":
            return shown
        case "bounded":
            return (
                "Report the bound together with the limits of this audit, and audit again when the model or its data change."
            )
        case "descriptive":
            return descriptive
        case _ if more:
            return (
                f"{before}Do not report this as a pass. The model is what it is, but more can be asked of it: {more}. memlib "
                "plan says beforehand what a recipe cannot show."
            )
        case _:
            return (
                f"{before}Do not report this as a pass. Run a larger audit: more examples, models or repetitions; memlib "
                "plan says beforehand what a recipe cannot show."
            )


def first_words(text: str, most: int) -> tuple[str, str]:
    """Split a text after the sentences of its first `most` words, but after the first sentence at the earliest.

    Args:
        text: sentences.

    Returns:
        the first sentences, and the rest, "" if there is none.
    """
    sentences = SENTENCE_END.split(text)
    count = max(1, sum(len(" ".join(sentences[: end + 1]).split()) <= most for end in range(len(sentences))))
    return " ".join(sentences[:count]), " ".join(sentences[count:])


def render(page: Page) -> str:
    """Return the page as HTML; all text is escaped, and only SVG from `save_figure` and drawings are inserted as markup."""
    template = environment().get_template("page.html.j2")
    return template.render(page=page, content=page.content, terms=_used(page), columns=_columns(len(page.content.numbers)))


@functools.cache
def environment() -> Environment:
    """Return the environment of this package's templates, in which all text is escaped."""
    loader = PackageLoader("memlib.report", "")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {"described": _described, "csv_uri": csv_uri, "file_name": _file_name}
    made.globals["style"] = "page.css"  # named here, so that the code of pages covers it
    return made


def _used(page: Page) -> list[tuple[str, str]]:
    """Return the terms that occur in the page's text, with their definitions."""
    content = page.content
    texts = [
        page.title,
        page.question,
        *STYLES,
        page.verdict.sentence,
        page.lead,
        content.meaning,
        content.advice,
        content.model,
    ]
    texts += [
        page.sure,
        *page.about.values(),
        *content.limits,
        *(text for tile in content.numbers for text in tile),
        *(text for _, text in page.imprint),
    ]
    for section in page.sections:
        texts += [section.heading, *(block if isinstance(block, str) else block.words() for block in section.blocks)]
    text = "\n".join(texts)
    return defined(
        term
        for term in (*COMMON_TERMS, *content.terms)
        if any(_occurs(name, text) for name in term.partition(" (")[0].split(", ") if name not in _WORDS)
    )


_WORDS = {"A"}  # names within terms that are also words


def _occurs(name: str, text: str) -> bool:
    return bool(re.search(rf"\b{name}\b", text)) if len(name) == 1 else name.lower() in text.lower()


def _described(figure: FigureView, heading: str) -> Markup:
    """Return a figure with a title and a description for screen readers."""
    assert figure.caption, f"the figure of {heading!r} has no caption"
    texts = Markup("<title>{}</title><desc>{}</desc>").format(heading, figure.caption)
    start, _, rest = figure.svg.partition(">")
    return Markup(start) + Markup(' role="img" aria-label="{}">').format(escape(heading)) + texts + Markup(rest)


def _file_name(heading: str) -> str:
    return re.sub(r"\W+", "-", heading.lower()).strip("-") or "rows"


def _columns(count: int) -> int:
    """Return the number of tiles per row, at most MOST_TILES, chosen to put as many tiles as possible in the last row."""
    if count <= MOST_TILES:
        return max(1, count)
    return max(range(3, MOST_TILES + 1), key=lambda columns: ((count - 1) % columns, columns))


class _Active(HTMLParser):
    """A parser that notes what in a page could act: run code, load other content, or send something."""

    TAGS = frozenset({"script", "iframe", "frame", "object", "embed", "applet", "form", "base", "link", "portal"})
    ADDRESSES = frozenset({"href", "src", "xlink:href", "action", "formaction", "data", "srcset", "poster"})

    def __init__(self) -> None:
        super().__init__()
        self.found = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element that could act, or an attribute of it."""
        named = {name: value or "" for name, value in attrs}
        refreshes = tag == "meta" and named.get("http-equiv", "").lower() == "refresh"
        handlers = [name for name in named if name.startswith("on")]
        codes = [name for name in self.ADDRESSES & named.keys() if _SCRIPTED.match(_BLANKS.sub("", named[name]))]
        if tag in self.TAGS or refreshes or handlers or codes:
            self.found = self.found or f"<{tag}{''.join(f' {name}' for name in (*handlers, *codes)[:1])}>"


def active_in(page: str) -> str:
    """Return the first element of a page that could run code, load other content or send something; "" if there is none.

    Pages of memlib have none. Whoever can write to a store can put one there, and seal the run's manifest anew.
    """
    parser = _Active()
    parser.feed(page)
    parser.close()
    return parser.found


def said_on_page(page: bytes, *texts: str) -> bytes:
    """Return a rendered page with lines below its verdict, for texts that are known only at publication; "" adds nothing.

    The page itself is computed once and cached, whereas the number of the look at the data depends on the store, and what is
    said of a frozen plan on the plan.
    """
    lines = "\n".join(f'<p class="looks">{escape(text)}</p>' for text in texts if text)
    return page.replace(b"<!-- looks -->", lines.encode(), 1)
