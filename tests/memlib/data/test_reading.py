"""Unusual images and boxes: each is read as intended, compared pixel by pixel, or reported by a message."""

import io
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from memlib.data.data_summary import described, preview, understood, warnings
from memlib.data.datasets import open_source
from memlib.data.examples import Source, UnreadableImage
from memlib.data.images.pictures import DEEP, ROTATED, SEVERAL, TRANSPARENT, oddities_of, read_picture
from memlib.data.images.shards import CUT, write_shard
from memlib.data.images.stored import read_images
from memlib.errors import UserError
from memlib.specs import DataSpec, ImageFolderSource, IntensitySpec, ParquetSource, SourceSpec

RNG = np.random.default_rng(0)
COLOURS = RNG.integers(0, 256, (12, 16, 3), dtype=np.uint8)
RAMP = np.arange(12 * 16, dtype=np.uint16).reshape(12, 16)


def folder(path: Path, **images: bytes) -> ImageFolderSource:
    for name, data in images.items():
        file = path / "a" / name.replace("__", ".")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return ImageFolderSource(kind="image_folder", path=str(path))


def encoded(image: Any, kind: str = "PNG", **options: Any) -> bytes:
    data = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(data, kind, **options)
    return data.getvalue()


def turned(pixels: NDArray[np.uint8], orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(pixels, exif=exif)


def only(source: Source) -> NDArray[np.uint8]:
    example = source[0]
    assert example.image.dtype == np.uint8
    return example.image


@pytest.mark.parametrize(
    ("values", "white"),
    [
        (RAMP * 21, 4095),  # 12 bits in a 16-bit file
        (RAMP * 340, 65535),
        (RAMP, 255),
        ((RAMP / 191).astype(np.float32), 1.0),
    ],
)
def test_deep_images_are_scaled_once_for_the_source(tmp_path: Path, values: NDArray[Any], white: float) -> None:
    dark = values // 4 if values.dtype != np.float32 else values / 4
    kind, name = ("TIFF", "tif") if values.dtype == np.float32 else ("PNG", "png")
    spec = folder(tmp_path, **{f"1__{name}": encoded(dark.astype(values.dtype), kind), f"2__{name}": encoded(values, kind)})
    source = open_source(spec)
    for index, meant in enumerate((dark, values)):
        expected = (meant.astype(np.float64) / white * 255).round().astype(np.uint8)
        assert np.array_equal(source[index].image, np.repeat(expected[..., None], 3, axis=2))
        bits = {4095: "12 bits", 65535: "16 bits", 255: "8 bits", 1.0: "1 bits"}[white]
        assert source[index].oddities == (DEEP, f"scaled as {bits}, which hold the source's largest value")


def test_float_images_require_intensities_in_the_recipe(tmp_path: Path) -> None:
    spec = folder(tmp_path, a__tif=encoded((RAMP.astype(np.float32) - 50) * 7, "TIFF"))
    with pytest.raises(UserError, match=r"range from -350 to 987: .*data.intensities=\{low: -350, high: 987\}"):
        _ = open_source(spec)[0]
    window = IntensitySpec(low=-100, high=400)
    expected = (((RAMP - 50.0) * 7 + 100) / 500).clip(0, 1) * 255
    assert np.array_equal(only(open_source(spec, window))[..., 0], expected.round().astype(np.uint8))
    with pytest.raises(ValueError, match="low must be smaller than high"):
        IntensitySpec(low=3, high=3)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_rotates_images_and_the_boxes_that_were_drawn_before(tmp_path: Path, orientation: int) -> None:
    marked = np.zeros((12, 16, 3), dtype=np.uint8)
    marked[2:5, 7:13] = 255
    spec = folder(tmp_path, a__png=turned(marked, orientation))
    (tmp_path / "a" / "a.xml").write_text(voc((8, 3, 13, 5), (16, 12)))
    source = open_source(spec.model_copy(update={"boxes": "voc"}))
    if orientation in (2, 3, 4):  # both pictures have this size
        with pytest.raises(UnreadableImage, match="it is unknown whether its boxes were drawn before"):
            _ = source[0]
        return
    example = source[0]
    assert example.image.shape == ((12, 16, 3) if orientation < 5 else (16, 12, 3))
    ((x0, y0, x1, y1),) = example.boxes.tolist()
    inside = np.zeros(example.image.shape, dtype=np.uint8)
    inside[y0:y1, x0:x1] = 255
    assert np.array_equal(example.image, inside)
    assert (ROTATED in example.oddities) is (orientation > 1)
    if orientation > 1:  # drawn on the picture as it is shown
        (tmp_path / "a" / "a.xml").write_text(voc((x0 + 1, y0 + 1, x1, y1), (12, 16)))
        assert source[0].boxes.tolist() == [[x0, y0, x1, y1]]


def voc(box: tuple[float, ...], size: tuple[int, int] | None) -> str:
    said = "" if size is None else f"<size><width>{size[0]}</width><height>{size[1]}</height></size>"
    tags = "".join(f"<{tag}>{value}</{tag}>" for tag, value in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    return f"<annotation>{said}<object><bndbox>{tags}</bndbox></object></annotation>"


@pytest.mark.parametrize(
    ("box", "size", "found"),
    [
        ((1, 1, 16, 12), None, [0, 0, 16, 12]),
        ((0, 0, 18, 13), (16, 12), [0, 0, 16, 12]),  # two pixels too far: cut
        ((1, 1, 40, 12), (16, 12), "box .0, 0, 40, 12. in an image of 16 x 12"),
        ((1, 1, 8, 8), (500, 375), "is 16 x 12, but its annotation a/a.xml is for a picture of 500 x 375"),
        ((0.1, 0.2, 0.8, 0.9), (16, 12), "boxes in fractions of the picture"),
    ],
)
def test_boxes_outside_of_the_picture_are_refused_or_cut(tmp_path: Path, box: Any, size: Any, found: Any) -> None:
    spec = folder(tmp_path, a__png=encoded(COLOURS)).model_copy(update={"boxes": "voc"})
    (tmp_path / "a" / "a.xml").write_text(voc(box, size))
    data = DataSpec(source=spec, image_size=16)
    out = tmp_path / "out"
    out.mkdir()
    if isinstance(found, str):
        with pytest.raises(UserError, match=found):
            write_shard(open_source(spec), data, out)
        return
    written = write_shard(open_source(spec), data, out)
    index = written.index.to_pylist()[0]
    assert index["boxes"] == [0, 0, 16, 16]  # in the stored square
    assert dict(written.oddities) == ({} if box == (1, 1, 16, 12) else {CUT: 1})


def test_boxes_of_another_picture_are_left_out_on_request(tmp_path: Path) -> None:
    spec = folder(tmp_path, a__png=encoded(COLOURS), b__png=encoded(COLOURS[::-1])).model_copy(update={"boxes": "voc"})
    (tmp_path / "a" / "a.xml").write_text(voc((1, 1, 80, 12), (16, 12)))
    (tmp_path / "a" / "b.xml").write_text(voc((1, 1, 8, 8), (16, 12)))
    (tmp_path / "out").mkdir()
    written = write_shard(open_source(spec), DataSpec(source=spec, unreadable="leave_out"), tmp_path / "out")
    assert [bool(row["unreadable"]) for row in written.index.to_pylist()] == [True, False]


def test_transparent_images_are_put_on_white_and_only_first_frames_are_read(tmp_path: Path) -> None:
    clear = np.dstack([COLOURS, np.full((12, 16), 255, dtype=np.uint8)])
    clear[:6, :, 3] = 0
    half = clear.copy()
    half[..., 3] = 128
    moving = [Image.fromarray(COLOURS).quantize(200), Image.new("P", (16, 12))]
    spec = folder(
        tmp_path, a__png=encoded(clear), b__png=encoded(half),
        c__gif=encoded(moving[0], "GIF", save_all=True, append_images=moving[1:]),
    )  # fmt: skip
    source = open_source(spec)
    assert (source[0].image[:6] == 255).all()
    assert np.array_equal(source[0].image[6:], COLOURS[6:])
    on_white = COLOURS.astype(np.float64) * (128 / 255) + 255 * (127 / 255)
    assert np.abs(source[1].image - on_white).max() <= 1
    assert np.array_equal(source[2].image, np.asarray(moving[0].convert("RGB")))
    assert [source[i].oddities for i in range(3)] == [(TRANSPARENT,), (TRANSPARENT,), (SEVERAL,)]


@pytest.mark.parametrize("size", [(1, 1), (20_000, 1), (3, 50), (4, 400)])
def test_too_small_or_elongated_images_are_unreadable(tmp_path: Path, size: tuple[int, int]) -> None:
    spec = folder(tmp_path, a__png=encoded(Image.new("RGB", size)))
    with pytest.raises(UnreadableImage, match=f"a/a.png: is {size[0]} x {size[1]} pixels, too small or too elongated"):
        _ = open_source(spec)[0]


def test_hidden_folders_are_ignored_and_links_out_of_the_root_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in ("a", "train", "val", ".ipynb_checkpoints", "__MACOSX/a"):
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(encoded(COLOURS))
    (root / "empty").mkdir()
    (root / "linked").symlink_to(root / "a")
    (root / "a" / "circle").symlink_to(root)
    source = open_source(ImageFolderSource(kind="image_folder", path=str(root)))
    assert source.class_names == ["a", "linked", "train", "val"]
    assert len(source) == 4
    said = "; ".join(source.remarks)
    assert "in hidden folders (.ipynb_checkpoints, __MACOSX, ...): 2 images" in said
    assert "folders without images are ignored: empty" in said
    assert "train and val are taken for classes" in said
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "2.png").write_bytes(encoded(COLOURS))
    (root / "other").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="outside of"):
        open_source(ImageFolderSource(kind="image_folder", path=str(root)))


