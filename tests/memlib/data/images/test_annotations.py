"""Annotations in the formats in which people have them: the class, boxes and pixels of each image are known beforehand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from memlib.data.data_summary import preview
from memlib.data.datasets import open_source
from memlib.data.examples import Source
from memlib.data.images.annotations import match_files, parse_coco, parse_labelme, parse_voc, parse_yolo
from memlib.errors import UserError
from memlib.specs import AnnotatedFolderSource, ImageFolderSource

SIZE = (40, 32)  # width, height
SCENES = {
    "train/1": (("cat", (4, 6, 20, 30)), ("dog", (30, 2, 36, 8))),
    "train/2": (("dog", (0, 0, 10, 10)),),
    "train/cafe\u0301": (("cat", (20, 4, 40, 32)),),
    "val/1": (("dog", (8, 8, 24, 24)), ("cat", (0, 0, 4, 4))),
    "val/empty": (),
}
LABELS = ("cat", "dog", "bird")  # no image has a bird


def draw(objects: tuple[tuple[str, tuple[int, ...]], ...]) -> NDArray[np.uint8]:
    """Return a picture in which each object is a rectangle: cats red, dogs green."""
    pixels = np.zeros((SIZE[1], SIZE[0], 3), dtype=np.uint8)
    for name, (x0, y0, x1, y1) in objects:
        pixels[y0:y1, x0:x1, LABELS.index(name)] = 255
    return pixels


def write_images(root: Path) -> None:
    for name, objects in SCENES.items():
        path = root / f"images/{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw(objects)).save(path)


def write_coco(root: Path) -> str:
    images = [
        {"id": number, "file_name": f"{name}.png", "width": SIZE[0], "height": SIZE[1]} for number, name in enumerate(SCENES)
    ]
    items = [
        {
            "id": 0,
            "image_id": number,
            "category_id": 10 * LABELS.index(name),
            "bbox": [x0, y0, x1 - x0, y1 - y0],
            "iscrowd": 0,
        }
        for number, objects in enumerate(SCENES.values())
        for name, (x0, y0, x1, y1) in objects
    ]
    categories = [{"id": 10 * number, "name": name} for number, name in enumerate(LABELS)]
    file = root / "annotations/instances.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": items, "categories": categories}))
    return str(file)


def write_yolo(root: Path) -> None:
    for name, objects in SCENES.items():
        lines = []
        for label, (x0, y0, x1, y1) in objects:
            centre, size = ((x0 + x1) / 2 / SIZE[0], (y0 + y1) / 2 / SIZE[1]), ((x1 - x0) / SIZE[0], (y1 - y0) / SIZE[1])
            lines.append(" ".join([str(LABELS.index(label)), *(f"{value:.6f}" for value in (*centre, *size))]))
        path = root / f"labels/{name}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines))
    (root / "data.yaml").write_text("path: .\nnames:\n  0: cat\n  1: dog\n  2: bird\n")


def write_labelme(root: Path) -> None:
    for name, objects in SCENES.items():
        shapes = []
        for label, (x0, y0, x1, y1) in objects:
            points = [[x0, y0], [x1, y1]] if label == "cat" else [[x0, y1], [x1, y0 + 1], [x0 + 1, y0]]  # or a polygon
            shapes.append({"label": label, "points": points, "shape_type": "rectangle" if label == "cat" else "polygon"})
        content = {"shapes": shapes, "imageWidth": SIZE[0], "imageHeight": SIZE[1], "imageData": None}
        (root / f"images/{name}.json").write_text(json.dumps(content))


def write_voc(root: Path) -> None:
    for name, objects in SCENES.items():
        items = []
        for label, (x0, y0, x1, y1) in objects:
            corners = zip(("xmin", "ymin", "xmax", "ymax"), (x0 + 1, y0 + 1, x1, y1), strict=True)
            box = "".join(f"<{tag}>{value}</{tag}>" for tag, value in corners)
            items.append(f"<object><name>{label}</name><bndbox>{box}</bndbox></object>")
        path = root / f"Annotations/{name}.xml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"<annotation>{''.join(items)}</annotation>")


WRITERS = {"coco": write_coco, "yolo": write_yolo, "labelme": write_labelme, "voc": write_voc}


def remarks_of(source: Source) -> list[str]:
    found: list[str] = source.remarks  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize("form", WRITERS)
def test_images_have_the_class_of_their_largest_object_and_the_boxes_of_all(tmp_path: Path, form: Any) -> None:
    write_images(tmp_path)
    WRITERS[form](tmp_path)
    source = open_source(AnnotatedFolderSource(kind="annotated_folder", path=str(tmp_path), boxes=form))
    assert source.class_names == ["cat", "dog"]
    examples = {example.example_id: example for example in (source[place] for place in range(len(source)))}
    expected = {f"images/{name}.png": objects for name, objects in SCENES.items() if objects}
    assert examples.keys() == expected.keys()
    for name, objects in expected.items():
        assert source.class_names[examples[name].label] == objects[0][0]
        assert examples[name].boxes.tolist() == [list(box) for _, box in objects]
        seen = np.zeros_like(examples[name].image)
        for (label, _), (x0, y0, x1, y1) in zip(objects, examples[name].boxes.tolist(), strict=True):
            seen[y0:y1, x0:x1, LABELS.index(label)] = 255
        assert np.array_equal(seen, examples[name].image)
    assert "1 of 5 images have no annotated object and are left out" in remarks_of(source)


def test_the_requested_classes_of_coco_are_read_in_their_order(tmp_path: Path) -> None:
    write_images(tmp_path)
    file = write_coco(tmp_path)

    def opened(**options: Any) -> Source:
        return open_source(
            AnnotatedFolderSource(
                kind="annotated_folder", path=f"{tmp_path}/images", boxes="coco", annotations=file, **options
            )
        )

    assert [opened(classes=("dog",))[place].example_id for place in range(2)] == ["train/2.png", "val/1.png"]
    assert len(opened(num_per_class=1)) == 2
    with pytest.raises(UserError, match=r"no image of .* has 'bird' as its largest object; found: cat, dog"):
        opened(classes=("bird",))
    before = opened().content_digest()
    Path(file).write_text(Path(file).read_text().replace('"iscrowd": 0', '"iscrowd": false'))
    assert opened().content_digest() != before


@pytest.mark.parametrize("form", ["coco", "yolo", "labelme", "voc"])
def test_image_folders_read_boxes_of_every_annotation_format(tmp_path: Path, form: Any) -> None:
    write_images(tmp_path)
    WRITERS[form](tmp_path)
    beside = {"coco": "annotations/instances.json", "yolo": "labels", "labelme": "images", "voc": "Annotations"}[form]
    source = open_source(
        ImageFolderSource(kind="image_folder", path=f"{tmp_path}/images", boxes=form, annotations=f"{tmp_path}/{beside}")
    )
    boxes = {source[place].example_id: source[place].boxes.tolist() for place in range(len(source))}
    assert boxes == {f"{name}.png": [list(box) for _, box in objects] for name, objects in SCENES.items()}


@pytest.mark.parametrize(("form", "kind"), [("voc", "XML"), ("labelme", "JSON"), ("yolo", "text")])
def test_a_preview_names_boxes_that_are_not_used(tmp_path: Path, form: Any, kind: str) -> None:
    write_images(tmp_path)
    WRITERS[form](tmp_path)
    if form != "labelme":
        for file in (tmp_path / {"yolo": "labels", "voc": "Annotations"}[form]).rglob("*.*"):
            file.rename(tmp_path / "images" / file.relative_to(file.parents[1]))
    (line,) = preview(open_source(ImageFolderSource(kind="image_folder", path=f"{tmp_path}/images")))
    assert f"there are {kind} files of 5 of 5 images; for their boxes, set boxes: {form}" in line


def test_image_folder_warns_about_and_refuses_layouts_of_annotated_sets(tmp_path: Path) -> None:
    write_images(tmp_path)
    for name in ("JPEGImages", "SegmentationClass"):
        (tmp_path / "voc" / name).mkdir(parents=True)
        Image.fromarray(draw(())).save(tmp_path / "voc" / name / "1.png")
    remarks = remarks_of(open_source(ImageFolderSource(kind="image_folder", path=f"{tmp_path}/voc")))
    assert any(line.startswith("JPEGImages and SegmentationClass are taken for a class; if the annot") for line in remarks)
    (tmp_path / "voc/Annotations").mkdir()
    (tmp_path / "voc/Annotations/1.xml").write_text(
        "<annotation><object><name>cat</name><polygon><pt><x>1</x><y>1</y></pt></polygon></object></annotation>"
    )
    source = open_source(
        AnnotatedFolderSource(kind="annotated_folder", path=f"{tmp_path}/voc", boxes="voc", classes=("cat",))
    )
    assert [source[0].example_id, len(source)] == ["JPEGImages/1.png", 1]
    assert any("in folders of masks: 1 image, such as SegmentationClass/1.png" in line for line in remarks_of(source))
    remarks = remarks_of(open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path))))
    assert any("kind: annotated_folder" in line for line in remarks)
    with pytest.raises(
        UserError, match="but 2 beside the class folders; kind: annotated_folder takes classes from annotations"
    ):
        open_source(ImageFolderSource(kind="image_folder", path=f"{tmp_path}/images/val"))


def test_a_file_belongs_to_the_image_that_shares_most_folders_with_it() -> None:
    images = ["images/train/1.jpg", "images/val/1.jpg", "images/val/2.jpg"]
    assert match_files(images, ["labels/val/1.txt", "labels/train/1.txt"]) == {
        "images/train/1.jpg": "labels/train/1.txt",
        "images/val/1.jpg": "labels/val/1.txt",
    }
    assert match_files(images, ["labels/val/1.txt"]) == {"images/val/1.jpg": "labels/val/1.txt"}
    with pytest.raises(UserError, match=r"may belong to 1.txt, but several files have that name"):
        match_files(images, ["1.txt"])
    with pytest.raises(UserError, match="may belong to"):
        match_files(["1.jpg"], ["a/1.txt", "b/1.txt"])


COCO: Mapping[str, Any] = {"images": [{"id": 1, "file_name": "a.png"}], "annotations": [], "categories": []}


@pytest.mark.parametrize(
    ("form", "content", "message"),
    [
        ("coco", "[]", "is not a COCO file of instances .a list instead of an object"),
        ("coco", "{", "is not a COCO file of instances"),
        ("coco", json.dumps({"images": []}), "it lacks annotations or categories"),
        ("coco", json.dumps({**COCO, "annotations": [{"image_id": 2}]}), "it annotates image 2, which is not in its list"),
        ("coco", json.dumps({**COCO, "annotations": [{"image_id": 1}]}), "it lacks 'bbox'"),
        ("coco", json.dumps({**COCO, "images": [{"id": 1}]}), "it lacks 'file_name'"),
        ("labelme", "{}", "is not a LabelMe annotation .it lacks 'shapes'"),
        ("labelme", json.dumps({"shapes": [{"points": [[1, "x"]]}]}), "is not a LabelMe annotation"),
        ("labelme", "[" * 100_000, "is not a LabelMe annotation"),
        ("yolo", "0 12 13 40 50", "coordinates -8, -12, 32, 38 reach beyond the image; give fractions"),
        ("yolo", "0 nan .1 .1 .1", "coordinates nan, nan reach beyond the image"),
        ("yolo", "a b", "is not a YOLO label file"),
        ("yolo", "0 .1 .1", "a class is followed by 2 numbers"),
        ("yolo", "-1 .1 .1 .1 .1", "class -1"),
        ("voc", "<annotation", "is not a Pascal VOC annotation"),
    ],
)
def test_damaged_annotations_are_named(tmp_path: Path, form: Any, content: str, message: str) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(draw(())).save(tmp_path / "a/a.png")
    suffix = {"voc": "xml", "yolo": "txt"}.get(form, "json")
    (tmp_path / f"a/a.{suffix}").write_text(content)
    with pytest.raises(UserError, match=message):
        open_source(AnnotatedFolderSource(kind="annotated_folder", path=str(tmp_path), boxes=form))


def test_boxes_enclose_polygons_circles_and_fractional_edges() -> None:
    xml = b"""<annotation><object><name>a</name><polygon><pt><x>4</x><y>9</y></pt><pt><x>7</x><y>2</y></pt></polygon></object>
    <object><name>b</name><bndbox><xmin>6.5</xmin><ymin>6.5</ymin><xmax>18.25</xmax><ymax>18.25</ymax></bndbox></object>
    <imagesize><nrows>20</nrows><ncols>30</ncols></imagesize></annotation>"""
    found = parse_voc(xml, "a.xml")
    assert found.names == ("a", "b")
    assert found.size == (30, 20)
    assert found.boxes.tolist() == [[4, 2, 7, 9], [5.5, 5.5, 18.25, 18.25]]
    circle = {"shapes": [{"label": "c", "points": [[10, 10], [13, 14]], "shape_type": "circle"}]}
    assert parse_labelme(json.dumps(circle).encode(), "a.json").boxes.tolist() == [[5, 5, 15, 15]]
    assert parse_yolo(b"1 .1 .2 .5 .2 .3 .9", "a.txt", ["x", "y"]).boxes.tolist() == [[0.1, 0.2, 0.5, 0.9]]


def test_digest_has_a_reading_mark_only_if_a_box_edge_is_fractional(tmp_path: Path) -> None:
    for name, value in (("whole", "18"), ("part", "18.25")):
        (tmp_path / name / "a").mkdir(parents=True)
        Image.fromarray(draw(())).save(tmp_path / name / "a/a.png")
        box = f"<xmin>6</xmin><ymin>6</ymin><xmax>{value}</xmax><ymax>{value}</ymax>"
        text = f"<annotation><object><bndbox>{box}</bndbox></object></annotation>"
        (tmp_path / name / "a/a.xml").write_text(text)
    spec = ImageFolderSource(kind="image_folder", path=str(tmp_path / "whole"), boxes="voc")
    assert len(open_source(spec).content_digest()) == 64
    source = open_source(spec.model_copy(update={"path": str(tmp_path / "part")}))
    assert source.content_digest().endswith(":3")
    assert source[0].boxes.tolist() == [[5, 5, 19, 19]]


def test_a_key_that_occurs_twice_is_refused() -> None:
    shape = '{"label": "cat", "label": "dog", "points": [[1, 1], [6, 6]]}'
    with pytest.raises(UserError, match=r"a.json is not a LabelMe annotation \(it names a key twice\)"):
        parse_labelme(f'{{"shapes": [{shape}]}}'.encode(), "a.json")
    for content in (
        '{"images": [], "annotations": [], "annotations": [], "categories": []}',
        '{"images": [], "annotations": [], "categories": [{"id": 1, "id": 2, "name": "cat"}]}',
    ):
        with pytest.raises(UserError, match=r"a.json is not a COCO file of instances \(it names a key twice\)"):
            parse_coco(content.encode(), "a.json")


def test_out_of_range_coordinates_and_invalid_names_in_annotations_are_refused() -> None:
    huge = "9" * 400
    for place in (f"[[{huge}, 1], [6, 6]]", f"[[1, 1], [{huge}.5e400, 6]]"):
        with pytest.raises(UserError, match=r"a.json is not a LabelMe annotation \(.*\)$"):
            parse_labelme(f'{{"shapes": [{{"label": "cat", "points": {place}}}]}}'.encode(), "a.json")
    with pytest.raises(UserError, match=r"a.json is not a LabelMe annotation \(9{20} is not a pixel coordinate\)"):
        parse_labelme(f'{{"shapes": [], "imageWidth": {huge}, "imageHeight": 8}}'.encode(), "a.json")
    with pytest.raises(UserError, match=r"the name '.ud800' is not UTF-8"):
        parse_labelme(rb'{"shapes": [{"label": "\ud800", "points": [[1, 1], [6, 6]]}]}', "a.json")
    coco = '{"images": [{"id": 1, "file_name": "a.png", "width": %s, "height": 8}], "annotations": [], "categories": [%s]}'
    with pytest.raises(UserError, match=r"\(9{20} is not a pixel coordinate\)"):
        parse_coco((coco % (huge, "")).encode(), "a.json")
    with pytest.raises(UserError, match=r"the name '.ud800' is not UTF-8"):
        parse_coco((coco % (8, '{"id": 1, "name": "\\ud800"}')).encode(), "a.json")


def test_boxes_of_crowds_decide_no_class(tmp_path: Path) -> None:
    write_images(tmp_path)
    path = Path(write_coco(tmp_path))
    spec = AnnotatedFolderSource(kind="annotated_folder", path=str(tmp_path / "images"), boxes="coco", annotations=str(path))
    before = open_source(spec)
    content = json.loads(path.read_text())
    crowd = {"id": 9, "image_id": 0, "category_id": 10, "bbox": [0, 0, 40, 32], "iscrowd": 1}  # of dogs, around the cat
    path.write_text(json.dumps({**content, "annotations": [*content["annotations"], crowd]}))
    after = open_source(spec)
    for one, other in zip(before, after, strict=True):
        assert (one.example_id, one.label, one.boxes.tolist()) == (other.example_id, other.label, other.boxes.tolist())
    assert any("boxes of crowds (iscrowd)" in line and line.endswith("left out: 1") for line in after.remarks)  # type: ignore[attr-defined]
    assert after.content_digest().endswith(":crowds")
    assert not before.content_digest().endswith(":crowds")


def test_names_of_xml_elements_are_read_in_any_case(tmp_path: Path) -> None:
    for name, tag in (("low", "bndbox"), ("high", "Bndbox")):
        (tmp_path / name / "a").mkdir(parents=True)
        Image.fromarray(draw(())).save(tmp_path / name / "a/a.png")
        box = (
            "<xmin>6</xmin><ymin>6</ymin><XMAX>18</XMAX><ymax>18</ymax>"
            if name == "high"
            else ("<xmin>6</xmin><ymin>6</ymin><xmax>18</xmax><ymax>18</ymax>")
        )
        (tmp_path / name / "a/a.xml").write_text(f"<annotation><object><{tag}>{box}</{tag}></object></annotation>")
    spec = ImageFolderSource(kind="image_folder", path=str(tmp_path / "low"), boxes="voc")
    low, high = open_source(spec), open_source(spec.model_copy(update={"path": str(tmp_path / "high")}))
    assert low[0].boxes.tolist() == high[0].boxes.tolist() == [[5, 5, 18, 18]]
    assert len(low.content_digest()) == 64
    assert high.content_digest().endswith(":5")


def label_studio(folder: Path, shapes: dict[str, list[dict[str, Any]]], **changes: Any) -> AnnotatedFolderSource:
    """Write images and Label Studio's tasks, with addresses as it exports them."""
    tasks = []
    for address, found in shapes.items():
        result = [{"type": "choices", "value": {"choices": ["good"]}}]
        result += [{"original_width": 20, "original_height": 40, **shape} for shape in found]
        tasks.append({"id": len(tasks), "data": {"image": address}, "annotations": [{"result": result}], **changes})
    (folder / "images").mkdir()
    for number in range(len(shapes)):
        Image.new("RGB", (20, 40)).save(folder / f"images/{number} a.png")
    (folder / "project.json").write_text(json.dumps(tasks))
    return AnnotatedFolderSource(
        kind="annotated_folder", path=str(folder / "images"), boxes="coco", annotations=str(folder / "project.json")
    )


