"""Models that people bring: the network of weights, the inputs that it takes, and the answers of an estimator on a table."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.data.examples import UnreadableImage
from memlib.data.images.folder import ImageFolder
from memlib.errors import UserError
from memlib.looking.asking import FOREST, IN_ORDER, OUTPUTS, Asked, Recipe, source_ids
from memlib.looking.things import Thing, is_of_others, members_first, written
from memlib.models.external.estimator_files import read_estimator
from memlib.pipeline import user_code
from memlib.specs import ExternalClassifierSpec, ImageFolderSource

if TYPE_CHECKING:
    from torch import Tensor, nn

SIDES_TRIED = (32, 28, 64, 96, 128, 160, 192, 224, 256)  # px
SCALES = ("unit", "imagenet", "raw")
NO_CLASSES = 1237  # a number that no other part of an architecture has
FIRST, NEAR = 24, 0.2  # images by which most sides are passed over, and share of right answers by which they must be worse
TRIED = 96  # images that the model was not trained on, by which its inputs are found
CHANCE = 0.01  # probability with which guessing would look like an answer
STEPS = 3  # answers that cost as much as a step of training
CLEAR = 0.02  # share of right answers by which another size or scale must do better than the first one that fits


@dataclass(frozen=True)
class Inputs:
    """The inputs that a network takes, as its answers tell."""

    side: int  #: side of the images in pixels.
    channels: int
    scale: str  #: unit, imagenet or raw.
    right: float  #: share of right answers on images that it was not trained on.
    count: int  #: number of these images.
    seconds: float = 0.0  #: CPU seconds of an answer to one image.


def with_network(asked: Asked, things: Sequence[Thing]) -> Asked:
    """Return recipes of images with the network filled in: its architecture, its weights and its inputs.

    Raises:
        UserError: when the weights belong to no known architecture, or the network takes none of the images.
    """
    if asked.quick is None or asked.full is None:
        return asked
    folders = [one for one in things if one.kind == "images"]
    trained, network, remarks = _network(things, len(folders[0].classes))
    found = inputs_of(network, trained, *_some(folders))
    spec = {name: value for name, value in trained.model_dump(mode="json").items() if value not in (None, {})}
    spec |= {"inputs": found.scale, "outputs": trained.outputs}
    data = {"image_size": found.side, "channels": found.channels}
    said = (
        f"it takes images of {found.side} px on the scale {found.scale}, and is right on {found.right:.0%} of {found.count} "
    )
    filled = {
        name: _filled(recipe, data, spec)
        for name, recipe in (("quick", asked.quick), ("full", asked.full)) if recipe is not None
    }  # fmt: skip
    images = sum(count for one in folders for count in one.counts.values())
    share, epochs = asked.full["shadows"]["share"], asked.full["training"]["epochs"]
    seconds = STEPS * found.seconds * images * share * epochs * asked.full["shadows"]["count"]
    remarks.append(said + "images that it was not trained on")
    if _is_guessing(found, len(folders[0].classes)):
        remarks.append(
            "CAUTION: with no side and scale is it better than guessing: check the order of the classes, the weights, and "
            "how images are prepared"
        )
    return replace(asked, remarks=(*asked.remarks, *remarks), seconds=seconds, **filled)  # type: ignore[arg-type]


def _is_guessing(found: Inputs, classes: int) -> bool:
    """Return whether guessing would be right as often with the best of all sides and scales."""
    p = float(scipy.stats.binom.sf(round(found.right * found.count) - 1, found.count, 1 / classes))
    return p * len(SIDES_TRIED) * len(SCALES) > CHANCE


def _filled(recipe: Recipe, data: Recipe, trained: Recipe) -> Recipe:
    return {
        **recipe, "data": {**recipe["data"], **data}, "target": {**recipe["target"], "trained": trained},
    }  # fmt: skip


def _network(things: Sequence[Thing], num_classes: int) -> tuple[ExternalClassifierSpec, nn.Module, list[str]]:
    """Return the external model that things make up, loaded, and remarks on it."""
    from memlib.models.external.classifiers import load_external

    weights = next((one.path for one in things if one.kind == "weights"), None)
    factory = next((one.path for one in things if one.kind == "factory"), None)
    folder = next((one.path for one in things if one.kind == "classifier"), None)
    remarks: list[str] = []
    if folder is not None:
        spec = ExternalClassifierSpec(model=folder if "/" in folder else f"./{folder}")
    elif factory is not None:
        spec = ExternalClassifierSpec(model=factory, weights=weights, version=None if weights else "1")
    else:
        assert weights is not None
        name, classes = architecture_of(weights)
        user_code.allow(["torchvision.models"])  # which the weights name, and nobody else
        spec = ExternalClassifierSpec(model=f"torchvision.models:{name}", weights=weights, options={"num_classes": classes})
        remarks.append(f"the weights are of torchvision's {name} with {classes} classes")
    return spec, load_external(spec, spec.weights), remarks


def architecture_of(weights: str) -> tuple[str, int]:
    """Return the architecture of torchvision whose weights a file holds, and its number of classes.

    Raises:
        UserError: when there is none.
    """
    import torchvision

    from memlib.models.weights import states_in

    states = [_plain(state) for state in states_in(weights).values()]
    shapes = [{name: tuple(value.shape) for name, value in state.items()} for state in states]
    for name in torchvision.models.list_models(module=torchvision.models):
        for found in shapes:
            if (classes := _classes_of(found, _shapes_of(name))) is not None:
                return name, classes
    names = ", ".join([name for state in states for name, value in state.items() if value.dim() >= 2][:3])
    raise UserError(
        f"{weights} holds the weights of a network that is none of torchvision's ({names}, ...): name the function that "
        "builds it, too, as in nets:build for a function build in nets.py"
    )


@cache
def _shapes_of(name: str) -> Mapping[str, tuple[int, ...]]:
    """Return the shapes of the weights of an architecture of torchvision with `NO_CLASSES` classes; {} if none are known."""
    import torch
    import torchvision

    with warnings.catch_warnings(), contextlib.suppress(TypeError, ValueError, RuntimeError), torch.device("meta"):
        warnings.simplefilter("ignore")
        state = torchvision.models.get_model(name, weights=None, num_classes=NO_CLASSES).state_dict()
        return {key: tuple(value.shape) for key, value in state.items()}
    return {}


def _plain(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights without the prefixes of wrappers that all of their names share."""
    names = list(state)
    for prefix in ("module.", "model.", "_orig_mod.", "net."):
        if names and all(name.startswith(prefix) for name in names):
            return _plain({name.removeprefix(prefix): value for name, value in state.items()})
    return dict(state)


