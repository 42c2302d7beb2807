"""Discoverable extraction: the probability that a model continues a document's known prefix as the document does.

A suffix z after a prefix has probability p_z under a sampling scheme (temperature, top-k, top-p), computed in one forward
pass; n samples contain it with probability 1 - (1 - p_z)^n, so it is (n, p)-discoverable where p_z >= 1 - (1 - p)^(1/n)
(Hayes 2024, Definition 1; greedy decoding of Carlini 2023 is top-k 1). Truncation sets most p_z to 0, which makes suffixes
indistinguishable, so tests use the untruncated log-probability.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from memlib.models.causal import Causal
from memlib.observe.likelihoods import row_bytes

LN2 = math.log(2)
STATE_COPIES = 4  # copies of a state at a step: selected rows, the longer cache, the new and the previous state


class Scheme(Protocol):
    """A scheme for sampling tokens."""

    @property
    def temperature(self) -> float:
        """The divisor of the logits."""
        ...

    @property
    def top_k(self) -> int | None:
        """The number of likeliest tokens that may be drawn; None for all."""
        ...

    @property
    def top_p(self) -> float | None:
        """The share of the probability mass, starting at the likeliest token, that may be drawn; None for all."""
        ...


@dataclass(frozen=True)
class Suffixes:
    """A model's probabilities of documents' suffixes, each (num_documents,)."""

    bits: NDArray[np.float64]  #: -log2 of the untruncated probability at temperature 1.
    scheme_bits: NDArray[np.float64]  #: -log2 p_z under the scheme; infinite where the suffix cannot be sampled.
    greedy: NDArray[np.bool_]  #: True where every token is the likeliest.


def scheme_log_probs(scores: Tensor, scheme: Scheme) -> Tensor:
    """Return natural log-probabilities (..., num_symbols) under a scheme; -inf for tokens that are never drawn.

    The temperature is applied first, then top-k, then top-p to the remaining tokens, as in `generate` of transformers. Tokens
    that are tied at the top-k threshold may all be drawn.

    Args:
        scores: (..., num_symbols) logits.
        scheme: how tokens are sampled.
    """
    scores = scores.double() / scheme.temperature
    if scheme.top_k is not None and scheme.top_k < scores.shape[-1]:
        border = scores.topk(scheme.top_k, dim=-1).values[..., -1:]
        scores = scores.masked_fill(scores < border, -math.inf)
    if scheme.top_p is not None and scheme.top_p < 1:
        ascending, order = scores.sort(dim=-1)
        below = ascending.softmax(dim=-1).cumsum(dim=-1)
        out = below <= 1 - scheme.top_p
        out[..., -1] = False
        scores = scores.masked_fill(out.scatter(-1, order, out), -math.inf)
    return scores.log_softmax(dim=-1)


@torch.inference_mode()
def suffixes(model: Causal, documents: NDArray[np.int64], *, prefix: int, scheme: Scheme) -> Suffixes:
    """Score the suffixes of documents after their prefixes, with one forward pass each.

    Args:
        model: the model under audit.
        documents: (num_documents, prefix + suffix) tokens.
        prefix: number of known tokens.
        scheme: how tokens are sampled.
    """
    bits, scheme_bits, greedy = [], [], []
    for rows in _batches(model, documents):
        scores = model(rows)[:, prefix:].double()  # scores of each token given the preceding tokens
        wanted = rows[:, prefix:, None]
        bits.append(-scores.log_softmax(dim=-1).gather(-1, wanted).sum(dim=(1, 2)) / LN2)
        scheme_bits.append(-scheme_log_probs(scores, scheme).gather(-1, wanted).sum(dim=(1, 2)) / LN2)
        greedy.append((scores.argmax(dim=-1) == wanted[..., 0]).all(dim=1))
    whole = (torch.cat(parts).cpu().numpy() for parts in (bits, scheme_bits, greedy))
    return Suffixes(*whole)


@torch.inference_mode()
def near_hits(
    model: Causal, documents: NDArray[np.int64], *, prefix: int, scheme: Scheme, samples: int, near: float, seed: int
) -> NDArray[np.int64]:
    """Count the samples after each prefix that are close to the suffix: (num_documents,).

    Args:
        model: the model under audit.
        documents: (num_documents, prefix + suffix) tokens.
        prefix: number of known tokens.
        scheme: how tokens are sampled.
        samples: number of continuations of each document.
        near: maximum number of edits (tokens inserted, deleted or substituted), as a share of the suffix.
        seed: seed of the draws, which depend neither on the model nor on the number of samples drawn at a time.
    """
    hits = np.zeros(len(documents), dtype=np.int64)
    length, place = documents.shape[1] - prefix, 0
    for rows in _batches(model, documents):
        for row in rows:
            generator = torch.Generator().manual_seed((seed + place) % 2**63)
            draws = torch.rand(samples, length, generator=generator, dtype=torch.float64)
            wanted, most = row[prefix:].tolist(), math.floor(near * length)
            for drawn in _drawn(model, row[:prefix], scheme, draws):
                hits[place] += sum(Levenshtein.distance(wanted, one, score_cutoff=most) <= most for one in drawn.tolist())
            place += 1
    return hits


def _drawn(model: Causal, prefix: Tensor, scheme: Scheme, draws: Tensor) -> Iterator[Tensor]:
    """Sample continuations of a prefix, as many together as fit into the model's memory for states.

    Args:
        model: the model under audit.
        prefix: (prefix,) tokens.
        scheme: how tokens are sampled.
        draws: (samples, length) numbers in [0, 1), each of which picks a token.

    Yields:
        (some, length) tokens, in the order of the draws.
    """
    begun = model.begin(prefix.tolist())
    for some in torch.split(draws, _rows_together(model, begun[1], len(prefix), draws.shape[1])):
        (scores, state), tokens = begun, list[Tensor]()
        rows = torch.zeros(len(some), dtype=torch.int64, device=scores.device)
        for step, chosen in enumerate(some.unbind(1)):
            picked = _picked(scheme_log_probs(scores, scheme).exp().cpu().expand(len(some), -1), chosen)
            tokens.append(picked)
            if step + 1 < len(some[0]):
                scores, state = model.advance(state, rows, picked.to(scores.device))
                rows = torch.arange(len(some), device=scores.device)
        yield torch.stack(tokens, dim=1)


def _picked(chances: Tensor, draws: Tensor) -> Tensor:
    """Return the tokens (rows,) that draws in [0, 1) select according to the probabilities `chances` (rows, num_symbols)."""
    below = chances.cumsum(dim=-1)
    places = torch.searchsorted(below, draws[:, None] * below[:, -1:], right=True)[:, 0]
    return places.clamp_(max=chances.shape[1] - 1)


def _rows_together(model: Causal, state: Tensor, prefix: int, length: int) -> int:
    """Return the number of samples to draw together, so that their states at full length, and copies, fit into memory."""
    grown = row_bytes(state) * (1 + prefix + length) / (1 + prefix)
    return max(1, min(model.most_rows(1), int(model.cache_bytes / (STATE_COPIES * grown))))


def _batches(model: Causal, documents: NDArray[np.int64]) -> Iterator[Tensor]:
    size = model.most_rows(documents.shape[1])
    for start in range(0, len(documents), size):
        yield torch.from_numpy(documents[start : start + size]).to(model.device)


def needed_bits(tries: int, probability: float) -> float:
    """Return the largest -log2 p_z at which n tries sample the suffix at least once with probability p.

    Args:
        tries: the number of tries, n.
        probability: the probability, p.
    """
    return -math.log2(-math.expm1(math.log1p(-probability) / tries))
