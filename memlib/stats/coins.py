"""Tests of the coins that decided membership: given a target's scores, its coins are redrawn.

The null hypothesis is that the target's outputs do not depend on the coins. Independent fair coins are, given the number of
members of each stratum, a random draw of that number, so redraws within strata are exact (Fisher 1935).

Two kinds of memory are looked for, since a test of one misses the other: a small shift of all members, seen by the AUC, and a
few strongly memorized members, seen only at the top of the ranking. For the latter, the numbers of members among the 10, 20,
40, ... highest scores are compared with what is expected, up to a tenth of the units. It is a higher criticism (Donoho and
Jin 2004) over a coarse grid of cuts: one fixed cut would dilute memory that is rarer and miss part of memory that is more
frequent.

All statistics depend on the order of the scores alone. RMIA's ranking is that of its ratio, so the ratio can be tested, and
no redraw has to recompute the set of non-members.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.stats.inference import permutation_p
from memlib.stats.multiplicity import critical_deviation, max_t_p
from memlib.stats.operating import auc
from memlib.stats.randomization import Design

FEWEST = 10  # smallest number of highest scores
TOP_SHARE = 0.1  # largest share of the units that counts as the top; the AUC sees what is more frequent


@dataclass(frozen=True)
class CoinTest:
    """The test of one attack's scores of one target."""

    auc: float  #: area under the ROC.
    auc_p: float  #: p-value of the AUC alone.
    tail_p: float  #: p-value of the numbers of members among the highest scores, over all cuts.
    p_value: float  #: p-value of the attack: the AUC and all cuts together, by max-T.
    adjusted_p: float  #: p-value by max-T over all attacks tested together; equals `p_value` for a single attack.
    #: how many standard deviations a statistic must lie above its mean for an adjusted p-value at the level, by the redraws.
    needed: float


def coin_test(
    scores: NDArray[np.floating],
    member: NDArray[np.bool_],
    strata: NDArray[np.int64],
    *,
    redraws: int,
    seed: int,
    given: NDArray[np.bool_] | None = None,
    level: float = 0.05,
) -> CoinTest:
    """Test, by redrawing the coins, if all or a few of the members score higher than non-members.

    Args:
        scores: (num_units,), higher for members.
        member: (num_units,) bool, the coins.
        strata: (num_units,); coins are redrawn within strata, given the number of members of each.
        given: (num_redraws, num_units) bool, redraws of the coins to use instead of random ones, as in `Design`.
        level: level of `needed`.

    Example:
        >>> import numpy as np
        >>> coins = np.random.default_rng(0).integers(0, 2, 200).astype(bool)
        >>> result = coin_test(coins * 1.0, coins, np.zeros(200, dtype=int), redraws=199, seed=0)
        >>> result.auc, result.p_value
        (1.0, 0.005)
    """
    return coin_tests(scores[None], member, strata, redraws=redraws, seed=seed, given=given, level=level)[0]


def coin_tests(
    scores: NDArray[np.floating],
    member: NDArray[np.bool_],
    strata: NDArray[np.int64],
    *,
    redraws: int,
    seed: int,
    given: NDArray[np.bool_] | None = None,
    level: float = 0.05,
) -> list[CoinTest]:
    """Test several attacks on one target under the same redraws, adjusted for their number by max-T.

    Args:
        scores: (num_attacks, num_units).
        member, strata, redraws, seed, given, level: as in `coin_test`.

    Returns:
        the result of each attack, in the order of `scores`.

    Example:
        >>> import numpy as np
        >>> coins = np.random.default_rng(0).integers(0, 2, 200).astype(bool)
        >>> scores = np.stack([coins * 1.0, np.arange(200.0)])
        >>> good, poor = coin_tests(scores, coins, np.zeros(200, dtype=int), redraws=199, seed=0)
        >>> good.adjusted_p, poor.adjusted_p > 0.05
        (0.005, True)
    """
    assert scores.shape[1] == len(member), "one score for each unit"
    design = Design(member, strata, np.arange(len(member)), given=given)
    columns = np.stack([statistics(ranks_within(row, strata)) for row in scores], axis=1)  # (units, attacks, statistics)
    flat = columns.reshape(len(member), -1)
    observed, null = flat[member].sum(axis=0), design.redrawn_sums(flat, redraws, seed=seed)
    adjusted = max_t_p(observed, null).reshape(len(scores), -1).min(axis=1)
    needed = critical_deviation(null, level)
    parts = zip(observed.reshape(len(scores), -1), null.reshape(len(null), len(scores), -1).swapaxes(0, 1), strict=True)
    return [
        CoinTest(
            auc=auc(row, member, blocks=strata),
            auc_p=permutation_p(float(own[0]), redrawn[:, 0]),
            tail_p=float(max_t_p(own[1:], redrawn[:, 1:]).min()),
            p_value=float(max_t_p(own, redrawn).min()),
            adjusted_p=float(p),
            needed=needed,
        )
        for row, (own, redrawn), p in zip(scores, parts, adjusted, strict=True)
    ]


