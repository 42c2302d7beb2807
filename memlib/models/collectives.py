"""Sums and gathers over the workers that share a batch, with gradients through them.

torch.distributed's own differentiable collectives are deprecated in favour of a private module.
"""

import json
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from memlib.errors import RunError

PIECE = 2**26  # bytes that are broadcast at once


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


def share(value: Any, group: dist.ProcessGroup | None, device: torch.device) -> Any:
    """Return the first worker's value, plain JSON, on every worker.

    The value travels as bytes in tensors: torch.distributed's own functions for objects exchange pickles, which run code.
    """
    first = dist.get_rank(group) == 0
    content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8).to(device) if first else None
    length = torch.tensor([0 if content is None else len(content)], device=device)
    dist.broadcast(length, group=group, group_src=0)
    if content is None:
        content = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(content, group=group, group_src=0)
    return json.loads(bytes(content.cpu().numpy()))


def share_files(folder: Path, group: dist.ProcessGroup | None, device: torch.device) -> None:
    """Copy the files of the first worker's folder into the empty folder of every other worker."""
    first = dist.get_rank(group) == 0
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if first else []
    for name, size in share([[str(path.relative_to(folder)), path.stat().st_size] for path in files], group, device):
        place = PurePosixPath(name)  # from another machine
        if place.is_absolute() or ".." in place.parts or not place.parts or size < 0:
            raise RunError(f"another worker of this training names a file {name!r}, which does not lie below its folder")
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("rb" if first else "wb") as file:
            for start in range(0, size, PIECE):
                piece = torch.empty(min(PIECE, size - start), dtype=torch.uint8)
                if first:
                    piece = torch.frombuffer(bytearray(file.read(len(piece))), dtype=torch.uint8)
                piece = piece.to(device)
                dist.broadcast(piece, group=group, group_src=0)
                if not first:
                    file.write(piece.cpu().numpy().tobytes())


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
