"""Files of users are opened in one way: from file systems alone, as far as they fit in memory, and quoting no content."""

import gzip
import io
import lzma
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from memlib.data import opening
from memlib.data.datasets import open_source
from memlib.data.id_files import said_of_examples
from memlib.data.images.pictures import Undecodable, read_picture
from memlib.data.opening import ParquetContent, content_of, located, opened, read_parquet, reason
from memlib.data.text.sources import open_text
from memlib.data.text.streams import read_file
from memlib.errors import DataError, UserError
from memlib.models.hugging import MODEL, check_folder
from memlib.models.weights import states_in
from memlib.observe.supplied_outputs import check_columns
from memlib.specs import DataSpec, TextFileSource
from memlib.specs.data import TableSource
from memlib.specs.observing import OutputsSpec


def written(table: pa.Table, **options: Any) -> bytes:
    held = pa.BufferOutputStream()
    pq.write_table(table, held, **options)
    return bytes(held.getvalue().to_pybytes())


def test_a_table_is_read_as_arrow_reads_it() -> None:
    table = pa.table({
        "text": ["x", "y", None], "number": [1, 2, 3], "list": [[1.0], [2.0, 3.0], []], "large": pa.array(["u", "v", "w"], pa.large_string()),
        "image": [{"bytes": b"x", "path": "p"}, None, {"bytes": b"y", "path": None}], "texts": [["q", "r"], None, ["s"]],
        "bytes": pa.array([b"1", None, b"3"]), "classes": pa.array(["m", "n", "m"]).dictionary_encode(),
        "decimal": pa.array([1, 2, 3], pa.decimal128(5, 2)), "fixed": pa.array([["a"], ["b"], ["c"]], pa.list_(pa.string(), 1)),
    })  # fmt: skip
    for rows in (2, 3):
        content = written(table, row_group_size=rows)
        expected = pq.read_table(io.BytesIO(content))
        found = read_parquet(content, "t")
        assert found.schema.equals(expected.schema, check_metadata=True)
        assert found.equals(expected)
        assert read_parquet(content, "t", ["number", "text"]).equals(expected.select(["number", "text"]))
        assert list(ParquetContent(content, "t").values("text")) == ["x", "y", None]
    assert read_parquet(written(table.slice(0, 0)), "t").equals(pq.read_table(io.BytesIO(written(table.slice(0, 0)))))
    with pytest.raises(ValueError, match="it has no column other"):
        read_parquet(written(table), "t", ["other"])


def test_images_of_which_not_all_fit_into_a_dictionary_are_read_one_by_one() -> None:
    rng = np.random.default_rng(0)
    images = [{"bytes": rng.bytes(1000), "path": None} for _ in range(9000)]
    content = written(pa.table({"image": images, "label": range(9000)}), row_group_size=4096)
    with pytest.raises(pa.ArrowNotImplementedError):
        list(pq.ParquetFile(io.BytesIO(content), read_dictionary=["image.bytes"]).iter_batches(100, columns=["image"]))
    file = ParquetContent(content, "t")
    assert list(file.values("image")) == images
    assert list(file.values("label")) == list(range(9000))


def bombs() -> dict[str, bytes]:
    """Return small Parquet files that Arrow would decode to 400 MB."""
    places = pa.array(np.zeros(40_000, np.int32))
    long = pa.DictionaryArray.from_arrays(places, pa.array(["x" * 10_000]))
    listed = pa.ListArray.from_arrays(np.arange(40_001, dtype=np.int32), long)
    struct = pa.StructArray.from_arrays([long], ["bytes"])
    tables = {"text": {"c": long}, "list": {"c": listed}, "struct": {"c": struct}, "numbers": {"c": np.zeros(50_000_000)}}
    return {name: written(pa.table(table), store_schema=False, compression="zstd") for name, table in tables.items()}


@pytest.mark.parametrize(("kind", "content"), bombs().items())
def test_a_table_that_does_not_fit_is_refused_before_it_is_decoded(
    kind: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(content) < 300_000
    monkeypatch.setattr(opening, "_available", lambda: 300_000_000)
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match=r"decodes to more than 240,000,000 bytes, which do not fit in memory; .* MEMLIB_MAX"):
        read_parquet(content, "t")
    assert pa.total_allocated_bytes() - before < 100_000_000
    path = str(tmp_path / "t.parquet")
    Path(path).write_bytes(content)
    for refused in readers_of_tables(path):
        with pytest.raises(UserError, match="decodes to more than"):
            refused()
    monkeypatch.setenv("MEMLIB_MAX_BYTES", "1000000000")  # the user says that it fits
    assert read_parquet(content, "t").num_rows


def readers_of_tables(path: str) -> list[Callable[[], Any]]:
    """Return readers of a table of a user's."""
    return [
        lambda: open_source(TableSource(kind="table", path=path, label_column="c")),
        lambda: said_of_examples(path, "c", setting="group.path"),
        lambda: check_columns(OutputsSpec(path=path)),
    ]


