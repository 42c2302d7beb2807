"""Controls of a membership audit: can members be told without the model, and are the shadow models like the target?"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from memlib.audits.membership.audited import Audited
from memlib.audits.membership.verdict import BLIND
from memlib.data.blind_features import BlindFeatures, blind_features
from memlib.data.stages import TrainingData
from memlib.findings import Finding, Interval, diagnostic, estimate
from memlib.identity import derive_seed
from memlib.report.format import say_p
from memlib.stats.blind import BlindBaseline, described_baseline, folds_by_group, tested_baseline
from memlib.stats.likeness import is_out, likeness, utility
from memlib.stats.randomization import Design

FOLDS, REDRAWS = 5, 999
CONTRADICTED = 0.01  # p-value at which a declared random draw is taken for contradicted
UNLIKE = 0.05  # level over all numbers of the likeness
FEWEST_SHADOWS = 3  # with which a target can be compared
OF_TOKENS = ("loss", "accuracy")  # numbers of the likeness that mean the same for tokens, of which many are answers at once


@dataclass(frozen=True)
class Blind:
    """The blind baseline of an audit."""

    found: BlindBaseline  #: success of telling members without the model; with a p-value where a random draw was declared.

    @property
    def contradicts(self) -> bool:
        """True if a random draw was declared and members differ from non-members by more than chance."""
        return self.found.p_value is not None and self.found.p_value <= CONTRADICTED

    @property
    def warning(self) -> str:
        """The warning for a contradicted declaration."""
        family = max(self.found.by_family, key=lambda name: self.found.by_family[name])
        return (
            "target.drawn declares a random draw, but members differ from non-members even without the model (AUC "
            f"{self.found.auc:.2f}, {say_p(self.found.p_value)}, most by {family}): nothing is tested; check target.drawn"
        )


def blind_baseline(audited: Audited, data: TrainingData) -> Blind | None:
    """Tell members from non-members without the model; None if memlib tossed the coins, or score.blind is false."""
    recipe, pool = audited.recipe, audited.pool
    if not recipe.score.blind or not recipe.target.is_external:
        return None
    features = (audited.features or _features(pool.ids, data)).by_group(pool.groups)
    units, seed = audited.units, derive_seed(recipe.score.seed, "blind")
    numbers = np.arange(len(units))
    if not recipe.is_drawn:
        return Blind(described_baseline(features.values, features.families, units.member, numbers, folds=FOLDS, seed=seed))
    folds = folds_by_group(numbers, FOLDS, seed=seed)
    design = Design.of(units.member, units.labels)
    return Blind(tested_baseline(features.values, features.families, design, folds, redraws=REDRAWS, seed=seed))


def _features(ids: Sequence[str], data: TrainingData) -> BlindFeatures:
    """Return the features of examples of the pool."""
    index = data.shard.content.index
    places = pc.index_in(pa.array(ids), value_set=index["example_id"].combine_chunks())
    return blind_features(index.take(places), data.images)


def control_findings(audited: Audited, blind: Blind | None) -> list[Finding]:
    """Return the findings on the blind baseline and on likeness."""
    rows = list(_likeness_rows(audited))
    return rows if blind is None else [*_blind_rows(audited, blind), *rows]


def _blind_rows(audited: Audited, blind: Blind) -> Iterator[Finding]:
    found, count, over = blind.found, len(audited.units), audited.units.noun
    params = {} if found.p_value is None else {"p": round(found.p_value, 6), "contradicted": blind.contradicts}
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
