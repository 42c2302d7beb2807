"""What Ray tasks compute, each filling one artifact; loads neither Prefect nor Ray, so that workers start fast."""

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import safetensors.torch
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from memlib.audits import unique_feature
from memlib.audits.unique_feature import Config, Net, Shown
from memlib.data.canaries import Feature, null_features, probe_rows
from memlib.data.shards import IMAGES, INDEX_FILE, read_images, read_index
from memlib.data.splits import HELD_OUT, TRAIN, VALIDATION, column, members_digest, select
from memlib.errors import RunError, UserError
from memlib.identity import derive_seed
from memlib.models.own import AsLogits, load_own, own_digest, take_own
from memlib.observe.gradients import GradientNorms, cross_entropy
from memlib.observe.outputs import Forward, class_scores
from memlib.specs import ClassifierSpec, FeatureSpec, InfluenceSpec, ProbeSpec, TrainedSpec, TrainingSpec
from memlib.store import Attempt, Ref, Store
from memlib.tables import NETS_HISTORY, UNIQUE_FEATURE_UNITS, write_table
from memlib.training.augment import prepare
from memlib.training.fit import HISTORY, SPLITS_FILE, Canary, build_model, load_trained
from memlib.training.stacked import Examples, NetJob, StackedNet, measure_stack_size, train_nets

Take = Callable[[NDArray[Any], torch.device], Tensor]
WEIGHTS, UNITS, NORMS, LATENT, OUTPUTS = "nets.safetensors", "units.parquet", "norms.npy", "latent.npy", "outputs.npy"


@dataclass(frozen=True)
class TrainingData:
    """Stored examples and who may see them, where a job finds them."""

    store: Store
    shard: Ref
    splits: Ref

    @functools.cached_property
    def images(self) -> NDArray[Any]:
        """The stored examples, memory-mapped."""
        return read_images(self.store.local_path(self.shard, IMAGES))

    @functools.cached_property
    def table(self) -> pa.Table:
        """tables.SPLITS."""
        return pq.read_table(self.store.local_path(self.splits, SPLITS_FILE))

    @functools.cached_property
    def labels(self) -> NDArray[np.int64]:
        """(num_stored,) int64 by stored row."""
        index = read_index(self.store.local_path(self.shard, INDEX_FILE))
        labels = np.zeros(index.num_rows, dtype=np.int64)
        labels[index["row"].to_numpy()] = index["label"].to_numpy()
        return labels

    def members(self, *roles: str) -> pa.Table:
        """The rows of the splits with one of the roles."""
        return select(self.table, *roles)

    @property
    def num_classes(self) -> int:
        """Of the training examples."""
        return len(set(self.members(TRAIN)["label"].to_pylist()))

    def inputs(self, *roles: str) -> dict[str, str]:
        """What a key says of the examples."""
        return {"shard": self.shard.key} | {role: members_digest(self.members(role)) for role in roles}

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "shard": self.shard, "splits": self.splits}