def test_only_sources_that_were_read_otherwise_have_another_digest(tmp_path: Path) -> None:
    plain = folder(tmp_path / "plain", a__png=encoded(COLOURS), b__png=encoded(COLOURS[..., 0]))
    before = open_source(plain).content_digest()
    assert len(before) == 64
    for name, odd in (
        ("deep", encoded(RAMP)),
        ("turned", turned(COLOURS, 6)),
        ("clear", encoded(np.dstack([COLOURS] * 2)[..., :4])),
    ):
        source = folder(tmp_path / name, a__png=odd)
        assert open_source(source).content_digest().endswith(":2"), name
        for _ in range(2):  # found, then remembered
            table = parquet(tmp_path / f"{name}.parquet", [encoded(COLOURS), odd])
            assert open_source(table).content_digest().endswith(":2"), name
    assert len(open_source(parquet(tmp_path / "p.parquet", [encoded(COLOURS)])).content_digest()) == 64
    for name, odd in (("negative", tiff(RAMP, white_is_zero=True)), ("colours", png16(np.dstack([RAMP] * 3)))):
        assert open_source(folder(tmp_path / name, a__png=odd)).content_digest().endswith(":3"), name
    assert open_source(folder(tmp_path / "positive", a__tif=tiff(RAMP))).content_digest().endswith(":2")
    assert open_source(plain).content_digest() == before