def _classes_of(shapes: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> int | None:
    """Return the number of classes of weights, if they are those of an architecture; None if they are not.

    Args:
        shapes: shapes of the weights by name.
        wanted: those of the architecture with `NO_CLASSES` classes.
    """
    if shapes.keys() != wanted.keys():
        return None
    heads = {name for name, shape in wanted.items() if shape[:1] == (NO_CLASSES,)}
    counts = {shapes[name][0] for name in heads if shapes[name]}
    is_equal = all(
        shapes[name] == shape or (name in heads and shapes[name][1:] == shape[1:]) for name, shape in wanted.items()
    )
    return counts.pop() if is_equal and len(counts) == 1 else None


def inputs_of(
    network: nn.Module, trained: ExternalClassifierSpec, pictures: Sequence[Any], labels: NDArray[np.int64]
) -> Inputs:
    """Return the inputs that a network takes: those with most right answers, the images' own size and [0, 1] first.

    Args:
        pictures: images that it was not trained on, as PIL opens them.
        labels: (num_images,) their classes.

    Raises:
        UserError: when it takes none of the sizes.
    """
    channels = _channels(network)
    native = int(np.median([min(picture.size) for picture in pictures]))
    problem, first = "", {}
    for side in dict.fromkeys((native, *SIDES_TRIED)):
        for scale in SCALES if channels == 3 else ("unit", "raw"):
            try:
                first[side, scale] = _tried(network, trained, pictures[:FIRST], labels[:FIRST], side, channels, scale)
            except (UserError, RuntimeError, ValueError) as error:
                problem = (str(error).splitlines() or [""])[0]
                break
    most = max((one.right for one in first.values()), default=0.0)
    best: Inputs | None = None
    for (side, scale), one in first.items():
        if one.right >= most - NEAR:
            found = _tried(network, trained, pictures, labels, side, channels, scale)
            if best is None or found.right > best.right + CLEAR:
                best = found
    if best is None:
        sizes = ", ".join(map(str, dict.fromkeys((native, *SIDES_TRIED))))
        raise UserError(f"{trained.model} takes images of none of the sides {sizes} px ({problem}); see data.image_size")
    return best


def _tried(
    network: nn.Module,
    trained: ExternalClassifierSpec,
    pictures: Sequence[Any],
    labels: NDArray[np.int64],
    side: int,
    channels: int,
    scale: str,
) -> Inputs:
    """Return inputs of one kind, with the share of images on which the network is right."""
    started = time.process_time()
    images = _stored(pictures, side, channels)
    right = _right(network, trained.model_copy(update={"inputs": scale}), images, labels)
    return Inputs(side, channels, scale, right, len(labels), (time.process_time() - started) / len(labels))


def _right(
    network: nn.Module, trained: ExternalClassifierSpec, images: NDArray[np.uint8], labels: NDArray[np.int64]
) -> float:
    import torch

    from memlib.models.external.classifiers import ClassScores, take_external

    with torch.no_grad():
        count = int(labels.max()) + 1 if trained.classes else _outputs(network, trained, images)
        scores = ClassScores(network, trained, count)(take_external(trained, images, torch.device("cpu")))
    return float((scores.argmax(dim=1).numpy() == labels).mean())


def _outputs(network: nn.Module, trained: ExternalClassifierSpec, images: NDArray[np.uint8]) -> int:
    """Return the number of a network's outputs."""
    import torch

    from memlib.models.external.classifiers import take_external

    found = network(take_external(trained, images[:1], torch.device("cpu")))
    found = found.get("logits") if isinstance(found, Mapping) else getattr(found, "logits", found)
    if found is None or found.dim() != 2:
        raise UserError(f"{trained.model} returns no class scores")
    return int(found.shape[1])


def _channels(network: nn.Module) -> int:
    """Return the number of channels of the first convolution; 3 without one."""
    from torch import nn

    first = next((layer for layer in network.modules() if isinstance(layer, nn.Conv2d)), None)
    return 1 if first is not None and first.in_channels == 1 else 3


def _stored(pictures: Sequence[Any], side: int, channels: int) -> NDArray[np.uint8]:
    """Return images as memlib stores them: (num_images, side, side, channels)."""
    from PIL import Image

    mode = "L" if channels == 1 else "RGB"
    images = [np.asarray(one.resize((side, side), Image.Resampling.BICUBIC).convert(mode)) for one in pictures]
    return np.stack(images).reshape(len(images), side, side, channels)


def _some(folders: Sequence[Thing]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return some images that the model was not trained on, and their classes."""
    from PIL import Image

    last = members_first(folders)[-1]
    source = ImageFolder(ImageFolderSource(kind="image_folder", path=last.path))
    others = [part for part in last.parts if is_of_others(part)]
    places = [place for place in range(len(source)) if not others or _part(source, place) in others]
    chosen = np.random.default_rng(0).permutation(places)[:TRIED]
    pictures, labels = [], []
    for place in chosen.tolist():
        with contextlib.suppress(UnreadableImage):
            example = source[place]
            pictures.append(Image.fromarray(np.asarray(example.image)))
            labels.append(example.label)
    if not pictures:
        raise UserError(f"none of the images in {last.path} can be read")
    return pictures, np.array(labels)


def _part(source: ImageFolder, place: int) -> str:
    return source._items[place][0].partition("/")[0]


# -- estimators ---------------------------------------------------------------------------------------------


def with_estimator(asked: Asked, things: Sequence[Thing], sides: Sequence[Thing], folder: str) -> Asked:
    """Return recipes in which an estimator that takes a table's own columns, not coordinates, is known by its outputs.

    Raises:
        UserError: when it can be read, but not asked.
    """
    path = next((one.path for one in things if one.kind == "estimator"), None)
    if path is None or asked.quick is None:
        return asked
    model = read_estimator(path)
    names = getattr(model, "feature_names_in_", None)
    if names is None:
        return asked
    frames = _frames(sides)
    if missing := [name for name in names if name not in frames[0].columns]:
        raise UserError(f"{path} was fitted on a column {missing[0]!r}, which {sides[0].path} lacks")
    table: dict[str, list[Any]] = {"example_id": [name for part in source_ids(sides) for name in part]}
    for frame in frames:
        shares = _asked_of(model, frame[list(names)], path)
        for place, name in enumerate(model.classes_):
            table.setdefault(str(name), []).extend(shares[:, place].tolist())
    changes = {
        name: _by_outputs(recipe, f"{folder}/{OUTPUTS}")
        for name, recipe in (("quick", asked.quick), ("full", asked.full)) if recipe is not None
    }  # fmt: skip
    remark = (
        f"{path} takes columns by name ({', '.join(map(str, names[:3]))}, ...), so it is known by its probabilities; its "
    )
    remark += "shadow models are forests of memlib's"
    remarks = (*(line for line in asked.remarks if line != IN_ORDER), remark)
    return replace(asked, files={**asked.files, OUTPUTS: written(table)}, remarks=remarks, **changes)  # type: ignore[arg-type]


def _by_outputs(recipe: Recipe, path: str) -> Recipe:
    target = {name: value for name, value in recipe["target"].items() if name != "trained"}
    source = {name: value for name, value in recipe["data"]["source"].items() if name != "standardize"}
    return {**recipe, "model": FOREST, "data": {"source": source}, "target": {**target, "outputs": {"path": path}}}


def _asked_of(model: Any, frame: Any, path: str) -> NDArray[np.float64]:
    try:
        return np.asarray(model.predict_proba(frame), dtype=np.float64)
    except Exception as error:  # a pipeline of the user's may raise anything
        reason = (str(error).splitlines() or [""])[0][:200]
        raise UserError(f"{path} cannot be asked about these rows ({type(error).__name__}: {reason})") from error


def _frames(sides: Sequence[Thing]) -> list[Any]:
    import pandas as pd  # slow to load

    frames = []
    for one in sides:
        assert one.columns is not None
        if one.path.endswith(".parquet"):
            frames.append(pd.read_parquet(one.path))
        elif one.path.endswith((".jsonl", ".ndjson")):
            frames.append(pd.read_json(one.path, lines=True))
        else:
            frames.append(pd.read_csv(one.path, sep=one.columns.delimiter, decimal=one.columns.decimal))
    return frames
