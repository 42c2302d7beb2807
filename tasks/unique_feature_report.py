"""The unique-feature page as a stage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from memlib.audits.unique_feature import Net, Recipe, strongest
from memlib.data.splits import TRAIN
from memlib.errors import UserError
from memlib.observe.attention import gradcam, overlaid
from memlib.store import Attempt, Ref
from memlib.training.augment import prepare
from tasks import declared
from tasks.jobs import load_net
from tasks.reporting import REPORT_FILE, read_scores
from tasks.runtime import Context
from tasks.scoring import CURVES_FILE, SUMMARY_FILE, UNITS_FILE
from tasks.stage import run_stage, stage_task
from tasks.unique_feature import Scored

if TYPE_CHECKING:
    from memlib.report.unique_feature import Boundary, Material

SIDE = 80  # points along a side of a decision boundary
SHOWN_POINTS = 300


@stage_task("report")
def write_report(context: Context, recipe: Recipe, run: str, scores: Ref, cells: Sequence[Scored]) -> Any:
    """Draws the figures and the page: report.html, figures/*.svg and *.png."""

    def compute(attempt: Attempt) -> None:
        from memlib.report.page import render
        from memlib.report.unique_feature import build_page  # matplotlib is slow to load

        tables = [read_scores(context, scores, name) for name in (UNITS_FILE, SUMMARY_FILE, CURVES_FILE)]
        material = _material(context, recipe, cells, tables[0])
        page = build_page(recipe, run, *tables, material, attempt.path("figures"))
        attempt.path(REPORT_FILE).write_text(render(page), encoding="utf-8")

    spec = {"recipe": recipe.model_dump(mode="json"), "run": run}
    inputs = {"scores": scores.key, "data": [cell.data.inputs(TRAIN) for cell in cells]}
    return run_stage(context, declared.REPORT_UNIQUE_FEATURE, spec=spec, inputs=inputs, compute=compute)


def _material(context: Context, recipe: Recipe, cells: Sequence[Scored], units: Any) -> "Material":
    from memlib.report.unique_feature import Material

    cell = cells[0]
    images = cell.data.images.ndim == 4
    looks = images and recipe.report.gradcam and recipe.trained is None
    bounds = not images and recipe.report.boundaries and recipe.trained is None and cell.data.images.shape[1] >= 2
    order = strongest(units.filter(_of(units, cell)), recipe.score.outputs[0], units.num_rows) if looks or bounds else []
    return Material(
        pictures=_pictures(recipe, cell) if images else [],
        attention=_attention(context, recipe, cell, order) if looks else [],
        boundaries=_boundaries(context, recipe, cell, order) if bounds else [],
        facts=_facts(context, recipe, cells),
    )


def _of(units: Any, cell: Scored) -> NDArray[np.bool_]:
    variant = np.array(units["variant"].to_pylist(), dtype=object) == cell.variant
    mine: NDArray[np.bool_] = variant & (units["data_seed"].to_numpy() == cell.data_seed)
    return mine & (np.array(units["feature"].to_pylist(), dtype=object) == "canary")


def _pictures(recipe: Recipe, cell: Scored) -> list[tuple[NDArray[np.uint8], str]]:
    chosen = [(int(c["row"]), f"{c['example_id']} ({c['class_name']})") for c in cell.canaries[: recipe.report.examples]]
    if not chosen:  # a model trained elsewhere: some of the examples it is shown
        members = cell.data.members(TRAIN).slice(0, recipe.report.examples).to_pylist()
        chosen = [(int(m["row"]), str(m["example_id"])) for m in members]
    shown = []
    for row, name in chosen:
        image = cell.data.images[row][None]
        shown += [(cell.feature.insert(image)[0], f"{name}, with"), (cell.feature.clean(image)[0], f"{name}, without")]
    return shown


def _net(context: Context, cell: Scored, number: int) -> tuple[torch.nn.Module, Net]:
    """A canary net by its number."""
    for ref, nets in zip(cell.models, cell.nets, strict=True):
        for position, net in enumerate(nets):
            if net.number == number and not net.control:
                return load_net(context.store, ref, position, epoch=cell.epoch), net
    raise KeyError(number)


def _attention(context: Context, recipe: Recipe, cell: Scored, order: Sequence[int]) -> list[tuple[NDArray[np.uint8], str]]:
    """GradCAM on the canary, and on other examples of its class, with the feature and without (2023, Fig. 8)."""
    net, who = _net(context, cell, order[0])
    members = cell.data.members(TRAIN).to_pylist()
    rows = [int(cell.canaries[who.canary]["row"])]
    rows += [int(m["row"]) for m in members if m["label"] == who.label and int(m["row"]) != rows[0]][: recipe.report.examples]
    images = cell.data.images[rows]
    found = []
    for title, shown in (("with", cell.feature.insert(images)), ("without", cell.feature.clean(images))):
        try:
            heats = gradcam(net, prepare(shown, torch.device("cpu")), who.label)
        except UserError as error:
            context.warn(str(error))
            return []
        for place, (image, heat) in enumerate(zip(shown, heats, strict=True)):
            found.append((overlaid(image, heat), f"{'canary' if place == 0 else f'other example {place}'}, {title}"))
    return found


def _boundaries(context: Context, recipe: Recipe, cell: Scored, order: Sequence[int]) -> "list[Boundary]":
    """Over the plane of the first two coordinates, the others at their mean (2023, Fig. 3b)."""
    from memlib.report.unique_feature import Boundary

    members = cell.data.members(TRAIN)
    points = np.asarray(cell.data.images[members["row"].to_numpy()])
    low, high = points.min(axis=0) - 0.3, points.max(axis=0) + 0.3
    x, y = np.meshgrid(np.linspace(low[0], high[0], SIDE), np.linspace(low[1], high[1], SIDE))
    plane = np.repeat(points.mean(axis=0, keepdims=True), SIDE * SIDE, axis=0)
    plane[:, 0], plane[:, 1] = x.reshape(-1), y.reshape(-1)
    if recipe.data.source.kind == "two_moons":
        plane[:, 2] = 0.0
    some = np.random.default_rng(0).permutation(len(points))[:SHOWN_POINTS]
    found = []
    for title, number in (("highest score", order[0]), ("lowest score", order[-1])):
        net, _ = _net(context, cell, number)
        with torch.inference_mode():
            sides = [
                torch.softmax(net(prepare(examples.astype(np.float32), torch.device("cpu"))), dim=1)[:, 1]
                .numpy()
                .reshape(SIDE, SIDE)
                for examples in (cell.feature.clean(plane), cell.feature.insert(plane))
            ]
        extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
        found.append(Boundary(title, extent, sides[0], sides[1], points[some, :2], members["label"].to_numpy()[some]))
    return found


def _facts(context: Context, recipe: Recipe, cells: Sequence[Scored]) -> dict[str, str]:
    source = recipe.data.source.model_dump(mode="json")
    facts = {
        "data": ", ".join(f"{name} {value}" for name, value in source.items() if value not in (None, {}, [])),
        "feature": ", ".join(f"{k} {v}" for k, v in recipe.canary.feature.model_dump(mode="json").items() if v is not None),
        "probe data": recipe.probe.kind if recipe.probe.data is None else recipe.probe.data.source.kind,
    }
    if recipe.trained is not None:
        return facts | {"model": recipe.trained.model, "weights": str(recipe.trained.weights)}
    assert recipe.model is not None
    assert recipe.training is not None
    training, canary = recipe.training, recipe.canary
    models = list(dict.fromkeys(ref for cell in cells for ref in cell.models))
    manifests = [context.store.manifest(ref)["facts"] for ref in models]
    seconds = sum(float(facts.get("training_seconds", 0)) for facts in manifests)
    nets = [net for cell in cells for group in cell.nets for net in group]
    facts |= {
        "training examples": f"{cells[0].data.members(TRAIN).num_rows}",
        "canaries": f"{canary.count}, chosen {canary.choice.replace('_', ' ')}, {canary.mode}, {canary.repeats} time(s)",
        "model": ", ".join(f"{k} {v}" for k, v in recipe.model.model_dump(mode="json").items() if k != "kind"),
        "training": f"{training.epochs} epochs at most, batch {training.batch_size or 'all'}, patience {training.patience}",
        "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
        "nets": f"{sum(not n.control for n in nets)} with the feature, {sum(n.control for n in nets)} controls",
        "training time": f"{seconds:.0f} s of {len(models)} artifacts, side by side",
    }
    if recipe.variants:
        facts["variants"] = "; ".join(f"{name}: {changes}" for name, changes in recipe.variants.items())
    return facts
