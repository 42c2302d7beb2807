"""LoRA adapters (Hu 2021) as peft saves them, merged with the model that they were trained on: W + s B A."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import safetensors.torch
from pydantic import BaseModel, Field, ValidationError
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.hugging import (
    ADAPTER,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    MERGE_BY_PEFT,
    adapter_files,
    loading,
    read_json,
)

PREFIX = "base_model.model."  # of all names in peft's files
FACTOR = re.compile(r"(.+)\.lora_(?:([AB])\.weight|embedding_([AB]))")
PLAIN = re.compile(r"\^?[\w.-]+")  # a pattern that names modules without the rest of a regular expression
NO_EFFECT = frozenset(
    {"task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision", "inference_mode", "target_modules",
     "exclude_modules", "lora_dropout", "fan_in_fan_out", "layers_to_transform", "layers_pattern", "megatron_core",
     "eva_config", "qalora_group_size"}
)  # fmt: skip
"""Settings that change nothing in the merged weights; names and types of the weights state which modules are adapted."""
PLAIN_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")
"""Initializations that leave the weights of the base model as they are."""
Number = TypeVar("Number", int, float)


class _Config(BaseModel, extra="allow"):
    """The part of an adapter_config.json that determines the merged weights; other settings are in `model_extra`."""

    peft_type: str
    r: int = Field(default=8, ge=1)  # peft's defaults, here and below
    lora_alpha: float = Field(default=8, allow_inf_nan=False)
    use_rslora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None
    modules_to_save: list[str] | None = None


def merge_adapter(model: nn.Module, folder: str) -> None:
    """Merge an adapter with a model's weights, in place: W + s B A with s = alpha / rank, or alpha / sqrt(rank) (rslora).

    The product is computed in float64. A changed weight that was tied to another weight is untied from it, as in peft.

    Args:
        model: the model on which the adapter was trained.
        folder: folder with adapter_config.json and adapter_model.safetensors.

    Raises:
        UserError: when the adapter is damaged, belongs to another model, or has settings that are not supported.
    """
    files = adapter_files(folder)
    with loading(folder, ADAPTER):
        config = _read_config(files[ADAPTER_CONFIG], folder)
        whole, factors = _read_weights(files[ADAPTER_WEIGHTS])
        if not whole and not factors:
            raise UserError(f"{ADAPTER_WEIGHTS} in {folder} has no weights; save the adapter again")
        for name in config.modules_to_save or ():
            if not any(f".{name}." in f".{path}" for path in whole):
                raise UserError(f"{ADAPTER_WEIGHTS} in {folder} lacks the weights of {name} (modules_to_save); save it again")
        for path, value in whole.items():
            _replace(model, path, value, folder)
        for module, pair in factors.items():
            if len(pair) < 2:
                raise UserError(f"{ADAPTER_WEIGHTS} in {folder} has only one of two factors for {module}; save it again")
            path = f"{module}.weight"
            weight = _weight(model, path, folder)
            change = _scale(config, module, len(pair["A"]), folder) * (pair["B"].double() @ pair["A"].double())
            if _is_transposed(model.get_submodule(module), module, folder):
                change = change.T
            if change.shape != weight.shape:
                raise _another_model(folder, f"{module} of shape {tuple(change.shape)}, not {tuple(weight.shape)}")
            _replace(model, path, weight.detach().double() + change, folder)


def _read_config(path: Path, folder: str) -> _Config:
    """Read an adapter's settings.

    Raises:
        UserError: for settings that are missing or not supported.
    """
    try:
        config = _Config.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = f" ({'.'.join(map(str, first['loc']))})" if first["loc"] else ""
        raise UserError(f"cannot read {ADAPTER_CONFIG} in {folder}: {first['msg']}{place}; save the adapter again") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"cannot read {ADAPTER_CONFIG} in {folder}: Invalid JSON; save the adapter again") from error
    others = [name for name, value in (config.model_extra or {}).items() if value and name not in NO_EFFECT]
    if config.peft_type != "LORA":
        others = [f"peft_type: {config.peft_type}"]
    elif config.bias != "none":
        others = [f"bias: {config.bias}"]
    elif config.init_lora_weights not in PLAIN_STARTS:
        others = [f"init_lora_weights: {config.init_lora_weights}"]
    if others:
        raise UserError(f"{ADAPTER_CONFIG} in {folder} sets {others[0]}, which memlib cannot merge; {MERGE_BY_PEFT} in path")
    return config


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Return the weights that replace the model's, by name, and the factors A and B by module."""
    whole: dict[str, Tensor] = {}
    factors: defaultdict[str, dict[str, Tensor]] = defaultdict(dict)
    for name, value in safetensors.torch.load_file(path).items():
        place = name.removeprefix(PREFIX)
        found = FACTOR.fullmatch(place)
        if found is None:
            whole[place.replace(".base_layer.", ".")] = value
        else:
            factors[found[1]][found[2] or found[3]] = value
    return whole, factors


def _scale(config: _Config, module: str, rank: int, folder: str) -> float:
    """Return the number by which a module's product is multiplied."""
    stated = _for_module(config.rank_pattern or {}, module, config.r, folder)
    if rank != stated:
        raise UserError(f"{module} has rank {rank} in {folder}, but {ADAPTER_CONFIG} says {stated}; save the adapter again")
    alpha = _for_module(config.alpha_pattern or {}, module, config.lora_alpha, folder)
    return alpha / (math.sqrt(rank) if config.use_rslora else rank)


def _for_module(patterns: Mapping[str, Number], module: str, default: Number, folder: str) -> Number:
    """Return the value of the first pattern that equals a module's name or ends it, or with ^ equals it; else the default."""
    for pattern, value in patterns.items():
        if PLAIN.fullmatch(pattern) is None:
            raise UserError(
                f"{ADAPTER_CONFIG} in {folder} has the pattern {pattern[:80]!r}, a regular expression; write the names of "
                "the modules instead"
            )
        if module == pattern.removeprefix("^") or module.endswith(f".{pattern}"):
            return value
    return default


def _is_transposed(module: nn.Module, name: str, folder: str) -> bool:
    """Return True if a module's weight is stored as (inputs, outputs), like GPT-2's Conv1D and embeddings."""
    if isinstance(module, nn.Embedding) or type(module).__name__ == "Conv1D":
        return True
    if isinstance(module, nn.Linear):
        return False
    raise UserError(f"{folder} adapts {name}, a {type(module).__name__}, which memlib cannot merge; {MERGE_BY_PEFT} in path")


def _replace(model: nn.Module, path: str, value: Tensor, folder: str) -> None:
    """Replace a weight, keeping its precision; other weights that are tied to it keep their values."""
    old = _weight(model, path, folder)
    if old.shape != value.shape:
        raise _another_model(folder, f"{path} of shape {tuple(value.shape)}, not {tuple(old.shape)}")
    module, _, name = path.rpartition(".")
    setattr(model.get_submodule(module), name, nn.Parameter(value.to(old.dtype), requires_grad=old.requires_grad))


def _weight(model: nn.Module, path: str, folder: str) -> nn.Parameter:
    try:
        return model.get_parameter(path)
    except AttributeError:
        raise _another_model(folder, f"{path}, which the model lacks") from None


def _another_model(folder: str, what: str) -> UserError:
    return UserError(
        f"the {ADAPTER} in {folder} has weights for {what}; set path to the base model of the adapter; if its "
        "embeddings were resized for the training, to that resized model"
    )
