"""The unique-feature audit (Hartley 2023, 2022) from examples to a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prefect import flow

from flows.running import carry_out
from memlib.audits.unique_feature import Cell, Net, Pull, Recipe, check_nulls, nets_of
from memlib.data.canaries import Feature, build_feature
from memlib.data.splits import TRAIN
from memlib.errors import UserError
from memlib.specs import Resources, TrainedSpec
from memlib.store import Ref
from memlib.training.fit import Canary, TrainingJob
from tasks.data import decode_images, hold_out_examples
from tasks.influence import influence_of, read_influence
from tasks.jobs import NetChunk, NetScores, TrainingData
from tasks.reporting import publish, run_id
from tasks.runtime import Context
from tasks.training import train_models
from tasks.unique_feature import Scored, choose, read_canaries, score_nets, summarize_nets, summarize_own, train_chunks
from tasks.unique_feature_report import write_report

NULL_FEATURES = 99  # features that a model trained elsewhere is compared on, when the recipe names no number


STAGES = (
    "decode",
    "hold_out",
    "train",
    "gradient_norms",
    "self_influence",
    "canaries",
    "train_nets",
    "score_nets",
    "score",
    "score_own",
    "report",
)


@flow(name="unique-feature", validate_parameters=True)
def unique_feature(
    recipe: Recipe,
    store: str,
    resources: Resources = Resources(),
    quiet: bool = False,
    force: tuple[str, ...] = (),
    cascade: bool = False,
) -> dict[str, Any]:
    """Audits whether classifiers memorize a feature that stands in a single training example.

    Args:
        recipe: data, canary, models, scores and report.
        store: folder or s3:// prefix for artifacts, results and reports.
        resources: machines; changes no result.
        quiet: no progress.
        force: stages that are computed again, though they are there.
        cascade: train models again whose inputs were made again and came out otherwise.

    Returns:
        the run's manifest.
    """
    return carry_out("unique-feature", audit, recipe, store, resources, quiet=quiet, force=force, cascade=cascade)


def audit(context: Context, recipe: Recipe) -> dict[str, Any]:
    """The audit from data to a page; returns the run's manifest."""
    if recipe.trained is not None:
        return _audit_own(context, recipe, recipe.trained)
    cells = [_prepare(context, cell) for cell in recipe.cells]
    models = _train(context, cells)
    scored = _score(context, cells, models)
    scores: Ref = summarize_nets(context, scored, recipe.score)
    run = run_id(recipe, scores)
    report: Ref = write_report(context, recipe, run, scores, scored)
    artifacts = {"scores": str(scores), "report": str(report)}
    for cell in cells:
        name = f"{cell.cell.variant or 'data'} {cell.cell.data_seed}"
        artifacts |= {f"{name}: shard": str(cell.data.shard), f"{name}: splits": str(cell.data.splits)}
    artifacts |= {f"models {i}": str(ref) for i, ref in enumerate(dict.fromkeys(r for refs in models for r in refs))}
    found: dict[str, Any] = publish(context, recipe, run, scores, report, artifacts)
    return found


def _audit_own(context: Context, recipe: Recipe, trained: TrainedSpec) -> dict[str, Any]:
    """A model that was trained elsewhere: the feature's scores among those of others of its kind."""
    shard: Ref = decode_images(context, recipe.data)
    splits: Ref = hold_out_examples(context, recipe.split, shard)
    probe: Ref | None = decode_images(context, recipe.probe.data) if recipe.probe.data is not None else None
    data = TrainingData(context.store, shard, splits)
    feature = build_feature(recipe.canary.feature, data.images.shape[1:])
    config = recipe.score.model_copy(update={"null_features": recipe.score.null_features or NULL_FEATURES})
    nets = (Net(number=0, canary=0, control=False, seed=0, label=-1),)
    job = NetScores(
        data=data, models=trained, epoch=0, nets=nets, feature=feature, feature_spec=recipe.canary.feature, canaries=(),
        labels=(), probe=recipe.probe, other=probe, config=config,
    )  # fmt: skip
    check_nulls(len(job.nulls), config.alpha)
    (found,) = score_nets(context, [job])
    scores: Ref = summarize_own(context, found, config, recipe.canary)
    run = run_id(recipe, scores)
    cell = Scored("", 0, (), feature, data, (nets,), (), (found,))
    report: Ref = write_report(context, recipe, run, scores, [cell])
    artifacts = {"shard": str(shard), "splits": str(splits), "scores": str(scores), "report": str(report)}
    published: dict[str, Any] = publish(context, recipe, run, scores, report, artifacts)
    return published


@dataclass(frozen=True)
class _Prepared:
    """A cell with its data, canaries and nets, before anything is trained."""

    cell: Cell
    data: TrainingData
    feature: Feature
    canaries: Sequence[dict[str, Any]]
    nets: Sequence[Net]
    probe: Ref | None
    pulls: Sequence[Pull]

    @property
    def groups(self) -> list[list[Net]]:
        """The nets of each artifact: chunks of small ones, single large ones."""
        model, size = self.cell.recipe.model, self.cell.recipe.nets.chunk
        assert model is not None
        size = size if model.stackable else 1
        sides = ([net for net in self.nets if net.control == control] for control in (False, True))
        return [side[start : start + size] for side in sides for start in range(0, len(side), size)]

    @property
    def rows(self) -> tuple[int, ...]:
        """The stored rows of all canaries."""
        return tuple(sorted(int(canary["row"]) for canary in self.canaries))

    def canary(self, net: Net) -> Canary:
        """Whose training set the net has."""
        return Canary(self.feature, self.cell.recipe.canary, int(self.canaries[net.canary]["row"]), not net.control)


