"""Reader of the recipes of cells: audits that run as parts of another run."""

from typing import Any

from memlib.audits.cells import CellsSpec
from memlib.errors import RunError, UserError
from memlib.pipeline.stage import CellRequest, Ended
from memlib.recipes.files import load_recipe
from memlib.recipes.request import AuditRequest
from memlib.runs.records import RunRecord
from memlib.specs import changed_content


def resolved(content: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe of a run with cells, including the recipes that it names, so that it does not depend on files."""

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


def cells_of(recipe: CellsSpec) -> dict[str, CellRequest]:
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
        if request.audit.has_cells:
            raise UserError(f"cell {name}: a {request.audit.name} cannot be a cell; name the recipe of another audit")
        cells[name] = CellRequest(request.audit.name, request.recipe, change)
    return cells


def check_all_completed(ended: Ended, run: RunRecord) -> None:
    """Raise RunError if cells failed.

    Args:
        ended: manifest or error of each cell.
        run: the run that compares them.
    """
    if broken := [f"{name}: {problem}" for name, problem in ended.items() if isinstance(problem, str)]:
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise RunError(
            f"{len(broken)} of {len(ended)} cells failed ({'; '.join(broken[:3])}{more}); the others are compared in "
            f"{run.report}. Run the same command again to run only the failed cells"
        )
