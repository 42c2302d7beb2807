"""Contents of the unique-feature page besides its tables: pictures, attention, decision boundaries, facts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray

from memlib.audits.unique_feature.curves import strongest
from memlib.audits.unique_feature.recipe import Recipe
from memlib.audits.unique_feature.score_nets import Scored
from memlib.audits.unique_feature.scoring import Net
from memlib.data.images.stored import are_images
from memlib.data.splits import HELD_OUT, TRAIN
from memlib.errors import UserError
from memlib.observe.embeddings import gradcam, overlaid
from memlib.observe.models import load_net
from memlib.specs import ExternalClassifierSpec
from memlib.training.augment import prepare

SIDE = 80  # grid points along each side of a decision-boundary plot
SHOWN_POINTS = 300
OF_CONTROL = "its control"  # start of the captions of a control's pictures

Pictures = Sequence[tuple[NDArray[np.uint8], str]]
"""Images with their captions."""


@dataclass(frozen=True)
class Boundary:
    """Class probabilities of a net over the plane of the first two coordinates, without and with the feature."""

    title: str  #: name of the net.
    extent: tuple[float, float, float, float]  #: x0, x1, y0, y1.
    #: clean, featured: (side, side) probability of class 1 without and with the feature, rows from y0 to y1.
    clean: NDArray[np.float64]
    featured: NDArray[np.float64]
    points: NDArray[np.float64]  #: points, labels: a sample of training points (count, 2) and their classes.
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Material:
    """Contents of the page besides the tables."""

    facts: Mapping[str, str]  #: rows of the last section.
    pictures: Pictures = ()  #: canaries with and without the feature.
    attention: Pictures = ()  #: images overlaid with GradCAM heat maps.
    boundaries: Sequence[Boundary] = ()  #: decision boundaries, for data that are points.


def material_of(recipe: Recipe, cells: Sequence[Scored], units: pa.Table, warn: Callable[[str], None]) -> Material:
    """Collect the contents of the page besides the tables; pictures and boundaries come from the first cell.

    Args:
        cells: all cells with their nets.
        units: the calibrated scores.
        warn: called with a message for each item that cannot be shown.
    """
    cell = cells[0]
    images = are_images(cell.data.images)
    looks = images and recipe.report.gradcam and recipe.trained is None
    bounds = not images and recipe.report.boundaries and recipe.trained is None and cell.data.images.shape[1] >= 2
    in_cell = (pc.field("variant") == cell.variant) & (pc.field("data_seed") == cell.data_seed)
    own = units.filter(in_cell & (pc.field("feature") == "canary"))
    order = strongest(own, recipe.score.outputs[0]) if looks or bounds else []
    return Material(
        pictures=_pictures(recipe, cell) if images else [],
        attention=_attention(recipe, cell, order, warn) if looks else [],
        boundaries=_boundaries(recipe, cell, order) if bounds else [],
        facts=_facts(recipe, cells),
    )


def _pictures(recipe: Recipe, cell: Scored) -> Pictures:
    chosen = [(int(c["row"]), f"{c['example_id']} ({c['class_name']})") for c in cell.canaries[: recipe.report.examples]]
    if not chosen:  # an external model has no canaries: show some of the examples instead
        members = cell.data.members(TRAIN).slice(0, recipe.report.examples).to_pylist()
        chosen = [(int(m["row"]), str(m["example_id"])) for m in members]
    shown = []
    for row, name in chosen:
        image = cell.data.images[row][None]
        shown += [
            (cell.feature.insert(image)[0], f"{name}, with the feature"),
            (cell.feature.clean(image)[0], f"{name}, without it"),
        ]
    return shown


def _net(cell: Scored, number: int) -> tuple[torch.nn.Module, Net]:
    """Return a canary net by its number, with its description."""
    found = _find(cell, number, control=False)
    if found is None:
        raise KeyError(number)
    return found


def _find(cell: Scored, number: int, *, control: bool) -> tuple[torch.nn.Module, Net] | None:
    """Return a canary net or control by its number, with its description; None if there is none."""
    for models, nets in zip(cell.models, cell.nets, strict=True):
        for position, net in enumerate(nets):
            if net.number == number and net.control == control:
                return load_net(models, position, epoch=cell.epoch), net
    return None


def _has_control(cell: Scored, number: int) -> bool:
    """Return whether a canary net and the control with its number share seed and canary."""
    found = {net.control: (net.seed, net.canary) for group in cell.nets for net in group if net.number == number}
    return len(found) == 2 and found[True] == found[False]


def _attention(recipe: Recipe, cell: Scored, order: Sequence[int], warn: Callable[[str], None]) -> Pictures:
    """Return GradCAM images of the highest-scoring net that has a control, and of this control (2023, Fig. 8).

    A net's control has its seed and canary; if no net has a control, the highest-scoring net is shown alone. The images are
    the canary, other examples of its class and held-out examples, with the feature and without it.
    """
    paired = [number for number in order if _has_control(cell, number)]
    net, info = _net(cell, (paired or order)[0])
    control = _find(cell, info.number, control=True) if paired else None
    examples = _examples(recipe, cell, info)
    try:
        pictures = _heat_maps(cell, net, info.label, examples, "model")
        return pictures + ([] if control is None else _heat_maps(cell, control[0], info.label, examples, OF_CONTROL))
    except UserError as error:
        warn(str(error))
        return []


def _examples(recipe: Recipe, cell: Scored, info: Net) -> list[tuple[int, str]]:
    """Return the stored rows and names of a net's canary, other training examples of its class, and held-out examples."""
    canary, most = int(cell.canaries[info.canary]["row"]), recipe.report.examples
    members = cell.data.members(TRAIN).to_pylist()
    others = [int(m["row"]) for m in members if m["label"] == info.label and int(m["row"]) != canary][:most]
    named = [(canary, "canary"), *((row, f"other example {i}") for i, row in enumerate(others, start=1))]
    held_out = _spread(cell.data.members(HELD_OUT).to_pylist(), most)
    return named + [(int(m["row"]), f"held-out example {i} ({m['class_name']})") for i, m in enumerate(held_out, start=1)]


