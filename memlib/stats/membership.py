"""Membership inference from shadow models: one matrix of inclusion serves as the reference of every attack.

An attack compares a target's log odds of each example with those of shadows trained with (in) and without (out) it:

- `Lira`: likelihood ratio of normal laws (Carlini et al. 2022, arXiv 2112.03570, Algorithm 1), or one-sided tail offline;
- `Rmia` and `rmia`: ratio of the probability to its mean over shadows, compared with that of non-members (Zarifzadeh et al.
  2024, arXiv 2312.03262);
- `Base`: that ratio itself, with a temperature (Lassila et al. 2025);
- `Loss`, `CalibratedLoss`: baselines (Yeom et al. 2018; Watson et al. 2022);
- `Trajectory`: likelihood ratio over several checkpoints;
- `calibrated`: any of these, compared with its own scores of the shadows.

Higher scores are more member-like, and none saturates where members are: no probability is rounded to 1 on the way.

An attack is a value with its settings. It first summarizes the shadows per example, and then scores targets by the summary.
Summaries can leave out a model, so that `survey`, where each model is the target once, takes one pass over the shadows.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, Self, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.stats.operating import auc
from memlib.stats.shadows import Averages, Moments, Shadows, Side, Values, blocks_of, log_p

FLOOR = 1e-6  # smallest variance of log odds, in nats^2
LEAST = 1e-5  # smallest variance of an example, relative to the median, that enters the fit of the prior
DIAGONAL = 0.1  # weight of the diagonal in covariances of checkpoints, which are nearly singular
OFFLINE_A = 0.3  # default slope of RMIA's offline p(x); see `fit_a`
LEFT_OUT = 4  # number of shadows by which the slope is fitted


class Summary(Protocol):
    """Facts about the shadows that an attack needs."""

    def without(self, model: int) -> Self:
        """Return the summary of the other models."""


S = TypeVar("S", bound=Summary)


class Attack(ABC, Generic[S]):
    """An attack with its settings."""

    def __call__(self, shadows: Shadows, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,) of a target that is none of the shadows, higher for members.

        Args:
            shadows: models that the target is compared with.
            target: (num_queries, num_examples) log odds of the target.
        """
        assert target.shape == shadows.odds.shape[1:], "the target answers the shadows' queries of the same examples"
        return self.score(self.summarize(shadows), target)

    @abstractmethod
    def summarize(self, shadows: Shadows) -> S:
        """Return the summary of the shadows that `score` needs."""

    @abstractmethod
    def score(self, summary: S, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,) of log odds (num_queries, num_examples)."""


def survey(shadows: Shadows, attack: Attack[S]) -> Values:
    """Return the scores of every model as the target, with all others as its shadows: (num_models, num_examples).

    Args:
        shadows: at least two models.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> inside = rng.integers(0, 2, (8, 50)).astype(bool)
        >>> shadows = Shadows(rng.normal(size=(8, 1, 50)) + 2 * inside[:, None], inside)
        >>> scores = survey(shadows, Lira())
        >>> bool(np.allclose(scores[3], Lira()(shadows.without(3), shadows.odds[3])))
        True
    """
    assert shadows.num_models >= 2, "each model needs others as its shadows"
    summary = attack.summarize(shadows)
    scores = np.empty(shadows.inside.shape)
    for model, odds in enumerate(shadows.odds):
        scores[model] = attack.score(summary.without(model), odds)
    return scores


Variance = Literal["pooled", "example", "shrunk"]


@dataclass(frozen=True)
class Lira(Attack[Moments]):
    """LiRA with normal laws around each example's own means.

    Online, the score is log N(phi; in) - log N(phi; out). Offline, it is -log P(out model >= phi), one-sided: low log odds
    are no sign of membership. Both are averaged over queries.

    Example:
        >>> import numpy as np
        >>> odds = np.array([[0.0, 0.0], [2.0, 2.0], [5.0, 5.0], [7.0, 7.0]])[:, None]
        >>> inside = np.array([[False, False], [False, False], [True, True], [True, True]])
        >>> Lira()(Shadows(odds, inside), np.array([[6.0, 1.0]])).tolist()  # variance 2, means 6 and 1: +-25 / 4
        [6.25, -6.25]
        >>> Lira(online=False)(Shadows(odds, inside), np.array([[1.0, 51.0]])).round(2).tolist()  # -log 1/2, far tail
        [0.69, 629.49]
    """

    online: bool = True  #: use in models, too.
    #: "pooled" over examples, from residuals around each example's mean; "example", from the example's own models alone
    #: (pooled where there are fewer than two); "shrunk", between both by the number of models: see `variances`.
    variance: Variance = "shrunk"

    def summarize(self, shadows: Shadows) -> Moments:
        """Return the moments of the log odds."""
        return Moments.of(shadows)

    def score(self, summary: Moments, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,)."""
        values, (inner, outer) = summary.values(target), summary.centres()
        pools = summary.shadows.pools
        out_spread = variances(summary.outer, summary.inner, self.variance, pools)
        if not self.online:
            tails: Values = -scipy.special.log_ndtr(-(values - outer) / np.sqrt(out_spread)).mean(axis=0)
            return tails
        in_spread = variances(summary.inner, summary.outer, self.variance, pools)
        ratios: Values = (_log_normal(values - inner, in_spread) - _log_normal(values - outer, out_spread)).mean(axis=0)
        return ratios