def shape(kind: str, label: str, **value: Any) -> dict[str, Any]:
    return {"type": kind, "value": {kind: [label], **value}}


def test_label_studios_shapes_and_addresses_are_read(tmp_path: Path) -> None:
    small, large = ({"x": 10, "y": 10, "width": width, "height": 20, "rotation": 0} for width in (20, 50))
    turned = {"x": 60, "y": 10, "width": 40, "height": 20, "rotation": 90}  # 8 x 8 pixels, about (12, 4): to its left
    spec = label_studio(tmp_path, {
        "/data/local-files/?d=photos%5C0%20a.png": [shape("rectanglelabels", "cat", **small), shape("rectanglelabels", "dog", **large)],
        "images\\1 a.png": [shape("rectanglelabels", "cat", **turned)],
        "2 a.png": [shape("polygonlabels", "dog", points=[[10, 10], [50, 20], [30, 60]])],
        "/data/local-files/?d=photos/3%20a.png&x=1": [shape("ellipselabels", "cat", x=50, y=50, radiusX=25, radiusY=10)],
    })  # fmt: skip
    source = open_source(spec)
    found = {source[row].example_id: (source.class_names[source[row].label], source[row].boxes.tolist()) for row in range(4)}
    assert found == {
        "0 a.png": ("dog", [[2, 4, 6, 12], [2, 4, 12, 12]]),
        "1 a.png": ("cat", [[4, 4, 12, 12]]),
        "2 a.png": ("dog", [[2, 4, 10, 24]]),
        "3 a.png": ("cat", [[5, 16, 15, 24]]),
    }
    assert source.content_digest().endswith(":paths")
    assert any(line.startswith("1 of 4 images have objects of several classes; each bel") for line in remarks_of(source))
    assert any(line.startswith("objects drawn as polygons count by the smallest box") for line in remarks_of(source))


