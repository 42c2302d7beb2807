"""Log-perplexity of candidate sequences in bits, exactly comparable (Carlini 2019, Definition 1).

Costs are whole multiples of 2^-16 bit, rounded for each symbol before they are added, so the order of additions cannot
break or create a tie. Models are evaluated in float64 by default, so the batch size cannot break or create a tie either.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.text.formats import Candidates, Choices
from memlib.errors import RunError

UNITS_PER_BIT = 1 << 16
IMPOSSIBLE = 1 << 40  # the cost of a symbol of probability 0: 16 million bits
BATCH = 4096


class Predictor(Protocol):
    """The interface of a sequence model; see `models.sequence.LanguageModel`."""

    num_symbols: int
    cache_bytes: int
    """Memory for states, in bytes; states that do not fit are recomputed."""

    def begin(self, context: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return scores (1, num_symbols) of the symbol after a context, and the state (1, ...) after it."""
        ...

    def begin_each(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores and states of `begin` for many contexts of equal length (num_contexts, length)."""
        ...

    def advance(self, state: Tensor, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Extend prefixes by one symbol; return scores (num_children, num_symbols) and the state (num_children, ...)."""
        ...


class Work:
    """A counter of model evaluations: prefixes for which the next symbol's probabilities were computed.

    Args:
        limit: maximum number of evaluations.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.evaluations, self.limit = 0, limit

    def add(self, count: int) -> None:
        """Add to the number of evaluations; raise OutOfWork if it exceeds the limit."""
        self.evaluations += count
        if self.limit is not None and self.evaluations > self.limit:
            raise OutOfWork


class OutOfWork(Exception):
    """Raised when more model evaluations are needed than allowed."""


def costs_of(log_probs: Tensor) -> Tensor:
    """Convert natural logarithms of probabilities to costs in units of 2^-16 bit, int64 of the same shape.

    Raises:
        RunError: when the model returns NaN.
    """
    bits = log_probs * -(UNITS_PER_BIT / np.log(2))
    if torch.isnan(bits).any():
        raise RunError("the model returns probabilities that are not numbers (NaN); its training has diverged")
    costs: Tensor = bits.clamp_(0, IMPOSSIBLE).round_().long()
    return costs


def _rows_at_once(predictor: Predictor) -> int:
    """Return the number of prefixes, at most BATCH, whose scores fit into 256 MiB."""
    return max(1, min(BATCH, 2**25 // predictor.num_symbols))


def _fitting(predictor: Predictor, state: Tensor, places: int, *, growth: float = 1.0) -> int:
    """Return the number of prefixes per place of a tree whose states fit into memory together.

    Args:
        predictor: the model, which sets the memory limit.
        state: the state of some prefixes.
        growth: maximum factor by which states may grow; some grow with the length of the prefix, others do not.
    """
    return max(1, int(predictor.cache_bytes / (max(1, places) * growth * row_bytes(state))))


def row_bytes(state: Tensor) -> int:
    """Return the size of one prefix's state in bytes."""
    return max(1, state[:1].numel() * state.element_size())


@torch.inference_mode()
def sequence_costs(
    predictor: Predictor, tokens: NDArray[np.int64], *, context: Sequence[int] = (), batch: int | None = None
) -> NDArray[np.int64]:
    """Compute the cost of each sequence after the context; a prefix shared by several sequences is evaluated once per batch.

    Args:
        tokens: (num_sequences, longest) symbols; shorter sequences are padded with -1.
        context: symbols before the sequences, whose cost does not count.
        batch: number of sequences per pass; does not affect the result.

    Returns:
        (num_sequences,) int64, units of 2^-16 bit.
    """
    logits, state = predictor.begin(context)
    growth = (1 + len(context) + tokens.shape[1]) / (1 + len(context))
    batch = batch or min(_rows_at_once(predictor), _fitting(predictor, state, 2, growth=growth))
    order = np.lexsort(tokens.T[::-1])
    costs = np.zeros(len(tokens), dtype=np.int64)
    for start in range(0, len(tokens), batch):
        chosen = order[start : start + batch]
        costs[chosen] = _costs_of_block(predictor, tokens[chosen], logits, state)
    return costs


@torch.inference_mode()
def candidate_costs(
    predictor: Predictor, space: Candidates, choices: Choices, *, context: Sequence[int] = (), batch: int | None = None
) -> NDArray[np.int64]:
    """Compute the costs of candidates, given as choices (num_candidates, num_places); see `sequence_costs`.

    If the space defines a separate context for each candidate, the candidate is scored after its own context, not `context`.
    """
    tokens, contexts = space.tokens(choices), space.contexts(choices)
    if contexts is None:
        return sequence_costs(predictor, tokens, context=context, batch=batch)
    if batch is None:
        first = predictor.begin_each(torch.from_numpy(contexts[:1]))[1]
        growth = (1 + contexts.shape[1] + tokens.shape[1]) / (1 + contexts.shape[1])
        batch = min(_rows_at_once(predictor), _fitting(predictor, first, 2, growth=growth))
    parts = []
    for start in range(0, len(tokens), batch):
        logits, state = predictor.begin_each(torch.from_numpy(contexts[start : start + batch]))
        parts.append(_costs_of_block(predictor, tokens[start : start + batch], logits, state))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)


