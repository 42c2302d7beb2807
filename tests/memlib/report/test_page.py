import importlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pytest

import memlib
from memlib.audits.deja_vu.findings import curves, summarize
from memlib.audits.deja_vu.recipe import Config, Recipe
from memlib.audits.deja_vu.report import Facts, Shown, compose
from memlib.audits.deja_vu.scores import Decoding, score
from memlib.findings import INCONCLUSIVE, Findings, Verdict, estimate
from memlib.report.figures import data_uri, outlined
from memlib.report.glossary import defined, terms
from memlib.report.page import (
    Content,
    ExampleView,
    FigureView,
    Page,
    PicturesView,
    Section,
    TableView,
    active_in,
    advice_of,
    first_words,
    render,
    said_on_page,
)
from memlib.report.page import _columns as page_columns

pytestmark = pytest.mark.page

EVIL = "<script>alert('x')</script>"


def test_all_text_is_escaped() -> None:
    section = Section(
        EVIL, EVIL, FigureView("<svg></svg>", EVIL), TableView([EVIL], [[EVIL]]), TableView([EVIL], [[EVIL]], folded=EVIL),
        ExampleView(EVIL, [("data:,", EVIL)], [(EVIL, [("data:,", EVIL, EVIL, True)])]), PicturesView([("data:,", EVIL)]),
    )  # fmt: skip
    content = Content([section], numbers=[(EVIL, EVIL, EVIL)], meaning=EVIL, advice=EVIL, limits=[EVIL], model=EVIL)
    html = render(Page(EVIL, EVIL, EVIL, EVIL, Verdict("shown", EVIL, EVIL), content, [(EVIL, EVIL)]))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 28


def test_render_includes_meaning_advice_limits_imprint_and_used_terms() -> None:
    figure = FigureView("<svg width='1'><g></g></svg>", "Bits by <epoch>.")
    content = Content(
        [Section("Bits", None, "", figure), None, Section("Empty")], meaning="Guess it.", advice="Hide it.",
        limits=["Other secrets."], terms=("exposure", "rho"),
    )  # fmt: skip
    verdict, imprint = Verdict("shown", "v", "an exposure of 3 bits"), [("drawn", "2026-01-01"), ("store", "s3://x")]
    page = Page("t", "exposure", "r", "How many bits?", verdict, content, imprint)
    html = render(page)
    for said in ("How many bits?", "Guess it.", "Hide it.", "Other secrets.", "2026-01-01", "s3://x", 'href="#s2">Empty'):
        assert said in html
    assert "<dt>exposure</dt>" in html
    assert "<dt>rho</dt>" not in html  # the page does not use it
    assert '<span class="word"><b>shown</b></span>' in html
    assert '<span class="word"><b>shown</b>, at level 0.025</span>' in render(replace(page, level=0.025))
    assert all(f"<dt>{word}</dt>" in html for word in ("shown", "bounded", "inconclusive", "descriptive"))
    assert "<title>Bits</title><desc>Bits by &lt;epoch&gt;.</desc><g>" in html
    with pytest.raises(AssertionError, match="no caption"):
        render(replace(page, content=Content([Section("Bits", replace(figure, caption=""))])))


def test_rows_of_figures_and_tables_are_links_to_their_csv_that_a_folded_table_repeats_inside() -> None:
    rows: list[dict[str, object]] = [{"series": EVIL, "x": 1.5}, {"series": "=b", "x": -2.5}]
    section = Section(
        f"A {EVIL}", FigureView("<svg></svg>", "c", rows), TableView(["a"], [["b"]], data=rows[:1]),
        TableView(["a"], [["b"]], folded="All", data=[estimate("share", {}, 0.5, n=1)]), TableView(["a"], [["b"]]),
    )  # fmt: skip
    html = render(Page("t", "a", "r", "", Verdict("shown", "v", "e"), Content([section])))
    found = Links()
    found.feed(html)
    assert "<script" not in html
    assert [name for name, _, _ in found.files] == ["a-script-alert-x-script.csv"] * 3
    assert [text for _, _, text in found.files] == ["CSV (2 rows)", "CSV (1 row)", "CSV (1 row)"]
    texts = [unquote(link.partition(",")[2]) for _, link, _ in found.files]
    assert texts[:2] == [f"series,x\n{EVIL},1.5\n'=b,-2.5\n", f"series,x\n{EVIL},1.5\n"]
    assert "share" in texts[2]
    assert re.search(r"<figcaption>c\s+<a [^>]*>CSV \(2 rows\)</a>\s*</figcaption>", html)
    assert re.search(r"</table></div>\s*<a [^>]*>CSV \(1 row\)</a>\s*</details>", html)


