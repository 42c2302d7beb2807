"""Every notebook of docs/notebooks runs, in order, in a folder of its own.

`python tests/docs/test_notebooks.py` executes them in place, so that the site shows the outputs.
"""

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: threads that wait for each other cost more than they give
NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return a notebook with the outputs of its cells."""
    book = nbformat.read(path, as_version=4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(folder)}}).execute()
    return book


@pytest.mark.docs
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_has_outputs(path: Path, tmp_path: Path) -> None:
    book = executed(path, tmp_path)
    assert any(cell.get("outputs") for cell in book.cells)


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
        cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells), f"{path.stem}: python tests/docs/test_notebooks.py"


if __name__ == "__main__":
    import tempfile

    for path in [one for one in NOTEBOOKS if one.stem in sys.argv[1:] or len(sys.argv) == 1]:
        with tempfile.TemporaryDirectory() as folder:
            book = executed(path, Path(folder))
        for cell in book.cells:
            cell.get("metadata", {}).pop("execution", None)  # times, which would differ each time
        nbformat.write(book, path)
        print(path.stem)