def _costs_of_block(predictor: Predictor, tokens: NDArray[np.int64], logits: Tensor, state: Tensor) -> NDArray[np.int64]:
    """Compute the costs of sequences after a common context, with (1, ...) logits and state, or after one context each."""
    device = state.device
    part = torch.from_numpy(tokens).to(device)
    rows = torch.arange(len(part), device=device) % len(logits)  # row of the state of each sequence's prefix
    total = costs_of(torch.log_softmax(logits, dim=1)[rows, part[:, 0]])
    for place in range(1, part.shape[1]):
        alive = torch.nonzero(part[:, place] >= 0)[:, 0]
        if not len(alive):
            break
        prefixes, where = torch.unique(rows[alive] * predictor.num_symbols + part[alive, place - 1], return_inverse=True)
        parents, last = prefixes // predictor.num_symbols, prefixes % predictor.num_symbols
        logits, state = predictor.advance(state, parents, last)
        rows = rows.clone()
        rows[alive] = where
        total[alive] += costs_of(torch.log_softmax(logits, dim=1)[where, part[alive, place]])
    return total.cpu().numpy()


@torch.inference_mode()
def leaf_costs(
    predictor: Predictor,
    space: Candidates,
    *,
    context: Sequence[int] = (),
    limit: int | None = None,
    work: Work | None = None,
    batch: int | None = None,
) -> Iterator[NDArray[np.int64]]:
    """Yield the costs of all candidates of a space, or of the candidates that cost no more than a limit.

    The tree of prefixes is walked depth first in blocks, so that memory holds one block per place. Costs only grow along
    a path, so a prefix that costs more than the limit is not extended. Where symbols can spell a candidate in several ways,
    only the candidate's own path counts.

    Args:
        context: symbols before the candidates, whose cost does not count.
        limit: highest cost of a candidate, in units of 2^-16 bit; None for all candidates.
        work: counter of model evaluations.
        batch: number of prefixes evaluated at once; does not affect the result.

    Yields:
        blocks of costs, int64, units of 2^-16 bit; every candidate once.

    Raises:
        OutOfWork: when the limit of `work` is exceeded.
    """
    work, rows_at_once = work or Work(), batch or _rows_at_once(predictor)
    if not space.has_tree or (limit is None and (space.ambiguous or space.sparse)):
        # most paths of an ambiguous tree belong to no candidate, and a sparse one has few paths per place
        for block in space.blocks(rows_at_once):
            work.add(len(block))
            yield candidate_costs(predictor, space, block, context=context)
        return
    logits, state = predictor.begin(context)
    work.add(1)
    first_log_probs, device = torch.log_softmax(logits, dim=1), state.device

    def walk(place: int, log_probs: Tensor, state: Tensor, paid: Tensor, paths: Tensor) -> Iterator[NDArray[np.int64]]:
        for after, symbols in space.edges(place):
            slot = torch.tensor(symbols, device=device)
            costs = paid[:, None] + costs_of(log_probs[:, slot])
            if after == space.end and not space.ambiguous:
                flat = costs.flatten()
                yield (flat if limit is None else flat[flat <= limit]).cpu().numpy()
                continue
            if limit is None:
                parents = torch.arange(len(costs), device=device).repeat_interleave(len(slot))
                chosen = torch.arange(len(slot), device=device).repeat(len(costs))
            else:
                parents, chosen = torch.nonzero(costs <= limit, as_tuple=True)
            most = min(rows_at_once, _fitting(predictor, state, space.end))
            step = max(1, most // len(slot)) * len(slot)
            for start in range(0, len(parents), step):
                rows, columns = parents[start : start + step], chosen[start : start + step]
                now, grown = costs[rows, columns], paths
                if space.ambiguous:
                    grown = torch.cat([paths[rows], slot[columns][:, None]], dim=1)
                if after == space.end:
                    yield now.cpu().numpy()[space.accepts(grown.cpu().numpy())]
                    continue
                first, last = int(rows[0]), int(rows[-1]) + 1  # only the parents of these rows
                work.add(len(rows))
                following, states = predictor.advance(state[first:last], rows - first, slot[columns])
                following = torch.log_softmax(following, dim=1)
                yield from walk(after, following, states, now, grown)

    nothing = torch.zeros(1, 0, dtype=torch.int64, device=device)
    yield from walk(0, first_log_probs, state, torch.zeros(1, dtype=torch.int64, device=device), nothing)


def ranks(blocks: Iterator[NDArray[np.int64]], costs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count, for each cost, the candidates that do not cost more (Definition 2).

    Args:
        blocks: costs from `leaf_costs`.
        costs: (num_canaries,) int64.
    """
    order = np.argsort(costs, kind="stable")
    edges = costs[order]
    counts = np.zeros(len(costs) + 1, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(np.searchsorted(edges, block, side="left"), minlength=len(counts))
    totals = np.empty(len(costs), dtype=np.int64)
    totals[order] = np.cumsum(counts)[:-1]
    return totals
