"""Trained models, loaded where a job runs."""

import functools
from collections.abc import Callable
from typing import Any

import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.errors import UserError
from memlib.models.own import AsLogits, load_own, own_digest, take_own
from memlib.observe.outputs import Forward
from memlib.specs import TrainedSpec
from memlib.store import Ref, Store
from memlib.training.augment import prepare
from memlib.training.fit import build_model, load_trained
from memlib.training.stacked import StackedNet

Take = Callable[[NDArray[Any], torch.device], Tensor]
WEIGHTS = "nets.safetensors"


def load_nets(store: Store, models: Ref, *, epoch: int, device: torch.device, layers: int | None = None) -> Forward:
    """The forward pass of the nets of a chunk (or of its first layers), or of one large model."""
    manifest = store.manifest(models)
    if WEIGHTS not in manifest["files"]:
        model, _ = load_trained(store, models, epoch=epoch)
        return single(model, device)
    state = safetensors.torch.load_file(store.local_path(models, WEIGHTS))
    net = build_model(manifest["facts"]["described"], seed=0)
    assert isinstance(net, nn.Sequential)
    stacked = StackedNet.load(net, state, device)
    return lambda inputs: stacked.forward(inputs[None], layers=layers)


def load_net(store: Store, models: Ref, position: int, *, epoch: int) -> nn.Module:
    """One net of a chunk, or one large model, in evaluation mode."""
    manifest = store.manifest(models)
    if WEIGHTS not in manifest["files"]:
        return load_trained(store, models, epoch=epoch)[0].eval()
    state = safetensors.torch.load_file(store.local_path(models, WEIGHTS))
    net = build_model(manifest["facts"]["described"], seed=0)
    net.load_state_dict({name: values[position] for name, values in state.items()})
    return net.eval()


def single(model: nn.Module, device: torch.device) -> Forward:
    """One module as a forward pass of one net."""
    model = model.to(device).eval()

    def forward(inputs: Tensor) -> Tensor:
        scores: Tensor = model(inputs)
        return scores[None]

    return forward


def trained_epochs(store: Store, models: Ref, epoch: int) -> list[int]:
    """The epoch whose weights each net of an artifact has."""
    facts = store.manifest(models)["facts"]
    return list(facts["best_epochs"]) if "best_epochs" in facts else [int(facts.get("best_epoch", epoch))]


def own_key(model: Ref | TrainedSpec) -> str:
    """What a key says of a model that was trained here or elsewhere."""
    return model.key if isinstance(model, Ref) else own_digest(model, model.weights or "")


def load_logits(model: TrainedSpec, weights: str) -> tuple[nn.Module, Take]:
    """One's own model, made to return logits, and how it takes stored examples."""
    own = load_own(model, weights)
    return AsLogits(own) if model.outputs == "probabilities" else own, functools.partial(take_own, model)


def load_any(
    store: Store, model: Ref | TrainedSpec, epoch: int, num_classes: int, device: torch.device
) -> tuple[Forward, Take]:
    """The forward pass of nets that were trained here, or of one's own model, and how they take stored examples."""
    if isinstance(model, Ref):
        return load_nets(store, model, epoch=epoch, device=device), prepare
    own, take = load_logits(model, model.weights or "")
    return told(single(own, device), num_classes), take


def told(forward: Forward, num_classes: int) -> Forward:
    """One's own model, whose misfits with the data are told in words."""

    def checked(inputs: Tensor) -> Tensor:
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

    return checked
