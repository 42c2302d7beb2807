"""Every notebook of docs/notebooks runs, in order, in a folder of its own.

`python tests/docs/test_notebooks.py` executes them in place, so that the site shows the outputs.
"""

import ast
import os
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: threads that wait for each other cost more than they give
NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
SHORTER = {
    "deja_vu": ('"training.epochs": 60', '"training.epochs": 3'),
    "exposure": (
        '"canaries.never": 60',
        '"canaries.never": 20, "model.width": 16, "score.references": 200, "extraction.known": [0]',
    ),
    "forgetting": ('"training.epochs": 30', '"training.epochs": 3'),
    "unique_feature": ('"nets.seeds": 60, "nets.controls": 60, "nets.chunk": 30', '"nets.seeds": 6, "nets.controls": 6'),
}
"""A text of a notebook, and what takes its place in the test, so that it ends soon."""


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its cells, from a kernel of its own."""
    from nbclient import NotebookClient

    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return book


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    """Return the cells of a notebook that hold code."""
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def value_of(source: str, namespace: dict[str, Any]) -> object:
    """Execute a cell; return the value that it shows, that of its last expression, or None."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "<cell>", "exec"), namespace)
    if last is None:
        return None
    value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), namespace)
    return None if source.rstrip().endswith(";") else value


def media_of(value: object) -> list[str]:
    """Return the media types in which a notebook shows a value."""
    from IPython.core.formatters import DisplayFormatter

    return [] if value is None else sorted(DisplayFormatter().format(value)[0])


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_each_cell_shows_what_it_showed(path: Path, tmp_path: Path) -> None:
    from in_process import alone
    from matplotlib import pyplot

    namespace, cells = {"__name__": "__main__"}, code_cells(path)
    old, new = SHORTER.get(path.stem, ("", ""))
    assert any(old in cell.source for cell in cells), f"{old} is not in the notebook"
    with alone(["notebook"], tmp_path, os.environ):
        for cell in cells:
            source = cell.source.replace(old, new) if old else cell.source
            try:
                media = media_of(value_of(source, namespace))
            except Exception as error:
                raise AssertionError(f"this cell fails:\n{source}") from error
            stored = [sorted(output["data"]) for output in cell.outputs if output.output_type == "execute_result"]
            assert media == (stored[0] if stored else []), source
    pyplot.close("all")


def test_there_is_a_notebook_for_each_audit_and_it_keeps_its_outputs() -> None:
    assert {path.stem for path in NOTEBOOKS} == {
        "deja_vu",
        "unique_feature",
        "self_influence",
        "forgetting",
        "membership",
        "exposure",
    }
    for path in NOTEBOOKS:
        assert all(cell.execution_count for cell in code_cells(path)), f"{path.stem}: python tests/docs/test_notebooks.py"


if __name__ == "__main__":
    import tempfile

    for path in [one for one in NOTEBOOKS if one.stem in sys.argv[1:] or len(sys.argv) == 1]:
        with tempfile.TemporaryDirectory() as folder:
            book = executed(path, Path(folder))
        for cell in book.cells:
            cell.get("metadata", {}).pop("execution", None)  # times, which would differ each time
        nbformat.write(book, path)
        print(path.stem)
