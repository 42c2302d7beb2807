"""Stage that trains many small nets together, as one stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.formulas import m_kl, m_of_label, m_w
from memlib.audits.unique_feature.probe_data import probe_examples, probe_inputs
from memlib.audits.unique_feature.recipe import Config, Output
from memlib.audits.unique_feature.tables import NETS_HISTORY
from memlib.data.canaries.features import probe_rows
from memlib.data.splits import TRAIN, VALIDATION, column
from memlib.data.stages import Shard, TrainingData
from memlib.identity import derive_seed
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import ClassifierSpec, ProbeSpec, TrainingSpec
from memlib.store import Attempt
from memlib.tables import write_table
from memlib.training.fit import HISTORY, Canary
from memlib.training.small_nets import Nets, train_fleet

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from memlib.observe.outputs import Forward


@dataclass(frozen=True)
class TrainNets(Stage[Nets]):
    """Train small nets together into one artifact: nets.safetensors and history.parquet."""

    declared: ClassVar[Declared] = Declared("train_nets", 1)
    title: ClassVar[str] = "train nets"
    place: ClassVar[Place] = "anywhere"

    data: TrainingData  #: the examples.
    model: ClassifierSpec  #: model, training: architecture and training of every net.
    training: TrainingSpec
    seeds: tuple[int, ...]  #: seed of each net.
    canaries: tuple[Canary, ...]  #: canary of each net, with or without the feature.
    watch: tuple[Output, ...]  #: outputs on which white-box M is computed after every epoch; empty if epochs are not scored.
    config: Config  #: settings for these scores: number of examples and their seed.
    all_canaries: tuple[int, ...]  #: stored rows of all canaries of the cell, which are excluded from scoring.
    #: probe, other: choice of the probe data and, if they come from another source, the data; for M_kl after every epoch.
    probe: ProbeSpec
    other: Artifact[Shard] | None

    @property
    def spec(self) -> Mapping[str, Any]:
        """Architecture, training, seeds and canaries of the nets, and the settings of scores by epoch."""
        training = self.training.model_dump(mode="json", exclude={"seed", "checkpoint_epochs"})
        spec: dict[str, Any] = {"model": self.model.model_dump(mode="json"), "training": training}
        spec["nets"] = [[seed, canary.digest] for seed, canary in zip(self.seeds, self.canaries, strict=True)]
        spec["feature"] = (
            self.canaries[0].feature.digest if any(c.with_feature for c in self.canaries) or self.watch else None
        )
        if self.watch:
            spec["watch"] = [list(self.watch), self.config.max_examples, self.config.seed, list(self.all_canaries)]
            spec["labels"] = [int(self.data.labels[canary.row]) for canary in self.canaries]
        if self.watch and self.config.per_epoch_also:
            spec["watch_also"] = list(self.config.per_epoch_also)
        if self._reads_probe:
            spec["probe"] = {"kind": self.probe.kind, "count": self.probe.count}
        return spec

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys of the examples and, if epochs are scored on them, of the probe data."""
        roles = (TRAIN, *([VALIDATION] if self.training.patience else []))
        return probe_inputs(self.data, self.probe, self.other, *roles) if self._reads_probe else self.data.inputs(*roles)

    @property
    def _reads_probe(self) -> bool:
        return bool(self.watch) and "m_kl" in self.config.per_epoch_also

    @property
    def units(self) -> float:
        """Number of nets times epochs times examples."""
        return float(len(self.seeds) * self.training.epochs * self.data.members(TRAIN).num_rows)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Train the nets and write their weights and history."""
        from memlib.training.stacked import Examples, NetJob

        members = self.data.members(TRAIN)
        validation = column(self.data.members(VALIDATION), "row") if self.training.patience else np.zeros(0, dtype=np.int64)
        examples = Examples(self.data.images, self.data.labels, self.canaries[0].feature, validation)
        rows = column(members, "row")
        jobs = [NetJob(seed, canary.rows(rows)) for seed, canary in zip(self.seeds, self.canaries, strict=True)]
        classes = self.data.num_classes
        watch = _Watch(self, members, device) if self.watch else None
        training = self.training.model_copy(update={"checkpoint_epochs": ()})  # which the key leaves out
        results = train_fleet(
            attempt, self.model, training, examples, jobs, classes, device=device,
            watch=None if watch is None else watch.look, progress=attempt.progress,
        )  # fmt: skip
        table = pa.Table.from_pylist(list(_history(results, watch)), schema=NETS_HISTORY.arrow)
        write_table(table, NETS_HISTORY, attempt.path(HISTORY))

    @classmethod
    def open(cls, artifact: Artifact[Nets]) -> Nets:
        """Return the nets."""
        return Nets(artifact)


def _history(results: Sequence[Any], watch: _Watch | None) -> Any:
    for net, result in enumerate(results):
        for epoch, (loss, accuracy, validation) in enumerate(result.history.tolist(), start=1):
            row = {
                "position": net, "epoch": epoch, "best_epoch": result.epoch, "training_loss": loss, "accuracy": accuracy,
                "validation_loss": None if np.isnan(validation) else validation,
            }  # fmt: skip
            scores = watch.scores.get((net, epoch), {}) if watch is not None else {}
            if not scores:
                yield row
            for output, (value, p) in scores.items():
                yield {**row, "output": output, "value": value, "published_p": p}


def _probe_sides(chunk: TrainNets, partner: int) -> tuple[NDArray[Any], ...]:
    """Return the probe data without the feature, with it, and with random partners of it."""
    feature = chunk.canaries[0].feature
    other = probe_examples(chunk.data, chunk.probe, chunk.other, seed=chunk.config.seed)
    clean = feature.clean(other)
    return clean, feature.insert(clean), feature.insert_random(other, seed=derive_seed(partner, "probe"))


class _Watch:
    """White-box M and, if asked for, M_w of every net at the label of its canary, and M_kl, after every epoch."""

    def __init__(self, chunk: TrainNets, members: pa.Table, device: torch.device) -> None:
        config = chunk.config
        self.outputs, self.device = chunk.watch, device
        self.labels = [int(chunk.data.labels[canary.row]) for canary in chunk.canaries]
        feature = chunk.canaries[0].feature
        rows = column(members, "row")
        partner = derive_seed(config.seed, "partner", 0)  # the first draw, as in the scores of the nets that are kept
        self.probe = _probe_sides(chunk, partner) if "m_kl" in config.per_epoch_also else ()
        self.partners: dict[int, NDArray[Any]] = {}
        self.places: dict[int, NDArray[np.int64]] = {}
        self.examples: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        for label in set(self.labels):
            place = probe_rows(members, label, without=chunk.all_canaries, max_examples=config.max_examples, seed=config.seed)
            images = chunk.data.images[rows[place]]
            self.places[label], self.examples[label] = place, (feature.clean(images), feature.insert(images))
            if "m_w" in config.per_epoch_also:
                self.partners[label] = feature.insert_random(images, seed=derive_seed(partner, label))
        self.scores: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}

    def look(self, epoch: int, nets: Sequence[int], forward: Forward, known: Tensor | None) -> None:
        """Score the nets; `known` holds the class scores of all training rows if available, so that only x_u is evaluated."""
        import torch

        from memlib.observe.outputs import class_scores

        for label, (clean, featured) in self.examples.items():
            chosen = [i for i, net in enumerate(nets) if self.labels[net] == label]
            if not chosen:
                continue
            shown = class_scores(forward, featured, num_nets=len(nets), device=self.device)[chosen]
            if known is not None:
                plain = known[:, torch.from_numpy(self.places[label]).to(known.device)].cpu().numpy()[chosen]
            else:
                plain = class_scores(forward, clean, num_nets=len(nets), device=self.device)[chosen]
            for output in self.outputs:
                self._keep(epoch, [nets[i] for i in chosen], output, m_of_label(plain, shown, label, output))
            if label in self.partners:
                random = class_scores(forward, self.partners[label], num_nets=len(nets), device=self.device)[chosen]
                self._keep(epoch, [nets[i] for i in chosen], "log_probability", m_w(shown, random, label))
        if self.probe:
            sides = [class_scores(forward, side, num_nets=len(nets), device=self.device) for side in self.probe]
            self._keep(epoch, nets, "divergence", m_kl(*sides))

    def _keep(
        self, epoch: int, nets: Sequence[int], output: str, found: tuple[NDArray[np.float64], NDArray[np.float64]]
    ) -> None:
        """Keep value and p of each net."""
        for net, value, p in zip(nets, *(part.tolist() for part in found), strict=True):
            self.scores.setdefault((net, epoch), {})[output] = (value, p)
