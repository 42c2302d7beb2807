"""Fleets: many small networks that are trained together and stored as one artifact."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa

from memlib.data.subsets import RoleSets, Subsets
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import ClassifierSpec, TrainingSpec
from memlib.store import Attempt
from memlib.tables import read_table
from memlib.training.fit import HISTORY, build_model

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from memlib.training.stacked import Examples, NetJob, NetResult, Watch

WEIGHTS = "nets.safetensors"


def weights_of(epoch: int) -> str:
    """Return the name of the file of an earlier epoch's weights."""
    return f"nets_{epoch}.safetensors"


class Nets:
    """Small networks that were trained together and form one artifact."""

    def __init__(self, artifact: Artifact[Nets]) -> None:
        self._artifact = artifact

    def forward(
        self, *, device: torch.device, layers: int | None = None, epoch: int | None = None
    ) -> Callable[[Tensor], Tensor]:
        """Return the forward pass of all networks, or of their first layers, after the last epoch or an earlier one."""
        from memlib.training.stacked import StackedNet

        stacked = StackedNet.load(self._net(), self._state(epoch), device)
        return lambda inputs: stacked.forward(inputs[None], layers=layers)

    def net(self, position: int, *, epoch: int | None = None) -> nn.Module:
        """Return one of the networks after the last epoch or an earlier one, in evaluation mode."""
        net, state = self._net(), self._state(epoch)
        net.load_state_dict({name: values[position] for name, values in state.items()})
        return net.eval()

    @property
    def history(self) -> pa.Table:
        """The training history (tables.NETS_HISTORY)."""
        return read_table(self._artifact.path(HISTORY))

    def _state(self, epoch: int | None) -> dict[str, Tensor]:
        import safetensors.torch

        facts = self._artifact.facts
        is_earlier = epoch is not None and epoch in facts.get("earlier_epochs", ())
        assert epoch is None or is_earlier or epoch == facts.get("epochs", epoch), f"the nets of epoch {epoch} are not kept"
        file = weights_of(epoch) if epoch is not None and is_earlier else WEIGHTS
        return safetensors.torch.load_file(self._artifact.path(file))

    def _net(self) -> nn.Sequential:
        from torch import nn

        net = build_model(self._artifact.facts["described"], seed=0)
        assert isinstance(net, nn.Sequential)
        return net


def train_fleet(
    attempt: Attempt,
    model: ClassifierSpec,
    training: TrainingSpec,
    examples: Examples,
    jobs: Sequence[NetJob],
    num_classes: int,
    *,
    device: torch.device,
    epoch_size: int | None = None,
    watch: Watch | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[NetResult]:
    """Train networks together, as many at a time as the device's budget allows; write weights and facts to an artifact.

    On a GPU, a stack that does not fit into the memory is halved, and all networks are trained again.

    Args:
        model, training, examples, jobs, num_classes, device, epoch_size, watch, progress: as for `stacked.train_nets`.

    Returns:
        the results, in the order of the jobs.
    """
    import safetensors.torch
    import torch

    from memlib.training.stacked import choose_stack_size, even_size, train_nets

    started = time.monotonic()
    size, halved = choose_stack_size(model, training, examples, jobs, num_classes, device, epoch_size=epoch_size), 0
    while True:
        try:
            results = train_nets(
                model, training, examples, jobs, num_classes, stack_size=size, device=device, epoch_size=epoch_size,
                watch=watch, progress=progress,
            )  # fmt: skip
            break
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size, halved = even_size(len(jobs), math.ceil(size / 2)), halved + 1
    files = {WEIGHTS: [result.state for result in results]}
    files |= {weights_of(epoch): [result.earlier[epoch] for result in results] for epoch in training.earlier_epochs}
    for file, states in files.items():
        stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
        safetensors.torch.save_file(stacked, attempt.path(file))
    described = {"model": model.model_dump(mode="json"), "classifier": num_classes, "input_shape": list(examples.input_shape)}
    attempt.facts |= {
        "nets": len(jobs), "stack_size": size, "halved": halved, "device": device.type, "described": described,
        "epochs": training.epochs,
        "earlier_epochs": list(training.earlier_epochs), "best_epochs": [result.epoch for result in results],
        "training_seconds": round(time.monotonic() - started, 2),
    }  # fmt: skip
    return results


@dataclass(frozen=True)
class TrainSubsets(Stage[Nets]):
    """Train small nets together, each on its own training set: nets.safetensors."""

    declared: ClassVar[Declared] = Declared("train_subsets", 1)
    title: ClassVar[str] = "train small models"
    place: ClassVar[Place] = "anywhere"

    subsets: Subsets | RoleSets  #: the training sets.
    model: ClassifierSpec  #: model, training: architecture and training of every net.
    training: TrainingSpec
    seeds: tuple[int, ...]  #: seed of each net.

    @property
    def label(self) -> str:
        """The first and the last model."""
        return self.subsets.label

    @property
    def units(self) -> float:
        """The number of nets times the number of epochs."""
        return float(len(self.seeds) * self.training.epochs)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Train the nets and write their weights."""
        from memlib.data.canaries.features import TrainingRows
        from memlib.training.stacked import Examples, NetJob

        subsets, none = self.subsets, np.zeros(0, dtype=np.int64)
        jobs = [
            NetJob(seed, TrainingRows(rows, np.zeros(len(rows), dtype=bool)))
            for seed, rows in zip(self.seeds, (subsets.seen_by(place).rows for place in range(len(self.seeds))), strict=True)
        ]
        examples = Examples(
            subsets.data.images, subsets.data.labels, None, subsets.validation if self.training.patience else none
        )
        train_fleet(
            attempt, self.model, self.training, examples, jobs, subsets.num_classes, device=device,
            epoch_size=subsets.epoch_size, progress=attempt.progress,
        )  # fmt: skip

    @classmethod
    def open(cls, artifact: Artifact[Nets]) -> Nets:
        """Return the nets."""
        return Nets(artifact)
