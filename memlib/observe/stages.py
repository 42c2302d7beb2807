"""Stages that observe a model on stored examples: class scores and gradient norms."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from memlib.data.splits import TRAIN, column, members_digest
from memlib.data.stages import TrainingData
from memlib.errors import RunError, UserError
from memlib.models.external.factory import external_digest
from memlib.observe.models import Take, Trained, check_varied, load_any, load_logits, load_net, model_key, nets_in
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import ExternalClassifierSpec, InfluenceSpec
from memlib.store import Attempt, Ref
from memlib.training.fit import Canary

if TYPE_CHECKING:
    import torch

OUTPUTS, NORMS = "outputs.npy", "norms.npy"


@dataclass(frozen=True)
class ModelOutputs(Stage[NDArray[np.float32]]):
    """Compute class scores (logits) on the examples of some roles, in order of example id (outputs.npy)."""

    declared: ClassVar[Declared] = Declared("outputs", 1)
    title: ClassVar[str] = "outputs"
    place: ClassVar[Place] = "anywhere"

    data: TrainingData  #: the examples.
    model: Trained | ExternalClassifierSpec  #: the model, trained by memlib or external, or a chunk of small nets.
    epoch: int  #: the last epoch of a model trained by memlib.
    roles: tuple[str, ...]  #: the roles of the examples.
    num_classes: int  #: number of classes of the data.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The epoch of the checkpoint; None for an external model."""
        return {"epoch": None if isinstance(self.model, ExternalClassifierSpec) else self.epoch}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys and digests of the examples and of the model."""
        shown = {"shard": self.data.shard.key, "examples": members_digest(self.data.members(*self.roles))}
        return shown | {"model": model_key(self.model)}

    @property
    def units(self) -> float:
        """The number of examples."""
        return float(self.data.members(*self.roles).num_rows)

    @property
    def near(self) -> Ref | None:
        """The model, if it was trained by memlib."""
        return None if isinstance(self.model, ExternalClassifierSpec) else self.model.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the class scores."""
        from memlib.observe.outputs import class_scores

        forward, take = load_any(self.model, self.epoch, self.num_classes, device)
        images = self.data.images[column(self.data.members(*self.roles), "row")]
        nets = nets_in(self.model)
        scores = class_scores(forward, images, num_nets=nets or 1, device=device, take=take)
        check_varied(self.model, scores, attempt)
        np.save(attempt.path(OUTPUTS), scores[0] if nets is None else scores)

    @classmethod
    def open(cls, artifact: Artifact[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Return the class scores (num_members, num_classes), or of a chunk (num_nets, num_members, num_classes), mapped."""
        scores: NDArray[np.float32] = np.load(artifact.path(OUTPUTS), mmap_mode="r")
        return scores


@dataclass(frozen=True)
class CheckpointNorms(Stage[NDArray[np.float64]]):
    """Compute each training example's squared gradient norm at a checkpoint, in order of example id (norms.npy)."""

    declared: ClassVar[Declared] = Declared("gradient_norms", 1)
    title: ClassVar[str] = "gradient norms"
    place: ClassVar[Place] = "anywhere"

    data: TrainingData  #: the examples.
    model: Trained | ExternalClassifierSpec  #: the model, trained by memlib (the first one of a fleet) or external.
    epoch: int  #: the checkpoint's epoch; for an external model, the checkpoint's number, from 1.
    weights: str | None  #: the checkpoint file of an external model.
    influence: InfluenceSpec  #: batch size, and whether slow modules are allowed.
    #: the training example that carries a unique feature; it is shown to the model here as in training.
    canary: Canary | None
    label_smoothing: float = 0.0  #: label smoothing of the training loss.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The checkpoint, the canary and the label smoothing of the loss."""
        epoch = None if isinstance(self.model, ExternalClassifierSpec) else self.epoch
        canary = None if self.canary is None else self.canary.digest
        return {"epoch": epoch, "canary": canary, "label_smoothing": self.label_smoothing}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys and digests of the examples and of the model."""
        if not isinstance(self.model, ExternalClassifierSpec):
            return {"model": self.model.key} | self.data.inputs(TRAIN)
        assert self.weights is not None
        return {"model": external_digest(self.model, self.weights)} | self.data.inputs(TRAIN)

    @property
    def units(self) -> float:
        """The number of examples."""
        return float(self.data.members(TRAIN).num_rows)

    @property
    def near(self) -> Ref | None:
        """The model, if it was trained by memlib."""
        return None if isinstance(self.model, ExternalClassifierSpec) else self.model.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the squared gradient norms."""
        import torch

        from memlib.observe.gradients import GradientNorms, cross_entropy
        from memlib.training.augment import prepare

        take: Take
        if isinstance(self.model, ExternalClassifierSpec):
            assert self.weights is not None
            model, take = load_logits(self.model, self.weights, self.data.num_classes)
        else:
            model, take = load_net(self.model, 0, epoch=self.epoch), prepare
        loss = functools.partial(cross_entropy, label_smoothing=self.label_smoothing)
        norms = GradientNorms(model.to(device), loss=loss, slow_modules=self.influence.slow_modules)
        members = self.data.members(TRAIN)
        rows, labels = column(members, "row"), column(members, "label")
        squared = np.empty(len(rows), dtype=np.float64)
        for start in range(0, len(rows), self.influence.batch_size):
            part = slice(start, start + self.influence.batch_size)
            images = self.data.images[rows[part]]
            if self.canary is not None:
                images = self.canary.shown(images, rows[part])
            inputs = take(images, device)
            try:
                values = norms(inputs, torch.tensor(labels[part], device=device))
            except (RuntimeError, IndexError) as error:
                if not isinstance(self.model, ExternalClassifierSpec) or isinstance(error, torch.OutOfMemoryError):
                    raise
                shape = tuple(inputs.shape[1:])
                reason = str(error).splitlines()[0]
                raise UserError(
                    f"the model cannot take examples of shape {shape} with labels up to {labels.max()}: {reason}"
                ) from error
            squared[part] = values.double().cpu().numpy()
        if not np.isfinite(squared).all():
            raise RunError(f"the gradients at epoch {self.epoch} are not finite: the model's weights are unusable")
        np.save(attempt.path(NORMS), squared)

    @classmethod
    def open(cls, artifact: Artifact[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the squared norms (num_members,)."""
        norms: NDArray[np.float64] = np.load(artifact.path(NORMS))
        return norms
