import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from memlib.data.datasets import open_source
from memlib.data.images.shards import read_index, write_shard
from memlib.data.images.stored import read_images
from memlib.errors import UserError
from memlib.specs import DataSpec, ImageFolderSource, ImportSource, ParquetSource, ScenesSource, TorchvisionSource


def encoded(mode: str = "RGB", size: tuple[int, int] = (40, 30), kind: str = "PNG", value: int = 90) -> bytes:
    pixels = np.full((size[1], size[0]), value, dtype=np.uint16 if mode == "I;16" else np.uint8)
    image = Image.fromarray(pixels) if mode == "I;16" else Image.fromarray(pixels).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, format=kind)
    return buffer.getvalue()


def put(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def shard(source: Any, folder: Path, **options: Any) -> tuple[Any, Any]:
    folder.mkdir()
    spec = DataSpec(source=ScenesSource(), **({"image_size": 16} | options))
    index = write_shard(source, spec, folder).index
    return read_images(folder / "images.npy"), index.to_pylist()


def test_scenes_hold_the_digit_in_their_boxes_and_are_a_function_of_the_seed() -> None:
    spec = ScenesSource(num_examples=30, size=32, digit_size=12, copies=2, background="grid", seed=5)
    first, again = open_source(spec), open_source(spec)
    for i in range(30):
        a, b = first[i], again[i]
        assert np.array_equal(a.image, b.image)
        assert a.label == b.label
        assert len(a.boxes) == 2
        inside = np.zeros((32, 32), dtype=bool)
        for x0, y0, x1, y1 in a.boxes:
            inside[y0:y1, x0:x1] = True
        assert a.image[~inside].max() <= 0.6 * 255 + 1  # digits are white, backgrounds are not
        assert a.image[inside].max() > 200


@pytest.mark.parametrize("background", ["field", "grid", "mosaic", "palette"])
def test_backgrounds_do_not_depend_on_the_digit(background: Any) -> None:
    scenes = open_source(ScenesSource(num_examples=400, background=background))
    examples = [scenes[i] for i in range(400)]
    labels = np.array([e.label for e in examples])
    corners = np.array([e.image[:2, :2].mean() for e in examples if True])
    grand = corners.mean()
    between = sum((corners[labels == d].mean() - grand) ** 2 * (labels == d).sum() for d in range(10)) / 9
    within = sum(((corners[labels == d] - corners[labels == d].mean()) ** 2).sum() for d in range(10)) / 390
    assert between / within < 3.2  # F(9, 390) exceeds 3.2 once in a thousand


def test_image_folder_reads_every_image_mode_and_ignores_other_files(tmp_path: Path) -> None:
    put(
        tmp_path / "data",
        {
            "cat/a.png": encoded(),
            "cat/grey.png": encoded("L", (10, 60)),
            "dog/cmyk.jpg": encoded("CMYK", kind="JPEG"),
            "dog/deep/16bit.png": encoded("I;16", value=40_000),
            "dog/palette.gif": encoded("P", kind="GIF"),
            "dog/notes.txt": b"not an image",
        },
    )
    source = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path / "data")))
    assert source.class_names == ["cat", "dog"]
    images, index = shard(source, tmp_path / "shard")
    assert [row["example_id"] for row in index] == [
        "cat/a.png", "cat/grey.png", "dog/cmyk.jpg", "dog/deep/16bit.png", "dog/palette.gif",
    ]  # fmt: skip
    assert [row["label"] for row in index] == [0, 0, 1, 1, 1]
    assert images.shape == (5, 16, 16, 3)
    assert abs(int(images[3].mean()) - round(40_000 / 65_535 * 255)) <= 1


def test_padding_keeps_the_shape_and_moves_the_boxes(tmp_path: Path) -> None:
    xml = "<annotation><object><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>20</xmax><ymax>10</ymax></bndbox></object></annotation>"
    put(tmp_path / "data", {"a/1.png": encoded(size=(40, 20)), "b/2.png": encoded(), "notes/1.xml": xml.encode()})
    source = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path / "data"), boxes="voc"))
    images, index = shard(source, tmp_path / "padded", image_size=20, resize="pad")
    assert index[0]["content"] == [0, 5, 20, 15]
    assert index[0]["boxes"] == [0, 5, 10, 10]
    assert (images[0][:5] == 128).all()
    _, index = shard(source, tmp_path / "squashed", image_size=20)
    assert index[0]["content"] == [0, 0, 20, 20]
    assert index[0]["boxes"] == [0, 0, 10, 10]


