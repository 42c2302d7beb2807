"""A model that was trained elsewhere: the feature's score among those of other features of the same kind.

Under the null the feature is one of them: whatever the model does to features of this kind it does to this one too.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.maxima import ByLabel, settings_of
from memlib.audits.unique_feature.recipe import SETTING, Config
from memlib.audits.unique_feature.scoring import Net, unit
from memlib.audits.unique_feature.tables import UNITS
from memlib.audits.unique_feature.verdict import OWN, verdict_on_own
from memlib.errors import UserError
from memlib.findings import Row, diagnostic, settle, summary_table, tested
from memlib.stats.inference import permutation_p
from memlib.stats.randomization import detectable


def check_nulls(count: int, alpha: float) -> None:
    """Refuse a comparison in which even the highest of all features would not be significant.

    Raises:
        UserError: for fewer than 1 / alpha - 1 null features.
    """
    if 1 / (count + 1) > alpha * (1 + 1e-12):
        raise UserError(
            f"there are {count} null features, but a rank among them needs {round(1 / alpha) - 1} at score.alpha {alpha:g}; "
            "raise score.null_features or give a list of texts in canary.feature.nulls"
        )


def own_units(names: Sequence[str], scores: NDArray[np.float64], config: Config, *, label: int | None = None) -> pa.Table:
    """A row a feature and setting: the maximum over labels, or the score at the feature's label where it is known.

    All features, the tested one too, are centred by their common mean at each label, which keeps them exchangeable. At a
    known label there is no maximum: the grey box, which knows the label then, is the white box.

    Args:
        names: of the features; "canary" is the tested one.
        scores: (num_features, num_settings, num_classes, 4), as from score_by_label.
        config: outputs.
        label: of the canary, where it is known.

    Returns:
        tables.UNITS.

    Raises:
        UserError: when no example has the label.
    """
    rows = []
    net = Net(number=0, canary=0, control=False, seed=0, label=-1 if label is None else label)
    features = ByLabel([net] * len(names), scores)
    for setting, (metric, output) in enumerate(settings_of(config)):
        labels = features.labels(setting)
        if label is not None and label not in labels:
            raise UserError(f"canary.label is {label}, but no example has that class; there are {labels.tolist()}")
        values = features.values(setting)
        centre = values.mean(axis=0)
        known = None if label is None else int(np.flatnonzero(labels == label)[0])
        for i, name in enumerate(names):
            place = int((values[i] - centre).argmax()) if known is None else known
            shown, clean, p, count = scores[i, setting, labels[place]]
            at = float(centre[place])
            title = "m_white" if metric == "m_grey" and known is not None else metric
            tried = len(labels) if title == "m_grey" else 1
            rows.append(
                unit(
                    net, title, output, (shown - clean - at, p), int(labels[place]), (shown, clean), int(count), tried=tried,
                    centre=at, feature=name,
                )
                | {"own_label": True, "variant": "", "data_seed": 0, "epoch": 0}
            )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def summarize_own(units: pa.Table, config: Config, *, null: str) -> pa.Table:
    """The findings on a model that was trained elsewhere, black box first.

    Each score is tested by the rank of the feature among the null features, Holm over the scores.

    Args:
        units: scores of one net, of the feature (canary) and of null features.
        config: alpha, bound.
        null: what the null features are: names, letters, list or pictures.

    Returns:
        tables.SUMMARY.
    """
    metrics = sorted(set(units["metric"].to_pylist()) & set(SETTING), key=["m_black", "m_grey", "m_white"].index)
    keys = [(metric, output) for metric in metrics for output in config.outputs]
    bounds = [config.bound, *[None] * (len(keys) - 1)]  # in the headline's unit
    rows = [
        row
        for key, bound in zip(keys, bounds, strict=True)
        for row in _rows(units, *key, config.alpha, bound, null=null, num_scores=len(keys))
    ]
    rows.sort(key=lambda row: row["role"] != "test")
    settled = settle(rows, alpha=config.alpha)
    return summary_table(settled, verdict_on_own(settled))


def _rows(
    units: pa.Table, metric: str, output: str, alpha: float, bound: float | None, *, null: str, num_scores: int
) -> Iterator[Row]:
    """The feature's score above the mean of the others, with its test; then both alone."""
    mine = [row for row in units.to_pylist() if row["metric"] == metric and row["output"] == output]
    known = next(row["value"] for row in mine if row["feature"] == "canary")
    nulls = np.array([row["value"] for row in mine if row["feature"] != "canary"])
    params: dict[str, Any] = {"metric": metric, "setting": SETTING[metric], "output": output, "null": null}
    params["nulls"] = len(nulls)
    smallest, mean = 1 / (1 + len(nulls)), float(nulls.mean())
    lowest = np.sort(nulls)[max(0, int(0.05 * (len(nulls) + 1)) - 1)]  # a feature like them lies below with 5 %
    yield tested(
        metric, params | {"group": "feature - others"}, known - mean, n=len(nulls), p_value=permutation_p(known, nulls),
        family=OWN, upper_bound=float(known - lowest), bound=bound, smallest_p=smallest,
        detectable=detectable(float(nulls.std(ddof=1)), alpha / num_scores)
        if smallest * num_scores <= alpha
        else None,
    )  # fmt: skip
    yield diagnostic(metric, params | {"group": "feature"}, known, n=1)
    yield diagnostic(metric, params | {"group": "others", "statistic": "mean"}, mean, n=len(nulls))
