"""Sums and gathers over the workers that share a batch, with gradients through them.

torch.distributed's own differentiable collectives are deprecated in favour of a private module.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def sum_over_workers(values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return the sum of all workers' values, on every worker; gradients are summed in the same way."""
    total: Tensor = _Sum.apply(values, group)
    return total


def gather_rows(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return all workers' rows in order of rank: (batch, dim) -> (global batch, dim).

    The gradient of a worker's rows is summed over the losses of all workers.
    """
    gathered: Tensor = _Gather.apply(rows, group)
    return gathered


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        context.group = group
        total = values.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=context.group)
        return total, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, group: dist.ProcessGroup) -> Tensor:
        context.group, context.count = group, len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=context.group)
        start = dist.get_rank(context.group) * context.count
        return total[start : start + context.count], None
