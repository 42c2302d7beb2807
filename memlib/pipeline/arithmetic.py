"""The arithmetic of stages in this process: float32 as such on GPUs, and a stated number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def be_exact() -> None:
    """Disable TF32, so that float32 means float32 on GPUs; by default cuDNN rounds factors to 10-bit mantissas."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@contextmanager
def exact(threads: int) -> Iterator[None]:
    """Compute with a number of threads in the block, and with full float32 precision; the threads are restored afterwards."""
    import torch

    before = torch.get_num_threads()
    be_exact()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine(device: torch.device, threads: int) -> dict[str, Any]:
    """Return what rounding depends on beside the code: threads, the instructions that the CPU offers PyTorch, and the GPU."""
    import torch

    found = {"threads": threads, "cpu": torch.backends.cpu.get_cpu_capability()}
    return found | ({"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {})
