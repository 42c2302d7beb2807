"""Empirical lower bounds of epsilon: the least epsilon with which the results of a membership attack are compatible.

The unit is whatever each fair coin, or each independent run, put in or left out: an example, or a person with all her
examples. A bound is about that unit, its delta and its adjacency: coins that put a canary in or leave it out test add/remove
adjacency, coins that choose one of two canaries test replacement. Compare a bound with a claim only where all three agree.

- One run (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, main theorem): num_canaries independent fair coins, one trained
  model, a number of guesses that was fixed before the scores were seen. `one_run_epsilon`, `audit_one_run`.
- Many runs (Nasr et al. 2021, arXiv 2101.04535; Clopper and Pearson 1934): independent runs with and without the canary.
  `split_epsilon`.
- One run against one trade-off curve (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235): the Gaussian
  curve alone. `gaussian_one_run`. Its epsilon holds only "if Gaussian" and is no bound for any other mechanism.

Every bound stands beside its ceiling, the bound that a perfect attack would have given under the same design.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from memlib.errors import UserError
from memlib.identity import derive_seed

PRECISION = 1e-10  # of epsilons, in nats


@dataclass(frozen=True)
class Bound:
    """A lower bound of epsilon from one run."""

    epsilon: float  #: lower bound of epsilon for one unit (the one of the coins), 0 if no epsilon is refuted.
    ceiling: float  #: the bound if every guess had been right.
    #: guesses, correct: number of guesses, and of right ones, for the number of guesses that gives the largest bound.
    guesses: int
    correct: int
    level: float  #: probability with which the bound may be wrong.
    num_canaries: int  #: number of coins, those without a guess included.
    delta: float  #: the delta for which epsilon is bounded.
    tried: tuple[int, ...]  #: the numbers of guesses, fixed beforehand, among which the level is divided (Bonferroni).


@dataclass(frozen=True)
class ManyRunsBound:
    """A lower bound of epsilon from many runs."""

    epsilon: float  #: lower bound of epsilon for one unit (the one that the runs differ in), 0 if no epsilon is refuted.
    ceiling: float  #: the bound of an attack that tells all runs apart, by the same procedure.
    #: (num_splits, 4), of the evaluated half of each split: runs with the canary that were guessed to have it and to lack it,
    #: and runs without it that were guessed to have it and to lack it.
    counts: NDArray[np.int64]
    level: float  #: probability with which the bound may be wrong.
    delta: float  #: the delta for which epsilon is bounded.


@dataclass(frozen=True)
class GaussianBound:
    """A lower bound of epsilon from one run that holds if the mechanism's trade-off curve is a Gaussian mechanism's."""

    #: epsilon of the Gaussian mechanism at `noise` and `delta`; never comparable with an epsilon of another curve.
    epsilon: float
    ceiling: float  #: the bound if every guess had been right.
    noise: float  #: the noise above which every Gaussian mechanism is refuted, in units of the sensitivity; inf if none is.
    guesses: int  #: guesses, correct: number of guesses and of right ones.
    correct: int
    level: float  #: probability with which the bound may be wrong.
    num_canaries: int  #: number of coins, those without a guess included.
    delta: float  #: the delta at which the curve is converted to epsilon.


@dataclass(frozen=True)
class ClaimTest:
    """The test of "the mechanism is (claimed epsilon, delta)-private"."""

    p_value: float  #: at most the bound's level exactly where the bound reaches the claim.
    smallest_p: float  #: the p-value of a perfect attack; where it is above the level, the design cannot test the claim.


def one_run_p(correct: int, guesses: int, num_canaries: int, *, epsilon: float, delta: float = 0.0) -> float:
    """Compute the p-value of "the training was (epsilon, delta)-private" from the guesses about one run.

    p = P[B >= v] + 2 m delta max_{1 <= i <= v} (P[B >= v - i] - P[B >= v]) / i with B ~ Bin(r, e^epsilon / (1 + e^epsilon)),
    v of r guesses right, m coins (Steinke 2023, main theorem).

    Args:
        correct, guesses: v and r; r must have been fixed before the scores were seen.
        num_canaries: m, number of independent fair coins, those without a guess included.
        epsilon, delta: the claim, for one unit.

    Example:
        >>> one_run_p(10, 10, 10, epsilon=0.0)  # ten of ten by luck: 2^-10
        0.0009765625
        >>> round(one_run_p(10, 10, 10, epsilon=0.0, delta=0.01), 4)  # + .2 * P[5 <= B <= 9] / 5
        0.0285
    """
    assert 0 <= correct <= guesses <= num_canaries, (correct, guesses, num_canaries)
    at_least = float(_at_least(np.array([correct]), guesses, epsilon)[0])
    if delta == 0 or correct == 0:
        return min(1.0, at_least)
    steps = np.arange(1, _farthest(correct, guesses, epsilon) + 1)
    averages = (_at_least(correct - steps, guesses, epsilon) - at_least) / steps
    return min(1.0, at_least + 2 * num_canaries * delta * float(averages.max()))


def one_run_epsilon(correct: int, guesses: int, num_canaries: int, *, delta: float, level: float) -> float:
    """Compute the largest epsilon that the guesses about one run refute, 0 if none (Steinke 2023, main theorem).

    Args:
        correct, guesses: numbers of right guesses and of all; the latter must have been fixed before the scores were seen.
        num_canaries: number of independent fair coins, those without a guess included.
        delta: the delta for which epsilon is bounded, for one unit.
        level: probability with which the bound may be wrong.

    Example:
        >>> round(one_run_epsilon(65, 65, 1000, delta=1e-5, level=0.05), 3)
        3.026
        >>> one_run_epsilon(33, 65, 1000, delta=1e-5, level=0.05)
        0.0
    """
    _check(delta, level)
    return _largest(lambda epsilon: one_run_p(correct, guesses, num_canaries, epsilon=epsilon, delta=delta) <= level)


def one_run_ceiling(guesses: int, num_canaries: int, *, delta: float, level: float) -> float:
    """Compute the bound of `one_run_epsilon` if every guess were right.

    Example:
        >>> [round(one_run_ceiling(r, 1000, delta=0.0, level=0.05), 2) for r in (10, 100, 1000)]
        [1.05, 3.49, 5.81]
    """
    return one_run_epsilon(guesses, guesses, num_canaries, delta=delta, level=level)


def correct_guesses(scores: ArrayLike, inside: ArrayLike, *, guesses: Sequence[int], seed: int) -> tuple[int, ...]:
    """Count the right guesses for each number of guesses, half of which are "in" (the top scores) and half "out".

    Of an odd number, one more is "in". Equal scores are ordered by lot, so that the order of the rows, which may follow the
    membership, decides nothing.

    Args:
        scores: (num_canaries,) scores of a membership attack, high for "in".
        inside: (num_canaries,) bool, the coins.

    Example:
        >>> correct_guesses([3.0, 2.0, 1.0, 0.0], [True, False, True, False], guesses=(2, 4), seed=0)
        (2, 2)
    """
    values, coins = _scores(scores, "scores"), np.asarray(inside, dtype=bool)
    _check_guesses(guesses, len(values))
    if coins.shape != values.shape:
        raise UserError(f"{len(values)} scores but {coins.size} coins; give one coin for each score")
    lots = np.random.default_rng(derive_seed(seed, "epsilon", "ties")).permutation(len(values))
    from_top = coins[np.lexsort((lots, -values))]
    return tuple(_correct(from_top, number) for number in guesses)


def correct_in_pairs(
    scores: ArrayLike, inside: ArrayLike, strata: ArrayLike, *, guesses: Sequence[int], seed: int
) -> tuple[int, ...]:
    """Count the right guesses for each number of guesses, which come in pairs within strata.

    Of the two canaries of a pair, the one with the higher score is guessed "in", the other one "out". A stratum's highest
    score is paired with its lowest, the second highest with the second lowest, and so on; pairs are taken by the
    difference of their scores, the largest first. A canary without a partner is never guessed. As many "in" as "out" are
    guessed in every stratum: coins whose rate depends on the stratum, as in an ordinary stratified hold-out, give more
    than half of the guesses right no more often than fair ones do (Hoeffding 1956), where guesses over all canaries would
    count the strata as memory.

    Args:
        scores, inside: as for `correct_guesses`.
        strata: (num_canaries,) stratum of each canary, such as its class.
        guesses: even numbers, at most `most_in_pairs`.

    Example:
        >>> scores, inside = [3.0, 2.0, 1.0, 0.0], [True, True, False, False]  # the strata alone decide who is in
        >>> correct_guesses(scores, inside, guesses=(4,), seed=0)
        (4,)
        >>> correct_in_pairs(scores, inside, [0, 0, 1, 1], guesses=(4,), seed=0)
        (2,)
    """
    values, coins, groups = _scores(scores, "scores"), np.asarray(inside, dtype=bool), np.asarray(strata)
    _check_guesses(guesses, most_in_pairs(groups))
    if any(number % 2 for number in guesses):
        raise UserError(f"guesses come in pairs, but {tuple(guesses)} holds an odd number; give even ones")
    if not coins.shape == values.shape == groups.shape:
        raise UserError(f"{len(values)} scores, {coins.size} coins and {groups.size} strata; give one of each for a canary")
    lots = np.random.default_rng(derive_seed(seed, "epsilon", "ties")).permutation(len(values))
    tops, bottoms = [], []
    for group in np.unique(groups):
        here = np.flatnonzero(groups == group)
        order = here[np.lexsort((lots[here], -values[here]))]
        tops.append(order[: len(order) // 2])
        bottoms.append(order[::-1][: len(order) // 2])
    top, bottom = np.concatenate(tops), np.concatenate(bottoms)
    widest = np.lexsort((lots[top], values[bottom] - values[top]))
    right = np.cumsum(coins[top][widest].astype(np.int64) + ~coins[bottom][widest])
    return tuple(int(right[number // 2 - 1]) if number else 0 for number in guesses)


def most_in_pairs(strata: ArrayLike) -> int:
    """Return the largest number of guesses in pairs within strata.

    Example:
        >>> most_in_pairs([0, 0, 0, 1, 2, 2])  # of three in a stratum two are paired
        4
    """
    sizes = np.unique(np.asarray(strata), return_counts=True)[1]
    return int(2 * (sizes // 2).sum())


def audit_one_run(
    scores: ArrayLike,
    inside: ArrayLike,
    *,
    guesses: Sequence[int],
    delta: float,
    level: float,
    seed: int,
    strata: ArrayLike | None = None,
) -> Bound:
    """Bound epsilon from the scores of one run, the level being divided among the numbers of guesses (Bonferroni).

    Valid only if each canary was put in by an independent fair coin and the attack knew none of the coins (Steinke 2023,
    Algorithm 1); reference models must have coins of their own, independent of these.

    Args:
        scores: (num_canaries,) scores of a membership attack, high for "in".
        inside: (num_canaries,) bool, the coins.
        guesses: the numbers of guesses to try, fixed before the scores were seen.
        delta: the delta for which epsilon is bounded, for one unit.
        level: probability with which the bound may be wrong.
        seed: seed of the order of equal scores.
        strata: strata within which guesses are paired, see `correct_in_pairs`; the bound then also holds for independent
            coins whose rates differ between strata. None: all canaries are ranked together.

    Example:
        >>> import numpy as np
        >>> coins = np.arange(100) % 2 == 0
        >>> bound = audit_one_run(coins * 1.0, coins, guesses=(50, 100), delta=0.0, level=0.05, seed=0)
        >>> bound.guesses, bound.correct, round(bound.epsilon, 2), bound.epsilon == bound.ceiling  # alpha / 2 for each number
        (100, 100, 3.28, True)
    """
    _check(delta, level)
    tried, share = tuple(guesses), level / max(1, len(guesses))
    if strata is None:
        correct = correct_guesses(scores, inside, guesses=tried, seed=seed)
    else:
        correct = correct_in_pairs(scores, inside, strata, guesses=tried, seed=seed)
    num_canaries = np.size(scores)

    def strength(pair: tuple[int, int]) -> tuple[float, float]:
        v, r = pair
        bound = one_run_epsilon(v, r, num_canaries, delta=delta, level=share)
        return bound, -one_run_p(v, r, num_canaries, epsilon=0.0, delta=delta)

    best = max(zip(correct, tried, strict=True), key=strength)
    ceiling = max(one_run_ceiling(number, num_canaries, delta=delta, level=share) for number in tried)
    return Bound(strength(best)[0], ceiling, best[1], best[0], level, num_canaries, delta, tried)


def split_epsilon(
    in_scores: ArrayLike, out_scores: ArrayLike, *, delta: float, level: float, seed: int, splits: int = 100
) -> ManyRunsBound:
    """Bound epsilon from the scores of independent runs, the threshold being chosen on one half and evaluated on the other.

    Of several splits the upper median of the bounds at level / 2 counts: if each is wrong with probability at most level / 2,
    half of them are with probability at most level (Markov). The median does not hang on the luck of one split.

    Args:
        in_scores: (num_in,) scores of the runs with the canary, high for "in"; at least 2.
        out_scores: (num_out,) scores of the runs without it; at least 2.
        delta: the delta for which epsilon is bounded, for one unit.
        level: probability with which the bound may be wrong.
        splits: number of random halvings; a single one has the whole level.

    Example:
        >>> import numpy as np
        >>> bound = split_epsilon(np.ones(1000), np.zeros(1000), delta=0.0, level=0.05, seed=0)
        >>> round(bound.epsilon, 2), bound.epsilon == bound.ceiling  # 500 + 500 runs at .025
        (4.73, True)
    """
    _check(delta, level)
    assert splits > 0, splits
    positives, negatives = _scores(in_scores, "in_scores", 2), _scores(out_scores, "out_scores", 2)
    share = level / _markov(splits)
    table = _splits(positives, negatives, splits, delta=delta, level=share, seed=seed)
    epsilon = _upper_median(_log_ratios(table, delta=delta, level=share))
    perfect = _perfect(*(len(scores) - len(scores) // 2 for scores in (positives, negatives)))
    ceiling = float(_log_ratios(perfect, delta=delta, level=share)[0])
    return ManyRunsBound(max(0.0, epsilon), max(0.0, ceiling), table, level, delta)


def exceeds(bound: Bound, claimed: float) -> ClaimTest:
    """Test an owner's claim "the mechanism is (claimed, delta)-private" with the delta of the bound.

    The p-value is at most the bound's level exactly where the bound reaches the claim. The caller must check that the claim
    is about the same unit, delta and adjacency as the bound.

    Args:
        bound: a bound of `audit_one_run`.
        claimed: the claimed epsilon, for one unit.

    Example:
        >>> import numpy as np
        >>> coins = np.arange(100) % 2 == 0
        >>> bound = audit_one_run(coins * 1.0, coins, guesses=(100,), delta=0.0, level=0.05, seed=0)
        >>> round(exceeds(bound, claimed=2.0).p_value, 9), exceeds(bound, claimed=4.0).p_value > 0.05  # (1 + e^-2)^-100
        (3.073e-06, True)
    """
    if not claimed >= 0:
        raise UserError(f"the claimed epsilon is {claimed}; give a number of at least 0")

    def p_value(correct: int, guesses: int) -> float:
        p = one_run_p(correct, guesses, bound.num_canaries, epsilon=claimed, delta=bound.delta)
        return min(1.0, len(bound.tried) * p)

    return ClaimTest(p_value(bound.correct, bound.guesses), min(p_value(number, number) for number in bound.tried))


def per_record(epsilon: float, largest_number_of_records: int, *, delta: float = 0.0) -> float | None:
    """Convert a bound for persons to one for records: epsilon for a record means k epsilon for k of them (Dwork 2006).

    Args:
        epsilon: lower bound of epsilon for a person.
        largest_number_of_records: the largest number of records of any person with a coin, k.
        delta: the delta of the bound.

    Returns:
        epsilon / k; None for a positive delta and k > 1, where group privacy changes delta with epsilon and the bound for
        persons cannot be compared with a claim for records.

    Example:
        >>> per_record(3.0, 6), per_record(3.0, 6, delta=1e-5)
        (0.5, None)
    """
    if largest_number_of_records < 1:
        raise UserError(f"the largest number of records is {largest_number_of_records}; give a number of at least 1")
    return None if delta > 0 and largest_number_of_records > 1 else epsilon / largest_number_of_records


def gaussian_epsilon(noise: float, *, delta: float) -> float:
    """Compute epsilon of the Gaussian mechanism: delta = Phi(1/(2s) - s eps) - e^eps Phi(-1/(2s) - s eps) (Balle, Wang 2018).

    Args:
        noise: standard deviation of the noise in units of the sensitivity, s; inf gives 0.
        delta: delta in (0, 1).

    Example:
        >>> round(gaussian_epsilon(1.0, delta=1e-5), 4)
        4.3772
    """
    if not 0 < delta < 1:
        raise UserError(f"delta is {delta}; a Gaussian mechanism has a finite epsilon only for delta between 0 and 1")
    return 0.0 if math.isinf(noise) else _largest(lambda epsilon: _gaussian_delta(noise, epsilon) > delta)


def refutes_gaussian(correct: int, guesses: int, num_canaries: int, *, noise: float, level: float) -> bool:
    """Test "the trade-off curve is at least as private as a Gaussian mechanism's" from the guesses about one run.

    From r = level v / m and h = level (g - v) / m, for i = v - 1, ..., 0: h' = max(h, Phi(Phi^-1(r) - 1 / noise)),
    r' = r + i / (g - i) (h' - h); refuted if r + h exceeds g / m (Mahloujifar 2024, with abstention; two outcomes of a coin).

    Args:
        correct, guesses: v and g; g must have been fixed before the scores were seen.
        num_canaries: m, number of independent fair coins, those without a guess included.
        noise: standard deviation of the noise in units of the sensitivity.
        level: probability with which a true curve is refuted, at most.

    Example:
        >>> [refutes_gaussian(65, 65, 1000, noise=noise, level=0.05) for noise in (0.9, 1.0)]
        [False, True]
    """
    assert 0 <= correct <= guesses <= num_canaries, (correct, guesses, num_canaries)
    assert noise > 0, noise
    r, h, whole = level * correct / num_canaries, level * (guesses - correct) / num_canaries, guesses / num_canaries
    for i in range(correct - 1, -1, -1):
        nearer = float(scipy.special.ndtr(float(scipy.special.ndtri(r)) - 1 / noise))
        if nearer <= h or r + h > whole:  # neither changes any more, or both only grow
            break
        r, h = min(1.0, r + i / (guesses - i) * (nearer - h)), nearer
    return r + h > whole


def gaussian_one_run(correct: int, guesses: int, num_canaries: int, *, delta: float, level: float) -> GaussianBound:
    """Bound the noise of a Gaussian mechanism from the guesses about one run, and convert it to epsilon (Mahloujifar 2024).

    The epsilon holds if the mechanism's curve is Gaussian; against any other curve, test that curve instead. If the number of
    guesses was picked among k, give level / k.

    Args:
        correct, guesses: numbers of right guesses and of all; the latter must have been fixed before the scores were seen.
        num_canaries: number of independent fair coins, those without a guess included.
        delta: the delta at which the curve is converted.
        level: probability with which the bound may be wrong.

    Example:
        >>> bound = gaussian_one_run(65, 65, 1000, delta=1e-5, level=0.05)
        >>> round(bound.epsilon, 2), round(bound.noise, 2)  # 3.03 without the assumption
        (4.6, 0.96)
    """
    _check(delta, level)
    noise = _refuted_noise(correct, guesses, num_canaries, level=level)
    epsilon = gaussian_epsilon(noise, delta=delta)
    if correct < guesses:
        ceiling = gaussian_epsilon(_refuted_noise(guesses, guesses, num_canaries, level=level), delta=delta)
    else:
        ceiling = epsilon
    return GaussianBound(epsilon, ceiling, noise, guesses, correct, level, num_canaries, delta)


def _check(delta: float, level: float) -> None:
    if not 0 <= delta < 1:
        raise UserError(f"delta is {delta}; give a number of at least 0 and below 1")
    if not 0 < level < 0.5:
        raise UserError(f"the level is {level}; give the probability of a wrong bound, between 0 and 0.5")


def _check_guesses(guesses: Sequence[int], num_canaries: int) -> None:
    if not guesses or len(set(guesses)) < len(guesses) or not all(0 < number <= num_canaries for number in guesses):
        raise UserError(
            f"guesses are {tuple(guesses)}; give distinct numbers from 1 to the number of canaries ({num_canaries})"
        )


def _scores(values: ArrayLike, name: str, least: int = 1) -> NDArray[np.float64]:
    """Return scores as (num_scores,), none of them NaN."""
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or len(scores) < least or np.isnan(scores).any():
        raise UserError(
            f"{name}: shape {scores.shape}, {int(np.isnan(scores).sum())} NaN; give a list of at least {least} without NaN"
        )
    return scores


def _correct(from_top: NDArray[np.bool_], number: int) -> int:
    """Count the right guesses when the top half of `number` guesses (rounded up) is "in" and the bottom half "out".

    Args:
        from_top: the coins, in order of decreasing score.
    """
    outs = number // 2
    return int(from_top[: number - outs].sum()) + int((~from_top[len(from_top) - outs :]).sum())


def _at_least(least: NDArray[np.integer], guesses: int, epsilon: float) -> NDArray[np.float64]:
    """Return P[Bin(guesses, e^epsilon / (1 + e^epsilon)) >= least], elementwise."""
    some = np.maximum(least, 1)
    tails = scipy.special.betainc(some, guesses - some + 1, scipy.special.expit(epsilon))
    return np.where(least <= 0, 1.0, tails)


def _farthest(correct: int, guesses: int, epsilon: float) -> int:
    """Return a number of steps below `correct` beyond which the averages of the binomial probabilities only fall.

    An average over growing steps falls once the next probability is below it. The probabilities have one mode, and far below
    the mean they are below 1e-20 (Bernstein), less than any average of interest.
    """
    q = float(scipy.special.expit(epsilon))
    lowest = guesses * q - 10 * math.sqrt(guesses * q * (1 - q)) - 40
    return min(correct, max(1, correct - math.floor(lowest)))


def _largest(holds: Callable[[float], bool]) -> float:
    """Return the upper end of the interval from 0 on in which a condition holds, rounded down; 0 if it does not hold at 0."""
    if not holds(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, 2 * high
    while high - low > PRECISION * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _perfect(positives: int, negatives: int) -> NDArray[np.int64]:
    return np.array([[positives, 0, 0, negatives]])


def _counted(
    positives: NDArray[np.float64], negatives: NDArray[np.float64], thresholds: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the counts at each threshold, (num_thresholds, 4) as in `ManyRunsBound`; a score at the threshold is "in"."""
    fn, tn = (np.searchsorted(np.sort(scores), thresholds, side="left") for scores in (positives, negatives))
    return np.stack([len(positives) - fn, fn, len(negatives) - tn, tn], axis=1).astype(np.int64)


