"""The setup and shutdown shared by all audits that run on Prefect: store, run record, progress, errors, Ray."""

import contextvars
import functools
import inspect
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.artifacts import create_table_artifact
from prefect.context import FlowRunContext
from prefect.runtime import flow_run

from flows.interrupts import keep_interrupts
from memlib.audits import AUDITS
from memlib.audits.arrangement import Body, body_of, check_stages
from memlib.audits.base import Audit
from memlib.errors import RunError, UserError
from memlib.findings import Findings
from memlib.pipeline.stage import NO_CELLS, AnyArtifact, Artifact, CellRequest, Ended
from memlib.pipeline.tables import Tables
from memlib.report.format import finding_rows
from memlib.running.cells import finished_cells, forced_in, problem_of
from memlib.running.reuse import evict, going_on
from memlib.runs.index import page_path, results_path
from memlib.runs.plans import given_plan
from memlib.runs.records import RunRecord
from memlib.runs.requests import announced
from memlib.specs import Resources, Spec
from memlib.specs.resources import RunOptions
from memlib.store import Store
from tasks.cluster import as_lost, stop_ray
from tasks.display import is_gone, quietly
from tasks.reporting import ARTIFACT_ROWS, LONGEST_NAME, name_flow_run, show_in_prefect
from tasks.runtime import Context, Shared
from tasks.stage import StageRunner

TAG = "memlib"  # on flow runs; deployments/automations.yaml acts on runs with this tag
_finished: ContextVar[list[RunRecord] | None] = ContextVar("finished", default=None)
_shared: ContextVar[Shared | None] = ContextVar("shared", default=None)


@functools.cache
def flow_of(audit: Audit) -> Any:
    """Return the Prefect flow of an audit. Its signature is the form in Prefect's UI; its parameters are plain JSON."""

    def run(recipe: Any, store: str, resources: Resources = Resources(), options: RunOptions = RunOptions()) -> RunRecord:
        """Args:
            recipe: the audit's settings; `memlib schema` lists the keys.
            store: folder or s3:// prefix for artifacts, results and reports.
            resources: machine settings; they do not affect results.
            options: what the run prints and recomputes.

        Returns:
            the run's manifest.
        """
        return carry_out(audit.name, body_of(audit), recipe, store, resources, options)

    run.__name__ = run.__qualname__ = audit.name.replace("-", "_")
    run.__annotations__["recipe"] = audit.recipe
    run.__doc__ = f"{audit.question}\n\n{inspect.cleandoc(run.__doc__ or '')}"
    return flow(name=audit.name, flow_run_name=_title, validate_parameters=True)(run)


def _title() -> str:
    """Return the name of a run in Prefect until it has an id: the title of its recipe."""
    recipe = flow_run.parameters.get("recipe")
    return str(getattr(recipe, "title", recipe))[:LONGEST_NAME]


def carry_out(
    audit: str, body: Body, recipe: Spec, store: str, resources: Resources, options: RunOptions = RunOptions()
) -> RunRecord:
    """Run the body of an audit in a store, and return the run's manifest.

    Args:
        audit: the audit's name on the command line.
        body: function that takes a runner and the recipe and returns the run's manifest.
        recipe: the audit's settings.
        store: folder or s3:// prefix.
        options: what the run prints and recomputes.
    """
    opened = Store(store)
    check_stages(AUDITS[audit], options.force)
    within = _shared.get()
    if within is None:
        opened.check_writable()
        check_stages(AUDITS[audit], resources.stages)  # not in a cell of a sweep: the stage may belong to other cells
    computed: list[str] = []
    shared = within or Shared(look=options.look)
    plan = given_plan(options)
    with announced(opened, audit, recipe, resources, computed, say=shared.console.print, plan=plan, look=shared.look) as run:
        title = str(getattr(recipe, "title", ""))
        quietly(name_flow_run, title, run)
        context = Context(opened, resources, options, run=run, title=title, shared=shared, computed=computed)
        for line in AUDITS[audit].limits(recipe):
            context.warn(line)
        try:
            with keep_interrupts():
                audited = functools.partial(body, CellsRunner(context), recipe)
                manifest = _run_of(going_on(audited, opened, shared.known, context.warn))
        except BaseException as caught:
            error = as_lost(caught)
            problem = str(error) if isinstance(error, UserError | RunError | OSError) else type(error).__name__
            context.journal.end("failed" if isinstance(error, Exception) else "stopped", problem)
            if error is caught:
                raise
            raise error from caught
        finally:
            if within is None:
                stop_ray()
        context.journal.end("completed")
    if manifest.run != run:
        quietly(name_flow_run, title, manifest.run)
    quietly(
        show_in_prefect,
        manifest,
        finding_rows(Findings.of_run(manifest)),
        _places(opened, manifest),
    )
    if within is None:
        evict(opened, shared.transient, resources, say=context.note)
    if (finished := _finished.get()) is not None:
        finished.append(manifest)
    return manifest


