"""Formulas of the M scores, computed from outputs of nets (Hartley 2023, Eq. 1 to 3; 2022, 2.2 and Eq. 1)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.audits.unique_feature.recipe import Output
from memlib.stats.inference import paired_t


def to_output(logits: NDArray[Any], output: Output) -> NDArray[np.float64]:
    """Convert logits (..., num_classes) to the output on which M is computed, as float64."""
    values = logits.astype(np.float64)
    return values if output == "logit" else np.exp(log_softmax(values))


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Return the log-probabilities of class scores (..., num_classes) as float64."""
    values = logits.astype(np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    log_probabilities: NDArray[np.float64] = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return log_probabilities


def of_label(logits: NDArray[Any], label: int, output: Output) -> NDArray[np.float64]:
    """Return the output of `to_output` for one label only, (..., num_classes) -> (...); class by class, to save memory."""
    own = logits[..., label].astype(np.float64)
    if output == "logit":
        return own
    total = np.ones_like(own)
    with np.errstate(over="ignore"):  # an overflow stands for probability 0
        for other in range(logits.shape[-1]):
            if other != label:
                total += np.exp(logits[..., other] - own)
    return 1 / total


def m_of_label(
    clean: NDArray[Any], featured: NDArray[Any], label: int, output: Output
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return M for one label, the mean of P(label | x_u) - P(label | x_c), and the published p (2023, Eq. 1).

    Args:
        clean, featured: (num_nets, num_examples, num_classes) logits of the same examples without and with the feature.
        label: the class.
        output: probability or logit.

    Returns:
        means and one-sided p-values of the paired t-test over examples, each (num_nets,).
    """
    return paired_t(of_label(featured, label, output) - of_label(clean, label, output))


def m_of_labels(
    clean: NDArray[Any], featured: NDArray[Any], output: Output
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return M and p for every label at once, each (num_nets, num_classes) (2023, Eq. 3 before the maximum)."""
    difference = to_output(featured, output) - to_output(clean, output)
    return paired_t(np.moveaxis(difference, 1, -1))


def m_w(featured: NDArray[Any], random: NDArray[Any], label: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the label's mean log-probability with the feature minus that with a random partner, and p (2022, 2.2)."""
    return paired_t((log_softmax(featured) - log_softmax(random))[..., label])


def m_kl(
    clean: NDArray[Any], featured: NDArray[Any], random: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean KL divergence caused by the feature minus that by a random partner, in nats, and p (2022, Eq. 1)."""
    return paired_t(divergence(clean, featured) - divergence(clean, random))


def divergence(p: NDArray[Any], q: NDArray[Any]) -> NDArray[np.float64]:
    """Return KL(softmax(p) || softmax(q)) in nats over the last axis."""
    log_p, log_q = log_softmax(p), log_softmax(q)
    nats: NDArray[np.float64] = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    return nats
