"""Files that could be read as something else than their owner means: they are refused, or read as meant."""

import email.message
import io
import json
import mailbox
from email.mime.message import MIMEMessage
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, TiffImagePlugin

from memlib.data.datasets import open_source
from memlib.data.examples import Source, UnreadableImage
from memlib.data.groups import groups_of
from memlib.data.id_files import said_of_examples
from memlib.data.images.annotations import Annotations
from memlib.data.images.captions import read_captions
from memlib.data.images.pictures import DEEP_TIFF_COLOUR, Undecodable, oddities_of, read_picture
from memlib.data.text.sources import open_text, records_of
from memlib.errors import DataError
from memlib.specs import CsvSource, GroupSpec, MailSource, ParquetSource, TableSource
from memlib.specs.captions import CaptionSpec


def png(orientation: int = 1, size: tuple[int, int] = (8, 8)) -> bytes:
    exif, data = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    Image.new("RGB", size, (9, 99, 200)).save(data, "PNG", exif=exif)
    return data.getvalue()


def test_a_csv_row_with_more_cells_than_the_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "captions.csv"
    path.write_text('example_id,caption,objects\nb,"A cat, asleep",cat\na,A man, a dog,dog;man\n')
    with pytest.raises(
        DataError, match="^[^(]*line 3, has 4 cells, but the header has 3; put texts with commas between quotation"
    ):
        said_of_examples(str(path), "caption", setting="captions.origin")
    path.write_text('example_id,caption\na,"two\nlines",,\nb\n')  # empty cells beyond the header say nothing
    assert said_of_examples(str(path), "caption", setting="captions.origin") == {"a": "two\nlines"}


