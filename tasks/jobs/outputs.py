"""A model's outputs on examples."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from memlib.data.splits import column, members_digest
from memlib.observe.outputs import class_scores
from memlib.specs import TrainedSpec
from memlib.store import Attempt, Ref
from tasks.jobs.data import TrainingData
from tasks.jobs.models import load_any, own_key

OUTPUTS = "outputs.npy"


@dataclass(frozen=True)
class ModelOutputs:
    """A model's class scores (logits) on the examples of some roles: outputs.npy, in order of the members.

    Attributes:
        data: the examples.
        model: a trained model's artifact, or one's own.
        epoch: the trained model's last one.
        roles: whose examples it is shown.
        num_classes: of the data.
    """

    data: TrainingData
    model: Ref | TrainedSpec
    epoch: int
    roles: tuple[str, ...]
    num_classes: int

    @property
    def spec(self) -> dict[str, Any]:
        """What the key says of it."""
        return {"epoch": self.epoch if isinstance(self.model, Ref) else None}

    @property
    def inputs(self) -> dict[str, Any]:
        """The keys of what it reads."""
        shown = {"shard": self.data.shard.key, "examples": members_digest(self.data.members(*self.roles))}
        return shown | {"model": own_key(self.model)}

    @property
    def units(self) -> float:
        """How much work it is: examples."""
        return float(self.data.members(*self.roles).num_rows)

    @property
    def near(self) -> Ref | None:
        """What it reads of its own."""
        return self.model if isinstance(self.model, Ref) else None

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fills the artifact."""
        forward, take = load_any(self.data.store, self.model, self.epoch, self.num_classes, device)
        images = self.data.images[column(self.data.members(*self.roles), "row")]
        np.save(attempt.path(OUTPUTS), class_scores(forward, images, num_nets=1, device=device, take=take)[0])
