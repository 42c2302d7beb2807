"""External image encoders as functions from pixels to layers; nothing is unpickled."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external.classifiers import loaded, with_weights
from memlib.models.external.factory import divides_twice, is_shifted, made, scale_of
from memlib.models.external.network import ExternalNetwork, by_layer, normalization
from memlib.models.external.open_clip import load_open_clip
from memlib.models.hugging import ENCODER, loading, read_json, transformers_for
from memlib.models.vision import MEAN, STD
from memlib.models.weights import weights_for
from memlib.specs.encoders import FactoryEncoder, OpenClipEncoder, TimmEncoder, TorchvisionEncoder, TransformersEncoder

HUNDREDS = 1000  # default number of outputs of the libraries' classifiers


def load_external_encoder(
    spec: FactoryEncoder | TorchvisionEncoder | TimmEncoder | TransformersEncoder | OpenClipEncoder,
) -> ExternalNetwork:
    """Return an encoder in evaluation mode, on the CPU.

    Raises:
        UserError: when the encoder cannot be loaded; the message says why.
    """
    match spec:
        case FactoryEncoder():
            model = with_weights(made(spec), spec.model, spec.weights, spec)
            mean, std = {
                "unit": ((0.0,) * 3, (1.0,) * 3), "imagenet": (MEAN, STD), "raw": ((0.0,) * 3, (1 / 255,) * 3)
            }[spec.inputs]  # fmt: skip
            encoder = ExternalNetwork(model, name=spec.model, side=spec.side, mean=mean, std=std, read=by_layer)
        case TorchvisionEncoder():
            torchvision = importlib.import_module("torchvision")
            body = _from_library(
                f"torchvision's {spec.architecture}",
                lambda count: torchvision.models.get_model(spec.architecture, weights=None, num_classes=count),
                spec,
            )
            encoder = ExternalNetwork(body, name=spec.architecture, side=spec.side, mean=MEAN, std=STD, read=by_layer)
        case TimmEncoder():
            encoder = _timm(spec)
        case TransformersEncoder():
            encoder = _transformers(spec)
        case OpenClipEncoder():
            encoder = load_open_clip(spec).images
    return encoder.eval()


class _Headed(nn.Module):
    """A classifier that also returns the inputs of its last linear layer, as the embeddings of its backbone."""

    def __init__(self, model: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._seen: list[Tensor] = []
        head.register_forward_pre_hook(lambda _, inputs: self._seen.append(inputs[0]))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        self._seen.clear()
        scores = self.model(images)
        return {"backbone": self._seen[-1], "classifier": scores}


class _Headless(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"backbone": self.model(images)}


def _from_library(
    name: str, build: Callable[[int], nn.Module], spec: TorchvisionEncoder | TimmEncoder
) -> _Headed | _Headless:
    """Build a library's architecture with the weights of a file, which may lack the last linear layer or resize it."""
    try:
        model = build(HUNDREDS)
    except Exception as error:  # libraries raise different errors for unknown names
        raise UserError(f"cannot build {name} ({type(error).__name__}: {str(error).splitlines()[0][:200]})") from error
    heads = [part for part, module in model.named_modules() if isinstance(module, nn.Linear)]
    if not heads:
        raise UserError(f"{name} has no linear layer at its end; use kind: import")
    head = heads[-1]
    body = [part for part in model.state_dict() if not part.startswith(f"{head}.")]
    state = weights_for(spec.weights, body, spec, other=f"{head}.")
    if f"{head}.weight" in state:
        model = loaded(build(len(state[f"{head}.weight"])), name, spec.weights, state)
        return _Headed(model, model.get_submodule(head))
    model.set_submodule(head, nn.Identity())
    return _Headless(loaded(model, name, spec.weights, {part: state[part] for part in body}))


def _timm(spec: TimmEncoder) -> ExternalNetwork:
    try:
        timm = importlib.import_module("timm")
    except ImportError as error:
        raise UserError("a timm encoder needs timm: pip install -e '.[timm]' in memlib's folder") from error
    body = _from_library(
        f"timm's {spec.architecture}", lambda count: timm.create_model(spec.architecture, num_classes=count), spec
    )
    inner = body.model
    assert isinstance(inner, nn.Module)
    config = timm.data.resolve_model_data_config(inner)
    return ExternalNetwork(
        body,
        name=spec.architecture,
        side=int(config["input_size"][-1]),
        mean=config["mean"],
        std=config["std"],
        read=by_layer,
    )


