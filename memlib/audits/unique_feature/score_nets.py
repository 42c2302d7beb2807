"""Stage that scores nets: show them examples with and without the feature, and compute the M scores."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.last_stages import UNITS_FILE
from memlib.audits.unique_feature.probe_data import held_out_labels, probe_examples, probe_inputs
from memlib.audits.unique_feature.recipe import Config
from memlib.audits.unique_feature.scoring import Net, Pull, Shown, flips, score, score_by_label
from memlib.audits.unique_feature.tables import UNITS, with_column
from memlib.data.canaries.features import Feature, null_features, probe_rows
from memlib.data.splits import TRAIN, column
from memlib.data.stages import Shard, TrainingData
from memlib.identity import derive_seed
from memlib.observe.models import Take, Trained, check_varied, load_any, model_key, trained_epochs
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import ExternalClassifierSpec, FeatureSpec, ProbeSpec
from memlib.store import Attempt, Ref
from memlib.tables import read_table, write_table
from memlib.training.small_nets import Nets

if TYPE_CHECKING:
    import torch

    from memlib.observe.outputs import Forward

BY_LABEL, LATENT = "by_label.npz", "latent.npy"


class NetTables:
    """Scores of the nets of one artifact."""

    def __init__(self, artifact: Artifact[NetTables]) -> None:
        self._artifact = artifact

    @property
    def units(self) -> pa.Table:
        """Scores as tables.UNITS, not yet calibrated."""
        return read_table(self._artifact.path(UNITS_FILE))

    @property
    def by_label(self) -> tuple[list[str], NDArray[np.float64]]:
        """Names of features, and scores (num_features, num_nets, num_settings, num_classes, 4) as from score_by_label."""
        with np.load(self._artifact.path(BY_LABEL)) as file:
            return [str(name) for name in file["features"]], file["scores"]

    @property
    def latent(self) -> NDArray[np.float64]:
        """Shares of examples that excite a unit only with the feature, or only with the partner: (2, num_nets, num_units)."""
        shares: NDArray[np.float64] = np.load(self._artifact.path(LATENT))
        return shares


@dataclass(frozen=True)
class ScoreNets(Stage[NetTables]):
    """Score the nets of one artifact on examples with and without the feature: units.parquet, by_label.npz."""

    declared: ClassVar[Declared] = Declared("score_nets", 3)
    title: ClassVar[str] = "score nets"
    place: ClassVar[Place] = "anywhere"

    data: TrainingData  #: the training examples.
    models: Trained | ExternalClassifierSpec  #: a chunk of small nets, one large model, or an external model.
    epoch: int  #: epoch of a large model whose weights are scored.
    nets: tuple[Net, ...]  #: the nets, in the artifact's order.
    feature: Feature  #: feature, feature_spec: the unique feature, and its settings, from which null features are drawn.
    feature_spec: FeatureSpec
    canaries: tuple[int, ...]  #: stored rows of all canaries of the cell.
    labels: tuple[int, ...]  #: labels of the cell's canaries.
    probe: ProbeSpec  #: choice of the probe data, on which the black box is scored.
    other: Artifact[Shard] | None  #: the probe data, if they come from another source.
    config: Config  #: scoring settings.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Scoring settings, features, canaries and nets, without significance levels and intervals."""
        shown = {"outputs", "max_examples", "random_draws", "removed_pixels", "null_features", "latent", "seed"}
        return {
            "config": self.config.model_dump(mode="json", include=shown),
            "probe": {"kind": self.probe.kind, "count": self.probe.count},
            "feature": self.feature.digest,
            "nulls": {name: feature.digest for name, feature in self.nulls.items()},
            "canaries": list(self.canaries),
            "labels": list(self.labels),
            "nets": [[n.number, n.canary, n.control, n.seed, n.label] for n in self.nets],
            "epoch": self.epoch,
        }

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys of the models, the examples and the probe data."""
        return {"models": model_key(self.models)} | probe_inputs(self.data, self.probe, self.other, TRAIN)

    @property
    def nulls(self) -> dict[str, Feature]:
        """Null features: other features of the same kind, by name."""
        if not self.config.null_features:
            return {}
        shape = self.data.images.shape[1:]
        return null_features(self.feature_spec, shape, self.config.null_features, seed=self.config.seed)

    @property
    def units(self) -> float:
        """Number of nets."""
        return float(len(self.nets))

    @property
    def near(self) -> Ref | None:
        """Address of the models; None for an external model."""
        return None if isinstance(self.models, ExternalClassifierSpec) else self.models.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Score the nets and write their scores."""
        show = _Show(self, *load_any(self.models, self.epoch, self.data.num_classes, device), device)
        check_varied(self.models, show.clean, attempt)
        whole = show.everything(self.feature, random=True)
        parts = [score(self.nets, whole, self.config), flips(self.nets, whole)]
        by_label = {"canary": score_by_label(whole, self.config)}
        for count in self.config.removed_pixels:
            partial = self.feature.without(count, seed=derive_seed(self.config.seed, "removed pixels"))
            part = score(self.nets, show.white(partial), self.config, random=False)
            parts.append(with_column(part, "feature", [f"canary without {count} px"] * part.num_rows))
        for name, feature in self.nulls.items():
            other = show.everything(feature)
            part = score(self.nets, other, self.config, random=False)
            parts.append(with_column(part, "feature", [name] * part.num_rows))
            by_label[name] = score_by_label(other, self.config)
        np.savez(attempt.path(BY_LABEL), features=np.array(list(by_label)), scores=np.stack(list(by_label.values())))
        write_table(self._with_epochs(pa.concat_tables(parts)), UNITS, attempt.path(UNITS_FILE))
        if self.config.latent:
            self._write_latent(attempt, device)

    def _with_epochs(self, units: pa.Table) -> pa.Table:
        epochs = [0] if isinstance(self.models, ExternalClassifierSpec) else trained_epochs(self.models, self.epoch)
        position = {(net.number, net.control): i for i, net in enumerate(self.nets)}
        nets = zip(units["net"].to_pylist(), units["control"].to_pylist(), strict=True)
        return with_column(units, "epoch", [epochs[position[net]] for net in nets])

    def _write_latent(self, attempt: Attempt, device: torch.device) -> None:
        """Write latent.npy; for its content, see NetTables.latent."""
        from memlib.observe.outputs import class_scores

        assert not isinstance(self.models, ExternalClassifierSpec)
        nets = self.models.content
        assert isinstance(nets, Nets), "hidden layers of large models are not supported"
        forward = nets.forward(device=device, layers=-1)
        other = self.feature.clean(probe_examples(self.data, self.probe, self.other, seed=self.config.seed))
        partner = self.feature.insert_random(other, seed=derive_seed(self.config.seed, "partner", 0, "probe"))
        clean, *shown = (
            class_scores(forward, examples, num_nets=len(self.nets), device=device) > 0
            for examples in (other, self.feature.insert(other), partner)
        )
        np.save(attempt.path(LATENT), np.stack([(excited & ~clean).mean(axis=1) for excited in shown]))

    @classmethod
    def open(cls, artifact: Artifact[NetTables]) -> NetTables:
        """Return the scores of the nets."""
        return NetTables(artifact)


