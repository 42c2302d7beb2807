"""Differences between two sides in how difficult their units are, and scores without what difficulty explains.

Where an owner declares that members were drawn at random, non-members may still be harder, by noisier labels or another
source. Any model then answers members better, whatever it was trained on. The difficulty of a unit is measured by models that
were not trained on it. Two things guard against it together: `difference_p` tests the declaration, and `adjusted` takes away
what difficulty explains, as a test alone misses differences that are large enough to accuse an innocent model.
"""

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.stats.blind import centred_within
from memlib.stats.coins import cuts, ranks_within, statistics
from memlib.stats.multiplicity import largest_p
from memlib.stats.randomization import Design

CONTRADICTED = 0.05  # level of all tests of a declared random draw together
FEWEST_WITHIN = 30  # units of a stratum that is compared, and adjusted, by itself; smaller ones are taken together
MOST_WITHIN = 20  # strata that are compared by themselves, the largest ones


def difference_p(
    values: NDArray[np.floating],
    member: NDArray[np.bool_],
    strata: NDArray[np.int64],
    *,
    redraws: int,
    seed: int,
    given: NDArray[np.bool_] | None = None,
    groups: NDArray[np.int64] | None = None,
) -> float:
    """Test, two-sided and by redraws within strata, if the sides differ in their ranks or at either end of the ranking.

    The statistics are those of `memlib.stats.coins.coin_tests`, of the values and of their negatives, with both signs, so
    that members who vary less than non-members are seen, too; over all units and within each large stratum, so that opposite
    differences of two strata are seen.

    Args:
        values: (num_units,), such as difficulty.
        member, strata, redraws, seed, given: as in `memlib.stats.coins.coin_tests`.
        groups: (num_units,) groups that were drawn as wholes; None: none were.

    Example:
        >>> import numpy as np
        >>> member, values = np.arange(100) % 2 == 0, np.random.default_rng(0).normal(size=100)
        >>> one = np.zeros(100, dtype=int)
        >>> difference_p(values, member, one, redraws=199, seed=0) > 0.05
        True
        >>> difference_p(np.where(member, values / 9, values), member, one, redraws=199, seed=0)  # equal means
        0.005
    """
    ranks = ranks_within(values, strata)
    columns = np.concatenate([_within(ranks, part) for part in _parts(strata)], axis=1)
    design = (
        Design(member, strata, np.arange(len(member)), given=given) if groups is None else Design.of(member, strata, groups)
    )
    sums = np.concatenate([columns[member].sum(axis=0)[None], design.redrawn_sums(columns, redraws, seed=seed)])
    return largest_p(np.concatenate([sums, -sums], axis=1))


def num_statistics(strata: NDArray[np.int64]) -> int:
    """Return the number of statistics of `difference_p`, by which a test of one of them may be adjusted at most.

    Example:
        >>> num_statistics(np.zeros(400, dtype=int))  # the rank, and 10, 20 and 40 of either end
        7
    """
    return sum(1 + 2 * len(cuts(int(part.sum()))) for part in _parts(strata))


def adjusted(
    scores: NDArray[np.floating], difficulty: NDArray[np.floating], strata: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return scores less what difficulty explains, in normal scores (standard normal quantiles of ranks).

    Normal scores are regressed on those of the difficulty and their squares, in each large stratum by itself, and within
    small ones together. Slopes are estimated: a target that is sharper than the models by which difficulty is measured would
    leave a part of it in a plain difference. The sides are not used, so any test of them stays exact.

    Args:
        scores: (num_attacks, num_units).
        difficulty: (num_measures, num_units) or (num_units,), missing (NaN) for units that are taken as of medium difficulty.
        strata: (num_units,).

    Returns:
        (num_attacks, num_units).

    Example:
        >>> import numpy as np
        >>> difficulty = np.random.default_rng(0).normal(size=200)
        >>> left = adjusted((2 * difficulty)[None], difficulty, np.zeros(200, dtype=int))
        >>> float(np.abs(left).max()) < 1e-9
        True
    """
    levels = [_level(measure) for measure in np.atleast_2d(difficulty)]
    terms = np.stack([power for level in levels for power in (level, np.square(level))], axis=1)
    outcomes = np.stack([normal_scores(row) for row in scores], axis=1)
    large = _large(strata)
    rest = ~np.any(large, axis=0) if large else np.ones(len(strata), dtype=bool)
    for part in [*large, rest] if rest.any() else large:
        outcomes[part] = unexplained(outcomes[part], terms[part], strata[part])
    return outcomes.T


def _level(measure: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return normal scores, 0 where missing: (num_units,)."""
    known, level = np.isfinite(measure), np.zeros(len(measure))
    level[known] = normal_scores(measure[known])
    return level


def unexplained(outcomes: NDArray[np.float64], terms: NDArray[np.float64], strata: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return outcomes less their linear regression on terms within strata, around the means of the terms.

    Args:
        outcomes, terms: (num_units, num_outcomes) and (num_units, num_terms).
        strata: (num_units,).

    Example:
        >>> import numpy as np
        >>> unexplained(np.array([[5.0], [7.0]]), np.array([[0.0], [1.0]]), np.zeros(2, dtype=int)).round(6).tolist()
        [[6.0], [6.0]]
    """
    place = np.unique(strata, return_inverse=True)[1]
    slopes = np.linalg.lstsq(centred_within(terms, place), centred_within(outcomes, place), rcond=None)[0]
    left: NDArray[np.float64] = outcomes - (terms - terms.mean(axis=0)) @ slopes
    return left


def _parts(strata: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Return the masks of the units that are compared: all, and those of each of the largest strata."""
    return [np.ones(len(strata), dtype=bool), *_large(strata)][: MOST_WITHIN + 1]


def _large(strata: NDArray[np.int64]) -> list[NDArray[np.bool_]]:
    """Return the masks of strata that stand by themselves, the largest first; none if there is a single stratum."""
    names, counts = np.unique(strata, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return [strata == names[place] for place in order if counts[place] >= FEWEST_WITHIN] if len(names) > 1 else []


def _within(ranks: NDArray[np.float64], part: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the columns of `statistics` of some units and of their negatives; 0 for other units."""
    columns = np.concatenate([statistics(ranks[part]), statistics(-ranks[part])[:, 1:]], axis=1)
    found = np.zeros((len(ranks), columns.shape[1]))
    found[part] = columns
    return found


def normal_scores(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Compute normal quantiles of ranks, with ties at their mean rank: (n,) -> (n,)."""
    scores: NDArray[np.float64] = scipy.stats.norm.ppf((scipy.stats.rankdata(values) - 0.5) / len(values))
    return scores
