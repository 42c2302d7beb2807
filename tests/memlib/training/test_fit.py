"""A model from its job to its artifact, without Ray."""

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from memlib.data.canaries.features import build_feature
from memlib.data.datasets import open_source
from memlib.data.images.shards import read_index, write_shard
from memlib.data.splits import TRAIN, hold_out, split_examples
from memlib.data.stages import Decode, HoldOut, Split
from memlib.errors import UserError
from memlib.objectives import build_objective
from memlib.pipeline.stage import Artifact
from memlib.specs import (
    CanarySpec,
    ClassifierSpec,
    DataSpec,
    HoldOutSpec,
    ModelSpec,
    ScenesSource,
    SplitSpec,
    TrainingSpec,
)
from memlib.store import Ref, Store
from memlib.tables import SPLITS, TRAINING, write_table
from memlib.training.fit import Canary, Train, build_model, check_jobs
from memlib.training.loop import Training, TrainingSet, Worker

SHARD, SPLIT = Ref("decode", "d"), Ref("split", "s")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    source = ScenesSource(num_examples=300, size=16, digit_size=8)  # enough of every class for any seed
    with store.artifacts.write(SHARD) as attempt:
        index = write_shard(open_source(source), DataSpec(source=source, image_size=16), attempt.folder).index
    with store.artifacts.write(SPLIT) as attempt:
        write_table(split_examples(index, SplitSpec(train_per_class=3)), SPLITS, attempt.path("splits.parquet"))
    return store


def make_job(store: Store, **changes: Any) -> Train:
    parts = {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 10, "checkpoint_epochs": (0, 2)}
    options = {key: changes.pop(key) for key in ("roles", "parent", "splits") if key in changes}
    return Train(
        name="target", model=ModelSpec(width=8, projector=(16,), input_size=16), training=TrainingSpec(**(parts | changes)),
        num_classes=10, shard=Artifact(store, SHARD, Decode),
        **({"splits": Artifact(store, SPLIT, Split), "roles": ("target", "shared")} | options),
    )  # fmt: skip


class Killed(BaseException):
    pass


def train(store: Store, job: Train, *, killed_after: int | None = None) -> Ref:
    def progress(news: dict[str, Any]) -> None:
        if news["epoch"] == killed_after:
            raise Killed

    return job.into_store(job.record({}), threads=1, worker=Worker(), resume_seconds=0, progress=progress)


def weights(store: Store, ref: Ref, epoch: int) -> dict[str, torch.Tensor]:
    return Artifact(store, ref, Train).content.load(epoch=epoch)[0].state_dict()


def initial_model(store: Store) -> torch.nn.Module:
    job = make_job(store)
    return build_model(job.describe(np.zeros((1, 16, 16, 3), np.uint8)), seed=job.training.seed)


def test_an_artifact_holds_chosen_epochs_history_and_spec(store: Store) -> None:
    ref = train(store, make_job(store))
    files = store.artifacts.manifest(ref).files
    assert sorted(files) == [
        "epoch-00000.safetensors", "epoch-00002.safetensors", "epoch-00004.safetensors", "history.parquet", "model.json",
    ]  # fmt: skip
    history = pq.read_table(store.artifacts.local_path(ref, "history.parquet"))
    assert history.schema.names == TRAINING.arrow.names
    assert set(history["epoch"].to_pylist()) == {1, 2, 3, 4}
    assert set(history["term"].to_pylist()) == {"loss", "training_accuracy"}
    initial, built = weights(store, ref, 0), initial_model(store).state_dict()
    assert all(torch.equal(initial[name], built[name]) for name in built)
    assert not any(torch.equal(weights(store, ref, 2)[n], weights(store, ref, 4)[n]) for n in ("backbone.stem.0.weight",))
    assert train(store, make_job(store)) == ref


def test_weights_are_kept_within_epochs(store: Store) -> None:
    job = make_job(store)
    job = replace(job, training=job.training.model_copy(update={"checkpoint_steps": (1, 4)}))
    ref = train(store, job)
    assert {"step-0000001.safetensors", "step-0000004.safetensors"} <= set(store.artifacts.manifest(ref).files)
    assert store.artifacts.manifest(ref).facts["steps_per_epoch"] == 3
    training = Training(
        initial_model(store), build_objective(job.training.objective), job.training_set(), job.training, input_size=16
    )
    training.run(stop_after=4)
    found = Artifact(store, ref, Train).content.load(epoch=1, step=4)[0].state_dict()
    assert all(torch.equal(found[name], value) for name, value in training.model.state_dict().items())
    late = replace(job, training=job.training.model_copy(update={"checkpoint_steps": (99,)}))
    with pytest.raises(UserError, match="beyond the 12 steps"):
        train(store, late)


