"""Fixtures: a store in a folder, and one on another machine. Figures are drawn only in tests marked `page`."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from matplotlib.figure import Figure

from memlib.report.figures import save_figure
from memlib.store import Store

DRAWING = save_figure.__code__


def not_drawn(figure: Figure, folder: Path, name: str) -> str:
    """Write an empty SVG in place of a figure, whose drawing would be most of the time of a small audit."""
    folder.mkdir(parents=True, exist_ok=True)
    markup = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
    (folder / f"{name}.svg").write_text(markup, encoding="utf-8")
    return markup


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Draw figures only where the page is the subject of a test, or of its module, whose fixtures begin with its first test."""
    save_figure.__code__ = DRAWING if item.get_closest_marker("page") else not_drawn.__code__
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    try:
        return (yield)
    finally:
        save_figure.__code__ = DRAWING


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store, once in a folder and once in a remote file system."""
    if request.param == "local":
        return Store(str(tmp_path / "store"))
    fsspec.filesystem("memory").store.clear()
    fsspec.filesystem("memory").pseudo_dirs[:] = [""]
    return Store("memory://bucket/store", cache=str(tmp_path / "cache"))
