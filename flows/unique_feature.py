"""The unique-feature audit (Hartley 2023, 2022), from data to report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memlib.audits.arrangement import check_flow
from memlib.audits.last_stages import run_id
from memlib.audits.self_influence.influence import influence_of
from memlib.audits.self_influence.stages import Score as SelfInfluence
from memlib.audits.unique_feature.external import check_nulls
from memlib.audits.unique_feature.recipe import Cell, Recipe
from memlib.audits.unique_feature.score_nets import Scored
from memlib.audits.unique_feature.scoring import Net, Pull, nets_of
from memlib.audits.unique_feature.stages import (
    ChooseCanaries,
    Report,
    Score,
    ScoreNets,
    ScoreOwn,
    TrainNets,
    influence_by_example,
)
from memlib.data.canaries.features import Feature, build_feature
from memlib.data.splits import TRAIN
from memlib.data.stages import Decode, DecodeBlock, HoldOut, Shard, TrainingData, decode
from memlib.errors import UserError
from memlib.observe.models import Trained
from memlib.observe.stages import CheckpointNorms
from memlib.pipeline.stage import AnyArtifact, Artifact, Runner
from memlib.runs.records import RunRecord
from memlib.specs import ExternalClassifierSpec, TrainingSpec
from memlib.training.fit import Canary, Train

STAGES = (
    DecodeBlock, Decode, HoldOut, Train, CheckpointNorms, SelfInfluence, ChooseCanaries, TrainNets, ScoreNets, Score,
    ScoreOwn, Report,
)  # fmt: skip
NULL_FEATURES = 99  # default number of null features for the audit of an external model


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    if isinstance(recipe.subject, ExternalClassifierSpec):
        return _audit_external(runner, recipe, recipe.subject)
    cells = [_prepare(runner, cell) for cell in recipe.cells]
    models = _train(runner, cells)
    scored = _score(runner, cells, models)
    scores = runner.run(Score(scored, recipe.score, recipe.baselines))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, scored))
    named: dict[str, AnyArtifact] = {}
    for cell in cells:
        name = f"{cell.cell.variant or 'data'} {cell.cell.data_seed}"
        named |= {f"{name}: shard": cell.data.shard, f"{name}: splits": cell.data.splits}
    named |= {f"models {i}": chunk for i, chunk in enumerate(dict.fromkeys(chunk for each in models for chunk in each))}
    return runner.publish(recipe, scores, report, named)


def _audit_external(runner: Runner, recipe: Recipe, trained: ExternalClassifierSpec) -> RunRecord | None:
    """Audit an external model: compare its score for the feature with its scores for other features of the same kind."""
    data, probe = _data(runner, recipe)
    feature = build_feature(recipe.canary.feature, data.images.shape[1:])
    config = recipe.score.model_copy(update={"null_features": recipe.score.null_features or NULL_FEATURES})
    nets = (Net(number=0, canary=0, control=False, seed=0, label=-1),)
    stage = ScoreNets(
        data=data, models=trained, epoch=0, nets=nets, feature=feature, feature_spec=recipe.canary.feature, canaries=(),
        labels=(), probe=recipe.probe, other=probe, config=config,
    )  # fmt: skip
    check_nulls(len(stage.nulls), config.level)
    net_scores = runner.run(stage)
    scores = runner.run(ScoreOwn(net_scores, config, recipe.canary))
    cell = Scored("", 0, (), feature, data, (nets,), (), (net_scores,))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, [cell]))
    return runner.publish(recipe, scores, report, {"shard": data.shard, "splits": data.splits})


@dataclass(frozen=True)
class _Prepared:
    """A cell with its data, canaries and nets, ready for training."""

    cell: Cell
    data: TrainingData
    feature: Feature
    canaries: Sequence[dict[str, Any]]
    nets: Sequence[Net]
    probe: Artifact[Shard] | None
    pulls: Sequence[Pull]

    @property
    def groups(self) -> list[list[Net]]:
        """The nets of each artifact: small nets in chunks, large nets singly."""
        size = self.cell.recipe.nets.chunk if self.stackable else 1
        sides = ([net for net in self.nets if net.control == control] for control in (False, True))
        return [side[start : start + size] for side in sides for start in range(0, len(side), size)]

    @property
    def stackable(self) -> bool:
        """True if the nets are small enough to be trained together in one stack."""
        return self.cell.subject.model.stackable

    @property
    def rows(self) -> tuple[int, ...]:
        """The shard rows of all canaries."""
        return tuple(sorted(int(canary["row"]) for canary in self.canaries))

    def canary(self, net: Net) -> Canary:
        """Return the canary of the net's training set; a control gets its clean twin, without the feature."""
        return Canary(self.feature, self.cell.recipe.canary, int(self.canaries[net.canary]["row"]), not net.control)


def _prepare(runner: Runner, cell: Cell) -> _Prepared:
    """Prepare the data, roles, canaries and nets of a cell; impossible settings are refused before any training."""
    recipe = cell.recipe
    data, probe = _data(runner, recipe)
    feature = build_feature(recipe.canary.feature, data.images.shape[1:])
    _refuse_to_cut(cell.subject.training, feature)
    influence = None
    if "influence" in recipe.canary.choice:
        ((influence, _),) = influence_of(runner, data, cell.subject, recipe.influence)
    canaries = runner.run(ChooseCanaries(recipe.canary, data, influence)).content
    nets = nets_of(recipe.nets, [int(canary["label"]) for canary in canaries], seed=cell.subject.training.seed)
    pulls = _pull(runner, cell, data, feature, canaries) if recipe.influence.pull else []
    return _Prepared(cell, data, feature, canaries, nets, probe, pulls)


