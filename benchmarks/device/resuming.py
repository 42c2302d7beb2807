"""A training that is killed within an epoch, and resumes to the weights of one that is not."""

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.device.checks import SAME_CHANGES, Check, Clock, Found, difference
from benchmarks.device.placement import weights_of
from memlib.data.stages import Split, decode
from memlib.pipeline.arithmetic import be_exact
from memlib.pipeline.stage import Artifact
from memlib.running.runners import PlainRunner
from memlib.specs import DataSpec, ModelSpec, ScenesSource, SplitSpec, TrainingSpec
from memlib.store import Ref, Store
from memlib.training.fit import Train
from memlib.training.loop import Worker
from tasks.remote import saved_step

EPOCHS = 4
LOOK_SECONDS = 0.002


def job_of(store: Store) -> Train:
    """Return the model to train, whose data are computed in the store first."""
    runner = PlainRunner(store)
    source = ScenesSource(num_examples=600, size=16, digit_size=8)
    shard = decode(runner, DataSpec(source=source, image_size=16))
    splits = runner.run(Split(SplitSpec(train_per_class=20), shard))
    training = TrainingSpec.model_validate({
        "objective": {"kind": "supervised"}, "epochs": EPOCHS, "batch_size": 10, "checkpoint_epochs": (0,),
        "optimizer": {"name": "sgd", "learning_rate": 1e-4, "momentum": 0.5, "weight_decay": 0, "warmup_epochs": 0},
    })  # fmt: skip
    model = ModelSpec(width=8, projector=(16,), input_size=16)
    return Train(
        name="target", model=model, training=training, num_classes=10, shard=shard, splits=splits, roles=("target", "shared")
    )


def train(store: str, device: str) -> None:
    """Train the model and save the state after every step."""
    be_exact()
    torch.set_num_threads(1)
    job = job_of(Store(store))
    job.into_store(job.record({}), worker=Worker(device=torch.device(device)), threads=1, resume_seconds=0)


def kill_and_resume(device: torch.device, folder: Path, clock: Clock) -> Found:
    """Kill a training in its second epoch, resume it, and compare it with one that nothing interrupts."""
    killed, whole = Store(str(folder / "killed")), Store(str(folder / "whole"))
    job = job_of(killed)
    steps = len(job.seen.rows) // 10
    process = multiprocessing.get_context("spawn").Process(target=train, args=(killed.uri, device.type))
    process.start()
    while process.is_alive() and clock.left and saved_step(job) < steps * 3 // 2:
        time.sleep(LOOK_SECONDS)
    process.kill()
    process.join()
    train(killed.uri, device.type)
    train(whole.uri, device.type)
    changes, resumed = [], None
    for store in (whole, killed):
        artifact = Artifact(store, Ref("train", job.identity.ref.key), Train)
        first, last = (weights_of(artifact.content.load(epoch=epoch)[0]) for epoch in (0, EPOCHS))
        changes.append(last - first)
        resumed = artifact.facts["resumed_from_step"]
    apart, most = difference(*changes), 0.0 if device.type == "cpu" else SAME_CHANGES
    within = resumed is not None and resumed % steps != 0
    text = (
        f"killed with -9, resumed from step {resumed} of {steps * EPOCHS} ({steps} an epoch): weights differ by {apart:.1e} "
        f"of their change (at most {most:g})"
    )
    return Found(within and artifact.facts["device"] == device.type and apart <= most, text, {"weights": apart})


def checks(device: torch.device, clock: Clock) -> Iterator[Check]:
    """Yield the check of a killed training."""
    with tempfile.TemporaryDirectory() as folder:
        yield Check("killed within an epoch", lambda: kill_and_resume(device, Path(folder), clock))
