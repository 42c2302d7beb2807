"""Extraction: the likeliest candidates under a model, by shortest path through the tree of prefixes (Carlini 2019, 8.1).

A node is a prefix, an edge costs the -log2 probability of its symbol, and a leaf is a candidate. Many nodes are expanded
per model call. The paper then runs the same number of iterations again, which is a heuristic; here a leaf counts as found
when no node of the frontier costs less, which is exact for any number of nodes per call.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memlib.data.text.formats import Candidates
from memlib.observe.likelihoods import Predictor, Work, costs_of, row_bytes

Node = tuple[int, tuple[int, ...]]
"""Cost in units of 2^-16 bit, and the symbols of the prefix."""


@dataclass
class Frontier:
    """A search in progress, which can be saved and resumed."""

    nodes: list[Node] = field(default_factory=lambda: [(0, ())])  #: a heap of unexpanded prefixes and of leaves.
    found: list[Node] = field(default_factory=list)  #: the leaves found, in order of cost.
    found_at: list[int] = field(default_factory=list)  #: number of evaluations when each leaf was found.
    evaluations: int = 0  #: number of prefixes whose next symbols were evaluated so far.
    dropped: int | None = None  #: the lowest cost of the nodes that were dropped to save memory; None if no node was dropped.

    def save(self, path: Path) -> None:
        """Write the search to an .npz file of arrays."""
        parts: dict[str, NDArray[Any]] = {}
        for name, nodes in (("nodes", self.nodes), ("found", self.found)):
            longest = max((len(symbols) for _, symbols in nodes), default=0)
            table = np.full((len(nodes), longest), -1, dtype=np.int32)
            for row, (_, symbols) in enumerate(nodes):
                table[row, : len(symbols)] = symbols
            parts |= {name: table, f"{name}_costs": np.array([cost for cost, _ in nodes], dtype=np.int64)}
        dropped = -1 if self.dropped is None else self.dropped
        parts["found_at"] = np.array(self.found_at, dtype=np.int64)
        parts["counts"] = np.array([self.evaluations, dropped], dtype=np.int64)
        np.savez(path, allow_pickle=False, **parts)

    @classmethod
    def load(cls, path: Path) -> "Frontier":
        """Read a search that `save` wrote."""
        with np.load(path, allow_pickle=False) as arrays:
            nodes, found = (
                [
                    (cost, tuple(symbol for symbol in path if symbol >= 0))
                    for cost, path in zip(arrays[f"{name}_costs"].tolist(), arrays[name].tolist(), strict=True)
                ]
                for name in ("nodes", "found")
            )
            evaluations, dropped = arrays["counts"].tolist()
            found_at = arrays["found_at"].tolist()
        heapq.heapify(nodes)
        return cls(nodes, found, found_at, evaluations, None if dropped < 0 else dropped)


@dataclass(frozen=True)
class Extracted:
    """The result of a search."""

    leaves: list[Node]  #: (cost, symbols) of the candidates found, likeliest first.
    found_at: list[int]  #: number of evaluations when each candidate was found.
    #: reason for the end: found (as many as requested), exhausted (no candidate is left), evaluations or seconds (this limit
    #: was reached).
    ended: Literal["found", "exhausted", "evaluations", "seconds"]
    exact: bool  #: True if no cheaper candidate can have been missed.
    evaluations: int  #: number of prefixes whose next symbols were evaluated.


class ShortestPath:
    """A search for the likeliest candidates of a space.

    Args:
        predictor: the model.
        space: the candidates.
        context: symbols before the candidates.
        frontier: the frontier of an earlier search to resume.
        batch: number of nodes expanded per model call; affects the number of evaluations, not the result.
        max_nodes: maximum number of nodes in memory; when there are more, the nodes with the highest costs are dropped, so
            that half of the maximum remains.

    States of expanded prefixes are cached in as much memory as the predictor allows; others are recomputed when needed.
    """

    def __init__(
        self,
        predictor: Predictor,
        space: Candidates,
        *,
        context: Sequence[int] = (),
        frontier: Frontier | None = None,
        batch: int = 256,
        max_nodes: int = 5_000_000,
    ) -> None:
        self.frontier = frontier or Frontier()
        self._predictor, self._space, self._context = predictor, space, tuple(context)
        self._batch, self._max_nodes = batch, max_nodes
        self._states: OrderedDict[tuple[int, ...], Tensor] = OrderedDict()
        self._state_bytes = 0  # total size of the cached states
        self._root: tuple[Tensor, Tensor] | None = None

    @torch.inference_mode()
    def run(self, *, top: int = 1, max_evaluations: int | None = None, max_seconds: float | None = None) -> Extracted:
        """Search until `top` candidates are found or a limit is reached; call again to continue."""
        frontier, started = self.frontier, monotonic()
        while True:
            if len(frontier.found) >= top:
                return self._ended("found")
            if not frontier.nodes:
                return self._ended("exhausted")
            if max_evaluations is not None and frontier.evaluations >= max_evaluations:
                return self._ended("evaluations")
            if max_seconds is not None and monotonic() - started >= max_seconds:
                return self._ended("seconds")
            chosen = self._take()
            if chosen:
                self._expand(chosen)

    def _ended(self, ended: Literal["found", "exhausted", "evaluations", "seconds"]) -> Extracted:
        frontier = self.frontier
        highest = frontier.found[-1][0] if frontier.found else 0
        exact = frontier.dropped is None or highest <= frontier.dropped
        return Extracted(
            list(frontier.found),
            list(frontier.found_at),
            ended,
            exact and ended in ("found", "exhausted"),
            frontier.evaluations,
        )

    def _take(self) -> list[Node]:
        """Take the cheapest nodes to expand; a leaf is found when nothing in the frontier is cheaper."""
        nodes = self.frontier.nodes
        chosen: list[Node] = []
        while nodes and len(chosen) < self._batch:
            if self._space.place_of(nodes[0][1]) < self._space.end:
                chosen.append(heapq.heappop(nodes))
            elif chosen:
                break
            else:
                leaf = heapq.heappop(nodes)
                if self._space.accepts(np.array([leaf[1]], dtype=np.int64))[0]:
                    self.frontier.found.append(leaf)
                    self.frontier.found_at.append(self.frontier.evaluations)
                    break
        return chosen

    def _expand(self, chosen: Sequence[Node]) -> None:
        frontier = self.frontier
        alike: dict[int, list[Node]] = {}  # by length
        for node in chosen:
            alike.setdefault(len(node[1]), []).append(node)
        for nodes in alike.values():
            log_probs = torch.log_softmax(self._evaluate([path for _, path in nodes]), dim=1)
            frontier.evaluations += len(nodes)
            places: dict[int, list[int]] = {}  # rows of the nodes at each place
            for row, (_, path) in enumerate(nodes):
                places.setdefault(self._space.place_of(path), []).append(row)
            for place, rows in places.items():
                self._push([nodes[row] for row in rows], log_probs[rows], place)
        if len(frontier.nodes) > self._max_nodes:
            frontier.nodes.sort()
            kept = self._max_nodes // 2
            lowest = frontier.nodes[kept][0]
            frontier.dropped = lowest if frontier.dropped is None else min(frontier.dropped, lowest)
            del frontier.nodes[kept:]  # a sorted list is a heap

    def _push(self, nodes: Sequence[Node], log_probs: Tensor, place: int) -> None:
        """Add the children of nodes at a place, given the log-probabilities (num_nodes, num_symbols) of their symbols."""
        for _, symbols in self._space.edges(place):
            edge_costs = costs_of(log_probs[:, torch.tensor(symbols, device=log_probs.device)]).tolist()
            for (paid, path), costs in zip(nodes, edge_costs, strict=True):
                for symbol, cost in zip(symbols, costs, strict=True):
                    heapq.heappush(self.frontier.nodes, (paid + cost, (*path, symbol)))

    def _evaluate(self, prefixes: Sequence[tuple[int, ...]]) -> Tensor:
        """Return scores of the next symbol after prefixes of equal length; cache the prefixes' states for their children."""
        if not prefixes[0]:
            logits, state = self._begin()
            self._keep((), state[0])
            return logits
        first = self._states_of([prefixes[0][:-1]])
        size = max(1, self._predictor.cache_bytes // (4 * row_bytes(first)))  # number of prefixes evaluated at a time
        scores = []
        for start in range(0, len(prefixes), size):
            chunk = prefixes[start : start + size]
            parents = self._states_of([path[:-1] for path in chunk])
            tokens = torch.tensor([path[-1] for path in chunk], device=parents.device)
            logits, state = self._predictor.advance(parents, torch.arange(len(chunk), device=parents.device), tokens)
            scores.append(logits)
            for path, row in zip(chunk, state, strict=True):
                self._keep(path, row)
        return torch.cat(scores)

    def _begin(self) -> tuple[Tensor, Tensor]:
        if self._root is None:
            self._root = self._predictor.begin(self._context)
        return self._root

    def _states_of(self, paths: Sequence[tuple[int, ...]]) -> Tensor:
        """Return the states (num_paths, ...) after prefixes of equal length, from the cache or recomputed from the start.

        Recomputed states do not count as evaluations, so the amount of memory does not affect the result.
        """
        missing = [path for path in dict.fromkeys(paths) if path not in self._states]
        recomputed = dict(zip(missing, self._again(missing), strict=True)) if missing else {}
        for path in paths:
            if path not in recomputed:
                self._states.move_to_end(path)
        states = torch.stack([recomputed[path] if path in recomputed else self._states[path] for path in paths])
        for path, state in recomputed.items():
            self._keep(path, state)
        return states

    def _again(self, paths: Sequence[tuple[int, ...]]) -> Tensor:
        state = self._begin()[1]
        rows = torch.zeros(len(paths), dtype=torch.int64, device=state.device)
        for symbols in torch.tensor(paths, dtype=torch.int64, device=state.device).reshape(len(paths), -1).T:
            state = self._predictor.advance(state, rows, symbols)[1]
            rows = torch.arange(len(paths), device=state.device)
        return state[rows]

    def _keep(self, path: tuple[int, ...], state: Tensor) -> None:
        before = self._states.pop(path, None)
        self._states[path] = state.clone()
        self._state_bytes += row_bytes(state[None]) - (0 if before is None else row_bytes(before[None]))
        while self._state_bytes > self._predictor.cache_bytes and len(self._states) > 1:
            self._state_bytes -= row_bytes(self._states.popitem(last=False)[1][None])


@torch.inference_mode()
def beam_search(
    predictor: Predictor, space: Candidates, *, width: int, context: Sequence[int] = (), work: Work | None = None
) -> list[Node]:
    """Return the candidates that a beam search of the given width finds, likeliest first; width 1 is greedy search."""
    work = work or Work()
    logits, state = predictor.begin(context)
    work.add(1)
    beams: list[Node] = [(0, ())]
    ended: list[Node] = []
    while beams:
        grown = [(cost, path, -1) for cost, path in ended]
        log_probs = torch.log_softmax(logits, dim=1)
        for row, (paid, path) in enumerate(beams):
            for _, symbols in space.edges(space.place_of(path)):
                costs = costs_of(log_probs[row, torch.tensor(symbols, device=logits.device)]).tolist()
                grown += [(paid + cost, (*path, symbol), row) for symbol, cost in zip(symbols, costs, strict=True)]
        best = sorted(grown, key=lambda node: node[:2])[:width]
        ended = [(cost, path) for cost, path, _ in best if space.place_of(path) == space.end]
        going = [node for node in best if space.place_of(node[1]) < space.end]
        beams = [(cost, path) for cost, path, _ in going]
        if beams:
            rows = torch.tensor([row for _, _, row in going], device=logits.device)
            last = torch.tensor([path[-1] for _, path in beams], device=logits.device)
            logits, state = predictor.advance(state, rows, last)
            work.add(len(beams))
    return [(cost, path) for cost, path in ended if space.accepts(np.array([path], dtype=np.int64))[0]]
