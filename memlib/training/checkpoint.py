"""Weights on disk: safetensors for what is kept, weights_only for what is resumed. Nothing is unpickled."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from memlib.errors import CorruptArtifact, UserError

RESUME_FILE = "state.pt"


def kept_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers that training makes: all, where the model does not say which."""
    found: dict[str, Tensor] = model.kept_state() if hasattr(model, "kept_state") else model.state_dict()  # type: ignore[operator]
    return found


def load_kept(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put what `kept_state` returned into a model, whose other weights stay.

    Raises:
        RuntimeError: for a name that it does not know, or a shape that is another.
    """
    if missing := kept_state(model).keys() - state.keys():
        raise RuntimeError(f"{sorted(missing)[0]} is missing")
    others = model.load_state_dict(state, strict=False)
    if others.unexpected_keys:
        raise RuntimeError(f"{others.unexpected_keys[0]} is unknown")


def save_weights(model: nn.Module, path: Path) -> None:
    """Writes a module's parameters and buffers, as far as training makes them."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in kept_state(model).items()}
    safetensors.torch.save_file(tensors, path)


def load_weights(model: nn.Module, path: Path, *, part: str = "") -> None:
    """Reads weights into a module of the same architecture.

    Args:
        model: gets them.
        path: the file.
        part: what the names of its tensors begin with, where the module is a part of what was saved.

    Raises:
        UserError: when a tensor is missing, unknown or of another shape, or the file is not safetensors.
    """
    try:
        found = safetensors.torch.load_file(path)
    except Exception as error:  # safetensors raises its own and OS errors
        raise UserError(f"{path} is not a readable safetensors file ({error})") from error
    found = {name.removeprefix(part): tensor for name, tensor in found.items() if name.startswith(part)}
    expected = kept_state(model)
    problems = [f"{name} is missing" for name in expected if name not in found]
    problems += [f"{name} is unknown" for name in found if name not in expected]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, the model's has {tuple(tensor.shape)}"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"checkpoint {path} is of another architecture: {problems[0]}{more}; use the spec it was made with")
    load_kept(model, found)


def save_resume_state(state: Mapping[str, Any], folder: Path) -> None:
    """Writes tensors and plain values for `load_resume_state`."""
    torch.save(dict(state), folder / RESUME_FILE)


def load_resume_state(folder: Path) -> dict[str, Any]:
    """Reads a resume state with weights_only, so that a planted pickle does nothing.

    Raises:
        CorruptArtifact: when the file holds anything else than tensors and plain values.
    """
    try:
        state: dict[str, Any] = torch.load(folder / RESUME_FILE, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle's, zip's, torch's own
        raise CorruptArtifact(f"the state to resume from is no state ({type(error).__name__})") from error
    return state
