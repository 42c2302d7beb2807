"""The audit of canaries in a training elsewhere, from recorded losses to report."""

from typing import Any

from memlib.audits.arrangement import check_flow
from memlib.audits.canaries.asked import AskCanaries, JoinAnswers, ask_service
from memlib.audits.canaries.recipe import Recipe
from memlib.audits.canaries.stages import ReadLosses, Report, Score
from memlib.audits.last_stages import run_id
from memlib.observe.served import CheckService
from memlib.pipeline.stage import Runner
from memlib.runs.records import RunRecord

OF_SERVICE = (CheckService, AskCanaries, JoinAnswers)
STAGES = (ReadLosses, *OF_SERVICE, Score, Report)


def absent(recipe: Recipe) -> set[type[Any]]:
    """Return the stages that a recipe leaves out."""
    return {ReadLosses} if recipe.losses is None else set(OF_SERVICE)


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the audit from recorded losses, or a service, to report; return the run's manifest, or None in a plan."""
    losses = ask_service(runner, recipe) if recipe.losses is None else runner.run(ReadLosses(recipe.canaries, recipe.losses))
    scores = runner.run(Score(recipe, losses))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores))
    return runner.publish(recipe, scores, report, {"losses": losses})


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `canaries` when it is asked for."""
    check_flow("canaries", name)
    from flows.deployed import audit_flow

    return audit_flow("canaries")
