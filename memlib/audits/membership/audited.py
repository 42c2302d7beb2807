"""Everything that an audit computes before it writes tables: the pool, its units, the attacks, and all models in turn."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa
import scipy
from numpy.typing import NDArray

from memlib.audits.membership.rankings import ModelResult, Rankings, Scores, Signal, mean_odds, survey_models
from memlib.audits.membership.recipe import FEWEST_COMPARED, Recipe
from memlib.audits.membership.shadows import Answers
from memlib.audits.membership.units import Copies, Pool, Units, units_of
from memlib.data.blind_features import BlindFeatures
from memlib.findings import Finding
from memlib.identity import derive_seed
from memlib.stats.coins import counts_p
from memlib.stats.counterfactual import Differences, influence, memorization
from memlib.stats.difficulty import CONTRADICTED
from memlib.stats.multiplicity import holm
from memlib.stats.operating import even_shares
from memlib.stats.randomization import home_labels

TOSSES = 9999  # simulated, of the counts of coins
SHOWN = 0.05  # adjusted p-value up to which an example counts as memorized, and a pair as influence


@dataclass(frozen=True)
class Audited:
    """The pool with the answers of all models on it."""

    has_classes: ClassVar[bool] = True  # whether answers are right or wrong, as memorization and influence need

    recipe: Recipe  #: attacks, tests and claim.
    pool: Pool  #: the audited examples.
    rows: pa.Table  #: rows of the examples in tables.SPLITS.
    member: NDArray[np.bool_]  #: (num_examples,) whether the target was trained on the example.
    target: Answers  #: target, shadows: answers of the target and of the shadow models.
    shadows: Answers
    inside: NDArray[np.bool_]  #: (num_models, num_examples) training sets of the shadow models.
    held_out: pa.Table  #: the held-out examples, rows of tables.SPLITS.
    is_drawn: bool  #: whether the target's members were drawn at random, and nothing contradicts it.
    #: (num_kept, num_examples) squared gradient norms of the target after each kept epoch; None if not computed.
    norms: NDArray[np.float64] | None = field(default=None, kw_only=True)
    copies: Copies | None = field(default=None, kw_only=True)  #: copies of members; None: there are none.

    @property
    def has_memorization(self) -> bool:
        """True if models that were trained on an example can be compared with others."""
        return self.has_classes and len(self.inside) > 0

    @cached_property
    def units(self) -> Units:
        """The examples, or persons, whose membership is audited."""
        combined = self.recipe.score.persons
        found = units_of(self.pool, self.target, self.shadows, self.member, self.inside, combined)
        word = self.recipe.group_noun if found.are_persons else ""
        had_coins = not self.recipe.target.is_external or (self.counts_p or 0.0) > CONTRADICTED
        return replace(found, word=word, merges=had_coins, copied=self.copied)

    @property
    def copied(self) -> NDArray[np.bool_] | None:
        """The units with an example that is a copy of a member, (num_units,); None if none was looked for."""
        return None if self.copies is None else np.bincount(self.pool.groups, weights=self.copies.found) > 0

    @cached_property
    def counts_p(self) -> float | None:
        """The p-value of the numbers of members by class; None unless independent coins were declared."""
        target = self.recipe.target
        if not target.is_external or target.drawn != "coins":
            return None
        first = self.pool.first()
        labels = home_labels(self.pool.labels, self.pool.groups)
        seed = derive_seed(self.recipe.score.seed, "counts")
        return counts_p(self.member[first], labels, target.coins, draws=TOSSES, seed=seed)

    @cached_property
    def even(self) -> NDArray[np.bool_]:
        """The units by which true alarms are counted, (num_units,): all or, if the number of members of each class was fixed,
        as many as have the same share of members in each class.
        """
        units, target = self.units, self.recipe.target
        if not target.is_external or target.drawn != "fixed":
            return np.ones(len(units), dtype=bool)
        found, apart = np.zeros(len(units), dtype=bool), units.apart
        seed = derive_seed(self.recipe.score.seed, "shares")
        found[apart] = even_shares(units.member[apart], units.strata[apart], seed=seed)
        return found

    @cached_property
    def rankings(self) -> Rankings:
        """The attacks on the target."""
        level = self.recipe.score.level / (1 if self.recipe.privacy is None else 2)
        return Rankings(
            self.units, self.recipe.score, self.is_tested, self.signals, self.difficulty if self.is_tested else None, level
        )

    @property
    def is_tested(self) -> bool:
        """True if members were drawn at random, nothing contradicts it, and some of them can be compared with non-members."""
        return self.is_drawn and bool(self.units.paired.any())

    @cached_property
    def difficulty(self) -> Scores | None:
        """The true class of each unit in models that were not trained on it, as log odds: (num_measures, num_units).

        The first measure is the mean log odds in shadow models.

        It is None where memlib drew the members itself, where no random draw was declared, and with too few shadow models
        that were not trained on most units.
        """
        shadows = self.units.shadows
        without = (~shadows.inside).sum(axis=0)
        is_declared = self.recipe.target.is_external and self.recipe.is_drawn
        enough = without.mean() >= FEWEST_COMPARED / 2 - 0.5 and (without >= 2).mean() >= 0.9
        if not (is_declared and len(self.inside) >= FEWEST_COMPARED and enough):
            return None
        return np.stack([mean_odds(shadows)[1], *self.others])

    @property
    def service(self) -> Finding | None:
        """The finding on the service that was asked; None for a model at hand."""
        return None

    @property
    def others(self) -> Sequence[Scores]:
        """Further measures of difficulty, (num_units,) each: of models that were trained on no unit."""
        return []

    @cached_property
    def agreement(self) -> float | None:
        """The rank correlation of non-members' difficulty with the target's log odds; None without difficulty.

        Where it is small, difficulty is that of other models, and says little of what the target finds hard.
        """
        units = self.units
        if self.difficulty is None:
            return None
        of_shadows = self.difficulty[0]
        chosen = ~units.member & np.isfinite(of_shadows)
        odds = units.odds.mean(axis=0)[chosen]
        if np.ptp(odds) == 0 or np.ptp(of_shadows[chosen]) == 0:
            return 0.0
        return float(scipy.stats.spearmanr(odds, of_shadows[chosen]).statistic)

    @cached_property
    def row_scores(self) -> Scores:
        """The headline attack's scores of single examples, even if the units are persons: (num_examples,)."""
        if not self.pool.has_groups:
            return self.rankings.head.scores
        alone, config = replace(self.pool, groups=np.arange(len(self.pool.groups))), self.recipe.score
        units = units_of(alone, self.target, self.shadows, self.member, self.inside, config.persons)
        headline = config.model_copy(update={"attacks": (config.headline,)})
        return Rankings(units, headline, False, self.row_signals).head.scores

    @property
    def row_signals(self) -> Mapping[str, Signal]:
        """The signals of single examples, by attack."""
        return self._given(self.target.odds[0, 0])

    @property
    def signals(self) -> Mapping[str, Signal]:
        """The scores of attacks that do not follow from log odds, by attack."""
        return self._given(self.units.odds[0])

    def _given(self, values: NDArray[np.float32]) -> Mapping[str, Signal]:
        """Return the scores that the target's owner gives, which are no log odds; none if these are not given."""
        none = np.zeros((0, len(values)))
        return {"scores": Signal(values.astype(np.float64), none)} if self.recipe.reads_scores else {}

    @property
    def features(self) -> BlindFeatures | None:
        """Features of the examples, computed without the model; None if they are still to be computed from the data."""
        return None

    @cached_property
    def survey(self) -> tuple[Scores, list[ModelResult]]:
        """The headline attack on every shadow model, see `survey_models`."""
        return survey_models(self.rankings)

    @cached_property
    def memorization(self) -> Differences:
        """Memorization of each example over all models that memlib trained."""
        own = not self.recipe.target.is_external
        correct = np.concatenate([self.target.correct, self.shadows.correct]) if own else self.shadows.correct
        inside = np.concatenate([self.member[None], self.inside]) if own else self.inside
        return memorization(correct, inside)

    @cached_property
    def self_influence(self) -> Scores | None:
        """TracInCP of each example with itself (Pruthi 2020), (num_examples,); None if it is not computed."""
        from memlib.training.optim import learning_rate  # imported late, as it loads PyTorch

        training = self.recipe.training
        if self.norms is None or training is None:
            return None
        size = int(self.member.sum())
        steps = size // min(size, training.batch_size or size)
        total = np.zeros(len(self.member))
        for epoch, squared in zip(training.kept_epochs, self.norms, strict=True):
            before = max(0, epoch * steps - 1)
            total += squared * learning_rate(
                training.optimizer, step=before, steps_per_epoch=steps, num_steps=steps * training.epochs
            )
        return total

    @cached_property
    def memorization_p(self) -> Scores:
        """The p-values of memorization, adjusted over all examples: (num_examples,)."""
        return holm(self.memorization.p_values().tolist())

    @cached_property
    def examined(self) -> NDArray[np.int64]:
        """Places of the memorized examples whose influence is examined, the most memorized first."""
        found = np.flatnonzero(self.memorization_p <= SHOWN)
        order = np.argsort(-self.memorization.difference[found], kind="stable")
        return found[order][: self.recipe.score.memorized]

    @cached_property
    def influence(self) -> tuple[Differences, Scores]:
        """Influence of the examined examples on held-out ones, and p-values adjusted over all pairs: each (examined,
        held_out)."""
        own = not self.recipe.target.is_external
        answers = np.concatenate([self.target.held_out, self.shadows.held_out]) if own else self.shadows.held_out
        inside = np.concatenate([self.member[None], self.inside]) if own else self.inside
        found = influence(answers, inside[:, self.examined])
        p = found.p_values()
        return found, holm(p.ravel().tolist()).reshape(p.shape)

    @property
    def has_influence(self) -> bool:
        """True if there are pairs to examine."""
        return self.has_memorization and bool(len(self.examined)) and bool(self.held_out.num_rows)

    def withdrawn(self) -> "Audited":
        """Return the audit without tests of the target, for a declared random draw that is contradicted."""
        return replace(self, is_drawn=False)