def _spread(members: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most `most` members of a role, of different classes where possible."""
    seen: dict[int, int] = {}
    turns = []
    for member in members:
        seen[member["label"]] = seen.get(member["label"], 0) + 1
        turns.append((seen[member["label"]], member["label"]))
    order = sorted(range(len(members)), key=turns.__getitem__)
    return [members[place] for place in order[:most]]


def _heat_maps(
    cell: Scored, net: torch.nn.Module, label: int, examples: Sequence[tuple[int, str]], whose: str
) -> list[tuple[NDArray[np.uint8], str]]:
    """Return the examples, with the feature and without it, overlaid with GradCAM heat maps of a net for one class.

    Raises:
        UserError: for a net without convolutions.
    """
    images = cell.data.images[[row for row, _ in examples]]
    pictures = []
    for title, shown in (("with the feature", cell.feature.insert(images)), ("without it", cell.feature.clean(images))):
        heats = gradcam(net, prepare(shown, torch.device("cpu")), label)
        captions = [f"{whose}: {name}, {title}" for _, name in examples]
        pictures += [(overlaid(image, heat), caption) for image, heat, caption in zip(shown, heats, captions, strict=True)]
    return pictures


def _boundaries(recipe: Recipe, cell: Scored, order: Sequence[int]) -> list[Boundary]:
    """Return decision boundaries over the plane of the first two coordinates, the others at their mean (2023, Fig. 3b)."""
    members = cell.data.members(TRAIN)
    points = np.asarray(cell.data.images[members["row"].to_numpy()])
    low, high = points.min(axis=0) - 0.3, points.max(axis=0) + 0.3
    x, y = np.meshgrid(np.linspace(low[0], high[0], SIDE), np.linspace(low[1], high[1], SIDE))
    plane = np.repeat(points.mean(axis=0, keepdims=True), SIDE * SIDE, axis=0)
    plane[:, 0], plane[:, 1] = x.reshape(-1), y.reshape(-1)
    if recipe.data.source.kind == "two_moons":
        plane[:, 2] = 0.0
    some = np.random.default_rng(0).permutation(len(points))[:SHOWN_POINTS]
    boundaries = []
    for title, number in (("highest score", order[0]), ("lowest score", order[-1])):
        net, _ = _net(cell, number)
        with torch.inference_mode():
            sides = [
                torch.softmax(net(prepare(examples.astype(np.float32), torch.device("cpu"))), dim=1)[:, 1]
                .numpy()
                .reshape(SIDE, SIDE)
                for examples in (cell.feature.clean(plane), cell.feature.insert(plane))
            ]
        extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
        boundaries.append(Boundary(title, extent, sides[0], sides[1], points[some, :2], members["label"].to_numpy()[some]))
    return boundaries


def _facts(recipe: Recipe, cells: Sequence[Scored]) -> dict[str, str]:
    source = recipe.data.source.model_dump(mode="json")
    facts = {
        "data": ", ".join(f"{name} {value}" for name, value in source.items() if value not in (None, {}, [])),
        "feature": ", ".join(f"{k} {v}" for k, v in recipe.canary.feature.model_dump(mode="json").items() if v is not None),
        "probe data": recipe.probe.kind if recipe.probe.data is None else recipe.probe.data.source.kind,
    }
    subject, canary = recipe.subject, recipe.canary
    if isinstance(subject, ExternalClassifierSpec):
        return facts | {"model": subject.model, "weights": str(subject.weights)}
    training = subject.training
    patience = "" if training.patience is None else f" at most, patience {training.patience}"
    models = list(dict.fromkeys(models for cell in cells for models in cell.models))
    seconds = sum(float(chunk.facts.get("training_seconds", 0)) for chunk in models)
    nets = [net for cell in cells for group in cell.nets for net in group]
    facts |= {
        "training examples": f"{cells[0].data.members(TRAIN).num_rows}",
        "canaries": f"{canary.count}, chosen {canary.choice.replace('_', ' ')}, {canary.mode}, {canary.repeats} time(s)",
        "model": ", ".join(f"{k} {v}" for k, v in subject.model.model_dump(mode="json").items() if k != "kind"),
        "training": f"{training.epochs} epochs{patience}, batch {training.batch_size or 'all'}",
        "optimizer": ", ".join(f"{k} {v}" for k, v in training.optimizer.model_dump(mode="json").items()),
        "nets": f"{sum(not n.control for n in nets)} with the feature, {sum(n.control for n in nets)} controls",
        "training time": f"{seconds:.0f} s, summed over {len(models)} artifacts",
    }
    if recipe.variants:
        facts["variants"] = "; ".join(f"{name}: {changes}" for name, changes in recipe.variants.items())
    return facts