def variances(side: Side, other: Side, kind: Variance, pools: NDArray[np.int64] | None = None) -> Values:
    """Return the variance of each query and example on a side, at least `FLOOR`: (num_queries, num_examples).

    Shrunk variances are (d0 s0^2 + d_i v_i) / (d0 + d_i), where v_i is the variance of example i with d_i degrees of freedom.
    The prior's d0 and s0^2 follow from mean and variance of the log v_i (empirical Bayes: Smyth 2004, section 6.2). Where the
    log v_i vary no more than variances estimated from equal laws would, d0 is infinite and s0^2 the pooled variance.

    Args:
        other: moments of the other side, whose spread is taken where no example has two models on this side.
        kind: as in `Lira`.
        pools: as in `Shadows`; a pool in which no example has two models on this side takes the spread of all.

    Example:
        >>> import numpy as np
        >>> side = Side(count=np.array([3.0, 3.0]), mean=np.zeros((1, 2)), squares=np.array([[2.0, 4.0]]))
        >>> variances(side, side, "example").tolist(), variances(side, side, "pooled").tolist()
        ([[1.0, 2.0]], [[1.5, 1.5]])
    """
    known = side if side.freedom.any() else other
    assert known.freedom.any(), "a variance needs two models with, or two without, at least one example"
    spread = _variances(known, kind)
    for pool in np.unique(pools) if pools is not None else ():
        part = known.of(pools == pool)
        if part.freedom.any():
            spread[:, pools == pool] = _variances(part, kind)
    return np.asarray(np.maximum(spread, FLOOR))


@dataclass(frozen=True)
class Rmia(Attack[Averages]):
    """RMIA's log ratio l(x) = log p_theta(x) - log p(x), averaged over queries; RMIA ranks examples as this ratio does.

    Example:
        >>> import numpy as np
        >>> odds = np.log([[[1 / 4]], [[3 / 2]]])  # p = .2 and .6
        >>> shadows = Shadows(odds, np.array([[False], [True]]))
        >>> float(np.exp(Rmia()(shadows, np.array([[np.log(4)]]))[0]).round(3))  # .8 / .4
        2.0
        >>> float(np.exp(Rmia(online=False, a=0.5)(shadows, np.array([[np.log(4)]]))[0]).round(3))  # .8 / ((.3 + .5) / 2)
        2.0
    """

    online: bool = True  #: p(x) is the mean probability over all shadows; else ((1 + a) p_out(x) + 1 - a) / 2.
    a: float = OFFLINE_A  #: slope of the offline p(x), in [0, 1]; see `fit_a`.

    def summarize(self, shadows: Shadows) -> Averages:
        """Return the mean probabilities."""
        return Averages.of(shadows)

    def score(self, summary: Averages, target: NDArray[np.floating]) -> Values:
        """Return the log ratios (num_examples,)."""
        return Base(online=self.online, a=self.a).score(summary, target)


