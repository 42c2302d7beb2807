"""Image-text models of open_clip from a folder: no pickle is opened, no code of it runs, and nothing is downloaded."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external.network import ExternalNetwork, Method, by_layer, normalization
from memlib.models.hugging import CONFIGS, FEW_NUMBERS, OPEN_CLIP, check_declared, check_folder, loading, read_json
from memlib.specs.encoders import OpenClipEncoder

CLEANED = ("lower", "whitespace", "canonicalize")  # ways in which open_clip's own tokenizer cleans captions
MEAN, STD = (
    (0.48145466, 0.4578275, 0.40821073),
    (0.26862954, 0.26130258, 0.27577711),
)  # open_clip's own
CONTEXT = 77  # tokens of a caption unless the config says otherwise
ELSEWHERE = "embed what memlib export writes with it yourself, and give encoders of kind embeddings"


@dataclass(frozen=True)
class OpenClip:
    """An image-text model of open_clip."""

    model: Any  #: the model.
    images: ExternalNetwork  #: its image half.
    tokenizer: Callable[[list[str]], Tensor]  #: function from captions to tokens (num_captions, length).


@dataclass(frozen=True)
class _Config:
    """The declared model and its preparation of images and captions, checked."""

    mean: Sequence[float]  #: mean, std: of each channel of images in [0, 1].
    std: Sequence[float]
    length: int  #: tokens of a caption.
    clean: str  #: way in which captions are cleaned.


def load_open_clip(spec: OpenClipEncoder) -> OpenClip:
    """Load a model of open_clip.

    Raises:
        UserError: when the folder holds no whole model, or a model of which open_clip would look for parts elsewhere.
    """
    try:
        open_clip = importlib.import_module("open_clip")
    except ImportError as error:
        raise UserError("an open_clip model needs open_clip: pip install -e '.[open_clip]' in memlib's folder") from error
    check_folder(spec.path, OPEN_CLIP)
    with loading(spec.path, OPEN_CLIP), _without_root_handlers():
        config, weights = _checked(spec.path), _weights(spec.path)
        numbers = check_declared(Path(spec.path), OPEN_CLIP)
        name = f"local-dir:{spec.path}"
        with torch.device("meta"):
            _check_tensors(open_clip.create_model(name, load_weights=False, device="meta"), weights, numbers)
        model = open_clip.create_model(name, load_weights=False)
        model.load_state_dict(safetensors.torch.load_file(weights))
        tokenizer = open_clip.SimpleTokenizer(context_length=config.length, clean=config.clean)
    sides = model.visual.image_size
    height, width = (sides, sides) if isinstance(sides, int) else sides
    if height != width or height < 1:
        raise UserError(
            f"the open_clip model in {spec.path} takes images of {width} x {height}, which are not square; {ELSEWHERE}"
        )
    images = ExternalNetwork(
        Method(model, "encode_image"), name=spec.path, side=height, mean=config.mean, std=config.std,
        read=by_layer,
    )  # fmt: skip
    return OpenClip(model.eval(), images.eval(), tokenizer)


def _weights(folder: str) -> Path:
    """Return the file of weights: open_clip itself would choose among several, and prefer some pickles."""
    found = sorted(Path(folder).glob("*.safetensors"))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder} needs one file of weights, *.safetensors; it has {names}")
    return found[0]


def _checked(folder: str) -> _Config:
    """Return the preparation that a folder declares, after a check that the declared model is in the folder."""
    name = f"{CONFIGS[OPEN_CLIP]} in {folder}"
    whole = read_json(Path(folder) / CONFIGS[OPEN_CLIP])
    model = _object(whole, "model_cfg", name)
    text, vision = _object(model, "text_cfg", name), _object(model, "vision_cfg", name)
    prepared = _object(whole, "preprocess_cfg", name) if isinstance(whole, Mapping) and "preprocess_cfg" in whole else {}
    options = text.get("tokenizer_kwargs") or {}
    for part, is_elsewhere in (
        (f"the text half {text.get('hf_model_name')}", text.get("hf_model_name") is not None),
        (f"the tokenizer {text.get('hf_tokenizer_name')}", bool(text.get("hf_tokenizer_name"))),
        (f"the image half {vision.get('timm_model_name')}", ":" in str(vision.get("timm_model_name") or "")),
        (f"the tokenizer options {options}", not isinstance(options, Mapping) or bool(set(options) - {"clean"})),
    ):
        if is_elsewhere:
            raise UserError(f"the open_clip model in {folder} has {part[:200]}, which memlib does not load; {ELSEWHERE}")
    clean, length = options.get("clean", "lower"), text.get("context_length", CONTEXT)
    if clean not in CLEANED:
        raise UserError(f"{name} states tokenizer_kwargs.clean {clean!r}; it must be one of {', '.join(CLEANED)}")
    if not isinstance(length, int) or length < 3:
        raise UserError(f"{name} states context_length {length!r}; it must be an integer from 3")
    mean, std = normalization(
        ("mean", prepared.get("mean", MEAN)), ("std", prepared.get("std", STD)), name=name,
        needs="; it needs three numbers, one for each channel",
    )  # fmt: skip
    return _Config(mean, std, length, clean)


def _object(parent: Any, key: str, name: str) -> Mapping[str, Any]:
    found = parent.get(key) if isinstance(parent, Mapping) else None
    if not isinstance(found, Mapping):
        raise UserError(f"{name} has no object {key}; save the model again, as open_clip does")
    return found


def _check_tensors(model: nn.Module, weights: Path, numbers: int) -> None:
    """Raise UserError unless the declared model, built without memory, has the tensors of the weights and no large others."""
    declared = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    with safetensors.safe_open(weights, framework="pt") as file:
        stored = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    for name in sorted({**declared, **stored}):
        if declared.get(name) != stored.get(name):
            raise UserError(
                f"{CONFIGS[OPEN_CLIP]} in {weights.parent} declares {name} as {_shape(declared.get(name))}, but "
                f"{weights.name} has {_shape(stored.get(name))}; take both from the same model"
            )
    for name, value in model.named_buffers():
        if value.numel() > max(numbers, FEW_NUMBERS):
            seen = f"{name} of shape {tuple(value.shape)}, more numbers than all its weights"
            raise UserError(f"{CONFIGS[OPEN_CLIP]} in {weights.parent} declares {seen}; take both from the same model")


def _shape(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else f"of shape {shape}"


@contextlib.contextmanager
def _without_root_handlers() -> Iterator[None]:
    """Keep open_clip, which logs by logging.info, from giving the root logger a handler that prints."""
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silent)
