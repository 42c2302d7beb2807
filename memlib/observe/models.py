"""Observed models: models trained by memlib, singly or in chunks, and external models."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from memlib.errors import UserError
from memlib.models.external.factory import external_digest
from memlib.pipeline.stage import Artifact
from memlib.specs import ExternalClassifierSpec
from memlib.store import Attempt
from memlib.training.fit import TrainedModel
from memlib.training.small_nets import Nets

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from memlib.observe.outputs import Forward

Take: TypeAlias = "Callable[[NDArray[Any], torch.device], Tensor]"
Trained = Artifact[TrainedModel] | Artifact[Nets]


def forward_of(models: Trained, *, epoch: int, device: torch.device) -> Forward:
    """Return the forward pass of the networks of a chunk, or of one large model."""
    content = models.content
    if isinstance(content, Nets):
        return content.forward(device=device, epoch=epoch)
    return single(content.load(epoch=epoch)[0], device)


def load_net(models: Trained, position: int, *, epoch: int) -> nn.Module:
    """Return one network of a chunk, or one large model, in evaluation mode."""
    content = models.content
    return content.net(position, epoch=epoch) if isinstance(content, Nets) else content.load(epoch=epoch)[0].eval()


def single(model: nn.Module, device: torch.device) -> Forward:
    """Return a module's forward pass as that of one network: (batch, *shape) -> (1, batch, num_classes)."""
    model = model.to(device).eval()

    def forward(inputs: Tensor) -> Tensor:
        scores: Tensor = model(inputs)
        return scores[None]

    return forward


def nets_in(models: Trained | ExternalClassifierSpec) -> int | None:
    """Return the number of networks of a chunk; None for a single large or external model."""
    return None if isinstance(models, ExternalClassifierSpec) else models.facts.get("nets")


def trained_epochs(models: Trained, epoch: int) -> list[int]:
    """Return the epoch of each network's weights in an artifact."""
    facts = models.facts
    return list(facts["best_epochs"]) if "best_epochs" in facts else [int(facts.get("best_epoch", epoch))]


def model_key(model: Trained | ExternalClassifierSpec) -> str:
    """Return the key of a model trained by memlib, or the digest of an external model."""
    if not isinstance(model, ExternalClassifierSpec):
        return model.key
    return external_digest(model) if model.weights is None else external_digest(model, model.weights)


def check_varied(model: Trained | ExternalClassifierSpec, scores: NDArray[np.float32], attempt: Attempt) -> None:
    """Refuse an external model that gives all examples the same scores; warn if memlib trained the model.

    Args:
        scores: (num_nets, num_examples, num_classes).
        attempt: the attempt that records the warning.

    Raises:
        UserError: when an external model gives all examples the same scores.
    """
    from memlib.observe.outputs import is_constant

    if not is_constant(scores):
        return
    if isinstance(model, ExternalClassifierSpec):
        raise UserError(
            f"{model.model} returns the same scores for all {scores.shape[1]} examples; check that its weights are trained "
            f"and that it takes inputs of kind {model.inputs!r} (trained.inputs)"
        )
    attempt.warn(f"{model} gives all {scores.shape[1]} examples the same scores: it has learnt nothing about them")


def load_logits(model: ExternalClassifierSpec, weights: str | None, num_classes: int) -> tuple[nn.Module, Take]:
    """Return an external model that returns logits, and the function that converts stored examples to its inputs."""
    from memlib.models.external.classifiers import ClassScores, load_external, take_external

    return ClassScores(load_external(model, weights), model, num_classes).eval(), functools.partial(take_external, model)


def load_any(
    model: Trained | ExternalClassifierSpec, epoch: int, num_classes: int, device: torch.device
) -> tuple[Forward, Take]:
    """Return the forward pass of any model, and the function that converts stored examples to its inputs."""
    from memlib.training.augment import prepare

    if isinstance(model, ExternalClassifierSpec):
        external, take = load_logits(model, model.weights, num_classes)
        return single(external, device), take
    return forward_of(model, epoch=epoch, device=device), prepare
