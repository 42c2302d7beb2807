"""The report page: sections of text, figures, tables and galleries, rendered to one file that needs no network."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape

from memlib.report.glossary import defined

KINDS = {"shown": "found", "bounded": "not_found", "inconclusive": "odd", "descriptive": "odd"}
"""Style of the verdict box, by the word of the verdict."""
_DRAW_FIRST = (
    "To test next time, hold examples out at random before the model is trained. Do not use these numbers as evidence of "
    "memory or of its absence."
)
SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
MOST_TILES = 5  # maximum number of tiles per row


@dataclass(frozen=True)
class TableView:
    """A table for display: headings and rows of text."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class GalleryItem:
    """One example of a gallery: its picture, its crop, and rows of neighbours as data URIs, with captions in plain text."""

    caption: str
    image: str
    crop: str
    rows: Sequence[tuple[str, Sequence[tuple[str, str, bool]]]]  # title, (data URI, caption, whether of the example's class)


@dataclass(frozen=True)
class Section:
    """A section of the page; empty fields are not shown.

    A figure must have a caption, which also serves as its description for screen readers.
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
        title, audit, run: the parts of the page's heading.
        verdict, verdict_kind, lead: the verdict in a sentence, its style (a value of KINDS), and the evidence behind it.
        numbers: value, name and interval of the few numbers on which the verdict is based.
        sections: sections of the page.
        question: the question that the audit answers.
        meaning: what an outsider could do with the finding.
        advice: what the reader should do next.
        limits: limitations of the audit, whatever its result.
        terms: glossary terms that the page may use; the end of the page defines the terms that occur in the text.
        model: the audited model.
        imprint: lines about the origin of the page, as heading and text.
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
    advice: str = ""
    limits: Sequence[str] = ()
    terms: Sequence[str] = ()
    model: str = ""
    imprint: Sequence[tuple[str, str]] = ()


def filled(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> TableView:
    """Return a table without the columns that are empty in every row."""
    kept = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    return TableView([headings[place] for place in kept], [[row[place] for place in kept] for row in rows])


def meaning_of(word: str, *, shown: str, bounded: str) -> str:
    """Return a description of what an outsider could do with a finding.

    Args:
        word: a key of KINDS.
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
        word: a key of KINDS.
        shown, descriptive: the texts for these two verdicts.
        before: what comes first, where nothing was shown.
        more: what can still be added to an audit of a model that was trained elsewhere, so that no other one can be trained.
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
        most: number of words.

    Returns:
        the first sentences, and the rest, "" if there is none.
    """
    sentences = SENTENCE_END.split(text)
    count = max(1, sum(len(" ".join(sentences[: end + 1]).split()) <= most for end in range(len(sentences))))
    return " ".join(sentences[:count]), " ".join(sentences[count:])


def render(page: Page) -> str:
    """Return the page as HTML; all text is escaped, and only SVG from `save_figure` is inserted as markup."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["svg"] = _described
    template = environment.from_string(files("memlib.report").joinpath("page.html.j2").read_text())
    return template.render(page=page, terms=_used(page), columns=_columns(len(page.numbers)))


def _used(page: Page) -> list[tuple[str, str]]:
    """Return the terms that occur in the page's text, with their definitions."""
    text = str(replace(page, terms=(), sections=[replace(section, svg="", gallery=()) for section in page.sections])).lower()
    words = {term: [word for word in term.split(", ") if len(word) > 1] or [term] for term in page.terms}
    return defined(term for term, names in words.items() if any(name.lower() in text for name in names))


def _described(section: Section) -> Markup:
    """Return a section's figure with a title and a description for screen readers."""
    assert section.figure_caption, f"the figure of {section.heading!r} has no caption"
    texts = Markup("<title>{}</title><desc>{}</desc>").format(section.heading, section.figure_caption)
    start, _, rest = section.svg.partition(">")
    return Markup(start) + Markup(' role="img" aria-label="{}">').format(escape(section.heading)) + texts + Markup(rest)


def _columns(count: int) -> int:
    """Return the number of tiles per row, at most MOST_TILES, chosen to put as many tiles as possible in the last row."""
    if count <= MOST_TILES:
        return max(1, count)
    return max(range(3, MOST_TILES + 1), key=lambda columns: ((count - 1) % columns, columns))


def said_on_page(page: bytes, text: str) -> bytes:
    """Return a rendered page with a line below its verdict, for what is known only when it is published; "" adds nothing.

    The page itself is computed once and cached; which look at the data it is depends on the store.
    """
    line = f'<p class="looks">{escape(text)}</p>' if text else ""
    return page.replace(b"<!-- looks -->", line.encode(), 1)
