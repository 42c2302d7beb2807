"""The arrangement of a forgetting audit: small models of one composition are trained together, others by themselves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import memlib
from memlib.audits import AUDITS
from memlib.audits.arrangement import _loaded, stage_names
from memlib.audits.forgetting.stages import DrawMixes, DrawSets
from memlib.data.splits import column
from memlib.data.stages import Decode, TrainingData
from memlib.pipeline.stage import Artifact
from memlib.specs.data import POOL
from memlib.stats.likelihood import log_odds
from memlib.store import Ref
from memlib.training.augment import prepare
from memlib.training.small_nets import TrainSubsets

MODELS = 2 + 2 + 3 + 3 + 2  # query, calibration, null, retained, target
RECIPE: dict[str, Any] = {
    "audit": "forgetting",
    "data": {"source": {"kind": "digits"}, "image_size": 8, "channels": 1},
    "sets": {
        "query": {"per_class": 6}, "known": {"per_class": 6}, "withheld": {"per_class": 6}, "calibration": {"per_class": None},
    },
    "model": {"architecture": "mlp", "widths": [8]},
    "training": {
        "objective": {"kind": "supervised"}, "epochs": 2, "batch_size": 20, "augment": None,
        "optimizer": {"learning_rate": 0.005, "weight_decay": 0, "warmup_epochs": 0, "schedule": "constant"},
    },
    "seeds": 2,
    "targets": {"half": {"mix": {"calibration": 0.37, "known": 1, "query": 0.5}}},
    "verdict": {"models": 3, "retained_mix": {"calibration": 0.37, "query": 1}},
    "score": {"replicates": 100, "resamples": 50, "permutations": 999},
    "report": {"gallery": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[memlib.Run]:
    """A finished audit whose small models are trained two at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_loaded("forgetting"), "CHUNK", 2)
        yield memlib.run(RECIPE, store=str(tmp_path_factory.mktemp("forgetting") / "store"), quiet=True)


def by_stage(refs: list[str]) -> dict[str, int]:
    stages = [ref.rpartition("/")[0] for ref in refs]
    return {stage: stages.count(stage) for stage in stages}


def test_small_models_of_one_composition_form_chunks_of_one_size(run: memlib.Run) -> None:
    names = [name for name, ref in run.record.artifacts.items() if ref.startswith("train_subsets/")]
    assert names == [
        "query 0 to 1", "calibration 0 to 1", "null 0 to 1", "null 2", "retained 0 to 1", "retained 2", "target half 0 to 1",
    ]  # fmt: skip
    assert by_stage(run.record.computed)["train_subsets"] == by_stage(run.record.computed)["outputs"] == 7
    assert "train" not in by_stage(run.record.computed)
    mixes = Artifact(run.store, Ref.parse(run.record.artifacts["mixes"]), DrawMixes)
    roles = mixes.content["role"].to_pylist()
    sizes = {role: roles.count(role) for role in roles}
    assert len(sizes) == MODELS
    assert sizes["null 0"] == sizes["null 1"] == sizes["null 2"]  # of classes of unequal size
    assert len({sizes[name] for name in ("query 0", "calibration 0", "null 0", "retained 0", "target half 0")}) == 5


def test_each_small_model_is_scored_on_its_own_outputs(run: memlib.Run) -> None:
    def artifact(name: str, stage: type[Any]) -> Artifact[Any]:
        return Artifact(run.store, Ref.parse(run.record.artifacts[name]), stage)

    data = TrainingData(artifact("shard", Decode), artifact("sets", DrawSets))
    members = data.members(*POOL)
    nets = artifact("target half 0 to 1", TrainSubsets).content
    inputs = prepare(data.images[column(members, "row")], torch.device("cpu"))
    examples = run.tables["examples"]
    for number in range(2):
        with torch.inference_mode():
            expected = log_odds(nets.net(number)(inputs).numpy(), column(members, "label"))
        mine = examples.filter(pc.equal(examples["model"], number))
        assert mine["example_id"].to_pylist() == members["example_id"].to_pylist()
        np.testing.assert_allclose(mine["log_odds"].to_numpy(), expected, atol=1e-3)


def test_another_target_trains_only_the_models_of_this_target(run: memlib.Run) -> None:
    targets = {**RECIPE["targets"], "all": {"mix": {"calibration": 0.37, "known": 1, "query": 1}}}
    more = memlib.run(RECIPE | {"targets": targets}, store=run.store.uri, quiet=True)
    assert by_stage(more.record.computed)["train_subsets"] == 1
    assert "target all 0 to 1" in more.record.artifacts


@pytest.mark.parametrize(
    "changes",
    [
        {"training.optimizer.name": "rmsprop"},
        {"model": {"architecture": "three_block"}, "data.image_size": 28, "training.epochs": 0},
    ],
)
def test_models_that_cannot_be_stacked_are_trained_one_by_one(changes: dict[str, Any], tmp_path: Path) -> None:
    found = memlib.run(RECIPE, store=str(tmp_path / "store"), changes=changes, quiet=True)
    computed = by_stage(found.record.computed)
    assert computed["train"] == computed["outputs"] == MODELS
    assert {"query 0", "query 1", "null 2", "target half 1"} < found.record.artifacts.keys()
    assert "train_subsets" not in computed
    recipe = AUDITS["forgetting"].recipe.model_validate(found.record.recipe)
    assert "train_subsets" not in stage_names(AUDITS["forgetting"], recipe)
