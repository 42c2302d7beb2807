"""Selection of the scores that count, and joint analysis of the nets of one setting.

Nets are nested in canaries, and canaries in draws of the data. An interval is over the highest of these levels that was
sampled more than once; its units are means over the levels below.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.recipe import AT_LABEL, FLIPS, SETTING, Config
from memlib.stats.inference import threshold_rank


def counting(units: pa.Table) -> NDArray[np.bool_]:
    """Return a mask of the scores that count: own_label set, whole feature shown, first draw of random partners."""
    own = np.array(units["own_label"].to_pylist(), dtype=bool)
    whole = np.array(units["feature"].to_pylist(), dtype=object) == "canary"
    chosen: NDArray[np.bool_] = own & whole & (units["draw"].to_numpy() == 0)
    return chosen


def settings(units: pa.Table, *, flips: bool = False) -> Iterator[tuple[dict[str, Any], list[pa.Table]]]:
    """Yield the scores that count for each variant, metric and output, as one table per draw of the data.

    Args:
        units: tables.UNITS.
        flips: whether to yield the shares of flipped decisions instead of the M scores.
    """
    units = units.filter(
        pa.array(counting(units) & ((np.array(units["metric"].to_pylist(), dtype=object) == FLIPS) == flips))
    )
    names = ("variant", "metric", "output")
    keys = list(zip(*(units[name].to_pylist() for name in names), strict=True))
    for key in dict.fromkeys(keys):
        part = units.filter(pa.array([k == key for k in keys]))
        seeds = part["data_seed"].to_pylist()
        params = of_variant(key[0]) | {"metric": key[1], "setting": SETTING.get(key[1], "white"), "output": key[2]}
        yield params, [part.filter(pa.array([s == seed for s in seeds])) for seed in dict.fromkeys(seeds)]


def of_variant(name: str) -> dict[str, Any]:
    """Return the params that name a variant; none in a recipe without variants."""
    return {"variant": name} if name else {}


class Analysis:
    """Scores of one cell for one metric and output: canary nets, controls, and their pairs by seed and canary."""

    def __init__(self, units: pa.Table, config: Config) -> None:
        control = np.array(units["control"].to_pylist(), dtype=bool)
        self.values = units["value"].to_numpy()
        self.canary = units["canary"].to_numpy()
        self.published = (units["published_p"].to_numpy() < config.alpha) & (self.values > 0)
        self.nets, self.controls = np.flatnonzero(~control), np.flatnonzero(control)
        keys = list(zip(units["seed"].to_pylist(), units["canary"].to_pylist(), strict=True))
        self.examples = units["example_id"].to_pylist()
        self.seeds = [seed for seed, _ in keys]
        by_key = {keys[i]: i for i in self.controls}
        pairs = [(i, by_key[keys[i]]) for i in self.nets if keys[i] in by_key]
        self.pairs = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        self.one_seed = len({keys[i][0] for i in self.nets}) < 2
        ranked = units["metric"][0].as_py() in AT_LABEL
        self.one_label = not ranked or len(set(units["label"].to_pylist())) == 1
        self.rank = threshold_rank(len(self.controls), config.level)

    @property
    def gains(self) -> NDArray[np.float64]:
        """Score of each paired canary net minus that of its control."""
        gains: NDArray[np.float64] = self.values[self.pairs[:, 0]] - self.values[self.pairs[:, 1]]
        return gains

    def identities(self, nets: NDArray[np.int64]) -> list[tuple[int, str | None]]:
        """Return the seed of each net, and the example that is its canary."""
        return [(self.seeds[net], self.examples[net]) for net in nets]

    @property
    def calibrated(self) -> NDArray[np.bool_] | None:
        """Mask of the nets that exceed the rank-th largest control; a new control does so with probability at most alpha.

        None with fewer than 1 / alpha - 1 controls, or if canaries of several labels have no common threshold.
        """
        if not self.rank or not self.one_label:
            return None
        threshold = np.sort(self.values[self.controls])[-self.rank]
        beyond: NDArray[np.bool_] = self.values > threshold
        return beyond

    @property
    def criteria(self) -> dict[str, NDArray[np.bool_]]:
        """Mask of memorizing nets by criterion; the calibrated criterion comes first, if it is available."""
        calibrated = self.calibrated
        masks = {} if calibrated is None else {"calibrated": calibrated}
        return masks | {"published": self.published}


def level_of(canaries: Sequence[NDArray[np.int64]]) -> str:
    """Return the sampling unit of an interval: draws of the data, canaries or nets.

    Args:
        canaries: the canary of each net, one array per draw of the data.
    """
    if len(canaries) > 1:
        return "data"
    return "canaries" if len(np.unique(canaries[0])) > 1 else "nets"


def unit_means(values: Sequence[NDArray[np.float64]], canaries: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the means of the units over which an interval is computed.

    Args:
        values: the value of each net, one array per draw of the data.
        canaries: the canary of each net, likewise.

    Returns:
        (num_units,): draws (means over canaries), canaries (means over nets), or the nets themselves.
    """
    if len(values) == 1 and len(np.unique(canaries[0])) == 1:
        return np.asarray(values[0], dtype=np.float64)
    by_canary = [_means_by(value, canary) for value, canary in zip(values, canaries, strict=True)]
    return by_canary[0] if len(values) == 1 else np.array([means.mean() for means in by_canary])


def unit_weights(canaries: Sequence[NDArray[np.int64]]) -> NDArray[np.float64]:
    """Return the weight of each net in the mean of unit_means, (num_nets in all draws,), summing to 1."""
    parts = []
    for canary in canaries:
        _, place, count = np.unique(canary, return_inverse=True, return_counts=True)
        parts.append(1 / (len(canaries) * len(count) * count[place]))
    return np.concatenate(parts)


def _means_by(values: NDArray[np.float64], groups: NDArray[np.int64]) -> NDArray[np.float64]:
    _, place, count = np.unique(groups, return_inverse=True, return_counts=True)
    means: NDArray[np.float64] = np.bincount(place, weights=values) / count
    return means