def _upper(hits: NDArray[np.integer], count: NDArray[np.integer], tail: ArrayLike) -> NDArray[np.float64]:
    """Return Clopper and Pearson's upper limits of proportions (1 without units), each wrong with probability `tail`."""
    missed = np.maximum(count - hits, 1)
    limits = scipy.special.betainccinv(hits + 1, missed, tail)  # precise for the smallest tails, too
    return np.where(hits < count, limits, 1.0)


def _log_ratio(share: NDArray[np.float64], other: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Return ln((share - delta) / other), -inf where the share does not exceed delta."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(share > delta, np.log(np.maximum(share - delta, 0)) - np.log(other), -np.inf)


def _log_ratios(table: NDArray[np.int64], *, delta: float, level: ArrayLike) -> NDArray[np.float64]:
    """Return the larger lower bound of the two directions for each row of counts, possibly negative: (num_counts,)."""
    tail = np.asarray(level) / 2
    missed = _upper(table[:, 1], table[:, :2].sum(axis=1), tail)  # upper limits of both error rates
    alarms = _upper(table[:, 2], table[:, 2:].sum(axis=1), tail)
    return _ratios(missed, alarms, delta)


def _ratios(missed: NDArray[np.float64], alarms: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """Return the larger bound of the two directions from upper limits of the error rates."""
    return np.maximum(_log_ratio(1 - missed, alarms, delta), _log_ratio(1 - alarms, missed, delta))


def _splits(
    positives: NDArray[np.float64], negatives: NDArray[np.float64], splits: int, *, delta: float, level: float, seed: int
) -> NDArray[np.int64]:
    """Return for each split the counts on one half at the threshold with the largest bound on the other: (splits, 4)."""
    rng = np.random.default_rng(derive_seed(seed, "epsilon", "halves"))
    half_in, half_out = len(positives) // 2, len(negatives) // 2
    missed, alarms = (_upper(np.arange(half + 1), np.array(half), level / 2) for half in (half_in, half_out))
    tables = []
    for _ in range(splits):
        ins, outs = rng.permutation(positives), rng.permutation(negatives)
        thresholds = np.concatenate([ins[:half_in], outs[:half_out]])
        counted = _counted(ins[:half_in], outs[:half_out], thresholds)
        chosen = _ratios(missed[counted[:, 1]], alarms[counted[:, 2]], delta).argmax()
        tables.append(_counted(ins[half_in:], outs[half_out:], thresholds[chosen : chosen + 1]))
    return np.concatenate(tables)


def _markov(splits: int) -> int:
    """Return the factor by which the median over splits divides the level."""
    return 1 if splits == 1 else 2


def _upper_median(values: NDArray[np.float64]) -> float:
    """Return the largest value that at least half of the values reach."""
    return float(np.sort(values)[len(values) // 2])


def _gaussian_delta(noise: float, epsilon: float) -> float:
    """Return delta of the Gaussian mechanism at epsilon."""
    centre, spread = 1 / (2 * noise), noise * epsilon
    over = float(scipy.special.log_ndtr(-spread - centre)) + epsilon
    return float(scipy.special.ndtr(centre - spread)) - math.exp(min(over, 0.0))


def _refuted_noise(correct: int, guesses: int, num_canaries: int, *, level: float) -> float:
    """Return the noise above which every Gaussian mechanism is refuted, inf if none is."""

    def is_refuted(shift: float) -> bool:
        noise = 1 / shift if shift else math.inf
        return refutes_gaussian(correct, guesses, num_canaries, noise=noise, level=level)

    shift = _largest(is_refuted)
    return 1 / shift if shift else math.inf
