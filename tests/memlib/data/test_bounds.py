"""Nothing outside a source's root is read, and nothing expands beyond what a machine can hold."""

import gzip
import io
import os
import sqlite3
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flows.cli.app import main
from memlib.data.canaries.features import build_feature
from memlib.data.datasets import open_source
from memlib.data.examples import UnreadableImage, decode_example
from memlib.data.images.annotations import parse_voc
from memlib.data.text.formats import Format
from memlib.data.text.sources import ParquetTexts
from memlib.data.text.streams import read_file
from memlib.errors import UserError
from memlib.specs import CsvSource, ImageFolderSource, NpzSource, ParquetSource, PictureFeature, TextParquetSource


def png(value: int = 0, side: int = 4) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side, side), (value, 0, 0)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.png").write_bytes(png())
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x.png").write_bytes(png(9))
    return tmp_path


def csv_source(folder: Path, name: str) -> CsvSource:
    (folder / "labels.csv").write_text(f"image,label\n{name},a\n./cat/1.png,a\n")
    return CsvSource(
        kind="csv", path=str(folder / "labels.csv"), root=str(folder / "photos"), image_column="image", label_column="label",
        classes={"A": ["a"]},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["../secret/x.png", "cat/../../secret/x.png", "SECRET", "", "cat/../../photos/cat/1.png"])
def test_a_csv_row_whose_path_leads_out_of_the_root_is_refused(folder: Path, name: str) -> None:
    with pytest.raises(UserError, match="does not lie below"):
        open_source(csv_source(folder, name.replace("SECRET", str(folder / "secret" / "x.png"))))


