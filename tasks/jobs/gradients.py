"""Norms of the gradients of examples at a checkpoint."""

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memlib.data.splits import TRAIN, column
from memlib.errors import RunError, UserError
from memlib.models.own import own_digest
from memlib.observe.gradients import GradientNorms, cross_entropy
from memlib.specs import InfluenceSpec, TrainedSpec
from memlib.store import Attempt, Ref
from memlib.training.augment import prepare
from memlib.training.fit import Canary, load_trained
from tasks.jobs.data import TrainingData
from tasks.jobs.models import load_logits

NORMS = "norms.npy"


@dataclass(frozen=True)
class CheckpointNorms:
    """Squared gradient norms of every training example at one checkpoint: norms.npy, in order of the members.

    Attributes:
        data: the examples.
        model: a trained model's artifact, or one's own.
        epoch: the checkpoint's epoch; for one's own model its number, from 1.
        weights: one's own checkpoint.
        influence: batch size and slow modules.
        canary: who carries a unique feature, in the model's training set and here.
        label_smoothing: of the loss that the model was trained on.
    """

    data: TrainingData
    model: Ref | TrainedSpec
    epoch: int
    weights: str | None
    influence: InfluenceSpec
    canary: Canary | None
    label_smoothing: float = 0.0

    @property
    def spec(self) -> dict[str, Any]:
        """What the key says of it."""
        epoch = self.epoch if isinstance(self.model, Ref) else None
        canary = None if self.canary is None else self.canary.digest
        return {"epoch": epoch, "canary": canary, "label_smoothing": self.label_smoothing}

    @property
    def inputs(self) -> dict[str, Any]:
        """The keys of what it reads."""
        if isinstance(self.model, Ref):
            return {"model": self.model.key} | self.data.inputs(TRAIN)
        assert self.weights is not None
        return {"model": own_digest(self.model, self.weights)} | self.data.inputs(TRAIN)

    @property
    def units(self) -> float:
        """How much work it is: examples."""
        return float(self.data.members(TRAIN).num_rows)

    @property
    def near(self) -> Ref | None:
        """What it reads of its own."""
        return self.model if isinstance(self.model, Ref) else None

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fills the artifact."""
        if isinstance(self.model, Ref):
            model, _ = load_trained(self.data.store, self.model, epoch=self.epoch)
            take: Any = prepare
        else:
            assert self.weights is not None
            model, take = load_logits(self.model, self.weights)
        loss = functools.partial(cross_entropy, label_smoothing=self.label_smoothing)
        norms = GradientNorms(model.to(device), loss=loss, slow_modules=self.influence.slow_modules)
        members = self.data.members(TRAIN)
        rows, labels = column(members, "row"), column(members, "label")
        found = np.empty(len(rows), dtype=np.float64)
        for start in range(0, len(rows), self.influence.batch_size):
            part = slice(start, start + self.influence.batch_size)
            images = self.data.images[rows[part]]
            if self.canary is not None:
                images = self.canary.shown(images, rows[part])
            inputs = take(images, device)
            try:
                values = norms(inputs, torch.from_numpy(labels[part]).to(device))
            except (RuntimeError, IndexError) as error:
                if isinstance(self.model, Ref) or isinstance(error, torch.OutOfMemoryError):
                    raise
                shape = tuple(inputs.shape[1:])
                said = str(error).splitlines()[0]
                raise UserError(
                    f"the model cannot take examples of shape {shape} with labels up to {labels.max()}: {said}"
                ) from error
            found[part] = values.double().cpu().numpy()
        if not np.isfinite(found).all():
            raise RunError(f"the gradients at epoch {self.epoch} are not finite: the model's weights are unusable")
        np.save(attempt.path(NORMS), found)
