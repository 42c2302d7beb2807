"""The forgetting audit (Liu and Tsaftaris 2020), from data to report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import pyarrow as pa

from memlib.audits.arrangement import check_flow
from memlib.audits.forgetting.recipe import NULL, RETAINED, TARGET, Recipe
from memlib.audits.forgetting.stages import DrawMixes, DrawSets, Report, Score, Shown
from memlib.audits.last_stages import run_id
from memlib.data.given_sets import CompareSets
from memlib.data.stages import Decode, DecodeBlock, TrainingData, decode
from memlib.data.subsets import RoleSets
from memlib.identity import derive_seed
from memlib.observe.models import Trained
from memlib.observe.stages import ModelOutputs
from memlib.observe.supplied_outputs import SuppliedOutputs, read_outputs
from memlib.pipeline.stage import Artifact, Runner, Stage
from memlib.runs.records import RunRecord
from memlib.specs import ExternalClassifierSpec
from memlib.specs.data import CALIBRATION, POOL, QUERY, WITHHELD
from memlib.training.fit import Train
from memlib.training.small_nets import TrainSubsets

STAGES = (DecodeBlock, Decode, DrawSets, CompareSets, DrawMixes, TrainSubsets, Train, ModelOutputs, Score, Report)
CHUNK = 32  # small models that are trained and stored as one artifact, as many as shadow models


def absent(recipe: Recipe) -> set[type[Any]]:
    """Return the stages that a recipe leaves out."""
    return {Train if _are_small(recipe) else TrainSubsets} | (set() if recipe.is_declared else {CompareSets})


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    shard = decode(runner, recipe.data)
    sets = runner.run(DrawSets(recipe, shard))
    data = TrainingData(shard, sets)
    num_classes = len(set(data.labels.tolist()))
    compared = CompareSets(recipe.data.source, data, (QUERY, WITHHELD), recipe.score.seed)
    checks = runner.run(compared) if recipe.is_declared else None
    given = _given(recipe, data, num_classes)
    models = _models(recipe)
    mixes = runner.run(DrawMixes(data, {model.name: (model.shares, model.seed) for model in models}))
    trained = _train(runner, recipe, data, mixes, models, num_classes)
    shown = _observe(runner, recipe, data, trained, given, num_classes)
    scores = runner.run(Score(recipe, data, mixes, shown, checks))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, data))
    named = {"shard": shard, "sets": sets, "mixes": mixes} | {chunk.name: chunk.artifact for chunk in trained}
    return runner.publish(recipe, scores, report, named)


@dataclass(frozen=True)
class _Model:
    """A model to be trained: its identity, the composition of its training set, and its seed."""

    group: str
    target: str
    number: int
    shares: Mapping[str, float]
    seed: int

    @property
    def name(self) -> str:
        """The model's role in the table of mixes."""
        return f"{self.group} {self.target} {self.number}" if self.target else f"{self.group} {self.number}"


def _models(recipe: Recipe) -> list[_Model]:
    """Return the query, calibration, null and retained models, and the targets that the recipe defines as mixes."""
    groups: list[tuple[str, str, Mapping[str, float], int]] = [
        (QUERY, "", {QUERY: 1.0}, recipe.seeds),
        (CALIBRATION, "", {CALIBRATION: 1.0}, recipe.seeds),
        (NULL, "", recipe.null_shares, recipe.verdict.models),
        (RETAINED, "", recipe.retained_shares, recipe.verdict.models),
    ]
    groups += [(TARGET, name, spec.mix, recipe.seeds) for name, spec in recipe.targets.items() if spec.mix is not None]
    return [
        _Model(group, target, number, shares, derive_seed(recipe.training.seed, group, target, number))
        for group, target, shares, count in groups
        for number in range(count)
    ]


