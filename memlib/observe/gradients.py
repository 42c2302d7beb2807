"""Squared norms of per-example gradients, exact, without forming the gradients.

After one forward pass and one backward pass to the outputs of the layers, the norms are computed layer by layer. The
gradient of a linear map's weight is a sum over positions t of delta_t a_t' (delta_t: gradient at the output, a_t: input),
so small matrices suffice for its squared norm. With a single position, the norm is |delta|^2 |a|^2 (Goodfellow 2015). With
several, it is computed from whichever is smaller: the Gram matrices <A'A, D'D> or the product D A' of a single example
(Rochette 2019, Li 2022).
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from memlib.errors import UserError
from memlib.models.vision import layout_of

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> (batch,) losses."""

FALL_BACK = (nn.LSTM, nn.GRU, nn.RNN)  # their gates are not layers, so examples are processed one at a time
LINEAR, CONVOLUTIONS = (nn.Linear,), (nn.Conv1d, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.LayerNorm)
FAST: tuple[type[nn.Module], ...] = (*LINEAR, *CONVOLUTIONS, *NORMS, nn.Embedding)


def cross_entropy(outputs: Tensor, targets: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    """Return (batch,) losses in nats of (batch, num_classes) class scores and (batch,) labels."""
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=label_smoothing)


class GradientNorms:
    """Squared gradient norms of a model's loss on single examples, over all parameters that require a gradient.

    The model is put in evaluation mode, as batch normalization in training mode has no per-example gradient. Linear,
    Conv1d, Conv2d, BatchNorm, LayerNorm and Embedding have a fast rule; LSTM, GRU and RNN are processed one example at a
    time, as are, on request, all other modules with parameters.

    Args:
        model: maps inputs (batch, ...) to outputs (batch, ...), each example independently.
        loss: function that computes the loss of each example.
        slow_modules: process modules without a fast rule one example at a time instead of refusing them.

    Raises:
        UserError: when modules have no fast rule and `slow_modules` is False; the message names them.
    """

    def __init__(self, model: nn.Module, *, loss: Loss = cross_entropy, slow_modules: bool = False) -> None:
        # convolutions on a CPU are several times faster with channels last
        self.model, self.loss = model.eval().to(memory_format=layout_of(model)), loss
        self._slow_allowed = slow_modules
        self._copy = False  # copy the outputs of layers; set when the model changes them in place
        owners = [(name, m) for name, m in model.named_modules() if any(p.requires_grad for p in m.parameters(recurse=False))]
        shared = _shared_parameters(owners)
        tied = {name for name, m in owners if any(id(p) in shared for p in m.parameters(recurse=False))}
        self._fast = {name: m for name, m in owners if _has_a_rule(m) and name not in tied}
        self._slow = {name: m for name, m in owners if name not in self._fast}
        refused = {name: m for name, m in self._slow.items() if not isinstance(m, FALL_BACK)}
        if refused and not slow_modules:
            raise UserError(_refusal(refused, shared))

    def __call__(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared norm of each example's gradient.

        Args:
            inputs: (batch, ...).
            targets: (batch, ...).

        Returns:
            (batch,) float32.
        """
        norms = torch.zeros(len(inputs), device=inputs.device)
        if inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=layout_of(self.model))
        if self._fast:
            calls = self._record(inputs, targets)
            uncalled = [name for name in self._fast if name not in calls]
            for name in uncalled:  # used by a parent without being called, or not at all
                self._slow[name] = self._fast.pop(name)
            if uncalled and not self._slow_allowed:
                raise UserError(f"the modules {', '.join(uncalled)} are never called; {_ON_REQUEST}")
            for name, recorded in calls.items():
                norms += _squared_norm(self._fast[name], recorded)
        if self._slow:
            norms += self._one_by_one(inputs, targets)
        return norms

    def _record(self, inputs: Tensor, targets: Tensor) -> "dict[str, list[_Call]]":
        calls: dict[str, list[_Call]] = {}
        names = {id(module): name for name, module in self._fast.items()}

        def keep(module: nn.Module, arguments: Any, named: Any, output: Tensor) -> Tensor:
            a = arguments[0] if arguments else named["input"]
            first = not output.requires_grad  # no layer before this one has parameters: the graph starts here
            if first:
                output.requires_grad_()
            name = names[id(module)]
            if len(output) != len(inputs):
                raise UserError(f"module {name} has outputs whose first dimension is not the batch; {_ON_REQUEST}")
            calls.setdefault(name, []).append(_Call(a.detach(), output, a._version, output._version))
            return output.clone() if self._copy or first else output

        handles = [module.register_forward_hook(keep, with_kwargs=True) for module in self._fast.values()]
        try:
            with _frozen(self.model), torch.enable_grad():
                losses = self.loss(self.model(inputs), targets)
        finally:
            for handle in handles:
                handle.remove()
        every = [call for found in calls.values() for call in found]
        if any(call.changed for call in every):
            assert not self._copy, "a layer's input was changed in place"
            self._copy = True
            return self._record(inputs, targets)
        gradients = torch.autograd.grad(losses.sum(), [call.output for call in every], allow_unused=True)
        for call, gradient in zip(every, gradients, strict=True):
            call.gradient = torch.zeros_like(call.output) if gradient is None else gradient
            call.output = call.gradient  # frees the graph
        return calls

    def _one_by_one(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the slow modules' share of the norms, from one backward pass per example."""
        parameters = list(
            {id(p): p for m in self._slow.values() for p in m.parameters(recurse=False) if p.requires_grad}.values()
        )
        parts = []
        with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):  # cuDNN's RNNs have no backward in eval mode
            for i in range(len(inputs)):
                loss = self.loss(self.model(inputs[i : i + 1]), targets[i : i + 1]).sum()
                gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
                parts.append(
                    sum((g.square().sum() for g in gradients if g is not None), torch.zeros((), device=inputs.device))
                )
        return torch.stack(parts)


