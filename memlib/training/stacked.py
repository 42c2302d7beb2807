"""Many small networks trained as one: every parameter has a leading axis of networks, one optimizer updates them all.

Each network starts from its own seed, sees its own rows in its own order, draws its own dropout and stops on its own,
so its result does not depend on the other networks of its stack (up to rounding). The loss is the sum of the networks'
mean losses and the optimizer is elementwise, so no gradient of one network reaches another.

Training sets may differ in size, but all networks take the same steps: an epoch has `epoch_size` examples for each of them.
A network's stream of examples is its shuffled training set, shuffled again after each pass; epoch k (from 0) holds the
examples k * epoch_size to (k + 1) * epoch_size of the stream, in floor(epoch_size / batch) batches without the remainder, as
in the training loop. A larger training set thus goes on in the next epoch where this one ended, and a smaller one begins its
next pass within the epoch, so that a batch there may hold an example twice. With epoch_size examples in each training set,
an epoch is a pass.
"""

import copy
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from memlib.data.canaries.features import Feature, TrainingRows
from memlib.data.images.stored import are_images
from memlib.errors import RunError, UserError
from memlib.identity import derive_seed
from memlib.models.classifiers import build_classifier
from memlib.specs import ClassifierSpec, SupervisedSpec, TrainingSpec
from memlib.training.augment import ViewDraws, apply_view, draw_view, normalize, pixels, prepare
from memlib.training.loop import epoch_order
from memlib.training.optim import build_adamw, learning_rate
from memlib.training.threads import multiplications_of, threads_for

VALIDATION_BATCH = 1024
LARGE_BATCH = 256  # from this size on, the matrix products of a single network keep a core busy
MOST_NETS = 256  # of a stack
COPIES = 4  # of each parameter: the weight, its gradient, and the optimizer's two moments


@dataclass(frozen=True)
class Budget:
    """The size of a stack's step up to which a larger stack is faster.

    Below it, the overhead of a step is shared by more networks; above it, a step's arrays leave the caches of a CPU, or fill
    the memory of a GPU. benchmarks/shadow_nets.py compares sizes.
    """

    multiplications: float  #: multiplications of all networks in the forward pass of a batch.
    num_bytes: float  #: bytes of all networks' parameters with gradients and moments, and of their batches.


BUDGETS = {"cpu": Budget(3e7, 16 * 2**20), "cuda": Budget(3e10, 4 * 2**30)}