@dataclass(frozen=True)
class Base(Attack[Averages]):
    """BASE: log p_theta(x) / T - log p(x), averaged over queries; RMIA's ratio with a temperature T.

    Example:
        >>> import numpy as np
        >>> shadows = Shadows(np.log([[[1 / 4]], [[3 / 2]]]), np.array([[False], [True]]))
        >>> target = np.array([[np.log(4)]])
        >>> bool(Base()(shadows, target) == Rmia()(shadows, target))
        True
    """

    temperature: float = 1.0  #: T.
    online: bool = True  #: online, a: p(x) as in `Rmia`.
    a: float = OFFLINE_A

    def summarize(self, shadows: Shadows) -> Averages:
        """Return the mean probabilities."""
        return Averages.of(shadows)

    def score(self, summary: Averages, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,)."""
        reference = summary.log_reference(online=self.online, a=self.a)
        scores: Values = (log_p(target) / self.temperature - reference).mean(axis=0)
        return scores


def rmia(ratio: Values, nonmember: NDArray[np.bool_]) -> tuple[Values, int]:
    """Return RMIA's scores, and how many distinct values they have.

    The score of x is the share of the target's non-members z with l(x) >= l(z) (gamma = 1), where ties count half. The
    denominator is the number of all non-members even if x is among them: without itself, a non-member would have another
    denominator than a member, which alone can decide where there are many ties.

    Args:
        ratio: (num_examples,) log ratios l of `Rmia`.
        nonmember: (num_examples,) bool, the references z.

    Example:
        >>> import numpy as np
        >>> scores, levels = rmia(np.array([2.0, 0.0, 1.0]), np.array([False, True, True]))
        >>> scores.tolist(), levels
        ([1.0, 0.25, 0.75], 3)
    """
    assert nonmember.any(), "RMIA compares with non-members"
    ordered = np.sort(ratio[nonmember])
    reached = (np.searchsorted(ordered, ratio, side="right") + np.searchsorted(ordered, ratio, side="left")) / 2
    scores: Values = reached / len(ordered)
    return scores, len(np.unique(scores))


def fit_a(shadows: Shadows, seed: int) -> float:
    """Return the slope of RMIA's offline p(x) in 0, .1, ..., 1 that tells members of a few left-out shadows best.

    No target is looked at. The criterion is the mean AUC over four shadows, each compared with all others.

    Args:
        shadows: at least two models, each with and without some examples.
        seed: seed of the choice of the left-out shadows.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> inside = rng.integers(0, 2, (8, 200)).astype(bool)
        >>> odds = rng.normal(0, 3, 200) + 0.3 * rng.normal(size=(8, 200)) + inside  # p depends on the example
        >>> fit_a(Shadows(odds[:, None], inside), seed=0) >= 0.5
        True
    """
    assert shadows.num_models >= 2, "a left-out shadow needs others to be compared with"
    chosen = np.random.default_rng(seed).permutation(shadows.num_models)[:LEFT_OUT]
    summary = Rmia(online=False).summarize(shadows)
    grid = np.arange(11) / 10
    found = np.zeros(len(grid))
    for model in chosen.tolist():
        others = summary.without(model)
        attacks = (Rmia(online=False, a=float(a)) for a in grid)
        found += [auc(attack.score(others, shadows.odds[model]), shadows.inside[model]) for attack in attacks]
    return float(grid[found.argmax()])


@dataclass(frozen=True)
class Nothing:
    """The summary of an attack that needs no shadows."""

    def without(self, model: int) -> "Nothing":
        """Return the same empty summary."""
        return self


@dataclass(frozen=True)
class Loss(Attack[Nothing]):
    """Log p of the true class, averaged over queries; one threshold for all examples (Yeom et al. 2018).

    Example:
        >>> import numpy as np
        >>> shadows = Shadows(np.zeros((1, 1, 2)), np.zeros((1, 2), dtype=bool))
        >>> Loss()(shadows, np.array([[50.0, 40.0]])).argsort().tolist()  # no tie, though both round to p = 1
        [1, 0]
    """

    def summarize(self, shadows: Shadows) -> Nothing:
        """Return an empty summary."""
        return Nothing()

    def score(self, summary: Nothing, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,)."""
        scores: Values = log_p(target).mean(axis=0)
        return scores


