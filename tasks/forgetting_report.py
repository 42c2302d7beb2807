"""The forgetting page as a stage."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.audits.forgetting import Recipe
from memlib.data.sets import POOL
from memlib.data.splits import LEFT_OUT
from memlib.store import Attempt, Ref
from tasks import declared
from tasks.forgetting import EXAMPLES_FILE, pool_digest
from tasks.jobs import TrainingData
from tasks.reporting import REPORT_FILE, read_scores
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_stage, stage_task


@stage_task("report")
def write_report(context: Context, recipe: Recipe, run: str, scores: Ref, data: TrainingData) -> Any:
    """Draws the figures and the page: report.html, figures/*.svg and *.png."""

    def compute(attempt: Attempt) -> None:
        from memlib.report.forgetting import build_page  # matplotlib is slow to load
        from memlib.report.page import render

        files = {"units": UNITS_FILE, "examples": EXAMPLES_FILE, "summary": SUMMARY_FILE, "curves": CURVES_FILE}
        tables = {name: read_scores(context, scores, file) for name, file in files.items()}
        places = dict(zip(data.table["example_id"].to_pylist(), data.table["row"].to_pylist(), strict=True))
        removed = [
            (row["example_id"], row["reason"])
            for row in data.table.to_pylist()
            if row["role"] == LEFT_OUT and str(row["reason"]).startswith("in ")
        ]
        page = build_page(
            recipe, run, tables, _confidences(tables["curves"]), removed, lambda name: data.images[places[name]],
            _facts(recipe, data), attempt.path("figures"),
        )  # fmt: skip
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    spec = {"recipe": recipe.model_dump(mode="json"), "run": run}
    inputs = {"scores": scores.key, "query": pool_digest(data.members(*POOL)), "shard": data.shard.key}
    return run_stage(context, declared.REPORT_FORGETTING, spec=spec, inputs=inputs, compute=compute)


def _confidences(curves: Any) -> dict[tuple[str, str], NDArray[np.float64]]:
    """The points of the ECDFs by group and target."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in curves.to_pylist():
        if row["curve"] == "confidence_ecdf":
            group = json.loads(row["params"])["group"]
            found.setdefault((group, row["series"] if group == "target" else ""), []).append(row["x"])
    return {key: np.array(values) for key, values in found.items()}


def _facts(recipe: Recipe, data: TrainingData) -> Mapping[str, str]:
    training = recipe.training
    sizes = {name: data.members(name).num_rows for name in recipe.sets}
    mixes = {name: target.mix for name, target in recipe.targets.items() if target.mix is not None}
    return {
        "sets": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "model": ", ".join(f"{k} {v}" for k, v in recipe.model.model_dump(mode="json").items() if k != "kind"),
        "training": f"{training.epochs} epochs, batch {training.batch_size or 'all'}",
        "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
        "models": f"{recipe.seeds} query, {recipe.seeds} calibration, {recipe.seeds} of each mix, "
        f"{recipe.verdict.models} null, {recipe.verdict.models} retained",
        "null models train on": _mix(recipe.null_shares),
        "retained models train on": _mix(recipe.retained_shares),
        **{f"target {name}": _mix(mix) for name, mix in mixes.items()},
        "verdict": f"level {recipe.verdict.alpha:g} over all targets, {recipe.score.permutations} redraws of D_Q",
    }


def _mix(mix: Mapping[str, float]) -> str:
    return ", ".join(f"{100 * share:g} % of {name}" for name, share in mix.items())
