"""Model cards: the words of the page, escaped, with the numbers of the verdict and its limits, and nothing on single records."""

import html
import re
from pathlib import Path

import pytest

from memlib.audits import AUDITS
from memlib.errors import UserError
from memlib.report.glossary import terms
from memlib.runs.run import Run
from memlib.sharing.card import as_json, cards_of, escaped, markdown_of

from .conftest import SECRET, publish

MARKDOWN = pytest.importorskip("markdown_it")  # which the documentation and rich install


def test_a_card_has_verdict_numbers_limits_and_how_to_check(run: Run) -> None:
    text = markdown_of(cards_of([run]))
    assert "**Shown.** Members \\| are \\<b\\>found\\</b\\>" in text
    assert "| auc lira | 0.750 | 0.700 to 0.800 | p = 0.001 | 0.790 (limit 0.550) | 400 |" in text
    for limit in AUDITS["membership"].not_shown:
        assert f"- {escaped(limit)}" in text
    assert f"`memlib verify {run.id}`" in text
    assert f"- **shown**: {escaped(terms()['shown'])}" in text
    assert "**bounded**" not in text
    for private in (SECRET, "canary", run.store.root):
        assert private not in text


def test_markdown_shows_the_text_of_a_run_as_it_is(run: Run) -> None:
    rendered = (
        MARKDOWN.MarkdownIt("commonmark", {"html": True, "linkify": False})
        .enable("table")
        .render(markdown_of(cards_of([run])))
    )
    plain = html.unescape(re.sub(r"<[^>]+>", "", rendered))
    assert "Members | are <b>found</b>: https://x.example/_a_" in plain
    assert "The AUC is *high*." in plain
    assert "<b>found" not in rendered
    assert "<a " not in rendered


@pytest.mark.parametrize(
    "text",
    [
        "- a",
        "1. a",
        "2) b",
        "# a",
        "> q",
        "+ a",
        "=== a",
        "a\n\n# b",
        "![x](y)",
        "<script>",
        "`x`",
        "a_b_",
        "&amp;",
        "$x$",
        "---",
    ],
)
def test_escaped_text_is_one_paragraph_without_markup(text: str) -> None:
    rendered = MARKDOWN.MarkdownIt("commonmark", {"html": True}).enable("table").render(escaped(text))
    assert rendered == f"<p>{html.escape(' '.join(text.split()), quote=False)}</p>\n"


def test_cards_of_several_runs_are_one_section_and_a_run_given_twice_is_refused(run: Run) -> None:
    other = publish(run.store, "b" * 12, word="inconclusive")
    cards = cards_of([run, other])
    assert markdown_of(cards).count("## Memorization audits\n") == 1
    assert [one["word"] for one in as_json(cards)["audits"]] == ["shown", "inconclusive"]
    with pytest.raises(UserError, match="is given twice"):
        cards_of([run, run])


def test_a_card_mentions_earlier_looks_at_the_data(run: Run, tmp_path: Path) -> None:
    earlier = {"run": "c" * 12, "audit": "membership", "finished": 1.0, "p_value": 0.5, "look": "c" * 12}
    looked = publish(run.store, "b" * 12, ledger={"data": "d" * 64, "look": "b" * 12, "earlier": [earlier]})
    assert "Look 2 at these data" in markdown_of(cards_of([looked]))
    assert "Look 2" not in markdown_of(cards_of([run]))
