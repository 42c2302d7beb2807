"""Named sets are disjoint, copies of D_Q are removed from the others, joined sources keep their parts apart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from memlib.audits.forgetting.sets import draw_sets, mix_members
from memlib.data.datasets import open_source
from memlib.data.images.shards import write_shard
from memlib.data.images.stored import read_images
from memlib.data.joined import changed_image
from memlib.data.splits import LEFT_OUT, select
from memlib.errors import UserError
from memlib.specs import ChangeSpec, DataSpec, ImageFolderSource, JoinedSource, SetSpec
from memlib.tables import INDEX

RNG = np.random.default_rng(0)


def index(labels: list[int], parts: list[str] | None = None, digests: list[str] | None = None) -> Any:
    names = [f"{parts[i]}/e{i:03d}" if parts else f"e{i:03d}" for i in range(len(labels))]
    rows = [
        {
            "example_id": name, "row": i, "label": label, "class_name": f"c{label}", "boxes": [], "content": [0, 0, 0, 0],
            "original_width": 8, "original_height": 8, "digest": digests[i] if digests else name, "unreadable": None,
        }
        for i, (name, label) in enumerate(zip(names, labels, strict=True))
    ]  # fmt: skip
    import pyarrow as pa

    return pa.Table.from_pylist(rows, schema=INDEX.arrow)


def noise(count: int) -> np.ndarray:
    return RNG.integers(0, 256, size=(count, 20, 20, 1), dtype=np.uint8)


def sets(**specs: dict[str, Any]) -> dict[str, SetSpec]:
    return {name: SetSpec.model_validate(spec) for name, spec in specs.items()}


@settings(max_examples=20, deadline=None)
@given(per_class=st.integers(1, 3), seed=st.integers(0, 5))
def test_sets_are_disjoint_and_balanced(per_class: int, seed: int) -> None:
    table = draw_sets(
        index([0, 1] * 10), noise(20), sets(query={"per_class": per_class}, calibration={"per_class": per_class}, provider={}),
        seed=seed, near=2.0,
    )  # fmt: skip
    for name, count in (("query", per_class), ("calibration", per_class), ("provider", 10 - 2 * per_class)):
        assert sorted(select(table, name)["label"].to_pylist()) == [0] * count + [1] * count


def test_copies_of_the_query_set_leave_the_others_and_are_listed() -> None:
    images = noise(12)
    images[6] = images[0]  # equal pixels
    images[7] = np.clip(images[1].astype(int) + 1, 0, 255)  # a near copy
    names = [f"d{i}" for i in range(12)]
    names[6] = names[0]
    parts = ["q"] * 6 + ["c"] * 6
    specs = sets(query={"part": "q"}, calibration={"part": "c"})
    table = draw_sets(index([0, 1] * 6, parts, names), images, specs, seed=0, near=2.0)
    gone = {row["example_id"]: row["reason"] for row in table.to_pylist() if row["role"] == LEFT_OUT}
    assert gone.keys() == {"c/e006", "c/e007"}
    assert gone["c/e006"] == "in calibration, a copy of q/e000"
    assert gone["c/e007"].startswith("in calibration, a near copy of q/e001")
    exact = draw_sets(index([0, 1] * 6, parts, names), images, specs, seed=0, near=None)
    assert [row["example_id"] for row in exact.to_pylist() if row["role"] == LEFT_OUT] == ["c/e006"]


@pytest.mark.parametrize(
    ("labels", "specs", "said"),
    [
        ([0] * 8, {"query": {"per_class": 2}, "calibration": {}}, "D_Q has one class"),
        (
            [0, 1] * 4,
            {"query": {"per_class": 3}, "calibration": {"per_class": 2}},
            "needs 2 examples of class 'c0', but only 1",
        ),
        ([0, 1] * 4, {"query": {}, "calibration": {}}, "no example of 2 of D_Q's classes at all"),
        ([0, 1] * 4, {"query": {"part": "x"}, "calibration": {}}, "the parts are"),
    ],
)
def test_draw_sets_refuses_sets_the_data_cannot_fill(labels: list[int], specs: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        draw_sets(index(labels), noise(len(labels)), sets(**specs), seed=0, near=None)


def test_a_calibration_set_that_is_the_query_set_is_refused() -> None:
    images = noise(8)
    images[4:] = images[:4]
    names = [f"d{i % 4}" for i in range(8)]
    parts = ["a"] * 4 + ["b"] * 4
    with pytest.raises(UserError, match=r"after 4 copies of D_Q were removed.*copy of a/e000"):
        draw_sets(
            index([0, 1] * 4, parts, names), images, sets(query={"part": "a"}, calibration={"part": "b"}), seed=0, near=None
        )


def test_mixes_hold_their_shares_of_every_class() -> None:
    table = draw_sets(
        index([0, 1] * 40), noise(80), sets(query={"per_class": 20}, calibration={"per_class": 20}), seed=0, near=None
    )
    mixed = mix_members(table, {"calibration": 1.0, "query": 0.1}, seed=1)
    assert sorted(select(mixed, "query")["label"].to_pylist()) == [0, 0, 1, 1]
    assert select(mixed, "calibration").num_rows == 40
    other = mix_members(table, {"calibration": 1.0, "query": 0.1}, seed=2)
    assert not other.equals(mixed)
    assert mixed.equals(mix_members(table, {"calibration": 1.0, "query": 0.1}, seed=1))


def folder(root: Path, classes: int, *, value: int) -> ImageFolderSource:
    for label in range(classes):
        (root / f"c{label}").mkdir(parents=True)
        for number in range(3):
            Image.fromarray(np.full((8, 8, 3), value + number, np.uint8)).save(root / f"c{label}/{number}.png")
    return ImageFolderSource(kind="image_folder", path=str(root))


def joined(parts: dict[str, Any]) -> JoinedSource:
    return JoinedSource.model_validate({"kind": "joined", "parts": parts})


def test_joined_sources_keep_their_parts_apart(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a", 2, value=10), folder(tmp_path / "b", 2, value=200)
    spec = DataSpec(source=joined({"a": {"source": a}, "b": {"source": b, "change": {"invert": True}}}), image_size=8)
    source = open_source(spec.source)
    table = write_shard(source, spec, tmp_path).index
    assert len(source) == table.num_rows == 12
    assert table["example_id"][0].as_py() == "a/c0/0.png"
    images = read_images(tmp_path / "images.npy")
    first = {row["example_id"]: int(images[row["row"], 0, 0, 0]) for row in table.to_pylist()}
    assert first["a/c1/2.png"] == 12
    assert first["b/c1/2.png"] == 255 - 202
    digest = source.content_digest()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "b/c0/0.png")
    assert open_source(spec.source).content_digest() != digest


def test_joined_parts_with_other_classes_or_kinds_are_refused(tmp_path: Path) -> None:
    a, b = folder(tmp_path / "a", 2, value=10), folder(tmp_path / "b", 3, value=200)
    with pytest.raises(UserError, match="part b has 3 classes, but a has 2"):
        open_source(joined({"a": {"source": a}, "b": {"source": b}}))
    with pytest.raises(UserError, match="part p holds points"):
        open_source(joined({"p": {"source": {"kind": "two_moons"}}}))


def test_changed_image_equals_values_computed_by_hand() -> None:
    image = np.array([[0, 255], [51, 204]], dtype=np.uint8)[..., None].repeat(3, axis=2)
    assert changed_image(image, ChangeSpec(invert=True))[..., 0].tolist() == [[255, 0], [204, 51]]
    assert changed_image(image, ChangeSpec(gamma=2))[..., 0].tolist() == [[0, 255], [10, 163]]
    assert changed_image(image, ChangeSpec(contrast=0.5, brightness=0.1))[0, 0, 0] == round(255 * 0.35)
    assert set(changed_image(image, ChangeSpec(pixelate=2))[..., 0].reshape(-1).tolist()) == {128}
    assert changed_image(image, ChangeSpec(blur=1.0)).std() < image.std()
    assert (changed_image(image, ChangeSpec()) == image).all()
