"""A model from its job to its artifact, without Ray."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from memlib.data.datasets import open_source
from memlib.data.shards import write_shard
from memlib.data.splits import split_examples
from memlib.specs import DataSpec, ModelSpec, ScenesSource, SplitSpec, TrainingSpec
from memlib.store import Ref, Store
from memlib.tables import SPLITS, TRAINING, write_table
from memlib.training.fit import TrainingJob, load_trained, train_into_store
from memlib.training.loop import Worker

SHARD, SPLIT = Ref("decode", "d"), Ref("split", "s")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "store"))
    source = ScenesSource(num_examples=120, size=16, digit_size=8)
    with store.write(SHARD) as attempt:
        index = write_shard(open_source(source), DataSpec(source=source, image_size=16), attempt.folder)
    with store.write(SPLIT) as attempt:
        write_table(split_examples(index, SplitSpec(train_per_class=3)), SPLITS, attempt.path("splits.parquet"))
    return store


def make_job(**changes: Any) -> TrainingJob:
    parts = {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 10, "checkpoint_epochs": (0, 2)}
    options = {key: changes.pop(key) for key in ("roles", "parent", "splits") if key in changes}
    return TrainingJob(
        name="target", model=ModelSpec(width=8, projector=(16,), input_size=16), training=TrainingSpec(**(parts | changes)),
        num_classes=10, shard=SHARD, **({"splits": SPLIT, "roles": ("target", "shared")} | options),
    )  # fmt: skip


class Killed(BaseException):
    pass


def train(store: Store, job: TrainingJob, *, killed_after: int | None = None) -> Ref:
    def progress(news: dict[str, Any]) -> None:
        if news["epoch"] == killed_after:
            raise Killed

    return train_into_store(store, job, worker=Worker(), resume_seconds=0, progress=progress)


def weights(store: Store, ref: Ref, epoch: int) -> dict[str, torch.Tensor]:
    return load_trained(store, ref, epoch=epoch)[0].state_dict()


def test_an_artifact_holds_chosen_epochs_history_and_spec(store: Store) -> None:
    ref = train(store, make_job())
    files = store.manifest(ref)["files"]
    assert sorted(files) == [
        "epoch-00000.safetensors", "epoch-00002.safetensors", "epoch-00004.safetensors", "history.parquet", "model.json",
    ]  # fmt: skip
    history = pq.read_table(store.local_path(ref, "history.parquet"))
    assert history.schema.names == TRAINING.arrow.names
    assert set(history["epoch"].to_pylist()) == {1, 2, 3, 4}
    assert set(history["term"].to_pylist()) == {"loss", "training_accuracy"}
    initial, built = weights(store, ref, 0), make_job().build().state_dict()
    assert all(torch.equal(initial[name], built[name]) for name in built)
    assert not any(torch.equal(weights(store, ref, 2)[n], weights(store, ref, 4)[n]) for n in ("backbone.stem.0.weight",))
    assert train(store, make_job()) == ref


@pytest.mark.parametrize("killed_after", [1, 3])
def test_a_killed_training_goes_on_and_ends_the_same(store: Store, tmp_path: Path, killed_after: int) -> None:
    job = make_job()
    with pytest.raises(Killed):
        train(store, job, killed_after=killed_after)
    ref = train(store, job)
    facts = store.manifest(ref)["facts"]
    assert facts["resumed_from_step"] == killed_after * 3
    resumed = {epoch: weights(store, ref, epoch) for epoch in (0, 2, 4)}
    history = pq.read_table(store.local_path(ref, "history.parquet"))
    store.discard(ref)
    assert train(store, job) == ref
    for epoch, found in resumed.items():
        assert all(torch.equal(found[name], tensor) for name, tensor in weights(store, ref, epoch).items())
    assert history.equals(pq.read_table(store.local_path(ref, "history.parquet")))
    assert not store.load_resume(ref.key, tmp_path)


def test_a_damaged_resume_state_is_passed_over(store: Store) -> None:
    job = make_job()
    with pytest.raises(Killed):
        train(store, job, killed_after=3)
    newest = max(Path(store.uri).glob("resume/*/*"))
    (newest / "state.pt").write_bytes(b"nonsense")
    ref = train(store, job)
    assert 0 < store.manifest(ref)["facts"]["resumed_from_step"] < 9


def test_a_training_starts_from_its_parent(store: Store) -> None:
    parent = train(store, make_job())
    child = make_job(parent=parent, seed=7, checkpoint_epochs=(0,))
    ref = train(store, child)
    assert ref.key != make_job(seed=7, checkpoint_epochs=(0,)).ref(store).key
    start, end = weights(store, ref, 0), weights(store, parent, 4)
    assert all(torch.equal(start[name], end[name]) for name in end)


def test_the_key_names_the_examples_and_what_decides_the_result(store: Store) -> None:
    ref = make_job().ref(store)
    others = [make_job(roles=("reference", "shared")), make_job(epochs=5), make_job(seed=1), make_job(batch_size=5)]
    assert len({ref, *(job.ref(store) for job in others)}) == 5
    again = Ref("split", "another")
    with store.write(again) as attempt:
        table = pq.read_table(store.local_path(SPLIT, "splits.parquet"))
        write_table(table, SPLITS, attempt.path("splits.parquet"))
    assert make_job(splits=again).ref(store) == ref


def test_the_manifest_says_what_was_run(store: Store) -> None:
    manifest = store.manifest(train(store, make_job()))
    assert manifest["facts"]["world_size"] == 1
    assert manifest["facts"]["num_examples"] == 30
    assert json.dumps(manifest["spec"])
