"""Comparisons of variants with their baselines, such as of regularized nets with unregularized ones (2022, 3.2).

Two quantities are compared: the mean score M of the canary nets, as in the papers, and the memory, that is, its mean
difference from the controls; what raises M in canary nets and controls alike is no memory. Under the null hypothesis the
change of the recipe changes neither. Units of the same seed and canary are then exchangeable between the two variants, and
the signs of their differences are flipped. Other units are exchanged between the variants; their statistic is Welch's t,
whose level also holds for many units of unequal variance (Janssen 1997).

Grey- and black-box maxima are centred by the controls of their own variant: on one draw of the data, all units of a variant
share the error of its centre, which the spread of the units does not show. Their changes are tested over draws only.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, level_of, unit_means
from memlib.audits.unique_feature.calibrated_maxima import settings_of
from memlib.audits.unique_feature.exchange import Score
from memlib.audits.unique_feature.recipe import Config
from memlib.findings import Finding, Interval, estimate, tested
from memlib.identity import derive_seed
from memlib.stats.changes import flipped_p, welch_p
from memlib.stats.inference import mean_interval
from memlib.stats.randomization import detectable


class VariantScore:
    """One score of a variant in all draws of the data."""

    def __init__(self, params: Mapping[str, Any], draws: Sequence[Analysis], config: Config) -> None:
        self.draws, self.config = draws, config
        counts = {"nets": sum(len(d.nets) for d in draws), "controls": sum(len(d.controls) for d in draws)}
        self.params = {**params, **counts}
        places = {setting: place for place, setting in enumerate(settings_of(config))}
        self.score = Score(draws, places.get((str(params["metric"]), str(params["output"]))))
        self.one_seed = all(d.one_seed for d in draws)

    @property
    def metric(self) -> str:
        """Name of the score."""
        return str(self.params["metric"])

    def means(self, values: Sequence[NDArray[np.float64]], nets: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
        """Return the mean value of each unit; `nets` gives the net of each value, one array per draw."""
        return unit_means(values, [d.canary[n] for d, n in zip(self.draws, nets, strict=True)])

    def over(self, nets: Sequence[NDArray[np.int64]]) -> str:
        """Return the units that were sampled: nets, canaries or data; `nets` are the nets of each draw."""
        return level_of([d.canary[n] for d, n in zip(self.draws, nets, strict=True)])

    @property
    def paired(self) -> list[NDArray[np.int64]]:
        """Canary net of each pair, one array per draw."""
        return [d.pairs[:, 0] for d in self.draws]

    @property
    def gains(self) -> NDArray[np.float64]:
        """Differences from the controls by unit; empty if any draw has no pair."""
        if not all(len(pairs) for pairs in self.paired):
            return np.zeros(0)
        return self.means([d.gains for d in self.draws], self.paired)

    @property
    def trained(self) -> list[NDArray[np.int64]]:
        """All canary nets, one array per draw."""
        return [d.nets for d in self.draws]

    @property
    def levels(self) -> NDArray[np.float64]:
        """Scores of the canary nets by unit."""
        return self.means([d.values[d.nets] for d in self.draws], self.trained)

    def has_interval(self, means: NDArray[np.float64]) -> bool:
        """Return whether there are several units, from nets of several seeds."""
        return not self.one_seed and len(means) >= 2

    def interval(self, means: NDArray[np.float64], over: str, *, level: float = 0.95) -> Interval | None:
        """Return the interval of the mean over units; None for nets of one seed or a single unit."""
        if not self.has_interval(means):
            return None
        seed = derive_seed(self.config.seed, "bootstrap", self.metric)
        return Interval(*mean_interval(means, replicates=self.config.replicates, seed=seed, level=level), over)


CHANGE = "change"  # statistic of the findings
LEVEL, MEMORY = "canary", "canary - control"  # groups of the findings: mean M, and its difference from the controls
CENTRED = "its maxima are centred by the same controls"  # reason not to test a change


@dataclass(frozen=True)
class Comparison:
    """A variant and its baseline."""

    variant: str  #: variant, baseline: names of the two variants.
    baseline: str
    same_data: bool  #: whether the two have the same examples with the same roles, so that equal ids are equal examples.


def comparisons_of(data: Mapping[str, Any], baselines: Mapping[str, str]) -> list[Comparison]:
    """Return the comparisons of a recipe; without baselines, of each variant with the first.

    Args:
        data: identity of the examples of each variant.
        baselines: baseline of each variant that is compared.
    """
    first, *others = data
    pairs = baselines or dict.fromkeys(others, first)
    return [Comparison(variant, baseline, data[variant] == data[baseline]) for variant, baseline in pairs.items()]


def compare(scores: Mapping[str, Sequence[VariantScore]], compared: Sequence[Comparison]) -> Iterator[Finding]:
    """Yield the change in M and in memory from the baseline to each variant: two rows for each score that both have.

    Each score and quantity is a family of its own, adjusted by Holm over the variants. Changes are two-sided tests.
    """
    named = {variant: {_name(score): score for score in rows} for variant, rows in scores.items()}
    for one in compared:
        ours, theirs = named[one.variant], named[one.baseline]
        for name in [name for name in ours if name in theirs]:
            for group in (LEVEL, MEMORY):
                yield from _change(one, ours[name], theirs[name], group, len(compared))


def _name(score: VariantScore) -> tuple[str, str]:
    return score.metric, str(score.params["output"])


def _change(one: Comparison, ours: VariantScore, theirs: VariantScore, group: str, count: int) -> Iterator[Finding]:
    """Yield the change of one quantity, tested if both sides have two or more units of one kind, centred independently."""
    sides = [_side(score, group) for score in (ours, theirs)]
    (a, over), (b, other) = sides
    if not len(a) or not len(b):
        return
    paired = _is_paired(one, ours, theirs, group)
    if paired and np.array_equal(a, b):  # the score does not depend on what the variant changes, such as the probe data
        return
    at = {**ours.params, "group": group, "statistic": CHANGE, "from": one.baseline, "paired": paired}
    if any(score.score.setting is not None and len(score.draws) == 1 for score in (ours, theirs)):
        at["not_tested"] = CENTRED
    row = estimate(ours.metric, at, float(a.mean() - b.mean()), n=min(len(a), len(b)))
    if "not_tested" in at or over != other or min(len(a), len(b)) < 2 or ours.one_seed or theirs.one_seed:
        yield row
        return
    found = _paired(ours, a - b, over) if paired else _unpaired(ours, a, b, over)
    level = ours.config.level / count
    yield tested(
        row.metric, at, row.value, n=row.n, interval=found.interval, p_value=found.p, smallest_p=found.smallest_p,
        family=" ".join(["change of M," if group == LEVEL else "change of memory,", *_name(ours)]), either_direction=True,
        detectable=detectable(
            found.deviation, level, two_sided=True, freedom=found.freedom, smallest_p=found.smallest_p
        ),
    )  # fmt: skip


def _side(score: VariantScore, group: str) -> tuple[NDArray[np.float64], str]:
    """Return a quantity's values, (num_units,), and the name of the units."""
    return (score.levels, score.over(score.trained)) if group == LEVEL else (score.gains, score.over(score.paired))


