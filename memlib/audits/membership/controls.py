"""Controls of a membership audit: does a declared draw hold, and are the shadow models like the target?"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.membership.audited import TOSSES, Audited
from memlib.audits.membership.recipe import Recipe
from memlib.audits.membership.supplied import UNLISTED
from memlib.audits.membership.units import Pool
from memlib.audits.membership.verdict import BLIND
from memlib.data.blind_features import DATES, IDS, BlindFeatures
from memlib.data.given_sets import FOLDS, REDRAWS, features_of, p_of_draw, tested_draw
from memlib.data.stages import TrainingData
from memlib.findings import Finding, Interval, diagnostic, estimate
from memlib.identity import derive_seed
from memlib.report.format import say_p
from memlib.stats.blind import BlindBaseline, described_baseline
from memlib.stats.coins import counts_p
from memlib.stats.difficulty import CONTRADICTED, difference_p
from memlib.stats.likeness import is_out, likeness, utility
from memlib.stats.randomization import home_labels

ALIKE = (
    0.6  # rank correlation of difficulty for other models and for the target from which on the former stands for the latter
)
UNLIKE = 0.05  # level over all numbers of the likeness
FEWEST_SHADOWS = 3  # with which a target can be compared
REMEDY = "say drawn: unknown, or list only examples among which chance alone decided who was a member"
REMEDIES = {
    IDS: "if ids only number rows or name files, leave data.source.id_column out; otherwise chance alone did not decide",
    DATES: "list only examples of the same time, among which chance alone decided who was a member",
}
"""What can be done where a declared draw is contradicted, by the family of features that tells most."""
OF_TOKENS = ("loss", "accuracy")  # numbers of the likeness that mean the same for tokens, of which many are answers at once


@dataclass(frozen=True)
class Checks:
    """Tests of a declared random draw that do not look at the target's answers."""

    blind: BlindBaseline | None  #: success of telling members without a model; with a p-value where a draw was declared.
    counts: float | None  #: p-value of the numbers of members by class, where independent coins were declared.
    difficulty: float | None  #: p-value of the sides' difficulty for models that were not trained on them; None without such.
    agreement: float | None = None  #: see `Audited.agreement`.

    @property
    def p_value(self) -> float:
        """The p-value of the declaration over all its tests; 1 without any."""
        found = self.found
        return p_of_draw(found.pop("blind", 1.0), list(found.values()))

    @property
    def found(self) -> dict[str, float]:
        """The p-value of each test that could be made."""
        blind = None if self.blind is None else self.blind.p_value
        found = {"counts": self.counts, "difficulty": self.difficulty, "blind": blind}
        return {name: p for name, p in found.items() if p is not None}

    @property
    def is_examined(self) -> bool:
        """True if the sides were compared without a model, and by models like the target that were not trained on them."""
        return {"blind", "difficulty"} <= self.found.keys() and (self.agreement or 0.0) >= ALIKE

    @property
    def contradicts(self) -> bool:
        """True if a random draw was declared and does not fit what is known without the model."""
        return self.p_value <= CONTRADICTED

    @property
    def reason(self) -> str:
        """The reason for which a declaration is contradicted, in words."""
        found = self.found
        known = found.pop("blind", 1.0)
        test = min(found, key=found.__getitem__, default="blind")
        if known <= len(found) * found.get(test, 1.0):
            test = "blind"
        p = self.found[test]
        if test == "counts":
            return (
                "the numbers of members by class are not those of independent coins with this probability "
                f"({say_p(p)}); check target.coins, and of a stratified split say drawn: fixed"
            )
        if test == "difficulty":
            return (
                "members and non-members differ in how well models that were not trained on them know them "
                f"({say_p(p)}): in their labels' noise or in origin, or their examples are of few persons"
            )
        assert self.blind is not None
        told = f"AUC {self.blind.auc:.2f}, {say_p(p)}, most by {self.blind.most}"
        return f"members differ from non-members even without the model ({told})"

    @property
    def warning(self) -> str:
        """The warning for a contradicted declaration."""
        return f"target.drawn declares a random draw, but {self.reason}: nothing is tested; check target.drawn"


def check_draw(audited: Audited, data: TrainingData) -> Checks:
    """Test a declared random draw without the target's answers; describe members where none was declared."""
    return Checks(blind_baseline(audited, data), audited.counts_p, difficulty_p(audited), audited.agreement)


def difficulty_p(audited: Audited) -> float | None:
    """Test, by models not trained on them, if the sides of a declared draw differ; None if they are not compared."""
    if audited.difficulty is None:
        return None
    seed, units = derive_seed(audited.recipe.score.seed, "difficulty"), audited.units
    found = [
        difference_p(np.nan_to_num(one, nan=float(np.nanmedian(one))), units.member, units.strata, redraws=REDRAWS, seed=seed)
        for one in audited.difficulty
    ]
    return min(1.0, len(found) * min(found))


