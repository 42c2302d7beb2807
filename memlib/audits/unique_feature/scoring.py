"""Per-model scores, calibrated against their controls."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.formulas import divergence, log_softmax, m_kl, m_of_labels, m_w, of_label, to_output
from memlib.audits.unique_feature.recipe import AT_LABEL, CONTROLS_FOR_P, FLIPS, Config, Output
from memlib.audits.unique_feature.tables import UNITS, with_column
from memlib.identity import derive_seed
from memlib.specs import NetsSpec
from memlib.stats.inference import paired_t

Pair = tuple[NDArray[np.float64], ...]
"""Two values of each net, each (num_nets,)."""


@dataclass(frozen=True)
class Net:
    """A canary net or control of a cell."""

    number: int  #: counted within the cell; a control has the number of the canary net it is paired with.
    canary: int  #: number of the canary; for a control, number of the canary whose clean twin it saw.
    control: bool  #: whether the feature was left out of the training set.
    seed: int  #: seed of initial weights and order; a canary net and a control with the same seed and canary are a pair.
    label: int  #: label of the canary.


@dataclass(frozen=True)
class Pull:
    """Self-influence of a canary without and with the feature, in models from the same seed (2022, 3.3)."""

    example_id: str
    without_feature: float
    with_feature: float


@dataclass(frozen=True)
class Shown:
    """Class scores of nets on the examples used for scoring: logits (num_nets, num_examples, num_classes)."""

    labels: Sequence[int]  #: labels of the cell's canaries.
    #: label -> (clean, featured) for the training examples of that label.
    by_label: Mapping[int, tuple[NDArray[Any], NDArray[Any]]]
    other: tuple[NDArray[Any], NDArray[Any]]  #: (clean, featured) for the probe data.
    #: label -> one array per draw, with random partners of the feature.
    random_by_label: Mapping[int, Sequence[NDArray[Any]]]
    random_other: Sequence[NDArray[Any]]  #: one array per draw, with random partners, for the probe data.
    other_labels: NDArray[np.int64] | None = None  #: labels of the probe data, if they are held-out examples.


def score(nets: Sequence[Net], shown: Shown, config: Config, *, random: bool = True) -> pa.Table:
    """Compute the scores that need no maximum over labels: m_white, and m_w and m_kl from random partners.

    In the white box a net is scored at the labels of all canaries of the cell, so that a control can calibrate all of them.

    Args:
        nets: the nets, in the order of the arrays.
        shown: their class scores.
        config: outputs.
        random: whether to compute m_w and m_kl.

    Returns:
        tables.UNITS without variant, data_seed, epoch and the p-values that need controls.
    """
    rows = [row for output in config.outputs for row in _white_rows(nets, shown, output)]
    rows += _random_rows(nets, shown) if random else []
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def _white_rows(nets: Sequence[Net], shown: Shown, output: Output) -> Iterator[dict[str, Any]]:
    for label in shown.labels:
        clean, featured = (of_label(a, label, output) for a in shown.by_label[label])
        means = featured.mean(axis=1), clean.mean(axis=1)
        yield from _rows(nets, "m_white", output, paired_t(featured - clean), label, means, clean.shape[1])


def _rows(
    nets: Sequence[Net], metric: str, output: str, found: Pair, label: int | None, means: Pair, count: int, *, draw: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield the row of each net; `found` and `means` hold the values of all nets, the other arguments are those of `unit`."""
    for net, value, p, shown, clean in zip(nets, *found, *means, strict=True):
        yield unit(net, metric, output, (value, p), label, (shown, clean), count, draw=draw)


def score_by_label(shown: Shown, config: Config) -> NDArray[np.float64]:
    """Compute the grey- and black-box scores of nets at every label; the maximum over labels is taken later.

    The maximum needs the controls: a label that any feature pushes would otherwise hide the canary's label.

    Args:
        shown: class scores of the nets.
        config: outputs.

    Returns:
        (num_nets, 2 * num_outputs, num_classes, 4): mean with the feature, mean without it, p of the paired t-test, and
        number of examples; for each output the grey box, then the black box; NaN at labels without examples.
    """
    return np.stack([box(shown, output) for output in config.outputs for box in (_grey, _black)], axis=1)