def ranks_within(scores: NDArray[np.floating], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return each unit's rank within its stratum, from 0 to 1, ties averaged.

    Example:
        >>> import numpy as np
        >>> ranks_within(np.array([5.0, 7.0, 1.0, 2.0]), np.array([0, 0, 1, 1])).tolist()
        [0.25, 0.75, 0.25, 0.75]
    """
    ranks = np.empty(len(scores))
    for stratum in np.unique(strata):
        here = strata == stratum
        ranks[here] = (scipy.stats.rankdata(scores[here]) - 0.5) / here.sum()
    return ranks


def smallest_p(member: NDArray[np.bool_], strata: NDArray[np.int64]) -> float:
    """Return the smallest p-value that any scores could have: one in the number of equally likely draws within strata.

    Example:
        >>> import numpy as np
        >>> smallest_p(np.array([True, False, True, False]), np.array([0, 0, 1, 1]))
        0.25
    """
    sizes, inside = np.bincount(strata), np.bincount(strata, weights=member)
    draws = scipy.special.gammaln(sizes + 1) - scipy.special.gammaln(inside + 1) - scipy.special.gammaln(sizes - inside + 1)
    return float(np.exp(-min(700.0, float(draws.sum()))))


def counts_p(member: NDArray[np.bool_], strata: NDArray[np.int64], rate: float, *, draws: int, seed: int) -> float:
    """Test, two-sided, if the numbers of members of all strata are those of independent coins.

    The statistic is the sum over strata of the squared standardized numbers: large where the rate differs between strata,
    small where the numbers are too even, as in a stratified split, which is no toss of coins.

    Args:
        member, strata: as in `coin_test`.
        rate: probability of each coin.
        draws: number of simulated tosses of all coins.

    Example:
        >>> import numpy as np
        >>> strata = np.repeat(np.arange(50), 4)
        >>> fair = np.random.default_rng(0).random(200) < 0.5
        >>> even = np.arange(200) % 2 == 0  # two of four in every stratum
        >>> [counts_p(coins, strata, 0.5, draws=999, seed=0) <= 0.01 for coins in (fair, even)]
        [False, True]
    """
    sizes = np.unique(strata, return_counts=True)[1]
    found = np.bincount(np.unique(strata, return_inverse=True)[1], weights=member)
    tossed = np.random.default_rng(seed).binomial(sizes, rate, size=(draws, len(sizes)))
    spread = sizes * rate * (1 - rate)
    observed = float((np.square(found - sizes * rate) / spread).sum())
    null = (np.square(tossed - sizes * rate) / spread).sum(axis=1)
    slack = 1e-9 * max(1.0, observed)
    return min(1.0, 2 * min(permutation_p(observed - slack, null), permutation_p(-observed - slack, -null)))


def statistics(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return each unit's share in the statistics, which are sums over members: the rank, then a column for each cut.

    Args:
        scores: (num_units,).

    Returns:
        (num_units, 1 + num_cuts); ranks from 0 to 1, and 1 for units above the cut, else 0. Units tied at a cut have equal
        parts of the remaining places.

    Example:
        >>> import numpy as np
        >>> statistics(np.array([0.1, 0.9, 0.5, 0.5])).tolist()  # a single cut, at half of four units
        [[0.25, 0.0], [1.0, 1.0], [0.625, 0.5], [0.625, 0.5]]
    """
    count = len(scores)
    tops = [_top(scores, size) for size in cuts(count)]
    return np.stack([scipy.stats.rankdata(scores) / count, *tops], axis=1)


def cuts(count: int) -> list[int]:
    """Return the numbers of highest scores that are looked at: 10, 20, 40, ... up to a tenth of `count` units.

    Example:
        >>> cuts(1000), cuts(60), cuts(4)
        ([10, 20, 40, 80], [10], [2])
    """
    sizes = [max(1, min(FEWEST, count // 2))]
    while 2 * sizes[-1] <= TOP_SHARE * count:
        sizes.append(2 * sizes[-1])
    return sizes


def _top(scores: NDArray[np.floating], size: int) -> NDArray[np.float64]:
    """Return 1 for the `size` highest scores, equal parts for those tied at the cut, and 0 for others."""
    cut = np.partition(scores, len(scores) - size)[len(scores) - size]
    above, tied = scores > cut, scores == cut
    parts: NDArray[np.float64] = above + tied * (size - above.sum()) / tied.sum()
    return parts


def all_targets_p(p_values: Sequence[float]) -> float:
    """Combine p-values with any dependence, as those of models that were each the target once: twice their mean, at most 1.

    The bound cannot be improved without an assumption on the dependence (Rueschendorf 1982).

    Args:
        p_values: (num_targets,).

    Example:
        >>> all_targets_p([0.01, 0.03])
        0.04
    """
    return min(1.0, 2 * float(np.mean(p_values)))
