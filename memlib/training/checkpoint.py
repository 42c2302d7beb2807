"""Weights on disk: safetensors for checkpoints, weights_only torch files for resume states. Nothing is unpickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from memlib.errors import CorruptArtifact, UserError

RESUME_FILE = "state.pt"


def kept_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers to save: the model's own selection (`model.kept_state`), or all of them."""
    state: dict[str, Tensor] = model.kept_state() if hasattr(model, "kept_state") else model.state_dict()  # type: ignore[operator]
    return state


def load_kept(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load a state from `kept_state` into a model and leave its other weights unchanged.

    Raises:
        RuntimeError: for a missing or unknown tensor, or a tensor of a different shape.
    """
    if missing := kept_state(model).keys() - state.keys():
        raise RuntimeError(f"{sorted(missing)[0]} is missing")
    result = model.load_state_dict(state, strict=False)
    if result.unexpected_keys:
        raise RuntimeError(f"{result.unexpected_keys[0]} is unknown")


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the parameters and buffers that `kept_state` selects to a safetensors file."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in kept_state(model).items()}
    safetensors.torch.save_file(tensors, path)


def load_weights(model: nn.Module, path: Path, *, part: str = "") -> None:
    """Load weights from a file into a module of the same architecture.

    Args:
        part: prefix of the module's tensor names in the file, if the module is a part of the saved model.

    Raises:
        UserError: when a tensor is missing, unknown or of a different shape, or the file is not safetensors.
    """
    try:
        tensors = safetensors.torch.load_file(path)
    except Exception as error:  # safetensors raises its own errors and OS errors
        raise UserError(f"{path} is not a readable safetensors file ({error})") from error
    tensors = {name.removeprefix(part): tensor for name, tensor in tensors.items() if name.startswith(part)}
    expected = kept_state(model)
    problems = [f"{name} is missing" for name in expected if name not in tensors]
    problems += [f"{name} is unknown" for name in tensors if name not in expected]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, but the model expects {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"checkpoint {path} has another architecture: {problems[0]}{more}; use the spec it was trained with")
    load_kept(model, tensors)


def save_resume_state(state: Mapping[str, Any], folder: Path) -> None:
    """Write a resume state, of tensors and plain values, for `load_resume_state`."""
    torch.save(dict(state), folder / RESUME_FILE)


def load_resume_state(folder: Path) -> dict[str, Any]:
    """Read a resume state with weights_only=True, so that a planted pickle is not executed.

    Raises:
        CorruptArtifact: when the file holds anything but tensors and plain values.
    """
    try:
        state: dict[str, Any] = torch.load(folder / RESUME_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # raised by pickle, zipfile or torch
        raise CorruptArtifact(f"the resume state cannot be read ({type(error).__name__})") from error
    return state
