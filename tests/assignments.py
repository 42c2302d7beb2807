"""All assignments of small designs, by brute force, for tests that are exact without a seed.

If each assignment is the observed one in turn, and the redraws are all the others, then a right p-value of one of N equally
likely assignments is attained in exactly p x N of them or fewer, with equality at every p that occurs.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from memlib.stats.randomization import Design


def assignments_of(design: Design) -> NDArray[np.bool_]:
    """Return the first sides of all draws of a design, the observed one included, (num_draws, num_units)."""
    groups = np.unique(design.group)
    sides = {group: bool(design.first[design.group == group][0]) for group in groups}
    strata = {group: int(design.stratum[design.group == group][0]) for group in groups}
    choices = []
    for stratum in sorted(set(strata.values())):
        members = [group for group in groups if strata[group] == stratum]
        choices.append(list(itertools.combinations(members, sum(sides[group] for group in members))))
    return np.array([np.isin(design.group, list(itertools.chain(*parts))) for parts in itertools.product(*choices)])


def each_observed(design: Design) -> Iterator[Design]:
    """Yield the design with each of its draws as the observed one, and all the others as its redraws."""
    draws = assignments_of(design)
    for place, first in enumerate(draws):
        yield dataclasses.replace(design, first=first, given=np.delete(draws, place, axis=0))


def assert_exact(p_values: Sequence[float]) -> None:
    """Check that each p-value of all assignments is the share of the assignments with this p-value or a smaller one."""
    found = np.array(p_values)
    for p in np.unique(found):
        assert (found <= p + 1e-9).sum() == pytest.approx(p * len(found), abs=1e-6)


def redraw_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every design, wherever it is made, use all its draws but the observed one as redraws."""

    def others(design: Design, count: int, *, seed: int) -> Iterator[NDArray[np.bool_]]:
        draws = assignments_of(design)
        starts = np.unique(design.group, return_index=True)[1]
        yield draws[(draws != design.first).any(axis=1)][:, starts]

    monkeypatch.setattr(Design, "_group_redraws", others)