@dataclass(frozen=True)
class Folder:
    """A model of a Hugging Face folder, and the preprocessing of its images."""

    model: Any  #: the model.
    unpooled: bool  #: True if the model's pooler has random weights, as the folder lacks them.
    side: int  #: side of the input images in pixels.
    mean: Sequence[float]  #: mean, std: as for `ExternalNetwork`.
    std: Sequence[float]


def load_folder(spec: TransformersEncoder) -> Folder:
    """Load a model of Hugging Face's transformers; code and pickles in the folder are not run.

    Raises:
        UserError: when the folder holds no whole model, or does not state how images are prepared.
    """
    transformers, folder = transformers_for(spec.path, ENCODER), Path(spec.path)
    with loading(spec.path, ENCODER):
        prepared = read_json(folder / "preprocessor_config.json")
        model, found = transformers.AutoModel.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    missing = sorted(found["missing_keys"])
    unpooled = bool(missing) and all(name.startswith("pooler.") for name in missing)
    if missing and not unpooled:
        raise UserError(
            f"the Hugging Face encoder in {spec.path} lacks weights ({missing[0]}, {len(missing)} in all); save all of it"
        )
    if not isinstance(prepared, Mapping):
        raise UserError(f"preprocessor_config.json in {spec.path} is no JSON object; save the image processor again")
    return Folder(model, unpooled, *_preprocessing(prepared, spec.path))


def _preprocessing(prepared: Mapping[str, Any], folder: str) -> tuple[int, Sequence[float], Sequence[float]]:
    """Return the side, mean and standard deviation of the images that a model takes, as its image processor states them.

    Raises:
        UserError: when these are not stated, or images are prepared in another way.
    """
    if prepared.get("do_flip_channel_order"):
        raise UserError(f"the encoder in {folder} takes blue before red (do_flip_channel_order); give it as a factory")
    size = prepared.get("crop_size") if prepared.get("do_center_crop") else None
    size = size or prepared.get("size") or {}
    sides = [size.get("height", size.get("shortest_edge")), size.get("width")] if isinstance(size, Mapping) else [size]
    side, *others = [one for one in sides if one is not None] or [None]
    if type(side) is not int or side < 1 or any(other != side for other in others):
        stated = f"the size {size!r}, and images are squares of whole pixels" if size else "no image size"
        raise UserError(
            f"preprocessor_config.json in {folder} states {stated}; add size, or crop_size with do_center_crop, or "
            "save the image processor again"
        )
    mean: Sequence[float] = (0.0,) * 3
    std: Sequence[float] = (1.0,) * 3
    if prepared.get("do_normalize", True):  # what transformers assumes where nothing is stated differs by class
        found = ((key, prepared.get(key)) for key in ("image_mean", "image_std"))
        mean, std = normalization(
            *((key, [value] * 3 if type(value) in (int, float) else value) for key, value in found),
            name=f"preprocessor_config.json in {folder}",
            needs=", and a number or three are needed; save the image processor again, or set do_normalize to false if the "
            "model takes pixels from 0 to 1",
        )
    if is_shifted(prepared):
        mean = [value + 1 for value in mean]
    if divides_twice(prepared):
        if not (prepared.get("do_normalize", True) and prepared.get("image_std")):
            raise UserError(
                f"the encoder in {folder} divides by image_std (include_top) without do_normalize; give it as a factory"
            )
        std = [value * value for value in std]
    scale = scale_of(folder)
    return side, [value / scale for value in mean], [value / scale for value in std]


def _transformers(spec: TransformersEncoder) -> ExternalNetwork:
    found = load_folder(spec)

    def read(outputs: Any) -> Mapping[str, Any]:
        hidden, layers = outputs.last_hidden_state, {}
        if hidden.dim() == 3:
            layers = {"cls": hidden[:, 0], "mean": hidden.mean(dim=1)}
        pooled = getattr(outputs, "pooler_output", None)
        if pooled is not None and not found.unpooled:
            layers["pooled"] = pooled.flatten(1)
        return layers or {"mean": hidden.flatten(2).mean(dim=2)}

    return ExternalNetwork(found.model, name=spec.path, side=found.side, mean=found.mean, std=found.std, read=read)
