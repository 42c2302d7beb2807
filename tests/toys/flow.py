"""Flow of the toy audit, from images to a page."""

from typing import Any

from memlib.audits.class_sizes.recipe import Recipe
from memlib.audits.class_sizes.stages import Count, Report

from memlib.audits.arrangement import check_flow
from memlib.audits.last_stages import run_id
from memlib.data.stages import Decode
from memlib.pipeline.stage import Runner
from memlib.runs.records import RunRecord

STAGES = (Decode, Count, Report)


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Carry out the audit from data to a page; return the run's manifest, or None in a plan."""
    shard = runner.run(Decode(recipe.data))
    scores = runner.run(Count(shard, recipe.smallest))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores))
    return runner.publish(recipe, scores, report, {"shard": shard})


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `class_sizes` when it is asked for."""
    check_flow("class_sizes", name)
    from flows.deployed import audit_flow

    return audit_flow("class_sizes")
