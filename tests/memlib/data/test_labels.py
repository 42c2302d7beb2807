"""Examples that are left out by their labels, and classes that nobody has."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memlib.data.data_summary import preview
from memlib.data.datasets import open_source
from memlib.errors import UserError
from memlib.specs import DataSpec, JoinedSource, LabelsSpec, NpzSource, ScenesSource

LABELS = [2, -1, 0, 2, -1, 3]


def source(path: Path, *, labels: list[int] = LABELS, names: tuple[str, ...] = (), drop: tuple[int | str, ...] = ()) -> Any:
    images = np.arange(len(labels), dtype=np.uint8)[:, None, None].repeat(8, axis=1).repeat(8, axis=2)
    np.savez(path / "a.npz", train_images=images, train_labels=np.array(labels))
    spec = NpzSource(kind="npz", path=str(path / "a.npz"), class_names=names)
    return open_source(spec, labels=LabelsSpec(drop=drop) if drop else None)


def test_examples_without_a_class_are_refused_or_left_out(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"2 examples with the label -1; .* data.labels: \{drop: \[-1\]\}"):
        source(tmp_path)
    found = source(tmp_path, drop=(-1,))
    assert [(found[row].label, int(found[row].image[0, 0, 0])) for row in range(len(found))] == [
        (2, 0),
        (0, 2),
        (2, 3),
        (3, 5),
    ]
    assert found.class_names == ["0", "1", "2", "3"]
    (line,) = preview(found)
    assert line.startswith("4 examples of 4 classes")
    assert "examples left out by their label: 2; classes without examples: 1" in line


def test_labels_are_renumbered_without_gaps_after_leaving_out_classes(tmp_path: Path) -> None:
    for drop in ((-1, 0), (-1, "cat")):
        found = source(tmp_path, names=("cat", "emu", "dog", "bee"), drop=drop)
        assert found.class_names == ["emu", "dog", "bee"]
        assert [found.class_names[found[row].label] for row in range(len(found))] == ["dog", "dog", "bee"]


def test_a_preview_warns_about_labels_numbered_from_one(tmp_path: Path) -> None:
    (line,) = preview(source(tmp_path, labels=[1, 2, 3, 1]))
    assert "classes without examples: 0 (are the labels numbered from 1?)" in line


def test_labels_refuse_impossible_drops_and_are_absent_from_keys_by_default(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.labels.drop names 7, which no example has as its label"):
        source(tmp_path, drop=(7,))
    with pytest.raises(UserError, match="data.labels.drop leaves no example"):
        source(tmp_path, labels=[0, 0], drop=(0,))
    with pytest.raises(UserError, match="data.labels.drop needs a source that lists its labels"):
        open_source(ScenesSource(num_examples=10), labels=LabelsSpec(drop=(0,)))
    assert "labels" not in DataSpec(source=ScenesSource()).model_dump(mode="json")


def test_joined_parts_share_the_labels_to_drop(tmp_path: Path) -> None:
    for part, labels in (("one", [0, -1, 1]), ("other", [1, 0])):
        (tmp_path / part).mkdir()
        images = np.zeros((len(labels), 8, 8), np.uint8)
        np.savez(tmp_path / part / "a.npz", train_images=images, train_labels=np.array(labels))
    parts = {part: {"source": {"kind": "npz", "path": str(tmp_path / part / "a.npz")}} for part in ("one", "other")}
    spec = JoinedSource.model_validate({"kind": "joined", "parts": parts})
    found = open_source(spec, labels=LabelsSpec(drop=(-1,)))
    assert [(found[row].example_id, found[row].label) for row in range(len(found))] == [
        ("one/train_images-0000000", 0), ("one/train_images-0000002", 1),
        ("other/train_images-0000000", 1), ("other/train_images-0000001", 0),
    ]  # fmt: skip
    with pytest.raises(UserError, match="1 example with the label -1"):
        open_source(spec)
