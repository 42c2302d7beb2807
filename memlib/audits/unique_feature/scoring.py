"""A row a score of a net, and what its controls say of it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from memlib.audits.unique_feature.measures import divergence, m_kl, m_of_labels, m_w, of_label, to_output
from memlib.audits.unique_feature.recipe import CONTROLS_FOR_P, Config, Output
from memlib.identity import derive_seed
from memlib.specs import (
    NetsSpec,
)
from memlib.stats.tests import (
    paired_t,
)
from memlib.tables import UNIQUE_FEATURE_UNITS


@dataclass(frozen=True)
class Net:
    """Which net a score is of.

    Attributes:
        number: counted within the cell; a control has the number of the canary net it is paired with.
        canary: which canary (for a control: whose clean twin it saw).
        control: whether the feature was left out.
        seed: of initial weights and order; nets with the same seed are pairs.
        label: the canary's.
    """

    number: int
    canary: int
    control: bool
    seed: int
    label: int


@dataclass(frozen=True)
class Pull:
    """The self-influence of a canary without the feature and with it, in models from the same seed (2022, 3.3)."""

    example_id: str
    without_feature: float
    with_feature: float


@dataclass(frozen=True)
class Shown:
    """Class scores of some nets on everything that they are scored on: (num_nets, num_examples, num_classes) logits.

    Attributes:
        labels: those that some canary of the cell has.
        by_label: label -> (clean, featured) training examples of that label.
        other: (clean, featured) of the probe data.
        random_by_label: label -> one array a draw, with random partners.
        random_other: one array a draw, of the probe data.
    """

    labels: Sequence[int]
    by_label: Mapping[int, tuple[NDArray[Any], NDArray[Any]]]
    other: tuple[NDArray[Any], NDArray[Any]]
    random_by_label: Mapping[int, Sequence[NDArray[Any]]]
    random_other: Sequence[NDArray[Any]]


METRICS = ("m_white", "m_grey", "m_black")


def score(nets: Sequence[Net], shown: Shown, config: Config, *, metrics: Sequence[str] = METRICS) -> pa.Table:
    """Every score of some nets.

    In the white box a net is scored at each label that some canary of the cell has, so that a control can calibrate
    any of them.

    Args:
        nets: in the order of the arrays.
        shown: their class scores; m_w and m_kl are taken where there are random partners.
        config: outputs.
        metrics: which of m_white, m_grey and m_black.

    Returns:
        tables.UNIQUE_FEATURE_UNITS without variant, data_seed, epoch and the p-values that need controls.
    """
    rows: list[dict[str, Any]] = []
    for output in config.outputs:
        if "m_white" in metrics or "m_grey" in metrics:
            rows += _rows_by_label(nets, shown, output, metrics)
        if "m_black" in metrics:
            black, p = m_of_labels(*shown.other, output)
            clean, featured = (to_output(a, output).mean(axis=1) for a in shown.other)
            for i, net in enumerate(nets):
                top = int(black[i].argmax())
                means = (featured[i, top], clean[i, top])
                rows.append(_unit(net, "m_black", output, (black[i, top], p[i, top]), top, means, shown.other[0].shape[1]))
    rows += _random_rows(nets, shown)
    return pa.Table.from_pylist(rows, schema=UNIQUE_FEATURE_UNITS.arrow)


def _rows_by_label(nets: Sequence[Net], shown: Shown, output: Output, metrics: Sequence[str]) -> Iterator[dict[str, Any]]:
    wanted = shown.by_label if "m_grey" in metrics else {label: shown.by_label[label] for label in shown.labels}
    values = {label: [of_label(a, label, output) for a in pair] for label, pair in wanted.items()}
    found = {label: paired_t(featured - clean) for label, (clean, featured) in values.items()}
    means = {label: [a.mean(axis=1) for a in pair] for label, pair in values.items()}

    def row(metric: str, net: Net, i: int, label: int, tried: int) -> dict[str, Any]:
        clean, featured = means[label]
        at = (found[label][0][i], found[label][1][i])
        return _unit(net, metric, output, at, label, (featured[i], clean[i]), wanted[label][0].shape[1], tried=tried)

    for i, net in enumerate(nets):
        if "m_white" in metrics:
            yield from (row("m_white", net, i, label, 1) for label in shown.labels)
        if "m_grey" in metrics:
            best = max(found, key=lambda label: (found[label][0][i], -label))
            yield row("m_grey", net, i, best, len(found))


def _random_rows(nets: Sequence[Net], shown: Shown) -> Iterator[dict[str, Any]]:
    for label, draws in shown.random_by_label.items():
        featured = shown.by_label[label][1]
        for draw, random in enumerate(draws):
            value, p = m_w(featured, random, label)
            levels = [of_label(a, label, "probability").mean(axis=1) for a in (featured, random)]
            for i, net in enumerate(nets):
                means = (levels[0][i], levels[1][i])
                yield _unit(net, "m_w", "log_probability", (value[i], p[i]), label, means, featured.shape[1], draw=draw)
    clean, featured = shown.other
    for draw, random in enumerate(shown.random_other):
        value, p = m_kl(clean, featured, random)
        levels = [divergence(clean, a).mean(axis=1) for a in (featured, random)]
        for i, net in enumerate(nets):
            means = (levels[0][i], levels[1][i])
            yield _unit(net, "m_kl", "divergence", (value[i], p[i]), None, means, clean.shape[1], draw=draw)


def _unit(
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
) -> dict[str, Any]:
    value, p = float(found[0]), float(found[1])
    return {
        "net": net.number,
        "canary": net.canary,
        "control": net.control,
        "seed": net.seed,
        "metric": metric,
        "output": output,
        "feature": "canary",
        "draw": draw,
        "label": label,
        "own_label": metric not in ("m_white", "m_w") or label == net.label,
        "value": value,
        "with_feature": float(means[0]),
        "without_feature": float(means[1]),
        "published_p": p,
        "corrected_p": min(1.0, p * tried) if metric != "m_black" else None,
        "n": count,
    }


_CALIBRATED_BY = ("metric", "output", "feature", "draw", "label", "seed", "control", "value")


def calibrate(units: pa.Table) -> pa.Table:
    """Adds each score's rank among the controls of other seeds, which never saw the feature: column calibrated_p.

    White-box scores are compared with controls at the same label. Null with fewer than 19 controls.

    Args:
        units: the scores of one cell (one variant on one draw of the data).
    """
    frame = {name: units[name].to_pylist() for name in _CALIBRATED_BY}
    rows: dict[tuple[Any, ...], list[int]] = {}
    for i, (metric, output, feature, draw, label) in enumerate(zip(*(frame[n] for n in _CALIBRATED_BY[:5]), strict=True)):
        rows.setdefault((metric, output, feature, draw, label if metric in ("m_white", "m_w") else None), []).append(i)
    seeds, values = np.array(frame["seed"], dtype=object), np.array(frame["value"])
    control = np.array(frame["control"], dtype=bool)
    p: list[float | None] = [None] * units.num_rows
    for members in rows.values():
        chosen = np.array(members)
        null = chosen[control[chosen]]
        for i, value in zip(members, calibrated_p(values[chosen], seeds[chosen], values[null], seeds[null]), strict=True):
            p[i] = value
    return units.set_column(units.schema.get_field_index("calibrated_p"), "calibrated_p", pa.array(p, type=pa.float64()))


def calibrated_p(
    values: NDArray[np.float64], seeds: NDArray[Any], null: NDArray[np.float64], null_seeds: NDArray[Any]
) -> list[float | None]:
    """(1 + how many controls of other seeds reach the value) / (1 + how many there are)."""
    ordered = np.sort(null)
    own: dict[Any, list[float]] = {}
    for seed, value in zip(null_seeds, null, strict=True):
        own.setdefault(seed, []).append(float(value))
    found: list[float | None] = []
    for value, seed in zip(values, seeds, strict=True):
        mine = own.get(seed, [])
        others = len(ordered) - len(mine)
        reached = len(ordered) - int(np.searchsorted(ordered, value, side="left")) - sum(v >= value for v in mine)
        found.append((1 + reached) / (1 + others) if others >= CONTROLS_FOR_P else None)
    return found


def nets_of(spec: NetsSpec, labels: Sequence[int], *, seed: int) -> list[Net]:
    """The nets of a cell: every canary's, then the controls.

    Args:
        spec: how many.
        labels: of each canary.
        seed: every net's own seed is derived from it.
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
