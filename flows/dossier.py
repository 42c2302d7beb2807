"""A dossier: the audits about one model or data set, as one document. Cells that the recipe names are run first."""

import time
from typing import Any

from memlib.audits.arrangement import prefect_flow
from memlib.audits.dossier.recipe import Recipe
from memlib.audits.dossier.stages import Joined, Report, Score
from memlib.audits.dossier.subject import further_looks, runs_of
from memlib.audits.last_stages import run_id
from memlib.errors import RunError
from memlib.pipeline.stage import AnyStage, Runner
from memlib.recipes import cells as of_cells
from memlib.runs.records import RunRecord
from memlib.specs.asks import NAME_LENGTH, asks_digest
from memlib.store import Ref

DAY = 86_400
STAGES: tuple[type[AnyStage], ...] = (Score, Report)
HAS_CELLS = True  # machines can be stated for the stages of any audit
resolved = of_cells.resolved


def audit(runner: Runner, recipe: Recipe) -> RunRecord | None:
    """Run the cells, join all audits and publish the document; return its manifest, or None in a plan with cells.

    Raises:
        RunError: if cells failed; raised once all other cells have ended and the dossier is published.
    """
    cells = of_cells.cells_of(recipe)
    look = asks_digest(recipe.model_dump(mode="json"))[:NAME_LENGTH]
    ended = runner.run_cells(cells, look=look, at_once=recipe.concurrent_cells) if cells else {}
    if ended is None:
        return None
    own = [end for end in ended.values() if isinstance(end, RunRecord)]
    runs = _readable(runner, [*own, *runs_of(runner.store, recipe.subject)])
    if not runs:
        problems = "; ".join(f"{name}: {end}" for name, end in ended.items()) or "none has scores in the store"
        raise RunError(f"no audit of the dossier can be read: {problems}")
    joined = Joined(runner.store, runs, further_looks(runner.store, runs), _stale(runs, recipe.most_days), recipe.not_run)
    scores = runner.run(Score(joined, recipe.named_share, recipe.ids))
    report = runner.run(Report(recipe, run_id(recipe, scores), scores, joined))
    run = runner.publish(recipe, scores, report, {}, cells={one.run: one for one in runs})
    if run is not None:
        of_cells.check_all_completed(ended, run)
    return run


def _readable(runner: Runner, runs: list[RunRecord]) -> list[RunRecord]:
    """Return the runs whose scores the store holds, each once; the others are named in a warning."""
    known = {}
    for run in runs:
        if runner.store.artifacts.has(Ref.parse(run.artifacts["scores"])):
            known[run.run] = run
        else:
            runner.warn(f"run {run.run} is left out of the dossier: its scores were erased or deleted; run its audit again")
    return list(known.values())


def _stale(runs: list[RunRecord], most_days: float | None) -> list[str]:
    """Return the ids of the runs that are older than the recipe allows."""
    return [] if most_days is None else [run.run for run in runs if time.time() - run.finished > most_days * DAY]


def __getattr__(name: str) -> Any:
    """Build the Prefect flow `dossier` when it is asked for."""
    return prefect_flow("dossier", name)
