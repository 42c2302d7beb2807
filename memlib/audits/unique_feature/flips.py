"""Decisions on other examples that the feature flips to the canary's label, in canary nets and in controls (2023).

Whoever carries a memorized feature is at risk of the canary's diagnosis. Canary nets and controls are exchanged within pairs,
as in the tests of the scores.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, settings
from memlib.audits.unique_feature.comparisons import VariantScore
from memlib.audits.unique_feature.exchange import Exchanged, exchange
from memlib.audits.unique_feature.recipe import FLIPS, Config
from memlib.findings import Finding, Interval, estimate, tested
from memlib.stats.inference import exact_interval, largest_mean, paired_interval


def flip_rows(units: pa.Table, config: Config) -> Iterator[Finding]:
    """Yield, for each variant and kind of examples, the paired difference in flipped decisions and both groups' shares.

    The differences are one family of one-sided tests, adjusted by Holm over variants and kinds of examples.

    Args:
        units: tables.UNITS.
        config: significance level, permutations, replicates, seed.
    """
    scores = [VariantScore(params, [Analysis(part, config) for part in parts], config)
              for params, parts in settings(units, flips=True)]  # fmt: skip
    for score in scores:
        if len(score.gains):
            found = exchange(
                [score.score], [], alpha=config.level / len(scores), permutations=config.permutations, seed=config.seed
            )
            yield _difference(score, found, len(scores))
        yield from _shares(score)


def _difference(score: VariantScore, found: Exchanged | None, count: int) -> Finding:
    """Return the mean difference of canary nets and controls; untested for nets of a single seed."""
    gains, pairs = score.gains, sum(len(pairs) for pairs in score.paired)
    at = {**score.params, "group": "canary - control", "statistic": "mean"}
    row = estimate(FLIPS, at, float(gains.mean()), n=len(gains), interval=_interval(score, gains))
    if found is None:
        return row
    level = score.config.level / count
    return tested(
        FLIPS, at | {"pairs": pairs, "exchanged": found.over}, row.value, n=row.n, interval=row.interval, family=FLIPS,
        p_value=float(found.p_values[0]), smallest_p=found.smallest_p,
        upper_bound=largest_mean(gains, level=score.config.error),
        detectable=found.detectable(_deviation(gains, float(found.deviations[0])), level),
    )  # fmt: skip


def _interval(score: VariantScore, gains: NDArray[np.float64]) -> Interval | None:
    """Return the interval of a mean difference of shares, with a width also where all units are equal."""
    interval = score.interval(gains, score.over(score.paired))
    if interval is None or interval.high is None:
        return None
    if interval.high - interval.low < 1e-12:
        return Interval(*paired_interval(gains), interval.over)
    return Interval(max(-1.0, interval.low), min(1.0, interval.high), interval.over)


def _deviation(gains: NDArray[np.float64], deviation: float) -> float:
    """Return the standard deviation of the mean difference; where all units are equal, as if two more were not."""
    low, high = paired_interval(gains)
    return deviation if np.ptp(gains) > 1e-12 else (high - low) / (2 * 1.96)


def _shares(score: VariantScore) -> Iterator[Finding]:
    """Yield the mean share of flipped decisions of canary nets and of controls."""
    for group, chosen in (("canary", score.trained), ("control", [d.controls for d in score.draws])):
        if all(len(nets) for nets in chosen):
            yield _share(score, group, chosen)


def _share(score: VariantScore, group: str, chosen: Sequence[NDArray[np.int64]]) -> Finding:
    means = score.means([d.values[nets] for d, nets in zip(score.draws, chosen, strict=True)], chosen)
    interval = None
    if not score.one_seed and len(means) > 1:
        interval = Interval(*exact_interval(float(means.sum()), len(means)), score.over(chosen))
    at = {**score.params, "group": group, "statistic": "mean"}
    return estimate(FLIPS, at, float(means.mean()), n=len(means), interval=interval)
