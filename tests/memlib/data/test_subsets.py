"""Training sets that coins draw from the pool of a split."""

from pathlib import Path

import pytest

from memlib.data.inclusion import TARGET
from memlib.data.splits import TRAIN, column
from memlib.data.stages import HoldOut, TrainingData, decode
from memlib.data.subsets import Subsets
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec, GroupSpec, HoldOutSpec
from memlib.store import Store


@pytest.fixture
def data(tmp_path: Path) -> TrainingData:
    """Twenty digits of each class."""
    runner = PlainRunner(Store(str(tmp_path / "store")))
    shard = decode(runner, DataSpec.model_validate({"source": {"kind": "digits"}, "image_size": 8, "channels": 1}))
    return TrainingData(shard, runner.run(HoldOut(HoldOutSpec(train_per_class=20), shard)))


def test_training_subsets_equal_the_rows_selected_by_coins(data: TrainingData) -> None:
    subsets = Subsets(data, (TARGET, 0, 1), 0.5, 3)
    members = data.members(TRAIN)
    for place in range(3):
        assert (subsets.seen_by(place).rows == column(members, "row")[subsets.inside[place]]).all()
    assert 60 < subsets.inside[0].sum() < 140


def test_training_subsets_hold_persons_whole_or_not_at_all(data: TrainingData, tmp_path: Path) -> None:
    runner = PlainRunner(data.store)
    by_ten = HoldOutSpec(group=GroupSpec(pattern=r"digit-(\d\d\d)"))
    splits = runner.run(HoldOut(by_ten, data.shard))
    subsets = Subsets(TrainingData(data.shard, splits), (0, 1, 2), 0.5, 0)
    groups = splits.content["example_id"].to_pylist()
    for row in subsets.inside:
        sides: dict[str, set[bool]] = {}
        for name, inside in zip(groups, row.tolist(), strict=True):
            sides.setdefault(name[:9], set()).add(inside)
        assert all(len(side) == 1 for side in sides.values())


def test_pictures_returns_the_image_of_a_named_example(data: TrainingData) -> None:
    members, show = data.members(TRAIN), data.pictures(TRAIN)
    picture = show(members["example_id"][7].as_py())
    assert picture is not None
    assert (picture == data.images[members["row"][7].as_py()]).all()
    assert show("nobody") is None