def _data(runner: Runner, recipe: Recipe) -> tuple[TrainingData, Artifact[Shard] | None]:
    """Return the examples with their roles, and the probe data if they come from another source."""
    shard = decode(runner, recipe.data)
    splits = runner.run(HoldOut(recipe.split, shard))
    probe = decode(runner, recipe.probe.data) if recipe.probe.data is not None else None
    return TrainingData(shard, splits), probe


def _refuse_to_cut(training: TrainingSpec, feature: Feature) -> None:
    """Raise an error if the augmentation could cut off the feature."""
    shift = training.augment.shift if training.augment is not None else 0
    if not shift or feature.values.ndim != 3:
        return
    height, width = feature.mask.shape
    x0, y0, x1, y1 = feature.box
    margin = min(x0, y0, width - x1, height - y1)
    if margin < shift:
        raise UserError(
            f"training.augment.shift {shift} could cut off the feature, which is {margin} px from an edge; lower the shift"
        )


def _pull(runner: Runner, cell: Cell, data: TrainingData, feature: Feature, canaries: Sequence[dict[str, Any]]) -> list[Pull]:
    """Compute the self-influence of the first and the last canary, with and without the feature in the training set."""
    recipe = cell.recipe
    chosen = list({int(canary["row"]): canary for canary in (canaries[0], canaries[-1])}.values())
    rows = [int(canary["row"]) for canary in chosen]
    sets = [Canary(feature, recipe.canary, row, with_feature) for row in rows for with_feature in (False, True)]
    influences = [scores for scores, _ in influence_of(runner, data, cell.subject, recipe.influence, sets)]
    names = [str(canary["example_id"]) for canary in chosen]
    return [
        Pull(name, *(influence_by_example(influence)[name] for influence in pair))
        for name, pair in zip(names, zip(influences[::2], influences[1::2], strict=True), strict=True)
    ]


def _train(runner: Runner, cells: Sequence[_Prepared]) -> list[list[Trained]]:
    """Train the models of every cell, in the order of its groups: small nets in chunks, large nets singly."""
    chunks: list[TrainNets] = []
    large: list[Train] = []
    for cell in cells:
        for group in cell.groups:
            if cell.stackable:
                chunks.append(_chunk(cell, group))
            else:
                large.append(_large(cell, group[0]))
    nets, models = iter(runner.run_all(chunks)), iter(runner.run_all(large))
    return [[next(nets) if cell.stackable else next(models) for _ in cell.groups] for cell in cells]


def _chunk(cell: _Prepared, group: Sequence[Net]) -> TrainNets:
    recipe = cell.cell.recipe
    return TrainNets(
        data=cell.data,
        model=cell.cell.subject.model,
        training=cell.cell.subject.training,
        seeds=tuple(net.seed for net in group),
        canaries=tuple(cell.canary(net) for net in group),
        watch=recipe.score.outputs if recipe.score.per_epoch else (),
        config=recipe.score,
        all_canaries=cell.rows,
        probe=recipe.probe,
        other=cell.probe,
    )


def _large(cell: _Prepared, net: Net) -> Train:
    kind = "control" if net.control else "canary net"
    return Train(
        name=" ".join(filter(None, [cell.cell.variant, kind, str(net.number)])),
        model=cell.cell.subject.model,
        training=cell.cell.subject.training.model_copy(update={"seed": net.seed}),
        num_classes=cell.data.num_classes,
        shard=cell.data.shard,
        splits=cell.data.splits,
        roles=(TRAIN,),
        canary=cell.canary(net),
    )


def _epochs(cell: _Prepared) -> int:
    return cell.cell.subject.training.epochs


def _score(runner: Runner, cells: Sequence[_Prepared], models: Sequence[Sequence[Trained]]) -> list[Scored]:
    stages = []
    for cell, trained in zip(cells, models, strict=True):
        recipe = cell.cell.recipe
        for group, chunk in zip(cell.groups, trained, strict=True):
            stages.append(
                ScoreNets(
                    data=cell.data, models=chunk, epoch=_epochs(cell), nets=tuple(group), feature=cell.feature,
                    feature_spec=recipe.canary.feature, canaries=cell.rows,
                    labels=tuple(sorted({net.label for net in cell.nets})), probe=recipe.probe, other=cell.probe,
                    config=recipe.score,
                )
            )  # fmt: skip
    scored = iter(runner.run_all(stages))
    return [
        Scored(
            cell.cell.variant, cell.cell.data_seed, cell.canaries, cell.feature, cell.data, cell.groups, trained,
            [next(scored) for _ in cell.groups], _epochs(cell), cell.pulls,
        )
        for cell, trained in zip(cells, models, strict=True)
    ]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `unique_feature` when it is asked for."""
    check_flow("unique_feature", name)
    from flows.deployed import audit_flow

    return audit_flow("unique_feature")
