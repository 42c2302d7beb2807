"""Models that are observed: trained here as one or in chunks, or elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.models.external import own_digest
from memlib.specs import TrainedSpec
from memlib.stage import Artifact
from memlib.tables import read_table
from memlib.training.fit import HISTORY, TrainedModel, build_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from memlib.observe.outputs import Forward

Take: TypeAlias = "Callable[[NDArray[Any], torch.device], Tensor]"
WEIGHTS = "nets.safetensors"


class Nets:
    """Small nets that were trained together and are one artifact."""

    def __init__(self, artifact: Artifact[Nets]) -> None:
        self._artifact = artifact

    def forward(self, *, device: torch.device, layers: int | None = None) -> Forward:
        """Return the forward pass of all nets, or of their first layers."""
        import safetensors.torch

        from memlib.training.stacked import StackedNet

        stacked = StackedNet.load(self._net(), safetensors.torch.load_file(self._artifact.path(WEIGHTS)), device)
        return lambda inputs: stacked.forward(inputs[None], layers=layers)

    def net(self, position: int) -> nn.Module:
        """Return one of them, in evaluation mode."""
        import safetensors.torch

        state = safetensors.torch.load_file(self._artifact.path(WEIGHTS))
        net = self._net()
        net.load_state_dict({name: values[position] for name, values in state.items()})
        return net.eval()

    @property
    def history(self) -> pa.Table:
        """A tables.NETS_HISTORY."""
        return read_table(self._artifact.path(HISTORY))

    def _net(self) -> nn.Sequential:
        from torch import nn

        net = build_model(self._artifact.facts["described"], seed=0)
        assert isinstance(net, nn.Sequential)
        return net


Trained = Artifact[TrainedModel] | Artifact[Nets]


def forward_of(models: Trained, *, epoch: int, device: torch.device) -> Forward:
    """Return the forward pass of the nets of a chunk, or of one large model."""
    content = models.content
    return content.forward(device=device) if isinstance(content, Nets) else single(content.load(epoch=epoch)[0], device)


def load_net(models: Trained, position: int, *, epoch: int) -> nn.Module:
    """Return one net of a chunk, or one large model, in evaluation mode."""
    content = models.content
    return content.net(position) if isinstance(content, Nets) else content.load(epoch=epoch)[0].eval()


def single(model: nn.Module, device: torch.device) -> Forward:
    """Return a module as the forward pass of one net."""
    model = model.to(device).eval()

    def forward(inputs: Tensor) -> Tensor:
        scores: Tensor = model(inputs)
        return scores[None]

    return forward


def trained_epochs(models: Trained, epoch: int) -> list[int]:
    """Return the epoch whose weights each net of an artifact has."""
    facts = models.facts
    return list(facts["best_epochs"]) if "best_epochs" in facts else [int(facts.get("best_epoch", epoch))]


def model_key(model: Trained | TrainedSpec) -> str:
    """Return what a key says of a model that was trained here or elsewhere."""

    return own_digest(model, model.weights or "") if isinstance(model, TrainedSpec) else model.key


def load_logits(model: TrainedSpec, weights: str) -> tuple[nn.Module, Take]:
    """Return an external model that returns logits, and how it takes stored examples."""
    from memlib.models.own import AsLogits, load_own, take_own

    own = load_own(model, weights)
    return AsLogits(own) if model.outputs == "probabilities" else own, functools.partial(take_own, model)


def load_any(model: Trained | TrainedSpec, epoch: int, num_classes: int, device: torch.device) -> tuple[Forward, Take]:
    """Return the forward pass of a model that was trained here or elsewhere, and how it takes stored examples."""
    from memlib.training.augment import prepare

    if isinstance(model, TrainedSpec):
        own, take = load_logits(model, model.weights or "")
        return checked(single(own, device), num_classes), take
    return forward_of(model, epoch=epoch, device=device), prepare


def checked(forward: Forward, num_classes: int) -> Forward:
    """Wrap an external model, and turn the errors of shapes that do not fit into UserError."""
    import torch

    def scores_of(inputs: Tensor) -> Tensor:
        try:
            scores = forward(inputs)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError) as error:
            said = str(error).splitlines()[0]
            raise UserError(
                f"the model cannot take examples of shape {tuple(inputs.shape[1:])}: {said}; see data and trained.inputs"
            ) from error
        if scores.dim() != 3 or scores.shape[1] != len(inputs) or scores.shape[2] < num_classes:
            seen = " x ".join(str(side) for side in scores.shape[1:])
            raise UserError(
                f"the model returns {seen} for {len(inputs)} examples, not class scores of at least {num_classes} classes"
            )
        return scores

    return scores_of
