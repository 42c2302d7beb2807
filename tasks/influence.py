"""Self-influence as stages: a trained model's checkpoints, gradient norms at each, their sum."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from memlib.audits import self_influence
from memlib.audits.self_influence import CheckpointSpec
from memlib.data.splits import TRAIN
from memlib.specs import ClassifierSpec, InfluenceSpec, SupervisedSpec, TrainedSpec, TrainingSpec, changed
from memlib.store import Attempt, Ref
from memlib.tables import CURVES, SELF_INFLUENCE_UNITS, SUMMARY, write_table
from memlib.training.fit import HISTORY, Canary, TrainingJob
from tasks import declared
from tasks.jobs import NORMS, CheckpointNorms, TrainingData
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_jobs, run_stage, stage_task
from tasks.training import train_models


@stage_task("gradient norms")
def gradient_norms(context: Context, jobs: Sequence[CheckpointNorms]) -> Any:
    """Squared gradient norms of every training example, an artifact a checkpoint."""
    return run_jobs(context, declared.GRADIENT_NORMS, jobs)


@stage_task("self-influence")
def sum_influence(
    context: Context, data: TrainingData, norms: Sequence[Ref], rates: Sequence[float], epochs: Sequence[int]
) -> Any:
    """TracInCP of every training example: units.parquet, curves.parquet, summary.parquet."""

    def compute(attempt: Attempt) -> None:
        members = data.members(TRAIN)
        found = np.stack([np.load(context.store.local_path(ref, NORMS)) for ref in norms])
        ids, names = members["example_id"].to_pylist(), members["class_name"].to_pylist()
        units = self_influence.score(ids, members["label"].to_numpy(), names, found, rates, epochs)
        write_table(units, SELF_INFLUENCE_UNITS, attempt.path(UNITS_FILE))
        write_table(self_influence.summarize(units), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(self_influence.curves(units), CURVES, attempt.path(CURVES_FILE))

    spec = {"rates": list(rates), "epochs": list(epochs)}
    inputs = {"norms": [ref.key for ref in norms]} | data.inputs(TRAIN)
    return run_stage(context, declared.SELF_INFLUENCE, spec=spec, inputs=inputs, compute=compute)


def influence_of(
    context: Context,
    data: TrainingData,
    model: ClassifierSpec,
    training: TrainingSpec,
    influence: InfluenceSpec,
    canaries: Sequence[Canary | None] = (None,),
) -> list[Ref]:
    """Trains a model for each training set, keeps every epoch, and takes the self-influence of its training examples.

    Args:
        context: the run.
        data: the training examples.
        model, training, influence: how.
        canaries: for each training set who carries a unique feature; None for nobody.
    """
    epochs = influence.epochs or training.epochs
    # the best epoch's weights would take the last epoch's place
    every = changed(training, {"epochs": epochs, "checkpoint_epochs": list(range(1, epochs + 1)), "patience": None})
    jobs = [
        TrainingJob(f"self-influence {i}", model, every, data.num_classes, data.shard, data.splits, (TRAIN,), canary=canary)
        for i, canary in enumerate(canaries)
    ]
    runs = [
        _checkpoints(context, data, trained, canary, influence, every)
        for trained, canary in zip(train_models(context, jobs), canaries, strict=True)
    ]
    norms = iter(gradient_norms(context, [job for checkpoints, _ in runs for job in checkpoints]))
    return [
        sum_influence(context, data, [next(norms) for _ in checkpoints], rates, [job.epoch for job in checkpoints])
        for checkpoints, rates in runs
    ]


def _checkpoints(
    context: Context,
    data: TrainingData,
    trained: Ref,
    canary: Canary | None,
    influence: InfluenceSpec,
    training: TrainingSpec,
) -> tuple[list[CheckpointNorms], list[float]]:
    """The checkpoints of a training that count, and their learning rates."""
    history = pq.read_table(context.store.local_path(trained, HISTORY)).to_pylist()
    losses = {row["epoch"]: row["value"] for row in history if row["term"] == "loss"}
    rates = {row["epoch"]: row["learning_rate"] for row in history}
    chosen = self_influence.choose_checkpoints([losses[epoch] for epoch in sorted(losses)], influence)
    assert isinstance(training.objective, SupervisedSpec)
    smoothing = training.objective.label_smoothing
    jobs = [CheckpointNorms(data, trained, epoch, None, influence, canary, smoothing) for epoch in chosen]
    return jobs, [rates[epoch] for epoch in chosen]


def influence_of_own(
    context: Context,
    data: TrainingData,
    trained: TrainedSpec,
    checkpoints: Sequence[CheckpointSpec],
    influence: InfluenceSpec,
) -> Ref:
    """The same for the checkpoints of a model that was trained elsewhere; they are numbered from 1."""
    jobs = [
        CheckpointNorms(data, trained, number, checkpoint.weights, influence, None)
        for number, checkpoint in enumerate(checkpoints, start=1)
    ]
    rates = [checkpoint.learning_rate for checkpoint in checkpoints]
    found: Ref = sum_influence(context, data, gradient_norms(context, jobs), rates, list(range(1, len(jobs) + 1)))
    return found


def read_influence(context: Context, influence: Ref) -> Mapping[str, float]:
    """Self-influence by example id."""
    units = pq.read_table(context.store.local_path(influence, UNITS_FILE))
    return dict(zip(units["example_id"].to_pylist(), units["self_influence"].to_pylist(), strict=True))