def _places(store: Store, run: RunRecord) -> dict[str, str]:
    """Return the addresses of a run's report and tables."""
    paths = {"report": page_path(run)} | {f"table {name}": results_path(name, run.audit, run.run) for name in run.results}
    root = store.uri.rstrip("/")
    return {name: f"{root}/{path}" for name, path in paths.items()} | {"open": f"memlib open {run.run} --store {store.uri}"}


@contextmanager
def sharing(shared: Shared) -> Iterator[None]:
    """Make runs in this block share the state of a sweep, such as its stage locks; the sweep itself stops Ray."""
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)


def through_prefect(flow: Any, *arguments: Any) -> RunRecord:
    """Run an audit's flow; if Prefect's server is lost, finish without Prefect and without repeating finished work."""
    if is_gone():
        return _run_of(flow.fn(*arguments))
    finished: list[RunRecord] = []
    token = _finished.set(finished)
    try:
        return _run_of(flow(*arguments))
    except Exception as error:
        if isinstance(error, UserError | RunError) or not is_gone(error):
            raise
        return finished[-1] if finished else _run_of(flow.fn(*arguments))
    finally:
        _finished.reset(token)


class CellsRunner(StageRunner):
    """Runner of an audit's stages that runs the cells of a sweep side by side, as sub-flows of its own flow."""

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> Ended:
        """Run the cells that are not finished; one that fails does not stop the others."""
        context = self.context
        context.shared.look = look
        done = self._finished(cells)
        pool = ThreadPoolExecutor(at_once)
        with context.counter("cells") as progress, sharing(context.shared):
            running: dict[Future[RunRecord | str], str] = {}
            for name, cell in cells.items():
                if name not in done:
                    here = contextvars.copy_context()  # makes the cell a sub-flow that shares the stage locks
                    running[pool.submit(here.run, self._run_cell, name, cell)] = name
            try:
                while running:
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    done |= {running.pop(future): future.result() for future in ended}
                    progress(len(done), len(cells))
            except BaseException:
                context.shared.stopped.set()
                stop_ray()  # the cells wait for it
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        pool.shutdown()
        return {name: done[name] for name in cells}

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord:
        """Publish a run, and list its cells in Prefect."""
        run = super().publish(recipe, scores, report, artifacts, cells=cells)
        if cells and FlowRunContext.get() is not None:
            rows = [{"cell": name, "run": run.cells[name], "problem": run.problems.get(name, "")} for name in cells]
            table = rows[:ARTIFACT_ROWS]
            quietly(create_table_artifact, table=table, key=f"sweep-{run.run}-cells", description=run.title)
        return run

    def _finished(self, cells: Mapping[str, CellRequest]) -> dict[str, RunRecord | str]:
        """Return the runs of cells that are already finished, except those with a stage that must be recomputed."""
        context = self.context
        unforced = {name: cell for name, cell in cells.items() if not forced_in(cell, context.options)}
        return {
            **finished_cells(unforced, context.store, context.resources, say=context.warn, transient=context.shared.transient)
        }

    def _run_cell(self, name: str, cell: CellRequest) -> RunRecord | str:
        """Run the audit of a cell, and return its manifest, or the text of its error."""
        context, flow = self.context, flow_of(AUDITS[cell.audit])
        try:
            return through_prefect(
                flow,
                cell.recipe,
                context.store.uri,
                context.resources,
                replace(context.options, quiet=True, force=forced_in(cell, context.options), plan=""),
            )
        except Exception as error:
            return problem_of(name, error)


def _run_of(found: Any) -> RunRecord:
    """Return a run's manifest with its type: Prefect's flows are untyped, and bodies return None only in a plan."""
    assert isinstance(found, RunRecord)
    return found
