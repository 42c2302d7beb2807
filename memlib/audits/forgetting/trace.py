"""The trace that training on D_Q leaves, tested by redrawing D_Q.

D_Q is drawn at random from a pool U of the provider's examples; H, the withheld examples of U, is given to nobody. If the
target has not used D_Q, then which examples of U were drawn changes none of its outputs, and every draw is as likely as the
one that was made. So the level holds for any outputs, however the target was trained: for more epochs, at another
temperature, on more data, with another architecture. What the statistic is decides power alone.

The statistic compares the target with models that saw none of U. Let phi be the log odds of the true class (logit-scaled
confidence; Carlini et al. 2022). The normal scores of the ranks of the target's phi on U are regressed on those of the mean
phi of the unseen models; residuals count more where unseen models are unsure, as training moves hard examples most. Summed
over D_Q, centred by class, they are compared with redraws of D_Q and H. Ranks make the statistic blind to temperature and
to any other monotone change of confidence. Query models do not enter: they would make D_Q look easy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.specs.data import KNOWN, QUERY, WITHHELD
from memlib.stats.randomization import Design, detectable, two_sided_p

DEGREE = 3  # of the polynomial that predicts the target's scores
HARDNESS = 0.5  # exponent of the weight of examples that unseen models are unsure of
FOUND = 0.8  # share of redraws in which the positive control must be found


@dataclass(frozen=True)
class Pool:
    """The examples of U, in the order of all outputs.

    Attributes:
        roles: (num_pool,) query, known or withheld.
        labels: (num_pool,) classes.
        groups: (num_pool,) examples that were drawn as one.
    """

    roles: NDArray[np.str_]
    labels: NDArray[np.int64]
    groups: NDArray[np.int64]

    @property
    def query(self) -> NDArray[np.bool_]:
        """(num_pool,) which examples are D_Q's."""
        return np.asarray(self.roles == QUERY)

    def has(self, role: str) -> bool:
        """Whether any example has the role."""
        return bool((self.roles == role).any())

    def count(self, role: str) -> int:
        """How many examples have the role."""
        return int((self.roles == role).sum())

    def against_withheld(self, role: str) -> tuple[NDArray[np.int64], Design]:
        """Rows of a role and of the withheld examples, and the draw of the former among both."""
        rows = np.flatnonzero((self.roles == role) | (self.roles == WITHHELD))
        return rows, Design.of(self.roles[rows] == role, self.labels[rows], self.groups[rows])


