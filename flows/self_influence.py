"""The self-influence audit (TracInCP, Pruthi 2020) of every training example, from data to report."""

from typing import Any

from memlib.audits.arrangement import check_flow
from memlib.audits.last_stages import run_id
from memlib.audits.self_influence.influence import influence_of, influence_of_external
from memlib.audits.self_influence.recipe import Recipe
from memlib.audits.self_influence.stages import Report, Score
from memlib.data.stages import Decode, DecodeBlock, HoldOut, TrainingData, decode
from memlib.observe.stages import CheckpointNorms
from memlib.pipeline.stage import Runner
from memlib.runs.records import RunRecord
from memlib.specs import ExternalClassifierSpec
from memlib.specs.subject import TrainIt
from memlib.training.fit import Train

STAGES = (DecodeBlock, Decode, HoldOut, Train, CheckpointNorms, Score, Report)


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from data to report; return the run's manifest, or None in a plan."""
    shard = decode(runner, recipe.data)
    splits = runner.run(HoldOut(recipe.split, shard))
    data = TrainingData(shard, splits)
    match recipe.subject:
        case ExternalClassifierSpec() as trained:
            scores = influence_of_external(runner, data, trained, recipe.checkpoints, recipe.influence)
            models = {}
        case TrainIt() as subject:
            ((scores, model),) = influence_of(runner, data, subject, recipe.influence)
            models = {"model": model}
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, data))
    return runner.publish(recipe, scores, report, {"shard": shard, "splits": splits, **models})


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `self_influence` when it is asked for."""
    check_flow("self_influence", name)
    from flows.deployed import audit_flow

    return audit_flow("self_influence")
