"""Stages that train small models together: the result of each is that of its training by itself."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from memlib.audits.forgetting.recipe import Recipe
from memlib.audits.forgetting.stages import DrawMixes, DrawSets
from memlib.data.stages import TrainingData, decode
from memlib.data.subsets import RoleSets
from memlib.pipeline.stage import Artifact
from memlib.running.runners import PlainRunner
from memlib.specs.resources import RunOptions
from memlib.store import Store
from memlib.training import stacked
from memlib.training.fit import Train
from memlib.training.small_nets import Nets, TrainSubsets

HALF = {"calibration": 1.0, "query": 0.5}
MIXES = {f"half {number}": (HALF, number) for number in range(4)} | {"query 0": ({"query": 1.0}, 0)}
SEEDS = {name: 100 + number for number, name in enumerate(MIXES)}


def recipe(**training: Any) -> Recipe:
    optimizer = {"learning_rate": 1e-3, "weight_decay": 0.01, "warmup_epochs": 1, "schedule": "cosine"}
    base = {"objective": {"kind": "supervised"}, "epochs": 3, "batch_size": 16, "augment": None, "optimizer": optimizer}
    return Recipe.model_validate(
        {
            "data": {"source": {"kind": "digits"}, "image_size": 8, "channels": 1},
            "sets": {"query": {"per_class": 9}, "calibration": {"per_class": 6}},
            "model": {"architecture": "mlp", "widths": [16]},
            "training": base | training,
            "targets": {"half": {"mix": HALF}},
        }
    )


@pytest.fixture
def runner(tmp_path: Path) -> PlainRunner:
    return PlainRunner(Store(str(tmp_path / "store")))


@pytest.fixture
def data(runner: PlainRunner) -> TrainingData:
    """Digits whose roles are the training sets of models: four of the same composition, and one of another."""
    shard = decode(runner, recipe().data)
    sets = TrainingData(shard, runner.run(DrawSets(recipe(), shard)))
    return TrainingData(shard, runner.run(DrawMixes(sets, MIXES)))


def stack(data: TrainingData, roles: Sequence[str], made: Recipe | None = None) -> TrainSubsets:
    spec = made or recipe()
    return TrainSubsets(RoleSets(data, tuple(roles), 10), spec.model, spec.training, tuple(SEEDS[role] for role in roles))


def single(data: TrainingData, role: str, made: Recipe) -> Train:
    training = made.training.model_copy(update={"seed": SEEDS[role]})
    return Train(role, made.model, training, 10, data.shard, data.splits, (role,))


def state(nets: Artifact[Nets], place: int) -> Mapping[str, Tensor]:
    return nets.content.net(place).state_dict()


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """Relative difference of all weights; where a gradient is near 0, Adam turns rounding into whole steps of single weights."""
    mine, theirs = (torch.cat([one[name].double().flatten() for name in b]) for one in (a, b))
    return float((mine - theirs).norm() / theirs.norm())


SHIFTED = {"crop_scale": (1, 1), "crop_ratio": (1, 1), "brightness": 0, "contrast": 0.2, "shift": 1, "blur": (0, 0)}


@pytest.mark.parametrize("changes", [{}, {"augment": SHIFTED}, {"batch_size": None}])
def test_small_models_of_a_mix_equal_those_that_train_makes(
    runner: PlainRunner, data: TrainingData, changes: dict[str, Any]
) -> None:
    made, roles = recipe(**changes), ("half 0", "half 1", "half 3")
    nets = runner.run(stack(data, roles, made))
    for place, role in enumerate(roles):
        model, _ = runner.run(single(data, role, made)).content.load(epoch=3)
        assert difference(state(nets, place), model.state_dict()) < 0.01
    assert difference(state(nets, 0), state(nets, 1)) > 0.1  # each has its own seed and examples


def test_a_small_model_does_not_depend_on_the_others_of_its_stack(runner: PlainRunner, data: TrainingData) -> None:
    together = runner.run(stack(data, ("half 0", "half 1", "half 2", "half 3")))
    other = runner.run(stack(data, ("half 3", "half 1")))
    alone = runner.run(stack(data, ("half 3",)))
    for nets, place in ((other, 0), (alone, 0)):
        assert difference(state(nets, place), state(together, 3)) < 0.01
    assert difference(state(other, 1), state(together, 1)) < 0.01


def test_training_sets_of_unequal_size_cannot_form_a_stack(runner: PlainRunner, data: TrainingData) -> None:
    with pytest.raises(AssertionError, match="unequal size"):
        runner.run(stack(data, ("half 0", "query 0")))


def test_keys_of_small_models_depend_on_their_examples_and_not_on_their_names(
    runner: PlainRunner, data: TrainingData
) -> None:
    sets = TrainingData(data.shard, runner.run(DrawSets(recipe(), data.shard)))
    renamed = runner.run(DrawMixes(sets, {"other 7": MIXES["half 0"], "half 0": MIXES["half 1"]}))
    again = TrainingData(data.shard, renamed)
    stages = [
        TrainSubsets(RoleSets(given, (role,), 10), recipe().model, recipe().training, (100,))
        for given, role in ((data, "half 0"), (again, "other 7"), (again, "half 0"))
    ]
    keys = [stage.identity.ref.key for stage in stages]
    assert keys[0] == keys[1] != keys[2]
    assert [stage.label for stage in stages] == ["half 0", "other 7", "half 0"]
    assert stack(data, ("half 0", "half 1", "half 2")).label == "half 0 to 2"


def test_a_stack_that_does_not_fit_is_halved_and_recorded(
    runner: PlainRunner, data: TrainingData, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A device with memory for two of four nets gives the results of any other."""
    sizes, train = [], stacked.train_nets

    def small_device(*arguments: Any, stack_size: int, **settings: Any) -> Any:
        sizes.append(stack_size)
        if stack_size > 2:
            raise torch.OutOfMemoryError
        return train(*arguments, stack_size=stack_size, **settings)

    roles = ("half 0", "half 1", "half 2", "half 3")
    whole = runner.run(stack(data, roles))
    monkeypatch.setattr(stacked, "train_nets", small_device)
    monkeypatch.setattr(stacked, "choose_stack_size", lambda *arguments, **settings: 4)
    other = PlainRunner(runner.store, options=RunOptions(force=("train_subsets",)))
    assert (whole.facts["stack_size"], whole.facts["halved"]) == (4, 0)
    before = [state(whole, place) for place in range(4)]
    halved = other.run(stack(data, roles))
    assert sizes == [4, 2]
    assert (halved.facts["stack_size"], halved.facts["halved"]) == (2, 1)
    assert all(difference(state(halved, place), before[place]) < 1e-3 for place in range(4))

    def no_room(*arguments: Any, **settings: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(stacked, "train_nets", no_room)
    with pytest.raises(torch.OutOfMemoryError):
        PlainRunner(runner.store, options=RunOptions(force=("train_subsets",))).run(stack(data, roles))
