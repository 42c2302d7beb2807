"""External image encoders as functions from pixels to layers; nothing is unpickled."""

from __future__ import annotations

import contextlib
import importlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external.classifiers import loaded, with_weights
from memlib.models.external.factory import made, scale_of
from memlib.models.hugging import (
    CONFIGS,
    ENCODER,
    OPEN_CLIP,
    check_declared,
    check_folder,
    loading,
    read_json,
    transformers_for,
)
from memlib.models.vision import MEAN, STD
from memlib.models.weights import weights_for
from memlib.specs.encoders import FactoryEncoder, OpenClipEncoder, TimmEncoder, TorchvisionEncoder, TransformersEncoder

Layers = list[tuple[str, Tensor]]
SAME = 1e-3  # relative tolerance for embeddings of the same images
HUNDREDS = 1000  # default number of outputs of the libraries' classifiers


class ExternalNetwork(nn.Module):
    """An external encoder, which normalizes images itself.

    Args:
        model: the user's model.
        name: the model's name in error messages.
        side: side of its input images, in pixels.
        mean, std: mean of each channel, which is subtracted from pixels in [0, 1], and standard deviation, by which the
            difference is divided.
        read: function that converts the model's outputs to layers by name, the deepest last.
    """

    def __init__(
        self, model: nn.Module, *, name: str, side: int, mean: Sequence[float], std: Sequence[float],
        read: Callable[[Any], Mapping[str, Any]],
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.side, self._name, self._read = model, side, name, read
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1), persistent=False)

    def all_layers(self, pixels: Tensor) -> Layers:
        """Return all layers for images (batch, 3, side, side) in [0, 1], each (batch, dim).

        Raises:
            UserError: when the model cannot take the images, or its outputs are not embeddings.
        """
        mean, std = self.get_buffer("mean"), self.get_buffer("std")
        try:
            outputs = self.model((pixels - mean) / std)
        except (torch.OutOfMemoryError, UserError):
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            reason = (str(error).splitlines() or [""])[0][:300]
            raise UserError(
                f"{self._name} cannot take images of {self.side} x {self.side} pixels ({type(error).__name__}: {reason})"
            ) from error
        layers = list(self._read(outputs).items())
        for layer, values in layers:
            if not isinstance(values, Tensor) or values.dim() != 2 or len(values) != len(pixels):
                seen = f"a tensor of {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
                raise UserError(
                    f"{self._name} returns {seen} as {layer} for {len(pixels)} images; embeddings must be (batch, dim)"
                )
        if not layers:
            raise UserError(
                f"{self._name} returns no embeddings; it must return a tensor (batch, dim) or a dict of such tensors"
            )
        return layers

    def check_repeatable(self, pixels: Tensor) -> None:
        """Embed the same images twice.

        Raises:
            UserError: when the embeddings differ by more than rounding, as those of a model that draws random numbers do.
        """
        for (layer, first), (_, again) in zip(self.all_layers(pixels), self.all_layers(pixels), strict=True):
            if not torch.allclose(first, again, rtol=SAME, atol=SAME * float(first.abs().max()), equal_nan=True):
                training = [name for name, module in self.model.named_modules() if module.training and name]
                cause = (
                    f"module {training[0]} is in training mode" if training else "it draws random numbers in evaluation mode"
                )
                raise UserError(f"{self._name} embeds the same images differently each time (layer {layer}): {cause}")


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
            encoder = ExternalNetwork(model, name=spec.model, side=spec.side, mean=mean, std=std, read=_by_layer)
        case TorchvisionEncoder():
            torchvision = importlib.import_module("torchvision")
            body = _from_library(
                f"torchvision's {spec.architecture}",
                lambda count: torchvision.models.get_model(spec.architecture, weights=None, num_classes=count),
                spec,
            )
            encoder = ExternalNetwork(body, name=spec.architecture, side=spec.side, mean=MEAN, std=STD, read=_by_layer)
        case TimmEncoder():
            encoder = _timm(spec)
        case TransformersEncoder():
            encoder = _transformers(spec)
        case OpenClipEncoder():
            encoder = load_open_clip(spec).images
    return encoder.eval()


def _by_layer(outputs: Any) -> Mapping[str, Any]:
    return outputs if isinstance(outputs, Mapping) else {"output": outputs}


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
        raise UserError("a timm encoder needs timm: pip install 'memlib[timm]'") from error
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
        read=_by_layer,
    )


