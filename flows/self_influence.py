"""Self-influence (TracInCP) of every training example, from examples to a page."""

from typing import Any

from prefect import flow

from flows.running import carry_out
from memlib.audits.self_influence import Recipe
from memlib.specs import Resources
from memlib.store import Ref
from tasks.data import decode_images, hold_out_examples
from tasks.influence import influence_of, influence_of_own
from tasks.influence_report import write_influence_report
from tasks.jobs import TrainingData
from tasks.reporting import publish, run_id
from tasks.runtime import Context

STAGES = ("decode", "hold_out", "train", "gradient_norms", "self_influence", "report")


@flow(name="self-influence", validate_parameters=True)
def self_influence(
    recipe: Recipe,
    store: str,
    resources: Resources = Resources(),
    quiet: bool = False,
    force: tuple[str, ...] = (),
    cascade: bool = False,
) -> dict[str, Any]:
    """Says how much each training example influences a model's prediction of itself.

    Args:
        recipe: data, model and training or one's own checkpoints, report.
        store: folder or s3:// prefix for artifacts, results and reports.
        resources: machines; changes no result.
        quiet: no progress.
        force: stages that are computed again, though they are there.
        cascade: train models again whose inputs were made again and came out otherwise.

    Returns:
        the run's manifest.
    """
    return carry_out("self-influence", audit, recipe, store, resources, quiet=quiet, force=force, cascade=cascade)


def audit(context: Context, recipe: Recipe) -> dict[str, Any]:
    """The audit from data to a page; returns the run's manifest."""
    shard: Ref = decode_images(context, recipe.data)
    splits: Ref = hold_out_examples(context, recipe.split, shard)
    data = TrainingData(context.store, shard, splits)
    if recipe.trained is not None:
        scores = influence_of_own(context, data, recipe.trained, recipe.checkpoints, recipe.influence)
    else:
        assert recipe.model is not None
        assert recipe.training is not None
        (scores,) = influence_of(context, data, recipe.model, recipe.training, recipe.influence)
    run = run_id(recipe, scores)
    report: Ref = write_influence_report(context, recipe, run, scores, data)
    artifacts = {"shard": str(shard), "splits": str(splits), "scores": str(scores), "report": str(report)}
    found: dict[str, Any] = publish(context, recipe, run, scores, report, artifacts)
    return found