class StackedNet:
    """Stacked sequential networks of one architecture, with parameters and buffers of shape (num_nets, ...).

    Args:
        nets: networks of Flatten, Linear, Conv2d, BatchNorm, ReLU, MaxPool2d and Dropout layers.
        device: device to compute on.
    """

    def __init__(self, nets: Sequence[nn.Sequential], device: torch.device) -> None:
        self.layers = [copy.deepcopy(layer) for layer in nets[0]]
        states = [net.state_dict() for net in nets]
        trained = {name for name, _ in nets[0].named_parameters()}
        self.state = {name: torch.stack([state[name] for state in states]).to(device) for name in states[0]}
        self.parameters = {name: self.state[name].requires_grad_() for name in self.state if name in trained}
        self.device = device

    @classmethod
    def load(cls, net: nn.Sequential, state: Mapping[str, Tensor], device: torch.device) -> "StackedNet":
        """Build networks of the architecture of `net` from their stacked state (num_nets, ...)."""
        stacked = cls([net], device)
        trained = set(stacked.parameters)
        stacked.state = {name: state[name].to(device) for name in stacked.state}
        stacked.parameters = {name: stacked.state[name].requires_grad_() for name in trained}
        return stacked

    def __len__(self) -> int:
        return len(next(iter(self.state.values())))

    def net_state(self, net: int) -> dict[str, Tensor]:
        """Return the state dict of one network, on the CPU."""
        return {name: values[net].detach().cpu().clone() for name, values in self.state.items()}

    def keep(self, nets: Sequence[int]) -> None:
        """Remove all networks except those at the positions `nets`."""
        with torch.no_grad():
            self.state = {name: values.detach()[list(nets)].clone() for name, values in self.state.items()}
        self.parameters = {name: self.state[name].requires_grad_() for name in self.parameters}

    def forward(self, inputs: Tensor, *, draws: Sequence[torch.Generator] | None = None, layers: int | None = None) -> Tensor:
        """Return class scores, or the output of the first `layers` layers (-1: all but the last).

        Args:
            inputs: (num_nets, batch, *shape), or (1, batch, *shape) for examples that all networks share.
            draws: each network's dropout generator for training; None for evaluation.

        Returns:
            (num_nets, batch, num_classes) float32.
        """
        x = inputs.expand(len(self), *inputs.shape[1:])
        if self._in_turn(x, layers):
            names = [str(number) for number, layer in enumerate(self.layers) if isinstance(layer, nn.Linear)]
            weights = [self.state[f"{name}.{part}"] for name in names for part in ("weight", "bias")]
            scores: Tensor = _DenseChain.apply(x.flatten(2), *weights)
            return scores
        for number, layer in enumerate(self.layers[:layers]):
            x = self._apply(layer, str(number), x, draws)
        return x

    def _in_turn(self, x: Tensor, layers: int | None) -> bool:
        """Return whether to compute networks one after the other: for large batches through dense layers on a CPU."""
        dense = all(isinstance(layer, nn.Flatten | nn.Linear | nn.ReLU) for layer in self.layers)
        return dense and layers is None and self.device.type == "cpu" and x.shape[1] >= LARGE_BATCH

    def _apply(self, layer: nn.Module, name: str, x: Tensor, draws: Sequence[torch.Generator] | None) -> Tensor:
        if isinstance(layer, nn.Linear):
            weight, bias = self.state[f"{name}.weight"], self.state.get(f"{name}.bias")
            x = x.transpose(1, 2)  # weight first: its gradient then has the weight's layout, needing no copy
            product = torch.bmm(weight, x) if bias is None else torch.baddbmm(bias[:, :, None], weight, x)
            return product.transpose(1, 2)
        if isinstance(layer, nn.Conv2d):
            return self._convolve(self.state[f"{name}.weight"], self.state.get(f"{name}.bias"), x)
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            return self._normalize(layer, name, x, training=draws is not None)
        if isinstance(layer, nn.ReLU):
            return F.relu(x)
        if isinstance(layer, nn.Flatten):
            return x.flatten(2)
        if isinstance(layer, nn.MaxPool2d):
            return _by_net(F.max_pool2d(x.flatten(0, 1), layer.kernel_size), x.shape[:2])
        assert isinstance(layer, nn.Dropout), f"{type(layer).__name__} cannot be stacked"
        if draws is None:
            return x
        kept = torch.stack([torch.rand(x.shape[1:], generator=draw) for draw in draws]) >= layer.p
        return x * kept.to(x.device) / (1 - layer.p)

    def _convolve(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        """Convolve all networks: in one grouped convolution on a GPU, one by one on a CPU, whichever is faster there."""
        if self.device.type == "cpu":
            biases = [None] * len(weight) if bias is None else bias
            return torch.stack([F.conv2d(part, w, b) for part, w, b in zip(x, weight, biases, strict=True)])
        flat = x.transpose(0, 1).flatten(1, 2)
        out = F.conv2d(flat, weight.flatten(0, 1), None if bias is None else bias.flatten(), groups=len(weight))
        return out.reshape(len(out), len(weight), -1, *out.shape[2:]).transpose(0, 1)

    def _normalize(self, layer: nn.BatchNorm1d | nn.BatchNorm2d, name: str, x: Tensor, *, training: bool) -> Tensor:
        """Apply batch norm with separate statistics per network and channel: networks become channels."""
        part = {key: self.state[f"{name}.{key}"].flatten() for key in ("weight", "bias", "running_mean", "running_var")}
        flat = x.transpose(0, 1).flatten(1, 2)
        out = F.batch_norm(
            flat, part["running_mean"], part["running_var"], part["weight"], part["bias"], training,
            layer.momentum or 0.0, layer.eps,
        )  # fmt: skip
        if training:
            self.state[f"{name}.num_batches_tracked"] += 1
        return out.reshape(len(out), len(self), -1, *out.shape[2:]).transpose(0, 1)


def _by_net(flat: Tensor, shape: torch.Size) -> Tensor:
    """Reshape (num_nets * batch, ...) to (num_nets, batch, ...)."""
    return flat.reshape(*shape, *flat.shape[1:])


class _DenseChain(torch.autograd.Function):
    """Linear layers with ReLU between them, one network at a time, so that activations stay in the processor's cache.

    For large batches on a CPU this is faster than one product of all networks per layer, which is limited by memory.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, *parameters: Tensor) -> Tensor:
        """Return the last layer's outputs.

        Args:
            ctx: passes tensors to `backward`.
            inputs: (num_nets, batch, dim).
            parameters: weight (num_nets, out, in) and bias (num_nets, out) of each layer.
        """
        weights, biases = parameters[0::2], parameters[1::2]
        outputs = [inputs.new_empty(*inputs.shape[:2], weight.shape[1]) for weight in weights]
        last = len(weights) - 1
        for net in range(len(inputs)):
            x = inputs[net]
            for i, (weight, bias, output) in enumerate(zip(weights, biases, outputs, strict=True)):
                x = torch.addmm(bias[net], x, weight[net].t(), out=output[net])
                if i < last:
                    x.relu_()
        ctx.save_for_backward(inputs, *weights, *outputs[:-1])
        return outputs[-1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the parameters; the inputs are data and get none."""
        inputs, *saved = ctx.saved_tensors
        count = (len(saved) + 1) // 2
        weights, below = saved[:count], [inputs, *saved[count:]]
        weight_gradients = [torch.empty_like(weight) for weight in weights]
        bias_gradients = [weight.new_empty(weight.shape[:2]) for weight in weights]
        buffers = [inputs.new_empty(inputs.shape[1], weight.shape[2]) for weight in weights]
        for net in range(len(inputs)):
            delta = gradients[0][net]
            for i in range(count - 1, -1, -1):
                torch.mm(delta.t(), below[i][net], out=weight_gradients[i][net])
                torch.sum(delta, 0, out=bias_gradients[i][net])
                if i:
                    torch.mm(delta, weights[i][net], out=buffers[i])
                    delta = torch.ops.aten.threshold_backward.grad_input(buffers[i], below[i][net], 0, grad_input=buffers[i])
        return (None, *(part for pair in zip(weight_gradients, bias_gradients, strict=True) for part in pair))


# -- data ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Examples:
    """The examples that the networks of a stack may see."""

    #: (num_stored, height, width, channels) uint8 or (num_stored, dim) float32, the content of the shard.
    images: NDArray[np.generic]
    labels: NDArray[np.int64]  #: (num_stored,) int64, by stored row.
    feature: Feature | None = None  #: the unique feature, inserted in marked rows; None if no row is marked.
    #: (num_validation,) int64 stored rows for early stopping.
    validation: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one example as model input: (channels, height, width) or (dim,)."""
        shape = self.images.shape[1:]
        return (shape[2], shape[0], shape[1]) if are_images(self.images) else shape


class _Pool:
    """The examples of a stack on the device, each stored once: clean examples, then examples with the feature."""

    def __init__(self, data: Examples, nets: Sequence["NetJob"], device: torch.device, *, augmented: bool) -> None:
        clean = np.unique(np.concatenate([*(net.rows.rows for net in nets), data.validation]))
        marked = np.unique(np.concatenate([net.rows.rows[net.rows.marked] for net in nets]))
        images = data.images[clean]
        if data.feature is not None:
            images = data.feature.clean(images)
        if len(marked):
            assert data.feature is not None, "rows are marked, but there is no feature"
            images = np.concatenate([images, data.feature.insert(data.images[marked])])
        self.inputs = pixels(torch.from_numpy(images), device) if augmented else prepare(images, device)
        self.labels = torch.from_numpy(data.labels[np.concatenate([clean, marked])]).to(device)
        self._clean, self._marked = clean, marked

    def places(self, rows: TrainingRows) -> Tensor:
        """Return the positions in the pool of a network's training set, (num_examples,) int64."""
        place = np.searchsorted(self._clean, rows.rows)
        place[rows.marked] = len(self._clean) + np.searchsorted(self._marked, rows.rows[rows.marked])
        return torch.from_numpy(place).to(self.labels.device)


# -- training -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NetJob:
    """The seed of one network (initial weights, order, dropout, augmentation) and its training set."""

    seed: int
    rows: TrainingRows


@dataclass
class NetResult:
    """A trained network."""

    state: dict[str, Tensor]  #: the network's state dict; with patience, that of the best epoch.
    epoch: int  #: the epoch of `state`.
    #: (num_epochs, 3) training loss, training accuracy (from the training steps' forward passes), validation loss.
    history: NDArray[np.float64]
    #: state dict by epoch of `training.earlier_epochs`; after the network has stopped, `state`.
    earlier: dict[int, dict[str, Tensor]]


Watch = Callable[[int, Sequence[int], Callable[[Tensor], Tensor], Tensor | None], None]
"""A callback that receives the epoch, the jobs' numbers, a forward pass ((batch, *shape) -> (nets, batch, classes)), and
the class scores of all training rows if a training step has just computed them with the same weights, else None."""


def train_nets(
    spec: ClassifierSpec,
    training: TrainingSpec,
    data: Examples,
    jobs: Sequence[NetJob],
    num_classes: int,
    *,
    stack_size: int,
    device: torch.device,
    epoch_size: int | None = None,
    watch: Watch | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[NetResult]:
    """Train networks, `stack_size` at a time; return results in the order of the jobs.

    Args:
        spec: the architecture, which must be stackable.
        training: training settings; their seed is replaced by the seed of each job.
        data: the examples that the networks may see.
        num_classes: number of classes of the data.
        stack_size: number of networks trained at once; affects only rounding and speed.
        epoch_size: number of examples that each network sees in an epoch, such as the expected size of a training set; by
            default the size of the training sets, which must then be equal.
        watch: called after every epoch.
        progress: called after every epoch of a stack with (done, total) epochs of all networks.

    Raises:
        RunError: when a network's loss is not finite.
        UserError: when stacked networks do not support a setting.
    """
    size = _epoch_size(jobs, epoch_size)
    _check(training, data, jobs, size)
    results: list[NetResult] = []
    for start in range(0, len(jobs), stack_size):
        numbers = list(range(start, min(start + stack_size, len(jobs))))
        stack = _Stack(spec, training, data, [jobs[n] for n in numbers], num_classes, device, epoch_size=size)
        tell = None if progress is None else functools.partial(_tell, progress, training.epochs, numbers, len(jobs))
        results += stack.train(numbers, watch, tell)
    return results


def _tell(progress: Callable[[int, int], None], epochs: int, numbers: Sequence[int], num_nets: int, epoch: int) -> None:
    """Report that a stack has come to an epoch; epochs that networks save by stopping early count as done at its end."""
    progress(numbers[0] * epochs + len(numbers) * epoch, num_nets * epochs)


def _epoch_size(jobs: Sequence[NetJob], epoch_size: int | None) -> int:
    sizes = {len(job.rows.rows) for job in jobs}
    if epoch_size is not None:
        return epoch_size
    assert len(sizes) == 1, "training sets of unequal size need an epoch_size"
    return sizes.pop()


def _check(training: TrainingSpec, data: Examples, jobs: Sequence[NetJob], epoch_size: int) -> None:
    if training.unstackable:
        raise UserError(training.unstackable)
    if training.augment is not None and not are_images(data.images):
        raise UserError("training.augment is for images; set it to null for points")
    sizes = [len(job.rows.rows) for job in jobs]
    if not min(sizes):
        raise UserError(f"{sizes.count(0)} of {len(sizes)} nets have no training examples; give more data")
    if training.batch_size is None and {*sizes} != {epoch_size}:
        raise UserError(
            f"training.batch_size null needs training sets of {epoch_size} examples, but the nets have {min(sizes)} to "
            f"{max(sizes)}; set a batch size"
        )
    if training.batch_size is not None and training.batch_size > epoch_size:
        raise UserError(f"training.batch_size {training.batch_size} exceeds the {epoch_size} training examples of an epoch")
    if training.patience is not None and not len(data.validation):
        raise UserError("training.patience needs validation examples; set split.validation_per_class")


def stream(num_examples: int, *, seed: int, start: int, count: int) -> NDArray[np.int64]:
    """Return a part of a network's stream of examples: the orders of its passes through its training set, joined.

    Args:
        num_examples: size of the training set.
        seed: the network's seed.
        start: first place of the part, counted from 0.

    Returns:
        (count,) int64 positions in the training set.
    """
    first, last = start // num_examples, (start + count - 1) // num_examples
    orders = [epoch_order(num_examples, seed=seed, epoch=number) for number in range(first, last + 1)]
    return np.concatenate(orders)[start - first * num_examples :][:count]


class _Stack:
    """Networks that train together; stopped networks are removed when they make up at least half of the stack."""

    def __init__(
        self, spec: ClassifierSpec, training: TrainingSpec, data: Examples, jobs: Sequence[NetJob], num_classes: int,
        device: torch.device, *, epoch_size: int | None = None,
    ) -> None:  # fmt: skip
        self.training, self.device = training, device
        assert isinstance(training.objective, SupervisedSpec)
        self.label_smoothing = training.objective.label_smoothing
        nets = [build_classifier(spec, data.input_shape, num_classes, seed=job.seed) for job in jobs]
        by_example = multiplications_of(nets[0], torch.zeros(1, *data.input_shape))
        assert all(isinstance(net, nn.Sequential) for net in nets)
        self.net = StackedNet([net for net in nets if isinstance(net, nn.Sequential)], device)
        self.pool = _Pool(data, jobs, device, augmented=training.augment is not None)
        self.places = pad_sequence([self.pool.places(job.rows) for job in jobs], batch_first=True)  # the padding is not read
        self.sizes = [len(job.rows.rows) for job in jobs]
        self.seeds = [job.seed for job in jobs]
        self.draws = [torch.Generator().manual_seed(derive_seed(job.seed, "dropout")) for job in jobs]
        unmarked = np.zeros(len(data.validation), dtype=bool)
        self.validation = self.pool.places(TrainingRows(data.validation, unmarked))
        self.side = data.images.shape[1]
        self.optimizer = build_adamw(training.optimizer, list(self.net.parameters.values()), decayed_from=3)
        self.active = list(range(len(jobs)))  # position in the stack -> job of this stack
        self.stopped: set[int] = set()  # finished jobs, some still in the stack
        self.best = [(np.inf, 0)] * len(jobs)
        self.states: list[dict[str, Tensor]] = [{} for _ in jobs]
        self.earlier: list[dict[int, dict[str, Tensor]]] = [{} for _ in jobs]
        self.histories: list[list[list[float]]] = [[] for _ in jobs]
        self.epoch_size = _epoch_size(jobs, epoch_size)
        self.batch = training.batch_size or self.epoch_size
        self.multiplications = len(jobs) * self.batch * by_example
        self.steps = self.epoch_size // self.batch
        # with full batches and the same pass in training and evaluation, a step's pass evaluates the weights before the step
        differs = training.augment is not None or spec.dropout or spec.dropout_conv or spec.batch_norm
        self.forward_is_evaluation = {*self.sizes, self.epoch_size} == {self.batch} and not differs

    def train(
        self, numbers: Sequence[int], watch: Watch | None, tell: Callable[[int], None] | None = None
    ) -> list[NetResult]:
        with threads_for(self.multiplications, self.device):
            results = self._train(numbers, watch, tell or (lambda epoch: None))
        if tell is not None:
            tell(self.training.epochs)
        return results

    def _train(self, numbers: Sequence[int], watch: Watch | None, tell: Callable[[int], None]) -> list[NetResult]:
        self._save(0)
        for epoch in range(1, self.training.epochs + 1):
            step_watch = watch if self.forward_is_evaluation and epoch > 1 else None
            loss, accuracy = self._epoch(epoch - 1, numbers, step_watch)
            validation = self._validate()
            self._note(epoch, loss, accuracy, validation)
            self._save(epoch)
            if watch is not None and (not self.forward_is_evaluation or epoch == self.training.epochs):
                watch(epoch, [numbers[job] for job in self.active], self.evaluate, None)
            self._drop_the_finished(epoch)
            if not self.active:
                break
            tell(epoch)
        for position, job in enumerate(self.active):
            if self.training.patience is None:
                self.states[job] = self.net.net_state(position)
        return [
            NetResult(
                state,
                best[1] if self.training.patience else self.training.epochs,
                np.array(history),
                {epoch: earlier.get(epoch, state) for epoch in self.training.earlier_epochs},
            )
            for state, best, history, earlier in zip(self.states, self.best, self.histories, self.earlier, strict=True)
        ]

    def _save(self, epoch: int) -> None:
        """Save the networks' states if the epoch is one of `training.earlier_epochs`."""
        if epoch in self.training.earlier_epochs:
            for position, job in enumerate(self.active):
                if job not in self.stopped:
                    self.earlier[job][epoch] = self.net.net_state(position)

    @torch.inference_mode()
    def evaluate(self, inputs: Tensor) -> Tensor:
        """Return class scores: (batch, *shape) prepared examples -> (nets, batch, classes)."""
        return self.net.forward(inputs[None])

    def _epoch(self, epoch: int, numbers: Sequence[int], watch: Watch | None) -> tuple[Tensor, Tensor]:
        loss, correct = torch.zeros(len(self.active)), torch.zeros(len(self.active))
        for step, places in enumerate(self._batches(epoch)):
            losses, scores = self._losses(places, epoch * self.steps + step)
            if watch is not None:
                watch(epoch, [numbers[job] for job in self.active], self.evaluate, scores.detach())
            self._step(losses.sum(), epoch * self.steps + step)
            loss += losses.detach().cpu()
            correct += (scores.detach().argmax(dim=2) == self.pool.labels[places]).float().mean(dim=1).cpu()
        return loss / self.steps, correct / self.steps

    def _batches(self, epoch: int) -> Sequence[Tensor]:
        """Return the positions in the pool of each batch of an epoch, (num_nets, batch) int64."""
        orders = np.stack([self._order(job, epoch) for job in self.active])
        places = self.places.gather(1, torch.from_numpy(orders).to(self.device))
        return torch.split(places, self.batch, dim=1)

    def _order(self, job: int, epoch: int) -> NDArray[np.int64]:
        """Return the positions in a network's training set of the examples of an epoch, without the remainder."""
        size = self.sizes[job]
        if size == self.epoch_size == self.batch:
            return np.arange(size)  # a full batch needs no order
        return stream(size, seed=self.seeds[job], start=epoch * self.epoch_size, count=self.steps * self.batch)

    def _losses(self, places: Tensor, step: int) -> tuple[Tensor, Tensor]:
        inputs = self._inputs(places, step)
        scores = self.net.forward(inputs, draws=self.draws)
        by_class = scores.transpose(1, 2).contiguous()  # softmax over a short last axis is slow
        losses = F.cross_entropy(by_class, self.pool.labels[places], reduction="none", label_smoothing=self.label_smoothing)
        return losses.mean(dim=1), scores

    def _inputs(self, places: Tensor, step: int) -> Tensor:
        inputs = self.pool.inputs[places]
        augment = self.training.augment
        if augment is None:
            return inputs
        batch = places.shape[1]
        draws = [draw_view(augment, batch=batch, seed=self.seeds[job], step=step, view=0) for job in self.active]
        views = apply_view(inputs.flatten(0, 1), ViewDraws.joined(draws), side=self.side, max_shift=augment.shift)
        return _by_net(views, places.shape)

    def _step(self, loss: Tensor, step: int) -> None:
        rate = learning_rate(
            self.training.optimizer, step=step, steps_per_epoch=self.steps, num_steps=self.steps * self.training.epochs
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def _validate(self) -> Tensor:
        """Return the validation losses, (num_nets,); NaN without validation examples."""
        if not len(self.validation):
            return torch.full((len(self.active),), torch.nan)
        total = torch.zeros(len(self.active))
        for part in torch.split(self.validation, VALIDATION_BATCH):
            inputs = self.pool.inputs[part]
            scores = self.evaluate(normalize(inputs) if self.training.augment is not None else inputs)
            labels = self.pool.labels[part].expand(len(self.active), -1)
            losses = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none", label_smoothing=self.label_smoothing)
            total += losses.sum(dim=1).cpu()
        return total / len(self.validation)

    def _note(self, epoch: int, loss: Tensor, accuracy: Tensor, validation: Tensor) -> None:
        rows = torch.stack([loss, accuracy, validation], dim=1).tolist()
        for position, (job, row) in enumerate(zip(self.active, rows, strict=True)):
            if job in self.stopped:
                continue  # results after the stop do not count
            if not np.isfinite(row[0]):
                raise RunError(
                    f"the loss of the net with seed {self.seeds[job]} is not finite in epoch {epoch}; lower "
                    "training.optimizer.learning_rate"
                )
            self.histories[job].append(row)
            if self.training.patience is not None and row[2] < self.best[job][0]:
                self.best[job] = (row[2], epoch)
                self.states[job] = self.net.net_state(position)

    def _drop_the_finished(self, epoch: int) -> None:
        patience = self.training.patience
        if patience is None:
            return
        self.stopped |= {job for job in self.active if epoch - self.best[job][1] >= patience}
        remaining = [p for p, job in enumerate(self.active) if job not in self.stopped]
        if len(remaining) <= len(self.active) / 2:
            self._keep(remaining)

    def _keep(self, positions: Sequence[int]) -> None:
        self.active = [self.active[p] for p in positions]
        if not positions:
            return
        old = list(self.net.parameters.values())
        moments = [self.optimizer.state[parameter] for parameter in old]
        self.net.keep(positions)
        self.places = self.places[list(positions)]
        self.draws = [self.draws[p] for p in positions]
        self.optimizer = build_adamw(self.training.optimizer, list(self.net.parameters.values()), decayed_from=3)
        for parameter, moment in zip(self.net.parameters.values(), moments, strict=True):
            self.optimizer.state[parameter] = {
                name: value[list(positions)].clone() if name != "step" else value for name, value in moment.items()
            }


def choose_stack_size(
    spec: ClassifierSpec,
    training: TrainingSpec,
    data: Examples,
    jobs: Sequence[NetJob],
    num_classes: int,
    device: torch.device,
    *,
    epoch_size: int | None = None,
) -> int:
    """Return the number of networks to train at once: as many as a budget of the device allows, in stacks of even size.

    The number follows from the architecture, the batch, the networks and the kind of device alone, so that it is the same on
    every machine and under every load. The arguments, and the mistakes raised as UserError, are those of `train_nets`.
    """
    per_epoch = _epoch_size(jobs, epoch_size)
    _check(training, data, jobs, per_epoch)
    net = build_classifier(spec, data.input_shape, num_classes, seed=0)
    batch = training.batch_size or per_epoch
    multiplications = batch * multiplications_of(net, torch.zeros(1, *data.input_shape))
    parameters = sum(weight.numel() for weight in net.parameters())
    num_bytes = 4 * (COPIES * parameters + batch * int(np.prod(data.input_shape)))
    budget = BUDGETS[device.type]
    most = min(budget.multiplications // max(multiplications, 1), budget.num_bytes // num_bytes, MOST_NETS)
    return even_size(len(jobs), max(1, int(most)))


def even_size(num_nets: int, most: int) -> int:
    """Return the size of the fewest stacks of at most `most` networks that hold all networks, none much smaller than most."""
    return math.ceil(num_nets / math.ceil(num_nets / most))
