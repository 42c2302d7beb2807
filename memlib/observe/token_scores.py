"""Scores of documents under a language model, each over the document's own tokens, in one pass over its windows.

A document's windows follow one another; each is scored from its start, as in training. From every token's log probability
come the sum of the log probabilities, the number of tokens that the model would have predicted, and Min-K%++ (Zhang et al.
2024, arXiv 2404.02936, equation 3): log probabilities standardized by their mean and deviation over the vocabulary at that
place, and of these the mean of the lowest share.

Where the model was fine-tuned from a pretrained one, two attacks read its gains, the log probability of each token beyond the
pretrained model's: the error zone (Ilic et al. 2026, arXiv 2601.12104) and windows (Chen et al. 2026, arXiv 2601.02751).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memlib.data.text.rows import SCORED
from memlib.errors import RunError

if TYPE_CHECKING:  # plans of audits of documents need no PyTorch
    import torch
    from torch import Tensor

    from memlib.models.sequence import LanguageModel

FLOOR = 1e-12  # smallest variance of log probabilities over the vocabulary, in nats^2
WINDOWS = (2, 3, 4, 6, 8, 11, 15, 21, 29, 40)  # lengths in tokens, geometric
SMALL = 1e-3  # nats beside the sums of gains and losses, so that their ratio is finite
PER_DOCUMENT = ("tokens", "log_p", "lowest", "correct")
PER_TOKEN = ("own", "right", "gains")
AT_ONCE = 2**22  # tokens of which windows are compared at a time

Values = NDArray[np.float64]


@dataclass(frozen=True)
class TokenScores:
    """Scores of documents under one model.

    Tokens are those of all documents, one document after the other.
    """

    tokens: Values  #: (num_documents,) number of tokens.
    log_p: Values  #: (num_documents,) sum of their log probabilities in nats.
    lowest: Values  #: (num_documents,) Min-K%++; NaN of a model whose probabilities of the vocabulary are not known.
    correct: Values  #: (num_documents,) share of tokens that the model gives the largest probability.
    own: NDArray[np.floating]  #: (num_tokens,) log probability of each token: float32 of a reference, else float16.
    right: NDArray[np.uint8]  #: one bit for each token: whether the model gives it the largest probability.
    #: (num_tokens,) float16, log probability of each token beyond the reference's, rounded as a difference, so that no sign
    #: is lost; None for the reference itself, and without one.
    gains: NDArray[np.float16] | None = None

    @property
    def mean_log_p(self) -> Values:
        """Mean log probability per token in nats, the negative loss: (num_documents,)."""
        return self.log_p / self.tokens

    @property
    def places(self) -> NDArray[np.int64]:
        """The first token of each document, and the end of the last: (num_documents + 1,)."""
        return np.concatenate([[0], np.cumsum(self.tokens)]).astype(np.int64)

    def is_right(self, start: int, stop: int) -> NDArray[np.bool_]:
        """Return which of the tokens from `start` to `stop` the model gives the largest probability."""
        bits = np.unpackbits(self.right[start // 8 : -(-stop // 8)], bitorder="little")
        return bits[start % 8 : start % 8 + stop - start].astype(bool)

    def save(self, folder: Path) -> None:
        """Write the scores as .npy files to a folder."""
        for name in (*PER_DOCUMENT, *PER_TOKEN):
            if (values := getattr(self, name)) is not None:
                np.save(folder / f"{name}.npy", values)

    @classmethod
    def load(cls, files: Sequence[Path]) -> TokenScores:
        """Read the scores from files that `save` wrote; those of tokens are memory-mapped."""
        arrays: dict[str, Any] = {
            path.stem: np.load(path, mmap_mode=None if path.stem in PER_DOCUMENT else "r", allow_pickle=False)
            for path in files
        }
        return cls(**arrays)

    def error_zone(self) -> Values:
        """Return EZ: gains where the model is wrong, added up, over losses there, as a log ratio (num_documents,).

        Of a document without a wrong token, all tokens count.

        Example:
            >>> gains = np.array([1.0, -0.5, 9.0], dtype=np.float16)
            >>> right = np.packbits([False, False, True], bitorder="little")
            >>> scores = TokenScores(np.array([3.0]), *[np.zeros(1)] * 3, np.zeros(3), right, gains)
            >>> scores.error_zone().round(2).tolist()  # log(1.001 / 0.501)
            [0.69]
        """
        found = np.empty(len(self.tokens))
        for first, last in self._blocks():
            gains, starts = self._gains(first, last)
            wrong = ~self.is_right(*self.places[[first, last]].tolist())
            wrong |= np.repeat(~np.logical_or.reduceat(wrong, starts), self.tokens[first:last].astype(np.int64))
            up, down = (np.add.reduceat(np.where(wrong, side.clip(min=0), 0.0), starts) for side in (gains, -gains))
            found[first:last] = np.log((up + SMALL) / (down + SMALL))
        return found

    def windows(self) -> Values:
        """Return WBC: the share of windows of tokens with a positive mean gain, averaged over lengths: (num_documents,).

        Lengths beyond a document's own are left out.

        Example:
            >>> gains = np.array([1.0, -0.5, -0.75], dtype=np.float16)
            >>> right = np.zeros(1, dtype=np.uint8)
            >>> TokenScores(np.array([3.0]), *[np.zeros(1)] * 3, np.zeros(3), right, gains).windows().tolist()
            [0.25]
        """
        found = np.empty(len(self.tokens))
        for first, last in self._blocks():
            gains, starts = self._gains(first, last)
            lengths = self.tokens[first:last].astype(np.int64)
            sums, left = np.concatenate([[0.0], np.cumsum(gains)]), np.repeat(lengths, lengths) - _within(lengths)
            shares, used = np.zeros(len(lengths)), np.zeros(len(lengths))
            for length in (1, *WINDOWS):
                counts = np.maximum(0, lengths - length + 1)
                if length == 1:
                    counts *= lengths == 1  # windows of one token are for documents of one token
                whole = np.flatnonzero(left >= length)
                positive = np.zeros(len(gains))
                positive[whole] = sums[whole + length] - sums[whole] > 0
                hits = np.add.reduceat(positive, starts)
                shares += np.divide(hits, counts, out=np.zeros(len(lengths)), where=counts > 0)
                used += counts > 0
            found[first:last] = shares / used
        return found

    def _gains(self, first: int, last: int) -> tuple[Values, NDArray[np.int64]]:
        """Return the gains of the tokens of documents, and where each document starts among them."""
        assert self.gains is not None, "only a model with a reference has gains"
        start, stop = self.places[[first, last]].tolist()
        return self.gains[start:stop].astype(np.float64), self.places[first:last] - start

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Yield the first document of a block, and the one after its last, with few enough tokens to work on."""
        places, first = self.places, 0
        while first < len(self.tokens):
            last = max(first + 1, int(np.searchsorted(places, places[first] + AT_ONCE, side="right")) - 1)
            yield first, last
            first = last


