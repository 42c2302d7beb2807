"""Tests of whether models know canaries better than canaries that they never saw.

Null of a canary that was drawn here: it is one of R like any other, so its rank is uniform. Null of a secret that the text
held: it is one of the secrets of its kind, of which some were never seen, so given and unseen ones may change places.

Nets of several seeds that hold the same canary are not independent: a canary that is likely under one is likely under
another. So the costs of each candidate are added over the nets, and ranked once.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.audits.exposure.scores import TINY, Scored, canary_p, last_checkpoints, sampled_p, upper_exposure
from memlib.specs.text import GIVEN, INSERTED, UNSEEN
from memlib.stats.multiplicity import combined_p
from memlib.stats.randomization import Design, detectable

PERMUTATIONS = 9_999
LN2 = math.log(2)


@dataclass(frozen=True)
class Held:
    """A canary in the nets of a variant whose training data hold it.

    Attributes:
        canary, kind, insertions: which.
        nets: the nets at their last checkpoint, and its place among what they were asked for.
    """

    canary: int
    kind: str
    insertions: int
    nets: tuple[tuple[Scored, int], ...]

    @functools.cached_property
    def cost(self) -> int:
        """Its cost, added over the nets."""
        return sum(int(net.costs[place]) for net, place in self.nets)

    @functools.cached_property
    def references(self) -> NDArray[np.int64]:
        """(num_references,) costs of the random candidates, added over the nets."""
        return sum_over([net.references for net, _ in self.nets])

    @functools.cached_property
    def unseen(self) -> NDArray[np.int64]:
        """(num_unseen,) costs of the unseen secrets, added over the nets."""
        return sum_over([net.costs_of(UNSEEN) for net, _ in self.nets])

    def below(self, part: slice = slice(None)) -> tuple[int, int]:
        """How many of how many random candidates of a part cost no more."""
        mine = self.references[part]
        return int((mine <= self.cost).sum()), len(mine)

    def p(self, size: int, part: slice = slice(None)) -> float:
        """The p-value of its rank in R, by a part of the random candidates where it is sampled."""
        exact = self.nets[0][0].exact.get(self.canary) if len(self.nets) == 1 else None
        return canary_p(*self.below(part), size=size, exact=exact)

    def p_among_unseen(self) -> float:
        """The p-value of its rank among the unseen secrets."""
        return sampled_p(int((self.unseen <= self.cost).sum()), len(self.unseen))

    def upper_among_unseen(self, level: float) -> float | None:
        """Upper bound of its exposure among the unseen secrets; None where none of them is as likely."""
        return upper_exposure(int((self.unseen <= self.cost).sum()), len(self.unseen), level=level)

    def smallest_p(self, size: int) -> float:
        """No rank gives a smaller p-value."""
        exact = len(self.nets) == 1 and self.canary in self.nets[0][0].exact
        return 1 / size if exact else 1 / (1 + len(self.references))

    def upper(self, size: int, level: float) -> float | None:
        """Upper bound of its exposure in all of its nets; exact ranks are known. None where a net has no reference below."""
        bounds = [_upper(net, self.canary, place, size, level / len(self.nets)) for net, place in self.nets]
        return largest(bounds)


def largest(bounds: Sequence[float | None]) -> float | None:
    """The largest of some bounds; None where one is not known."""
    known = [bound for bound in bounds if bound is not None]
    return max(known) if len(known) == len(bounds) else None


def _upper(net: Scored, canary: int, place: int, size: int, level: float) -> float | None:
    bits = math.log2(size)
    if canary in net.exact:
        return bits - math.log2(net.exact[canary][1])
    below = int((net.references <= net.costs[place]).sum())
    bound = upper_exposure(below, len(net.references), level=level)
    return bits if bound is None else min(bound, bits)


def sum_over(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """The elementwise sum of what every net said of the same candidates."""
    total: NDArray[np.int64] = np.sum(np.stack(parts), axis=0)
    return total


def held(models: Sequence[Scored], variant: str) -> list[Held]:
    """The canaries that nets of a variant saw, by id."""
    nets: dict[int, list[tuple[Scored, int]]] = {}
    for model in last_checkpoints([model for model in models if model.variant == variant]):
        for place, (canary, times) in enumerate(zip(model.canaries, model.insertions, strict=True)):
            if times and model.kinds[place] in (INSERTED, GIVEN):
                nets.setdefault(canary, []).append((model, place))
    return [
        Held(canary, mine[0][0].kinds[mine[0][1]], mine[0][0].insertions[mine[0][1]], tuple(mine))
        for canary, mine in sorted(nets.items())
    ]


@dataclass(frozen=True)
class Tested:
    """A test of all canaries of a variant together.

    Attributes:
        p_value: twice the smaller of two: of the combined test, and Bonferroni's of the lowest canary. The first finds a
            little of many, the second one among many.
        smallest_p: no data of this size give a smaller one.
        detectable: bits of mean exposure that the combined test finds; None where it can find nothing.
    """

    p_value: float
    smallest_p: float
    detectable: float | None


def either(combined: float, p_values: Sequence[float]) -> float:
    """Twice the smaller of a combined p-value and Bonferroni's; of a single canary they are one."""
    if len(p_values) == 1:
        return p_values[0]
    return min(1.0, 2 * min(combined, len(p_values) * min(p_values)))


def evidence_of_drawn(canaries: Sequence[Held], size: int, *, alpha: float) -> Tested:
    """Test whether canaries that were drawn uniformly lie lower than they would by chance.

    Sampled ranks take a part of the references each, so that the p-values are independent.

    Args:
        canaries: of one variant.
        size: |R|.
        alpha: level that is left to this test.
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
    """Test whether secrets that the text held lie lower than secrets of their kind that it did not hold.

    The statistic is the sum of ln(1 / rank share) over the given ones among all; its null permutes who was given.

    Args:
        canaries: of one variant; all nets were asked for the same unseen ones.
        alpha: level that is left to this test.
        seed: of the permutations.
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
