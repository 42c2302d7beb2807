"""Log-perplexity of candidate sequences in bits, exactly comparable (Carlini 2019, Definition 1).

Costs are whole numbers of 2^-16 bit, rounded symbol by symbol before they are added, so that no order of additions
can move a tie; models are evaluated in float64 unless told otherwise, so that neither does the size of a batch.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.formats import Space
from memlib.errors import RunError

UNITS_PER_BIT = 1 << 16
IMPOSSIBLE = 1 << 40  # the cost of a symbol of probability 0: 16 million bits
BATCH = 4096


class Predictor(Protocol):
    """What is asked of a sequence model; see `models.sequence.LanguageModel`."""

    num_symbols: int

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Scores (1, num_symbols) of what follows a context, and the state (1, ...) after it."""
        ...

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Scores (num_children, num_symbols) after one more symbol, and the state (num_children, ...)."""
        ...


class Work:
    """Counts model evaluations: prefixes for which the next symbol's probabilities were computed.

    Args:
        limit: how many there may be.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.evaluations, self.limit = 0, limit

    def add(self, count: int) -> None:
        """Raises OutOfWork beyond the limit."""
        self.evaluations += count
        if self.limit is not None and self.evaluations > self.limit:
            raise OutOfWork


class OutOfWork(Exception):
    """More model evaluations were needed than allowed."""


def symbol_costs(logits: Tensor, symbols: Tensor) -> Tensor:
    """-log2 of the probabilities of some symbols in units of 2^-16 bit.

    Args:
        logits: (num_prefixes, num_symbols).
        symbols: (num_chosen,) int64.

    Returns:
        (num_prefixes, num_chosen) int64.

    Raises:
        RunError: when the model returns NaN.
    """
    bits = (torch.logsumexp(logits, dim=1, keepdim=True) - logits[:, symbols]) * (UNITS_PER_BIT / np.log(2))
    if torch.isnan(bits).any():
        raise RunError("the model returns probabilities that are not numbers (NaN); its training has diverged")
    costs: Tensor = bits.clamp_(0, IMPOSSIBLE).round_().long()
    return costs


@torch.inference_mode()
def sequence_costs(
    predictor: Predictor, tokens: NDArray[np.int64], *, context: Sequence[int] = (), batch: int = BATCH
) -> NDArray[np.int64]:
    """The cost of each sequence after the context.

    Args:
        predictor: the model.
        tokens: (num_sequences, length) symbols.
        context: symbols before them, whose cost does not count.
        batch: sequences in one pass; changes nothing.

    Returns:
        (num_sequences,) int64, units of 2^-16 bit.
    """
    logits, state = predictor.begin(context)
    parts = []
    for start in range(0, len(tokens), batch):
        part = torch.from_numpy(tokens[start : start + batch]).to(state.device)
        total = symbol_costs(logits, part[:, 0])[0]
        rows, now = torch.zeros(len(part), dtype=torch.int64, device=state.device), state
        for place in range(1, part.shape[1]):
            scores, now = predictor.advance(now, rows, part[:, place - 1])
            rows = torch.arange(len(part), device=state.device)
            every = symbol_costs(scores, torch.arange(scores.shape[1], device=state.device))
            total = total + every[rows, part[:, place]]
        parts.append(total.cpu().numpy())
    found: NDArray[np.int64] = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
    return found


@torch.inference_mode()
def leaf_costs(
    predictor: Predictor,
    space: Space,
    *,
    context: Sequence[int] = (),
    limit: int | None = None,
    work: Work | None = None,
    batch: int = BATCH,
) -> Iterator[NDArray[np.int64]]:
    """The costs of all candidates of a space, or of all that cost no more than a limit.

    The tree of prefixes is walked depth first in blocks, so that memory holds one block a place. Costs only grow along
    a path, so a prefix above the limit has no candidate below it.

    Args:
        predictor: the model.
        space: the candidates.
        context: symbols before them, whose cost does not count.
        limit: in units of 2^-16 bit.
        work: counts model evaluations.
        batch: prefixes evaluated at once; changes nothing.

    Yields:
        blocks of costs, int64, units of 2^-16 bit; every candidate once.

    Raises:
        OutOfWork: beyond work's limit.
    """
    work = work or Work()
    logits, state = predictor.begin(context)
    work.add(1)
    slots = [torch.tensor(slot, device=state.device) for slot in space.slots]

    def walk(place: int, logits: Tensor, state: Tensor, paid: Tensor) -> Iterator[NDArray[np.int64]]:
        slot = slots[place]
        costs = paid[:, None] + symbol_costs(logits, slot)
        if place == len(slots) - 1:
            flat = costs.flatten()
            yield (flat if limit is None else flat[flat <= limit]).cpu().numpy()
            return
        if limit is None:
            parents = torch.arange(len(costs), device=state.device).repeat_interleave(len(slot))
            chosen = torch.arange(len(slot), device=state.device).repeat(len(costs))
        else:
            parents, chosen = torch.nonzero(costs <= limit, as_tuple=True)
        step = max(1, batch // len(slot)) * len(slot)
        for start in range(0, len(parents), step):
            rows, columns = parents[start : start + step], chosen[start : start + step]
            first, last = int(rows[0]), int(rows[-1]) + 1  # only these parents
            work.add(len(rows))
            scores, after = predictor.advance(state[first:last], rows - first, slot[columns])
            yield from walk(place + 1, scores, after, costs[rows, columns])

    yield from walk(0, logits, state, torch.zeros(1, dtype=torch.int64, device=state.device))


def ranks(blocks: Iterator[NDArray[np.int64]], costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each cost the number of candidates that cost no more (Definition 2).

    Args:
        blocks: of `leaf_costs`.
        costs: (num_canaries,) int64.
    """
    order = np.argsort(costs, kind="stable")
    edges = costs[order]
    counts = np.zeros(len(costs) + 1, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(np.searchsorted(edges, block, side="left"), minlength=len(counts))
    found = np.empty(len(costs), dtype=np.int64)
    found[order] = np.cumsum(counts)[:-1]
    return found