def test_unreadable_images_are_named_with_their_number_or_left_out(tmp_path: Path) -> None:
    broken = {f"a/broken{i}.jpg": encoded(kind="JPEG", size=(200, 200))[:400] for i in range(7)}
    put(tmp_path / "data", {"a/fine.png": encoded(), "b/fine.png": encoded(), **broken})
    source = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path / "data")))
    with pytest.raises(UserError, match=r"7 unreadable images: a/broken0\.jpg.*and 2 more.*leave_out"):
        shard(source, tmp_path / "strict")
    _, index = shard(source, tmp_path / "lenient", unreadable="leave_out")
    assert sum(row["unreadable"] is not None for row in index) == 7


def test_tiny_imagenet_boxes_are_inclusive(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "n1/images/n1_0.JPEG": encoded(kind="JPEG"), "n1/n1_boxes.txt": b"n1_0.JPEG\t0\t0\t9\t4\n",
            "n2/images/n2_0.JPEG": encoded(kind="JPEG"), "n2/n2_boxes.txt": b"",
        },
    )  # fmt: skip
    source = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path), boxes="tiny_imagenet"))
    assert source[0].boxes.tolist() == [[0, 0, 10, 5]]
    assert source[1].boxes.shape == (0, 4)
    with pytest.raises(UserError, match="fewer than num_classes"):
        open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path), num_classes=3))


def test_a_copied_or_touched_folder_has_the_same_digest(tmp_path: Path) -> None:
    for name in ("one", "two"):
        put(tmp_path / name, {"a/1.png": encoded(), "b/2.png": encoded(value=3)})
    digests = [
        open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path / name))).content_digest()
        for name in ("one", "two")
    ]
    assert digests[0] == digests[1]
    (tmp_path / "two/b/2.png").write_bytes(encoded(value=4))
    changed = open_source(ImageFolderSource(kind="image_folder", path=str(tmp_path / "two"))).content_digest()
    assert changed != digests[0]


def test_image_folders_are_read_through_any_fsspec_file_system() -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pipe({"/bucket/train/a/1.png": encoded(), "/bucket/train/b/2.png": encoded(value=3)})
    source = open_source(ImageFolderSource(kind="image_folder", path="memory://bucket/train"))
    assert [source[i].example_id for i in range(2)] == ["a/1.png", "b/2.png"]
    assert source.content_digest().endswith(":2")  # remote images may be odd


def hugging_face_file(path: Path, rows: list[dict[str, Any]], names: list[str] | None = None) -> None:
    metadata = {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})} if names else None
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(metadata), path, row_group_size=2)


def test_parquet_reads_files_in_the_hugging_face_convention(tmp_path: Path) -> None:
    rows = [
        {"image": {"bytes": encoded(value=i), "path": None}, "label": i % 2, "objects": {"bbox": [[1.0, 2.0, 5.0, 6.0]]}}
        for i in range(5)
    ]
    for name in ("train-0.parquet", "train-1.parquet"):
        hugging_face_file(tmp_path / name, rows, ["ant", "bee"])
    source = open_source(ParquetSource(kind="parquet", path=str(tmp_path), boxes_column="objects"))
    assert source.class_names == ["ant", "bee"]
    assert len(source) == 10
    assert source[7].example_id == "train-1.parquet:0000002"
    assert source[7].image[0, 0, 0] == 2
    assert source[7].boxes.tolist() == [[1, 2, 6, 8]]
    one = open_source(ParquetSource(kind="parquet", path=str(tmp_path / "train-0.parquet")))
    assert len(one) == 5


def test_parquet_sources_without_files_columns_or_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no .parquet file"):
        open_source(ParquetSource(kind="parquet", path=str(tmp_path)))
    hugging_face_file(tmp_path / "a.parquet", [{"image": {"bytes": encoded()}, "label": None}, {"image": {}, "label": "x"}])
    with pytest.raises(UserError, match="has no column 'target'; it has image, label"):
        open_source(ParquetSource(kind="parquet", path=str(tmp_path), label_column="target"))
    with pytest.raises(UserError, match=r"example a\.parquet:0000000 has no label"):
        open_source(ParquetSource(kind="parquet", path=str(tmp_path)))


MODULE = """
import numpy as np
class Source:
    class_names = ["even", "odd"]
    def __init__(self, count, label=None, box=None, name="{}"):
        self.count, self.label, self.box, self.name = count, label, box, name
    def __len__(self):
        return self.count
    def __getitem__(self, i):
        label = i % 2 if self.label is None else self.label
        boxes = np.array([self.box] if self.box else np.zeros((0, 4)), dtype=np.int64)
        image = np.full((8, 8, 3), i, dtype=np.uint8)
        return dict(example_id=self.name.format(i), image=image, label=label, boxes=boxes)
def wrong():
    return 3
"""


@pytest.fixture
def user_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"user_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MEMLIB_CODE", f"{name},nosuch_module")
    return name


def imported(module: str, **options: Any) -> Any:
    return open_source(ImportSource(kind="import", function=f"{module}:Source", options={"count": 4} | options))


