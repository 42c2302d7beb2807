"""Neighbours and comparisons within a class are those of a slow plain version, and do not depend on sides, blocks or order."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray

from memlib.audits.deja_vu.beyond.stages import WITHIN_FILE, Within
from memlib.data.candidates import hashed_order
from memlib.tables import read_table

CLASSES, DIM = 3, 4


class Embedded:
    """A part of a view whose embeddings are at hand."""

    key = "embeddings"

    def __init__(self, ids: list[str], labels: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        self.ids, self.vectors = pa.table({"example_id": ids, "label": labels}), vectors
        self.content, self.parts = self, ()

    def layer(self, name: str) -> Any:
        assert name == "last"
        return self.vectors


class InParts(Embedded):
    """A view in two parts."""

    def layer(self, name: str) -> Any:
        return [self.vectors[:7], self.vectors[7:]]


class World:
    """Images of both sides and public images, in the space of one model."""

    def __init__(
        self, seed: int, *, audited: int = 45, public: int = 30, sides: int = 0, labels: Sequence[int] | None = None
    ) -> None:
        rng, drawn = np.random.default_rng(seed), np.random.default_rng(sides)
        self.ids = [f"image {n:02d}" for n in range(audited)]
        self.labels = np.arange(audited) % CLASSES if labels is None else np.array(labels)
        self.groups = [None if n % 4 else f"person {n // 8}" for n in range(audited)]
        roles = drawn.permutation(np.array(["target", "reference"])[np.arange(audited) % 2])
        ends = {"example_id": self.ids, "row": range(audited), "role": roles.tolist()}
        self.splits = SimpleNamespace(content=pa.table({**ends, "label": self.labels, "group": self.groups}), key="splits")
        self.crops, self.whole = (rng.normal(size=(audited, DIM)).astype(np.float32) for _ in range(2))
        self.whole = self.whole[rng.integers(audited // 3, size=audited)]  # with equal images
        self.public_labels = rng.permutation(np.arange(public) % (CLASSES + 1))
        self.public = rng.normal(size=(public, DIM)).astype(np.float32)

    def stage(self, rows: slice = slice(None), **changed: Any) -> Within:
        queries = Embedded(self.ids[rows], self.labels[rows], self.crops[rows])
        public = InParts([f"x{n}" for n in range(len(self.public))], self.public_labels, self.public)
        images = InParts(self.ids[::-1], self.labels[::-1], self.whole[::-1].copy())  # in another order than the splits
        crops = InParts(self.ids, self.labels, self.crops)
        stage = Within(queries, crops, public, images, self.splits, "last", k=5, candidates=6, seed=0)  # type: ignore[arg-type]
        return replace(stage, **changed)

    def compared(self, own: int, most: int, seed: int = 0) -> dict[int, int]:
        """Return for each candidate 2 if it is nearer than the own image, 1 if as near, else 0."""
        others = [
            n
            for n in hashed_order(self.ids, seed).tolist()
            if n != own
            and self.labels[n] == self.labels[own]
            and (self.groups[own] is None or self.groups[n] != self.groups[own])
        ][:most]

        def distance(crop: int, image: int) -> float:
            return sum((float(x) - float(y)) ** 2 for x, y in zip(self.crops[crop], self.whole[image], strict=True))

        mine = [n for n in range(len(self.ids)) if self.labels[n] == self.labels[own]]
        apart = {n: distance(own, n) - sum(distance(crop, n) for crop in mine) / len(mine) for n in (own, *others)}
        return {n: (apart[n] < apart[own] - 1e-9) + (apart[n] < apart[own] + 1e-9) for n in others}


def written(stage: Within, folder: Path) -> pa.Table:
    folder.mkdir(exist_ok=True)
    stage.write(SimpleNamespace(path=lambda name: folder / name), torch.device("cpu"))  # type: ignore[arg-type]
    return read_table(folder / WITHIN_FILE)


@pytest.mark.parametrize("most", [6, 99])
def test_neighbours_and_comparisons_within_a_class_equal_a_slow_plain_version(most: int, tmp_path: Path) -> None:
    world = World(0)
    rows = written(world.stage(candidates=most), tmp_path).to_pylist()
    assert [row["example_id"] for row in rows] == world.ids
    for own, row in enumerate(rows):
        far = {n: np.square(world.public[n].astype(float) - world.crops[own]).sum()
               for n in np.flatnonzero(world.public_labels == world.labels[own]).tolist()}  # fmt: skip
        assert row["nearest"] == sorted(far, key=lambda n: far[n])[:5]
        assert dict(zip(row["candidates"], row["nearer"], strict=True)) == world.compared(own, most)
    assert {half for row in rows for half in row["nearer"]} == {0, 1, 2}


def test_candidates_do_not_change_when_sides_are_redrawn(tmp_path: Path) -> None:
    one, other = (World(0, sides=sides) for sides in (0, 1))
    assert not one.splits.content.equals(other.splits.content)
    assert written(one.stage(), tmp_path).equals(written(other.stage(), tmp_path))
    assert not written(one.stage(seed=1), tmp_path).equals(written(one.stage(), tmp_path))


def test_neighbours_within_a_class_do_not_depend_on_blocks_of_queries(tmp_path: Path) -> None:
    world = World(1)
    parts = [written(world.stage(rows), tmp_path / str(n)) for n, rows in enumerate((slice(0, 20), slice(20, None)))]
    assert pa.concat_tables(parts).equals(written(world.stage(), tmp_path))


def test_a_class_with_few_public_images_has_fewer_neighbours_and_one_without_none(tmp_path: Path) -> None:
    world = World(2)
    world.public_labels = np.where(np.arange(30) < 3, 0, 1)
    lengths = [len(row["nearest"]) for row in written(world.stage(), tmp_path).to_pylist()]
    assert lengths == [{0: 3, 1: 5, 2: 0}[label] for label in world.labels.tolist()]


def test_an_image_without_others_of_its_class_has_no_candidate(tmp_path: Path) -> None:
    world = World(3, audited=7, labels=[0, 0, 0, 1, 2, 2, 2])
    row = written(world.stage(), tmp_path).to_pylist()[3]
    assert (row["candidates"], row["nearer"]) == ([], [])