def test_links_are_followed_only_into_allowed_data_roots(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_source(csv_source(folder, "dog/1.png"))[1].label == 0
    (folder / "photos" / "cat" / "2.png").symlink_to(folder / "photos" / "dog" / "1.png")
    assert len(open_source(ImageFolderSource(kind="image_folder", path=str(folder / "photos")))) == 3
    (folder / "photos" / "cat" / "3.png").symlink_to(folder / "secret" / "x.png")
    sources = (csv_source(folder, "cat/3.png"), ImageFolderSource(kind="image_folder", path=str(folder / "photos")))
    for source in sources:
        with pytest.raises(UserError, match="3.png to .*secret/x.png, outside of .*MEMLIB_DATA_ROOTS"):
            open_source(source)
    monkeypatch.setenv("MEMLIB_DATA_ROOTS", f"/nowhere{os.pathsep}{folder / 'secret'}")
    for source in sources:
        assert len(open_source(source)) > 1


def test_a_replaced_image_is_noticed_whatever_its_modification_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    source = ImageFolderSource(kind="image_folder", path=str(folder / "photos"))
    file = folder / "photos/cat/1.png"
    file.write_bytes(png(6))
    before = open_source(source).content_digest()
    times = file.stat().st_atime_ns, file.stat().st_mtime_ns
    file.write_bytes(png(7))
    os.utime(file, ns=times)
    assert len(png(6)) == len(png(7))
    assert open_source(source).content_digest() != before
    assert (folder / "cache/memlib").stat().st_mode & 0o077 == 0


def test_memlib_rehash_ignores_the_cache_of_digests(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    source = ImageFolderSource(kind="image_folder", path=str(folder / "photos"))
    before = open_source(source).content_digest()
    with sqlite3.connect(folder / "cache/memlib/digests.sqlite") as memo:
        memo.execute("update digests set sha256 = 'wrong'")
    assert open_source(source).content_digest() != before
    monkeypatch.setenv("MEMLIB_REHASH", "1")
    assert open_source(source).content_digest() == before


def large_png(side: int) -> bytes:
    """A picture of one colour, side x side, in a few bytes."""
    rows = zlib.compress(b"\0" * (side // 8 + 2) * side, 9)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_images_that_are_too_large_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreadableImage, match="13000 x 13000 pixels.*MEMLIB_MAX_PIXELS"):
        decode_example(large_png(13_000), "a", 0)
    monkeypatch.setenv("MEMLIB_MAX_PIXELS", "15")
    with pytest.raises(UnreadableImage, match="4 x 4"):
        decode_example(png(), "a", 0)
    monkeypatch.setenv("MEMLIB_MAX_PIXELS", "many")
    with pytest.raises((UnreadableImage, UserError), match="MEMLIB_MAX_PIXELS is 'many'"):
        decode_example(png(), "a", 0)


def test_texts_that_decompress_beyond_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text.gz"
    file.write_bytes(gzip.compress(b"a line\r\n" * 100_000))
    assert "".join(read_file(str(file))).startswith("a line\na line")
    monkeypatch.setenv("MEMLIB_MAX_BYTES", "10000")
    with pytest.raises(UserError, match="decompresses to more than 10000 bytes"):
        "".join(read_file(str(file)))


def test_arrays_that_claim_more_than_they_hold_are_refused(tmp_path: Path) -> None:
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (30000000000000,), }"
    header += b" " * (63 - (len(header) + 10) % 64) + b"\n"
    array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w") as archive:
        archive.writestr("images.npy", array)
    with pytest.raises(UserError, match="states 30000000000000 bytes"):
        open_source(NpzSource(kind="npz", path=str(tmp_path / "bomb.npz"), images="images", labels="labels"))
    np.savez(tmp_path / "good.npz", images=np.zeros((2, 4, 4), dtype=np.uint8), labels=np.array([0, 1]))
    assert len(open_source(NpzSource(kind="npz", path=str(tmp_path / "good.npz"), images="images", labels="labels"))) == 2


@pytest.mark.parametrize("header", [b"{", b"[" * 500, b"    \n  x", b"'" * 3])
def test_headers_of_arrays_that_numpy_stumbles_over_are_refused(tmp_path: Path, header: bytes) -> None:
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr("images.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    with pytest.raises(UserError, match="cannot read arrays from .*odd.npz"):
        open_source(NpzSource(kind="npz", path=str(tmp_path / "odd.npz"), images="images", labels="labels"))


@pytest.mark.parametrize("label", [2**31, 10**12])
def test_labels_too_large_for_class_indices_are_refused(tmp_path: Path, label: int) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 4, 4), dtype=np.uint8), labels=np.array([0, label]))
    pq.write_table(pa.table({"image": [png(), png()], "label": [0, label]}), tmp_path / "a.parquet")
    for source in (
        NpzSource(kind="npz", path=str(tmp_path / "a.npz"), images="images", labels="labels"),
        ParquetSource(kind="parquet", path=str(tmp_path / "a.parquet")),
    ):
        with pytest.raises(UserError, match=f"label {label} is not a class index"):
            open_source(source)


def test_parquet_images_with_unusual_columns_are_refused_with_a_message(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    source = ParquetSource(kind="parquet", path=str(path), boxes_column="boxes")
    table = pa.table({"image": [png()], "label": [0], "boxes": [[[0.0, 0.0, 1.0, 1.0]]]})
    for boxes in ([[1.0, 2.0, 3.0]], ["left"], [1], [[[1e30] * 4]]):
        pq.write_table(table.set_column(2, "boxes", pa.array(boxes)), path)
        with pytest.raises(UserError, match=r"example a.parquet:0000000 of .*: each box in boxes needs four numbers"):
            open_source(source)[0]
    pq.write_table(table.append_column("label", table["label"]), path)
    with pytest.raises(UserError, match="has 2 columns 'label'"):
        open_source(source)


@pytest.mark.parametrize("damage", [b"", b"x", b"\x89PNG\r\n\x1a\n\x00\x00\x00\x02IHDRxx"])
def test_unreadable_or_too_large_feature_pictures_are_refused(
    tmp_path: Path, damage: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f.png").write_bytes(damage)
    feature = PictureFeature(kind="picture", path=str(tmp_path / "f.png"))
    with pytest.raises(UserError, match="cannot read the feature's picture .*f.png"):
        build_feature(feature, (16, 16, 3))
    (tmp_path / "f.png").write_bytes(png())
    monkeypatch.setenv("MEMLIB_MAX_PIXELS", "15")
    with pytest.raises(UserError, match="4 x 4 pixels.*MEMLIB_MAX_PIXELS"):
        build_feature(feature, (16, 16, 3))


@pytest.mark.parametrize("value", ["1e30", "nan", "-inf", "x", ""])
def test_impossible_box_coordinates_are_refused_with_their_file(value: str) -> None:
    box = "".join(f"<{tag}>{value if tag == 'xmin' else 3}</{tag}>" for tag in ("xmin", "ymin", "xmax", "ymax"))
    with pytest.raises(UserError, match=r"a.xml is not a Pascal VOC annotation"):
        parse_voc(f"<annotation><object><bndbox>{box}</bndbox></object></annotation>".encode(), "a.xml")


@pytest.mark.parametrize("hole", ["{d999999999}", "{d" + "9" * 5000 + "}", "{d0}", "{d1001}"])
def test_format_holes_of_none_or_more_than_1000_symbols_are_refused(hole: str) -> None:
    with pytest.raises(UserError, match="holes have 1 to 1000 symbols"):
        Format(f"number {hole}", {}).places("character")


def test_the_option_rehash_sets_the_environment_of_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MEMLIB_REHASH", "")
    seen: list[str | None] = []
    monkeypatch.setattr(
        "flows.cli.running.AuditRequest.of_command",
        lambda *_, **__: seen.append(os.environ.get("MEMLIB_REHASH")) or sys.exit(0),
    )
    for options in ([], ["--rehash"]):
        with pytest.raises(SystemExit):
            main(["run", "deja-vu", "--recipe", "smoke", "--store", str(tmp_path), *options])
    assert [bool(value) for value in seen] == [False, True]


def test_parquet_files_behind_links_out_of_the_root_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    table = pa.table({"image": [{"bytes": b"x", "path": "x"}], "label": [0], "text": ["a text"]})
    pq.write_table(table, outside / "t.parquet")
    (root / "t.parquet").symlink_to(outside / "t.parquet")
    for path in (str(root), f"{root}/*.parquet"):
        for read in (
            lambda path=path: open_source(ParquetSource(kind="parquet", path=path)),
            lambda path=path: list(ParquetTexts(TextParquetSource(kind="text_parquet", path=path))),
        ):
            with pytest.raises(UserError, match="outside of"):
                read()
            with monkeypatch.context() as patch:
                patch.setenv("MEMLIB_DATA_ROOTS", str(outside))
                assert read()


def test_parquet_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"text": ["x" * 1_000_000] * 20, "label": [0] * 20}), path, compression="zstd")
    assert Path(path).stat().st_size < 100_000
    monkeypatch.setenv("MEMLIB_MAX_BYTES", "1000000")
    with pytest.raises(UserError, match="decompresses to more than 1000000 bytes"):
        list(ParquetTexts(TextParquetSource(kind="text_parquet", path=path)))
    with pytest.raises(UserError, match="decodes to more than 1,000,000 bytes"):
        open_source(ParquetSource(kind="parquet", path=path, image_column="text"))
