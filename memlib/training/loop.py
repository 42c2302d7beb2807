"""The training loop: batches, an objective, callbacks.

All random draws are functions of the seed and the epoch or step, so the state of a training run consists of its weights,
optimizer, scaler, objective and step. A resumed run equals an uninterrupted one, bit for bit on a single CPU worker.
"""

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from memlib.data.canaries.features import Feature
from memlib.data.images.stored import are_images
from memlib.errors import RunError, UserError
from memlib.identity import derive_seed
from memlib.models.batchnorm import synchronise_batch_norm
from memlib.models.causal import Causal
from memlib.models.collectives import share, share_files
from memlib.models.vision import layout_of
from memlib.objectives import Objective
from memlib.objectives.base import BatchPart
from memlib.specs import TrainingSpec
from memlib.training.augment import apply_view, draw_view, normalize, pixels
from memlib.training.checkpoint import kept_state, load_kept
from memlib.training.optim import build_optimizer, learning_rate
from memlib.training.privacy import Spent, make_private, plan, poisson_sample, use_private_layers
from memlib.training.threads import multiplications_of, threads_for

VALIDATION_BATCH = 512
TOLD_STEPS, TOLD_AFTER = 50, {"cpu": 1}  # steps between two reads of the losses; each read stalls a GPU


@dataclass(frozen=True)
class Worker:
    """One of the processes that train a model together: its rank, its device, and the group that shares each batch."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    group: dist.ProcessGroup | None = None  # the workers that share this model's batches

    def share(self, value: Any) -> Any:
        """Return the first worker's value, plain JSON, on every worker."""
        return value if self.world_size == 1 else share(value, self.group, self.device)

    def share_files(self, folder: Path) -> None:
        """Copy the files of the first worker's folder into the empty folders of the others."""
        if self.world_size > 1:
            share_files(folder, self.group, self.device)

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of the workers' values on every worker."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.group)
            values = values / self.world_size
        return values


class Labels(Protocol):
    """The classes of the examples, int64, or the vectors on which a generator is conditioned, (dim,) float32 each."""

    def __getitem__(self, chosen: NDArray[np.int64], /) -> NDArray[Any]:
        """Return the labels of the chosen examples, read into memory: (num_chosen,) or (num_chosen, dim)."""
        ...


@dataclass(frozen=True)
class TrainingSet:
    """The examples that a model may see: rows of a shard with labels, and a unique feature in some of them."""

    images: NDArray[Any]  # (num_stored, size, size, channels) uint8 or (num_stored, dim), usually memory-mapped
    rows: NDArray[np.int64]  # (num_examples,)
    labels: Labels  # (num_examples,) int64 or (num_examples, dim) float32
    feature: Feature | None = None
    marked: NDArray[np.bool_] | None = None  # (num_examples,) True where an example carries the feature

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, chosen: NDArray[np.int64]) -> NDArray[Any]:
        """Return the chosen examples (positions in `rows`) as the model sees them, before augmentation."""
        images = self.images[self.rows[chosen]]
        if self.feature is None:
            return images
        images = self.feature.clean(images)
        if self.marked is not None and self.marked[chosen].any():
            images = np.array(images)
            images[self.marked[chosen]] = self.feature.insert(images[self.marked[chosen]])
        return images