@pytest.mark.parametrize(
    ("found", "changes", "message"),
    [
        ([shape("brushlabels", "cat")], {}, "it has brushlabels, of which no box follows; draw rectangles"),
        ([], {"annotations": [{"result": []}, {"result": []}]}, "0 a.png is annotated several times; keep one"),
        ([{**shape("rectanglelabels", "cat"), "original_height": 0}], {}, r"has 1 sizes, such as \(20, 0\)"),
        ([shape("rectanglelabels", "cat")], {}, "it lacks 'x'"),
        ([], {"data": {}}, "it lacks 'image'"),
    ],
)
def test_other_annotations_of_label_studio_are_refused(
    tmp_path: Path, found: list[dict[str, Any]], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"project.json is not a COCO file of instances .*{message}") as raised:
        open_source(label_studio(tmp_path, {"0 a.png": found}, **changes))
    assert "\n" not in str(raised.value)


def test_paths_with_backslashes_are_those_of_the_images(tmp_path: Path) -> None:
    write_images(tmp_path)
    path = Path(write_coco(tmp_path))
    spec = AnnotatedFolderSource(kind="annotated_folder", path=str(tmp_path), boxes="coco")
    before, content = open_source(spec), json.loads(path.read_text())
    for image in content["images"]:
        image["file_name"] = "images\\" + image["file_name"].replace("/", "\\")
    path.write_text(json.dumps(content))
    after = open_source(spec)
    for one, other in zip(before, after, strict=True):
        assert (one.example_id, one.label, one.boxes.tolist()) == (other.example_id, other.label, other.boxes.tolist())
    assert after.content_digest().endswith(":paths")
    assert not before.content_digest().endswith(":paths")
    content["images"].append({"id": 99, "file_name": content["images"][0]["file_name"].replace("\\", "/")})
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="twice"):
        open_source(spec)