@dataclass(frozen=True)
class CalibratedLoss(Attack[Moments]):
    """Log p less its mean over the models without the example, averaged over queries (Watson et al. 2022).

    Example:
        >>> import numpy as np
        >>> shadows = Shadows(np.array([[[0.0]], [[9.0]]]), np.array([[False], [True]]))
        >>> CalibratedLoss()(shadows, np.array([[800.0]])).round(3).tolist()  # log 1 - log 1/2
        [0.693]
    """

    def summarize(self, shadows: Shadows) -> Moments:
        """Return the moments of log p."""
        return Moments.of(shadows, is_log_p=True)

    def score(self, summary: Moments, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,)."""
        scores: Values = (summary.values(target) - summary.centres()[1]).mean(axis=0)
        return scores


@dataclass(frozen=True)
class Checkpoints:
    """Moments of log odds at checkpoints, and their scatter around each example's own means; a model can be left out."""

    moments: Moments  #: moments per checkpoint and example.
    #: inner, outer: (num_checkpoints, num_checkpoints) sums of products of deviations, of in and of out models.
    inner: Values
    outer: Values

    @classmethod
    def of(cls, shadows: Shadows) -> "Checkpoints":
        """Compute the moments and the scatter in two passes over the shadows."""
        moments, start = Moments.of(shadows), 0
        inner, outer = np.zeros((2, shadows.odds.shape[1], shadows.odds.shape[1]))
        for odds, inside in blocks_of(shadows):
            block = slice(start, start + odds.shape[2])
            inner += _scatter((odds - moments.inner.mean[:, block]) * inside[:, None])
            outer += _scatter((odds - moments.outer.mean[:, block]) * ~inside[:, None])
            start = block.stop
        return cls(moments, inner, outer)

    def without(self, model: int) -> "Checkpoints":
        """Return the moments and the scatter of the other models."""
        values, inside = self.moments.values(self.moments.shadows.odds[model]), self.moments.shadows.inside[model]
        inner = self.inner - _own_scatter(self.moments.inner, values, inside)
        outer = self.outer - _own_scatter(self.moments.outer, values, ~inside)
        return Checkpoints(self.moments.without(model), inner, outer)

    def covariances(self) -> tuple[Values, Values]:
        """Return the shrunk covariances of in and of out models; a side without any spread takes the other's."""
        sides = (self.inner, self.moments.inner.freedom.sum()), (self.outer, self.moments.outer.freedom.sum())
        known = [_shrunk(scatter / freedom) for scatter, freedom in sides if freedom > 0]
        assert known, "a covariance needs two models with, or two without, at least one example"
        return known[0], known[-1]


@dataclass(frozen=True)
class Trajectory(Attack[Checkpoints]):
    """Likelihood ratio of an example's log odds at all checkpoints, which take the place of queries.

    Deviations from each example's in and out means are multivariate normal, with one covariance for all in models and one for
    all out models, shrunk towards its diagonal by `DIAGONAL`, so that correlated checkpoints are not counted twice.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> inside = rng.integers(0, 2, (9, 300)).astype(bool)
        >>> odds = rng.normal(size=(9, 3, 300)) + inside[:, None]
        >>> last = Lira(variance="pooled")(Shadows(odds[1:, 2:], inside[1:]), odds[0, 2:])
        >>> auc(Trajectory()(Shadows(odds[1:], inside[1:]), odds[0]), inside[0]) > auc(last, inside[0])
        True
    """

    def summarize(self, shadows: Shadows) -> Checkpoints:
        """Return the moments and the scatter of checkpoints."""
        return Checkpoints.of(shadows)

    def score(self, summary: Checkpoints, target: NDArray[np.floating]) -> Values:
        """Return the scores (num_examples,)."""
        values, (inner, outer) = summary.moments.values(target), summary.moments.centres()
        in_covariance, out_covariance = summary.covariances()
        return _log_normals(values - inner, in_covariance) - _log_normals(values - outer, out_covariance)


