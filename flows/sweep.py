"""A sweep: many audits as one run. Shared stages are computed once, and a failed cell does not stop the others."""

from typing import Any

from memlib.audits.arrangement import prefect_flow
from memlib.audits.sweep.recipe import Recipe, run_of
from memlib.audits.sweep.stages import Report, Score, outcomes_of
from memlib.errors import RunError, UserError
from memlib.pipeline.stage import AnyStage, CellRequest, Runner
from memlib.recipes.files import load_recipe
from memlib.recipes.request import AuditRequest
from memlib.runs.records import RunRecord
from memlib.specs import changed_content

STAGES: tuple[type[AnyStage], ...] = (Score, Report)
HAS_CELLS = True  # machines can be stated for the stages of any audit


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the cells and compare them; return the sweep's manifest, or None in a plan. Each cell is also a run of its own.

    Raises:
        RunError: if cells failed; raised once all other cells have ended and the comparison is published.
    """
    cells = cells_of(recipe)
    ended = runner.run_cells(cells, look=run_of(recipe), at_once=recipe.concurrent_cells)
    if ended is None:
        return None
    outcomes = outcomes_of(cells, ended)
    scores = runner.run(Score(outcomes, runner.store, recipe.equal_utility))
    report = runner.run(Report(recipe, run_of(recipe), scores, outcomes))
    run = runner.publish(recipe, scores, report, {}, cells=ended)
    assert run is not None, "only a plan publishes nothing, and a plan runs no cells"
    if broken := [f"{name}: {problem}" for name, problem in ended.items() if isinstance(problem, str)]:
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise RunError(
            f"{len(broken)} of {len(cells)} cells failed ({'; '.join(broken[:3])}{more}); the others are compared in "
            f"{run.report}. Run the same command again to run only the failed cells"
        )
    return run


def resolved(content: dict[str, Any]) -> dict[str, Any]:
    """Return a sweep's recipe with the recipes that it names included, so that it does not depend on files."""

    def read(named: Any) -> Any:
        return load_recipe(named)[0] if isinstance(named, str) else named

    result = {**content, "recipe": read(content["recipe"])} if "recipe" in content else dict(content)
    if isinstance(content.get("cells"), list):
        result["cells"] = [
            {"name": cell["recipe"] if isinstance(cell["recipe"], str) and not cell.get("set") else "", **cell,
             "recipe": read(cell["recipe"])}
            if isinstance(cell, dict) and "recipe" in cell else cell
            for cell in content["cells"]
        ]  # fmt: skip
    return result


def cells_of(recipe: Recipe) -> dict[str, CellRequest]:
    """Return the audit, recipe and changes of every cell, by name.

    Raises:
        UserError: if a cell cannot run; it names the cell.
    """
    cells: dict[str, CellRequest] = {}
    try:
        changes = recipe.changes()
    except ValueError as error:
        raise UserError(str(error)) from error
    for name, base, change in changes:
        content = changed_content(load_recipe(base)[0] if isinstance(base, str) else base, change)
        try:
            request = AuditRequest.read(content)
        except UserError as error:
            raise UserError(f"cell {name}: {error}") from error
        if request.audit.recipe is Recipe:
            raise UserError(f"cell {name}: a {request.audit.name} cannot be a cell")
        cells[name] = CellRequest(request.audit.name, request.recipe, change)
    return cells


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `sweep` when it is asked for."""
    return prefect_flow("sweep", name)