@dataclass
class _Call:
    """One call of a layer: its input, its output, and later the loss's gradient at the output."""

    input: Tensor
    output: Tensor
    input_version: int
    output_version: int
    gradient: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def changed(self) -> bool:
        """True if the model has since changed the input or the output in place."""
        return self.input._version != self.input_version or self.output._version != self.output_version


_ON_REQUEST = "set influence.slow_modules to process such modules one example at a time"


def _refusal(refused: dict[str, nn.Module], shared: set[int]) -> str:
    def reason(module: nn.Module) -> str:
        tied = any(id(p) in shared for p in module.parameters(recurse=False))
        return f"{type(module).__name__}{', parameters shared with another' if tied else ''}"

    listed = ", ".join(f"{name or 'the model itself'} ({reason(module)})" for name, module in refused.items())
    return f"no fast rule for the gradient norms of {listed}; {_ON_REQUEST}"


def _shared_parameters(owners: Sequence[tuple[str, nn.Module]]) -> set[int]:
    seen: dict[int, int] = {}
    for _, module in owners:
        for parameter in module.parameters(recurse=False):
            seen[id(parameter)] = seen.get(id(parameter), 0) + 1
    return {key for key, count in seen.items() if count > 1}


def _has_a_rule(module: nn.Module) -> bool:
    """Return whether a module is an unmodified torch layer with a fast rule, configured so that the rule holds."""
    kind = next((kind for kind in type(module).__mro__ if kind in FAST), None)
    if kind is None or parametrize.is_parametrized(module):
        return False
    own = {name: getattr(type(module), name, None) for name in ("forward", "_conv_forward")}
    parameters = dict(module.named_parameters(recurse=False))
    stock = all(method is getattr(kind, name, None) for name, method in own.items()) and parameters.keys() <= {
        "weight",
        "bias",
    }
    if not stock or not all(parameter.requires_grad for parameter in parameters.values()):
        return False
    if isinstance(module, nn.Embedding):
        return module.max_norm is None and not module.scale_grad_by_freq
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return True


@contextlib.contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Disable gradients of parameters inside the block, where only gradients of layers' outputs are needed."""
    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()


_PATCHES = {True: 2**20, False: 2**26}  # elements at a time, on a CPU and on other devices

# -- rules --------------------------------------------------------------------------------------------


def _squared_norm(module: nn.Module, calls: "list[_Call]") -> Tensor:
    """Return (batch,) squared norms of the gradient of a layer's parameters; the gradients of its calls are summed."""
    if isinstance(module, nn.Linear):
        return _linear(module, calls)
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return _convolution(module, calls)
    if isinstance(module, nn.Embedding):
        return _embedding(module, calls)
    return _normalisation(module, calls)


def _linear(module: nn.Linear, calls: "list[_Call]") -> Tensor:
    bias = module.bias is not None
    if len(calls) == 1 and calls[0].gradient.dim() == 2:
        a, delta = calls[0].input, calls[0].gradient
        return delta.square().sum(dim=1) * (a.square().sum(dim=1) + bias)
    a = torch.cat([call.input.flatten(1, -2) if call.input.dim() > 2 else call.input[:, None] for call in calls], dim=1)
    delta = torch.cat([c.gradient.flatten(1, -2) if c.gradient.dim() > 2 else c.gradient[:, None] for c in calls], dim=1)
    norms = _sum_of_outer_products(a, delta)
    return norms + delta.sum(dim=1).square().sum(dim=1) if bias else norms


def _sum_of_outer_products(a: Tensor, delta: Tensor) -> Tensor:
    """Return (batch,) squared norms of sum_t delta_t a_t' for a (batch, positions, in), delta (batch, positions, out)."""
    positions = a.shape[1]
    if 2 * positions**2 < a.shape[2] * delta.shape[2]:
        return (torch.bmm(a, a.transpose(1, 2)) * torch.bmm(delta, delta.transpose(1, 2))).sum(dim=(1, 2))
    return torch.bmm(delta.transpose(1, 2), a).square().sum(dim=(1, 2))


