from pathlib import Path

import numpy as np
import pytest
import torch

from memlib.errors import RunError
from memlib.models.encoder import build_encoder
from memlib.observe.embeddings import cut, cut_together, embed, search
from memlib.specs import ModelSpec

SPEC = ModelSpec(width=8, projector=(16, 12), input_size=16)
NAMES = ("backbone", "projector_1", "projector_2")


def test_cut_ignores_pixels_outside_the_rectangle() -> None:
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.random((3, 3, 20, 20), dtype=np.float32))
    boxes = np.array([[3, 0, 9, 20], [0, 13, 20, 20], [5, 5, 10, 10]])
    changed = images.clone()
    for image, (x0, y0, x1, y1) in zip(changed, boxes, strict=True):
        keep = image[:, y0:y1, x0:x1].clone()
        image.fill_(9.0)
        image[:, y0:y1, x0:x1] = keep
    assert torch.equal(cut(images, boxes, side=16), cut(changed, boxes, side=16))
    assert torch.equal(cut(images[:, :, :16, :16], None, side=16), images[:, :, :16, :16])


@pytest.mark.parametrize("side", [4, 7, 16, 33])
def test_crops_cut_together_equal_those_cut_one_by_one(side: int) -> None:
    rng = np.random.default_rng(1)
    images = torch.from_numpy(rng.random((200, 3, 20, 27), dtype=np.float32))
    x0, y0 = rng.integers(0, 26, size=200), rng.integers(0, 19, size=200)
    boxes = np.stack([x0, y0, rng.integers(x0 + 1, 28), rng.integers(y0 + 1, 21)], axis=1)
    expected, found = cut(images, boxes, side=side), cut_together(images, boxes, side=side)
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 2e-6
    changed = images.clone()
    for image, (left, top, right, bottom) in zip(changed, boxes, strict=True):
        keep = image[:, top:bottom, left:right].clone()
        image.fill_(9.0)
        image[:, top:bottom, left:right] = keep
    assert torch.equal(cut_together(changed, boxes, side=side), found)  # nothing outside has any influence


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, size=(30, 20, 20, 3), dtype=np.uint8)


def test_embed_writes_every_layer_in_the_order_of_the_rows(images: np.ndarray, tmp_path: Path) -> None:
    encoder = build_encoder(SPEC, num_classes=None, seed=0)
    rows = np.array([7, 3, 29, 3])
    embed(encoder, images, rows, input_size=16, folder=tmp_path, layers=NAMES, batch_size=3)
    found = {name: np.load(tmp_path / f"{name}.npy") for name in NAMES}
    assert {name: array.shape for name, array in found.items()} == {
        "backbone": (4, 64), "projector_1": (4, 16), "projector_2": (4, 12),
    }  # fmt: skip
    assert np.allclose(found["backbone"][1], found["backbone"][3], atol=1e-5)
    assert not np.allclose(found["backbone"][0], found["backbone"][1])
    other = tmp_path / "other"
    other.mkdir()
    embed(encoder, images, rows, input_size=16, folder=other, layers=NAMES[:1], batch_size=1)
    assert np.allclose(np.load(other / "backbone.npy"), found["backbone"], atol=1e-5)
    assert not (other / "projector_1.npy").exists()


def test_embeddings_that_are_not_finite_are_refused_and_their_layer_named(images: np.ndarray, tmp_path: Path) -> None:
    encoder = build_encoder(SPEC, num_classes=None, seed=0)
    with torch.no_grad():
        next(encoder.projector[0].parameters()).fill_(float("nan"))
    with pytest.raises(RunError, match="projector_1 embeddings are not finite"):
        embed(encoder, images, np.arange(4), input_size=16, folder=tmp_path, layers=NAMES)


def test_the_public_set_streams_through_in_any_number_of_shards() -> None:
    rng = np.random.default_rng(0)
    queries, public = rng.normal(size=(9, 6)).astype(np.float32), rng.normal(size=(300, 6)).astype(np.float32)
    seen: list[tuple[int, int]] = []
    whole = search(queries, [public], 7)
    parts = search(queries, [public], 7, shard_bytes=40 * 24, progress=lambda done, total: seen.append((done, total)))
    assert np.array_equal(whole[0], parts[0])
    assert np.array_equal(whole[1], parts[1])
    assert seen[-1] == (300, 300)
    assert len(seen) == 8
