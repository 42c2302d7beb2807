"""One score of a variant over all draws of the data: its values, the units that were sampled, and their intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import Analysis, level_of, unit_means
from memlib.audits.unique_feature.calibrated_maxima import settings_of
from memlib.audits.unique_feature.exchange import Score
from memlib.audits.unique_feature.recipe import Config
from memlib.findings import Interval
from memlib.identity import derive_seed
from memlib.stats.inference import mean_interval


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
