"""The forgetting audit (Liu and Tsaftaris 2020), from data to report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from memlib.audits.arrangement import prefect_flow
from memlib.audits.forgetting.recipe import NULL, RETAINED, TARGET, Recipe
from memlib.audits.forgetting.stages import DrawMixes, DrawSets, Report, Score, Shown
from memlib.audits.last_stages import run_id
from memlib.data.stages import Decode, DecodeBlock, TrainingData, decode
from memlib.identity import derive_seed
from memlib.observe.stages import ModelOutputs
from memlib.observe.supplied_outputs import SuppliedOutputs, read_outputs
from memlib.pipeline.stage import Artifact, Runner
from memlib.runs.records import RunRecord
from memlib.specs import ExternalClassifierSpec
from memlib.specs.data import CALIBRATION, POOL, QUERY
from memlib.training.fit import Train, TrainedModel

STAGES = (DecodeBlock, Decode, DrawSets, DrawMixes, Train, ModelOutputs, Score, Report)


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    shard = decode(runner, recipe.data)
    sets = runner.run(DrawSets(recipe, shard))
    data = TrainingData(shard, sets)
    num_classes = len(set(data.labels.tolist()))
    given = _given(recipe, data, num_classes)
    models = _models(recipe)
    mixes = runner.run(DrawMixes(data, {model.name: (model.shares, model.seed) for model in models}))
    trained = _train(runner, recipe, data, mixes, models, num_classes)
    shown = _observe(runner, recipe, data, trained, given, num_classes)
    scores = runner.run(Score(recipe, data, mixes, shown))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, data))
    named = {"shard": shard, "sets": sets, "mixes": mixes} | {model.name: artifact for model, artifact in trained}
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


def _train(
    runner: Runner,
    recipe: Recipe,
    data: TrainingData,
    mixes: Artifact[pa.Table],
    models: Sequence[_Model],
    num_classes: int,
) -> list[tuple[_Model, Artifact[TrainedModel]]]:
    stages = [
        Train(
            name=model.name,
            model=recipe.model,
            training=recipe.training.model_copy(update={"seed": model.seed}),
            num_classes=num_classes,
            shard=data.shard,
            splits=mixes,
            roles=(model.name,),
        )
        for model in models
    ]
    return list(zip(models, runner.run_all(stages), strict=True))


def _observe(
    runner: Runner,
    recipe: Recipe,
    data: TrainingData,
    trained: Sequence[tuple[_Model, Artifact[TrainedModel]]],
    given: Mapping[str, SuppliedOutputs | ExternalClassifierSpec],
    num_classes: int,
) -> list[Shown]:
    """Return every model with its outputs on the query data D_Q and the rest of its pool."""
    external = {name: spec for name, spec in given.items() if isinstance(spec, ExternalClassifierSpec)}
    stages = [ModelOutputs(data, model, recipe.training.epochs, POOL, num_classes) for _, model in trained]
    stages += [ModelOutputs(data, spec, 0, POOL, num_classes) for spec in external.values()]
    outputs_of = iter(runner.run_all(stages))
    shown = [Shown(m.group, m.target, m.number, m.name, next(outputs_of)) for m, _ in trained]
    shown += [Shown(TARGET, name, 0, None, next(outputs_of)) for name in external]
    shown += [
        Shown(TARGET, name, 0, None, outputs) for name, outputs in given.items() if isinstance(outputs, SuppliedOutputs)
    ]
    return shown


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `forgetting` when it is asked for."""
    return prefect_flow("forgetting", name)
