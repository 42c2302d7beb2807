"""Power of randomization tests, simulated at the design and the data of the test."""

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.stats.randomization import POWER, Design, detectable

DRAWS = 500  # redrawn sides on which an effect is planted
REDRAWS_IN_TAIL = 50  # redraws of each simulated test that are expected beyond its level
MOST_GROUPS = 2_000  # number of groups from which on the normal law is close enough


def detectable_shift(design: Design, values: NDArray[np.float64], *, alpha: float, seed: int) -> float | None:
    """Return the effect on `Design.difference` that its test detects with a power of 80 %; None if no effect is large enough.

    Simulated at this design: the sides are drawn again, the values of all units on the first side are raised and those on the
    second lowered by half the effect, and the test is carried out. As every statistic is linear in the effect, each simulated
    test has a smallest effect that it finds. Effects that differ between units are found less often than equal ones.

    Args:
        values: (num_units,).
    """
    if not design.balance or design.null_deviation(values) <= 0:
        return None
    if design.num_groups > MOST_GROUPS:
        return _by_normal_law(design, values, alpha)
    many = math.ceil(REDRAWS_IN_TAIL / alpha)
    groups = _Groups.of(design)
    planted, tests = groups.drawn(DRAWS, seed=seed), groups.drawn(many, seed=seed + 1)
    sums = np.bincount(design.number, weights=values).astype(np.float64)
    observed, null = groups.differences(sums, planted), groups.differences(sums, tests)
    signs = (planted - 0.5).T * groups.sizes[:, None]  # sums of 1/2 on the first side, -1/2 on the second
    moved = groups.differences(signs, tests)  # by how much the null moves with the effect, (many, DRAWS)
    apart = null[:, None] - observed[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        enough = np.where(moved < 1 - 1e-12, apart / (1 - moved), np.where(apart >= 0, np.inf, -np.inf))
    allowed = math.floor(alpha * (1 + many) * (1 + 1e-12)) - 1  # redraws that may reach the statistic
    needed = np.sort(enough, axis=0)[-1 - allowed]
    effect = float(np.sort(needed)[math.ceil(POWER * DRAWS) - 1])
    return None if math.isinf(effect) else max(0.0, effect)


@dataclass(frozen=True)
class _Groups:
    """Groups of a design, and their numbers of units: `sizes` (num_groups,), and `strata` (num_groups, num_strata)."""

    design: Design
    sizes: NDArray[np.float64]
    strata: scipy.sparse.csr_array

    @classmethod
    def of(cls, design: Design) -> "_Groups":
        own = Design(design.first_of_groups, design.strata_of_groups, np.arange(design.num_groups))
        sizes = design.sizes.astype(np.float64)
        shape = (len(sizes), int(own.stratum.max()) + 1)
        return cls(own, sizes, scipy.sparse.csr_array((sizes, (np.arange(len(sizes)), own.stratum)), shape=shape))

    def drawn(self, count: int, *, seed: int) -> NDArray[np.float64]:
        """Return redrawn first sides, (count, num_groups) of 0 and 1."""
        return np.concatenate([sides.astype(np.float64) for sides in self.design.redraws(count, seed=seed)])

    def differences(self, sums: NDArray[np.float64], sides: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return `Design.difference` of group sums (num_groups, ...) for first sides (num_draws, num_groups)."""
        total = np.asarray(self.strata.sum(axis=0)).ravel()
        members = self.strata.astype(bool).astype(np.float64)
        table = sums.reshape(len(sums), -1)
        means = (members.T @ table) / total[:, None]
        centred = (table - self.sizes[:, None] * means[self.design.stratum]).reshape(sums.shape)
        ours = np.asarray((self.strata.T @ sides.T).T)
        balance = (ours * (1 - ours / total)).sum(axis=1).reshape(-1, *[1] * (sums.ndim - 1))
        found = sides @ centred
        differences: NDArray[np.float64] = np.divide(found, balance, out=np.zeros_like(found), where=balance > 0)
        return differences


def _by_normal_law(design: Design, values: NDArray[np.float64], alpha: float) -> float | None:
    """Return the effect that a test of many groups detects: the null widens with the effect itself."""
    at_null = design.null_deviation(values) / design.balance
    per_effect = design.null_deviation(np.where(design.first, 0.5, -0.5)) / design.balance
    found, allowed = float(scipy.stats.norm.ppf(POWER)), float(scipy.stats.norm.isf(alpha))

    def lacking(effect: float) -> float:
        return found * at_null + allowed * math.hypot(at_null, per_effect * effect) - effect

    most = 100 * (detectable(at_null, alpha) or 0.0)
    return None if lacking(most) > 0 else float(scipy.optimize.brentq(lacking, 0.0, most))
