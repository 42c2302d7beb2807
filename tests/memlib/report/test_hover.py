import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memlib.findings import Verdict
from memlib.report.figures import draw_interval, new_figure, percent_axis, save_figure, slim
from memlib.report.hover import APART, as_number
from memlib.report.page import Content, FigureView, Page, Section, render

pytestmark = pytest.mark.page


class Titles(HTMLParser):
    """The titles of the shapes that show values, each with the shape's tag and attributes, as a browser reads them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, float], str]] = []
        self.path: list[str] = []
        self._shape: tuple[str, dict[str, float]] = "", {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.path.append(tag)
        if tag in ("circle", "rect"):
            self._shape = tag, {name: float(value or "") for name, value in attrs}

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        while self.path and self.path.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self.path[-2:] in (["circle", "title"], ["rect", "title"]):
            self.found.append((*self._shape, data))


def shapes(markup: str) -> list[tuple[str, dict[str, float], str]]:
    parser = Titles()
    parser.feed(markup)
    return parser.found


@pytest.fixture
def drawn(tmp_path: Path) -> tuple[Figure, Axes]:
    figure = new_figure()
    axes = figure.axes[0]
    axes.set(xlabel="share (of examples)", ylabel="named", xlim=(0, 1), ylim=(0, 1))
    return figure, axes


def texts(figure: Figure, folder: Path) -> list[str]:
    return [text for _, _, text in shapes(save_figure(figure, folder, "figure"))]


def test_markers_show_name_and_values_at_the_place_where_matplotlib_draws_them(
    drawn: tuple[Figure, Axes], tmp_path: Path
) -> None:
    figure, axes = drawn
    axes.plot([0.25, 0.5], [0.125, 0.75], "o", label="target")
    percent_axis(axes.yaxis)
    markup = save_figure(figure, tmp_path, "dots")
    found = shapes(markup)
    assert [text for _, _, text in found] == [
        "target\nshare: 0.25\nnamed: 12.5 %",
        "target\nshare: 0.5\nnamed: 75 %",
    ]
    group = re.search(r"<g[^>]*>(<use [^>]*/>){2}</g>", markup)  # the two markers: ticks stand alone in their groups
    assert group is not None
    places = re.findall(r'x="([\d.]+)" y="([\d.]+)"', group[0])
    for (_, at, _), (x, y) in zip(found, places, strict=True):
        assert at["cx"] == pytest.approx(float(x), abs=0.6)
        assert at["cy"] == pytest.approx(float(y), abs=0.6)
    assert (tmp_path / "dots.svg").read_text() == markup


def test_names_are_text_on_hover(drawn: tuple[Figure, Axes], tmp_path: Path) -> None:
    figure, axes = drawn
    axes.plot([0.5], [0.5], "o", label="<b>x</b> & \"y\" </title><script>alert('x')</script>")
    markup = save_figure(figure, tmp_path, "evil")
    assert "<b>" not in markup
    assert "<script" not in markup
    assert [text.partition("\n")[0] for _, _, text in shapes(markup)] == [
        "<b>x</b> & \"y\" </title><script>alert('x')</script>"
    ]
    content = Content([Section("Classes", FigureView(markup, "A figure."))])
    page = Page("t", "deja-vu", "r", "", Verdict("shown", "v", "e"), content)
    assert [text for _, _, text in shapes(render(page))] == [text for _, _, text in shapes(markup)]


def test_whiskers_show_intervals_and_lines_across_their_value(drawn: tuple[Figure, Axes], tmp_path: Path) -> None:
    figure, axes = drawn
    axes.errorbar([0.2, 0.4], [0.5, 0.6], yerr=[[0.25, 0.1], [0.125, 0.2]], fmt="o", label="_memory")
    axes.axhline(0.1, label="guessing")
    axes.axvline(0.3, label="bound")
    axes.axhline(0)  # without a name
    assert texts(figure, tmp_path) == [
        "guessing\nnamed: 0.1",
        "bound\nshare: 0.3",
        "memory\nshare: 0.2\nnamed: 0.5\n95 % interval: 0.25 to 0.625",
        "memory\nshare: 0.4\nnamed: 0.6\n95 % interval: 0.5 to 0.8",
    ]


@pytest.mark.parametrize(
    ("low", "high", "said"), [(0.25, 0.75, "0.25 to 0.75"), (0.25, None, "at least 0.25"), (None, None, "")]
)
def test_interval_is_shown_with_its_value_also_where_its_upper_end_is_open(
    drawn: tuple[Figure, Axes], tmp_path: Path, low: float | None, high: float | None, said: str
) -> None:
    figure, axes = drawn
    draw_interval(axes, 0.5, 0.5, low, high, color="black")
    axes.set_yticks([0.5], ["cell 1"])
    assert texts(figure, tmp_path)[-1] == "share: 0.5\nnamed: cell 1" + (f"\n95 % interval: {said}" if said else "")


def test_bars_show_their_base_and_height_and_segments_their_ends(drawn: tuple[Figure, Axes], tmp_path: Path) -> None:
    figure, axes = drawn
    axes.bar([0.25, 0.75], [0.5, 1.0], width=0.5, label="candidates")
    axes.vlines([0.125], [0.25], [0.5], label="lowest to highest")
    assert texts(figure, tmp_path) == [
        "candidates\nshare: 0 to 0.5\nnamed: 0.5",
        "candidates\nshare: 0.5 to 1\nnamed: 1",
        "lowest to highest\nshare: 0.125\nnamed: 0.25 to 0.5",
    ]


def test_stacked_bars_on_an_axis_of_names_show_their_lengths(tmp_path: Path) -> None:
    figure = new_figure()
    axes = figure.axes[0]
    left = 0.0
    for name, share in (("both", 0.25), ("_neither", 0.75)):
        axes.barh([0], [share], left=left, label=name)
        left += share
    axes.set_yticks([0], ["held-out"])
    percent_axis(axes.xaxis)
    assert texts(figure, tmp_path) == ["both\nheld-out\n25 %", "neither\nheld-out\n75 %"]


def test_curve_shows_values_along_its_length_and_dots_all_that_can_be_told_apart(
    drawn: tuple[Figure, Axes], tmp_path: Path
) -> None:
    figure, axes = drawn
    x = np.linspace(0, 1, 1001)
    axes.plot(x, x, label="curve")
    found = shapes(save_figure(figure, tmp_path, "curve"))
    gaps = [np.hypot(b["cx"] - a["cx"], b["cy"] - a["cy"]) for (_, a, _), (_, b, _) in zip(found, found[1:], strict=False)]
    assert APART - 1.5 <= min(gaps) <= max(gaps) <= APART + 2  # coordinates are whole, and points 0.5 apart
    axes.clear()
    axes.scatter([0.1, 0.1, 0.1, 0.9], [0.5, 0.5, 0.6, 0.6], label="dots")  # two lie on each other, one outside
    axes.set_xlim(0, 0.5)
    axes.set(xlabel="x")
    assert texts(figure, tmp_path) == ["dots\nx: 0.1\n0.5", "dots\nx: 0.1\n0.6"]


def test_nothing_is_shown_where_nothing_has_a_name_and_formats_and_shared_axes_hold(tmp_path: Path) -> None:
    figure = new_figure()
    axes = figure.axes[0]
    axes.scatter([0.5], [0.5])
    assert texts(figure, tmp_path) == []
    axes.set_xlabel("confidence")
    axes.fmt_xdata = lambda value: f"<{value:.1f}>"
    axes.twinx().plot([0.5], [2.0], "s", label="loss")
    assert texts(figure, tmp_path) == ["confidence: <0.5>\n0.5", "loss\nconfidence: 0.5\n2"]


def test_numbers_have_three_digits_or_none_after_the_point_from_a_thousand() -> None:
    assert [as_number(value) for value in (0, 0.12345, 999.4, 1000, 1234567.8, -2500)] == [
        "0", "0.123", "999", "1,000", "1,234,568", "-2,500",
    ]  # fmt: skip


def test_slim_svg_keeps_texts_and_referred_ids_and_shares_no_id_with_other_figures(tmp_path: Path) -> None:
    svg = (
        '<?xml version="1.0"?>\n<svg viewBox="0 0 10.1234 5">\n <!-- 1.23456 -->\n <g id="axes_1">\n'
        '  <path id="m1" d="M 1.23456 2.0 \nL 3.999 4"/>\n  <g clip-path="url(#c1)">\n'
        '   <use xlink:href="#m1" x="1" style="fill: red"/>\n   <use xlink:href="#m1" x="2" style="fill: red"/>\n  </g>\n'
        '  <text>1.23456  and &gt; 2</text>\n </g>\n <clipPath id="c1"/>\n</svg>\n'
    )
    assert slim(svg) == (
        '<svg viewBox="0 0 10.12 5"><g><path id="m1" d="M 1.23 2 L 4 4"/><g clip-path="url(#c1)" style="fill: red">'
        '<use xlink:href="#m1" x="1"/><use xlink:href="#m1" x="2"/></g><text>1.23456  and &gt; 2</text></g>'
        '<clipPath id="c1"/></svg>\n'
    )
    ids = []
    for name in ("a", "b"):
        figure = new_figure()
        figure.axes[0].plot([1, 2], [1, 2], "o-")
        markup = save_figure(figure, tmp_path, name)
        ids += (here := re.findall(r' id="([^"]*)"', markup))
        assert set(re.findall(r'(?:url\(|href=")#([\w.-]+)', markup)) <= set(here)
    assert len(ids) == len(set(ids)) > 0
