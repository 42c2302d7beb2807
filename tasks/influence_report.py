"""The self-influence page as a stage."""

from typing import Any

from memlib.audits.self_influence import Recipe
from memlib.data.splits import TRAIN
from memlib.store import Attempt, Ref
from tasks import declared
from tasks.jobs import TrainingData
from tasks.reporting import REPORT_FILE, read_scores
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_stage, stage_task


@stage_task("report")
def write_influence_report(context: Context, recipe: Recipe, run: str, scores: Ref, data: TrainingData) -> Any:
    """Draws the figure and the page: report.html, figures/*.svg and *.png."""

    def compute(attempt: Attempt) -> None:
        from memlib.report.page import render  # matplotlib is slow to load
        from memlib.report.self_influence import build_page

        members = data.members(TRAIN)
        rows = dict(zip(members["example_id"].to_pylist(), members["row"].to_pylist(), strict=True))
        pictures = data.images.ndim == 4
        tables = [read_scores(context, scores, name) for name in (UNITS_FILE, SUMMARY_FILE, CURVES_FILE)]
        facts = {
            "data": f"{recipe.data.source.kind}, {members.num_rows} training examples",
            "model": recipe.trained.model if recipe.trained else recipe.model.architecture if recipe.model else "",
            "checkpoints": ", ".join(f"epoch {epoch}" for epoch in tables[0]["checkpoints"][0].as_py()),
        }
        page = build_page(
            recipe, run, *tables, lambda name: data.images[rows[name]] if pictures else None, facts, attempt.path("figures")
        )
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    spec = {"recipe": recipe.model_dump(mode="json"), "run": run}
    inputs = {"scores": scores.key} | data.inputs(TRAIN)
    return run_stage(context, declared.REPORT_SELF_INFLUENCE, spec=spec, inputs=inputs, compute=compute)