def tiff(values: NDArray[np.uint16], *, white_is_zero: bool = False) -> bytes:
    return encoded(values, "TIFF", tiffinfo={262: 0 if white_is_zero else 1})


def png16(values: NDArray[np.uint16]) -> bytes:
    """A PNG of 16 bits a channel (height, width, channels), which Pillow cannot write."""
    height, width, channels = values.shape
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_zeros_of_a_tiff_that_are_white_are_white(tmp_path: Path) -> None:
    values = (RAMP * 340).astype(np.uint16)
    found = [only(open_source(folder(tmp_path / f"{w}", a__tif=tiff(values, white_is_zero=w)))) for w in (False, True)]
    assert np.array_equal(found[0], 255 - found[1])
    assert found[0][0, 0].tolist() == [0, 0, 0]


def test_colours_of_12_bits_in_16_are_scaled_like_greys(tmp_path: Path) -> None:
    """Pillow keeps the upper eight of sixteen bits, so that the brightest pixel would be 15 of 255."""
    values = (RAMP.astype(np.int64) * 4095 // RAMP.max()).astype(np.uint16)
    white = np.full_like(values, 2**16 - 1)
    expected = (values / 4095 * 255).round().astype(np.uint8)
    for name, channels in (("colour", [values] * 3), ("clear", [values, white]), ("clear_colour", [*[values] * 3, white])):
        source = open_source(folder(tmp_path / name, a__png=png16(np.dstack(channels))))
        assert np.array_equal(only(source)[..., 0], expected), name
        assert "more than 8 bits" in str(source[0].oddities)
    half = np.dstack([values, np.zeros_like(values)])  # wholly transparent: white
    assert (only(open_source(folder(tmp_path / "gone", a__png=png16(half)))) == 255).all()


def parquet(path: Path, images: list[bytes], **columns: list[Any]) -> ParquetSource:
    rows: Mapping[str, Any] = {"image": [{"bytes": data} for data in images], "label": [0] * len(images)} | columns
    pq.write_table(pa.table(dict(rows)), path)
    boxes = "boxes" if "boxes" in columns else None
    return ParquetSource(kind="parquet", path=str(path), boxes_column=boxes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [0.0, 1.0]}, "label 0.0 .float.; labels are class indices or names"),
        ({"label": [float("nan"), 1.0]}, "label nan .float."),
        ({"label": [[0], [1]]}, r"label \[0\] .list."),
        ({"label": [True, False]}, "label True .bool."),
        ({"boxes": [[[0.1, 0.1, 0.5, 0.5]]] * 2}, "boxes in fractions"),
    ],
)
def test_parquet_labels_and_boxes_of_wrong_types_are_refused(tmp_path: Path, columns: Any, message: str) -> None:
    spec = parquet(tmp_path / "t.parquet", [encoded(COLOURS)] * 2, **columns)
    with pytest.raises(UserError, match=message):
        _ = open_source(spec)[0]


