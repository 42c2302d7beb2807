"""Which scores count, and what the nets of one setting say together."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.recipe import SEEDS_FOR_INTERVAL, SETTING, Config


def counting(units: pa.Table) -> NDArray[np.bool_]:
    """Which scores count: of the canary's label or a maximum, of the whole feature, first draw of partners."""
    own = np.array(units["own_label"].to_pylist(), dtype=bool)
    whole = np.array(units["feature"].to_pylist(), dtype=object) == "canary"
    chosen: NDArray[np.bool_] = own & whole & (units["draw"].to_numpy() == 0)
    return chosen


def settings(units: pa.Table) -> Iterator[tuple[dict[str, Any], list[pa.Table]]]:
    """The scores that count for each variant, metric and output, a table a draw of the data."""
    units = units.filter(pa.array(counting(units)))
    names = ("variant", "metric", "output")
    keys = list(zip(*(units[name].to_pylist() for name in names), strict=True))
    for key in dict.fromkeys(keys):
        part = units.filter(pa.array([k == key for k in keys]))
        seeds = part["data_seed"].to_pylist()
        params = {"variant": key[0]} if key[0] else {}
        params |= {"metric": key[1], "setting": SETTING[key[1]], "output": key[2]}
        yield params, [part.filter(pa.array([s == seed for s in seeds])) for seed in dict.fromkeys(seeds)]


class Analysis:
    """The scores of one cell at one metric and output: canary nets, controls, and their pairs by seed."""

    def __init__(self, units: pa.Table, config: Config) -> None:
        control = np.array(units["control"].to_pylist(), dtype=bool)
        self.values = units["value"].to_numpy()
        self.published = (units["published_p"].to_numpy() < config.alpha) & (self.values > 0)
        ranks = units["calibrated_p"].to_pylist()
        self.nets, self.controls = np.flatnonzero(~control), np.flatnonzero(control)
        possible = None not in ranks and 1 / max(1, len(self.controls)) <= config.alpha  # a control has one other fewer
        self.calibrated = np.array([p <= config.alpha for p in ranks]) if possible else None
        keys = list(zip(units["seed"].to_pylist(), units["canary"].to_pylist(), strict=True))
        by_key = {keys[i]: i for i in self.controls}
        pairs = [(i, by_key[keys[i]]) for i in self.nets if keys[i] in by_key]
        self.pairs = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        self.one_seed = len({keys[i][0] for i in self.nets}) < SEEDS_FOR_INTERVAL

    @property
    def criteria(self) -> dict[str, NDArray[np.bool_]]:
        """The calibrated criterion first, where there are controls enough."""
        found = {} if self.calibrated is None else {"calibrated": self.calibrated}
        return found | {"published": self.published}

    @property
    def gains(self) -> NDArray[np.float64]:
        """Score of each canary net minus its control's."""
        gains: NDArray[np.float64] = self.values[self.pairs[:, 0]] - self.values[self.pairs[:, 1]]
        return gains
