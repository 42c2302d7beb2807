"""Tests of whether models know the canaries in their training data better than canaries that they never saw.

Null for a canary that memlib drew: it is a candidate of R like any other, so its rank is uniform. Null for a secret that the
text contained: it is exchangeable with unseen secrets of the same kind.

Models of several seeds that saw the same canary are not independent: a canary that is likely under one model is likely
under another. The costs of each candidate are therefore added over these models and ranked once.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.audits.exposure.answers import largest
from memlib.audits.exposure.scores import TINY, Scored, canary_p, last_checkpoints, sampled_p, upper_exposure
from memlib.specs.text import GIVEN, INSERTED, UNSEEN
from memlib.stats.multiplicity import combined_p
from memlib.stats.randomization import Design, detectable

PERMUTATIONS = 9_999
LN2 = math.log(2)


@dataclass(frozen=True)
class Held:
    """A canary with the models of a variant whose training data contain it."""

    canary: int  #: canary, kind, insertions: id, kind and number of insertions of the canary.
    kind: str
    insertions: int
    #: these models at their last checkpoint, each with the canary's position among the canaries that the model scored.
    nets: tuple[tuple[Scored, int], ...]

    @functools.cached_property
    def cost(self) -> int:
        """Cost of the canary, added over the models."""
        return sum(int(net.costs[place]) for net, place in self.nets)

    @functools.cached_property
    def references(self) -> NDArray[np.int64]:
        """Costs of the random candidates, added over the models: (num_references,)."""
        return sum_over([net.references for net, _ in self.nets])

    @functools.cached_property
    def unseen(self) -> NDArray[np.int64]:
        """Costs of the unseen secrets, added over the models: (num_unseen,)."""
        return sum_over([net.costs_of(UNSEEN) for net, _ in self.nets])

    def below(self, part: slice = slice(None)) -> tuple[int, int]:
        """Count the random candidates of a part that cost no more than the canary; return that count and the part's size."""
        references = self.references[part]
        return int((references <= self.cost).sum()), len(references)

    def p(self, size: int, part: slice = slice(None)) -> float:
        """Compute the p-value of the canary's rank in R; a sampled rank uses a part of the random candidates."""
        exact = self.nets[0][0].exact.get(self.canary) if len(self.nets) == 1 else None
        return canary_p(*self.below(part), size=size, exact=exact)

    def p_among_unseen(self) -> float:
        """Compute the p-value of the canary's rank among the unseen secrets."""
        return sampled_p(int((self.unseen <= self.cost).sum()), len(self.unseen))

    def upper_among_unseen(self, level: float) -> float | None:
        """Compute an upper bound of the canary's exposure among the unseen secrets; None if no unseen secret is as likely."""
        return upper_exposure(int((self.unseen <= self.cost).sum()), len(self.unseen), level=level)

    def smallest_p(self, size: int) -> float:
        """Return the smallest p-value that any rank could give."""
        exact = len(self.nets) == 1 and self.canary in self.nets[0][0].exact
        return 1 / size if exact else 1 / (1 + len(self.references))

    def upper(self, size: int, level: float) -> float | None:
        """Compute an upper bound of the canary's exposure in all of its models; log2 |R| if no reference is as likely."""
        bounds = [_upper(net, self.canary, place, size, level / len(self.nets)) for net, place in self.nets]
        return largest(bounds)


def _upper(net: Scored, canary: int, place: int, size: int, level: float) -> float | None:
    bits = math.log2(size)
    if canary in net.exact:
        return bits - math.log2(net.exact[canary][1])
    below = int((net.references <= net.costs[place]).sum())
    bound = upper_exposure(below, len(net.references), level=level)
    return bits if bound is None else min(bound, bits)


