"""Self-influence of models that memlib trains, and of external models; the unique-feature audit uses it, too."""

from collections.abc import Sequence

from memlib.audits.self_influence.recipe import CheckpointSpec
from memlib.audits.self_influence.scores import choose_checkpoints
from memlib.audits.self_influence.stages import Score
from memlib.data.splits import TRAIN
from memlib.data.stages import TrainingData
from memlib.observe.stages import CheckpointNorms
from memlib.pipeline.stage import Artifact, Runner
from memlib.pipeline.tables import Tables
from memlib.specs import ClassifierSpec, ExternalClassifierSpec, InfluenceSpec, SupervisedSpec, TrainingSpec, changed
from memlib.specs.subject import TrainIt
from memlib.training.fit import Canary, Train, TrainedModel


def influence_of(
    runner: Runner,
    data: TrainingData,
    subject: TrainIt[ClassifierSpec],
    influence: InfluenceSpec,
    canaries: Sequence[Canary | None] = (None,),
) -> list[tuple[Artifact[Tables], Artifact[TrainedModel]]]:
    """Train one model per training set, saving every epoch, and compute the self-influence of its training examples.

    Args:
        subject: architecture and training of the models.
        influence: settings of self-influence.
        canaries: the example with the unique feature in each training set; None if there is none.

    Returns:
        the scores and the model, for each training set.
    """
    epochs = influence.epochs or subject.training.epochs
    # no early stopping: it would save the best epoch's weights in place of the last epoch's
    every = changed(subject.training, {"epochs": epochs, "checkpoint_epochs": list(range(1, epochs + 1)), "patience": None})
    stages = [
        Train(f"self-influence {i}", subject.model, every, data.num_classes, data.shard, data.splits, (TRAIN,), canary=canary)
        for i, canary in enumerate(canaries)
    ]
    models = runner.run_all(stages)
    runs = [_checkpoints(data, model, canary, influence, every) for model, canary in zip(models, canaries, strict=True)]
    norms = iter(runner.run_all([stage for checkpoints, _ in runs for stage in checkpoints]))
    scores = [
        runner.run(Score(data, [next(norms) for _ in checkpoints], rates, [stage.epoch for stage in checkpoints]))
        for checkpoints, rates in runs
    ]
    return list(zip(scores, models, strict=True))


def _checkpoints(
    data: TrainingData,
    trained: Artifact[TrainedModel],
    canary: Canary | None,
    influence: InfluenceSpec,
    training: TrainingSpec,
) -> tuple[list[CheckpointNorms], list[float]]:
    """Return the stages for the checkpoints that enter the sum, and their learning rates."""
    history = trained.content.history.to_pylist()
    losses = {row["epoch"]: row["value"] for row in history if row["term"] == "loss"}
    rates = {row["epoch"]: row["learning_rate"] for row in history}
    chosen = choose_checkpoints([losses[epoch] for epoch in sorted(losses)], influence)
    assert isinstance(training.objective, SupervisedSpec)
    smoothing = training.objective.label_smoothing
    stages = [CheckpointNorms(data, trained, epoch, None, influence, canary, smoothing) for epoch in chosen]
    return stages, [rates[epoch] for epoch in chosen]


def influence_of_external(
    runner: Runner,
    data: TrainingData,
    trained: ExternalClassifierSpec,
    checkpoints: Sequence[CheckpointSpec],
    influence: InfluenceSpec,
) -> Artifact[Tables]:
    """Compute self-influence from the checkpoints of an external model, numbered from 1."""
    stages = [
        CheckpointNorms(data, trained, number, checkpoint.weights, influence, None)
        for number, checkpoint in enumerate(checkpoints, start=1)
    ]
    rates = [checkpoint.learning_rate for checkpoint in checkpoints]
    return runner.run(Score(data, runner.run_all(stages), rates, list(range(1, len(stages) + 1))))