@dataclass(frozen=True)
class Folder:
    """A model of a Hugging Face folder, and the preprocessing of its images.

    Attributes:
        model: the model.
        unpooled: True if the model's pooler has random weights, as the folder lacks them.
        side: side of the input images in pixels.
        mean, std: as for `ExternalNetwork`.
    """

    model: Any
    unpooled: bool
    side: int
    mean: Sequence[float]
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
    size = prepared.get("crop_size") if prepared.get("do_center_crop") else None
    size = size or prepared.get("size") or {}
    side = size if isinstance(size, int) else size.get("height", size.get("shortest_edge"))
    if not isinstance(side, int):
        raise UserError(
            f"preprocessor_config.json in {spec.path} states no image size; add size, or crop_size with do_center_crop, or "
            "save the image processor again"
        )
    plain = not prepared.get("do_normalize", True)
    mean, std = (default if plain else prepared.get(name, default) for name, default in
                 (("image_mean", (0.0,) * 3), ("image_std", (1.0,) * 3)))  # fmt: skip
    scale = scale_of(spec.path)
    mean, std = ([value / scale for value in values] for values in (mean, std))
    return Folder(model, unpooled, side, mean, std)


@dataclass(frozen=True)
class OpenClip:
    """An image-text model of open_clip.

    Attributes:
        model: the model.
        images: its image half.
        tokenizer: function from captions to tokens (num_captions, length).
    """

    model: Any
    images: ExternalNetwork
    tokenizer: Callable[[list[str]], Tensor]


class Method(nn.Module):
    """A method of a model, as a module: the image half of an image-text model."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model, self.name = model, name

    def forward(self, pixels: Tensor) -> Any:
        """Return what the method returns for images (batch, 3, side, side)."""
        return getattr(self.model, self.name)(pixels)


def load_open_clip(spec: OpenClipEncoder) -> OpenClip:
    """Load a model of open_clip; pickles in the folder are not opened, and nothing is downloaded.

    Raises:
        UserError: when the folder holds no whole model, or a model whose parts open_clip would download.
    """
    try:
        open_clip = importlib.import_module("open_clip")
    except ImportError as error:
        raise UserError("an open_clip model needs open_clip: pip install 'memlib[open_clip]'") from error
    check_folder(spec.path, OPEN_CLIP)
    with loading(spec.path, OPEN_CLIP), _without_root_handlers():
        config = read_json(Path(spec.path) / CONFIGS[OPEN_CLIP])["model_cfg"]
        if part := _downloaded(config):
            raise UserError(
                f"the open_clip model in {spec.path} has {part}, which open_clip would look for elsewhere; "
                "embed what memlib export writes with it yourself, and give encoders of kind embeddings"
            )
        check_declared(Path(spec.path), OPEN_CLIP)
        name = f"local-dir:{spec.path}"
        model = open_clip.create_model(name, require_pretrained=True).eval()
        prepared = open_clip.get_model_preprocess_cfg(model)
        tokenizer = open_clip.get_tokenizer(name)
    side = prepared["size"]
    images = ExternalNetwork(
        Method(model, "encode_image"), name=spec.path, side=side if isinstance(side, int) else max(side),
        mean=prepared["mean"], std=prepared["std"], read=_by_layer,
    )  # fmt: skip
    return OpenClip(model, images, tokenizer)


def _downloaded(config: Mapping[str, Any]) -> str | None:
    """Return the part of a declared model that open_clip would take from a place outside the folder, or with others' code."""
    text, vision = config["text_cfg"], config["vision_cfg"]
    if "hf_model_name" in text:
        return f"the text half {text['hf_model_name']}"
    if ":" in str(vision.get("timm_model_name") or ""):
        return f"the image half {vision['timm_model_name']}"
    unknown = set(text.get("tokenizer_kwargs", {})) - TOKENIZER_OPTIONS
    return f"the tokenizer option {min(unknown)}" if unknown else None


TOKENIZER_OPTIONS = {"clean", "strip_sep_token", "reduction_mask"}


@contextlib.contextmanager
def _without_root_handlers() -> Iterator[None]:
    """Keep open_clip, which logs by logging.info, from giving the root logger a handler that prints."""
    silent = logging.NullHandler()
    logging.getLogger().addHandler(silent)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(silent)


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