def sum_over(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Sum the costs of the same candidates elementwise over the models."""
    total: NDArray[np.int64] = np.sum(np.stack(parts), axis=0)
    return total


def held(models: Sequence[Scored], variant: str) -> list[Held]:
    """Return the canaries that models of a variant saw, sorted by id."""
    nets: dict[int, list[tuple[Scored, int]]] = {}
    for model in last_checkpoints([model for model in models if model.variant == variant]):
        for place, (canary, times) in enumerate(zip(model.canaries, model.insertions, strict=True)):
            if times and model.kinds[place] in (INSERTED, GIVEN):
                nets.setdefault(canary, []).append((model, place))
    return [
        Held(canary, places[0][0].kinds[places[0][1]], places[0][0].insertions[places[0][1]], tuple(places))
        for canary, places in sorted(nets.items())
    ]


@dataclass(frozen=True)
class Tested:
    """A test of all canaries of a variant together."""

    #: twice the smaller of two p-values: that of the combined test, which detects a little exposure of many canaries, and the
    #: Bonferroni-adjusted one of the lowest canary, which detects one canary among many.
    p_value: float
    smallest_p: float  #: smallest p-value that data of this size could give.
    detectable: float | None  #: bits of mean exposure that the combined test detects; None if it cannot detect anything.


def either(combined: float, p_values: Sequence[float]) -> float:
    """Return twice the smaller of a combined and a Bonferroni-adjusted p-value; for a single canary, its own p-value."""
    if len(p_values) == 1:
        return p_values[0]
    return min(1.0, 2 * min(combined, len(p_values) * min(p_values)))


def evidence_of_drawn(canaries: Sequence[Held], size: int, *, alpha: float) -> Tested:
    """Test whether canaries that were drawn uniformly rank lower than they would by chance.

    For the combined test, each sampled rank uses a separate part of the references, so that the p-values are independent.

    Args:
        size: |R|, the number of candidates.
    """
    count = len(canaries)
    parts = [canary.p(size, slice(place, None, count)) for place, canary in enumerate(canaries)]
    p_value = either(combined_p(parts), [canary.p(size) for canary in canaries])
    lowest = [max(canary.smallest_p(size), TINY) for canary in canaries]
    part = 1 / (1 + len(canaries[0].references) // count)
    by_part = [p if p == 1 / size else part for p in lowest]
    smallest = either(combined_p(by_part), lowest)
    needed = scipy.stats.gamma.isf(alpha / min(2, count), count) / count / LN2
    attainable = float(np.mean([-math.log2(p) for p in by_part]))
    return Tested(p_value, smallest, float(needed) if needed <= attainable else None)


def evidence_of_given(canaries: Sequence[Held], *, alpha: float, seed: int) -> Tested:
    """Test whether secrets that the text contained rank lower than secrets of the same kind that it did not contain.

    The statistic is the sum over the given secrets of ln(1 / rank share), with ranks taken among given and unseen secrets
    together. The null distribution permutes which secrets were given.

    Args:
        canaries: given secrets of one variant; all models scored the same unseen secrets.
    """
    single, unseen = [canary.p_among_unseen() for canary in canaries], canaries[0].unseen
    floor = 1 / (1 + len(unseen))
    if len(canaries) == 1:
        needed = math.log2(1 / alpha)
        return Tested(single[0], floor, needed if floor <= alpha else None)
    costs = np.concatenate([[canary.cost for canary in canaries], unseen])
    scores = -np.log(scipy.stats.rankdata(costs, method="max") / len(costs))
    first = np.arange(len(costs)) < len(canaries)
    design = Design.of(first, np.zeros(len(costs), dtype=np.int64))
    observed = float(scores[first].sum())
    null = design.redrawn_sums(scores, PERMUTATIONS, seed=seed)
    combined = (1 + int((null >= observed - 1e-9).sum())) / (1 + PERMUTATIONS)
    smallest = either(max(design.smallest_p(scores), 1 / (1 + PERMUTATIONS)), [floor] * len(canaries))
    effect = detectable(design.null_deviation(scores), alpha / 2)
    bits = None if effect is None else float(scores.mean() + effect / len(canaries)) / LN2
    return Tested(either(combined, single), smallest, bits if smallest <= alpha else None)