@dataclass(frozen=True)
class NetChunk:
    """Small nets that are trained together and are one artifact: nets.safetensors and history.parquet.

    Attributes:
        data: the examples.
        model, training: how every net is made.
        seeds: of each net.
        canaries: of each net, with its label.
        watch: outputs on which white-box M is taken after every epoch; none for no scores by epoch.
        config: for watching: examples and their seed.
        all_canaries: stored rows of every canary of the cell, on which nothing is scored.
    """

    data: TrainingData
    model: ClassifierSpec
    training: TrainingSpec
    seeds: tuple[int, ...]
    canaries: tuple[Canary, ...]
    watch: tuple[unique_feature.Output, ...]
    config: Config
    all_canaries: tuple[int, ...]

    @property
    def spec(self) -> dict[str, Any]:
        """What the key says of it."""
        training = self.training.model_dump(mode="json", exclude={"seed", "checkpoint_epochs"})
        spec = {"model": self.model.model_dump(mode="json"), "training": training}
        spec["nets"] = [[seed, canary.digest] for seed, canary in zip(self.seeds, self.canaries, strict=True)]
        spec["feature"] = (
            self.canaries[0].feature.digest if any(c.with_feature for c in self.canaries) or self.watch else None
        )
        if self.watch:
            spec["watch"] = [list(self.watch), self.config.max_examples, self.config.seed, list(self.all_canaries)]
            spec["labels"] = [int(self.data.labels[canary.row]) for canary in self.canaries]
        return spec

    @property
    def inputs(self) -> dict[str, Any]:
        """The keys of what it reads."""
        return self.data.inputs(TRAIN, *([VALIDATION] if self.training.patience else []))

    @property
    def units(self) -> float:
        """How much work it is: nets times epochs times examples."""
        return float(len(self.seeds) * self.training.epochs * self.data.members(TRAIN).num_rows)

    @property
    def near(self) -> Ref | None:
        """What it reads of its own."""
        return None

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Trains the nets and fills the artifact."""
        started = time.monotonic()
        members = self.data.members(TRAIN)
        validation = column(self.data.members(VALIDATION), "row") if self.training.patience else np.zeros(0, dtype=np.int64)
        examples = Examples(self.data.images, self.data.labels, self.canaries[0].feature, validation)
        rows = column(members, "row")
        jobs = [NetJob(seed, canary.rows(rows)) for seed, canary in zip(self.seeds, self.canaries, strict=True)]
        classes = self.data.num_classes
        size = measure_stack_size(self.model, self.training, examples, jobs, classes, device)
        watch = _Watch(self, members, device) if self.watch else None
        results = train_nets(
            self.model, self.training, examples, jobs, classes, stack_size=size, device=device, watch=watch and watch.look
        )
        states = {name: torch.stack([r.state[name] for r in results]) for name in results[0].state}
        safetensors.torch.save_file(states, attempt.path(WEIGHTS))
        table = pa.Table.from_pylist(list(_history(results, watch)), schema=NETS_HISTORY.arrow)
        write_table(table, NETS_HISTORY, attempt.path(HISTORY))
        seconds = time.monotonic() - started
        described = {
            "model": self.model.model_dump(mode="json"), "classifier": classes, "input_shape": list(examples.input_shape)
        }  # fmt: skip
        attempt.facts |= {
            "nets": len(jobs), "stack_size": size, "device": device.type, "training_seconds": round(seconds, 2),
            "described": described, "best_epochs": [result.epoch for result in results],
        }  # fmt: skip


def _history(results: Sequence[Any], watch: "_Watch | None") -> Any:
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


class _Watch:
    """White-box M at every net's own label after every epoch."""

    def __init__(self, chunk: NetChunk, members: pa.Table, device: torch.device) -> None:
        config = chunk.config
        self.outputs, self.device = chunk.watch, device
        self.labels = [int(chunk.data.labels[canary.row]) for canary in chunk.canaries]
        feature = chunk.canaries[0].feature
        rows = column(members, "row")
        self.places: dict[int, NDArray[np.int64]] = {}
        self.examples: dict[int, tuple[NDArray[Any], NDArray[Any]]] = {}
        for label in set(self.labels):
            place = probe_rows(members, label, without=chunk.all_canaries, max_examples=config.max_examples, seed=config.seed)
            images = chunk.data.images[rows[place]]
            self.places[label], self.examples[label] = place, (feature.clean(images), feature.insert(images))
        self.scores: dict[tuple[int, int], dict[str, tuple[float, float]]] = {}

    def look(self, epoch: int, nets: Sequence[int], forward: Forward, known: Tensor | None) -> None:
        """Scores the nets; `known` are the class scores of all training rows, so that only x_u is computed."""
        for label, (clean, featured) in self.examples.items():
            mine = [i for i, net in enumerate(nets) if self.labels[net] == label]
            if not mine:
                continue
            shown = class_scores(forward, featured, num_nets=len(nets), device=self.device)[mine]
            if known is not None:
                plain = known[:, torch.from_numpy(self.places[label]).to(known.device)].cpu().numpy()[mine]
            else:
                plain = class_scores(forward, clean, num_nets=len(nets), device=self.device)[mine]
            for output in self.outputs:
                values, p = unique_feature.m_of_label(plain, shown, label, output)
                for i, value, chance in zip(mine, values.tolist(), p.tolist(), strict=True):
                    self.scores.setdefault((nets[i], epoch), {})[output] = (value, chance)


