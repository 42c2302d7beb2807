"""The exposure page as a stage."""

from collections.abc import Mapping
from typing import Any

from memlib.audits.exposure import Recipe
from memlib.specs.text import UNSEEN
from memlib.store import Attempt, Ref
from tasks import declared
from tasks.exposure import EXTRACTIONS_FILE
from tasks.exposure_models import CorpusData
from tasks.reporting import REPORT_FILE, read_scores
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_stage, stage_task


@stage_task("report")
def write_report(context: Context, recipe: Recipe, run: str, scores: Ref, data: CorpusData) -> Any:
    """Draws the figures and the page: report.html, figures/*.svg and *.png."""

    def compute(attempt: Attempt) -> None:
        from memlib.report.exposure import build_page  # matplotlib is slow to load
        from memlib.report.page import render

        files = {
            "units": UNITS_FILE, "extractions": EXTRACTIONS_FILE, "summary": SUMMARY_FILE, "curves": CURVES_FILE
        }  # fmt: skip
        tables = {name: read_scores(context, scores, file) for name, file in files.items()}
        page = build_page(recipe, run, tables, _facts(recipe, data), attempt.path("figures"))
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    spec = {"recipe": recipe.model_dump(mode="json"), "run": run}
    return run_stage(context, declared.REPORT_EXPOSURE, spec=spec, inputs={"scores": scores.key}, compute=compute)


def _facts(recipe: Recipe, data: CorpusData) -> Mapping[str, str]:
    training, windows = recipe.training, data.store.manifest(data.corpus)["facts"]["num_windows"]
    how = {}
    if training is not None:
        how = {
            "model": ", ".join(f"{k} {v}" for k, v in recipe.model.model_dump(mode="json").items() if k != "kind"),
            "training": f"{training.epochs} epochs, batch {training.batch_size or 'all'}, {recipe.seeds} seeds",
            "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
        }
    if recipe.trained is not None:
        how = {"model": ", ".join(f"{k} {v}" for k, v in recipe.trained.model_dump(mode="json", exclude={"options"}).items())}
    return {
        "text": f"{recipe.data.source.kind}, {windows} windows of {recipe.data.window} {recipe.data.unit}s, "
        f"{len(data.vocabulary)} symbols",
        "canaries": f"format {recipe.canaries.format!r}, {data.space.bits:.1f} bits; "
        + (
            f"secrets that the text holds, {data.table['kind'].to_pylist().count(UNSEEN)} unseen ones of their kind"
            if recipe.canaries.file is not None
            else "all in one model"
            if recipe.canaries.together
            else "each in a model of its own"
        ),
        "known": " and ".join(name for name in ("prefix", "suffix") if getattr(recipe.canaries, f"known_{name}"))
        or "neither prefix nor suffix",
        **how,
        "scoring": f"method {recipe.score.method}, {recipe.score.references} references, {recipe.score.precision}",
    }