def test_the_data_summary_describes_the_images_and_warns_about_oddities(tmp_path: Path) -> None:
    spec: SourceSpec = folder(
        tmp_path / "in",
        a__png=encoded(COLOURS),
        b__png=encoded(COLOURS),
        c__png=encoded(COLOURS[:6]),
        d__png=turned(COLOURS, 6),
    ).model_copy(update={"boxes": "voc"})
    (tmp_path / "in" / "a" / "a.xml").write_text(voc((3, 3, 3, 9), (16, 12)))
    (tmp_path / "out").mkdir()
    source = open_source(spec)
    written = write_shard(source, DataSpec(source=spec), tmp_path / "out")
    assert read_images(tmp_path / "out" / "images.npy").shape[0] == 4
    said = understood(written.index, written.oddities, source)
    assert described(said) == [
        "4 images of 1 class, 4 each", "12 to 16 (median 16) pixels wide, 6 to 16 (median 12) high",
        "1 image has boxes, 3 have none",
    ]  # fmt: skip
    assert warnings(said) == [
        "1 image: rotated as EXIF says",
        "1 boxes are about one pixel wide or high, so almost the whole picture lies outside of them",
        "2 images occur more than once with identical pixels and may be on both sides of a split",
        "a is taken for the only class, as it is the only folder with images",
    ]