class _Show:
    """Class scores of nets on the examples of a cell; clean examples are evaluated only once."""

    def __init__(self, job: ScoreNets, forward: Forward, take: Take, device: torch.device) -> None:
        self._job, self._forward, self._take, self._device = job, forward, take, device
        members = job.data.members(TRAIN)
        rows, labels = column(members, "row"), sorted(set(members["label"].to_pylist()))
        config = job.config
        choose = functools.partial(
            probe_rows, members, without=job.canaries, max_examples=config.max_examples, seed=config.seed
        )
        self._examples = {label: job.data.images[rows[choose(label)]] for label in labels}
        self._other = probe_examples(job.data, job.probe, job.other, seed=config.seed)
        self._other_labels = held_out_labels(job.data, job.probe, seed=config.seed)
        self._clean = {label: self._scores(job.feature.clean(images)) for label, images in self._examples.items()}
        self._clean_other = self._scores(job.feature.clean(self._other))

    @property
    def clean(self) -> NDArray[np.float32]:
        """Class scores of the examples without the feature, (num_nets, num_examples, num_classes)."""
        return np.concatenate(list(self._clean.values()), axis=1)

    def white(self, feature: Feature) -> Shown:
        """Return the class scores that the white box needs: on examples of the canaries' labels only."""
        pairs = {label: self._pair(feature, label) for label in self._job.labels}
        return Shown(self._job.labels, pairs, (self._clean_other, self._clean_other), {}, [])

    def _pair(self, feature: Feature, label: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        return self._clean[label], self._scores(feature.insert(self._job.feature.clean(self._examples[label])))

    def everything(self, feature: Feature, *, random: bool = False) -> Shown:
        """Return the class scores that all M scores need; `random` adds those with random partners of the feature."""
        job = self._job
        by_label = {label: self._pair(feature, label) for label in self._examples}
        other = self._clean_other, self._scores(feature.insert(job.feature.clean(self._other)))
        draws = [derive_seed(job.config.seed, "partner", draw) for draw in range(job.config.random_draws if random else 0)]
        random_by_label = {
            label: [self._scores(feature.insert_random(self._examples[label], seed=derive_seed(d, label))) for d in draws]
            for label in job.labels
        }
        random_other = [self._scores(feature.insert_random(self._other, seed=derive_seed(d, "probe"))) for d in draws]
        return Shown(job.labels, by_label, other, random_by_label, random_other, self._other_labels)

    def _scores(self, examples: NDArray[Any]) -> NDArray[np.float32]:
        from memlib.observe.outputs import class_scores

        return class_scores(self._forward, examples, num_nets=len(self._job.nets), device=self._device, take=self._take)


@dataclass(frozen=True)
class Scored:
    """A cell's nets with the artifacts that hold their weights, histories and scores."""

    variant: str  #: variant, data_seed: variant and draw of the data that define the cell.
    data_seed: int
    canaries: Sequence[Mapping[str, Any]]  #: the chosen examples.
    feature: Feature  #: the unique feature, as inserted into examples.
    data: TrainingData  #: the examples.
    nets: Sequence[Sequence[Net]]  #: the nets of each artifact of models.
    models: Sequence[Trained]  #: models, scores: artifacts, in the order of `nets`.
    scores: Sequence[Artifact[NetTables]]
    epoch: int = 0  #: last epoch of a large model.
    pulls: Sequence[Pull] = ()  #: self-influence of canaries with and without the feature.
