"""External models: the feature's score compared with the scores of other features of the same kind (null features).

Under the null hypothesis the feature is exchangeable with the null features: the model treats all features of this kind
alike.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.calibrated_maxima import ByLabel, settings_of
from memlib.audits.unique_feature.recipe import HEADLINES, OWN, SETTING, Config
from memlib.audits.unique_feature.scoring import Net, unit
from memlib.audits.unique_feature.tables import UNITS
from memlib.audits.unique_feature.verdict import verdict_on_external
from memlib.errors import UserError
from memlib.findings import Finding, diagnostic, settle, tested
from memlib.stats.inference import permutation_p
from memlib.stats.randomization import detectable


def check_nulls(count: int, alpha: float) -> None:
    """Check that there are enough null features for the highest-scoring feature to be significant.

    Raises:
        UserError: for fewer than 1 / alpha - 1 null features.
    """
    if 1 / (count + 1) > alpha * (1 + 1e-12):
        raise UserError(
            f"there are {count} null features, but at score.alpha {alpha:g} the rank test needs {round(1 / alpha) - 1}; "
            "raise score.null_features or give a list of texts in canary.feature.nulls"
        )


def own_units(names: Sequence[str], scores: NDArray[np.float64], config: Config, *, label: int | None = None) -> pa.Table:
    """Return one row per feature and setting: the maximum over labels, or the score at the canary's label if it is known.

    At each label all features, including the tested one, are centred by their common mean, which keeps them exchangeable.
    If the label is known, no maximum is taken, and the grey-box score becomes the white-box score (m_white).

    Args:
        names: names of the features; "canary" is the tested one.
        scores: (num_features, num_settings, num_classes, 4), as from score_by_label.
        config: outputs.
        label: the canary's label, if known.

    Returns:
        tables.UNITS.

    Raises:
        UserError: if no example has the label.
    """
    rows = []
    net = Net(number=0, canary=0, control=False, seed=0, label=-1 if label is None else label)
    features = ByLabel([net] * len(names), scores)
    for setting, (metric, output) in enumerate(settings_of(config)):
        labels = features.labels(setting)
        if label is not None and label not in labels:
            raise UserError(f"canary.label is {label}, but no example has that class; choose one of {labels.tolist()}")
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


def summarize_external(units: pa.Table, config: Config, *, null: str) -> pa.Table:
    """Return the findings on an external model, black box first.

    Each score is tested by the feature's rank among the null features, with Holm's adjustment over the scores.

    Args:
        units: scores of one net for the feature (canary) and for null features.
        config: alpha, bound.
        null: kind of the null features: names, letters, list or pictures.

    Returns:
        tables.SUMMARY.
    """
    metrics = sorted(set(units["metric"].to_pylist()) & set(SETTING), key=["m_black", "m_grey", "m_white"].index)
    keys = [(metric, output) for metric in metrics for output in config.outputs]
    bounds = {keys[0]: config.bound}  # the bound is in the unit of the headline's score
    rows = [row for key in keys for row in _rows(units, *key, config, bounds.get(key), null=null, num_scores=len(keys))]
    rows.sort(key=lambda row: not row.is_test)
    settled = settle(rows, alpha=config.level, headlines=HEADLINES)
    return settled.table(verdict_on_external(settled))


def _rows(
    units: pa.Table, metric: str, output: str, config: Config, bound: float | None, *, null: str, num_scores: int
) -> Iterator[Finding]:
    """Yield the test of the feature's score minus the mean score of the null features, then each of these two values."""
    scores = [row for row in units.to_pylist() if row["metric"] == metric and row["output"] == output]
    known = next(row["value"] for row in scores if row["feature"] == "canary")
    nulls = np.array([row["value"] for row in scores if row["feature"] != "canary"])
    params = {"metric": metric, "setting": SETTING[metric], "output": output, "null": null, "nulls": len(nulls)}
    smallest, mean = 1 / (1 + len(nulls)), float(nulls.mean())
    below = int(config.error * (len(nulls) + 1) + 1e-9)  # an exchangeable feature has a lower rank with this error
    lowest = float(np.sort(nulls)[below - 1]) if below else None
    yield tested(
        metric, params | {"group": "feature - others"}, known - mean, n=len(nulls), p_value=permutation_p(known, nulls),
        family=OWN, upper_bound=None if lowest is None else known - lowest, bound=bound, smallest_p=smallest,
        detectable=detectable(float(nulls.std(ddof=1)), config.level / num_scores)
        if smallest * num_scores <= config.level
        else None,
    )  # fmt: skip
    yield diagnostic(metric, params | {"group": "feature"}, known, n=1)
    yield diagnostic(metric, params | {"group": "others", "statistic": "mean"}, mean, n=len(nulls))