def test_a_16_bit_pnm_and_an_image_with_damaged_exif_are_read(tmp_path: Path) -> None:
    pgm = b"P5 16 12 4095\n" + (RAMP * 21).astype(">u2").tobytes()
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHII", 8, 9999, 0x0112, 3, 1, 6)
    spec = folder(tmp_path, a__pgm=pgm, b__jpg=encoded(COLOURS, "JPEG", exif=exif))
    source = open_source(spec)
    assert source[0].image.max() >= 250
    assert source[1].image.shape in ((12, 16, 3), (16, 12, 3))


def test_preview_describes_a_sample_and_counts_unreadable_images(tmp_path: Path) -> None:
    files = {f"{number}__png": encoded(COLOURS) for number in range(60)} | {"x__png": b"broken", "z__png": turned(COLOURS, 6)}
    (line,) = preview(open_source(folder(tmp_path, **files)))
    assert line.startswith("62 examples of 1 class; in a sample of 50: 12 to 16 (median 16) pixels wide")
    assert "1 image: rotated as EXIF says" in line
    broken = folder(tmp_path / "broken", a__png=b"x")
    (line,) = preview(open_source(broken))
    assert line.endswith("in a sample of 1: none can be read: 1 cannot be decoded (not a known image format)")


def annotated(root: Path, image: str, annotation: str, content: bytes | None = None) -> Source:
    file, xml = root / "a" / image, root / "a" / annotation
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(COLOURS, "JPEG"))
    box = "".join(f"<{tag}>{value}</{tag}>" for tag, value in (("xmin", 2), ("ymin", 3), ("xmax", 6), ("ymax", 7)))
    text = f"<annotation><object><name>a</name><bndbox>{box}</bndbox></object></annotation>"
    xml.write_bytes(text.encode() if content is None else content.replace(b"BODY", text.encode()))
    return open_source(ImageFolderSource(kind="image_folder", path=str(root), boxes="voc"))


@pytest.mark.parametrize(
    ("image", "annotation"),
    [
        ("x.jpg", "x.xml"),
        ("x.jpg", "x.jpg.xml"),
        ("X.JPG", "X.XML"),
        ("caf\u00e9.jpg", "cafe\u0301.xml"),
        ("cafe\u0301.jpg", "caf\u00e9.jpg.xml"),
    ],
)
def test_an_annotation_is_found_regardless_of_the_spelling_of_its_name(tmp_path: Path, image: str, annotation: str) -> None:
    source = annotated(tmp_path, image, annotation)
    assert source[0].boxes.tolist() == [[1, 2, 6, 7]]


def test_annotations_with_namespaces_and_in_other_encodings_are_read(tmp_path: Path) -> None:
    whole = annotated(tmp_path / "plain", "x.jpg", "x.xml")[0].boxes.tolist()
    inner = b'<annotation xmlns="http://y"><object><name>a</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>6</xmax><ymax>7</ymax></bndbox></object></annotation>'
    assert annotated(tmp_path / "spaces", "x.jpg", "x.xml", inner)[0].boxes.tolist() == whole
    chinese = b'<?xml version="1.0" encoding="GBK"?>' + inner.replace(b"<name>a</name>", "<name>\u732b</name>".encode("gbk"))
    assert annotated(tmp_path / "gbk", "x.jpg", "x.xml", chinese)[0].boxes.tolist() == whole


def test_remarks_count_unmatched_annotations_and_files_of_other_kinds(tmp_path: Path) -> None:
    source = annotated(tmp_path, "x.jpg", "y.xml")
    for name in ("1.jfif", "2.jpe"):
        (tmp_path / "a" / name).write_bytes(encoded(COLOURS, "JPEG"))
    (tmp_path / "a" / "3.jp2").write_bytes(encoded(COLOURS, "JPEG2000"))
    for name in ("5.heic", "6.heic", "plain"):
        (tmp_path / "a" / name).write_bytes(b"x")
    remarks = source.remarks  # type: ignore[attr-defined]
    assert remarks[1:] == ["1 of 1 XML files belong to no image that is read, such as a/y.xml"]
    source = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path), boxes="voc"))
    assert [source[i].example_id for i in range(len(source))] == ["a/1.jfif", "a/2.jpe", "a/3.jp2", "a/x.jpg"]
    assert source.remarks[0] == "a is taken for the only class, as it is the only folder with images"  # type: ignore[attr-defined]
    assert source.remarks[1] == "left out, as they are of other kinds: 3 files (2 .heic, 1 without suffix)"  # type: ignore[attr-defined]