def _within(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each token within its document: (sum of lengths,)."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


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


def token_scores(
    model: LanguageModel,
    windows: NDArray[np.integer],
    counts: NDArray[np.int64],
    *,
    share: float,
    device: torch.device,
    marks: NDArray[np.uint8] | None = None,
    reference: NDArray[np.floating] | None = None,
    is_reference: bool = False,
) -> TokenScores:
    """Compute the scores of documents.

    Args:
        model: the language model, on `device` and in evaluation mode.
        windows: (num_windows, window) symbols, document after document; -1 is padding.
        counts: (num_documents,) number of windows of each document, which sum to num_windows.
        share: share of the tokens that Min-K%++ takes.
        marks: (num_windows, window), SCORED where a symbol is scored; None: all are that are no padding.
        reference: (num_tokens,) log probabilities of the tokens under the pretrained model; None without one.
        is_reference: True of the pretrained model itself, whose log probabilities are kept in full.

    Raises:
        RunError: when the model returns NaN.
    """
    assert int(counts.sum()) == len(windows), "every window belongs to a document"
    made = Keeping(reference, is_reference=is_reference)
    for values in _by_document(model, windows, counts, device, marks):
        made.add(values[0], values[2] > 0, lowest_mean(values[1], share))
    return made.scores


class Keeping:
    """Scores of documents, added one by one; memory holds five bytes of each token.

    Args:
        reference, is_reference: as in `token_scores`.
    """

    def __init__(self, reference: NDArray[np.floating] | None, *, is_reference: bool = False) -> None:
        self._reference, self._kept = reference, np.float32 if is_reference else np.float16
        self._rows: list[tuple[float, float, float, float]] = []
        self._own: list[NDArray[np.floating]] = []
        self._right: list[NDArray[np.bool_]] = []
        self._gains: list[NDArray[np.float16]] = []
        self._place = 0

    def add(self, log_p: NDArray[np.floating], right: NDArray[np.bool_], lowest: float = float("nan")) -> None:
        """Add the next document.

        Args:
            log_p: (num_tokens,) log probabilities.
            right: (num_tokens,) whether the token has the largest probability.
            lowest: its Min-K%++.
        """
        count = len(log_p)
        self._rows.append((float(count), float(log_p.sum(dtype=np.float64)), lowest, float(right.mean())))
        self._own.append(np.maximum(log_p, np.finfo(self._kept).min).astype(self._kept))
        self._right.append(right)
        if self._reference is not None:
            gains = log_p - self._reference[self._place : self._place + count]
            self._gains.append(gains.clip(-60_000, 60_000).astype(np.float16))
        self._place += count

    @property
    def scores(self) -> TokenScores:
        """The scores of the documents so far."""
        rows = np.array(self._rows, dtype=np.float64).reshape(-1, 4).T
        right = np.packbits(np.concatenate([np.zeros(0, bool), *self._right]), bitorder="little")
        own = np.concatenate([np.zeros(0, self._kept), *self._own])
        gains = None if self._reference is None else np.concatenate([np.zeros(0, np.float16), *self._gains])
        tokens, log_p, lowest, correct = rows
        return TokenScores(tokens, log_p, lowest, correct, own, right, gains)


def _by_document(
    model: LanguageModel,
    windows: NDArray[np.integer],
    counts: NDArray[np.int64],
    device: torch.device,
    marks: NDArray[np.uint8] | None,
) -> Iterator[Values]:
    """Yield (3, num_tokens) per document: log probabilities, the same standardized, and 1 for tokens that are likeliest."""
    import torch

    pending: list[Values] = []  # rows of windows that wait for the rest of their document
    ahead, rows = iter(counts.tolist()), model.most_rows(windows.shape[1])
    wanted = next(ahead, 0)
    for start in range(0, len(windows), rows):
        some = np.array(windows[start : start + rows])
        scored = some >= 0 if marks is None else np.array(marks[start : start + rows]) == SCORED
        pending += _of_windows(model, torch.from_numpy(some).to(device).long(), scored)
        while wanted and len(pending) >= wanted:
            yield np.concatenate(pending[:wanted], axis=1)
            pending, wanted = pending[wanted:], next(ahead, 0)


def _of_windows(model: LanguageModel, windows: Tensor, scored: NDArray[np.bool_]) -> list[Values]:
    """Return (3, num_tokens) of each window (num_windows, window), of the tokens that are scored."""
    import torch

    with torch.inference_mode():
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
    return [values[:, inside] for values, inside in zip(found, scored, strict=True)]