def _convolution(module: nn.Conv1d | nn.Conv2d, calls: "list[_Call]") -> Tensor:
    """Apply the rule of a linear map to the patches of a few examples at a time, which stay in the processor's cache."""
    patch = module.weight[0].numel() * module.groups
    positions = sum(call.gradient[0, 0].numel() for call in calls)
    size = max(1, _PATCHES[calls[0].input.device.type == "cpu"] // (patch * positions))
    chunks = [slice(start, start + size) for start in range(0, len(calls[0].input), size)]
    buffer = calls[0].input.new_empty(
        min(size, len(calls[0].input)) * patch * positions
    )  # allocating memory costs more than copying
    norms = torch.cat([_some_patches(module, [(c.input[i], c.gradient[i]) for c in calls], buffer) for i in chunks])
    if module.bias is None:
        return norms
    return norms + sum(call.gradient.flatten(2).sum(dim=2) for call in calls).square().sum(dim=1)  # type: ignore[union-attr]


def _some_patches(module: nn.Conv1d | nn.Conv2d, calls: Sequence[tuple[Tensor, Tensor]], buffer: Tensor) -> Tensor:
    """Return squared norms, given (input, gradient at the output) of each call; positions are joined, not groups."""
    patches = [_patches(module, inputs) for inputs, _ in calls]
    a = buffer[: sum(part.numel() for part in patches)].view(len(calls[0][0]), -1, patches[0].shape[3:].numel())
    for part, place in zip(patches, torch.split(a, [part.shape[1:3].numel() for part in patches], dim=1), strict=True):
        place.view(part.shape).copy_(part)
    delta = _joined([gradient.flatten(2).transpose(1, 2) for _, gradient in calls])
    batch, positions, groups = *delta.shape[:2], module.groups
    if groups > 1:
        a = a.reshape(batch, positions, -1, groups, module.in_channels // groups).movedim(3, 1)
        a = a.reshape(batch * groups, positions, -1)
        delta = delta.reshape(batch, positions, groups, -1).movedim(2, 1).flatten(0, 1)
    return _sum_of_outer_products(a, delta).reshape(batch, groups).sum(dim=1)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _patches(module: nn.Conv1d | nn.Conv2d, inputs: Tensor) -> Tensor:
    """Return a view (batch, *positions, *kernel size, channels) of the inputs that the kernel covers at each position."""
    a = inputs[:, :, None] if isinstance(module, nn.Conv1d) else inputs
    pad, stride, dilation, kernel = (
        [int(part) for part in ((unit, *value) if isinstance(module, nn.Conv1d) else value)]
        for unit, value in ((0, module.padding), (1, module.stride), (1, module.dilation), (1, module.kernel_size))
    )
    a = F.pad(a, (pad[1], pad[1], pad[0], pad[0]))
    sides = [(a.shape[2 + i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)]
    batch, channel, row, column = a.stride()
    strides = (batch, row * stride[0], column * stride[1], row * dilation[0], column * dilation[1], channel)
    return torch.as_strided(a, (len(a), *sides, *kernel, a.shape[1]), strides, a.storage_offset())


def _embedding(module: nn.Embedding, calls: "list[_Call]") -> Tensor:
    ids = torch.cat([call.input.flatten(1) if call.input.dim() > 1 else call.input[:, None] for call in calls], dim=1)
    delta = torch.cat([c.gradient.reshape(len(c.gradient), -1, c.gradient.shape[-1]) for c in calls], dim=1)
    if module.padding_idx is not None:
        delta = delta * (ids != module.padding_idx)[..., None]
    same = ids[:, :, None] == ids[:, None, :]
    return (torch.bmm(delta, delta.transpose(1, 2)) * same).sum(dim=(1, 2))


def _normalisation(module: nn.Module, calls: "list[_Call]") -> Tensor:
    """Apply the rule for scale and offset: sum delta times the normalized input, and delta itself, over the positions."""
    scale, offset = [], []
    for call in calls:
        delta = call.gradient
        if isinstance(module, nn.LayerNorm):
            hat = F.layer_norm(call.input, module.normalized_shape, eps=module.eps)
            axes = list(range(1, delta.dim() - len(module.normalized_shape)))
        else:
            assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
            if module.running_mean is None or module.running_var is None:
                raise UserError(
                    f"{type(module).__name__} normalizes by the statistics of its batch, so examples have no gradients of "
                    "their own; set track_running_stats, or use another normalization"
                )
            hat = F.batch_norm(call.input, module.running_mean, module.running_var, eps=module.eps)
            axes = list(range(2, delta.dim()))
        scale.append(((delta * hat).sum(dim=axes) if axes else delta * hat).flatten(1))
        offset.append((delta.sum(dim=axes) if axes else delta).flatten(1))
    norms = sum(scale).square().sum(dim=1)  # type: ignore[union-attr]
    return norms + sum(offset).square().sum(dim=1) if module.bias is not None else norms  # type: ignore[union-attr]
