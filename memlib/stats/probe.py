"""A linear probe: multinomial logistic regression on frozen embeddings."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

WHOLE = 2**32  # maximum cost of a full-batch step, as `step_cost` counts it: about 5 s for all steps on one core
PER_SCORE = 500  # cost of the softmax and its gradient, for each score, in multiplications of one feature
BLOCK_ROWS = 2**14  # rows in memory at a time
TOLERANCE = 1e-4  # largest entry of the gradient at which the full-batch fit ends, as in scikit-learn
ITERATIONS = 100  # of fits with all rows at once
EPOCHS, BATCH, LEARNING_RATE = 10, 256, 0.02  # for fits in batches


class Rows:
    """A selection of rows of several arrays, usually memory-mapped, and their classes.

    Args:
        arrays: float32 or float16 arrays of shape (rows of the array, dim), concatenated in this order.
        labels: (num_rows,) int64, classes of the rows of all arrays.
        wanted: (num_rows,) bool, the selected rows.
    """

    def __init__(self, arrays: Sequence[NDArray[np.floating]], labels: NDArray[np.int64], wanted: NDArray[np.bool_]) -> None:
        self._arrays, self._labels, self._wanted = arrays, labels, wanted
        self.dim = arrays[0].shape[1]

    def __len__(self) -> int:
        return int(self._wanted.sum())

    def blocks(self, most: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the selected rows in blocks (at most `most`, dim) with their classes, in the same order at every call."""
        start = 0
        for array in self._arrays:
            chosen = np.flatnonzero(self._wanted[start : start + len(array)])
            for first in range(0, len(chosen), most):
                part = chosen[first : first + most]
                yield torch.from_numpy(array[part]).float(), torch.from_numpy(self._labels[start + part])
            start += len(array)

    def whole(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return all selected rows and their classes."""
        parts = list(self.blocks(max(1, len(self._labels))))
        return torch.cat([rows for rows, _ in parts]), torch.cat([labels for _, labels in parts])


def probe_accuracies(
    train: Rows,
    test: Rows,
    *,
    num_classes: int,
    weight_decay: float = 1e-3,
    iterations: int = ITERATIONS,
    device: torch.device | None = None,
) -> tuple[float, float]:
    """Fit a linear probe; return its accuracies on the training examples and on other examples.

    Features are standardized by their mean and deviation in the training set. The probe is fitted from zero by
    full-batch L-BFGS or, where that would take more than some five seconds (such as 10,000 rows of 1,000 classes), by ten
    epochs of Adam in batches, with one block of rows in memory at a time. Neither fit takes a seed.

    Args:
        train, test: embeddings and classes 0 ... num_classes - 1.
        num_classes: number of classes.
        weight_decay: L2 penalty on the weights, relative to the mean loss.
        iterations: largest number of L-BFGS iterations.
        device: device of the fit; by default the CPU.
    """
    device = device or torch.device("cpu")
    weight = torch.zeros(num_classes, train.dim, device=device, requires_grad=True)
    bias = torch.zeros(num_classes, device=device, requires_grad=True)
    if step_cost(len(train), train.dim, num_classes) <= WHOLE:
        x, y = (part.to(device) for part in train.whole())
        mean, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
        x.sub_(mean).div_(scale)
        _fit_whole(x, y, weight, bias, weight_decay, iterations)
    else:
        mean, scale = _moments(train, device)
        _fit_in_batches(train, mean, scale, weight, bias, weight_decay)

    def accuracy(rows: Rows) -> float:
        right = 0
        with torch.no_grad():
            for x, y in rows.blocks(BLOCK_ROWS):
                scores = F.linear(x.to(device).sub(mean).div_(scale), weight, bias)
                right += int((scores.argmax(dim=1) == y.to(device)).sum())
        return right / len(rows)

    return accuracy(train), accuracy(test)


def step_cost(num_rows: int, dim: int, num_classes: int) -> int:
    """Return the cost of a step over all rows: products of features and weights, and the softmax of the scores."""
    return num_rows * num_classes * (dim + PER_SCORE)


def _fit_whole(
    x: torch.Tensor, y: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, weight_decay: float, iterations: int
) -> None:
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=iterations, tolerance_grad=TOLERANCE, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + weight_decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]


def _moments(rows: Rows, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean and standard deviation of each feature, (dim,) each."""
    count, total = len(rows), torch.zeros(rows.dim, dtype=torch.float64, device=device)
    for x, _ in rows.blocks(BLOCK_ROWS):
        total += x.to(device).double().sum(dim=0)
    mean, squares = total / count, torch.zeros_like(total)
    for x, _ in rows.blocks(BLOCK_ROWS):
        squares += (x.to(device).double() - mean).square().sum(dim=0)
    return mean.float(), (squares / (count - 1)).sqrt().float().clamp(min=1e-6)


def _fit_in_batches(
    rows: Rows, mean: torch.Tensor, scale: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, weight_decay: float
) -> None:
    optimizer = torch.optim.Adam([weight, bias], lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    order = torch.Generator().manual_seed(0)
    for _ in range(EPOCHS):
        for x, y in rows.blocks(BLOCK_ROWS):
            for chosen in torch.split(torch.randperm(len(x), generator=order), BATCH):
                batch = x[chosen].to(mean.device).sub_(mean).div_(scale)
                loss = F.cross_entropy(F.linear(batch, weight, bias), y[chosen].to(mean.device))
                loss = loss + weight_decay * weight.square().sum()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        schedule.step()
