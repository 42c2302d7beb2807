"""A sweep: many audits as one run. Shared stages are computed once, and a failed cell does not stop the others."""

from typing import Any

from memlib.audits.arrangement import check_flow
from memlib.audits.sweep.recipe import Recipe, run_of
from memlib.audits.sweep.stages import Report, Score, outcomes_of
from memlib.pipeline.stage import AnyStage, Runner
from memlib.recipes import cells as of_cells
from memlib.runs.records import RunRecord

STAGES: tuple[type[AnyStage], ...] = (Score, Report)
resolved = of_cells.resolved
HAS_CELLS = True  # machines can be stated for the stages of any audit


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the cells and compare them; return the sweep's manifest, or None in a plan. Each cell is also a run of its own.

    Raises:
        RunError: if cells failed; raised once all other cells have ended and the comparison is published.
    """
    cells = of_cells.cells_of(recipe)
    ended = runner.run_cells(cells, look=run_of(recipe), at_once=recipe.concurrent_cells)
    if ended is None:
        return None
    outcomes = outcomes_of(cells, ended)
    scores = runner.run(Score(outcomes, runner.store, recipe.equal_utility))
    report = runner.run(Report(recipe, run_of(recipe), scores, outcomes))
    run = runner.publish(recipe, scores, report, {}, cells=ended)
    assert run is not None, "only a plan publishes nothing, and a plan runs no cells"
    of_cells.check_all_completed(ended, run)
    return run


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `sweep` when it is asked for."""
    check_flow("sweep", name)
    from flows.deployed import audit_flow

    return audit_flow("sweep")