class Links(HTMLParser):
    """The files that a page offers: name, address and text of each link."""

    def __init__(self) -> None:
        super().__init__()
        self.files: list[tuple[str, str, str]] = []
        self._link: tuple[str, str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self._link = (named["download"] or "", named["href"] or "") if tag == "a" and "download" in named else None

    def handle_data(self, data: str) -> None:
        if self._link is not None:
            self.files.append((*self._link, data))
            self._link = None


def test_page_says_at_its_head_what_it_is_about_and_how_sure_it_is() -> None:
    page = Page(
        "t", "a", "r", "", Verdict("shown", "v", "e"), Content([]), about={"model": "m <1>"}, sure="Once in 20 cases."
    )
    head, _, rest = render(page).partition("</header>")
    assert "<dt>model</dt><dd>m &lt;1&gt;</dd>" in head
    assert "<b>How sure.</b> Once in 20 cases." in rest
    assert "How sure" not in render(replace(page, sure=""))


def test_sections_for_readers_who_know_the_method_are_below_a_fold() -> None:
    sections = [
        Section("Nats", "text", is_folded=True),
        Section("Picture", "text"),
        Section("Who", "text"),
        Section("Law", "text"),
    ]
    page = Page("t", "a", "r", "", Verdict("shown", "v", "e"), Content(sections, first=2))
    assert [one.heading for one in page.visible] == ["Picture", "Who"]
    assert [one.heading for one in page.folded] == ["Nats", "Law"]
    shown, _, folded = render(page).partition('<section id="method">')
    assert [name in shown for name in ("Picture", "Nats")] == [True, False]
    assert "<summary>Nats</summary>" in folded


def test_no_row_of_tiles_on_a_page_holds_a_single_tile() -> None:
    for count in range(2, 14):
        columns = page_columns(count)
        assert columns <= 5
        assert count <= columns or count % columns != 1, count


def test_every_term_of_a_page_is_defined_and_every_definition_is_a_sentence() -> None:
    for audit in ("deja_vu.report", "exposure.report", "forgetting.report", "unique_feature.report.page"):
        module = importlib.import_module(f"memlib.audits.{audit}")
        assert len(defined(module._TERMS)) == len(module._TERMS)
    for term, text in terms().items():
        assert text.endswith("."), term
    with pytest.raises(KeyError, match="no definition of riddle"):
        defined(["riddle"])


@pytest.mark.parametrize(
    ("term", "said", "wrong"),
    [
        ("A, B, C, X", "C trains both", "seen by neither"),  # Meehan 2023: the attacked encoders share C
        ("white box, grey box, black box", "the training data and the feature's label", "outputs in full"),  # Hartley 2023
        ("M", "for examples with a feature than for the same examples without it", "in other places"),
        ("D_C", "from the same domain as D_Q", "known not to have been used"),  # Liu 2020
        ("exposure", "2^(e - 1) times sooner", "1/2^e"),  # Carlini 2019: |R| / 2 guesses on average without the model
    ],
)
def test_definitions_of_terms_agree_with_the_papers(term: str, said: str, wrong: str) -> None:
    assert said in terms()[term]
    assert wrong not in terms()[term]


def test_code_and_documents_avoid_claims_that_the_papers_do_not_make() -> None:
    root = Path(memlib.__file__).parents[1]
    texts = [*(root / "memlib").rglob("*.py"), *(root / "docs").rglob("*.md")]
    assert len(texts) > 100
    for path in texts:
        text = " ".join(path.read_text(encoding="utf-8").replace('"', " ").split())
        for wrong in (
            "one in 2^e of the guesses",
            "1/2^e of the guesses",
            "egularization may reduce memory",
            "decisions alone",
        ):
            assert wrong not in text, f"{path}: {wrong}"


class Loads(HTMLParser):
    """Everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "xlink:href")]


def made_up(known: float, count: int = 120) -> tuple[pa.Table, Config]:
    rng = np.random.default_rng(0)
    config = Config(k=(5,), replicates=200, permutations=200)
    found = []
    for direction in ("A", "B"):
        labels = rng.integers(0, 3, size=count)
        votes = rng.integers(0, 3, size=(2, count, 5))
        model = int(known < 0)  # below 0, the reference knows the labels
        votes[model] = np.where(rng.random((count, 1)) < abs(known), labels[:, None], votes[model])
        names = [f"{direction}{i:03d}{EVIL}" for i in range(count)]
        found.append(Decoding(direction, 0, "projector_3", 5, "maximal", names, labels, votes[0], votes[1]))
    return score(found, ["cat", "dog", EVIL], config), config


@pytest.mark.parametrize(("known", "kind"), [(0.6, "found"), (-0.4, "odd")])
def test_page_of_an_audit_is_self_contained_and_escaped_and_shows_the_headline(
    known: float, kind: str, tmp_path: Path
) -> None:
    units, config = made_up(known)
    summary = summarize(units, config, num_classes=3)
    recipe = Recipe.model_validate(
        {
            "data": {"source": {"kind": "scenes"}}, "split": {"train_per_class": 5}, "title": f"Audit {EVIL}",
            "training": {"objective": {"kind": "vicreg"}, "epochs": 5}, "decode": config, "report": {"gallery": 3},
        }
    )  # fmt: skip
    image = np.zeros((16, 16, 3), dtype=np.uint8)
    shown = Shown(image, (0, 0, 16, 6), [(image, "cat")] * 4, [(image, EVIL)] * 4)
    facts = Facts({"target": 60}, {"duplicate": 2}, {"model A0": 3.0})
    content = compose(recipe, units, summary, curves(units), facts, lambda unit: shown, tmp_path)
    page = Page(recipe.title, "deja-vu", "run1", "", Findings.read(summary).verdict, content)
    html = render(page)
    assert page.style == kind
    assert EVIL not in html
    loads = Loads()
    loads.feed(html)
    assert loads.found
    assert all(load.startswith(("data:image/png;base64,", "data:text/csv;charset=utf-8,", "#")) for load in loads.found)
    assert "Content-Security-Policy" in html
    assert "viewport" in html
    assert "@media print" in html
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg"}
    excess = json.loads(summary["params"][0].as_py())
    assert excess["direction"] == "both"
    assert f"{100 * summary['value'][0].as_py():.1f}" in html


def test_several_layers_epochs_and_k_have_a_section_and_figure_each(tmp_path: Path) -> None:
    config = Config(k=(5, 3), layers=("last", "backbone"), epochs=(2,), replicates=100, permutations=100)
    rng, found = np.random.default_rng(0), []
    settings = [("projector_3", 5), ("projector_3", 2), ("backbone", 5), ("backbone", 2)]
    for layer, epoch in settings:
        for direction in ("A", "B"):
            labels, votes = np.arange(60) % 3, rng.integers(0, 3, size=(2, 60, 5))
            names = [f"{direction}{i:03d}" for i in range(60)]
            found.append(Decoding(direction, 0, layer, epoch, "maximal", names, labels, votes[0], votes[1]))
    units = score(found, ["cat", "dog", "cow"], config)
    summary = summarize(units, config, num_classes=3)
    recipe = Recipe.model_validate(
        {
            "data": {"source": {"kind": "scenes"}}, "split": {"train_per_class": 5}, "decode": config,
            "training": {"objective": {"kind": "vicreg"}, "epochs": 5, "checkpoint_epochs": [2]}, "report": {"gallery": 0},
        }
    )  # fmt: skip
    facts = Facts({"target": 60}, {}, {})
    content = compose(recipe, units, summary, curves(units), facts, lambda unit: pytest.fail("no gallery"), tmp_path)
    headings = [section.heading for section in content.sections if section is not None]
    assert [name for name in ("Through training", "By layer", "By number of neighbours") if name in headings] == [
        "Through training", "By layer", "By number of neighbours"
    ]  # fmt: skip
    drawn = {path.name for path in tmp_path.iterdir()}
    assert {f"share_excess_by_{name}.svg" for name in ("epoch", "layer", "k")} <= drawn
    by_layer = (tmp_path / "share_excess_by_layer.svg").read_text()
    assert by_layer.index("backbone") < by_layer.index("projector_3")  # in order of depth


def test_swapped_target_and_reference_give_an_inconclusive_verdict() -> None:
    units, config = made_up(0.6)
    names = ["target_prediction", "target_confidence", "reference_prediction", "reference_confidence", "category"]
    swap = {a: b for a, b in zip(names, [*names[2:4], *names[:2]], strict=False)}
    turned = units.rename_columns([swap.get(name, name) for name in units.column_names]).select(units.column_names)
    said = Findings.read(summarize(turned, config, num_classes=3)).verdict
    assert said.word == INCONCLUSIVE
    assert "opposite direction to memorization" in said.sentence


def test_outlined_scales_and_marks_an_image_that_data_uri_encodes() -> None:
    image = np.zeros((8, 12, 3), dtype=np.uint8)
    marked = outlined(image, (2, 0, 12, 4), scale=3)
    assert marked.shape == (24, 36, 3)
    assert tuple(marked[0, 6]) == (255, 64, 160)
    assert marked[20, 20].sum() == 0
    assert data_uri(image).startswith("data:image/png;base64,")


def test_first_words_end_with_a_sentence() -> None:
    assert first_words("One two. Three four five. Six.", 5) == ("One two. Three four five.", "Six.")
    assert first_words("One two three.", 1) == ("One two three.", "")
    assert first_words("p = 0.05 of 3.2 x. Then more.", 5) == ("p = 0.05 of 3.2 x.", "Then more.")


def test_advice_on_an_external_model_names_further_questions() -> None:
    assert "Run a larger audit" in advice_of("inconclusive", shown="")
    given = advice_of("inconclusive", shown="", more="more names")
    assert "Run a larger audit" not in given
    assert "more can be asked of it: more names." in given


def test_said_on_page_inserts_an_escaped_line_below_the_verdict() -> None:
    page = b"<div>verdict</div>\n<!-- looks -->\nrest"
    assert (
        said_on_page(page, "Look 2 <of> these") == b'<div>verdict</div>\n<p class="looks">Look 2 &lt;of&gt; these</p>\nrest'
    )
    assert said_on_page(page, "") == b"<div>verdict</div>\n\nrest"


@pytest.mark.parametrize(
    ("text", "term", "used"),
    [
        ("A trains the target model", "A, B, C, X", False),
        ("images of B and C", "A, B, C, X", True),
        ("the M of a model", "M", True),
        ("Models remember", "M", False),
        ("named by neighbours", "named by neighbours (knn_accuracy)", True),
    ],
)
def test_terms_of_one_letter_are_found_as_words(text: str, term: str, used: bool) -> None:
    page = Page("t", "a", "r", "", Verdict("shown", "v", text), Content([], terms=(term,)))
    assert (f"<dt>{term}</dt>" in render(page)) == used


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<script>alert(1)</script>", "<script>"), ("<SCRIPT src=x>", "<script>"), ("<img src=x onerror=alert(1)>", "<img onerror>"),
        ("<svg/onload=alert(1)>", "<svg onload>"), ("<a href=' java\nscript:alert(1)'>x</a>", "<a href>"), ("<iframe src=x>", "<iframe>"),
        ("<a href='data:text/html,x'>x</a>", "<a href>"), ("<meta http-equiv=Refresh content=0>", "<meta>"), ("<form>", "<form>"),
        ("<base href=x>", "<base>"), ("<link rel=stylesheet href=x>", "<link>"), ("<object data=x>", "<object>"),
        ("<p>&lt;script&gt;</p><a href='#x'>y</a><img src='data:image/png;base64,x'><a href='data:text/csv,x'>z</a>", ""),
    ],
)  # fmt: skip
def test_whatever_could_act_in_a_page_is_found(text: str, found: str) -> None:
    assert active_in(f"<html><body><p>words</p>{text}</body></html>") == found
