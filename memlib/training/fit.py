"""Training of one model, from its job to a committed artifact: resumption of an earlier attempt, checkpoints, commit."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter

from memlib.data.canaries.features import Feature, TrainingRows, training_rows
from memlib.data.images.stored import are_images
from memlib.data.splits import VALIDATION
from memlib.data.stages import Seen, Shard, digest_of, rows_of
from memlib.errors import CorruptArtifact, RunError, UserError
from memlib.identity import canonical_json
from memlib.pipeline.arithmetic import exact
from memlib.pipeline.provenance import Declared, made_here
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs import (
    AnyModelSpec,
    CanarySpec,
    ClassifierSpec,
    DecoderSpec,
    DenoiserSpec,
    ImageTextSpec,
    LanguageSpec,
    ModelSpec,
    PretrainedSpec,
    TrainingSpec,
)
from memlib.store import Attempt, Making, Ref, Store
from memlib.store.permissions import scratch
from memlib.store.usage import measuring
from memlib.tables import TRAINING, read_table, write_table
from memlib.training.files import step_file, weights_file
from memlib.training.pretrained import Pretrained, TakeOver

if TYPE_CHECKING:
    import torch
    from torch import nn

    from memlib.training.loop import Training, TrainingSet, Worker

AnyModel = ModelSpec | ClassifierSpec | LanguageSpec | PretrainedSpec | DenoiserSpec | DecoderSpec | ImageTextSpec
MODELS: TypeAdapter[AnyModel] = TypeAdapter(AnyModelSpec)
HISTORY, MODEL_FILE = "history.parquet", "model.json"
MADE_UP_LENGTH = 3  # tokens per made-up window for trying a private step
RESUME_SECONDS = 60.0  # between two saves of the resume state, by default

Progress = Callable[[dict[str, Any]], None]


class TrainedModel:
    """A trained model with all its saved checkpoints."""

    def __init__(self, artifact: Artifact[TrainedModel]) -> None:
        self._artifact = artifact

    def load(self, *, epoch: int, step: int | None = None) -> tuple[nn.Module, AnyModel]:
        """Return the model after `epoch` epochs, or after `step` steps, on the CPU, and its spec."""
        from memlib.training.checkpoint import load_weights

        described = json.loads(self._artifact.path(MODEL_FILE).read_text())
        base = None
        if "base" in described:
            base = Artifact(self._artifact.store, Ref.parse(described["base"]), TakeOver)
        model = build_model(described, seed=0, base=base)
        if described.get("teacher"):
            model.add_teacher()  # type: ignore[operator]
        load_weights(model, self._artifact.path(weights_file(epoch) if step is None else step_file(step)))
        return model, MODELS.validate_python(described["model"])

    @property
    def history(self) -> pa.Table:
        """The training history (tables.TRAINING)."""
        return read_table(self._artifact.path(HISTORY))


@dataclass(frozen=True)
class Train(Stage[TrainedModel]):
    """Train a model."""

    declared: ClassVar[Declared] = Declared("train", 2)
    title: ClassVar[str] = "train models"
    place: ClassVar[Place] = "fleet"

    name: str  #: the model's name in reports: target 0, reference 0, shadow 17, ...
    model: AnyModel  #: model, training: the architecture and the training settings.
    training: TrainingSpec
    num_classes: int  #: number of classes of the data, or of symbols of a text.
    shard: Artifact[Shard]  #: shard, splits: the examples and their roles.
    splits: Artifact[pa.Table]
    roles: tuple[str, ...]  #: the roles whose examples the model trains on.
    parent: Artifact[TrainedModel] | None = None  #: a trained encoder whose last weights initialize the backbone.
    head_alone: bool = False  #: True if the backbone stays frozen.
    canary: Canary | None = None  #: the example that carries the unique feature, if any.
    base: Artifact[Pretrained] | None = None  #: the external model to be fine-tuned, if any.

    @property
    def label(self) -> str:
        """The model's name."""
        return self.name

    @property
    def spec(self) -> Mapping[str, Any]:
        """The architecture, the training settings and the number of classes."""
        frozen = {"head_alone": True} if self.head_alone else {}
        return {
            "model": _described(self.model),
            "training": self.training.model_dump(mode="json"),
            "num_classes": self.num_classes,
            **frozen,
        }

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Keys and digests of the inputs; examples are identified by their content, not by the split they came from."""
        inputs = {"shard": self.shard.key, "examples": digest_of(self.splits, *self.roles)}
        if self.parent is not None:
            inputs["parent"] = self.parent.key
        if self.base is not None:
            inputs["base"] = self.base.key
        if self.training.patience is not None:
            inputs["validation"] = digest_of(self.splits, VALIDATION)
        if self.canary is not None:
            inputs["canary"] = self.canary.digest
        return inputs

    @property
    def units(self) -> float:
        """The number of examples times the number of epochs."""
        return float(len(self.seen.rows) * self.training.epochs)

    @property
    def near(self) -> Ref | None:
        """The model that provides the backbone or is fine-tuned, if any."""
        source = self.parent or self.base
        return None if source is None else source.ref

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Train in this process only; see `into_store` for a group of workers."""
        from memlib.training.loop import Worker

        def progress(news: Mapping[str, Any]) -> None:
            attempt.progress(news["epoch"], self.training.epochs)

        with scratch("train") as folder:
            seconds = RESUME_SECONDS if attempt.resume_seconds is None else attempt.resume_seconds
            run = _Run(self, attempt.ref, Worker(device=device), folder, seconds, progress)
            run.train()
            run.fill(attempt)

    def into_store(
        self,
        making: Making,
        *,
        worker: Worker,
        threads: int,
        resume_seconds: float,
        progress: Progress | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Ref:
        """Train the model and commit it, unless it is already in the store.

        With several workers, all of them call this function; the first worker writes the model. Training continues from the
        newest verified resume state of an interrupted attempt, on any machine.

        Args:
            making: record of the work for the manifest, from the driver of the run.
            worker: this process's share of the work.
            threads: number of threads to compute with.
            resume_seconds: seconds between two saves of the resume state; 0 saves after every step.
            progress: called on the first worker after each epoch.
            where: the process and machine, for the manifest.
        """
        ref = self.identity.ref
        first = worker.rank == 0
        if worker.share(first and self.store.artifacts.lookup(ref.stage, ref.key) is not None):
            return ref
        with exact(threads), measuring() as usage, scratch("train") as folder:
            run = _Run(self, ref, worker, folder, resume_seconds, progress)
            run.train()
            usage.earlier = run.seconds
            problem = run.commit(making, threads, where) if first else None
        problem = worker.share(problem)  # all workers must end in the same way, or the others would wait for the first
        if problem is not None:
            raise RunError(problem)
        return ref

    @classmethod
    def open(cls, artifact: Artifact[TrainedModel]) -> TrainedModel:
        """Return the model's checkpoints."""
        return TrainedModel(artifact)

    @property
    def store(self) -> Store:
        """The store that holds the inputs and receives the model."""
        return self.shard.store

    @property
    def seen(self) -> Seen:
        """The training examples, in order of example id."""
        return rows_of(self.splits, *self.roles)

    def training_set(self) -> TrainingSet:
        """Return the training examples, including the canary if there is one."""
        from memlib.training.loop import TrainingSet

        images = self.shard.content.images
        rows, labels = self.seen
        if self.canary is None:
            return TrainingSet(images, rows, labels)
        chosen = self.canary.rows(rows)
        by_row = dict(zip(rows.tolist(), labels.tolist(), strict=True))
        labels = np.array([by_row[row] for row in chosen.rows.tolist()], dtype=np.int64)
        return TrainingSet(images, chosen.rows, labels, self.canary.feature, chosen.marked)

    def validation_set(self) -> TrainingSet | None:
        """Return the examples whose loss controls early stopping; None without patience."""
        from memlib.training.loop import TrainingSet

        if self.training.patience is None:
            return None
        rows, labels = rows_of(self.splits, VALIDATION)
        feature = None if self.canary is None else self.canary.feature
        return TrainingSet(self.shard.content.images, rows, labels, feature)

    def describe(self, images: NDArray[Any]) -> dict[str, Any]:
        """Return the description that `build_model` takes: architecture, classes (None without class scores), input shape."""
        classes = self.num_classes if self.training.objective.has_classes else None
        shape = [images.shape[3], *images.shape[1:3]] if are_images(images) else list(images.shape[1:])
        teacher = {"teacher": True} if self.training.objective.has_teacher else {}
        base = {} if self.base is None else {"base": str(self.base.ref)}
        return {"model": _described(self.model), "classifier": classes, "input_shape": shape, **teacher, **base}


def _described(model: AnyModel) -> dict[str, Any]:
    """Return an architecture as plain JSON, without the paths of a pretrained model's folders."""
    if isinstance(model, PretrainedSpec):
        model = model.model_copy(update={"path": "", "adapter": None})
    return model.model_dump(mode="json")


@dataclass(frozen=True)
class Canary:
    """The example of one model's training set that carries the unique feature."""

    feature: Feature  #: the feature's content and position.
    spec: CanarySpec  #: replace or append, and how often.
    row: int  #: the canary's row in the shard.
    with_feature: bool  #: False for a control model, which sees the clean twin (the same example without the feature).

    @property
    def digest(self) -> str:
        """The digest of all changes to the training set; controls that leave the training set unchanged share a digest."""
        untouched = not self.with_feature and self.spec.mode == "replace" and self.spec.repeats == 1
        place = None if untouched else [self.row, self.spec.mode, self.spec.repeats]
        cover = None if untouched and self.feature.cover is None else self.feature.digest
        return canonical_json([place, cover, self.with_feature])

    def shown(self, images: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return stored examples as the model sees them: the canary with its feature, all others clean."""
        clean = self.feature.clean(images)
        marked = (rows == self.row) & self.with_feature
        return np.where(marked.reshape(-1, *[1] * (images.ndim - 1)), self.feature.insert(clean), clean)

    def rows(self, members: NDArray[np.int64]) -> TrainingRows:
        """Return the rows of the training set, with the canary in place of its clean twin or appended."""
        return training_rows(members, self.row, self.spec, with_feature=self.with_feature)


def check_jobs(jobs: Sequence[Train], like: Worker) -> None:
    """Check, before machines are requested, that models can be trained; of jobs that differ only in the seed, check one.

    Args:
        like: one of the workers that will train them.

    Raises:
        UserError: when a model cannot be trained; the message names the model and the setting to change.
    """
    import torch

    from memlib.training.loop import check_training

    seen = set()
    for job in jobs:
        training = job.training.model_dump(mode="json", exclude={"seed"})
        kind = canonical_json([job.model.model_dump(mode="json"), training, len(job.seen.rows)])
        if kind in seen:
            continue
        seen.add(kind)
        data = job.training_set()
        try:
            check_training(job.training, data, like, job.validation_set())
            with torch.device("meta"):  # allocates no memory
                if job.base is None:
                    build_model(job.describe(data.images), seed=0)
            if job.base is not None:  # needs its real weights
                _check_base(job, data.images.shape[1])
        except UserError as error:
            raise UserError(f"{job.name}: {error}") from error


def _check_base(job: Train, window: int) -> None:
    """Raise UserError for windows that are too long, adapters of unknown layers, or layers that opacus does not support."""
    model = build_model(job.describe(job.training_set().images), seed=0, base=job.base)
    longest = model.window
    if isinstance(longest, int) and window > longest:
        raise UserError(f"data.window {window} is longer than the model's maximum of {longest} tokens")
    if job.training.privacy is not None:
        _check_private(job, model)


def _check_private(job: Train, model: nn.Module) -> None:
    """Raise UserError when a private step on made-up tokens fails."""
    import torch

    from memlib.models.causal import Causal
    from memlib.objectives import build_objective
    from memlib.training.privacy import check_gradients

    assert isinstance(model, Causal)
    with torch.random.fork_rng(devices=[]):  # dropout draws random numbers
        check_gradients(model, build_objective(job.training.objective), torch.full((2, MADE_UP_LENGTH), model.start))


def build_model(described: Mapping[str, Any], *, seed: int, base: Artifact[Pretrained] | None = None) -> nn.Module:
    """Build an untrained model from a result of `Train.describe`; a model to be fine-tuned has its pretrained weights.

    Raises:
        UserError: when the architecture does not fit the examples.
    """
    from memlib.models.classifiers import build_classifier
    from memlib.models.encoder import build_encoder
    from memlib.models.generators import build_decoder, build_denoiser
    from memlib.models.image_text import build_image_text
    from memlib.models.sequence import build_language_model

    spec = MODELS.validate_python(described["model"])
    if isinstance(spec, ModelSpec):
        return build_encoder(spec, num_classes=described["classifier"], seed=seed)
    if isinstance(spec, DenoiserSpec):
        return build_denoiser(spec, dim=described["condition"], steps=described["diffusion_steps"], seed=seed)
    if isinstance(spec, ImageTextSpec):
        return build_image_text(spec, num_words=described["words"], length=described["length"], seed=seed)
    if isinstance(spec, DecoderSpec):
        return build_decoder(spec, dim=described["condition"], seed=seed)
    if isinstance(spec, PretrainedSpec):
        assert base is not None, "a pretrained model needs its base artifact"
        return base.content.model(spec.lora, seed=seed)
    if isinstance(spec, LanguageSpec):
        return build_language_model(spec, described["classifier"], described["input_shape"][0], seed=seed)
    try:
        return build_classifier(spec, described["input_shape"], described["classifier"], seed=seed)
    except ValueError as error:
        raise UserError(str(error)) from error


class _Run:
    """The part of a training run that reads and writes files."""

    def __init__(
        self,
        job: Train,
        ref: Ref,
        worker: Worker,
        folder: Path,
        resume_seconds: float,
        progress: Progress | None,
    ) -> None:
        from memlib.objectives import build_objective
        from memlib.training.checkpoint import load_weights
        from memlib.training.loop import Training

        self.store, self.ref, self.job, self.worker, self.folder = job.store, ref, job, worker, folder
        self.resume_seconds, self.progress = resume_seconds, progress
        self.data = job.training_set()
        self.described = job.describe(self.data.images)
        model = build_model(self.described, seed=job.training.seed, base=job.base)
        if job.parent is not None:
            last = max(name for name in job.parent.files if name.startswith("epoch-"))
            load_weights(model.backbone, job.parent.path(last), part="backbone.")  # type: ignore[arg-type]
        if job.head_alone:
            model.freeze_backbone()  # type: ignore[operator]
        objective = build_objective(job.training.objective)
        stored = self.data.images.shape[1]
        side = (
            job.model.input_size if isinstance(job.model, ModelSpec | DenoiserSpec | DecoderSpec | ImageTextSpec) else stored
        )
        self.training = Training(
            model, objective, self.data, job.training, input_size=side, worker=worker, validation=job.validation_set()
        )
        self.history: list[dict[str, Any]] = []
        self.resumed_from: int | None = None
        self.seconds = 0.0  # spent by earlier attempts, up to their last save
        self.started = time.monotonic()

    def train(self) -> None:
        from memlib.training.checkpoint import load_resume_state

        state = None
        if self.worker.rank == 0 and self.store.resume.load(self.ref.key, self.folder):
            try:
                state = load_resume_state(self.folder)
            except CorruptArtifact:  # intact, but not written by memlib
                self.store.resume.drop(self.ref.key)
        if self.worker.share(state is not None):  # the first worker decides, so that all start from the same step
            self.worker.share_files(self.folder)
            state = load_resume_state(self.folder) if state is None else state
        if state is not None:
            self.training.load_state(state["training"])
            self.history = state["history"]
            self.seconds = state["seconds"]
            self.resumed_from = self.training.step
        elif 0 in self.job.training.kept_epochs:
            self._keep(0)
        self.saved = time.monotonic()
        self.epoch_started, self.epoch_first_step = time.monotonic(), self.training.step
        self.training.run(after_step=self._after_step, after_epoch=self._after_epoch)
        if self.training.validation is not None:
            self._keep(self.job.training.epochs)  # the best epoch's weights are the model

    def _after_step(self, training: Training) -> None:
        from memlib.training.checkpoint import save_weights

        if self.worker.rank == 0 and training.step in training.spec.checkpoint_steps:
            save_weights(training.model, self.folder / step_file(training.step))
        finished = training.step == training.num_steps
        if self.worker.rank or finished or time.monotonic() - self.saved < self.resume_seconds:
            return
        if training.step % training.steps_per_epoch == 0 or not training.can_save:
            return  # `_after_epoch` saves, once the epoch's weights are written
        self._save()

    def _after_epoch(self, training: Training, means: dict[str, float]) -> None:
        if self.worker.rank:
            return
        for term, value in means.items():
            row = {"epoch": training.epoch, "step": training.step, "learning_rate": training.rate}
            self.history.append({**row, "term": term, "value": value})
        if training.epoch in self.job.training.kept_epochs:
            self._keep(training.epoch)
        if training.stopped:
            return
        if time.monotonic() - self.saved >= self.resume_seconds and training.step < training.num_steps:
            self._save()
        now = time.monotonic()
        images = (training.step - self.epoch_first_step) * training.batch_size
        if self.progress is not None:
            speed = images / max(1e-9, now - self.epoch_started)
            self.progress({"epoch": training.epoch, "images_per_second": speed, "loss": means["loss"]})
        self.epoch_started, self.epoch_first_step = now, training.step

    def _keep(self, epoch: int) -> None:
        from memlib.training.checkpoint import save_weights

        if self.worker.rank == 0:
            save_weights(self.training.model, self.folder / weights_file(epoch))

    def _save(self) -> None:
        from memlib.training.checkpoint import save_resume_state

        seconds = self.seconds + time.monotonic() - self.started
        state = {"training": self.training.state(), "history": self.history, "seconds": seconds}
        save_resume_state(state, self.folder)
        self.store.resume.save(self.ref.key, self.training.step, self.folder)
        self.saved = time.monotonic()

    def commit(self, making: Making, threads: int, where: Mapping[str, Any] | None) -> str | None:
        """Publish the model; return an error message if this fails, else None."""
        try:
            self.job.check_made(self.ref, making["provenance"])
        except RunError as error:
            return str(error)
        try:
            with self.store.artifacts.write(self.ref, **making) as attempt:
                self.fill(attempt)
                attempt.facts |= made_here(making["provenance"], self.worker.device, threads) | {"worker": dict(where or {})}
        except (OSError, RunError) as error:
            return f"the model could not be written ({type(error).__name__}: {error}); free space and run again"
        return None

    def fill(self, attempt: Attempt) -> None:
        """Fill the artifact with the checkpoints, the history, and the description that `build_model` needs."""
        job = self.job
        attempt.resumes = True
        kept = [e for e in job.training.kept_epochs if e <= self.training.epoch or e == job.training.epochs]
        for epoch in kept:  # a training run that stopped early did not reach later epochs
            shutil.copyfile(self.folder / weights_file(epoch), attempt.path(weights_file(epoch)))
        for step in job.training.checkpoint_steps:
            if step <= self.training.step:
                shutil.copyfile(self.folder / step_file(step), attempt.path(step_file(step)))
        write_table(pa.Table.from_pylist(self.history, schema=TRAINING.arrow), TRAINING, attempt.path(HISTORY))
        attempt.path(MODEL_FILE).write_text(json.dumps(self.described))
        attempt.facts |= {
            "name": job.name,
            "world_size": self.worker.world_size,
            "device": self.worker.device.type,
            "threads": self.training.threads,
            "num_examples": len(self.data),
            "training_seconds": round(self.seconds + time.monotonic() - self.started, 1),
            "resumed_from_step": self.resumed_from,
            "num_steps": self.training.step,
            "steps_per_epoch": self.training.steps_per_epoch,
            "privacy": None if self.training.privacy_spent is None else asdict(self.training.privacy_spent),
            "best_epoch": self.training.best["epoch"] if self.training.validation is not None else job.training.epochs,
        }