def normal_scores(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Normal quantiles of ranks, ties at their mean: (n,) -> (n,)."""
    scores: NDArray[np.float64] = scipy.stats.norm.ppf((scipy.stats.rankdata(values) - 0.5) / len(values))
    return scores


def residuals(odds: NDArray[np.float64], unseen: NDArray[np.float64]) -> NDArray[np.float64]:
    """How much higher the target ranks each example of U than models that saw none of U lead one to expect.

    Fitted on all of U, blind to who is in D_Q.

    Args:
        odds: (num_pool,) the target's log odds of the true class.
        unseen: (num_models, num_pool) those of models that saw none of U.

    Returns:
        (num_pool,) weighted residuals; all 0 for constant outputs.
    """
    expected = normal_scores(unseen.mean(axis=0))
    if np.ptp(odds) == 0:
        return np.zeros(len(odds))
    terms = np.vander(expected, DEGREE + 1)
    scores = normal_scores(odds)
    fitted = terms @ np.linalg.lstsq(terms, scores, rcond=None)[0]
    found: NDArray[np.float64] = np.exp(-HARDNESS * expected) * (scores - fitted)
    return found


@dataclass(frozen=True)
class Trace:
    """What was found of one set of U in a target.

    Attributes:
        effect: class-adjusted mean residual of the set minus that of the withheld examples.
        deviation: of the effect under redraws of the set.
        p_value: two-sided, by redraws.
        smallest_p: no outputs could give a smaller one.
        low, high: 95 % interval of the effect over examples.
        upper: one-sided 95 % upper bound.
    """

    effect: float
    deviation: float
    p_value: float
    smallest_p: float
    low: float
    high: float
    upper: float

    def detectable(self, alpha: float) -> float | None:
        """The effect that is found with a power of 80 %."""
        return detectable(self.deviation, alpha, two_sided=True)


def find_trace(values: NDArray[np.float64], pool: Pool, role: str, *, permutations: int, seed: int) -> Trace:
    """Test whether the examples of a role leave a trace.

    Args:
        values: (num_pool,) residuals, of one model or the mean of a target's models.
        pool: who is who.
        role: query, or known for the positive control.
        permutations: redraws.
        seed: of the redraws.
    """
    rows, design = pool.against_withheld(role)
    centred = _centred(values[rows], pool.labels[rows])
    scale = _scale(design.first, pool.labels[rows])
    observed = float(centred[design.first].sum())
    p = two_sided_p(observed, design.redrawn_sums(centred, permutations, seed=seed))
    effects = estimate_effects(values, pool)
    effect, error = effects.contrast({role: 1.0})
    half, upper = effects.quantile(0.975) * error, effect + effects.quantile(0.95) * error
    smallest = 2 * min(design.smallest_p(centred), design.smallest_p(-centred))
    deviation = design.null_deviation(centred) / scale
    return Trace(effect, deviation, p, max(smallest, 2 / (1 + permutations)), effect - half, effect + half, upper)


def _centred(values: NDArray[np.float64], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    classes, place = np.unique(labels, return_inverse=True)
    means = np.bincount(place, weights=values, minlength=len(classes)) / np.bincount(place, minlength=len(classes))
    return values - means[place]


def _scale(first: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """By how much a difference of 1 moves the sum over the first side of values that are centred by class."""
    total = 0.0
    for label in np.unique(labels):
        mine = labels == label
        inside = int((first & mine).sum())
        total += inside * (int(mine.sum()) - inside) / int(mine.sum())
    return max(total, 1e-12)


@dataclass(frozen=True)
class Effects:
    """Effects of the roles on residuals, against withheld examples, adjusted for classes.

    Attributes:
        roles: whose effects these are.
        values: (num_roles,).
        covariance: (num_roles, num_roles), over groups of examples.
        freedom: degrees of freedom of t: groups minus classes and roles; 0 where there are too few to tell.
    """

    roles: tuple[str, ...]
    values: NDArray[np.float64]
    covariance: NDArray[np.float64]
    freedom: int

    def contrast(self, weights: Mapping[str, float]) -> tuple[float, float]:
        """A weighted sum of effects and its standard error; infinite where too few groups tell."""
        w = np.array([weights.get(role, 0.0) for role in self.roles])
        error = math.sqrt(float(w @ self.covariance @ w)) if self.freedom > 0 else math.inf
        return float(w @ self.values), error

    def quantile(self, level: float) -> float:
        """Student's quantile."""
        return float(scipy.stats.t.ppf(level, max(1, self.freedom)))


def estimate_effects(values: NDArray[np.float64], pool: Pool) -> Effects:
    """Regress residuals on role and class, by least squares; errors are robust to groups that vary as one.

    The sandwich of group sums is multiplied by groups / (groups - classes - roles), as each class takes one degree of
    freedom, however many examples its groups have.

    Args:
        values: (num_pool,) residuals.
        pool: who is who; withheld examples are among them.
    """
    roles = tuple(role for role in (QUERY, KNOWN) if pool.has(role))
    outcome = _centred(values, pool.labels)
    terms = np.stack([_centred((pool.roles == role).astype(np.float64), pool.labels) for role in roles], axis=1)
    bread = np.linalg.pinv(terms.T @ terms)
    found = bread @ terms.T @ outcome
    scores = terms * (outcome - terms @ found)[:, None]
    numbers = np.unique(pool.groups, return_inverse=True)[1]
    by_group = np.stack([np.bincount(numbers, weights=column) for column in scores.T], axis=1)
    groups = len(by_group)
    freedom = groups - len(np.unique(pool.labels)) - len(roles)
    covariance = bread @ (by_group.T @ by_group) @ bread * (groups / max(1, freedom))
    return Effects(roles, found, covariance, max(0, freedom))


def share_left(values: NDArray[np.float64], pool: Pool, *, level: float = 0.95) -> tuple[float, float]:
    """The trace of D_Q as a share of that of the known examples: estimate and one-sided upper limit.

    Args:
        values: (num_pool,) residuals.
        pool: with known and withheld examples.
        level: of the limit.
    """
    estimate, _, high = share_interval(values, pool, level=2 * level - 1)
    return estimate, high


def share_interval(values: NDArray[np.float64], pool: Pool, *, level: float = 0.95) -> tuple[float, float, float]:
    """The trace of D_Q as a share of that of the known examples: estimate, and the ends of an interval over examples.

    The interval inverts tests of "the trace of D_Q is b times that of the known examples" (Fieller 1954). An upper end
    above 2 is infinite, and so it is where a reversed trace (D_Q ranks below withheld examples) refutes every share: then
    nothing is bounded. The estimate is not a number where the known examples leave no trace.

    Args:
        values: (num_pool,) residuals.
        pool: with known and withheld examples.
        level: coverage.
    """
    effects = estimate_effects(values, pool)
    known, query = (effects.contrast({role: 1.0})[0] for role in (KNOWN, QUERY))
    estimate = query / known if known > 0 else float("nan")
    quantile, held = effects.quantile((1 + level) / 2), []
    for share in np.linspace(0.0, 2.0, 201):
        apart, error = effects.contrast({QUERY: 1.0, KNOWN: -share})
        held.append((float(share), apart - quantile * error <= 0, apart + quantile * error >= 0))
    low = next((share for share, reached, _ in held if reached), float("inf"))
    high = next((share for share, _, reached in held if not reached), float("inf"))
    return estimate, low, high if high > 0 else float("inf")


def power_by_redraws(values: NDArray[np.float64], pool: Pool, *, alpha: float, redraws: int, seed: int) -> float:
    """The share of redraws of the known and the withheld examples in which the positive control is found.

    Groups are drawn with replacement from either side, as many known ones as D_Q has.

    Args:
        values: (num_pool,) residuals.
        pool: who is who.
        alpha: two-sided level.
        redraws: how many.
        seed: of the redraws.
    """
    rows, design = pool.against_withheld(KNOWN)
    centred = _centred(values[rows], pool.labels[rows])
    numbers, start = np.unique(design.group, return_index=True)
    means = (
        np.bincount(np.searchsorted(numbers, design.group), weights=centred) / np.unique(design.group, return_counts=True)[1]
    )
    known, withheld = means[design.first[start]], means[~design.first[start]]
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


def follows(odds: NDArray[np.float64], unseen: NDArray[np.float64], labels: NDArray[np.int64], *, seed: int) -> float:
    """Two-sided p-value of "the scores have nothing to do with the examples", by shuffling them within classes.

    A model of another domain may find hard what others find easy; scores of other examples bear no relation at all.

    Args:
        odds: (num_pool,) the target's log odds.
        unseen: (num_models, num_pool) of models that saw none of U.
        labels: (num_pool,).
        seed: of 999 shuffles.
    """
    own = _centred(normal_scores(odds), labels)
    theirs = _centred(normal_scores(unseen.mean(axis=0)), labels)
    rng = np.random.default_rng(seed)
    shuffled = np.empty((999, len(own)))
    for label in np.unique(labels):
        mine = labels == label
        shuffled[:, mine] = rng.permuted(np.broadcast_to(own[mine], (999, int(mine.sum()))), axis=1)
    observed = abs(float(own @ theirs))
    return (1 + int((np.abs(shuffled @ theirs) >= observed - 1e-9).sum())) / 1000


def mean_residuals(models: Sequence[NDArray[np.float64]], unseen: NDArray[np.float64]) -> NDArray[np.float64]:
    """The mean over a target's models of their residuals: (num_pool,)."""
    found: NDArray[np.float64] = np.mean([residuals(odds, unseen) for odds in models], axis=0)
    return found
