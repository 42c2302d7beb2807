"""Figures are drawn through their corners, show the values of real points, and are PNG files, too, where the recipe asks."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import INFLUENCE
from numpy.typing import NDArray

import memlib
from memlib.report.figures import also_png, corners, new_figure, save_figure
from memlib.report.hover import APART, MOST, STACKED, evenly
from tests.forks import run_code
from tests.memlib.report.test_hover import shapes

pytestmark = pytest.mark.page


def covered(path: NDArray[np.float64]) -> set[tuple[int, int]]:
    """Return the places of a grid that a path along the grid passes, one by one."""
    places = set()
    for (x0, y0), (x1, y1) in pairwise(path.tolist()):
        if not np.isnan([x0, y0, x1, y1]).any():
            assert x0 == x1 or y0 == y1
            xs, ys = sorted((int(x0), int(x1))), sorted((int(y0), int(y1)))
            places |= {(x, y) for x in range(xs[0], xs[1] + 1) for y in range(ys[0], ys[1] + 1)}
    return places


@pytest.mark.parametrize("seed", range(20))
def test_corners_draw_the_same_places_with_the_same_ends(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps = rng.integers(-2, 3, size=60)[:, None] * np.eye(2)[rng.integers(0, 2, size=60)]
    path = np.cumsum(steps, axis=0)
    thinned = corners(path)
    assert covered(thinned) | {tuple(path[0])} == covered(path) | {tuple(path[0])}
    assert thinned[[0, -1]].tolist() == path[[0, -1]].tolist()
    assert {tuple(point) for point in thinned.tolist()} <= {tuple(point) for point in path.tolist()}
    whole = len({tuple(point) for point in corners(np.repeat(path, 3, axis=0)).tolist()})
    assert whole == len({tuple(point) for point in thinned.tolist()})  # repeated points change nothing
    for before, point, after in zip(thinned, thinned[1:], thinned[2:], strict=False):
        if (before == after).any():  # without the point the path would be straight here
            assert covered(np.array([before, after])) != covered(np.array([before, point, after]))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_paths_of_few_points_stay_as_they_are(count: int) -> None:
    path = np.zeros((count, 2))
    assert corners(path).tolist() == path.tolist()


def test_gaps_keep_their_ends_and_slopes_all_their_points() -> None:
    nan = np.nan
    path = np.array([[0, 0], [1, 0], [2, 0], [nan, nan], [3, 0], [4, 0], [5, 0], [6, 1], [7, 2]])
    kept = corners(path)
    assert np.array_equal(kept, path[[0, 2, 3, 4, 6, 7, 8]], equal_nan=True)


@pytest.mark.parametrize("where", ["pre", "mid", "post"])
@pytest.mark.parametrize("scale", ["linear", "log"])
def test_steps_are_drawn_through_their_corners_and_keep_their_data(where: Any, scale: str, tmp_path: Path) -> None:
    x = np.linspace(0.01, 1, 100)
    y = np.where(x < 0.5, 0.02, 0.8)
    figure = new_figure()
    axes = figure.axes[0]
    (line,) = axes.step(x, y, where=where, label="members")
    axes.set(xscale=scale, yscale=scale, xlim=(0.01, 1), ylim=(0.01, 1))
    markup = save_figure(figure, tmp_path, "steps")
    paths = re.findall(r' d="(M [^"]*)"[^>]*style="fill: none', markup)
    drawn = max((path for path in paths if "z" not in path), key=lambda path: path.count("L"))  # plates are closed
    assert drawn.count("L") == 3  # one step up
    ends = np.array([pair.split() for pair in re.split("[ML]", drawn) if pair.strip()], dtype=float)
    box = axes.get_window_extent()
    height, (low, high) = 72 * figure.get_figheight(), axes.transData.transform([[x[0], y[0]], [x[-1], y[-1]]])
    assert ends[0] == pytest.approx((low[0], height - low[1]), abs=0.01)
    assert ends[-1] == pytest.approx((high[0], height - high[1]), abs=0.01)
    assert box.x0 < ends[1, 0] == ends[2, 0] < box.x1
    assert np.array_equal(line.get_xdata(), x)
    assert np.array_equal(line.get_ydata(), y)
    assert line.get_drawstyle() == f"steps-{where}"


def test_values_of_many_markers_are_those_of_evenly_chosen_points(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.round(rng.random(3000), 3)
    y = np.round(rng.random(3000), 3)
    figure = new_figure()
    axes = figure.axes[0]
    axes.scatter(x, y, label="examples")
    axes.set(xlabel="x", ylabel="y")
    axes.fmt_xdata = axes.fmt_ydata = lambda value: f"{value:.3f}"
    titles = [text for _, _, text in shapes(save_figure(figure, tmp_path, "many"))]
    assert len(titles) == MOST
    real = {f"examples\nx: {a:.3f}\ny: {b:.3f}" for a, b in zip(x, y, strict=True)}
    assert set(titles) <= real
    shown = np.array([float(text.split("x: ")[1].split("\n")[0]) for text in titles])
    assert (np.diff(shown) >= 0).all()
    assert np.abs(shown - np.linspace(0, 1, MOST)).max() < 0.05  # all along the axis


def test_values_of_curves_are_as_a_slow_plain_rule_chooses_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for dots in (False, True):
        x, y = np.sort(rng.normal(size=300)), np.cumsum(rng.normal(size=300))
        y[40] = np.nan
        figure = new_figure()
        axes = figure.axes[0]
        axes.plot(x, y, "o" if dots else "-", label="_curve")
        axes.set(xlabel="x", ylabel="y", xlim=(-1, 2))
        titles = [text for _, _, text in shapes(save_figure(figure, tmp_path, "plain"))]
        expected, last, window = [], np.array([np.inf, np.inf]), axes.get_window_extent().padded(1)
        for a, b in zip(x, y, strict=True):
            place = axes.transData.transform([a, b]) * 72 / figure.dpi
            if window.contains(*axes.transData.transform([a, b])) and np.hypot(*(place - last)) >= (
                STACKED if dots else APART
            ):
                last = place
                expected.append(f"curve\nx: {a:.3g}\ny: {b:.3g}")
        assert titles == expected
        assert len(expected) > 20


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 1000])
def test_evenly_chosen_places_hold_both_ends_in_equal_steps(count: int) -> None:
    places = list(evenly(count, 6))
    assert len(places) == min(count, 6)
    assert places[:1] + places[-1:] == ([0, count - 1] if count else [])
    gaps = np.diff(places)
    assert not len(gaps) or gaps.max() - gaps.min() <= 1
    assert not len(gaps) or gaps.min() >= 1


def test_png_is_written_within_its_block_alone(tmp_path: Path) -> None:
    with also_png():
        inside = save_figure(new_figure(), tmp_path / "inside", "a")
    assert save_figure(new_figure(), tmp_path / "outside", "a") == inside
    assert {path.name for path in (tmp_path / "inside").iterdir()} == {"a.svg", "a.png"}
    assert {path.name for path in (tmp_path / "outside").iterdir()} == {"a.svg"}
    assert (tmp_path / "inside/a.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_finished_run_is_asked_for_png_files_by_its_recipe_and_computes_its_page_alone(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    first = memlib.run(INFLUENCE, store=store, quiet=True)
    figures = tmp_path / "store/runs" / first.id / "figures"
    assert {path.suffix for path in figures.iterdir()} == {".svg"}
    again = memlib.run({**INFLUENCE, "report": {"png": True}}, store=store, quiet=True)
    assert again.id == first.id
    assert [ref.partition("/")[0] for ref in again.record.computed] == ["report"]
    assert {path.suffix for path in figures.iterdir()} == {".svg", ".png"}
    back = memlib.run(INFLUENCE, store=store, quiet=True)
    assert not back.record.computed
    assert {path.suffix for path in figures.iterdir()} == {".svg"}


def test_figures_leave_a_program_the_backend_of_its_own_figures() -> None:
    """A notebook shows its own figures after an audit as before."""
    code = "import matplotlib; matplotlib.use('pdf'); import memlib.report.figures; print(matplotlib.get_backend())"
    assert run_code(code).stdout.strip() == "pdf"
