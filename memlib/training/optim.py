"""Optimizers and the learning-rate schedule, a pure function of the step."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memlib.specs import OptimizerSpec

TRUST = 1e-3  # LARS's trust coefficient (You 2017)


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (You 2017); one-dimensional parameters are exempt, as in VICReg's code."""

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        assert closure is None, "LARS takes no closure"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, parameter.grad, group)

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        if parameter.dim() > 1:
            gradient = gradient + group["weight_decay"] * parameter
            weight_norm, gradient_norm = parameter.norm(), gradient.norm()
            usable = (weight_norm > 0) & (gradient_norm > 0)
            gradient = gradient * torch.where(usable, TRUST * weight_norm / gradient_norm, 1.0)
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].mul_(group["momentum"]).add_(gradient)
        parameter.add_(state["momentum"], alpha=-group["lr"])


def build_optimizer(spec: OptimizerSpec, modules: Iterable[nn.Module]) -> torch.optim.Optimizer:
    """Build the spec's optimizer for the trainable parameters of the modules; 1-D parameters get no weight decay."""
    params = [p for module in modules for p in module.parameters() if p.requires_grad]
    if spec.name == "lars":
        return LARS(params, lr=spec.learning_rate, weight_decay=spec.weight_decay, momentum=spec.momentum)
    if spec.name == "sgd":
        return torch.optim.SGD(_groups(spec, params, decayed_from=2), lr=spec.learning_rate, momentum=spec.momentum)
    if spec.name == "rmsprop":
        return torch.optim.RMSprop(_groups(spec, params, decayed_from=2), lr=spec.learning_rate, alpha=0.9)
    if spec.name == "adagrad":
        return torch.optim.Adagrad(_groups(spec, params, decayed_from=2), lr=spec.learning_rate)
    if spec.name == "adadelta":
        return torch.optim.Adadelta(_groups(spec, params, decayed_from=2), lr=spec.learning_rate, rho=0.9)
    return build_adamw(spec, params, decayed_from=2)


def build_adamw(spec: OptimizerSpec, params: Sequence[Tensor], *, decayed_from: int) -> torch.optim.Optimizer:
    """Build AdamW with weight decay for parameters of at least `decayed_from` dimensions; all updates are elementwise."""
    groups = _groups(spec, params, decayed_from=decayed_from)
    return torch.optim.AdamW(groups, lr=spec.learning_rate, betas=spec.betas, fused=True)


def _groups(spec: OptimizerSpec, params: Sequence[Tensor], *, decayed_from: int) -> list[dict[str, Any]]:
    groups = [
        {"params": [p for p in params if p.dim() >= decayed_from], "weight_decay": spec.weight_decay},
        {"params": [p for p in params if p.dim() < decayed_from], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def learning_rate(spec: OptimizerSpec, *, step: int, steps_per_epoch: int, num_steps: int) -> float:
    """Return the learning rate: linear warm-up from 0, then the peak, constant or with cosine decay to final_fraction.

    Args:
        spec: peak, warm-up, schedule and final fraction.
        step: number of steps taken before this one.
        steps_per_epoch: number of steps in an epoch.
        num_steps: number of steps in the whole training run.
    """
    warmup = min(spec.warmup_epochs * steps_per_epoch, num_steps)
    if step < warmup:
        return spec.learning_rate * (step + 1) / warmup
    if spec.schedule == "constant":
        return spec.learning_rate
    progress = (step - warmup) / max(1, num_steps - warmup)
    end = spec.final_fraction
    return spec.learning_rate * (end + (1 - end) * (1 + math.cos(math.pi * progress)) / 2)
