"""The page itself: sections of text, figures, tables and galleries, in one file that needs no network."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

KINDS = {"shown": "found", "bounded": "not_found", "inconclusive": "odd", "descriptive": "odd"}
"""The colour of the box by the word of a run's verdict."""


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
    """A part of the page; whatever is empty is not shown."""

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
    """A report."""

    title: str
    audit: str
    run: str
    verdict: str
    verdict_kind: str  # of KINDS: colours the box
    lead: str
    numbers: Sequence[tuple[str, str, str]]  # value, name, interval
    sections: Sequence[Section] = field(default_factory=tuple)


def render(page: Page) -> str:
    """The page as HTML. All text is escaped; only our own SVG is taken as markup."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["svg"] = Markup
    template = environment.from_string(files("memlib.report").joinpath("page.html.j2").read_text())
    return template.render(page=page)
