"""Users' mistakes have named classes, all of which the command line reports without a traceback."""

from collections.abc import Callable
from pathlib import Path

import pytest

from memlib.data.datasets import open_source
from memlib.data.text.sources import open_text
from memlib.errors import DataError, ResourcesError, UserError
from memlib.recipes import RecipeError
from memlib.runs import NoSuchRun
from memlib.specs import ImageFolderSource, ParquetSource
from memlib.specs.text import JsonLinesSource, TextFileSource


@pytest.mark.parametrize("kind", [DataError, ResourcesError, RecipeError, NoSuchRun])
def test_named_errors_are_user_errors(kind: type[Exception]) -> None:
    assert issubclass(kind, UserError)


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: open_source(ImageFolderSource(kind="image_folder", path=str(folder))),
        lambda folder: open_source(ParquetSource(kind="parquet", path=str(folder / "missing.parquet"))),
        lambda folder: open_text(TextFileSource(kind="text", path=str(folder / "missing.txt"))).measured,
        lambda folder: open_text(JsonLinesSource(kind="jsonl", path=str(folder / "bad.jsonl"))).measured,
    ],
    ids=["image folder", "parquet", "text", "JSON lines"],
)
def test_unreadable_data_raise_data_errors(read: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("{")
    with pytest.raises(DataError, match=str(tmp_path)):
        read(tmp_path)
