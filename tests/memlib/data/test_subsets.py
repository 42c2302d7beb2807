"""Training sets that coins draw from the pool of a split."""

from pathlib import Path

import numpy as np
import pytest
import scipy

from memlib.data.splits import TRAIN, column
from memlib.data.stages import HoldOut, TrainingData, decode
from memlib.data.subsets import TARGET, Subsets, toss
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


def test_a_models_coins_do_not_depend_on_the_number_of_models() -> None:
    groups = np.arange(50)
    many, few = (toss(groups, range(count), share=0.5, seed=3) for count in (256, 64))
    assert (many[:64] == few).all()
    assert (toss(groups, [TARGET], share=0.5, seed=3) != toss(groups, [0], share=0.5, seed=3)).any()


def test_coins_never_separate_a_group() -> None:
    groups = np.array([5, 5, 5, 9, 9, 2])
    coins = toss(groups, range(40), share=0.5, seed=0)
    for members in ([0, 1, 2], [3, 4]):
        assert (coins[:, members] == coins[:, members[:1]]).all()
    assert 0 < coins[:, 0].mean() < 1


def test_the_share_of_inclusion_applies_to_groups() -> None:
    coins = toss(np.arange(400), range(100), share=0.7, seed=1)
    assert scipy.stats.binomtest(int(coins.sum()), coins.size, 0.7).pvalue > 1e-4


def test_coins_of_models_and_of_examples_are_independent() -> None:
    coins = toss(np.arange(300), range(300), share=0.5, seed=2).astype(float) - 0.5
    for table in (coins, coins.T):
        correlations = np.corrcoef(table)[np.triu_indices(300, 1)]
        assert abs(correlations.mean()) < 0.002
        assert abs(correlations.std() - 1 / np.sqrt(300)) < 0.003  # as of independent coins
