"""Scores of each attack for the members of the target, and of every shadow model in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.audits.membership.recipe import Config
from memlib.audits.membership.units import Units
from memlib.identity import derive_seed
from memlib.stats.coins import CoinTest, coin_tests, ranks_within
from memlib.stats.difficulty import adjusted
from memlib.stats.inference import threshold_rank
from memlib.stats.membership import Attack, CalibratedLoss, Lira, Loss, Rmia, Trajectory, calibrated, fit_a, survey
from memlib.stats.operating import OperatingPoint, auc, operating_point
from memlib.stats.randomization import Design
from memlib.stats.shadows import Shadows

NEEDS_OWN_SPREAD = {"rmia", "rmia_offline", "calibrated_loss", "trajectory"}
"""Attacks whose scores of persons are compared with the same person's scores in models without her; otherwise persons with
few examples, whose scores spread more, would have most of the false alarms."""
QUICK_DRAWS = 199  # redraws of the coins of a shadow model whose units are few

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """One attack on the target."""

    attack: str  #: its name.
    scores: Scores  #: (num_units,), higher for members; where a draw was declared, adjusted for difficulty.
    test: CoinTest | None  #: the test of the target's coins; None if they were not drawn at random.
    raw: Scores  #: (num_units,) the scores before they were adjusted.

    @property
    def both(self) -> tuple[Scores, ...]:
        """The scores as they were tested and, if they were adjusted, as they were before."""
        return (self.scores,) if self.raw is self.scores else (self.scores, self.raw)


@dataclass(frozen=True)
class Signal:
    """Scores that do not follow from log odds."""

    target: Scores  #: (num_units,), higher for members.
    shadows: Scores  #: (num_models, num_units), the same for every shadow model.


@dataclass(frozen=True)
class Rankings:
    """All attacks on the target."""

    units: Units  #: examples or persons.
    config: Config  #: attacks and tests.
    is_drawn: bool  #: whether the target's members were drawn at random.
    #: scores of attacks that do not follow from log odds, by attack.
    signals: Mapping[str, Signal] = field(default_factory=dict)
    #: (num_measures, num_units) how likely models that were not trained on a unit hold its true class, for which the target's
    #: scores are adjusted; None if they are not.
    difficulty: Scores | None = None
    level: float = 0.05  #: level at which an attack is significant whatever other families show.

    @cached_property
    def slope(self) -> float:
        """The slope a of RMIA's offline reference, fitted to shadow models before the target is looked at."""
        return self._slope_of(self.units.shadows)

    def _slope_of(self, shadows: Shadows) -> float:
        return fit_a(shadows, derive_seed(self.config.seed, "slope"))

    def attack(self, name: str, shadows: Shadows | None = None) -> Attack[Any] | None:
        """Return an attack with its settings; None for the gap, which reads right answers instead of log odds.

        Args:
            shadows: models to which settings are fitted; by default all shadow models.
        """
        match name:
            case "lira" | "lira_offline":
                return Lira(online=name == "lira")
            case "rmia":
                return Rmia()
            case "rmia_offline":
                return Rmia(online=False, a=self.slope if shadows is None else self._slope_of(shadows))
            case "calibrated_loss" | "ratio":  # without a pretrained model, to which a ratio compares
                return CalibratedLoss()
            case "loss":
                return Loss()
            case "trajectory":
                return Trajectory()
        return None

    def given(self, name: str) -> tuple[NDArray[np.floating], Shadows]:
        """Return the log odds that an attack reads: of the target, (num_queries, num_units), and of its shadow models."""
        units = self.units
        if name == "trajectory":
            assert units.through is not None, "models were queried after earlier epochs, too"
            return units.through
        return units.odds, units.shadows

    @cached_property
    def all(self) -> list[Ranking]:
        """All attacks of the recipe, tested together."""
        names, strata = self.config.attacks, self.units.strata
        raw = np.stack([self._scores(name) for name in names])
        scores = raw if self.difficulty is None else adjusted(raw, self.difficulty, strata)
        tests: Sequence[CoinTest | None] = [None] * len(names)
        if self.is_drawn:
            seed = derive_seed(self.config.seed, "redraws")
            tests = coin_tests(scores, self.units.member, strata, redraws=self.config.redraws, seed=seed, level=self.level)
        before = scores if self.difficulty is None else raw
        return [
            Ranking(name, row, test, row if before is scores else was)
            for name, row, test, was in zip(names, scores, tests, before, strict=True)
        ]

    @property
    def head(self) -> Ranking:
        """The headline attack."""
        return next(ranking for ranking in self.all if ranking.attack == self.config.headline)

    def _scores(self, name: str) -> Scores:
        if name in self.signals:
            return self.signals[name].target
        attack = self.attack(name)
        if attack is None:
            return self.units.correct.astype(np.float64)
        odds, shadows = self.given(name)
        if self.units.are_persons and name in NEEDS_OWN_SPREAD:
            return calibrated(shadows, attack, odds)
        return attack(shadows, odds)


