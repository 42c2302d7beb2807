"""The trace that training on D_Q leaves, tested by redrawing D_Q.

D_Q is drawn at random from a pool U of the provider's examples; no model is trained on H, the withheld examples of U. If the
target has not used D_Q, its outputs do not depend on which examples of U were drawn, and every draw is as likely as the
actual one. So the level holds for any outputs, however the target was trained: for more epochs, at another temperature, on
more data, with another architecture. The choice of the statistic affects only the power.

The statistic compares the target with models that saw none of U. Let phi be the log odds of the true class (logit-scaled
confidence; Carlini et al. 2022). The normal scores of the ranks of the target's phi on U are regressed on those of the mean
phi of the unseen models; residuals count more where unseen models are unsure, as training moves hard examples most. The
residuals, centred by class and summed over D_Q, are compared with redraws of D_Q and H. Ranks make the statistic blind to
temperature and to any other monotone change of confidence. Query models do not enter: they would make D_Q look easy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.specs.data import KNOWN, QUERY, WITHHELD
from memlib.specs.level import ERROR
from memlib.stats.difficulty import normal_scores
from memlib.stats.randomization import Design, detectable, two_sided_p

DEGREE = 3  # degree of the polynomial that predicts the target's scores
HARDNESS = 0.5  # exponent of the weight that favours examples about which unseen models are unsure
FOUND = 0.8  # share of redraws in which the positive control must be found, and of retained models that must be found
RARE = 1e-12  # probability of a different decision by other redraws that is as good as none
FEWEST_RETAINED = 10  # models from which the strongest trace that training data leave is known


@dataclass(frozen=True)
class Pool:
    """The examples of U, in the order of all outputs."""

    roles: NDArray[np.str_]  #: (num_pool,) query, known or withheld.
    labels: NDArray[np.int64]  #: (num_pool,) classes.
    groups: NDArray[np.int64]  #: (num_pool,) group numbers; examples of one group were drawn together.

    @property
    def query(self) -> NDArray[np.bool_]:
        """Mask of the examples of D_Q: (num_pool,)."""
        return np.asarray(self.roles == QUERY)

    def has(self, role: str) -> bool:
        """Return whether any example has the role."""
        return bool((self.roles == role).any())

    def count(self, role: str) -> int:
        """Count the examples that have the role."""
        return int((self.roles == role).sum())

    def against_withheld(self, role: str) -> tuple[NDArray[np.int64], Design]:
        """Return the rows of a role and of the withheld examples, and the design that drew the role among both."""
        rows = np.flatnonzero((self.roles == role) | (self.roles == WITHHELD))
        return rows, Design.of(self.roles[rows] == role, self.labels[rows], self.groups[rows])


def residuals(odds: NDArray[np.float64], unseen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute how much higher the target ranks each example of U than models that saw none of U predict.

    The regression is fitted on all of U, without knowledge of which examples are in D_Q.

    Args:
        odds: (num_pool,) the target's log odds of the true class.
        unseen: (num_models, num_pool) log odds of models that saw none of U.

    Returns:
        (num_pool,) weighted residuals; all 0 for constant outputs.
    """
    expected = normal_scores(unseen.mean(axis=0))
    if np.ptp(odds) == 0:
        return np.zeros(len(odds))
    terms = np.vander(expected, DEGREE + 1)
    scores = normal_scores(odds)
    fitted = terms @ np.linalg.lstsq(terms, scores, rcond=None)[0]
    weighted: NDArray[np.float64] = np.exp(-HARDNESS * expected) * (scores - fitted)
    return weighted