@pytest.mark.parametrize("killed_after", [1, 3])
def test_a_killed_training_resumes_to_the_same_weights(store: Store, tmp_path: Path, killed_after: int) -> None:
    job = make_job(store)
    with pytest.raises(Killed):
        train(store, job, killed_after=killed_after)
    ref = train(store, job)
    facts = store.artifacts.manifest(ref).facts
    assert facts["resumed_from_step"] == killed_after * 3
    resumed = {epoch: weights(store, ref, epoch) for epoch in (0, 2, 4)}
    history = pq.read_table(store.artifacts.local_path(ref, "history.parquet"))
    store.artifacts.discard(ref)
    assert train(store, job) == ref
    for epoch, found in resumed.items():
        assert all(torch.equal(found[name], tensor) for name, tensor in weights(store, ref, epoch).items())
    assert history.equals(pq.read_table(store.artifacts.local_path(ref, "history.parquet")))
    assert not store.resume.load(ref.key, tmp_path)


def test_a_damaged_resume_state_is_skipped(store: Store) -> None:
    job = make_job(store)
    with pytest.raises(Killed):
        train(store, job, killed_after=3)
    newest = max(Path(store.uri).glob("resume/*/*"))
    (newest / "state.pt").write_bytes(b"nonsense")
    ref = train(store, job)
    assert 0 < store.artifacts.manifest(ref).facts["resumed_from_step"] < 9


def test_a_resume_state_that_holds_objects_is_dropped_and_training_starts_afresh(store: Store, tmp_path: Path) -> None:
    job = make_job(store)
    ref = job.identity.ref
    planted = tmp_path / "planted"
    planted.mkdir()
    (planted / "state.pt").write_bytes(pickle.dumps(Path("an object, not tensors")))
    store.resume.save(ref.key, 7, planted)  # whole as the store sees it, yet not what training wrote
    assert train(store, job) == ref
    assert store.artifacts.manifest(ref).facts["resumed_from_step"] is None


def test_fine_tuning_starts_from_the_frozen_backbone_of_its_parent(store: Store) -> None:
    parent = train(store, make_job(store))
    child = make_job(store, parent=Artifact(store, parent, Train), seed=7, checkpoint_epochs=(0,))
    ref = train(store, child)
    assert ref.key != make_job(store, seed=7, checkpoint_epochs=(0,)).identity.ref.key
    start, end = weights(store, ref, 0), weights(store, parent, 4)
    taken = [name for name in end if name.startswith("backbone.")]
    assert taken
    assert all(torch.equal(start[name], end[name]) for name in taken)
    assert any(not torch.equal(start[name], end[name]) for name in end if name not in taken)  # the head is new


def test_a_head_alone_is_trained_beside_a_backbone_that_stays(store: Store) -> None:
    parent = Artifact(store, train(store, make_job(store)), Train)
    ref = train(store, replace(make_job(store, parent=parent, seed=7, checkpoint_epochs=(0,)), head_alone=True))
    assert ref.key != make_job(store, parent=parent, seed=7, checkpoint_epochs=(0,)).identity.ref.key
    start, end = weights(store, ref, 0), weights(store, ref, 4)
    for name in start:  # running means included
        assert torch.equal(start[name], end[name]) == name.startswith("backbone."), name


def test_training_key_covers_examples_and_settings_but_not_the_split_artifact(store: Store) -> None:
    ref = make_job(store).identity.ref
    others = [
        make_job(store, roles=("reference", "shared")),
        make_job(store, epochs=5),
        make_job(store, seed=1),
        make_job(store, batch_size=5),
    ]
    assert len({ref, *(job.identity.ref for job in others)}) == 5
    again = Ref("split", "another")
    with store.artifacts.write(again) as attempt:
        table = pq.read_table(store.artifacts.local_path(SPLIT, "splits.parquet"))
        write_table(table, SPLITS, attempt.path("splits.parquet"))
    assert make_job(store, splits=Artifact(store, again, Split)).identity.ref == ref


def test_manifest_of_a_training_records_workers_threads_and_examples(store: Store) -> None:
    manifest = store.artifacts.manifest(train(store, make_job(store)))
    assert manifest.facts["world_size"] == 1
    assert manifest.facts["threads"] == 1
    assert manifest.facts["num_examples"] == 30
    assert json.dumps(manifest.spec)


# -- classifiers, canaries and early stopping -----------------------------------------------------------

HELD = Ref("hold_out", "h")