def calibrated(shadows: Shadows, attack: Attack[S], target: NDArray[np.floating]) -> Values:
    """Return an attack's scores of a target, compared with the same attack's scores of the shadows without the example.

    Scores other than those of `Lira` spread more for some units than for others, as for persons of few examples, who then
    have most of the false alarms. Each shadow is the target once (`survey`), and the result is the one-sided tail of `Lira`.

    Args:
        shadows: at least three models.
        target: (num_queries, num_examples) log odds of the target.

    Returns:
        (num_examples,), higher for members.

    Example:
        >>> import numpy as np
        >>> rng, width = np.random.default_rng(0), np.where(np.arange(400) < 200, 0.1, 1.0)
        >>> odds = (width * rng.normal(size=(40, 400)))[:, None]  # no membership, but two widths
        >>> shadows, target = Shadows(odds[1:], rng.integers(0, 2, (39, 400)).astype(bool)), odds[0]
        >>> both = Rmia()(shadows, target), calibrated(shadows, Rmia(), target)
        >>> [int((scores > np.quantile(scores, 0.9))[:200].sum()) > 10 for scores in both]  # of 40 flagged units
        [False, True]
    """
    reference = Shadows(survey(shadows, attack)[:, None], shadows.inside, shadows.pools)
    return Lira(online=False)(reference, attack(shadows, target)[None])


def _variances(side: Side, kind: Variance) -> Values:
    """Return the variance of each query and example of one pool, in which at least one example has two models."""
    pooled = np.broadcast_to(side.squares.sum(axis=1, keepdims=True) / side.freedom.sum(), side.squares.shape).copy()
    if kind == "pooled":
        return pooled
    known = side.freedom > 0
    freedom, own = side.freedom[known], side.squares[:, known] / side.freedom[known]
    if kind == "shrunk":
        own = np.stack([_shrink(row, freedom, float(level)) for row, level in zip(own, pooled[:, 0], strict=True)])
    pooled[:, known] = own
    return pooled


def _shrink(own: Values, freedom: Values, pooled: float) -> Values:
    """Shrink the variances of examples towards a common prior, (num_examples,)."""
    half = np.arange(1, int(freedom.max()) + 1) / 2
    place = freedom.astype(np.int64) - 1
    logs = np.log(np.maximum(own, max(LEAST * float(np.median(own)), FLOOR)))
    logs -= (scipy.special.digamma(half) - np.log(half))[place]  # now their mean is that of log s^2
    excess = float(logs.var(ddof=1) - scipy.special.polygamma(1, half)[place].mean()) if len(own) > 1 else 0.0
    if excess <= 0:
        return np.full(len(own), pooled)
    prior = _inverse_trigamma(excess)
    scale = np.exp(logs.mean() + scipy.special.digamma(prior) - np.log(prior))
    shrunk: Values = (2 * prior * scale + freedom * own) / (2 * prior + freedom)
    return shrunk


def _inverse_trigamma(value: float) -> float:
    """Return x > 0 with trigamma(x) = value > 0, by Newton's method on 1 / trigamma (Smyth 2004, appendix)."""
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(scipy.special.polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(scipy.special.polygamma(2, x))
        x += step
        if -step < 1e-12 * x:
            break
    return x


def _log_normal(residuals: Values, spread: Values) -> Values:
    """Return log densities of normal laws of mean 0, up to a constant."""
    logs: Values = -0.5 * (np.square(residuals) / spread + np.log(spread))
    return logs


def _log_normals(residuals: Values, covariance: Values) -> Values:
    """Return log densities (num_examples,) of residuals (num_checkpoints, num_examples), up to a constant."""
    root = np.linalg.cholesky(covariance)
    scaled = scipy.linalg.solve_triangular(root, residuals, lower=True)
    logs: Values = -0.5 * np.square(scaled).sum(axis=0) - np.log(np.diag(root)).sum()
    return logs


def _scatter(residuals: Values) -> Values:
    """Return the sums of products of residuals (num_models, num_checkpoints, num_examples) of checkpoints."""
    flat = residuals.swapaxes(0, 1).reshape(residuals.shape[1], -1)
    return flat @ flat.T


def _own_scatter(side: Side, values: Values, present: NDArray[np.bool_]) -> Values:
    """Return a model's share of a side's scatter, from its values (num_checkpoints, num_examples) where it is `present`."""
    change = np.where(present & (side.count > 1), values - side.mean, 0.0)
    return (change * (side.count / np.maximum(side.count - 1, 1))) @ change.T


def _shrunk(covariance: Values) -> Values:
    """Return a covariance whose entries off the diagonal are shrunk, with variances of at least `FLOOR`."""
    variances = np.maximum(np.diag(covariance), FLOOR)
    shrunk: Values = (1 - DIAGONAL) * covariance
    np.fill_diagonal(shrunk, variances)
    return shrunk
