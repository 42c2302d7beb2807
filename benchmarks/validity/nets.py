"""Many small nets at once for the validity study: MLPs on images, each with its own rows, seed and outputs.

Nets of one call share architecture, epochs and optimizer; they are trained side by side as stacked matrices.
"""

import gzip
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

DATA = Path(os.environ.get("MEMLIB_DATA", "../shared/data"))


@cache
def images(name: str = "MNIST") -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the 60,000 training images, averaged to 14 x 14 and standardized (60000, 196), and their labels."""
    folder = DATA / name / "raw"
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read(), dtype=np.uint8, offset=16).reshape(-1, 14, 2, 14, 2)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), dtype=np.uint8, offset=8).astype(np.int64)
    small = pixels.mean(axis=(2, 4), dtype=np.float32).reshape(-1, 196)
    return (small - small.mean()) / small.std(), labels


@dataclass(frozen=True)
class How:
    """Architecture and training of nets."""

    widths: tuple[int, ...] = (128,)
    epochs: int = 60
    batch: int = 50
    rate: float = 1e-3
    optimizer: str = "adam"
    smoothing: float = 0.0
    decay: float = 0.0
    dropout: float = 0.0
    shift: bool = False  # augmentation: every batch is shifted at random by up to one pixel
    activation: str = "relu"


class Nets:
    """Trained nets, as parameters with a leading axis of nets."""

    def __init__(self, parameters: Sequence[Tensor], how: How) -> None:
        self._parameters, self._how = parameters, how

    def logits(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return logits of shape (num_nets, num_examples, num_classes), float64."""
        with torch.no_grad():
            scores = forward(self._parameters, torch.from_numpy(x)[None], self._how, train=False)
        return scores.double().numpy()


def forward(parameters: Sequence[Tensor], x: Tensor, how: How, *, train: bool) -> Tensor:
    x = x.expand(len(parameters[0]), *x.shape[1:])
    for place in range(0, len(parameters), 2):
        x = torch.baddbmm(parameters[place + 1][:, None, :], x, parameters[place])
        if place + 2 < len(parameters):
            x = F.relu(x) if how.activation == "relu" else torch.tanh(x)
            if train and how.dropout:
                x = F.dropout(x, how.dropout)
    return x


def train(
    x: NDArray[np.float32],
    y: NDArray[np.int64],
    rows: Sequence[NDArray[np.int64]],
    how: How,
    *,
    seed: int,
    soft: NDArray[np.float64] | None = None,
    start: Nets | None = None,
) -> Nets:
    """Train one net on each set of rows.

    Args:
        x, y: all examples.
        rows: the rows of each net, all of one length.
        how: architecture and training.
        seed: of weights, order and dropout.
        soft: (num_nets, num_examples_of_x, num_classes) logits of teachers, in place of the labels.
        start: nets whose training is continued.
    """
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    sizes = (x.shape[1], *how.widths, 10)
    count, length = len(rows), len(rows[0])
    parameters: list[Tensor] = []
    for inside, outside in itertools.pairwise(sizes):
        bound = inside**-0.5
        parameters.append(((torch.rand(count, inside, outside, generator=generator) * 2 - 1) * bound).requires_grad_())
        parameters.append(((torch.rand(count, outside, generator=generator) * 2 - 1) * bound).requires_grad_())
    if start is not None:
        parameters = [p.detach().clone().requires_grad_() for p in start._parameters]
    if how.optimizer == "adam":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(parameters, lr=how.rate, weight_decay=how.decay)
    else:
        optimizer = torch.optim.SGD(parameters, lr=how.rate, momentum=0.9, weight_decay=how.decay)
    everything, labels = torch.from_numpy(x), torch.from_numpy(y)
    at = torch.from_numpy(np.stack(rows))
    teachers = None if soft is None else torch.softmax(torch.from_numpy(soft).float(), dim=-1)
    for _ in range(how.epochs):
        order = torch.stack([torch.randperm(length, generator=generator) for _ in range(count)])
        for first in range(0, length - how.batch + 1, how.batch):
            chosen = at.gather(1, order[:, first : first + how.batch])
            inputs = everything[chosen]
            if how.shift:
                inputs = _shifted(inputs, generator)
            scores = forward(parameters, inputs, how, train=True)
            if teachers is None:
                loss = F.cross_entropy(scores.flatten(0, 1), labels[chosen].flatten(), label_smoothing=how.smoothing)
            else:
                wanted = torch.stack([teachers[net][chosen[net]] for net in range(count)])
                loss = -(wanted * F.log_softmax(scores, dim=-1)).sum(-1).mean()
            optimizer.zero_grad()
            (loss * count).backward()
            optimizer.step()
    return Nets([p.detach() for p in parameters], how)


def _shifted(inputs: Tensor, generator: torch.Generator) -> Tensor:
    down, right = (int(torch.randint(-1, 2, (1,), generator=generator)) for _ in range(2))
    return torch.roll(inputs.unflatten(-1, (14, 14)), (down, right), dims=(-2, -1)).flatten(-2)


def phi(logits: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the logit-scaled confidence, z_y - logsumexp of the other logits: (..., num_examples)."""
    own = np.take_along_axis(logits, np.broadcast_to(labels[..., None], (*logits.shape[:-1], 1)), axis=-1)[..., 0]
    others = logits.copy()
    np.put_along_axis(others, np.broadcast_to(labels[..., None], (*logits.shape[:-1], 1)), -np.inf, axis=-1)
    top = others.max(axis=-1)
    return own - (top + np.log(np.exp(others - top[..., None]).sum(axis=-1)))


def longer(how: How, factor: float) -> How:
    """Return the same training with its number of epochs multiplied by `factor`."""
    return replace(how, epochs=max(1, round(how.epochs * factor)))