@dataclass(frozen=True)
class Trace:
    """The trace of D_Q in a target."""

    effect: float  #: class-adjusted mean residual of D_Q minus that of the withheld examples.
    deviation: float  #: standard deviation of the effect under redraws of D_Q.
    p_value: float  #: two-sided, by redraws.
    smallest_p: float  #: smallest p-value that any outputs could give.
    low: float  #: low, high: 95 % interval of the effect over examples.
    high: float
    upper: float  #: one-sided 95 % upper bound of the effect.

    def detectable(self, alpha: float) -> float | None:
        """Return the smallest effect that the test detects at level `alpha` with a power of 80 %; None if it detects none."""
        return detectable(self.deviation, alpha, two_sided=True)


def find_trace(values: NDArray[np.float64], pool: Pool, *, permutations: int, seed: int, error: float = ERROR) -> Trace:
    """Test whether the examples of D_Q leave a trace.

    Args:
        values: (num_pool,) residuals, of one model or the mean of a target's models.
        error: probability with which the upper bound may be wrong.
    """
    rows, design = pool.against_withheld(QUERY)
    centred = _centred(values[rows], pool.labels[rows])
    scale = _scale(design.first, pool.labels[rows])
    observed = float(centred[design.first].sum())
    p = two_sided_p(observed, design.redrawn_sums(centred, permutations, seed=seed))
    effects = estimate_effects(values, pool)
    effect, deviation = effects.contrast({QUERY: 1.0})
    half, upper = effects.quantile(0.975) * deviation, effect + effects.quantile(1 - error) * deviation
    smallest = 2 * min(design.smallest_p(centred), design.smallest_p(-centred))
    return Trace(
        effect, design.null_deviation(centred) / scale, p, max(smallest, 2 / (1 + permutations)), effect - half,
        effect + half, upper,
    )  # fmt: skip


def count_found(
    values: Sequence[NDArray[np.float64]], pool: Pool, *, permutations: int, seeds: Sequence[int], alpha: float
) -> int:
    """Count the models in which D_Q leaves a trace: those whose p-value by `find_trace` is at most `alpha`.

    The redraws of the first seed are used for all models. Only where a model's own redraws might decide otherwise, with a
    probability of 1e-12 or more, are they made.

    Args:
        values: (num_pool,) residuals of each model.
        seeds: seed of each model's redraws.
        alpha: two-sided level.
    """
    rows, design = pool.against_withheld(QUERY)
    centred = np.stack([_centred(of_model[rows], pool.labels[rows]) for of_model in values], axis=1)
    null = design.redrawn_sums(centred, permutations, seed=seeds[0])
    found = 0
    for of_model, sums, seed in zip(centred.T, null.T, seeds, strict=True):
        observed = float(of_model[design.first].sum())
        p = two_sided_p(observed, sums)
        if _may_differ(p, permutations, alpha):
            p = two_sided_p(observed, design.redrawn_sums(np.ascontiguousarray(of_model), permutations, seed=seed))
        found += p <= alpha
    return found


def _may_differ(p: float, permutations: int, alpha: float) -> bool:
    """Return whether other redraws may well put a p-value on the other side of `alpha`.

    Of the redraws of both kinds that reach the observed sum, given their number, each is of either kind with probability 1/2.
    """
    reached, fewest = round(p * (1 + permutations) / 2) - 1, math.floor(alpha * (1 + permutations) / 2)
    other = fewest if reached < fewest else fewest - 1
    return bool(scipy.stats.binom.cdf(min(reached, other), reached + other, 0.5) >= RARE)


