"""A dossier: the audits about one model or data set, as one document. Cells that the recipe names are run first."""

import time
from typing import Any

from memlib.audits import AUDITS
from memlib.audits.arrangement import check_flow
from memlib.audits.dossier.beside import beside_in
from memlib.audits.dossier.listed import Failed
from memlib.audits.dossier.recipe import Recipe
from memlib.audits.dossier.stages import Joined, Report, Score
from memlib.audits.dossier.subject import failed_in, further_looks, runs_of
from memlib.audits.last_stages import run_id
from memlib.errors import RunError
from memlib.pipeline.stage import AnyStage, Runner
from memlib.recipes import cells as of_cells
from memlib.runs.index import list_runs, measured_at
from memlib.runs.pins import check_pinned
from memlib.runs.records import RunRecord
from memlib.specs.question import NAME_LENGTH, asks_digest
from memlib.store import Ref, Store

DAY = 86_400
UNNAMED = "the reason may name examples, and is left out"
STAGES: tuple[type[AnyStage], ...] = (Score, Report)
HAS_CELLS = True  # machines can be stated for the stages of any audit
resolved = of_cells.resolved


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the cells, join all audits and publish the document; return its manifest, or None in a plan with cells.

    Raises:
        RunError: if cells failed; raised once all other cells have ended and the dossier is published.
    """
    cells = of_cells.cells_of(recipe)
    asks = asks_digest(recipe.model_dump(mode="json"))
    ended = runner.run_cells(cells, look=asks[:NAME_LENGTH], at_once=recipe.concurrent_cells) if cells else {}
    if ended is None:
        return None
    own = [end for end in ended.values() if isinstance(end, RunRecord)]
    problems = {name: end if recipe.ids else UNNAMED for name, end in ended.items() if isinstance(end, str)}
    failed = [Failed(name, AUDITS[cells[name].audit].field, problem) for name, problem in problems.items()]
    known = list_runs(runner.store)
    named = [_reused(run) for run in runs_of(runner.store, recipe.subject, known.entries)]
    others = failed_in(runner.store, recipe.subject, known, [*own, *named], asks)
    failed += [Failed(title, "", problem if recipe.ids else UNNAMED) for title, problem in others]
    runs = _readable(runner, [*own, *named], failed)
    if not runs:
        reasons = "; ".join(f"{name}: {end}" for name, end in ended.items()) or "none has scores in the store"
        raise RunError(f"no audit of the dossier can be read: {reasons}")
    looks, stale = further_looks(runner.store, known.entries, runs), _stale(runner.store, runs, recipe.most_days)
    beside = beside_in(runner.store, known.entries, runs, recipe.subject.beside)
    joined = Joined(runner.store, runs, looks, stale, recipe.not_run, failed, problems, beside)
    scores = runner.run(Score(joined, recipe.named_share, recipe.ids, recipe.release.digest))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, joined))
    run = runner.publish(recipe, scores, report, {}, cells={**{one.run: one for one in runs}, **problems})
    if run is not None:
        of_cells.check_all_completed(ended, run)
    return run


def _readable(runner: Runner, runs: list[RunRecord], failed: list[Failed]) -> list[RunRecord]:
    """Return the runs whose scores the store holds, each once; the others are named in a warning, and added to `failed`.

    Raises:
        CorruptArtifact: when an artifact of a run is not the one that the run pins.
    """
    known = {}
    for run in runs:
        check_pinned(runner.store, run)
        if runner.store.artifacts.has(Ref.parse(run.artifacts["scores"])):
            known[run.run] = run
        else:
            runner.warn(f"run {run.run} is left out of the dossier: its scores were erased or deleted; run its audit again")
            failed.append(Failed(run.title, run.audit, f"the scores of run {run.run} were erased or deleted"))
    return list(known.values())


def _reused(run: RunRecord) -> RunRecord:
    """Return a run that the store already held: whatever it once computed, the dossier reuses."""
    return run.model_copy(update={"computed": [], "reused": sorted({*run.computed, *run.reused})})


def _stale(store: Store, runs: list[RunRecord], most_days: float | None) -> list[str]:
    """Return the ids of the runs whose numbers are older than the recipe allows."""
    if most_days is None:
        return []
    return [run.run for run in runs if time.time() - measured_at(store, run) > most_days * DAY]


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `dossier` when it is asked for."""
    check_flow("dossier", name)
    from flows.deployed import audit_flow

    return audit_flow("dossier")
