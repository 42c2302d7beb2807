"""The cells of a sweep, run side by side as sub-flows of one run, and their comparison."""

import contextvars
import logging
import time
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.context import FlowRunContext

import memlib
from flows.engine import flow_of, sharing, through_prefect
from flows.sweep import Cells
from memlib.audits.arrangement import stage_names
from memlib.audits.base import Audit
from memlib.audits.last_stages import REPORT_FILE
from memlib.audits.sweep.compared import compare, run_of
from memlib.audits.sweep.recipe import Recipe
from memlib.audits.sweep.scores import Outcome
from memlib.audits.sweep.tables import SWEEP
from memlib.errors import RunError, UserError
from memlib.identity import file_digest
from memlib.pipeline.stage import Runner
from memlib.report.imprint import signed
from memlib.report.page import render
from memlib.running.finished import finished_cells
from memlib.running.publishing import publish_again, publish_run
from memlib.runs.index import results_path
from memlib.runs.records import Finding, RunRecord, VerdictRecord
from memlib.specs import Spec
from memlib.store.permissions import scratch
from memlib.tables import write_table
from tasks.cluster import stop_ray
from tasks.display import quietly
from tasks.reporting import ARTIFACT_ROWS
from tasks.runtime import Context
from tasks.stage import StageRunner

log = logging.getLogger("memlib")


def carry_out_cells(runner: Runner, recipe: Recipe, cells: Cells) -> RunRecord:
    """Run the cells and compare them; return the sweep's manifest.

    Raises:
        RunError: if cells failed; raised once all other cells have ended and the comparison is published.
    """
    assert isinstance(runner, StageRunner)
    context = runner.context
    context.shared.look = run_of(recipe)
    outcomes = _carry_out_cells(context, recipe, cells)
    run = _publish(context, recipe, [outcomes[name] for name in cells])
    broken = [outcome for outcome in outcomes.values() if outcome.run is None]
    if broken:
        named = "; ".join(f"{outcome.cell}: {outcome.problem}" for outcome in broken[:3])
        more = f"; and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise RunError(
            f"{len(broken)} of {len(cells)} cells failed ({named}{more}); the others are compared in {run.report}. "
            "Run the same command again to run only the failed cells"
        )
    return run


def _carry_out_cells(context: Context, recipe: Recipe, cells: Cells) -> dict[str, Outcome]:
    done = _finished(context, cells)
    pool = ThreadPoolExecutor(recipe.concurrent_cells)
    with context.counter("cells") as progress, sharing(context.shared):
        running: dict[Future[Outcome], str] = {}
        for name, (audit, spec, changes) in cells.items():
            if name in done:
                continue
            here = contextvars.copy_context()  # makes the cell a sub-flow of the sweep that shares its stage locks
            running[pool.submit(here.run, _cell, context, name, audit, spec, changes)] = name
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
    return done


def _finished(context: Context, cells: Cells) -> dict[str, Outcome]:
    """Return the outcomes of cells that are already finished, except those with a stage that must be recomputed."""
    unforced = {name: (audit, spec) for name, (audit, spec, _) in cells.items() if not _forced(context, audit)}
    runs = finished_cells(unforced, context.store, context.resources, say=context.warn, passing=context.shared.passing)
    return {name: Outcome(name, run.audit, cells[name][2], run) for name, run in runs.items()}


def _forced(context: Context, audit: Audit) -> tuple[str, ...]:
    return tuple(context.forced & {stage.rpartition("/")[2] for stage in stage_names(audit)})


def _cell(context: Context, name: str, audit: Audit, spec: Spec, changes: dict[str, Any]) -> Outcome:
    """Run the audit of a cell; a failure becomes its outcome and does not affect the other cells."""
    kind = str(getattr(spec, "audit", ""))
    try:
        forced = _forced(context, audit)
        run = through_prefect(flow_of(audit), spec, context.store.uri, context.resources, True, forced, context.cascade)
    except (UserError, RunError, OSError) as error:
        return Outcome(name, kind, changes, None, str(error))
    except Exception as error:
        log.exception("cell %s", name)
        return Outcome(name, kind, changes, None, f"{type(error).__name__}: {error}")
    return Outcome(name, kind, changes, run)


def _publish(context: Context, recipe: Recipe, outcomes: list[Outcome]) -> RunRecord:
    """Publish the comparison: a table below results/, a page and the sweep's manifest below runs/."""
    store, run = context.store, run_of(recipe)
    done = [(outcome.cell, outcome.run) for outcome in outcomes if outcome.run is not None]
    digests = {one.run: one.digest for _, one in done if one.digest is not None}
    before = publish_again(store, context.work, run, recipe, digests)
    if before is not None:
        return before.model_copy(update={"reused": sorted({ref for _, one in done for ref in one.reused})})
    compared = compare(store, outcomes)
    with scratch("sweep") as folder:
        sentence = compared.verdict.sentence
        metadata = {"memlib.run": run, "memlib.software": memlib.__version__, "memlib.sentence": sentence}
        write_table(compared.table, SWEEP, folder / "sweep.parquet", metadata=metadata)
        path = results_path(SWEEP.name, "sweep", run)
        results = {"sweep": store.publish(path, folder / "sweep.parquet")}
        (folder / "page").mkdir()
        page = signed(compared.page(recipe, run, folder / "page"), recipe, store, ())
        (folder / "page" / REPORT_FILE).write_text(render(page))
        pages = {
            file.name: store.publish(f"runs/{run}/{file.name}", file, secret=True)
            for file in sorted((folder / "page").iterdir())
        }
        published = {f"runs/{run}/{file.name}": file_digest(file) for file in (folder / "page").iterdir()}
        published[path] = file_digest(folder / "sweep.parquet")
    record = RunRecord(
        run=run,
        audit="sweep",
        title=recipe.title,
        finished=time.time(),
        recipe=recipe.model_dump(mode="json"),
        verdict=VerdictRecord(**asdict(compared.verdict)),
        findings=[Finding(**row) for row in compared.findings],
        results=results,
        report=pages[REPORT_FILE],
        cells={o.cell: None if o.run is None else o.run.run for o in outcomes},
        cell_digests=digests,
        problems={o.cell: o.problem for o in outcomes if o.run is None},
        artifacts={f"{cell}: {name}": ref for cell, one in done for name, ref in one.artifacts.items()},
        published=published,
        computed=sorted({ref for _, one in done for ref in one.computed}),
        reused=sorted({ref for _, one in done for ref in one.reused}),
    )
    manifest = publish_run(context.store, context.work, record)
    if FlowRunContext.get() is not None:
        rows = [{"cell": o.cell, "run": None if o.run is None else o.run.run, "problem": o.problem} for o in outcomes]
        quietly(create_table_artifact, table=rows[:ARTIFACT_ROWS], key=f"sweep-{run}-cells", description=recipe.title)
    return manifest
