"""Scores of documents under a language model, each over the document's own tokens, in one pass over its windows.

A document's windows follow one another; each is scored from its start, as in training. From every token's log probability
come the sum of the log probabilities, the number of tokens that the model would have predicted, and Min-K%++ (Zhang et al.
2024, arXiv 2404.02936, equation 3): log probabilities standardized by their mean and deviation over the vocabulary at that
place, and of these the mean of the lowest share.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.errors import RunError
from memlib.models.sequence import LanguageModel

FLOOR = 1e-12  # smallest variance of log probabilities over the vocabulary, in nats^2

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TokenScores:
    """Scores of documents under one model."""

    tokens: Values  #: (num_documents,) number of tokens.
    log_p: Values  #: (num_documents,) sum of their log probabilities in nats.
    lowest: Values  #: (num_documents,) Min-K%++, the mean of the lowest standardized log probabilities.
    correct: Values  #: (num_documents,) share of tokens that the model gives the largest probability.

    @property
    def mean_log_p(self) -> Values:
        """Mean log probability per token in nats, the negative loss: (num_documents,)."""
        return self.log_p / self.tokens

    def save(self, path: Path) -> None:
        """Write the scores to a .npz file."""
        np.savez(path, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> "TokenScores":
        """Read the scores from a .npz file."""
        with np.load(path, allow_pickle=False) as arrays:
            return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def zlib_ratio(log_p: Values, compressed: NDArray[np.integer]) -> Values:
    """Return the log probability of documents relative to their zlib entropy (Carlini et al. 2021, section 5.1).

    Both are totals, in bits, so that the length of a document does not decide.

    Args:
        log_p: (..., num_documents) sums of log probabilities in nats.
        compressed: (num_documents,) bytes of the compressed texts.

    Example:
        >>> import numpy as np
        >>> zlib_ratio(-np.log(2) * np.array([80.0, 160.0]), np.array([20, 20])).round(6).tolist()  # bits of 160 bits each
        [-0.5, -1.0]
    """
    ratios: Values = log_p / np.log(2) / (8 * compressed)
    return ratios


def lowest_mean(values: NDArray[np.floating], share: float) -> float:
    """Return the mean of the lowest `share` of the values; their number is rounded down, and at least 1.

    Example:
        >>> import numpy as np
        >>> lowest_mean(np.array([4.0, 1.0, 3.0, 2.0, 9.0]), 0.4)
        1.5
    """
    count = max(1, int(share * len(values)))
    return float(np.partition(values, count - 1)[:count].mean(dtype=np.float64))


@torch.inference_mode()
def token_scores(
    model: LanguageModel, windows: NDArray[np.integer], counts: NDArray[np.int64], *, share: float, device: torch.device
) -> TokenScores:
    """Compute the scores of documents; memory is bounded by a batch of windows and the tokens of one document.

    Args:
        model: the language model, on `device` and in evaluation mode.
        windows: (num_windows, window) symbols, document after document; -1 is padding.
        counts: (num_documents,) number of windows of each document, which sum to num_windows.
        share: share of the tokens that Min-K%++ takes.

    Raises:
        RunError: when the model returns NaN.
    """
    assert int(counts.sum()) == len(windows), "every window belongs to a document"
    rows = [
        (float(values.shape[1]), values[0].sum(), lowest_mean(values[1], share), values[2].mean())
        for values in _by_document(model, windows, counts, device)
    ]
    return TokenScores(*np.array(rows, dtype=np.float64).reshape(-1, 4).T)


def _by_document(
    model: LanguageModel, windows: NDArray[np.integer], counts: NDArray[np.int64], device: torch.device
) -> Iterator[Values]:
    """Yield (3, num_tokens) per document: log probabilities, the same standardized, and 1 for tokens that are likeliest."""
    pending: list[Values] = []  # rows of windows that wait for the rest of their document
    ahead, rows = iter(counts.tolist()), model.most_rows(windows.shape[1])
    wanted = next(ahead, 0)
    for start in range(0, len(windows), rows):
        pending += _of_windows(model, torch.from_numpy(np.array(windows[start : start + rows])).to(device).long())
        while wanted and len(pending) >= wanted:
            yield np.concatenate(pending[:wanted], axis=1)
            pending, wanted = pending[wanted:], next(ahead, 0)


def _of_windows(model: LanguageModel, windows: Tensor) -> list[Values]:
    """Return (3, num_tokens) of each window (num_windows, window), without padding."""
    log_probs = torch.log_softmax(model(windows).float(), dim=-1)
    if torch.isnan(log_probs).any():
        raise RunError("the model returns probabilities that are not numbers (NaN); its training has diverged")
    wanted = windows.clamp(min=0)[..., None]
    own = log_probs.gather(-1, wanted)[..., 0]
    weights = log_probs.exp()
    finite = torch.where(weights > 0, log_probs, 0.0)
    mean = (weights * finite).sum(dim=-1)
    spread = (weights * (finite - mean[..., None]).square()).sum(dim=-1).clamp(min=FLOOR).sqrt()
    likeliest = log_probs.argmax(dim=-1) == wanted[..., 0]
    found = torch.stack([own, (own - mean) / spread, likeliest.float()], dim=1).double().cpu().numpy()
    scored = (windows >= 0).cpu().numpy()
    return [values[:, inside] for values, inside in zip(found, scored, strict=True)]
