"""Models that were trained elsewhere: a factory of the user's and a file of weights, never unpickled."""

import pickle
from collections.abc import Mapping
from typing import Any

import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external import made
from memlib.models.vision import MEAN, STD
from memlib.specs import TrainedSpec


def load_own(spec: TrainedSpec, weights: str | None) -> nn.Module:
    """The factory's model with the weights of a file, or its own where none is named, in evaluation mode.

    Raises:
        UserError: when the factory, the file or their agreement fails; says which.
    """
    return with_weights(made(spec), spec.model, weights)


def with_weights(model: Any, name: str, weights: str | None, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A module with the weights of a file in evaluation mode, or as it is where none is named.

    Args:
        model: what a factory returned.
        name: what errors call it.
        weights: the file.
        state: what it holds, where it has been read.

    Raises:
        UserError: when it is no module, or file and model do not agree.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}, not a torch module")
    if weights is None:
        return model.eval()
    try:
        model.load_state_dict(read_weights(weights) if state is None else state)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"the weights {weights} do not fit the model of {name}: {problem[:300]}") from error
    return model.eval()


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors of a file by name.

    Raises:
        UserError: when it is no state dict.
    """
    try:
        if path.endswith(".safetensors"):
            return dict(safetensors.torch.load_file(path))
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:  # torch would advise to run what is in the file
        raise UserError(
            f"{path} holds more than tensors, which memlib does not run: where you trust it, load it yourself and save its "
            "state dict, as in safetensors.torch.save_file(model.state_dict(), 'model.safetensors')"
        ) from error
    except Exception as error:  # safetensors and torch have errors of their own
        said = str(error).splitlines()[0]
        raise UserError(f"cannot read weights from {path} ({said}); a state dict as .safetensors or .pt is needed") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise UserError(f"{path} does not hold a state dict (names and tensors)")
    return dict(state)


def take_own(spec: TrainedSpec, examples: NDArray[Any], device: torch.device) -> Tensor:
    """Stored examples as the model takes them: (batch, channels, height, width) float32, or points as they are."""
    values = torch.from_numpy(examples.copy()).float().to(device)
    if examples.ndim == 2:
        return values
    values = values.permute(0, 3, 1, 2)
    if spec.inputs == "raw":
        return values
    values = values / 255
    if spec.inputs == "unit":
        return values
    if values.shape[1] != 3:
        raise UserError("trained.inputs imagenet is for colour images; set data.channels to 3, or trained.inputs to unit")
    mean, std = (torch.tensor(part, device=device).view(1, 3, 1, 1) for part in (MEAN, STD))
    return (values - mean) / std


class ClassScores(nn.Module):
    """An external model as one that returns class scores (logits), the classes of the data first.

    Args:
        model: the user's.
        spec: how it is used.
        num_classes: of the data.
    """

    def __init__(self, model: nn.Module, spec: TrainedSpec, num_classes: int) -> None:
        super().__init__()
        self.model = model
        self._spec, self._num_classes = spec, num_classes

    def forward(self, inputs: Tensor) -> Tensor:
        """Class scores (batch, outputs), or log-probabilities, which are class scores up to a constant.

        Raises:
            UserError: for examples that the model cannot take, and for outputs that are no class scores.
        """
        try:
            outputs = self.model(inputs)
        except (torch.OutOfMemoryError, UserError):
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            said = (str(error).splitlines() or [""])[0][:300]
            raise UserError(
                f"{self._spec.model} cannot take examples of shape {tuple(inputs.shape[1:])} ({type(error).__name__}: "
                f"{said}); see data and trained.inputs"
            ) from error
        scores = self._scores_of(outputs)
        if scores.dim() != 2 or len(scores) != len(inputs) or not scores.dtype.is_floating_point:
            raise UserError(
                f"{self._spec.model} returns {_described(scores)} for {len(inputs)} examples; class scores are a tensor of "
                f"{len(inputs)} x {self._num_classes} floats"
            )
        if self._spec.outputs == "probabilities":
            scores = self._logarithms(scores)
        return scores[:, self._order(scores.shape[1])] if self._spec.classes is not None else self._whole(scores)

    def _scores_of(self, outputs: Any) -> Tensor:
        """The tensor of scores among what the model returns."""
        found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
        if isinstance(found, Tensor):
            return found
        keys = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        raise UserError(
            f"{self._spec.model} returns a {type(outputs).__name__}{keys}, which is no tensor of class scores and has none "
            "as logits; wrap the model in a module that returns the scores"
        )

    def _logarithms(self, outputs: Tensor) -> Tensor:
        sums = outputs.sum(dim=-1)
        if bool((outputs < 0).any()) or not torch.allclose(sums, torch.ones((), device=sums.device), atol=1e-3):
            if bool((outputs >= 0).all()) and torch.allclose(sums, torch.full((), 100.0, device=sums.device), atol=0.5):
                raise UserError(f"{self._spec.model} returns percentages; divide them by 100 in the model")
            raise UserError("trained.outputs says probabilities, but the model's outputs are not; set it to logits")
        return torch.log(outputs.clamp(min=1e-12))

    def _whole(self, scores: Tensor) -> Tensor:
        if scores.shape[1] == self._num_classes:
            return scores
        mend = "it does not know them all"
        if scores.shape[1] > self._num_classes:
            mend = "say in trained.classes which output belongs to each of them, in order"
        seen = f"{scores.shape[1]} scores an example, but the data have {self._num_classes} classes"
        raise UserError(f"{self._spec.model} returns {seen}; {mend}")

    def _order(self, outputs: int) -> list[int]:
        """The outputs of the data's classes, then all others, which a softmax is also over."""
        classes = self._spec.classes or ()
        if len(classes) != self._num_classes or max(classes) >= outputs:
            raise UserError(
                f"trained.classes names {len(classes)} outputs up to {max(classes, default=0)}; the data have "
                f"{self._num_classes} classes, and {self._spec.model} has {outputs} outputs"
            )
        return [*classes, *(place for place in range(outputs) if place not in set(classes))]


def _described(tensor: Tensor) -> str:
    shape = " x ".join(str(side) for side in tensor.shape) or "no dimensions"
    return f"a tensor of {shape} {str(tensor.dtype).removeprefix('torch.')}"
