"""Scenes: embedded images, unchanged where the ink is white, and attributes that are drawn independently."""

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer

from memlib.data.builtin import Scenes
from memlib.data.data_summary import preview
from memlib.data.datasets import open_source
from memlib.specs import DataSpec, JoinedSource, ScenesSource
from memlib.specs.data import TINTS


@pytest.mark.pinned
def test_default_scenes_keep_the_pinned_digest() -> None:
    scenes, digest = Scenes(ScenesSource(num_examples=50, seed=3)), hashlib.sha256()
    for scene in (scenes[index] for index in range(50)):
        digest.update(scene.image.tobytes() + scene.boxes.tobytes() + scene.example_id.encode() + bytes([scene.label]))
    assert digest.hexdigest() == "8d4928361cecc5831b4b3742e084391b3199ae64a44dce2124bdd80689322389"
    assert "tints" not in scenes.content_digest()  # the key is as it was, too


def test_tints_change_the_ink_alone() -> None:
    plain, tinted = (Scenes(ScenesSource(num_examples=60, background="grid", tints=tints)) for tints in (1, 4))
    colours = tinted.attributes["colour"]
    assert set(colours.values()) == set(list(TINTS)[:4])
    for white, scene in ((plain[index], tinted[index]) for index in range(60)):
        assert (white.example_id, white.label, white.boxes.tolist()) == (scene.example_id, scene.label, scene.boxes.tolist())
        ((x0, y0, x1, y1),) = scene.boxes.tolist()
        changed = (white.image != scene.image).any(axis=2)
        assert changed.any() == (colours[scene.example_id] != "white")
        changed[y0:y1, x0:x1] = False
        assert not changed.any()  # outside the digit's box
        darker = (white.image.astype(int) - scene.image)[y0:y1, x0:x1].sum(axis=(0, 1))
        assert np.argsort(darker)[0] == {"green": 1, "blue": 2}.get(colours[scene.example_id], 0)  # its own channel is kept


def test_the_attribute_place_is_the_quadrant_of_the_digit() -> None:
    scenes = Scenes(ScenesSource(num_examples=80, size=32, digit_size=10))
    for scene in (scenes[index] for index in range(80)):
        ((x0, y0, x1, y1),) = scene.boxes.tolist()
        expected = f"{'upper' if (y0 + y1) / 2 < 16 else 'lower'} {'left' if (x0 + x1) / 2 < 16 else 'right'}"
        assert scenes.attributes["place"][scene.example_id] == expected
    assert len(set(scenes.attributes["place"].values())) == 4
    assert set(Scenes(ScenesSource(num_examples=10, digit_size=8, copies=2)).attributes) == {"colour"}


def test_attributes_are_drawn_independently_of_class_and_place() -> None:
    scenes = Scenes(ScenesSource(num_examples=1797, size=14, digit_size=8, tints=2))
    labels = np.array([scenes[index].label for index in range(len(scenes))])
    red = np.array([value == "red" for value in scenes.attributes["colour"].values()])
    assert abs(red.mean() - 0.5) < 0.06  # 5 standard deviations
    for label in range(10):
        mine = red[labels == label]
        assert abs(mine.mean() - 0.5) < 5.5 * 0.5 / np.sqrt(len(mine))


def test_joined_sources_state_the_attributes_of_their_parts() -> None:
    part = {"source": {"kind": "scenes", "num_examples": 12, "tints": 3}}
    spec = JoinedSource.model_validate({"kind": "joined", "parts": {"x": part, "y": {"source": {"kind": "digits"}}}})
    source = open_source(spec)
    colours = source.attributes["colour"]  # type: ignore[attr-defined]
    assert list(colours)[:2] == ["x/scene-0000000", "x/scene-0000001"]
    assert len(colours) == 12


def test_rows_are_standardized_points_with_their_classes() -> None:
    source = open_source(DataSpec.model_validate({"source": {"kind": "breast_cancer"}}).source)
    examples = [source[row] for row in range(len(source))]
    points = np.stack([example.image for example in examples])
    bunch = load_breast_cancer()
    assert points.shape == (569, 30)
    assert points.dtype == np.float32
    assert source.point_dim == 30  # type: ignore[attr-defined]
    assert np.allclose(points.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(points * bunch.data.std(axis=0) + bunch.data.mean(axis=0), bunch.data, rtol=1e-4, atol=1e-4)
    names = [source.class_names[example.label] for example in examples]
    assert names == [str(bunch.target_names[label]) for label in bunch.target]
    assert names.count("malignant") == 212
    assert len({example.example_id for example in examples}) == 569
    assert (
        source.content_digest()
        == open_source(DataSpec.model_validate({"source": {"kind": "breast_cancer"}}).source).content_digest()
    )


def test_a_preview_gives_the_number_of_coordinates() -> None:
    source = open_source(DataSpec.model_validate({"source": {"kind": "breast_cancer"}}).source)
    assert preview(source) == ["569 examples of 2 classes; in a sample of 50: points with 30 coordinates"]
