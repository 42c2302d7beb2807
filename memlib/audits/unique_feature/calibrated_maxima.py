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
_BLOCK = 2**13  # exchanges of pairs that are computed at a time; they fit into a cache


@dataclass(frozen=True)
class ByLabel:
    """Grey- and black-box scores of one cell, before the maximum over labels."""

    nets: Sequence[Net]  #: canary nets and controls.
    scores: NDArray[np.float64]  #: (num_nets, num_settings, num_classes, 4), as from score_by_label.

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
    assert np.isfinite(values).all(), "scores are finite"
    control = np.flatnonzero([net.control for net in nets])
    _, seed = np.unique([net.seed for net in nets], return_inverse=True)
    sums, counts = np.zeros((seed.max() + 1, values.shape[1])), np.bincount(seed[control], minlength=seed.max() + 1)
    np.add.at(sums, seed[control], values[control])
    others = (len(control) - counts)[seed]
    centre = ((sums.sum(axis=0) - sums)[seed] + values) / (others + 1)[:, None]
    queries = _Queries(values, centre, (values - centre).max(axis=1) - 1e-12)
    ranked = np.flatnonzero(others >= CONTROLS_FOR_P)
    reached = _reaching(queries, ranked, control) - _own_reaching(queries, ranked, control, seed)
    p_values: list[float | None] = [None] * len(nets)
    for i in ranked.tolist():
        p_values[i] = (1 + int(reached[i])) / (1 + int(others[i]))
    return p_values


@dataclass(frozen=True)
class _Queries:
    """The maxima of nets, each to be compared with those of controls that are centred as the net is."""

    values: NDArray[np.float64]  #: values, centre: (num_nets, num_labels).
    centre: NDArray[np.float64]
    least: NDArray[np.float64]  #: (num_nets,), the maximum from which on a control reaches that of the net.

    def reached(
        self, nets: NDArray[np.int64], rows: NDArray[np.int64], spans: NDArray[np.int64], weights: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the total weight, (num_nets,), of the rows in each net's span whose maximum reaches that of the net.

        Args:
            nets: the nets to compare; the others have weight 0.
            rows: indices of controls.
            spans: (2, len(nets)) begin and end among `rows`.
            weights: (len(rows),).
        """
        total, counts = np.zeros(len(self.values), dtype=np.int64), spans[1] - spans[0]
        parts = np.cumsum(counts * self.values.shape[1]) // _CELLS
        for part in np.split(np.arange(len(nets)), np.flatnonzero(np.diff(parts)) + 1):
            count = counts[part]
            net = np.repeat(nets[part], count)
            place = np.arange(len(net)) + np.repeat(spans[0, part] - (np.cumsum(count) - count), count)
            hits = (self.values[rows[place]] - self.centre[net]).max(axis=1) >= self.least[net]
            total += np.bincount(net[hits], weights=weights[place[hits]], minlength=len(total)).astype(np.int64)
        return total


def _reaching(queries: _Queries, nets: NDArray[np.int64], control: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of controls of any seed whose maximum reaches that of each net.

    The centres of two nets differ by little, so that sorting the controls by their maxima about one centre decides all but
    those close to the net's own maximum; only these are compared label by label. Equal controls are compared once.
    """
    distinct, first, weights = np.unique(queries.values[control], axis=0, return_index=True, return_counts=True)
    middle = queries.centre.mean(axis=0)
    maxima = (distinct - middle).max(axis=1)
    order = np.argsort(maxima, kind="stable")
    apart, slack = (queries.centre - middle)[nets], 1e-14 * float(np.abs(queries.values).max(initial=0.0))
    least = queries.least[nets]
    ends = np.stack([least + apart.min(axis=1) - slack, least + apart.max(axis=1) + slack])
    spans = np.searchsorted(maxima[order], ends)
    reached = queries.reached(nets, control[first[order]], spans, weights[order])
    reached[nets] += (len(control) - np.append(0, np.cumsum(weights[order])))[spans[1]]
    return reached


def _own_reaching(
    queries: _Queries, nets: NDArray[np.int64], control: NDArray[np.int64], seed: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of controls of each net's own seed whose maximum reaches that of the net."""
    rows = control[np.argsort(seed[control], kind="stable")]
    spans = np.stack([np.searchsorted(seed[rows], seed[nets]), np.searchsorted(seed[rows], seed[nets], side="right")])
    return queries.reached(nets, rows, spans, np.ones(len(rows), dtype=np.int64))


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
    others = max(1, len(control) - 1 + len(further))
    signed, totals = signs.astype(np.float64), np.empty(len(signs))
    both = (canary + control).sum(axis=0) / 2 + further.sum(axis=0)
    moved, weighted = (control - canary) / 2, signed * weights
    # values less the part of the centre that no exchange of other pairs changes: (canary or control, labels, pairs)
    kept, swapped = (np.stack([(side + shown / others).T for side in (canary, control)]) for shown in (control, canary))
    size = max(1, _BLOCK // max(1, len(control)))
    for start in range(0, len(signs), size):
        sign = signed[start : start + size]
        centre, is_kept = (both + sign @ moved) / others, sign > 0
        tops = np.full((2, *sign.shape), -np.inf)
        for label, at in enumerate(centre.T):
            for top, as_is, exchanged in zip(tops, kept[:, label], swapped[:, label], strict=True):
                np.maximum(top, np.where(is_kept, as_is, exchanged) - at[:, None], out=top)
        totals[start : start + size] = (weighted[start : start + size] * (tops[0] - tops[1])).sum(axis=1)
    return totals
