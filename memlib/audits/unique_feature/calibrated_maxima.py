"""Grey and black box: the maximum over labels of a net's score above its controls.

Any feature raises the scores of some labels, even in nets that never saw the feature. The published maximum over labels finds
these labels and misses the canary's own. Here each label's score is first centred by the mean of the controls of other seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.recipe import CONTROLS_FOR_P, Config
from memlib.audits.unique_feature.scoring import Net, unit
from memlib.audits.unique_feature.tables import UNITS

_CELLS = 2**22  # array elements held in memory at a time


@dataclass(frozen=True)
class ByLabel:
    """Grey- and black-box scores of one cell, before the maximum over labels.

    Attributes:
        nets: canary nets and controls.
        scores: (num_nets, num_settings, num_classes, 4), as from score_by_label.
    """

    nets: Sequence[Net]
    scores: NDArray[np.float64]

    def values(self, setting: int) -> NDArray[np.float64]:
        """Return M of each net at each label that has examples, (num_nets, num_labels)."""
        values = self.scores[:, setting, :, 0] - self.scores[:, setting, :, 1]
        return values[:, self.labels(setting)]

    def labels(self, setting: int) -> NDArray[np.int64]:
        """Return the labels that have examples."""
        return np.flatnonzero(~np.isnan(self.scores[:, setting, :, 0]).any(axis=0))


def settings_of(config: Config) -> list[tuple[str, str]]:
    """Return metric and output of each setting, in the order of score_by_label."""
    return [(metric, output) for output in config.outputs for metric in ("m_grey", "m_black")]


def maxima(by_label: ByLabel, config: Config, *, feature: str = "canary") -> pa.Table:
    """Return the highest centred score of each net and setting, with its rank among the controls of other seeds.

    Args:
        by_label: scores of one cell.
        config: outputs.
        feature: name of the feature that was shown.

    Returns:
        rows of tables.UNITS without variant, data_seed and epoch.
    """
    rows = []
    for setting, (metric, output) in enumerate(settings_of(config)):
        values, labels = by_label.values(setting), by_label.labels(setting)
        centre = centres(values, by_label.nets)
        top = (values - centre).argmax(axis=1)
        tried = len(labels) if metric == "m_grey" else 1
        for i, (net, p) in enumerate(zip(by_label.nets, ranks(values, by_label.nets), strict=True)):
            label, at = int(labels[top[i]]), float(centre[i, top[i]])
            shown, clean, chance, count = by_label.scores[i, setting, label]
            excess = (shown - clean - at, chance)
            rows.append(
                unit(
                    net, metric, output, excess, label, (shown, clean), int(count), tried=tried, centre=at, calibrated_p=p,
                    feature=feature,
                )
            )  # fmt: skip
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def centres(values: NDArray[np.float64], nets: Sequence[Net]) -> NDArray[np.float64]:
    """Return each net's centres: the mean at each label over the controls of other seeds; 0 where there are no such controls.

    A canary net and its control have the same centre, so that their maxima are exchangeable under the null.

    Args:
        values: (num_nets, num_labels).
        nets: the nets, in the order of `values`.

    Returns:
        (num_nets, num_labels).
    """
    control = np.array([net.control for net in nets])
    _, seed = np.unique([net.seed for net in nets], return_inverse=True)
    sums = np.zeros((seed.max() + 1, values.shape[1]))
    np.add.at(sums, seed[control], values[control])
    count = control.sum() - np.bincount(seed[control], minlength=len(sums))
    others = (sums.sum(axis=0) - sums) / np.maximum(1, count)[:, None]
    return np.asarray(np.where(count[:, None] > 0, others, 0.0)[seed])


def ranks(values: NDArray[np.float64], nets: Sequence[Net]) -> list[float | None]:
    """Return the conformal p-value of each net's maximum among the controls of other seeds; None with fewer than 19 controls.

    The net and these controls are centred by their common mean, so that the rank is exact if they are exchangeable.

    Args:
        values: (num_nets, num_labels).
        nets: the nets, in the order of `values`.
    """
    control = np.array([net.control for net in nets])
    seeds = np.array([net.seed for net in nets], dtype=object)
    p_values: list[float | None] = []
    for i, net in enumerate(nets):
        others = values[control & (seeds != net.seed)]
        if len(others) < CONTROLS_FOR_P:
            p_values.append(None)
            continue
        centre = (others.sum(axis=0) + values[i]) / (len(others) + 1)
        reached = (others - centre).max(axis=1) >= (values[i] - centre).max() - 1e-12
        p_values.append((1 + int(reached.sum())) / (1 + len(others)))
    return p_values


def exchanged_maxima(
    canary: NDArray[np.float64],
    control: NDArray[np.float64],
    further: NDArray[np.float64],
    signs: NDArray[np.int8],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return, for each exchange of canary and control nets within pairs, the weighted sum over pairs of the canary's centred
    maximum minus the control's; the centres are recomputed after each exchange.

    Args:
        canary, control: (num_pairs, num_labels), the two nets of each pair.
        further: (num_further, num_labels), controls without a partner.
        signs: (num_exchanges, num_pairs) with entries 1 and -1; -1 exchanges the pair.
        weights: (num_pairs,).

    Returns:
        (num_exchanges,).
    """
    others = len(control) - 1 + len(further)
    totals = np.empty(len(signs))
    size = max(1, _CELLS // max(1, canary.size))
    for start in range(0, len(signs), size):
        sign = signs[start : start + size].astype(np.float64)
        kept = (1 + sign)[..., None] / 2  # 1 where the control remains the control, else 0
        shown = kept * control + (1 - kept) * canary
        centre = (shown.sum(axis=1, keepdims=True) - shown + further.sum(axis=0)) / max(1, others)
        gains = (canary - centre).max(axis=2) - (control - centre).max(axis=2)
        totals[start : start + size] = (sign * gains) @ weights
    return totals