def test_the_rule_of_polygons_is_stated_and_other_polygons_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(draw(())).save(tmp_path / "a/a.png")
    points = "<pt><x>4</x><y>9</y></pt><pt><x>7</x><y>2</y></pt>"
    box = "<bndbox><xmin>5</xmin><ymin>3</ymin><xmax>7</xmax><ymax>9</ymax></bndbox>"
    rule = "objects drawn as polygons count by the smallest box around them, and by their own box if they have one"
    specs = (
        ImageFolderSource(kind="image_folder", path=str(tmp_path), boxes="voc"),
        AnnotatedFolderSource(kind="annotated_folder", path=str(tmp_path), boxes="voc"),
    )
    for inner, is_said in ((f"<polygon>{points}</polygon>", True), (f"{box}<polygon><x1>9</x1></polygon>", False)):
        (tmp_path / "a/a.xml").write_text(f"<annotation><object><name>cat</name>{inner}</object></annotation>")
        for spec in specs:
            source = open_source(spec)
            assert source[0].boxes.tolist() == [[4, 2, 7, 9]]
            assert (rule in remarks_of(source)) is is_said
    (tmp_path / "a/a.xml").write_text(
        "<annotation><object><name>cat</name><polygon><x1>9</x1></polygon></object></annotation>"
    )
    for spec in specs:
        with pytest.raises(UserError, match=r"has neither points .pt with x and y. nor a bndbox beside it; write a bndbox"):
            open_source(spec)[0]
