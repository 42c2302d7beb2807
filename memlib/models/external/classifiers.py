"""External models, built by the user's factory; their weights come from a file that is never unpickled."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.external.estimators import EstimatorModule, is_estimator
from memlib.models.external.factory import made
from memlib.models.vision import MEAN, STD
from memlib.models.weights import weights_for
from memlib.specs import ExternalClassifierSpec
from memlib.specs.external import InFile


def load_external(spec: ExternalClassifierSpec, weights: str | None) -> nn.Module:
    """Return the factory's model in evaluation mode; load its weights from a file unless `weights` is None.

    A fitted scikit-learn classifier is wrapped as a module; it has no weights of its own.

    Raises:
        UserError: when the factory fails, the file cannot be read, or its weights do not fit the model.
    """
    model = made(spec)
    if not is_estimator(model):
        return with_weights(model, spec.model, weights, spec)
    if weights is not None:
        raise UserError(
            f"{spec.model} returned a {type(model).__name__}, a fitted estimator, which takes no trained.weights: let the "
            "factory fit or read it, and identify it by trained.version"
        )
    return EstimatorModule(model, spec.model).eval()


def with_weights(model: Any, name: str, weights: str | None, where: InFile) -> nn.Module:
    """Return a module in evaluation mode; load its weights from a file unless `weights` is None.

    Args:
        model: the factory's result.
        name: the model's name in error messages.
        weights: path of the file of weights, or None.
        where: place of the weights in the file.

    Raises:
        UserError: when the factory's result is not a module, or the weights do not fit it.
    """
    if not isinstance(model, nn.Module):
        raise UserError(f"{name} returned a {type(model).__name__}, not a torch module")
    if weights is None:
        return model.eval()
    return loaded(model, name, weights, weights_for(weights, model.state_dict().keys(), where))


def loaded(model: nn.Module, name: str, path: str, state: Mapping[str, Tensor]) -> nn.Module:
    """Return a module in evaluation mode, with these weights.

    Raises:
        UserError: when their shapes are not the model's; the message names the file.
    """
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"the weights {path} do not fit the model of {name}: {problem[:300]}") from error
    return model.eval()


def take_external(spec: ExternalClassifierSpec, examples: NDArray[Any], device: torch.device) -> Tensor:
    """Convert stored examples to model inputs: (batch, channels, height, width) float32, or points unchanged."""
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


SURE = 8  # examples whose logits do not all sum to 1 by chance


class ClassScores(nn.Module):
    """An external model wrapped to return class scores (logits), with the data's classes first.

    Args:
        model: the user's model.
        spec: settings of the model.
        num_classes: number of classes of the data.
    """

    def __init__(self, model: nn.Module, spec: ExternalClassifierSpec, num_classes: int) -> None:
        super().__init__()
        self.model = model
        self._spec, self._num_classes = spec, num_classes

    def forward(self, inputs: Tensor) -> Tensor:
        """Return class scores (batch, outputs), or log-probabilities, which are class scores up to a constant.

        Raises:
            UserError: when the model cannot take the examples, or its outputs are not class scores.
        """
        try:
            outputs = self.model(inputs)
        except (torch.OutOfMemoryError, UserError):
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            reason = (str(error).splitlines() or [""])[0][:300]
            raise UserError(
                f"{self._spec.model} cannot take examples of shape {tuple(inputs.shape[1:])} ({type(error).__name__}: "
                f"{reason}); check data and trained.inputs"
            ) from error
        scores = self._scores_of(outputs)
        if scores.dim() != 2 or len(scores) != len(inputs) or not scores.dtype.is_floating_point:
            raise UserError(
                f"{self._spec.model} returns {_described(scores)} for {len(inputs)} examples; class scores are a tensor of "
                f"{len(inputs)} x {self._num_classes} floats"
            )
        if not isinstance(self.model, EstimatorModule):  # which returns logarithms
            scores = self._logarithms(scores) if self._spec.outputs == "probabilities" else self._logits(scores)
        return scores[:, self._order(scores.shape[1])] if self._spec.classes is not None else self._whole(scores)

    def _scores_of(self, outputs: Any) -> Tensor:
        """Return the tensor of scores from the model's outputs."""
        scores = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", outputs)
        if isinstance(scores, Tensor):
            return scores
        keys = f" with {', '.join(map(str, outputs))}" if isinstance(outputs, Mapping) else ""
        raise UserError(
            f"{self._spec.model} returns a {type(outputs).__name__}{keys}, which is not a tensor of class scores and has no "
            "tensor named logits; wrap the model in a module that returns the scores"
        )

    def _logits(self, outputs: Tensor) -> Tensor:
        """Return the outputs unchanged, after a check that they are no probabilities, whose softmax would be taken again."""
        if outputs.shape[1] > 1 and len(outputs) >= SURE and bool(((outputs >= 0) & (outputs <= 1)).all()):
            sums = outputs.double().sum(dim=-1)
            if torch.allclose(sums, torch.ones_like(sums), atol=1e-3):
                raise UserError(
                    f"{self._spec.model} returns probabilities, which sum to 1; set trained.outputs to probabilities"
                )
        return outputs

    def _logarithms(self, outputs: Tensor) -> Tensor:
        sums = outputs.sum(dim=-1)
        if bool((outputs < 0).any()) or not torch.allclose(sums, torch.ones((), device=sums.device), atol=1e-3):
            if bool((outputs >= 0).all()) and torch.allclose(sums, torch.full((), 100.0, device=sums.device), atol=0.5):
                raise UserError(f"{self._spec.model} returns percentages; divide them by 100 in the model")
            raise UserError(
                "trained.outputs is probabilities, but the model's outputs are not probabilities; set it to logits"
            )
        return torch.log(outputs.clamp(min=1e-12))

    def _whole(self, scores: Tensor) -> Tensor:
        if scores.shape[1] == self._num_classes:
            return scores
        advice = "leave out the classes that the model does not know"
        if scores.shape[1] > self._num_classes:
            advice = "list in trained.classes the output of each class, in order"
        seen = f"{scores.shape[1]} scores per example, but the data have {self._num_classes} classes"
        raise UserError(f"{self._spec.model} returns {seen}; {advice}")

    def _order(self, outputs: int) -> list[int]:
        """Return the positions of the outputs: the data's classes first, then all others, which the softmax includes."""
        classes = self._spec.classes or ()
        if len(classes) != self._num_classes or max(classes) >= outputs:
            raise UserError(
                f"trained.classes names {len(classes)} outputs up to {max(classes, default=0)}; the data have "
                f"{self._num_classes} classes, and {self._spec.model} has {outputs} outputs, numbered from 0"
            )
        return [*classes, *(place for place in range(outputs) if place not in set(classes))]


def _described(tensor: Tensor) -> str:
    shape = " x ".join(str(side) for side in tensor.shape) or "no dimensions"
    return f"a tensor of {shape} {str(tensor.dtype).removeprefix('torch.')}"