@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("xz", lzma.compress)])
def test_a_compressed_file_that_does_not_fit_is_refused(
    suffix: str, compress: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"t.csv.{suffix}"
    path.write_bytes(compress(b"a,c\n" + b"1,2\n" * 5_000_000))
    monkeypatch.setattr(opening, "_available", lambda: 10_000_000)
    for refused in readers_of_tables(str(path)):
        with pytest.raises(UserError, match="decodes to more than 8,000,000 bytes"):
            refused()


def test_weights_in_a_compressed_archive_that_do_not_fit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"weight": torch.zeros(10_000_000)}, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as small,
    ):
        for entry in stored.infolist():
            small.writestr(entry.filename, stored.read(entry))
    assert (tmp_path / "w.pt").stat().st_size < 100_000
    monkeypatch.setattr(opening, "_available", lambda: 10_000_000)
    with pytest.raises(UserError, match="decodes to more than 8,000,000 bytes"):
        states_in(str(tmp_path / "w.pt"))


@pytest.mark.parametrize(
    "uri",
    ["http://h/t.csv", "https://h/t.csv", "ftp://h/t.csv", "HTTP://h/t.csv", "github://o:r@/t.csv", "zip://t.csv::http://h/t.zip",
     "simplecache::http://h/t.csv", "data://x", "git://x", "file://x::https://h/t", "dask://x", "ssh://h/t"],
)  # fmt: skip
def test_no_request_is_sent_to_an_address(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsspec.url_to_fs", lambda uri: pytest.fail("opened"))
    for refused in (*readers_of_tables(uri), lambda: list(read_file(uri)), lambda: located(uri)):
        with pytest.raises(UserError, match=r"is an address (on the web|of the kind \w+), which is not opened; download"):
            refused()


@pytest.mark.parametrize("kind", ["device", "pipe", "folder"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "t.csv"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    for refused in (
        *readers_of_tables(str(path)),
        lambda: content_of(str(path)),
        lambda: states_in(str(path)),
        lambda: list(read_file(str(path))),
    ):
        with pytest.raises(UserError, match="is not a regular file"):
            refused()


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_errors_quote_no_content(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.{suffix}"
    path.write_text("name,c\nann,1\nmary jones,HIV positive,2\n")
    for refused in readers_of_tables(str(path)):
        with pytest.raises(UserError) as caught:
            refused()
        assert "mary" not in str(caught.value)
        assert "HIV" not in str(caught.value)


def test_the_reason_of_an_error_is_its_first_line_without_quotations() -> None:
    assert (
        reason(ValueError("CSV parse error: Expected 2 columns, got 3: ann,b,c\nmore"))
        == "CSV parse error: Expected 2 columns, got 3"
    )
    assert reason(ValueError("In CSV column #1: invalid value 'secret'")) == "In CSV column #1: invalid value ..."
    assert reason(FileNotFoundError(2, "No such file or directory", "x")) == "No such file or directory"
    assert reason(EOFError()) == "EOFError"


def test_a_zip_archive_of_one_file_is_read_and_of_several_is_not(tmp_path: Path) -> None:
    for names in (["a.txt"], ["a.txt", "b.txt"]):
        with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
            for name in names:
                archive.writestr(name, "words")
        if len(names) == 1:
            with opened(str(tmp_path / "t.zip")) as file:
                assert file.read() == b"words"
        else:
            with pytest.raises(DataError, match="holds 2 files instead of one"), opened(str(tmp_path / "t.zip")):
                pass


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("a.csv", {"kind": "table", "label_column": "y"}),
        ("a.parquet", {"kind": "table", "label_column": "y"}),
        ("a.parquet", {"kind": "parquet", "image_column": "image", "label_column": "label"}),
        ("a.npz", {"kind": "npz"}),
        ("a.csv", {"kind": "csv", "root": "r", "label_column": "label", "classes": {"a": ["0"], "b": ["1"]}}),
    ],
)
def test_every_reader_names_a_pointer_of_git_lfs(tmp_path: Path, name: str, source: dict[str, str]) -> None:
    path = tmp_path / name
    path.write_text(POINTER)
    with pytest.raises(UserError, match=f"{name} is a Git LFS pointer, not the file itself; fetch it with git lfs pull"):
        open_source(DataSpec.model_validate({"source": {**source, "path": str(path)}}).source)


def test_pictures_models_and_texts_that_are_pointers_of_git_lfs_are_named(tmp_path: Path) -> None:
    with pytest.raises(Undecodable, match="is a Git LFS pointer"):
        read_picture(POINTER.encode())
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(POINTER)
    with pytest.raises(UserError, match=r"model.safetensors is a Git LFS pointer"):
        check_folder(str(folder), MODEL)
    (tmp_path / "a.txt").write_text(POINTER)
    with pytest.raises(UserError, match="is a Git LFS pointer"):
        list(open_text(TextFileSource(kind="text", path=str(tmp_path / "a.txt"))).read())
