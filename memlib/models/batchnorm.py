"""Batch norm over the global batch on CPU workers (torch's own SyncBatchNorm needs GPUs).

A model trained by several workers must equal a model trained by a single worker, up to rounding, so the statistics
are always those of the whole batch.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from memlib.models.collectives import sum_over_workers


class GlobalBatchNorm(_BatchNorm):
    """Batch norm with mean and variance over the batches of all workers in a group, with gradients through both."""

    group: dist.ProcessGroup | None = None

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions, not {input.dim()}")

    def forward(self, input: Tensor) -> Tensor:
        """Normalize (batch, channels, ...) and return the same shape."""
        if not self.training:
            return super().forward(input)
        values = input.float()  # statistics in float32, whatever the precision of the pass
        axes = [0, *range(2, input.dim())]
        shape = [1, -1] + [1] * (input.dim() - 2)
        count = input.numel() // input.shape[1] * dist.get_world_size(self.group)
        mean = sum_over_workers(values.sum(axes), self.group) / count
        centred = values - mean.view(shape)
        variance = sum_over_workers(centred.square().sum(axes), self.group) / count
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        with torch.no_grad():
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        normalized = centred * torch.rsqrt(variance + self.eps).view(shape)
        output: Tensor = normalized * self.weight.view(shape) + self.bias.view(shape)
        return output.to(input.dtype)


def synchronise_batch_norm(module: nn.Module, group: dist.ProcessGroup | None) -> nn.Module:
    """Replace every batch norm by one over the global batch (on a GPU, torch's SyncBatchNorm), and return the module."""
    if any(parameter.is_cuda for parameter in module.parameters()):
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(module, group)  # type: ignore[no-untyped-call]
        return converted
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, GlobalBatchNorm):
            replacement = GlobalBatchNorm(child.num_features, child.eps, child.momentum)
            replacement.load_state_dict(child.state_dict())
            replacement.requires_grad_(child.weight.requires_grad)  # a teacher's stays frozen
            replacement.group = group
            setattr(module, name, replacement)
        else:
            synchronise_batch_norm(child, group)
    return module
