"""The page itself: sections of text, figures, tables and galleries, in one file that needs no network."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from memlib.report.glossary import defined

KINDS = {"shown": "found", "bounded": "not_found", "inconclusive": "odd", "descriptive": "odd"}
"""The colour of the box by the word of a run's verdict."""
MOST_TILES = 5  # in a row


@dataclass(frozen=True)
class TableView:
    """A table as people read it: headings and rows of text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class GalleryItem:
    """One example: its picture, its crop, and rows of neighbours, all data URIs; captions are plain text."""

    caption: str
    image: str
    crop: str
    rows: Sequence[tuple[str, Sequence[tuple[str, str, bool]]]]  # title, (data URI, caption, is of the class)


@dataclass(frozen=True)
class Section:
    """A part of the page; whatever is empty is not shown.

    A figure needs a caption, which readers who cannot see it are told as well.
    """

    heading: str
    paragraphs: Sequence[str] = ()
    svg: str = ""
    figure_caption: str = ""
    table: TableView | None = None
    gallery: Sequence[GalleryItem] = ()
    pictures: Sequence[tuple[str, str]] = ()  # data URI, caption
    details: TableView | None = None
    details_title: str = ""


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        title, audit, run: its heading.
        verdict, verdict_kind, lead: the verdict in a sentence, its colour (of KINDS), and what it rests on.
        numbers: value, name and interval of the few numbers that carry the verdict.
        sections: figures and tables.
        question: that the audit answers.
        meaning: what somebody outside could do with the finding.
        limits: what the audit does not show, whatever it found.
        terms: of the glossary, that the page uses.
        model: that was audited.
        imprint: who made the page, when, from what; heading and text.
    """

    title: str
    audit: str
    run: str
    verdict: str
    verdict_kind: str
    lead: str
    numbers: Sequence[tuple[str, str, str]]
    sections: Sequence[Section] = field(default_factory=tuple)
    question: str = ""
    meaning: str = ""
    limits: Sequence[str] = ()
    terms: Sequence[str] = ()
    model: str = ""
    imprint: Sequence[tuple[str, str]] = ()


def meaning_of(word: str, *, shown: str, bounded: str) -> str:
    """Say what somebody outside could do with a finding, by the word of the verdict.

    Args:
        word: of KINDS.
        shown, bounded: what follows from these two.
    """
    match word:
        case "shown":
            return shown
        case "bounded":
            return bounded
        case "descriptive":
            return "Nothing was tested. The numbers describe this model; no gain of somebody outside follows from them."
        case _:
            return (
                "Nothing was shown, and that is no proof that nothing was memorized. Read below how large an effect this "
                "audit would have found."
            )


def render(page: Page) -> str:
    """Return the page as HTML. All text is escaped; only our own SVG is taken as markup."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["svg"] = _described
    template = environment.from_string(files("memlib.report").joinpath("page.html.j2").read_text())
    return template.render(page=page, terms=_used(page), columns=_columns(len(page.numbers)))


def _used(page: Page) -> list[tuple[str, str]]:
    """Those of the page's terms that its text uses, with their definitions."""
    text = str(replace(page, terms=(), sections=[replace(section, svg="", gallery=()) for section in page.sections])).lower()
    words = {term: [word for word in term.split(", ") if len(word) > 1] or [term] for term in page.terms}
    return defined(term for term, names in words.items() if any(name.lower() in text for name in names))


def _described(section: Section) -> Markup:
    """A section's figure with a title and a description, for readers who cannot see it."""
    assert section.figure_caption, f"the figure of {section.heading!r} has no caption"
    texts = Markup("<title>{}</title><desc>{}</desc>").format(section.heading, section.figure_caption)
    start, _, rest = section.svg.partition(">")
    return Markup(start) + Markup(' role="img" aria-label="{}">').format(escape(section.heading)) + texts + Markup(rest)


def _columns(count: int) -> int:
    """How many tiles stand in a row, so that no row but the last is shorter and none holds a single one."""
    if count <= MOST_TILES:
        return max(1, count)
    return max(range(3, MOST_TILES + 1), key=lambda columns: ((count - 1) % columns, columns))