def _prepare(context: Context, cell: Cell) -> _Prepared:
    """Data, roles, canaries and nets of a cell; refuses what cannot be done before anything is trained."""
    recipe = cell.recipe
    shard: Ref = decode_images(context, recipe.data)
    splits: Ref = hold_out_examples(context, recipe.split, shard)
    probe: Ref | None = decode_images(context, recipe.probe.data) if recipe.probe.data is not None else None
    data = TrainingData(context.store, shard, splits)
    feature = build_feature(recipe.canary.feature, data.images.shape[1:])
    _refuse_to_cut(recipe, feature)
    influence = None
    if "influence" in recipe.canary.choice:
        assert recipe.model is not None
        assert recipe.training is not None
        (influence,) = influence_of(context, data, recipe.model, recipe.training, recipe.influence)
    canaries = read_canaries(context, choose(context, recipe.canary, data, influence))
    assert recipe.training is not None
    nets = nets_of(recipe.nets, [int(canary["label"]) for canary in canaries], seed=recipe.training.seed)
    pulls = _pull(context, cell, data, feature, canaries) if recipe.influence.pull else []
    return _Prepared(cell, data, feature, canaries, nets, probe, pulls)


def _refuse_to_cut(recipe: Recipe, feature: Feature) -> None:
    """No augmentation may cut the feature off."""
    shift = recipe.training.augment.shift if recipe.training is not None and recipe.training.augment is not None else 0
    if not shift or feature.values.ndim != 3:
        return
    height, width = feature.mask.shape
    x0, y0, x1, y1 = feature.box
    margin = min(x0, y0, width - x1, height - y1)
    if margin < shift:
        raise UserError(
            f"training.augment.shift {shift} could cut the feature away, which is {margin} px from an edge; move it inward"
        )


def _pull(
    context: Context, cell: Cell, data: TrainingData, feature: Feature, canaries: Sequence[dict[str, Any]]
) -> list[Pull]:
    """The self-influence of the first and the last canary, with the feature in the training set and without."""
    recipe = cell.recipe
    assert recipe.model is not None
    assert recipe.training is not None
    chosen = list({int(canary["row"]): canary for canary in (canaries[0], canaries[-1])}.values())
    rows = [int(canary["row"]) for canary in chosen]
    sets = [Canary(feature, recipe.canary, row, with_feature) for row in rows for with_feature in (False, True)]
    found = influence_of(context, data, recipe.model, recipe.training, recipe.influence, sets)
    names = [str(canary["example_id"]) for canary in chosen]
    return [
        Pull(name, *(read_influence(context, influence)[name] for influence in pair))
        for name, pair in zip(names, zip(found[::2], found[1::2], strict=True), strict=True)
    ]


def _train(context: Context, cells: Sequence[_Prepared]) -> list[list[Ref]]:
    """The models of every cell, in the order of its groups: small nets as chunks, large ones each in a Ray Train fit."""
    chunks: list[NetChunk] = []
    jobs: list[TrainingJob] = []
    for cell in cells:
        recipe = cell.cell.recipe
        assert recipe.model is not None
        for group in cell.groups:
            if recipe.model.stackable:
                chunks.append(_chunk(cell, group))
            else:
                jobs.append(_job(cell, group[0]))
    small = iter(train_chunks(context, chunks) if chunks else [])
    large = iter(train_models(context, jobs) if jobs else [])
    return [
        [next(small if cell.cell.recipe.model and cell.cell.recipe.model.stackable else large) for _ in cell.groups]
        for cell in cells
    ]


def _chunk(cell: _Prepared, group: Sequence[Net]) -> NetChunk:
    recipe = cell.cell.recipe
    assert recipe.model is not None
    assert recipe.training is not None
    return NetChunk(
        data=cell.data,
        model=recipe.model,
        training=recipe.training,
        seeds=tuple(net.seed for net in group),
        canaries=tuple(cell.canary(net) for net in group),
        watch=recipe.score.outputs if recipe.score.per_epoch else (),
        config=recipe.score,
        all_canaries=cell.rows,
    )


def _job(cell: _Prepared, net: Net) -> TrainingJob:
    recipe = cell.cell.recipe
    assert recipe.model is not None
    assert recipe.training is not None
    kind = "control" if net.control else "canary net"
    return TrainingJob(
        name=" ".join(filter(None, [cell.cell.variant, kind, str(net.number)])),
        model=recipe.model,
        training=recipe.training.model_copy(update={"seed": net.seed}),
        num_classes=cell.data.num_classes,
        shard=cell.data.shard,
        splits=cell.data.splits,
        roles=(TRAIN,),
        canary=cell.canary(net),
    )


def _epochs(cell: _Prepared) -> int:
    training = cell.cell.recipe.training
    assert training is not None
    return training.epochs


def _score(context: Context, cells: Sequence[_Prepared], models: Sequence[Sequence[Ref]]) -> list[Scored]:
    jobs = []
    for cell, refs in zip(cells, models, strict=True):
        recipe = cell.cell.recipe
        for group, ref in zip(cell.groups, refs, strict=True):
            jobs.append(
                NetScores(
                    data=cell.data, models=ref, epoch=_epochs(cell), nets=tuple(group), feature=cell.feature,
                    feature_spec=recipe.canary.feature, canaries=cell.rows,
                    labels=tuple(sorted({net.label for net in cell.nets})), probe=recipe.probe, other=cell.probe,
                    config=recipe.score,
                )
            )  # fmt: skip
    found = iter(score_nets(context, jobs))
    return [
        Scored(
            cell.cell.variant, cell.cell.data_seed, cell.canaries, cell.feature, cell.data, cell.groups, refs,
            [next(found) for _ in cell.groups], _epochs(cell), cell.pulls,
        )
        for cell, refs in zip(cells, models, strict=True)
    ]  # fmt: skip