def blind_baseline(audited: Audited, data: TrainingData) -> BlindBaseline | None:
    """Tell members from non-members without the model; None if memlib tossed the coins, or score.blind is false."""
    recipe, pool, units = audited.recipe, audited.pool, audited.units
    if not recipe.score.blind or not recipe.target.is_external:
        return None
    features = audited.features or features_of(pool.ids, data, recipe.data.source)
    return _told_apart(recipe, features.by_group(pool.groups), units.member, units.labels)


def _told_apart(
    recipe: Recipe, features: BlindFeatures, member: NDArray[np.bool_], labels: NDArray[np.int64]
) -> BlindBaseline:
    """Tell units that are members from others by features that are known without the model."""
    seed = derive_seed(recipe.score.seed, "blind")
    if recipe.is_drawn:
        return tested_draw(features, member, labels, seed=seed)
    return described_baseline(features.values, features.families, member, np.arange(len(member)), folds=FOLDS, seed=seed)


def said_of_draw(recipe: Recipe, rows: pa.Table, values: NDArray[np.int8], features: BlindFeatures) -> Iterator[str]:
    """Yield what is known of a declared draw before any model is trained: is it contradicted, and what can be done?

    Args:
        rows: rows of the pool in tables.SPLITS.
        values: (num_pool,) the owner's list: 1 for members, 0 for others, and UNLISTED.
        features: features of the listed examples that are known without the model.
    """
    listed = values != UNLISTED
    pool, target = Pool.of(rows, listed), recipe.target
    member = pool.by_unit(values[listed] == 1)
    labels = home_labels(pool.labels, pool.groups) if pool.has_groups else pool.labels
    blind = _told_apart(recipe, features.by_group(pool.groups), member, labels)
    if not recipe.is_drawn:
        yield (
            f"without the model, members can be told from non-members with an AUC of {blind.auc:.2f}; as target.drawn is "
            "unknown, nothing is tested: say fixed for a random hold-out, coins for a coin each"
        )
        return
    counts = None
    if target.drawn == "coins":
        seed = derive_seed(recipe.score.seed, "counts")
        counts = counts_p(member, labels, target.coins, draws=TOSSES, seed=seed)
    checks = Checks(blind, counts, None)
    if checks.contradicts:
        yield f"{checks.warning}; {REMEDIES.get(blind.most, REMEDY)}"
    else:
        yield f"nothing that is known without the model contradicts the declared draw ({say_p(checks.p_value)})"


def control_findings(audited: Audited, checks: Checks) -> list[Finding]:
    """Return the findings on the declared draw, the blind baseline and likeness."""
    rows = list(_likeness_rows(audited))
    if audited.recipe.target.is_external and audited.recipe.target.drawn != "unknown":
        params: dict[str, Any] = {
            "drawn": audited.recipe.target.drawn, "contradicted": checks.contradicts, "examined": checks.is_examined,
        }  # fmt: skip
        params |= {f"p_{name}": round(p, 6) for name, p in checks.found.items()}
        params |= {} if checks.agreement is None else {"agreement": round(checks.agreement, 3)}
        params |= {"reason": checks.reason} if checks.contradicts else {}
        rows.append(diagnostic("declared_draw", params, checks.p_value, n=len(audited.units)))
    return rows if checks.blind is None else [*_blind_rows(audited, checks.blind), *rows]


def _blind_rows(audited: Audited, found: BlindBaseline) -> Iterator[Finding]:
    count, over = len(audited.units), audited.units.noun
    params = {} if found.p_value is None else {"p": round(found.p_value, 6)}
    yield estimate(BLIND, params, found.auc, n=count, interval=Interval(found.low, found.high, over))
    for family, value in found.by_family.items():
        yield diagnostic("blind_auc_by_family", {"measure": family}, value, n=count)


def _likeness_rows(audited: Audited) -> Iterator[Finding]:
    """Yield each number of the target beside the range of the same number of the shadow models."""
    if len(audited.inside) < FEWEST_SHADOWS:
        return
    ours = utility(audited.shadows.odds[:, 0], audited.shadows.correct, audited.inside)
    theirs = utility(audited.target.odds[:, 0], audited.target.correct, audited.member)
    compared = [row for row in likeness(ours, theirs) if audited.has_classes or row.name.startswith(OF_TOKENS)]
    for row in compared:
        word = "unlike" if is_out(row, UNLIKE / len(compared)) else "like"
        far = round(row.distance, 3) if math.isfinite(row.distance) else None
        params = {
            "measure": row.name, "smallest": round(row.low, 6), "largest": round(row.high, 6), "p": round(row.p_value, 6),
            "deviations": far, "word": word,
        }  # fmt: skip
        yield diagnostic("likeness", params, row.value, n=row.shadows)