@pytest.mark.parametrize("kind", ["pil", "array", "grey", "tensor", "float"])
def test_a_data_set_like_torchvisions_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3), dtype=np.uint8)
    name = f"like_torchvision_{kind}"
    (tmp_path / f"{name}.py").write_text(
        f"""
import numpy as np
import torch
from PIL import Image

class Data:
    classes = ["cat", "dog"]
    attributes = {{"pose": {{"0000000": "left", "0000001": "right"}}}}

    def __len__(self):
        return 3

    def __getitem__(self, index):
        image = np.random.default_rng(0).integers(0, 256, (3, 8, 12, 3), dtype=np.uint8)[index]
        made = {{
            "pil": lambda: Image.fromarray(image), "array": lambda: image, "grey": lambda: image[..., 0],
            "tensor": lambda: torch.from_numpy(image).permute(2, 0, 1), "float": lambda: torch.from_numpy(image).permute(2, 0, 1) / 255,
        }}["{kind}"]()
        return made, torch.tensor(index % 2)

def broken():
    class Pairs(Data):
        def __getitem__(self, index):
            return "image", [1, 0]
    return Pairs()
"""
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MEMLIB_CODE", name)
    source = open_source(ImportSource(kind="import", function=f"{name}:Data"))
    assert source.class_names == ["cat", "dog"]
    assert source.attributes["pose"]["0000001"] == "right"  # type: ignore[attr-defined]
    for index in range(3):
        expected = np.repeat(pixels[index][..., :1], 3, axis=2) if kind == "grey" else pixels[index]
        assert np.array_equal(source[index].image, expected)
        assert (source[index].label, source[index].example_id) == (index % 2, f"{index:07d}")
    with pytest.raises(UserError, match="item 0 of the imported source is a tuple, not an Example or a pair"):
        _ = open_source(ImportSource(kind="import", function=f"{name}:broken"))[0]


def test_an_imported_source_is_read_with_its_class_names(user_module: str, tmp_path: Path) -> None:
    source = imported(user_module)
    _, index = shard(source, tmp_path / "shard")
    assert [row["class_name"] for row in index] == ["even", "odd", "even", "odd"]
    assert len(source.content_digest()) == 64


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": 2}, "label 2, but there are 2 classes"),
        ({"label": 1}, "class 'even' has no image"),
        ({"box": [0, 0, 19, 4]}, r"box \(0, 0, 19, 4\) in an image of 8 x 8"),
        ({"box": [3, 0, 3, 4]}, "boxes are x0, y0, x1, y1 inside the image"),
        ({"name": "same"}, "two examples are called 'same'"),
        ({"name": ""}, "ids must be unique"),
        ({"count": 0}, "the source has no images"),
    ],
)
def test_invalid_examples_of_an_imported_source_are_refused(
    user_module: str, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        shard(imported(user_module, **options), tmp_path / "shard")


def test_functions_that_cannot_be_imported_as_sources_are_refused(user_module: str) -> None:
    for function, message in (
        ("nosuch_module:f", "cannot import"),
        (f"{user_module}:nothing", "has no function 'nothing'"),
        (f"{user_module}:wrong", "returned a int without"),
    ):
        with pytest.raises(UserError, match=message):
            open_source(ImportSource(kind="import", function=function))


def test_torchvision_source_reads_mnist_by_name(real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "MNIST/raw", tmp_path / "MNIST/raw", copy_function=shutil.copyfile)
    spec = TorchvisionSource(kind="torchvision", name="MNIST", root=str(tmp_path), split="test", download=True)
    source = open_source(spec)
    assert len(source) == 10_000
    example = source[0]
    assert example.example_id == "test-0000000"
    assert example.label == 7
    assert example.image.shape == (28, 28, 3)
    assert len(source.content_digest()) == 64


def test_unknown_or_missing_torchvision_data_sets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no data set 'MNITS'; it has .*MNIST"):
        open_source(TorchvisionSource(kind="torchvision", name="MNITS", root=str(tmp_path)))
    with pytest.raises(UserError, match="not found"):
        open_source(TorchvisionSource(kind="torchvision", name="MNIST", root=str(tmp_path)))


def test_tiny_imagenet_photographs_are_read_with_their_boxes(real_data: Path, tmp_path: Path) -> None:
    with tarfile.open(real_data / "tiny-imagenet-50.tar.xz") as archive:
        wanted = [m for _, m in zip(range(1100), archive, strict=False)]
        archive.extractall(tmp_path, members=wanted, filter="data")
    source = open_source(
        ImageFolderSource(
            kind="image_folder", path=str(tmp_path / "tiny-imagenet-50/train"), boxes="tiny_imagenet", num_classes=2
        )
    )
    images, index = shard(source, tmp_path / "shard", image_size=64)
    assert images.shape[1:] == (64, 64, 3)
    assert all(len(row["boxes"]) == 4 for row in index)
    assert read_index(tmp_path / "shard/index.parquet").num_rows == len(source)
