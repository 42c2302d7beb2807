"""Data sets in folders as Hugging Face's save_to_disk writes them: Arrow streams, beside files that describe them."""

import io
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from PIL import Image

from memlib.data import opening
from memlib.data.datasets import open_source
from memlib.data.images.packed import ParquetImages
from memlib.data.opening import ArrowContent
from memlib.data.tables.source import Table
from memlib.errors import DataError, UserError
from memlib.specs import ParquetSource, TableSource

ROWS = pa.table({"age": [20, None, 40, 50], "job": ["a", "b", "a", None], "y": pa.array([0, 1, 1, 0], pa.int64())})


def stream(table: pa.Table, *, rows: int = 2, **options: Any) -> bytes:
    held = pa.BufferOutputStream()
    with pa.ipc.new_stream(held, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(held.getvalue().to_pybytes())


def saved(folder: Path, tables: list[pa.Table], **state: Any) -> Path:
    """Write a folder as `Dataset.save_to_disk` does, with a cache beside its files, as `Dataset.map` leaves it."""
    folder.mkdir(parents=True)
    names = [f"data-{number:05d}-of-{len(tables):05d}.arrow" for number in range(len(tables))]
    for name, table in zip(names, tables, strict=True):
        (folder / name).write_bytes(stream(table))
    content = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "5e1f", "_split": "train", **state}
    (folder / "state.json").write_text(json.dumps(content))
    (folder / "dataset_info.json").write_text("{}")
    (folder / "cache-9ad2.arrow").write_bytes(stream(ROWS))
    return folder


def table_of(path: Path) -> Table:
    return Table(TableSource(kind="table", path=str(path), label_column="y", standardize=True))


def test_a_saved_table_is_read_as_the_same_rows_in_one_file(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", [ROWS.slice(0, 3), ROWS.slice(3)])
    (tmp_path / "a.arrow").write_bytes(stream(ROWS))
    found, single = table_of(folder), table_of(tmp_path / "a.arrow")
    assert [one.example_id for one in found] == ["0000000", "0000001", "0000002", "0000003"]
    assert [one.image.tolist() for one in found] == [one.image.tolist() for one in single]
    assert found.features["age"] == {"0000000": "20", "0000002": "40", "0000003": "50"}
    before = found.content_digest()
    (folder / "cache-9ad2.arrow").unlink()
    assert table_of(folder).content_digest() == before
    (folder / "data-00001-of-00002.arrow").write_bytes(stream(ROWS.slice(0, 1)))
    assert table_of(folder).content_digest() != before


def pictures(labels: list[int]) -> pa.Table:
    """Return images with features as `datasets` writes them."""
    images = []
    for label in labels:
        held = io.BytesIO()
        Image.fromarray(np.full((8, 8, 3), label, np.uint8)).save(held, "PNG")
        images.append({"bytes": held.getvalue(), "path": f"{label}.png"})
    features = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = pa.table({"image": images, "label": pa.array(labels, pa.int64())})
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


def test_saved_images_are_read_batch_by_batch(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", [pictures([0, 1, 1, 0, 1]), pictures([1, 0])])
    source = ParquetImages(ParquetSource(kind="parquet", path=str(folder)))
    assert source.class_names == ["cat", "dog"]
    assert source.labels == [0, 1, 1, 0, 1, 1, 0]
    assert [int(source[row].image[0, 0, 0]) for row in (4, 0, 6, 5, 1)] == [1, 0, 0, 1, 1]
    assert source[6].example_id == "data-00001-of-00002.arrow:0000001"
    assert len(source.content_digest()) == 64
    one = ParquetImages(ParquetSource(kind="parquet", path=str(folder / "data-00001-of-00002.arrow")))
    both = ParquetImages(ParquetSource(kind="parquet", path=str(folder / "data-*.arrow")))
    assert (one.labels, both.labels) == ([1, 0], source.labels)
    assert both.content_digest() == source.content_digest()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"dataset_dict.json": '{"splits": ["train", "test"]}'},
            "holds the splits train, test; name one of their folders, s",
        ),
        ({"state.json": "{}"}, "does not describe a data set as save_to_disk does"),
        ({"state.json": "[" * 100_000}, "does not describe a data set as save_to_disk does"),
        (
            {"state.json": '{"_data_files": [{"filename": "../b.arrow"}]}'},
            r"names '\.\./b.arrow', which is no .arrow file of",
        ),
        ({"state.json": '{"_data_files": [3]}'}, "names '', which is no .arrow file"),
        ({"state.json": '{"_data_files": [{"filename": "b.arrow"}], "_indices_data_files": [{}]}'}, "after flatten_indices"),
        ({"state.json": '{"_data_files": [{"filename": "b.arrow"}]}'}, "cannot read the table|no .parquet file at"),
        ({"a.arrow": ""}, "is not a regular file|no .parquet file at"),
    ],
)
def test_other_folders_are_refused_in_one_line(tmp_path: Path, files: dict[str, str], message: str) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    for spec in (
        TableSource(kind="table", path=str(tmp_path), label_column="y"),
        ParquetSource(kind="parquet", path=str(tmp_path)),
    ):
        with pytest.raises(UserError, match=message) as raised:
            open_source(spec)
        assert "\n" not in str(raised.value)


def feather() -> bytes:
    held = io.BytesIO()
    pyarrow.feather.write_feather(ROWS, held)
    return held.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (feather(), "is in Arrow's file format .Feather., which is not read; save it as Parquet"),
        (stream(pa.table({"y": ["x" * 1000] * 9000}), compression="zstd"), "is compressed, and may not fit"),
        (stream(pa.table({"y": pa.array(["x" * 99] * 9).dictionary_encode()}), compression="lz4"), "is compressed"),
        (stream(ROWS)[:-200], "it is cut short"),
        (b"age,y\n1,2\n", "it is not an Arrow stream"),
        (b"", "it is not an Arrow stream"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.arrow").write_bytes(content)
    for spec in (
        TableSource(kind="table", path=str(tmp_path / "a.arrow"), label_column="y"),
        ParquetSource(kind="parquet", path=str(tmp_path / "a.arrow"), image_column="y", label_column="y"),
    ):
        with pytest.raises(UserError, match=message):
            open_source(spec)


def test_a_stream_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows without bytes count, too."""
    nulls = pa.RecordBatch.from_arrays([pa.nulls(2**20)], ["y"])
    held = pa.BufferOutputStream()
    with pa.ipc.new_stream(held, nulls.schema) as writer:
        writer.write_batch(nulls)
    large = stream(pa.table({"y": ["x" * 1000] * 1000}), rows=1000)
    monkeypatch.setattr(opening, "_available", lambda: 900_000)
    for content in (bytes(held.getvalue().to_pybytes()), large):
        for read in (ArrowContent.read, lambda found: found.read_row_group(0)):
            with pytest.raises(DataError, match="decodes to more than 720,000 bytes"):
                read(ArrowContent(content, "a.arrow"))


def test_damaged_streams_are_read_or_refused(tmp_path: Path) -> None:
    whole, draw = stream(ROWS), random.Random(0)
    for _ in range(150):
        damaged = bytearray(whole)
        damaged[draw.randrange(len(whole))] = draw.randrange(256)
        (tmp_path / "a.arrow").write_bytes(damaged)
        try:
            table_of(tmp_path / "a.arrow")
        except UserError as error:
            message = str(error)
            if "\n" in message:
                pytest.fail(message)