def _given(recipe: Recipe, data: TrainingData, num_classes: int) -> dict[str, SuppliedOutputs | ExternalClassifierSpec]:
    """Return the external targets, given as outputs or as weights; invalid outputs are refused before any training."""
    targets: dict[str, SuppliedOutputs | ExternalClassifierSpec] = {}
    for name, target in recipe.targets.items():
        if target.outputs is not None:
            targets[name] = read_outputs(target.outputs, data.members(*POOL), num_classes)
        elif target.trained is not None:
            targets[name] = target.trained
    return targets


def _are_small(recipe: Recipe) -> bool:
    """Return whether the models can be trained many at a time."""
    return recipe.model.stackable and not recipe.training.unstackable


@dataclass(frozen=True)
class _Chunk:
    """Trained models that form one artifact: small ones of the same composition, or a large one."""

    name: str
    models: Sequence[_Model]
    artifact: Trained


def _train(
    runner: Runner,
    recipe: Recipe,
    data: TrainingData,
    mixes: Artifact[pa.Table],
    models: Sequence[_Model],
    num_classes: int,
) -> list[_Chunk]:
    """Train small models in chunks of one composition, hence with equally many examples, and large models singly."""
    mixed, small = TrainingData(data.shard, mixes), _are_small(recipe)
    chunks = _chunks(models, CHUNK if small else 1)
    stages: list[Stage[Any]] = [(_stack if small else _single)(recipe, mixed, chunk, num_classes) for chunk in chunks]
    return [
        _Chunk(stage.label, chunk, artifact)
        for stage, chunk, artifact in zip(stages, chunks, runner.run_all(stages), strict=True)
    ]


def _chunks(models: Sequence[_Model], size: int) -> list[Sequence[_Model]]:
    """Return the models of each composition, at most `size` at a time."""
    groups = [list(group) for _, group in groupby(models, key=lambda model: (model.group, model.target))]
    return [group[start : start + size] for group in groups for start in range(0, len(group), size)]


def _stack(recipe: Recipe, data: TrainingData, models: Sequence[_Model], num_classes: int) -> TrainSubsets:
    sets = RoleSets(data, tuple(model.name for model in models), num_classes)
    return TrainSubsets(sets, recipe.model, recipe.training, tuple(model.seed for model in models))


def _single(recipe: Recipe, data: TrainingData, models: Sequence[_Model], num_classes: int) -> Train:
    (model,) = models
    return Train(
        name=model.name,
        model=recipe.model,
        training=recipe.training.model_copy(update={"seed": model.seed}),
        num_classes=num_classes,
        shard=data.shard,
        splits=data.splits,
        roles=(model.name,),
    )


def _observe(
    runner: Runner,
    recipe: Recipe,
    data: TrainingData,
    trained: Sequence[_Chunk],
    given: Mapping[str, SuppliedOutputs | ExternalClassifierSpec],
    num_classes: int,
) -> list[Shown]:
    """Return every model with its outputs on the query data D_Q and the rest of its pool."""
    external = {name: spec for name, spec in given.items() if isinstance(spec, ExternalClassifierSpec)}
    stages = [ModelOutputs(data, chunk.artifact, recipe.training.epochs, POOL, num_classes) for chunk in trained]
    stages += [ModelOutputs(data, spec, 0, POOL, num_classes) for spec in external.values()]
    outputs_of, small = runner.run_all(stages), _are_small(recipe)
    shown = [
        Shown(model.group, model.target, model.number, model.name, outputs, place if small else None)
        for chunk, outputs in zip(trained, outputs_of[: len(trained)], strict=True)
        for place, model in enumerate(chunk.models)
    ]
    shown += [
        Shown(TARGET, name, 0, None, outputs) for name, outputs in zip(external, outputs_of[len(trained) :], strict=True)
    ]
    shown += [
        Shown(TARGET, name, 0, None, outputs) for name, outputs in given.items() if isinstance(outputs, SuppliedOutputs)
    ]
    return shown


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `forgetting` when it is asked for."""
    check_flow("forgetting", name)
    from flows.deployed import audit_flow

    return audit_flow("forgetting")
