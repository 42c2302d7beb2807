"""Files of weights as trainers save them (wrapped, prefixed, with other states beside), read without unpickling."""

import logging
import pickle
import zipfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from memlib.data.opening import check_archive, check_regular, located
from memlib.errors import UserError
from memlib.specs.external import InFile

State = dict[str, Tensor]
DEEPEST = 2  # dictionaries around a state dict
NAMED = 3
LFS = b"version https://git-lfs"
log = logging.getLogger("memlib")


@dataclass(frozen=True)
class Found:
    """A state dict in a file that has all weights of a model."""

    state: str  #: place of the state dict in the file, dotted; "" if the file is the state dict.
    prefix: str  #: text before the names of the weights, left out of `weights`.
    weights: State  #: weights by name.


def weights_for(path: str, needed: Collection[str], where: InFile, *, other: str = "") -> State:
    """Find the only state dict in a file that has the weights of a model, and return them by name, without a prefix.

    Args:
        needed: names of weights that the state dict must have.
        where: place and prefix, if the recipe states them.
        other: beginning of names that the state dict may have besides; "" allows none.

    Raises:
        UserError: when the file cannot be read, or none or several of its state dicts have these names.
    """
    states = {place: state for place, state in states_in(path).items() if where.state in (None, place)}
    found = [one for one in _fitting(states, needed, other) if where.prefix in (None, one.prefix)]
    if len(found) > 1:
        choices = "; ".join(f"state {one.state!r}, prefix {one.prefix!r}" for one in found)
        raise UserError(f"{path} holds several state dicts of this model ({choices}); choose one with state and prefix")
    if not found:
        said = "; ".join(f"{place or 'at the top'}: {_in_words(state)}" for place, state in states.items())
        raise UserError(
            f"no state dict in {path} has the model's weights, {_in_words(needed)}; it has {said or 'none'}; name the right "
            "one with state and prefix, or correct the architecture"
        )
    (one,) = found
    if one.state or one.prefix:
        log.warning("%s: read %s, without the prefix %r", path, one.state or "all of it", one.prefix)
    return one.weights


def _fitting(states: Mapping[str, State], needed: Collection[str], other: str) -> Iterator[Found]:
    first = min(needed, default="")
    for place, state in states.items():
        prefixes = sorted({name[: -len(first)] for name in state if name.endswith(first)}) if first else [""]
        for prefix in prefixes:
            if prefix and not prefix.endswith("."):
                continue
            weights = {name[len(prefix) :]: value for name, value in state.items() if name.startswith(prefix)}
            extra = weights.keys() - set(needed)
            if weights.keys() >= set(needed) and all(other and name.startswith(other) for name in extra):
                yield Found(place, prefix, weights)


def _in_words(names: Collection[str]) -> str:
    return f"{', '.join(sorted(names)[:NAMED])}{', ...' if len(names) > NAMED else ''} ({len(names)})"


def states_in(path: str) -> dict[str, State]:
    """Return all dictionaries of tensors in a file, by their dotted places.

    Raises:
        UserError: when the file cannot be read, or holds no such dictionary.
    """
    content = _content(path)
    states = dict(_states(content, "", DEEPEST))
    if not states:
        raise UserError(f"{path} does not hold a state dict (names and tensors)")
    return states


def _states(content: Any, place: str, depth: int) -> Iterator[tuple[str, State]]:
    if not isinstance(content, Mapping) or not content:
        return
    if all(isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()):
        yield place, dict(content)
    elif depth:
        for name, inner in content.items():
            yield from _states(inner, f"{place}.{name}" if place else str(name), depth - 1)


def _content(path: str) -> Any:
    try:
        check_regular(*located(path))
        check_archive(path)
        if path.endswith(".safetensors"):
            return safetensors.torch.load_file(path)
        if zipfile.is_zipfile(path) and any("/code/" in name for name in zipfile.ZipFile(path).namelist()):
            raise UserError(
                f"{path} is a TorchScript archive, that is, code, which memlib does not run; if you trust it, save its "
                "weights yourself, as in safetensors.torch.save_file(torch.jit.load(path).state_dict(), 'model.safetensors')"
            )
        return torch.load(path, map_location="cpu", weights_only=True)
    except UserError:
        raise
    except pickle.UnpicklingError as error:  # torch's message would advise running the pickle
        raise UserError(
            f"{path} holds pickled objects besides tensors, which memlib does not execute; if you trust the file, load it "
            "yourself and save its state dict, as in safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
        ) from error
    except Exception as error:  # safetensors and torch raise errors of their own
        reason = str(error).splitlines()[0]
        raise UserError(f"cannot read weights from {path} ({reason}); save a state dict as .safetensors or .pt") from error
