"""Cells: audits that run as parts of another run, which compares them."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.last_stages import REPORT_FILE, run_id
from memlib.audits.sweep.recipe import Recipe, run_of
from memlib.audits.sweep.scores import Outcome
from memlib.audits.sweep.tables import SWEEP
from memlib.errors import RunError, UserError
from memlib.identity import VERSION, file_digest
from memlib.pipeline import user_code
from memlib.pipeline.stage import AnyArtifact, Artifact, CellRequest, Ended, Out, Stage
from memlib.pipeline.tables import Tables
from memlib.running.planning import Plan, PlanRunner
from memlib.running.publishing import Work, publish_again, publish_run
from memlib.runs.index import list_runs, read_run, results_path
from memlib.runs.records import FindingRecord, RunRecord, VerdictRecord
from memlib.specs import Resources, Spec
from memlib.specs.asks import asks_digest
from memlib.store import Ref, Store
from memlib.store.permissions import scratch
from memlib.tables import write_table


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
        resources: machine settings.
        say: called with messages for the user.
        transient: extended by the artifacts whose transient files may be evicted.
    """
    known = {entry["asks"] for entry in list_runs(store).entries}
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
                return read_run(self.store, self._run)
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
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> RunRecord | None:
        """Record the name of the run."""
        self._run = run_id(recipe, scores)
        return None


def publish_cells(store: Store, work: Work, recipe: Spec, cells: Mapping[str, CellRequest], ended: Ended) -> RunRecord:
    """Publish the comparison of cells: a table below results/, a page and the comparing run's manifest below runs/.

    Args:
        store: the store to publish in.
        work: resources that the run has used.
        recipe: the recipe of the comparing run.
        cells: the audits, by name of the cell.
        ended: how each of them ended.
    """
    from memlib.audits.sweep.compared import compare  # matplotlib is slow to load
    from memlib.report.page import render

    assert isinstance(recipe, Recipe)
    outcomes = []
    for name, cell in cells.items():
        end = ended[name]
        one, problem = (None, end) if isinstance(end, str) else (end, "")
        outcomes.append(Outcome(name, AUDITS[cell.audit].field, cell.changes, one, problem))
    run, done = run_of(recipe), [(outcome.cell, outcome.run) for outcome in outcomes if outcome.run is not None]
    digests = {one.run: one.digest for _, one in done if one.digest is not None}
    before = publish_again(store, work, run, recipe, digests)
    if before is not None:
        return before.model_copy(update={"reused": sorted({ref for _, one in done for ref in one.reused})})
    compared = compare(store, outcomes)
    with scratch("sweep") as folder:
        sentence = compared.verdict.sentence
        metadata = {"memlib.run": run, "memlib.software": VERSION, "memlib.sentence": sentence}
        write_table(compared.table, SWEEP, folder / "sweep.parquet", metadata=metadata)
        path = results_path(SWEEP.name, "sweep", run)
        results = {"sweep": store.publish(path, folder / "sweep.parquet")}
        (folder / "page").mkdir()
        (folder / "page" / REPORT_FILE).write_text(render(compared.page(recipe, run, folder / "page", store)))
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
        findings=[FindingRecord(**row) for row in compared.findings],
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
    return publish_run(store, work, record)