def _is_paired(one: Comparison, ours: VariantScore, theirs: VariantScore, group: str) -> bool:
    """Return whether the units are the same: draws with the same numbers, or the same seeds and canaries of the same data."""
    if len(ours.draws) > 1:
        return len(ours.draws) == len(theirs.draws)
    if not one.same_data or len(theirs.draws) > 1:
        return False
    nets = [score.trained[0] if group == LEVEL else score.paired[0] for score in (ours, theirs)]
    mine, other = (score.draws[0].identities(chosen) for score, chosen in zip((ours, theirs), nets, strict=True))
    return mine == other


@dataclass(frozen=True)
class _Test:
    """A two-sided test of a change."""

    interval: Interval | None  #: interval of the change.
    p: float  #: p, smallest_p: its p-value, and the smallest one that data of this size can give.
    smallest_p: float
    deviation: float  #: standard error of the change.
    freedom: int  #: its degrees of freedom.


def _paired(score: VariantScore, changes: NDArray[np.float64], over: str) -> _Test:
    """Test the mean of the changes of the same units."""
    permutations = score.config.permutations
    p = flipped_p(changes, permutations=permutations, seed=derive_seed(score.config.seed, "flips"))
    least = max(2.0 ** (1 - len(changes)), 2 / (1 + permutations))
    return _Test(
        score.interval(changes, over), p, least, float(changes.std(ddof=1)) / math.sqrt(len(changes)), len(changes) - 1
    )


def _unpaired(score: VariantScore, a: NDArray[np.float64], b: NDArray[np.float64], over: str) -> _Test:
    """Test the difference of the means of different units."""
    permutations = score.config.permutations
    p = welch_p(a, b, permutations=permutations, seed=derive_seed(score.config.seed, "exchanged units"))
    least = max(2 / math.comb(len(a) + len(b), len(a)), 2 / (1 + permutations))
    interval = None
    if np.ptp(a) + np.ptp(b):
        t = scipy.stats.ttest_ind(a, b, equal_var=False).confidence_interval()
        interval = Interval(float(t.low), float(t.high), over)
    error = math.sqrt(a.var(ddof=1) / len(a) + b.var(ddof=1) / len(b))
    return _Test(interval, p, least, error, len(a) + len(b) - 2)
