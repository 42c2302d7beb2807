"""Points, arrays and CSV files come through the same interface as images."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from memlib.data.datasets import open_source
from memlib.data.images.shards import write_shard
from memlib.data.images.stored import read_images
from memlib.data.splits import hold_out
from memlib.errors import UserError
from memlib.specs import CsvSource, DataSpec, HoldOutSpec, NpzSource, TwoMoonsSource


def test_two_moons_are_centred_and_flat_unless_noisy(tmp_path: Path) -> None:
    spec = TwoMoonsSource(kind="two_moons", num_examples=100)
    index = write_shard(open_source(spec), DataSpec(source=spec), tmp_path).index
    points = read_images(tmp_path / "images.npy")
    assert points.shape == (100, 3)
    assert points.dtype == np.float32
    np.testing.assert_allclose(points[:, :2].mean(axis=0), 0, atol=1e-6)
    assert (points[:, 2] == 0).all()
    assert sorted(np.bincount(index["label"].to_numpy())) == [50, 50]
    noisy = open_source(spec.model_copy(update={"z_noise": 0.5}))
    z = np.array([noisy[i].image[2] for i in range(100)])
    assert 0.3 < z.std() < 0.7
    np.testing.assert_array_equal(noisy[3].image[:2], points[3, :2])  # the same moons
    other = open_source(spec.model_copy(update={"seed": 1}))
    assert not np.array_equal(other[0].image, points[0])


def test_grey_shards_have_one_channel(tmp_path: Path) -> None:
    images = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 8, 8)
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=np.array([[0], [1]]))
    spec = NpzSource(kind="npz", path=str(tmp_path / "a.npz"), class_names=("well", "ill"))
    source = open_source(spec)
    assert source.class_names == ["well", "ill"]
    write_shard(source, DataSpec(source=spec, image_size=8, channels=1), tmp_path)
    np.testing.assert_array_equal(read_images(tmp_path / "images.npy")[..., 0], images)
    digest = source.content_digest()
    np.savez(tmp_path / "a.npz", train_images=images + 1, train_labels=np.array([0, 1]))
    assert open_source(spec).content_digest() != digest


def test_npz_source_refuses_missing_mismatched_and_unreadable_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=np.zeros((2, 8, 8), np.float32), y=np.zeros(3, np.int64), z=np.zeros((2, 8, 8), np.uint8))

    def opened(**names: str) -> None:
        open_source(NpzSource(kind="npz", path=str(path), **names))

    for names, said in (
        ({"images": "nope", "labels": "y"}, "has no array 'nope'"),
        ({"images": "x", "labels": "y"}, "not float32"),
        ({"images": "z", "labels": "y"}, "should hold 2 class indices"),
    ):
        with pytest.raises(UserError, match=said):
            opened(**names)
    (tmp_path / "b.npz").write_bytes(b"no zip")
    with pytest.raises(UserError, match="cannot read arrays"):
        open_source(NpzSource(kind="npz", path=str(tmp_path / "b.npz")))


def test_csv_source_reads_and_checks_the_layout_of_chexpert(tmp_path: Path) -> None:
    rows = ["Path,Frontal/Lateral,Consolidation"]
    for i, (view, value) in enumerate(
        [("Frontal", "1.0"), ("Frontal", "0.0"), ("Lateral", "1.0"), ("Frontal", "-1.0"), ("Frontal", "")]
    ):
        Image.fromarray(np.full((10, 12), i * 20, np.uint8)).save(tmp_path / f"{i}.png")
        rows.append(f"{i}.png,{view},{value}")
    (tmp_path / "train.csv").write_text("\n".join(rows))
    spec = CsvSource.model_validate(
        {
            "kind": "csv", "path": str(tmp_path / "train.csv"), "root": str(tmp_path), "label_column": "Consolidation",
            "classes": {"absent": ["0.0", ""], "present": ["1.0"]}, "where": {"Frontal/Lateral": "Frontal"},
        }
    )  # fmt: skip
    source = open_source(spec)
    assert [(source[i].example_id, source[i].label) for i in range(len(source))] == [("0.png", 1), ("1.png", 0), ("4.png", 0)]
    digest = source.content_digest()
    (tmp_path / "1.png").write_bytes((tmp_path / "0.png").read_bytes())
    assert open_source(spec).content_digest() != digest
    with pytest.raises(UserError, match="has no column 'Edema'"):
        open_source(spec.model_copy(update={"label_column": "Edema"}))
    with pytest.raises(UserError, match="no row of"):
        open_source(spec.model_copy(update={"where": {"Frontal/Lateral": "Oblique"}}))
    (tmp_path / "4.png").unlink()
    with pytest.raises(UserError, match="not below"):
        open_source(spec)[2]


def test_pneumonia_mnist_is_read(real_data: Path, tmp_path: Path) -> None:
    spec = NpzSource(kind="npz", path=str(real_data / "pneumoniamnist_rebuilt.npz"))
    assert len(open_source(spec)) == 4708


def test_hold_out_assigns_disjoint_roles_and_refuses_too_few_examples(tmp_path: Path) -> None:
    spec = TwoMoonsSource(kind="two_moons", num_examples=40)
    write_shard(open_source(spec), DataSpec(source=spec), tmp_path)
    index = pq.read_table(tmp_path / "index.parquet")
    table = hold_out(index, HoldOutSpec(train_per_class=10, validation_per_class=3, held_out_per_class=2))
    roles = table["role"].to_pylist()
    assert {role: roles.count(role) for role in set(roles)} == {"train": 20, "validation": 6, "held_out": 4, "left_out": 10}
    rest = hold_out(index, HoldOutSpec(validation_per_class=3))["role"].to_pylist()
    assert rest.count("train") == 34
    with pytest.raises(UserError, match="has 20 examples, but the split needs 23"):
        hold_out(index, HoldOutSpec(train_per_class=20, validation_per_class=3))