# -- scoring ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetScores:
    """Scores of nets that stand in one artifact, after training: units.parquet.

    Attributes:
        data: the training examples.
        models: a chunk of small nets, one large model, or one's own.
        epoch: of a large model.
        nets: who they are, in the artifact's order.
        feature, feature_spec: the unique feature.
        canaries: stored rows of every canary of the cell.
        labels: labels that some canary of the cell has.
        probe: what the black box is shown.
        other: shard and splits of the probe data, when it is another source.
        config: how to score.
    """

    data: TrainingData
    models: Ref | TrainedSpec
    epoch: int
    nets: tuple[Net, ...]
    feature: Feature
    feature_spec: FeatureSpec
    canaries: tuple[int, ...]
    labels: tuple[int, ...]
    probe: ProbeSpec
    other: Ref | None
    config: Config

    @property
    def spec(self) -> dict[str, Any]:
        """What the key says of it; significance levels and intervals are not its business."""
        shown = {"outputs", "max_examples", "random_draws", "removed_pixels", "null_features", "latent", "seed"}
        return {
            "config": self.config.model_dump(mode="json", include=shown),
            "probe": {"kind": self.probe.kind, "count": self.probe.count},
            "feature": self.feature.digest,
            "nulls": {name: feature.digest for name, feature in self._nulls().items()},
            "canaries": list(self.canaries),
            "labels": list(self.labels),
            "nets": [[n.number, n.canary, n.control, n.seed, n.label] for n in self.nets],
            "epoch": self.epoch,
        }

    @property
    def inputs(self) -> dict[str, Any]:
        """The keys of what it reads."""
        held_out = [HELD_OUT] if self.probe.kind == "held_out" else []
        other = {"probe": self.other.key} if self.other is not None else {}
        return {"models": own_key(self.models)} | self.data.inputs(TRAIN, *held_out) | other

    def _nulls(self) -> dict[str, Feature]:
        if not self.config.null_features:
            return {}
        shape = self.data.images.shape[1:]
        return null_features(self.feature_spec, shape, self.config.null_features, seed=self.config.seed)

    @property
    def units(self) -> float:
        """How much work it is: nets."""
        return float(len(self.nets))

    @property
    def near(self) -> Ref | None:
        """What it reads of its own."""
        return self.models if isinstance(self.models, Ref) else None

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Shows the nets everything and fills the artifact."""
        show = _Show(self, *load_any(self.data.store, self.models, self.epoch, self.data.num_classes, device), device)
        parts = [unique_feature.score(self.nets, show.everything(self.feature, random=True), self.config)]
        for count in self.config.removed_pixels:
            partial = self.feature.without(count, seed=derive_seed(self.config.seed, "removed pixels"))
            part = unique_feature.score(self.nets, show.everything(partial), self.config, metrics=("m_white",))
            parts.append(_named(part, f"canary without {count} px"))
        if self.config.null_features:
            for name, feature in self._nulls().items():
                parts.append(_named(unique_feature.score(self.nets, show.everything(feature), self.config), name))
        epochs = trained_epochs(self.data.store, self.models, self.epoch) if isinstance(self.models, Ref) else [0]
        position = {(net.number, net.control): i for i, net in enumerate(self.nets)}
        table = pa.concat_tables(parts)
        who = zip(table["net"].to_pylist(), table["control"].to_pylist(), strict=True)
        column_of = [epochs[position[net]] for net in who]
        table = table.set_column(table.schema.get_field_index("epoch"), "epoch", pa.array(column_of, type=pa.int64()))
        write_table(table, UNIQUE_FEATURE_UNITS, attempt.path(UNITS))
        if self.config.latent:
            self._write_latent(attempt, device)

    def _write_latent(self, attempt: Attempt, device: torch.device) -> None:
        """latent.npy (2, num_nets, num_units): share of probe examples that excite a unit only with feature, partner."""
        assert isinstance(self.models, Ref)
        forward = load_nets(self.data.store, self.models, epoch=self.epoch, device=device, layers=-1)
        other = self.feature.clean(probe_examples(self.data, self.probe, self.other, seed=self.config.seed))
        partner = self.feature.insert_random(other, seed=derive_seed(self.config.seed, "partner", 0, "probe"))
        clean, *shown = (
            class_scores(forward, examples, num_nets=len(self.nets), device=device) > 0
            for examples in (other, self.feature.insert(other), partner)
        )
        np.save(attempt.path(LATENT), np.stack([(excited & ~clean).mean(axis=1) for excited in shown]))


def _named(units: pa.Table, feature: str) -> pa.Table:
    names = pa.array([feature] * units.num_rows, type=pa.string())
    return units.set_column(units.schema.get_field_index("feature"), "feature", names)


class _Show:
    """Shows nets the examples of a cell, clean ones once."""

    def __init__(self, job: NetScores, forward: Forward, take: Take, device: torch.device) -> None:
        self._job, self._forward, self._take, self._device = job, forward, take, device
        members = job.data.members(TRAIN)
        rows, labels = column(members, "row"), sorted(set(members["label"].to_pylist()))
        config = job.config
        choose = functools.partial(
            probe_rows, members, without=job.canaries, max_examples=config.max_examples, seed=config.seed
        )
        self._examples = {label: job.data.images[rows[choose(label)]] for label in labels}
        self._other = probe_examples(job.data, job.probe, job.other, seed=config.seed)
        self._clean = {label: self._scores(job.feature.clean(images)) for label, images in self._examples.items()}
        self._clean_other = self._scores(job.feature.clean(self._other))

    def everything(self, feature: Feature, *, random: bool = False) -> Shown:
        """The class scores that the scores need."""
        job = self._job
        by_label = {
            label: (self._clean[label], self._scores(feature.insert(job.feature.clean(images))))
            for label, images in self._examples.items()
        }
        other = self._clean_other, self._scores(feature.insert(job.feature.clean(self._other)))
        draws = [derive_seed(job.config.seed, "partner", draw) for draw in range(job.config.random_draws if random else 0)]
        random_by_label = {
            label: [self._scores(feature.insert_random(self._examples[label], seed=derive_seed(d, label))) for d in draws]
            for label in job.labels
        }
        random_other = [self._scores(feature.insert_random(self._other, seed=derive_seed(d, "probe"))) for d in draws]
        return Shown(job.labels, by_label, other, random_by_label, random_other)

    def _scores(self, examples: NDArray[Any]) -> NDArray[np.float32]:
        return class_scores(self._forward, examples, num_nets=len(self._job.nets), device=self._device, take=self._take)


def _told(forward: Forward, num_classes: int) -> Forward:
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


def probe_examples(data: TrainingData, probe: ProbeSpec, other: Ref | None, *, seed: int) -> NDArray[Any]:
    """The data D_r of the black box, in the shape of the training examples.

    Raises:
        UserError: when there are none, or they do not fit.
    """
    rng = np.random.default_rng(derive_seed(seed, "probe data"))
    shape = data.images.shape[1:]
    if probe.kind == "noise":
        if data.images.dtype == np.uint8:
            noise: NDArray[Any] = rng.integers(0, 256, size=(probe.count, *shape), dtype=np.uint8)
            return noise
        seen = data.images[column(data.members(TRAIN), "row")]
        points: NDArray[Any] = rng.uniform(seen.min(axis=0), seen.max(axis=0), size=(probe.count, *shape)).astype(np.float32)
        return points
    if probe.kind == "held_out":
        images, rows = data.images, column(data.members(HELD_OUT), "row")
    else:
        assert other is not None
        images = read_images(data.store.local_path(other, IMAGES))
        rows = np.arange(len(images))
    if images.shape[1:] != shape or images.dtype != data.images.dtype:
        seen_shape = " x ".join(str(side) for side in images.shape[1:])
        wanted = " x ".join(str(side) for side in shape)
        raise UserError(f"probe examples are {seen_shape} {images.dtype}, but the models take {wanted} {data.images.dtype}")
    if len(rows) < 2:
        raise UserError(
            f"there are {len(rows)} probe examples, a paired test needs two; see probe and split.held_out_per_class"
        )
    chosen: NDArray[Any] = images[np.sort(rng.permutation(rows)[: probe.count])]
    return chosen


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


# -- outputs ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelOutputs:
    """A model's class scores (logits) on the examples of a role: outputs.npy, in order of the members.

    Attributes:
        data: the examples.
        model: a trained model's artifact, or one's own.
        epoch: the trained model's last one.
        role: whose examples it is shown.
        num_classes: of the data.
    """

    data: TrainingData
    model: Ref | TrainedSpec
    epoch: int
    role: str
    num_classes: int

    @property
    def spec(self) -> dict[str, Any]:
        """What the key says of it."""
        return {"epoch": self.epoch if isinstance(self.model, Ref) else None}

    @property
    def inputs(self) -> dict[str, Any]:
        """The keys of what it reads."""
        shown = {"shard": self.data.shard.key, "examples": members_digest(self.data.members(self.role))}
        return shown | {"model": own_key(self.model)}

    @property
    def units(self) -> float:
        """How much work it is: examples."""
        return float(self.data.members(self.role).num_rows)

    @property
    def near(self) -> Ref | None:
        """What it reads of its own."""
        return self.model if isinstance(self.model, Ref) else None

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fills the artifact."""
        forward, take = load_any(self.data.store, self.model, self.epoch, self.num_classes, device)
        images = self.data.images[column(self.data.members(self.role), "row")]
        np.save(attempt.path(OUTPUTS), class_scores(forward, images, num_nets=1, device=device, take=take)[0])


def own_key(model: Ref | TrainedSpec) -> str:
    """What a key says of a model that was trained here or elsewhere."""
    return model.key if isinstance(model, Ref) else own_digest(model, model.weights or "")


def load_any(
    store: Store, model: Ref | TrainedSpec, epoch: int, num_classes: int, device: torch.device
) -> tuple[Forward, Take]:
    """The forward pass of nets that were trained here, or of one's own model, and how they take stored examples."""
    if isinstance(model, Ref):
        return load_nets(store, model, epoch=epoch, device=device), prepare
    own = load_own(model, model.weights or "")
    own = AsLogits(own) if model.outputs == "probabilities" else own
    return _told(single(own, device), num_classes), functools.partial(take_own, model)


# -- gradients ----------------------------------------------------------------------------------------


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
            model, take = load_own(self.model, self.weights), functools.partial(take_own, self.model)
            model = AsLogits(model) if self.model.outputs == "probabilities" else model
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
