"""A linear probe: multinomial logistic regression on frozen embeddings."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray


def probe_accuracies(
    train: NDArray[np.float32],
    train_labels: NDArray[np.int64],
    test: NDArray[np.float32],
    test_labels: NDArray[np.int64],
    *,
    num_classes: int,
    weight_decay: float = 1e-3,
    iterations: int = 100,
    device: torch.device | None = None,
) -> tuple[float, float]:
    """Accuracy of the probe on the examples it was fitted to, and on others.

    Features are standardised by the training set; the fit is full-batch L-BFGS from zero, so it has no seed.

    Args:
        train, test: (num_examples, dim) float32 embeddings.
        train_labels, test_labels: (num_examples,) int64.
        num_classes: classes are 0 ... num_classes - 1.
        weight_decay: L2 penalty on the weights, relative to the mean loss.
        iterations: of L-BFGS.
        device: where to fit.
    """
    device = device or torch.device("cpu")
    x, y = torch.tensor(train, device=device), torch.from_numpy(train_labels).to(device)
    mean, scale = x.mean(dim=0), x.std(dim=0).clamp(min=1e-6)
    x.sub_(mean).div_(scale)  # in place: the training set may be most of what memory holds
    weight = torch.zeros(num_classes, x.shape[1], device=device, requires_grad=True)
    bias = torch.zeros(num_classes, device=device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(x, weight, bias), y) + weight_decay * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        held_out = torch.tensor(test, device=device).sub_(mean).div_(scale)
        on_train = F.linear(x, weight, bias).argmax(dim=1) == y
        on_test = F.linear(held_out, weight, bias).argmax(dim=1) == torch.from_numpy(test_labels).to(device)
    return float(on_train.float().mean()), float(on_test.float().mean())
