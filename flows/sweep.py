"""A sweep: many audits as one run. Shared stages are computed once, and a failed cell does not stop the others."""

from typing import Any

from memlib.audits import AUDITS, audit_of
from memlib.audits.arrangement import body_of, prefect_flow, stage_names
from memlib.audits.base import Audit
from memlib.audits.sweep.recipe import Recipe
from memlib.errors import RunError, UserError
from memlib.pipeline.stage import AnyStage, Runner
from memlib.recipes.files import load_recipe, validate
from memlib.running.planning import PlanRunner
from memlib.runs.records import RunRecord
from memlib.specs import Spec, changed_content

STAGES: tuple[type[AnyStage], ...] = ()
Cells = dict[str, tuple[Audit, Spec, dict[str, Any]]]


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the cells and compare them; return the sweep's manifest, or None in a plan. Each cell is also a run of its own.

    Raises:
        RunError: if cells failed; raised once all other cells have ended and the comparison is published.
    """
    cells = cells_of(recipe)
    if isinstance(runner, PlanRunner):
        _plan_cells(runner, cells)
        return None
    from flows.sweep_cells import carry_out_cells  # loads Prefect

    return carry_out_cells(runner, recipe, cells)


def _plan_cells(runner: PlanRunner, cells: Cells) -> None:
    for name, (audit, spec, _) in cells.items():
        try:
            with runner.plan.following(stage_names(audit, spec)):
                body_of(audit)(runner, spec)
        except (UserError, RunError) as error:
            runner.plan.problems[name] = str(error)


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


def cells_of(recipe: Recipe) -> Cells:
    """Return the audit, recipe and changes of every cell, by name.

    Raises:
        UserError: if a cell cannot run; it names the cell.
    """
    cells: Cells = {}
    try:
        changes = recipe.changes()
    except ValueError as error:
        raise UserError(str(error)) from error
    for name, base, change in changes:
        content = changed_content(load_recipe(base)[0] if isinstance(base, str) else base, change)
        audit = AUDITS.get(audit_of(str(content.get("audit", ""))))
        if audit is None or audit.holds_others:
            raise UserError(f"cell {name}: {content.get('audit')!r} is not an audit that can be a cell")
        try:
            cells[name] = (audit, validate(audit.recipe, content), change)
        except UserError as error:
            raise UserError(f"cell {name}: {error}") from error
    return cells


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `sweep` when it is asked for."""
    return prefect_flow("sweep", name)
