"""Estimates that characterize memory: its size by epoch, and units of the last hidden layer (Hartley 2022, section 3.3)."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.analysis import level_of, of_variant, unit_means
from memlib.audits.unique_feature.curves import carried_forward
from memlib.audits.unique_feature.recipe import Config
from memlib.findings import Finding, Interval, estimate
from memlib.identity import derive_seed
from memlib.stats.inference import mean_interval

MEMORY_BY_EPOCH, LATENT_UNIT = "memory_by_epoch", "latent_unit"
EPOCHS = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)


def epoch_rows(history: pa.Table, config: Config) -> Iterator[Finding]:
    """Yield M of canary nets less that of controls of the same seed and canary, after some epochs (2022, Fig. 3c).

    Nets that stopped early count with the epoch that was kept. Nets of a single seed yield nothing.

    Args:
        history: training histories, see `epoch_curves`, with a column canary.
        config: replicates, seed.
    """
    frame = carried_forward(history.to_pandas())
    for (variant, output), part in frame[frame["value"].notna()].groupby(["variant", "output"]):
        if part["seed"].nunique() < 2:
            continue
        for epoch in EPOCHS:
            at = part[part["epoch"] == epoch]
            pairs = at.pivot_table(index=["data_seed", "canary", "seed"], columns="control", values="value").dropna()
            if len(pairs) < 2 or pairs.shape[1] < 2:
                continue
            draws = [draw for _, draw in pairs.groupby(level="data_seed")]
            gains = [(draw[False] - draw[True]).to_numpy() for draw in draws]
            canaries = [draw.index.get_level_values("canary").to_numpy() for draw in draws]
            means = unit_means(gains, canaries)
            params = {"output": output, "epoch": epoch, "group": "canary - control by epoch", "statistic": "mean"}
            yield _mean(MEMORY_BY_EPOCH, of_variant(variant) | params, means, level_of(canaries), config)


def latent_rows(
    variant: str,
    feature: NDArray[np.float64],
    random: NDArray[np.float64],
    control: NDArray[np.float64],
    canaries: Sequence[int],
    config: Config,
) -> Iterator[Finding]:
    """Yield how often the feature excites one unit of the last hidden layer, beyond random partners and in controls.

    On the first half of the canaries, the unit is chosen that the feature excites most beyond random partners; the estimates
    are made on the other half (2022, Fig. 3b, makes no such split). A unit that is excited as often in controls is no memory.

    Args:
        variant: the recipe's variant.
        feature, random: (num_nets, num_units) shares of examples that excite the unit only with the feature, or partner.
        control: (num_controls, num_units) likewise with the feature, in nets of the same seed that never saw it, if any.
        canaries: (num_nets,) number of each net's canary.
        config: replicates, seed.
    """
    numbers, place = np.unique(canaries, return_inverse=True)
    by_canary = [np.stack([side[place == i].mean(axis=0) for i in range(len(numbers))]) for side in (feature, random)]
    half = len(numbers) // 2
    if half < 2:
        return
    excess = by_canary[0] - by_canary[1]
    unit = int(excess[:half].mean(axis=0).argmax())
    shares = by_canary[0][half:, unit]
    rows = {"feature": shares, "feature - random": excess[half:, unit]}
    if len(control):
        rows["feature - control"] = shares - control[:, unit].mean()
    for group, values in rows.items():
        params = {"unit": unit, "group": group, "controls": len(control), "statistic": "mean"}
        yield _mean(LATENT_UNIT, of_variant(variant) | params, values, "canaries", config)


def _mean(metric: str, params: dict[str, object], values: NDArray[np.float64], over: str, config: Config) -> Finding:
    """Return the mean over units with its bootstrap interval."""
    ends = mean_interval(values, replicates=config.replicates, seed=derive_seed(config.seed, "bootstrap", metric))
    return estimate(metric, params, float(values.mean()), n=len(values), interval=Interval(*ends, over))