def canary_job(store: Store, *, with_feature: bool = True, **changes: Any) -> Train:
    if store.artifacts.lookup("hold_out", "h") is None:
        index = read_index(store.artifacts.local_path(SHARD, "index.parquet"))
        with store.artifacts.write(HELD) as attempt:
            write_table(hold_out(index, HoldOutSpec(validation_per_class=2)), SPLITS, attempt.path("splits.parquet"))
    spec = CanarySpec.model_validate({"feature": {"kind": "glyph"}})
    shard, held = Artifact(store, SHARD, Decode), Artifact(store, HELD, HoldOut)
    row = Train("", MLP, TRAINING_SPEC, 10, shard, held, (TRAIN,)).seen.rows[4].item()
    canary = Canary(build_feature(spec.feature, (16, 16, 3)), spec, row, with_feature)
    return Train(
        name="net", model=MLP, training=TRAINING_SPEC.model_copy(update=changes), num_classes=10, shard=shard, splits=held,
        roles=(TRAIN,), canary=canary,
    )  # fmt: skip


MLP = ClassifierSpec(architecture="mlp", widths=(8,))
TRAINING_SPEC = TrainingSpec.model_validate(
    {
        "objective": {"kind": "supervised"}, "epochs": 40, "batch_size": 20, "augment": None, "patience": 2,
        "optimizer": {"learning_rate": 0.05, "warmup_epochs": 0, "schedule": "constant"},
    }
)  # fmt: skip


def test_patience_keeps_the_best_epoch_and_survives_a_kill(store: Store) -> None:
    ref = train(store, canary_job(store))
    facts = store.artifacts.manifest(ref).facts
    rows = pq.read_table(store.artifacts.local_path(ref, "history.parquet")).to_pylist()
    losses = [row["value"] for row in rows if row["term"] == "validation_loss"]
    assert facts["best_epoch"] == int(np.argmin(losses)) + 1
    assert len(losses) == facts["best_epoch"] + 2 < 40
    assert sorted(name for name in store.artifacts.manifest(ref).files if name.startswith("epoch")) == [
        "epoch-00040.safetensors"
    ]
    whole = weights(store, ref, 40)
    store.artifacts.discard(ref)
    with pytest.raises(Killed):
        train(store, canary_job(store), killed_after=2)
    again = train(store, canary_job(store))
    assert store.artifacts.manifest(again).facts["resumed_from_step"] is not None
    for name, tensor in weights(store, again, 40).items():
        assert torch.equal(tensor, whole[name]), name


def test_only_the_canary_differs_between_a_net_and_its_control(store: Store) -> None:
    net, control = canary_job(store), canary_job(store, with_feature=False)
    assert net.identity.ref != control.identity.ref
    a, b = net.training_set(), control.training_set()
    everything = np.arange(len(a))
    changed = (a.read(everything) != b.read(everything)).any(axis=(1, 2, 3))
    assert changed.sum() == 1
    np.testing.assert_array_equal(a.labels, b.labels)


def test_a_control_without_replacement_has_one_digest_for_all_canaries(store: Store) -> None:
    control = canary_job(store, with_feature=False)
    assert control.canary is not None
    other = Canary(control.canary.feature, control.canary.spec, control.canary.row + 1, False)
    assert other.digest == control.canary.digest
    assert Canary(control.canary.feature, control.canary.spec, control.canary.row, True).digest != other.digest


def test_patience_without_validation_examples_is_refused(store: Store) -> None:
    with pytest.raises(UserError, match="needs validation examples"):
        train(store, make_job(store, patience=3))


def test_check_jobs_refuses_untrainable_jobs_after_looking_at_one_of_each_kind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, small = ScenesSource(num_examples=120, size=16, digit_size=8), Ref("decode", "small")
    with store.artifacts.write(small) as attempt:
        write_shard(open_source(source), DataSpec(source=source, image_size=8), attempt.folder)
    fine = [replace(make_job(store, seed=seed), name=f"shadow {seed}") for seed in range(5)]
    looked, sets = [], Train.training_set

    def looking(self: Train) -> TrainingSet:
        looked.append(self.name)
        return sets(self)

    monkeypatch.setattr(Train, "training_set", looking)
    check_jobs(fine, Worker())
    assert looked == ["shadow 0"]  # the others are alike
    for wrong, said in (
        (make_job(store, batch_size=1000), r"target: training\.batch_size 1000 exceeds the"),
        (
            replace(make_job(store), model=ClassifierSpec(architecture="cnn_2"), shard=Artifact(store, small, Decode)),
            "cnn_2 needs larger images than 8 x 8",
        ),
        (make_job(store, batch_size=9), "cannot be divided evenly among 2 workers"),
    ):
        with pytest.raises(UserError, match=said):
            check_jobs([*fine, wrong], Worker(world_size=2))
