"""Class folders, and what lies beside them."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from memlib.data.datasets import open_source
from memlib.data.images.folder import ImageFolder
from memlib.data.text.sources import open_text
from memlib.errors import DataError
from memlib.specs import AnnotatedFolderSource, ImageFolderSource, ParquetSource, TableSource, TextFileSource

NAMES = ("cat/1.png", "cat/2.png", "dog/3.png", "dog/déjà.png")


def folder(path: Path, files: dict[str, str], names: tuple[str, ...] = NAMES) -> ImageFolderSource:
    """Write images, and files of metadata beside them."""
    for number, name in enumerate(names):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path / name)
    for name, content in files.items():
        (path / name).write_text(content)
    return ImageFolderSource(kind="image_folder", path=str(path))


def lines(labels: dict[str, Any]) -> str:
    return "".join(json.dumps({"file_name": name, "label": label}) + "\n" for name, label in labels.items())


AGREEING = "file_name,label\ncat/1.png,cat\n./dog/3.png,Dog\ndog/de\u0301ja\u0300.png,dog\nelsewhere/9.png,cat\ncat/2.png,\n"


@pytest.mark.parametrize(
    "files",
    [
        {"metadata.csv": AGREEING},
        {"metadata.csv": "file_name,text\ncat/1.png,a dog\n"},
        {"metadata.csv": "id,label\n1,dog\n"},
        {"metadata.csv": "no table, of\nany kind, at, all"},
        {"metadata.jsonl": lines({"cat/1.png": "cat", "dog/3.png": None})},
        {"metadata.jsonl": "[1]\n{"},
        {"cat/metadata.csv": "file_name,label\n1.png,cat\n"},
        {"others.csv": AGREEING.replace("1.png,cat", "1.png,dog")},
    ],
)
def test_metadata_that_agree_or_are_unrelated_change_nothing(tmp_path: Path, files: dict[str, str]) -> None:
    found = ImageFolder(folder(tmp_path / "with", files))
    without = ImageFolder(folder(tmp_path / "without", {}))
    assert found.labels == [0, 0, 1, 1]
    assert found.remarks == []
    assert found.content_digest() == without.content_digest()


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metadata.csv", AGREEING.replace("cat/2.png,", "cat/2.png,dog")),
        ("metadata.jsonl", lines({"cat/1.png": "cat", "cat/2.png": "dog", "dog/3.png": "dog"})),
        ("cat/metadata.csv", "file_name,label\n2.png,dog\n1.png,cat\n"),
    ],
)
def test_metadata_that_contradict_the_folders_are_refused(tmp_path: Path, file: str, content: str) -> None:
    with pytest.raises(DataError) as raised:
        ImageFolder(folder(tmp_path, {file: content}))
    assert str(raised.value) == (
        f"{tmp_path}/{file} gives cat/2.png the label 'dog', but it is in the folder of the class 'cat' (1 image in all); "
        "correct the file, move the images, or take the classes from the file with kind: csv"
    )


def test_a_remark_states_labels_other_than_the_folders(tmp_path: Path) -> None:
    numbers = lines({name: int(name.startswith("dog")) for name in NAMES})
    found = ImageFolder(folder(tmp_path / "names", {"metadata.jsonl": numbers}))
    assert found.remarks == [
        f"{tmp_path}/names/metadata.jsonl has labels other than the class folders, which are not used; kind: csv reads them"
    ]
    with pytest.raises(DataError, match=r"gives 0/b.png the label '1', but it is in the folder of the class '0'"):
        ImageFolder(
            folder(tmp_path / "numbers", {"metadata.jsonl": lines({"0/a.png": 0, "0/b.png": 1})}, ("0/a.png", "0/b.png"))
        )


def test_metadata_are_compared_in_every_part(tmp_path: Path) -> None:
    names = tuple(f"{part}/{name}" for part in ("train", "test") for name in NAMES)
    with pytest.raises(DataError, match=r"test/metadata.csv gives test/cat/1.png the label 'dog', .* class 'cat'"):
        ImageFolder(folder(tmp_path, {"test/metadata.csv": "file_name,label\ncat/1.png,dog\n"}, names))


@pytest.mark.parametrize("where", ["shards", "shards/0.tar"])
def test_shards_of_webdataset_are_refused_by_name(tmp_path: Path, where: str) -> None:
    (tmp_path / "shards").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "1.png")
    with tarfile.open(tmp_path / "shards/0.tar", "w") as archive:
        archive.add(tmp_path / "1.png", "1.png")
    path = str(tmp_path / where)
    for spec in (
        ImageFolderSource(kind="image_folder", path=path),
        AnnotatedFolderSource(kind="annotated_folder", path=path, boxes="coco"),
        ParquetSource(kind="parquet", path=path),
    ):
        with pytest.raises(
            DataError, match=r"archives such as 0.tar .webdataset. are not read; unpack them, and write a table"
        ):
            open_source(spec)


def test_archives_are_refused_as_tables_and_texts(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.csv", "w") as archive:
        archive.add(__file__, "a")
    path = str(tmp_path / "a.csv")
    for read in (
        lambda: open_source(TableSource(kind="table", path=path, label_column="y")),
        lambda: open_text(TextFileSource(kind="text", path=path)).measured,
    ):
        with pytest.raises(
            DataError, match=r"a.csv is an archive of many files .tar., as webdataset's shards are; unpack it"
        ):
            read()