def _centred(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    classes, place = np.unique(labels, return_inverse=True)
    means = np.bincount(place, weights=values, minlength=len(classes)) / np.bincount(place, minlength=len(classes))
    return values - means[place]


def _scale(first: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """Compute the change in the first side's sum of class-centred values per unit difference between the sides."""
    total = 0.0
    for label in np.unique(labels):
        in_class = labels == label
        inside = int((first & in_class).sum())
        total += inside * (int(in_class.sum()) - inside) / int(in_class.sum())
    return max(total, 1e-12)


@dataclass(frozen=True)
class Effects:
    """Effects of the roles on residuals, against withheld examples, adjusted for classes."""

    roles: tuple[str, ...]  #: roles to which the effects belong.
    values: NDArray[np.float64]  #: (num_roles,) effects.
    covariance: NDArray[np.float64]  #: (num_roles, num_roles), over groups of examples.
    freedom: int  #: degrees of freedom of t: groups minus classes and roles; 0 if there are too few groups.

    def contrast(self, weights: Mapping[str, float]) -> tuple[float, float]:
        """Return a weighted sum of effects and its standard error, which is infinite if there are too few groups."""
        w = np.array([weights.get(role, 0.0) for role in self.roles])
        error = math.sqrt(float(w @ self.covariance @ w)) if self.freedom > 0 else math.inf
        return float(w @ self.values), error

    def quantile(self, level: float) -> float:
        """Return a quantile of Student's t distribution with `freedom` degrees of freedom (at least one)."""
        return float(scipy.stats.t.ppf(level, max(1, self.freedom)))


def estimate_effects(values: NDArray[np.float64], pool: Pool) -> Effects:
    """Regress residuals on role and class by least squares, with cluster-robust errors over groups.

    The sandwich of group sums is multiplied by groups / (groups - classes - roles), as each class takes one degree of
    freedom, however many examples its groups have.

    Args:
        values: (num_pool,) residuals.
        pool: the examples of U, including withheld ones.
    """
    roles = tuple(role for role in (QUERY, KNOWN) if pool.has(role))
    outcome = _centred(values, pool.labels)
    terms = np.stack([_centred((pool.roles == role).astype(np.float64), pool.labels) for role in roles], axis=1)
    bread = np.linalg.pinv(terms.T @ terms)
    effects = bread @ terms.T @ outcome
    scores = terms * (outcome - terms @ effects)[:, None]
    numbers = np.unique(pool.groups, return_inverse=True)[1]
    by_group = np.stack([np.bincount(numbers, weights=column) for column in scores.T], axis=1)
    groups = len(by_group)
    freedom = groups - len(np.unique(pool.labels)) - len(roles)
    covariance = bread @ (by_group.T @ by_group) @ bread * (groups / max(1, freedom))
    return Effects(roles, effects, covariance, max(0, freedom))


def share_limit(values: NDArray[np.float64], pool: Pool, *, level: float = 0.95) -> float:
    """Compute a one-sided upper limit of the trace of D_Q as a share of that of the known examples; see `share_interval`."""
    return share_interval(values, pool, level=2 * level - 1)[2]


def share_interval(values: NDArray[np.float64], pool: Pool, *, level: float = 0.95) -> tuple[float, float, float]:
    """Estimate the trace of D_Q as a share of that of the known examples, with an interval over examples.

    The interval inverts tests of "the trace of D_Q is b times that of the known examples" (Fieller 1954). The upper end is
    infinite if it lies above 2, or if a reversed trace (D_Q ranks below withheld examples) refutes every share: in that case
    nothing is bounded. The estimate is NaN if the known examples leave no trace.

    Args:
        values: (num_pool,) residuals.
        pool: the examples of U, including known and withheld ones.
        level: coverage of the interval.

    Returns:
        the estimate, the lower end and the upper end.
    """
    effects = estimate_effects(values, pool)
    known, query = (effects.contrast({role: 1.0})[0] for role in (KNOWN, QUERY))
    estimate = query / known if known > 0 else float("nan")
    quantile, bounds = effects.quantile((1 + level) / 2), []
    for share in np.linspace(0.0, 2.0, 201):
        difference, error = effects.contrast({QUERY: 1.0, KNOWN: -share})
        bounds.append((float(share), difference - quantile * error <= 0, difference + quantile * error >= 0))
    low = next((share for share, reached, _ in bounds if reached), float("inf"))
    high = next((share for share, _, reached in bounds if not reached), float("inf"))
    return estimate, low, high if high > 0 else float("inf")


def power_by_redraws(values: NDArray[np.float64], pool: Pool, *, alpha: float, redraws: int, seed: int) -> float:
    """Compute the share of redraws of the known and withheld examples in which the positive control is found.

    Groups are drawn with replacement from each side; the number of known groups is scaled to the size of D_Q, but not above
    the number that exist.

    Args:
        values: (num_pool,) residuals.
        alpha: two-sided level.
    """
    rows, design = pool.against_withheld(KNOWN)
    centred = _centred(values[rows], pool.labels[rows])
    means = np.bincount(design.number, weights=centred) / design.sizes
    known, withheld = means[design.first_of_groups], means[~design.first_of_groups]
    size = max(2, min(len(known), round(len(known) * pool.count(QUERY) / pool.count(KNOWN))))
    error = float(means.std(ddof=1)) * np.sqrt(1 / size + 1 / len(withheld))
    if error == 0:
        return 0.0
    rng = np.random.default_rng(seed)
    redrawn = [
        side[rng.integers(len(side), size=(redraws, n))].mean(axis=1)
        for side, n in ((known, size), (withheld, len(withheld)))
    ]
    return float((np.abs(redrawn[0] - redrawn[1]) / error >= scipy.stats.norm.isf(alpha / 2)).mean())


def strength_of(
    odds: NDArray[np.float64], unseen: NDArray[np.float64], used: NDArray[np.bool_], withheld: NDArray[np.bool_]
) -> float:
    """Compute how far examples that a model was trained on stand out, in standard deviations of withheld examples.

    Log odds are predicted from the mean of the unseen models by a polynomial that is fitted to the withheld examples. Unlike
    the trace, which is a matter of ranks, the result grows without limit when a model is trained harder on the examples.

    Args:
        odds: (num_pool,) the model's log odds of the true class.
        unseen: (num_models, num_pool) log odds of models that saw none of U.
        used, withheld: (num_pool,) masks of the examples that the model was trained on, and of withheld examples.
    """
    expected = unseen.mean(axis=0)
    terms = np.vander((expected - expected.mean()) / (expected.std() or 1.0), DEGREE + 1)
    left = odds - terms @ np.linalg.lstsq(terms[withheld], odds[withheld], rcond=None)[0]
    spread = float(left[withheld].std()) or 1.0
    return float(left[used].mean() - left[withheld].mean()) / spread


def strongest_trace(strengths: Sequence[float]) -> float | None:
    """Return the largest strength that ordinary training data may have: the retained models' maximum plus their range.

    Stronger known examples were trained on harder than other data (in more epochs, copies or augmented versions), so that
    their trace says nothing about that of D_Q. None for fewer than ten models.

    Args:
        strengths: strength of the examples that each retained model was trained on, see `strength_of`.
    """
    return 2 * max(strengths) - min(strengths) if len(strengths) >= FEWEST_RETAINED else None


def follows(odds: NDArray[np.float64], unseen: NDArray[np.float64], labels: NDArray[np.int64], *, seed: int) -> float:
    """Compute the two-sided p-value of "the scores are unrelated to the examples", by shuffling them within classes.

    The test is two-sided because a model from another domain may find examples hard that others find easy, whereas scores of
    other examples are unrelated.

    Args:
        odds: (num_pool,) the target's log odds.
        unseen: (num_models, num_pool) log odds of models that saw none of U.
        labels: (num_pool,) classes.
    """
    target = _centred(normal_scores(odds), labels)
    others = _centred(normal_scores(unseen.mean(axis=0)), labels)
    rng = np.random.default_rng(seed)
    shuffled = np.empty((999, len(target)))
    for label in np.unique(labels):
        in_class = labels == label
        shuffled[:, in_class] = rng.permuted(np.broadcast_to(target[in_class], (999, int(in_class.sum()))), axis=1)
    observed = abs(float(target @ others))
    return (1 + int((np.abs(shuffled @ others) >= observed - 1e-9).sum())) / 1000