def _grey(shown: Shown, output: Output) -> NDArray[np.float64]:
    num_nets, _, num_classes = shown.other[0].shape
    scores = np.full((num_nets, num_classes, 4), np.nan)
    for label, pair in shown.by_label.items():
        clean, featured = (of_label(a, label, output) for a in pair)
        _, p = paired_t(featured - clean)
        count = np.full(num_nets, clean.shape[1])
        scores[:, label] = np.stack([featured.mean(axis=1), clean.mean(axis=1), p, count], axis=1)
    return scores


def _black(shown: Shown, output: Output) -> NDArray[np.float64]:
    clean, featured = (to_output(a, output).mean(axis=1) for a in shown.other)
    _, p = m_of_labels(*shown.other, output)
    return np.stack([featured, clean, p, np.full(p.shape, shown.other[0].shape[1])], axis=2)


def _random_rows(nets: Sequence[Net], shown: Shown) -> Iterator[dict[str, Any]]:
    for label, draws in shown.random_by_label.items():
        featured = shown.by_label[label][1]
        for draw, random in enumerate(draws):
            found, count = m_w(featured, random, label), featured.shape[1]
            means = tuple(log_softmax(a)[..., label].mean(axis=1) for a in (featured, random))
            yield from _rows(nets, "m_w", "log_probability", found, label, means, count, draw=draw)
    clean, featured = shown.other
    for draw, random in enumerate(shown.random_other):
        found, count = m_kl(clean, featured, random), clean.shape[1]
        means = tuple(divergence(clean, a).mean(axis=1) for a in (featured, random))
        yield from _rows(nets, "m_kl", "divergence", found, None, means, count, draw=draw)


def flips(nets: Sequence[Net], shown: Shown) -> pa.Table:
    """Compute the share of other examples whose predicted class becomes the canary's when the feature is inserted.

    Such decisions are what a memorized feature costs others who carry it (2023, "robustness"): examples of other classes that
    are not predicted as the canary's label without the feature, but are with it, among all examples of other classes.

    Args:
        nets: the nets, in the order of the arrays.
        shown: their class scores.

    Returns:
        rows of tables.UNITS as from `score`, for training examples and, if the probe data are held out, for these.
    """
    rows: list[dict[str, Any]] = []
    for label in shown.labels:
        for output, (clean, featured) in _predicted(shown, label).items():
            changed = (featured & ~clean).mean(axis=1)
            means = featured.mean(axis=1), clean.mean(axis=1)
            rows += _rows(nets, FLIPS, output, (changed, np.ones(len(nets))), label, means, clean.shape[1])
    return pa.Table.from_pylist(rows, schema=UNITS.arrow)


def _predicted(shown: Shown, label: int) -> dict[str, tuple[NDArray[np.bool_], NDArray[np.bool_]]]:
    """Return where a label is predicted without and with the feature, (num_nets, num_examples), by kind of other examples."""
    parts = [[a.argmax(axis=2) == label for a in pair] for other, pair in shown.by_label.items() if other != label]
    found = {}
    if parts:
        clean, featured = (np.concatenate(side, axis=1) for side in zip(*parts, strict=True))
        found["training_examples"] = (clean, featured)
    if shown.other_labels is not None and (others := shown.other_labels != label).any():
        clean, featured = (a[:, others].argmax(axis=2) == label for a in shown.other)
        found["held_out_examples"] = (clean, featured)
    return found


