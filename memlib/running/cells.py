"""Cells: audits that run as parts of another run, which compares them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of, check_stages, stage_names
from memlib.audits.cells import CellsSpec
from memlib.audits.last_stages import run_id
from memlib.errors import RunError, UserError
from memlib.pipeline import user_code
from memlib.pipeline.stage import NO_CELLS, AnyArtifact, Artifact, CellRequest, Ended, Out, Stage
from memlib.pipeline.tables import Tables
from memlib.recipes.cells import cells_of
from memlib.recipes.request import AuditRequest
from memlib.running.planning import Plan, PlanRunner
from memlib.runs.index import list_runs, read_run
from memlib.runs.journal import log
from memlib.runs.records import RunRecord
from memlib.specs import Resources, Spec
from memlib.specs.question import asks_digest
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store


def forced_in(cell: CellRequest, options: RunOptions) -> tuple[str, ...]:
    """Return those of a run's forced stages that are stages of a cell."""
    return tuple(set(options.force) & {stage.rpartition("/")[2] for stage in stage_names(AUDITS[cell.audit])})


def finished_cells(
    cells: Mapping[str, CellRequest],
    store: Store,
    resources: Resources,
    *,
    say: Callable[[str], None],
    transient: list[AnyArtifact] | None = None,
) -> dict[str, RunRecord]:
    """Return the runs of finished cells, by cell, as they were published.

    All cells share one plan and one listing of published files, and only what the plan needs is read from artifacts. Damaged
    files are reported by `memlib verify`, or when they are opened.

    Args:
        cells: audit and recipe of each cell, by name.
        store: the store that may hold the runs.
        say: called with messages for the user.
        transient: extended by the artifacts whose transient files may be evicted.
    """
    known = {entry["asks"] for entry in list_runs(store.trusting(None)).entries}
    candidates = {name: cell for name, cell in cells.items() if asks_digest(cell.recipe.model_dump(mode="json")) in known}
    if not candidates:
        return {}
    existing = {**store.listing("runs"), **store.listing("results")}
    runs, runner = {}, _Naming(Plan(store), resources)
    with user_code.planning():
        for name, cell in candidates.items():
            run = runner.run_of(cell)
            if run is not None and all(path in existing for path in run.published):
                if transient is not None:
                    transient += runner.transient
                runs[name] = run.model_copy(update={"computed": [], "reused": sorted({*run.computed, *run.reused})})
    limits = [line for name in runs for line in AUDITS[cells[name].audit].limits(cells[name].recipe)]
    for line in dict.fromkeys([*limits, *(runner.plan.old_code.lines if runs else [])]):
        say(line)
    return runs


def cell_of(request: AuditRequest, number: int, store: Store) -> tuple[AuditRequest, str]:
    """Return the request of one cell of a sweep as a run of its own, and the id of the look at the data that cells share.

    Args:
        number: number of the cell, from 1, in the order of the recipe.

    Raises:
        UserError: if the recipe has no such cell.
    """
    recipe, resources = request.recipe, request.resources
    if not isinstance(recipe, CellsSpec):
        raise UserError(f"a {request.audit.name} audit has no cells; leave out --cell {number}, or name a sweep")
    cells = list(cells_of(recipe).values())
    if not 1 <= number <= len(cells):
        raise UserError(f"there is no cell {number} among {len(cells)}; memlib validate lists the cells by number, from 1")
    check_stages(request.audit, resources.stages)
    cell, looking = cells[number - 1], _Looking(Plan(store), resources)
    body_of(request.audit)(looking, recipe)
    own = set(stage_names(AUDITS[cell.audit]))
    stages = {name: needs for name, needs in resources.stages.items() if name.rpartition("/")[2] in own}
    machines = resources.model_copy(update={"stages": stages})
    return AuditRequest(AUDITS[cell.audit], cell.recipe, machines), looking.look


def problem_of(cell: str, error: Exception) -> str:
    """Return the text of the error that ended a cell, for the run that compares cells; an unexpected error is logged."""
    if isinstance(error, UserError | RunError | OSError):
        return str(error)
    log.error("cell %s", cell, exc_info=error)
    return f"{type(error).__name__}: {error}"


class _Looking(PlanRunner):
    """A runner that only learns the id of the look at the data that the cells of a run share."""

    look = ""

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> None:
        """Record the look, and end the run like a plan."""
        self.look = look


class _Naming(PlanRunner):
    """A runner that determines the run that an audit would publish, without computing anything."""

    def run_of(self, cell: CellRequest) -> RunRecord | None:
        """Return a cell's finished run; None if any part is missing or was computed from inputs that have since changed."""
        self._refs: list[Ref] = []
        self._run = ""
        self.transient: list[AnyArtifact] = []
        try:
            body_of(AUDITS[cell.audit])(self, cell.recipe)
            if self._run and all(self.plan.parts[ref].is_settled for ref in self._refs):
                return read_run(self.store.trusting(None), self._run)
        except (RunError, UserError):  # the run itself reports it
            pass
        return None

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Record the parts of a step."""
        self._refs += [stage.identity.ref for stage in stages]
        return super().run_all(stages)

    def evict(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Record the artifacts whose transient files may be evicted."""
        self.transient += artifacts

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord | None:
        """Record the name of the run."""
        self._run = run_id(recipe, scores)
        return None