def test_parts_of_a_data_set_are_named_where_they_look_like_classes(tmp_path: Path) -> None:
    for part in ("train2017", "val2017"):
        (tmp_path / part).mkdir()
        (tmp_path / part / "1.png").write_bytes(encoded(COLOURS))
    remarks = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path))).remarks  # type: ignore[attr-defined]
    assert remarks == [
        "train2017 and val2017 are taken for classes; if they are parts of a data set, set path to one of them"
    ]


def folders(root: Path, *names: str) -> ImageFolderSource:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(encoded(COLOURS))
    return ImageFolderSource(kind="image_folder", path=str(root))


def test_folders_with_the_same_classes_are_parts(tmp_path: Path) -> None:
    source = open_source(folders(tmp_path / "a", "train/cat", "train/dog", "train/hen", "Val/cat", "Val/dog"))
    assert source.class_names == ["cat", "dog", "hen"]
    found = {source[row].example_id: source.class_names[source[row].label] for row in range(len(source))}
    assert found["train/cat/1.png"] == found["Val/cat/1.png"] == "cat"
    assert source.remarks == [  # type: ignore[attr-defined]
        "Val and train are taken for parts of one data set, as they have the same class folders; ids begin with the part"
    ]
    assert source.content_digest().endswith(":parts")
    for names in (("train/cat", "val/dog"), ("cat/a", "cat/b", "dog/a", "dog/b"), ("train/a", "train/b", "cat/a")):
        other = open_source(folders(tmp_path / names[1].replace("/", "-"), *names))
        assert other.class_names == sorted({name.split("/")[0] for name in names})
        assert ":parts" not in other.content_digest()


def test_pictures_of_other_formats_are_not_opened_whatever_their_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pillow would hand PostScript to Ghostscript."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    (programs / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\n{} loop\n%%EOF\n"
    for spec in (folder(tmp_path / "eps", a__png=script), folder(tmp_path / "xpm", a__png=b'/* XPM */\n"SECRET 1 1 1",')):
        source = open_source(spec)
        source.content_digest()
        with pytest.raises(UnreadableImage, match=r"a/a.png: cannot be decoded \(not a known image format\)$"):
            source[0]
    assert not (tmp_path / "called").exists()


def test_errors_of_decoders_quote_nothing_and_names_write_no_lines(tmp_path: Path) -> None:
    secret = b"P3 64 64 255\nSECRETPASSWORDSECRET"
    with pytest.raises(UnreadableImage) as caught:
        open_source(folder(tmp_path, **{"a\nmemlib: all good__ppm": secret}))[0]
    assert "SECRET" not in str(caught.value)
    assert str(caught.value).startswith("a/a memlib: all good.ppm: cannot be decoded (")


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    spec = folder(tmp_path, a__png=encoded(COLOURS))
    (tmp_path / "a" / "b.png").symlink_to("b.png")
    with pytest.raises(UserError, match="b.png leads to itself; remove it"):
        open_source(spec).content_digest()


@pytest.mark.parametrize("kind", ["TIFF", "GIF", "WEBP", "PNG"])
def test_several_pictures_are_noticed_by_the_second_one(tmp_path: Path, kind: str) -> None:
    more = [Image.fromarray(COLOURS[::-1]), Image.fromarray(COLOURS[:, ::-1])]
    data = encoded(COLOURS, kind, save_all=True, append_images=more)
    assert oddities_of(data) == (SEVERAL,)
    assert SEVERAL not in oddities_of(encoded(COLOURS, kind))
    if kind == "TIFF":
        assert np.array_equal(read_picture(data).pixels, COLOURS)