def unit(
    net: Net,
    metric: str,
    output: str,
    found: tuple[float, float],
    label: int | None,
    means: tuple[float, float],
    count: int,
    *,
    tried: int = 1,
    draw: int = 0,
    centre: float = 0.0,
    calibrated_p: float | None = None,
    feature: str = "canary",
) -> dict[str, Any]:
    """Return a row of tables.UNITS.

    Args:
        net: the net that was scored.
        metric, output, label, draw, feature: identity of the score.
        found: value and published p.
        means: mean output with the feature and without it.
        tried: number of labels over which a maximum was taken.
        centre: centre that was subtracted.
        calibrated_p: p by rank among the controls, if known.
    """
    value, p = float(found[0]), float(found[1])
    return {
        "net": net.number,
        "canary": net.canary,
        "control": net.control,
        "seed": net.seed,
        "metric": metric,
        "output": output,
        "feature": feature,
        "draw": draw,
        "label": label,
        "own_label": metric not in AT_LABEL or label == net.label,
        "value": value,
        "with_feature": float(means[0]),
        "without_feature": float(means[1]),
        "centre": centre,
        "published_p": p,
        "corrected_p": min(1.0, p * tried) if metric != "m_black" else None,
        "calibrated_p": calibrated_p,
        "n": count,
    }


_CALIBRATED_BY = ("metric", "output", "feature", "draw", "label", "seed", "control", "value")


def calibrate(units: pa.Table) -> pa.Table:
    """Fill column calibrated_p: each score's rank among the controls of other seeds, which never saw the feature.

    White-box scores are compared with controls at the same label. Values are null if there are fewer than 19 controls.

    Args:
        units: scores of one cell (one variant on one draw of the data) from `score`; `maxima` computes its own ranks.
    """
    frame = {name: units[name].to_pylist() for name in _CALIBRATED_BY}
    rows: dict[tuple[Any, ...], list[int]] = {}
    for i, (metric, output, feature, draw, label) in enumerate(zip(*(frame[n] for n in _CALIBRATED_BY[:5]), strict=True)):
        rows.setdefault((metric, output, feature, draw, label if metric in AT_LABEL else None), []).append(i)
    seeds, values = np.array(frame["seed"], dtype=object), np.array(frame["value"])
    control = np.array(frame["control"], dtype=bool)
    p: list[float | None] = [None] * units.num_rows
    for members in rows.values():
        chosen = np.array(members)
        null = chosen[control[chosen]]
        for i, value in zip(members, calibrated_p(values[chosen], seeds[chosen], values[null], seeds[null]), strict=True):
            p[i] = value
    return with_column(units, "calibrated_p", p)


def calibrated_p(
    values: NDArray[np.float64], seeds: NDArray[Any], null: NDArray[np.float64], null_seeds: NDArray[Any]
) -> list[float | None]:
    """Return the p-value of each value by its rank among the controls of other seeds; None with fewer than 19 controls.

    It is (1 + number of these controls that reach the value) / (1 + number of these controls).
    """
    ordered = np.sort(null)
    own: dict[Any, list[float]] = {}
    for seed, value in zip(null_seeds, null, strict=True):
        own.setdefault(seed, []).append(float(value))
    p_values: list[float | None] = []
    for value, seed in zip(values, seeds, strict=True):
        same_seed = own.get(seed, [])
        others = len(ordered) - len(same_seed)
        reached = len(ordered) - int(np.searchsorted(ordered, value, side="left")) - sum(v >= value for v in same_seed)
        p_values.append((1 + reached) / (1 + others) if others >= CONTROLS_FOR_P else None)
    return p_values


def nets_of(spec: NetsSpec, labels: Sequence[int], *, seed: int) -> list[Net]:
    """Return the nets of a cell: those of every canary, then the controls.

    Args:
        spec: numbers of nets and controls.
        seed: seed from which every net's seed is derived.
    """
    count = len(labels)
    total = count * spec.seeds
    numbers = [i % spec.seeds if spec.same_seed else i for i in range(total)]
    seeds = [derive_seed(seed, "net", number) for number in numbers]
    nets = [Net(i, i // spec.seeds, False, seeds[i], labels[i // spec.seeds]) for i in range(total)]
    wanted = spec.controls if spec.controls is not None else spec.seeds if spec.same_seed else total
    if spec.same_seed:
        return nets + [Net(i, i % count, True, derive_seed(seed, "net", i), labels[i % count]) for i in range(wanted)]
    for i in range(wanted):
        number = i * total // wanted if wanted < total else i  # fewer controls than nets are spread over the canaries
        canary = number // spec.seeds if number < total else number % count
        nets.append(Net(number, canary, True, derive_seed(seed, "net", number), labels[canary]))
    return nets
