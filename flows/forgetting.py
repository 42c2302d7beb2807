"""The forgetting audit (Liu and Tsaftaris 2020) from examples to a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import flow

from flows.running import carry_out
from memlib.audits.forgetting import NULL, RETAINED, TARGET, Recipe
from memlib.data.sets import CALIBRATION, POOL, QUERY
from memlib.identity import derive_seed
from memlib.observe.given import GivenOutputs, read_outputs
from memlib.specs import Resources, TrainedSpec
from memlib.store import Ref
from memlib.training.fit import TrainingJob
from tasks.data import decode_images
from tasks.forgetting import Shown, draw, draw_mixes, observe, score_forgetting
from tasks.forgetting_report import write_report
from tasks.jobs import ModelOutputs, TrainingData
from tasks.reporting import publish, run_id
from tasks.runtime import Context
from tasks.training import train_models

STAGES = ("decode", "sets", "mixes", "train", "outputs", "score_forgetting", "report")


@flow(name="forgetting", validate_parameters=True)
def forgetting(
    recipe: Recipe,
    store: str,
    resources: Resources = Resources(),
    quiet: bool = False,
    force: tuple[str, ...] = (),
    cascade: bool = False,
) -> dict[str, Any]:
    """Audits whether models have used, or forgotten, a data set.

    Args:
        recipe: data, sets, targets, models, verdict and report.
        store: folder or s3:// prefix for artifacts, results and reports.
        resources: machines; changes no result.
        quiet: no progress.
        force: stages that are computed again, though they are there.
        cascade: train models again whose inputs were made again and came out otherwise.

    Returns:
        the run's manifest.
    """
    return carry_out("forgetting", audit, recipe, store, resources, quiet=quiet, force=force, cascade=cascade)


def audit(context: Context, recipe: Recipe) -> dict[str, Any]:
    """The audit from data to a page; returns the run's manifest."""
    shard: Ref = decode_images(context, recipe.data)
    sets: Ref = draw(context, shard, recipe)
    data = TrainingData(context.store, shard, sets)
    num_classes = len(set(data.labels.tolist()))
    given = _given(recipe, data, num_classes)
    models = _models(recipe)
    mixes: Ref = draw_mixes(context, data, {model.name: (model.shares, model.seed) for model in models})
    trained = _train(context, recipe, data, mixes, models, num_classes)
    shown = _observe(context, recipe, data, trained, given, num_classes)
    scores: Ref = score_forgetting(context, recipe, data, mixes, shown)
    run = run_id(recipe, scores)
    report: Ref = write_report(context, recipe, run, scores, data)
    artifacts = {"shard": str(shard), "sets": str(sets), "scores": str(scores), "report": str(report)}
    artifacts |= {"mixes": str(mixes)} | {model.name: str(ref) for model, ref in trained}
    found: dict[str, Any] = publish(context, recipe, run, scores, report, artifacts)
    return found


@dataclass(frozen=True)
class _Model:
    """A model that is trained here: who it is, what its training set holds, and its seed."""

    group: str
    target: str
    number: int
    shares: Mapping[str, float]
    seed: int

    @property
    def name(self) -> str:
        """Its role in the table of mixes."""
        return f"{self.group} {self.target} {self.number}" if self.target else f"{self.group} {self.number}"


def _models(recipe: Recipe) -> list[_Model]:
    """Query, calibration, null and retained models, and the targets that are mixes."""
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


def _given(recipe: Recipe, data: TrainingData, num_classes: int) -> dict[str, GivenOutputs | TrainedSpec]:
    """Targets that were brought; what is wrong with their outputs is said before anything is trained."""
    found: dict[str, GivenOutputs | TrainedSpec] = {}
    for name, target in recipe.targets.items():
        if target.outputs is not None:
            found[name] = read_outputs(target.outputs, data.members(*POOL), num_classes)
        elif target.trained is not None:
            found[name] = target.trained
    return found


def _train(
    context: Context, recipe: Recipe, data: TrainingData, mixes: Ref, models: Sequence[_Model], num_classes: int
) -> list[tuple[_Model, Ref]]:
    jobs = [
        TrainingJob(
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
    return list(zip(models, train_models(context, jobs), strict=True))


def _observe(
    context: Context,
    recipe: Recipe,
    data: TrainingData,
    trained: Sequence[tuple[_Model, Ref]],
    given: Mapping[str, GivenOutputs | TrainedSpec],
    num_classes: int,
) -> list[Shown]:
    """Every model with its outputs on D_Q and the rest of its pool."""
    brought = {name: spec for name, spec in given.items() if isinstance(spec, TrainedSpec)}
    jobs = [ModelOutputs(data, ref, recipe.training.epochs, POOL, num_classes) for _, ref in trained]
    jobs += [ModelOutputs(data, spec, 0, POOL, num_classes) for spec in brought.values()]
    refs = iter(observe(context, jobs))
    shown = [Shown(m.group, m.target, m.number, m.name, next(refs)) for m, _ in trained]
    shown += [Shown(TARGET, name, 0, None, next(refs)) for name in brought]
    shown += [Shown(TARGET, name, 0, None, outputs) for name, outputs in given.items() if isinstance(outputs, GivenOutputs)]
    return shown