@pytest.mark.parametrize(
    ("content", "classes", "said"),
    [
        ("image,label,label\n1.png,x,y\n", {"A": ["x"]}, "has 2 columns 'label'"),
        ("image,label\n1.png,x,y\n", {"A": ["x"]}, "line 2, has 3 cells"),
        ("image,label\n1.png,x\n", {"A": ["x"], "B": ["x", "y"]}, "gives the value 'x' to several classes"),
    ],
)
def test_ambiguous_lists_of_images_are_refused(content: str, classes: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text(content)
    (tmp_path / "1.png").write_bytes(png())
    spec = CsvSource(
        kind="csv", path=str(tmp_path / "labels.csv"), root=str(tmp_path), image_column="image", label_column="label",
        classes=classes,
    )  # fmt: skip
    with pytest.raises(DataError, match=said):
        open_source(spec)


def test_ids_of_a_group_file_that_belong_to_no_example_are_warned_about(tmp_path: Path) -> None:
    (tmp_path / "persons.csv").write_text("example_id,group\na.jpg,1\nb.jpeg,1\nc.jpg,2\n")
    spec = GroupSpec(path=str(tmp_path / "persons.csv"))
    with pytest.warns(UserWarning, match=r"1 of the 3 ids in .*persons.csv are no example's, such as 'b.jpeg'"):
        groups_of([{"example_id": name} for name in ("a.jpg", "b.jpg", "c.jpg")], None, spec)


def table(folder: Path, content: str, **options: Any) -> Source:
    (folder / "rows.csv").write_text(content)
    return open_source(TableSource(kind="table", path=str(folder / "rows.csv"), label_column="label", **options))


def test_rows_without_a_label_are_counted_in_the_numbers_of_the_rows(tmp_path: Path) -> None:
    whole = table(tmp_path, "x,label\n1,a\n2,b\n3,a\n")
    assert not whole.content_digest().endswith(":rows")
    part = table(tmp_path, "x,label\n1,a\n2,\n3,b\n")
    assert [part[row].example_id for row in range(2)] == ["0000000", "0000002"]
    assert part.content_digest().endswith(":rows")  # the ids were others before
    named = table(tmp_path, "x,id,label\n1,p,a\n2,q,\n3,r,b\n", id_column="id")
    assert [named[row].example_id for row in range(2)] == ["p", "r"]
    assert not named.content_digest().endswith(":rows")


def test_a_model_that_was_fitted_elsewhere_is_given_the_numbers_of_the_file(tmp_path: Path) -> None:
    content = "x,kind,label\n10,u,a\n20,v,b\n60,u,a\n"
    points = [np.stack([source[row].image for row in range(3)]) for source in (
        table(tmp_path, content), table(tmp_path, content, standardize=True), table(tmp_path, content, standardize=False)
    )]  # fmt: skip
    assert np.array_equal(points[0], points[1])
    assert points[0][:, 0].mean() == pytest.approx(0, abs=1e-6)
    assert points[2].tolist() == [[10, 1, 0], [20, 0, 1], [60, 1, 0]]
    with pytest.raises(DataError, match="column x lacks 1 values, and standardize: false passes the numbers of the file"):
        table(tmp_path, content.replace("20", ""), standardize=False)


def named(path: Path, labels: list[int], names: list[str] | None) -> None:
    features = {"info": {"features": {"label": {"names": names, "_type": "ClassLabel"}}}}
    rows = pa.table({"image": [png()] * len(labels), "label": labels})
    pq.write_table(rows if names is None else rows.replace_schema_metadata({"huggingface": json.dumps(features)}), path)


def test_parquet_files_that_number_their_classes_differently_are_refused(tmp_path: Path) -> None:
    spec = ParquetSource(kind="parquet", path=str(tmp_path))
    named(tmp_path / "test.parquet", [0, 1], ["a", "b", "c"])
    named(tmp_path / "train.parquet", [0, 1, 2], ["a", "b", "c"])
    assert open_source(spec).class_names == ["a", "b", "c"]
    for other in (["a", "c"], None):
        named(tmp_path / "test.parquet", [0, 1], other)
        with pytest.raises(DataError, match="names other classes than .*test.parquet"):
            open_source(spec)


def test_boxes_of_rotated_images_in_parquet_are_refused(tmp_path: Path) -> None:
    for orientation, boxes in ((1, [[0, 0, 2, 2]]), (3, []), (3, [[0, 0, 2, 2]])):
        rows = {"image": [png(orientation)], "label": [0], "boxes": pa.array([boxes], pa.list_(pa.list_(pa.int64())))}
        pq.write_table(pa.table(rows), tmp_path / "a.parquet")
        source = open_source(
            ParquetSource(kind="parquet", path=str(tmp_path / "a.parquet"), boxes_column="boxes", box_format="xyxy")
        )
        assert source.content_digest().endswith(":4") == (orientation == 3)  # versions before drew the boxes elsewhere
        if orientation == 3 and boxes:
            with pytest.raises(UnreadableImage, match="is rotated by EXIF"):
                source[0]
        else:
            assert source[0].boxes.tolist() == boxes


def test_labels_with_key_points_are_refused(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("0 .5 .5 .2 .2 .1 .1 .9 .9\n")
    (tmp_path / "data.yaml").write_text("names: [cat]\nkpt_shape: [2, 2]\n")
    listing = {name: {"size": 9, "name": str(tmp_path / name)} for name in ("1.png", "1.txt", "data.yaml")}
    with pytest.raises(DataError, match=r"^data.yaml describes key points \(kpt_shape\)"):
        Annotations("yolo", ["1.png"], str(tmp_path), listing, None)


def coco(folder: Path, other: str) -> CaptionSpec:
    images = [{"id": 1, "file_name": "one.png"}]
    content = {
        "captions": {"images": images, "annotations": [{"id": 1, "image_id": 1, "caption": "a cat"}]},
        "instances": {
            "images": [{"id": 1, "file_name": other}], "categories": [{"id": 1, "name": "cat"}],
            "annotations": [{"image_id": 1, "category_id": 1}],
        },
    }  # fmt: skip
    for name, part in content.items():
        (folder / f"{name}.json").write_text(json.dumps(part))
    return CaptionSpec.model_validate({"origin": {name: str(folder / f"{name}.json") for name in content}})


def test_captions_and_instances_of_different_images_are_refused(tmp_path: Path) -> None:
    nothing: Any = SimpleNamespace()
    assert list(read_captions(nothing, coco(tmp_path, "one.png"))) == ["one.png"]
    assert list(read_captions(nothing, coco(tmp_path, "images/one.png"))) == ["one.png"]
    with pytest.raises(DataError, match=r"^image 1 is one.png in .*captions.json, but val.png in .*instances.json"):
        read_captions(nothing, coco(tmp_path, "val.png"))


@pytest.mark.parametrize(
    ("objects", "said"),
    [
        (["\"['dog', 'man']\"", "cat"], "a list as a program prints it"),
        (['"dog, man"', '"cat, sofa"', "tree"], "no cell of objects has the separator ';', but 2 have a comma"),
        (['"dog, man"', "cat;sofa", "tree"], None),
        (['"table, round"', "cat", "tree"], None),
    ],
)
def test_lists_of_objects_with_another_separator_are_refused(objects: list[str], said: str | None, tmp_path: Path) -> None:
    rows = "".join(f"{number},text,{cell}\n" for number, cell in enumerate(objects))
    (tmp_path / "c.csv").write_text(f"example_id,caption,objects\n{rows}")
    spec = CaptionSpec.model_validate({"origin": {"path": str(tmp_path / "c.csv")}})
    nothing: Any = SimpleNamespace()
    if said is None:
        assert len(read_captions(nothing, spec)) == 3
        return
    with pytest.raises(DataError, match=said):
        read_captions(nothing, spec)
    if "comma" in said:  # one object each, whose names have commas
        spec = CaptionSpec.model_validate({"origin": {"path": str(tmp_path / "c.csv"), "separator": ";"}})
        assert read_captions(nothing, spec)["0"].objects == ("dog, man",)


def test_deep_colours_of_a_tiff_are_refused() -> None:
    values = np.full((8, 8, 3), 4095, np.uint16)  # 12 bits in 16: all white, of which Pillow keeps 15 of 255
    header = TiffImagePlugin.ImageFileDirectory_v2()
    data = io.BytesIO()
    tags = {256: 8, 257: 8, 258: (16, 16, 16), 259: 1, 262: 2, 273: 200, 277: 3, 278: 8, 279: values.nbytes, 284: 1}
    for tag, value in tags.items():
        header[tag] = value
    data.write(b"II*\0\x08\0\0\0")
    header._endian = "<"
    header.save(data)
    written = data.getvalue().ljust(200, b"\0") + values.astype("<u2").tobytes()
    with pytest.raises(Undecodable, match=r"more than 8 bits a channel in colour \(TIFF\)"):
        read_picture(written)
    assert DEEP_TIFF_COLOUR in oddities_of(written)
    shallow = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 200, np.uint8)).save(shallow, "TIFF")
    assert (read_picture(shallow.getvalue()).pixels == 200).all()


