"""Models that are observed: trained here as one or in chunks, or elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.models.external import own_digest
from memlib.specs import TrainedSpec
from memlib.stage import Artifact
from memlib.store import Attempt
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
    if not isinstance(model, TrainedSpec):
        return model.key
    return own_digest(model) if model.weights is None else own_digest(model, model.weights)


def check_varied(model: Trained | TrainedSpec, scores: NDArray[np.float32], attempt: Attempt) -> None:
    """Refuse an external model that says the same of every example; of one that was trained here, warn.

    Args:
        model: which.
        scores: (num_nets, num_examples, num_classes).
        attempt: of whose artifact it is.

    Raises:
        UserError: for an external model.
    """
    from memlib.observe.outputs import is_constant

    if not is_constant(scores):
        return
    if isinstance(model, TrainedSpec):
        raise UserError(
            f"{model.model} returns the same scores for all {scores.shape[1]} examples: are its weights those that were "
            f"trained, and are its inputs {model.inputs!r} (trained.inputs)?"
        )
    attempt.warn(f"{model} gives all {scores.shape[1]} examples the same scores: it has learnt nothing of them")


def load_logits(model: TrainedSpec, weights: str | None, num_classes: int) -> tuple[nn.Module, Take]:
    """Return an external model that returns logits, and how it takes stored examples."""
    from memlib.models.own import ClassScores, load_own, take_own

    return ClassScores(load_own(model, weights), model, num_classes).eval(), functools.partial(take_own, model)


def load_any(model: Trained | TrainedSpec, epoch: int, num_classes: int, device: torch.device) -> tuple[Forward, Take]:
    """Return the forward pass of a model that was trained here or elsewhere, and how it takes stored examples."""
    from memlib.training.augment import prepare

    if isinstance(model, TrainedSpec):
        own, take = load_logits(model, model.weights, num_classes)
        return single(own, device), take
    return forward_of(model, epoch=epoch, device=device), prepare
