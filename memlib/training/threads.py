"""Number of threads of a training run on a CPU, chosen by the size of a step alone, so that it does not depend on load."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

FEW_MULTIPLICATIONS = 1e9  # in a batch's forward pass; below this, threads wait for each other longer than they compute


@contextmanager
def threads_for(multiplications: float, device: torch.device) -> Iterator[int]:
    """Compute with one thread if a step on a CPU is small, else with the granted threads, which are restored afterwards.

    Args:
        multiplications: multiplications of a batch's forward pass, see `multiplications_of`.
        device: device on which the steps are computed; the CPU's threads beside a GPU stay as they are.

    Yields:
        the number of threads.
    """
    granted = torch.get_num_threads()
    is_small = device.type == "cpu" and multiplications < FEW_MULTIPLICATIONS
    torch.set_num_threads(1 if is_small else granted)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(granted)


@torch.no_grad()
def multiplications_of(model: nn.Module, example: Tensor) -> float:
    """Count the multiplications of weights with activations in a forward pass that threads can share.

    Products of activations are left out. A recurrent layer counts once, as its positions are computed one after the other.
    The pass runs in evaluation mode and draws no random numbers, so that it changes neither the model nor later draws.

    Args:
        model: network on any device.
        example: batch of one example on that device, as the network takes it.
    """
    counts: list[int] = []

    def count(module: nn.Module, _: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) else output
        by_channel = first.dim() == 4 or isinstance(module, nn.Conv1d | nn.BatchNorm1d)
        positions = 1 if isinstance(module, nn.RNNBase) else first.select(1 if by_channel else -1, 0).numel()
        counts.append(positions * sum(weight.numel() for weight in module.parameters(recurse=False)))

    weighted = [
        module
        for module in model.modules()
        if not isinstance(module, nn.Embedding) and any(True for _ in module.parameters(recurse=False))
    ]
    handles = [module.register_forward_hook(count) for module in weighted]
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]):
            model(example)
    finally:
        for handle in handles:
            handle.remove()
        for module in was_training:
            module.training = True
    return float(sum(counts))