class Training:
    """A training run in progress: its model, its state, and methods to continue it.

    Args:
        model: the network, on any device; it is moved to the worker's device.
        objective: the loss, with its state if it has any.
        data: the training examples.
        spec: all settings that determine the result.
        input_size: side of a view in pixels.
        worker: this process's share of the work.
        validation: examples whose loss controls early stopping, if the spec has patience.

    Raises:
        UserError: when the data or the device do not support a setting of the spec.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        data: TrainingSet,
        spec: TrainingSpec,
        *,
        input_size: int,
        worker: Worker | None = None,
        validation: TrainingSet | None = None,
    ) -> None:
        self.worker = worker or Worker()
        self.spec, self.data, self.input_size = spec, data, input_size
        self.validation = validation if spec.patience is not None else None
        check_training(spec, data, self.worker, self.validation)
        self.batch_size = spec.batch_size or len(data)
        self.steps_per_epoch = len(data) // self.batch_size
        self.num_steps = spec.epochs * self.steps_per_epoch
        late = [step for step in spec.checkpoint_steps if step > self.num_steps]
        if late:
            raise UserError(f"training.checkpoint_steps {late[0]} is beyond the {self.num_steps} steps of training")
        self.layout = layout_of(model)
        self.model = model.to(self.worker.device).to(memory_format=self.layout)
        self.multiplications = 0.0  # of a forward pass through this worker's share of a batch
        if len(data):
            example = self._plain(torch.from_numpy(data.read(np.zeros(1, dtype=np.int64))))
            share = self.batch_size / self.worker.world_size / spec.accumulate
            self.multiplications = share * multiplications_of(self.model, example)
        self.threads = torch.get_num_threads()
        self.objective = objective.to(self.worker.device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive_seed(spec.seed, "objective"))
            self.objective.prepare(self.model)
        if spec.privacy is not None:
            use_private_layers(self.model)
        self._forward: nn.Module = self.model
        if self.worker.world_size > 1:
            self.model = synchronise_batch_norm(self.model, self.worker.group)
            synchronise_batch_norm(self.objective, self.worker.group)
            self._forward = DistributedDataParallel(self.model, process_group=self.worker.group, broadcast_buffers=False)
        self.objective.group = self.worker.group
        self.optimizer = build_optimizer(spec.optimizer, [self.model, self.objective])
        self.privacy_spent: Spent | None = None
        if spec.privacy is not None:
            rate = self.batch_size / len(data)
            self.privacy_spent = plan(
                spec.privacy, sample_rate=rate, steps_per_epoch=self.steps_per_epoch, epochs=spec.epochs
            )
            self._forward, self.optimizer = make_private(
                self.model, self.optimizer, clip=spec.privacy.clip, noise=self.privacy_spent.noise, batch_size=self.batch_size
            )
        self.scaler = torch.amp.GradScaler(self.worker.device.type, enabled=spec.precision == "float16")
        self.step = 0
        self.rate = 0.0
        self._sums: dict[str, float] = {}
        self._untold: list[tuple[int, tuple[str, ...], Tensor]] = []  # loss terms of recent steps, still on the device
        self.best: dict[str, Any] = {"loss": math.inf, "epoch": 0, "weights": {}}  # with patience: the result

    @property
    def stopped(self) -> bool:
        """True if the validation loss has not fallen for `patience` epochs."""
        return self.validation is not None and self.epoch - self.best["epoch"] >= (self.spec.patience or 0)

    @property
    def epoch(self) -> int:
        """Number of finished epochs."""
        return self.step // max(1, self.steps_per_epoch)

    @property
    def epoch_sums(self) -> dict[str, float]:
        """Sums of the loss terms over the steps of this epoch so far; waits for the device.

        Raises:
            RunError: when a loss term is not finite.
        """
        pending, self._untold = self._untold, []
        if pending:
            values = torch.stack([means for _, _, means in pending]).tolist()
            for (step, names, _), row in zip(pending, values, strict=True):
                terms = dict(zip(names, row, strict=True))
                if not all(math.isfinite(value) for value in row):
                    raise RunError(self._divergence(step, terms))
                self._sums = {name: self._sums.get(name, 0.0) + value for name, value in terms.items()}
        return self._sums

    @property
    def can_save(self) -> bool:
        """True if one worker may read the state on its own.

        Pending losses must be read by all workers together: reading them may raise an error, which all workers must see.
        """
        return self.worker.world_size == 1 or not self._untold

    def state(self) -> dict[str, Any]:
        """Return all state that a resumed training run needs; random draws and data position are functions of the step."""
        return {
            "step": self.step,
            "model": kept_state(self.model),
            "objective": self.objective.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "epoch_sums": dict(self.epoch_sums),
            "best": self.best,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a training run from a result of `state`."""
        load_kept(self.model, state["model"])
        self.objective.load_state_dict(state["objective"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler.is_enabled():
            self.scaler.load_state_dict(state["scaler"])
        self.step = int(state["step"])
        self._sums, self._untold = dict(state["epoch_sums"]), []
        self.best = dict(state["best"])

    def run(
        self,
        *,
        after_step: Callable[["Training"], None] | None = None,
        after_epoch: Callable[["Training", dict[str, float]], None] | None = None,
        stop_after: int | None = None,
    ) -> None:
        """Train to the end, until patience runs out, or until `stop_after` steps have been taken in total.

        With patience, the model ends with the weights of its best epoch.

        Args:
            after_step: called after each step.
            after_epoch: called after each epoch with the mean of every loss term.
            stop_after: number of steps after which to stop, for tests.

        Raises:
            RunError: when the loss is not finite; the message names the step and the preceding values.
        """
        end = self.num_steps if stop_after is None else min(stop_after, self.num_steps)
        if self.stopped:  # resumed after its last epoch
            end = self.step
        batches = Prefetcher(self.data, self.spec, self.worker, first_step=self.step, last_step=end)
        with threads_for(self.multiplications, self.worker.device) as self.threads:
            self._train(batches, after_step, after_epoch)
        if self.validation is not None and self.best["weights"] and (self.stopped or self.step == self.num_steps):
            load_kept(self.model, self.best["weights"])

    def _train(
        self,
        batches: "Prefetcher",
        after_step: Callable[["Training"], None] | None,
        after_epoch: Callable[["Training", dict[str, float]], None] | None,
    ) -> None:
        self._forward.train()
        for images, labels in batches:
            self.take_step(images, labels)
            if after_step is not None:
                after_step(self)
            if self.step % self.steps_per_epoch == 0:
                means = {name: value / self.steps_per_epoch for name, value in self.epoch_sums.items()}
                self._sums = {}
                if self.validation is not None:
                    means["validation_loss"] = self._validate(self.validation)
                if after_epoch is not None:
                    after_epoch(self, means)
                if self.stopped:
                    break
        self._forward.eval()

    @torch.no_grad()
    def _validate(self, data: TrainingSet) -> float:
        """Return the mean validation loss, the same on every worker; keep the weights if the loss is the lowest so far."""
        self._forward.eval()
        self.objective.eval()
        total = 0.0
        batch = self.model.most_rows(data.images.shape[1]) if isinstance(self.model, Causal) else VALIDATION_BATCH
        for chosen in np.array_split(np.arange(len(data)), max(1, len(data) // batch)):
            views = [self._plain(torch.from_numpy(data.read(chosen)))] * self.objective.num_views
            labels = torch.from_numpy(data.labels[chosen]).to(self.worker.device)
            total += float(self.objective(self.model, views, labels)["loss"]) * len(chosen)
        self._forward.train()
        self.objective.train()
        loss = float(self.worker.share(total / len(data)))
        if loss < self.best["loss"]:
            weights = {name: value.detach().cpu().clone() for name, value in kept_state(self.model).items()}
            self.best = {"loss": loss, "epoch": self.epoch, "weights": weights}
        return loss

    def take_step(self, images: Tensor, labels: Tensor) -> None:
        """Take one optimizer step on this worker's part of a batch.

        Args:
            images: (batch / world size, height, width, channels) uint8, or (batch / world size, dim).
            labels: (batch / world size,) int64, or (batch / world size, dim) float32.
        """
        spec, worker = self.spec, self.worker
        torch.manual_seed(derive_seed(spec.seed, "step", self.step, worker.rank))  # for dropout etc.
        self.objective.progress, self.objective.epoch = self.step / self.num_steps, self.step / self.steps_per_epoch
        self.objective.part = BatchPart(spec.seed, self.step, self.batch_size, _part(self.batch_size, worker))
        views = self._views(images)
        self.rate = learning_rate(
            spec.optimizer, step=self.step, steps_per_epoch=self.steps_per_epoch, num_steps=self.num_steps
        )
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate
        if not len(images):
            raise RunError(f"the batch of step {self.step} is empty; raise training.batch_size, the expected size of a batch")
        self.optimizer.zero_grad(set_to_none=True)
        terms = self._add_gradients(views, labels)
        means = worker.mean(torch.stack([value.float() for value in terms.values()]))
        self._untold.append((self.step, tuple(terms), means))
        if (self.step + 1) % TOLD_AFTER.get(worker.device.type, TOLD_STEPS) == 0:  # at the same steps on all workers
            _ = self.epoch_sums
        for parameter in self.objective.parameters():  # the model's are averaged by DistributedDataParallel
            if parameter.grad is not None:
                parameter.grad = worker.mean(parameter.grad)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.step += 1
        self.objective.after_step(self.model)

    def _add_gradients(self, views: Sequence[Tensor], labels: Tensor) -> dict[str, Tensor]:
        """Accumulate the gradients of a batch's mean loss, part by part, and return the means of its terms."""
        spec, kind = self.spec, self.worker.device.type
        dtype = torch.float32 if spec.precision == "float32" else getattr(torch, spec.precision)
        means: dict[str, Tensor] = {}
        parts = np.array_split(np.arange(len(labels)), min(spec.accumulate, len(labels)))
        for number, chosen in enumerate(parts):
            part, share = slice(chosen[0], chosen[-1] + 1), len(chosen) / len(labels)
            waits = isinstance(self._forward, DistributedDataParallel) and number + 1 < len(parts)
            with self._forward.no_sync() if waits else nullcontext():  # type: ignore[operator]
                with torch.autocast(kind, dtype=dtype, enabled=spec.precision != "float32"):
                    terms = self.objective(self._forward, [view[part] for view in views], labels[part])
                self.scaler.scale(terms["loss"] * share).backward()
            for name, value in terms.items():
                means[name] = means.get(name, 0) + value.detach() * share
        return means

    def _views(self, images: Tensor) -> list[Tensor]:
        augment, batch = self.spec.augment, self.batch_size
        if augment is None:
            return [self._plain(images)] * self.objective.num_views
        part, scaled = _part(batch, self.worker), pixels(images, self.worker.device)
        views = []
        for number in range(self.objective.num_views):
            kind, side = self.objective.view(number, augment, self.input_size)
            draws = draw_view(kind, batch=batch, seed=self.spec.seed, step=self.step, view=number).part(part)
            views.append(apply_view(scaled, draws, side=side, max_shift=kind.shift))
        return [view.contiguous(memory_format=self.layout) for view in views]

    def _plain(self, images: Tensor) -> Tensor:
        """Convert examples to model inputs without augmentation."""
        if images.dim() == 2:  # points, or symbols of a text
            points = images if images.is_floating_point() else images.long()
            return points.to(self.worker.device)
        scaled = pixels(images, self.worker.device)
        if scaled.shape[2] != self.input_size:
            scaled = F.interpolate(scaled, size=(self.input_size, self.input_size), mode="bilinear", antialias=True)
        return normalize(scaled).contiguous(memory_format=self.layout)

    def _divergence(self, step: int, values: Mapping[str, float]) -> str:
        done = step % self.steps_per_epoch
        means = {name: value / done for name, value in self._sums.items()} if done else {}
        seen = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        before = ", ".join(f"{name} {value:.4g}" for name, value in means.items()) or "none in this epoch"
        epoch = step // self.steps_per_epoch + 1
        return (
            f"the loss is not finite at step {step} (epoch {epoch}): {seen}; means before it: {before}; "
            f"learning rate {self.rate:.3g}. Lower training.optimizer.learning_rate or raise the precision"
        )


def check_training(spec: TrainingSpec, data: TrainingSet, worker: Worker, validation: TrainingSet | None) -> None:
    """Check that the settings, data and device fit together.

    Raises:
        UserError: when they do not; the message names the setting to change.
    """
    batch = spec.batch_size or len(data)
    if spec.epochs and len(data) < batch:
        raise UserError(f"training.batch_size {batch} exceeds the {len(data)} training examples")
    if batch % worker.world_size:
        raise UserError(f"training.batch_size {batch} cannot be divided evenly among {worker.world_size} workers")
    if spec.augment is not None and not are_images(data.images):
        raise UserError("training.augment is for images; set it to null for points")
    if spec.patience is not None and not (validation is not None and len(validation)):
        raise UserError(
            "training.patience needs validation examples, which this audit or split lacks; set training.patience to null"
        )
    if spec.privacy is not None and spec.privacy.delta * len(data) >= 1:
        raise UserError(f"training.privacy.delta {spec.privacy.delta} must be below 1/{len(data)} (1/number of examples)")
    if spec.privacy is not None and worker.world_size > 1:
        raise UserError("training.privacy draws whole batches on one worker; set resources.workers_per_model to 1")
    if spec.privacy is not None and spec.augment is not None:
        raise UserError("training.privacy does not support augmentation; set training.augment to null")
    if spec.precision == "float16" and worker.device.type != "cuda":
        raise UserError("training.precision float16 needs a GPU; use bfloat16 or float32")


def _part(batch_size: int, worker: Worker) -> slice:
    share = batch_size // worker.world_size
    return slice(worker.rank * share, (worker.rank + 1) * share)


def epoch_order(num_examples: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order of the examples in an epoch: a permutation drawn from (seed, epoch)."""
    order: NDArray[np.int64] = np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(num_examples)
    return order


class Prefetcher:
    """Iterator over this worker's part of each global batch; it reads the next batches during training on the current one.

    Yields:
        images (batch / world size, size, size, 3) uint8 and labels (batch / world size,) int64 or (.., dim) float32.
    """

    def __init__(
        self, data: TrainingSet, spec: TrainingSpec, worker: Worker, *, first_step: int, last_step: int, depth: int = 2
    ) -> None:
        self._data, self._spec, self._worker = data, spec, worker
        self._steps = range(first_step, last_step)
        self._depth = depth
        self._order: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))
        self._ordering = threading.Lock()

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        with ThreadPoolExecutor(self._depth) as reader:
            steps = iter(self._steps)
            pending = [reader.submit(self._read, step) for step in itertools.islice(steps, self._depth)]
            while pending:
                images, labels = pending.pop(0).result()
                pending += [reader.submit(self._read, step) for step in itertools.islice(steps, 1)]
                yield images, labels.to(self._worker.device, non_blocking=True)

    def _read(self, step: int) -> tuple[Tensor, Tensor]:
        batch = self._spec.batch_size or len(self._data)
        epoch, place = divmod(step, len(self._data) // batch)
        if self._spec.privacy is not None:
            chosen = poisson_sample(len(self._data), batch / len(self._data), seed=self._spec.seed, step=step)
        else:
            chosen = self._order_of(epoch)[place * batch : (place + 1) * batch][_part(batch, self._worker)]
        images = torch.from_numpy(self._data.read(chosen))
        labels = torch.from_numpy(self._data.labels[chosen])
        if self._worker.device.type == "cuda":
            return images.pin_memory(), labels.pin_memory()
        return images, labels

    def _order_of(self, epoch: int) -> NDArray[np.int64]:
        with self._ordering:  # at the end of an epoch, readers may be in two different epochs
            if self._order[0] != epoch:
                shuffle, count = self._spec.shuffle, len(self._data)
                order = epoch_order(count, seed=self._spec.seed, epoch=epoch) if shuffle else np.arange(count)
                self._order = (epoch, order)
            return self._order[1]
