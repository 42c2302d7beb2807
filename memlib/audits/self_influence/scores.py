"""TracInCP of each example with itself (Pruthi 2020; Hartley 2022, A.5)."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.self_influence.tables import UNITS
from memlib.specs import InfluenceSpec


def choose_checkpoints(losses: Sequence[float], spec: InfluenceSpec) -> list[int]:
    """Return evenly spaced epochs up to the first at which the training loss has fallen enough (Hartley 2022, A.5).

    They are spaced up to the last epoch if the loss never falls by the share `loss_fall`.

    Args:
        losses: mean training loss of each epoch, from the first.
        spec: number of checkpoints, and the required fall of the loss.
    """
    enough = [epoch for epoch, loss in enumerate(losses, start=1) if loss <= (1 - spec.loss_fall) * losses[0]]
    last = enough[0] if enough else len(losses)
    return sorted(
        {round(epoch) for epoch in np.linspace(last / spec.checkpoints, last, spec.checkpoints) if round(epoch) >= 1}
    )


def self_influence(norms: NDArray[np.floating], rates: Sequence[float]) -> NDArray[np.float64]:
    """Compute TracInCP of each example with itself.

    Args:
        norms: (num_checkpoints, num_examples) squared gradient norms.
        rates: learning rate at each checkpoint.

    Returns:
        (num_examples,) float64.
    """
    total = np.zeros(norms.shape[1])  # summed in order: a product of matrices is rounded in the processor's own way
    for rate, squared in zip(rates, norms.astype(np.float64), strict=True):
        total += rate * squared
    return total


def score(
    example_ids: Sequence[str],
    labels: NDArray[np.int64],
    class_names: Sequence[str],
    norms: NDArray[np.floating],
    rates: Sequence[float],
    epochs: Sequence[int],
) -> pa.Table:
    """Return one row per example, the most influential first.

    Args:
        example_ids, labels, class_names: (num_examples,) id, label and class name of each example.
        norms: (num_checkpoints, num_examples) squared gradient norms.
        rates, epochs: learning rate and epoch of each checkpoint.

    Returns:
        tables.UNITS.
    """
    total = self_influence(norms, rates)
    order = sorted(range(len(total)), key=lambda i: (-total[i], example_ids[i]))
    shares = total / total.sum() if total.sum() > 0 else np.zeros_like(total)
    rows = [
        {
            "example_id": example_ids[i], "label": int(labels[i]), "class_name": class_names[i], "rank": rank,
            "self_influence": float(total[i]), "share": float(shares[i]), "checkpoints": list(epochs),
            "gradient_norms": [float(value) for value in norms[:, i]],
        }
        for rank, i in enumerate(order, start=1)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)