@dataclass(frozen=True)
class ModelResult:
    """The headline attack on one model, with all other shadow models as its shadows."""

    auc: float  #: area under the ROC.
    p_value: float  #: p-value of the area by redraws of the model's coins.
    true_alarms: tuple[float, ...]  #: share of members found at each rate of false alarms; NaN where non-members are too few.


def survey_models(rankings: Rankings) -> tuple[Scores, list[ModelResult]]:
    """Attack every shadow model as if it were the target.

    Returns:
        (num_models, num_units) scores, and the result of each model.
    """
    units, config = rankings.units, rankings.config
    attack = rankings.attack(config.headline)
    if not units.shadows.num_models:
        return units.shadows.inside.astype(np.float64), []
    if config.headline in rankings.signals:
        scores = rankings.signals[config.headline].shadows
    elif attack is None:
        scores = units.shadows_correct.astype(np.float64)
    else:
        scores = survey(rankings.given(config.headline)[1], attack)
        if units.are_persons and config.headline in NEEDS_OWN_SPREAD:
            of_persons = Shadows(scores[:, None], units.shadows.inside, units.shadows.pools)
            scores = survey(of_persons, Lira(online=False))
    results = []
    for number, (row, inside) in enumerate(zip(scores, units.shadows.inside, strict=True)):
        design = Design.of(inside, units.strata)
        p = design.quick_p(
            whole_ranks(ranks_within(row, units.strata)), draws=QUICK_DRAWS, seed=derive_seed(config.seed, "model", number)
        )
        alarms = tuple(true_alarms(row, inside, rate) for rate in config.false_alarms)
        results.append(ModelResult(auc(row, inside, blocks=units.strata), p, alarms))
    return scores, results


def survey_halves(rankings: Rankings, count: int) -> tuple[Scores, Scores]:
    """Return headline scores of the first `count` shadow models, and of all later ones: (num_models, num_units) each.

    The first models are scored against one another, the later models against the first ones. Given the first models, the
    scores of a later model depend on that model alone, so that the later models are independent trials.
    """
    units, name = rankings.units, rankings.config.headline
    if name in rankings.signals or name == "gap":
        known = rankings.signals[name].shadows if name in rankings.signals else units.shadows_correct.astype(np.float64)
        return known[:count], known[count:]
    shadows = rankings.given(name)[1]
    first = Shadows(shadows.odds[:count], shadows.inside[:count], shadows.pools)
    attack = rankings.attack(name, first)
    assert attack is not None
    summary = attack.summarize(first)
    return survey(first, attack), np.stack([attack.score(summary, odds) for odds in shadows.odds[count:]])


def whole_ranks(scores: Scores) -> NDArray[np.int64]:
    """Return twice the rank of each score, ties averaged, as whole numbers: (num_units,)."""
    ranks: NDArray[np.int64] = np.rint(2 * scipy.stats.rankdata(scores)).astype(np.int64)
    return ranks


def true_alarms(scores: Scores, member: NDArray[np.bool_], rate: float) -> float:
    """Return the share of members above the threshold of a rate of false alarms; NaN if non-members are too few for it."""
    point = point_at(scores, member, rate)
    return float("nan") if point is None else point.tpr


def point_at(scores: Scores, member: NDArray[np.bool_], rate: float) -> OperatingPoint | None:
    """Return the operating point at a rate of false alarms; None if non-members are too few for it."""
    if threshold_rank(int((~member).sum()), rate) == 0:
        return None
    return operating_point(scores, member, rate)


def mean_odds(shadows: Shadows) -> tuple[Scores, Scores]:
    """Return the mean log odds, over queries, of models that were and were not trained on each unit.

    Each array is (num_units,), with NaN for units without such models.
    """
    odds = shadows.odds.mean(axis=1, dtype=np.float64)
    sides = []
    for inside in (shadows.inside, ~shadows.inside):
        counts = inside.sum(axis=0)
        sums = np.where(inside, odds, 0.0).sum(axis=0)
        sides.append(np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0))
    return sides[0], sides[1]