def mail(*parts: email.message.Message, kind: str = "mixed") -> MIMEMultipart:
    made = MIMEMultipart(kind)
    for part in parts:
        made.attach(part)
    return made


def attached(part: email.message.Message) -> email.message.Message:
    part["Content-Disposition"] = "attachment"
    return part


HTML, PLAIN = MIMEText("<p>My card is 4111</p>", "html"), MIMEText("My card is 4111", "plain")
FOOTER, BLANK = MIMEText("-- list footer", "plain"), MIMEText(" \n", "plain")


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (mail(HTML, FOOTER), "My card is 4111\n-- list footer"),
        (mail(BLANK, HTML, kind="alternative"), "My card is 4111"),
        (mail(PLAIN, HTML, kind="alternative"), "My card is 4111"),
        (mail(mail(PLAIN, HTML, kind="alternative"), FOOTER), "My card is 4111\n-- list footer"),
        (mail(mail(PLAIN, mail(HTML, kind="related"), kind="alternative")), "My card is 4111"),
        (mail(PLAIN, MIMEMessage(MIMEText("of another message"))), "My card is 4111\nof another message"),
        (mail(MIMEMessage(MIMEText("one")), MIMEMessage(MIMEText("two")), kind="digest"), "one\ntwo"),
        (mail(PLAIN, attached(MIMEMessage(MIMEText("of another message")))), "My card is 4111"),
    ],
    ids=[
        "html and footer",
        "blank alternative",
        "alternatives",
        "alternatives and footer",
        "nested",
        "forwarded message",
        "digest",
        "attached message",
    ],
)
def test_the_body_of_a_mail_is_read_whole_and_once(made: MIMEMultipart, expected: str, tmp_path: Path) -> None:
    del made["Subject"]
    made["Subject"] = "Hello"
    box = mailbox.mbox(str(tmp_path / "box.mbox"))
    box.add(made)
    box.close()
    source = MailSource(kind="mail", path=str(tmp_path / "box.mbox"))
    records = records_of(source)
    assert records is not None
    assert [" ".join(text.split()) for text in records] == [f"Subject: Hello {' '.join(expected.split())}"]
    left_out = "attachments, left out: 1" in records.remarks()
    assert left_out == any(part.get_content_disposition() == "attachment" for part in made.walk())
    assert open_text(source).measured.length > 0
