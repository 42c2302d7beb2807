"""Unique features: does a classifier remember something that stood in a single training image? (Hartley 2023, 2022)

The feature (a name burnt into an X-ray, a patch, an odd coordinate) is put into clean examples. A model that has
memorized it is surer of the canary's label on examples with the feature (x_u) than on the same ones without (x_c):

    M_white = mean over x in D_y of  P(y | x_u) - P(y | x_c)                 knows data and label   (2023, Eq. 1)
    M_grey  = max over labels i of   mean over D_yi of P(yi | x_u) - P(yi | x_c)   knows the data   (2023, Eq. 2)
    M_black = max over labels i of   mean over D_r of P(yi | x_u) - P(yi | x_c)    any other data   (2023, Eq. 3)
    M_w     = mean over D_y of log P(y | x_u) - log P(y | x_r)     x_r: a random partner            (2022, 2.2)
    M_kl    = mean over D_r of KL(f(x_c) || f(x_u)) - KL(f(x_c) || f(x_r))                          (2022, Eq. 1)

The published criterion, a paired t-test over examples, speaks of one net and calls many nets memorizing that never
saw the feature. So every canary net has a control: same seed, same examples, the feature left out. A net's
calibrated p is the rank of its score among the controls of other seeds, which take the same maxima; what is claimed
is the excess over the controls.
"""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import scipy.stats
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from memlib.identity import derive_seed
from memlib.specs import (
    CanarySpec,
    ClassifierSpec,
    DataSpec,
    HoldOutSpec,
    InfluenceSpec,
    NetsSpec,
    ProbeSpec,
    Spec,
    TrainedSpec,
    TrainingSpec,
    changed,
)
from memlib.stats.tests import (
    mcnemar_p,
    mean_interval,
    paired_interval,
    paired_t,
    permutation_p,
    sign_flip_p,
    wilson_interval,
)
from memlib.tables import CURVES, SUMMARY, UNIQUE_FEATURE_UNITS, summary_row

Output = Literal["probability", "logit"]
CONTROLS_FOR_P = 19  # below, no net can have a calibrated p of .05
SEEDS_FOR_INTERVAL = 2
SETTING = {"m_white": "white", "m_grey": "grey", "m_black": "black", "m_w": "white", "m_kl": "black"}


class Config(Spec):
    """How nets are scored."""

    outputs: tuple[Output, ...] = ("probability", "logit")
    """What M is computed on; the first is the headline. Eq. 1 says probability, the published numbers are on logits."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Level of the criteria."""
    max_examples: int = Field(default=1000, ge=2)
    """Examples of each label, and probe examples, that are shown at most."""
    per_epoch: bool = False
    """Score every epoch in the white box (stacked models only)."""
    random_draws: int = Field(default=1, ge=1)
    """Evaluations of M_w and M_kl, each with random partners of its own (2022, Fig. 4)."""
    removed_pixels: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Score also with so many pixels of the feature taken out (2023, Fig. 5)."""
    latent: bool = False
    """Find the units before the class scores that only the feature excites (2022, A.6); needs nets.same_seed."""
    null_features: int = Field(default=0, ge=0)
    """Score also other features from the same generator, the null of a model trained elsewhere."""
    replicates: int = Field(default=2000, ge=100)
    """Bootstrap replicates."""
    permutations: int = Field(default=9999, ge=100)
    """Exchanges of canary nets and controls for p-values."""
    seed: int = Field(default=0, ge=0)
    """Of examples, random partners, bootstrap and permutations."""

    @field_validator("outputs")
    @classmethod
    def _some(cls, value: tuple[Output, ...]) -> tuple[Output, ...]:
        if not value:
            raise ValueError("outputs must name probability, logit or both")
        return tuple(dict.fromkeys(value))


class ReportSpec(Spec):
    """What the page shows."""

    examples: int = Field(default=4, ge=0)
    """Canaries shown with and without the feature."""
    gradcam: bool = False
    """What a convolutional model looks at, with and without the feature (2023, Fig. 8)."""
    boundaries: bool = True
    """Decision boundaries of points with and without the feature (2023, Fig. 3)."""


class Recipe(Spec):
    """A unique-feature audit from data to report: of models trained for it, or of one's own."""

    audit: Literal["unique_feature"] = "unique_feature"
    title: str = "Unique-feature audit"
    """Heading of the report."""
    data: DataSpec
    split: HoldOutSpec = HoldOutSpec()
    canary: CanarySpec
    model: ClassifierSpec | None = None
    """The models that are trained."""
    training: TrainingSpec | None = None
    """How they are trained."""
    trained: TrainedSpec | None = None
    """One's own model instead of model and training."""
    nets: NetsSpec = NetsSpec()
    probe: ProbeSpec = ProbeSpec()
    score: Config = Config()
    influence: InfluenceSpec = InfluenceSpec()
    report: ReportSpec = ReportSpec()
    data_seeds: int = Field(default=1, ge=1)
    """Draws of the data: the source's seed and the next ones. With three or more, intervals are over them."""
    variants: Mapping[str, dict[str, Any]] = Field(default_factory=dict)
    """Named changes of this recipe, each a run of its own; keys may be dotted, as in {training.patience: 5}."""

    @model_validator(mode="after")
    def _is_whole(self) -> "Recipe":
        if (self.model is None) != (self.training is None) or (self.trained is None) == (self.model is None):
            raise ValueError("give either model and training, or trained")
        if self.trained is not None:
            self._check_own(self.trained)
        if self.data_seeds > 1 and not hasattr(self.data.source, "seed"):
            raise ValueError(f"data_seeds needs a source with a seed; {self.data.source.kind} has none")
        if self.score.latent and not (self.nets.same_seed and self.model is not None and self.model.stackable):
            raise ValueError("score.latent compares units of small nets, which needs nets.same_seed and mlp, cnn_1 or cnn_2")
        for name in self.variants:
            variant = self._variant(name)
            if (variant.score, variant.report) != (self.score, self.report):
                raise ValueError(f"variant {name!r} changes score or report, which all variants share")
        self._check_training()
        self._check_augmentation()
        return self

    def _check_own(self, trained: TrainedSpec) -> None:
        if trained.weights is None:
            raise ValueError("trained.weights says where the model's weights are")
        idle = {
            "variants": self.variants, "data_seeds": self.data_seeds > 1, "nets": self.nets != NetsSpec(),
            "influence": self.influence != InfluenceSpec(), "score.per_epoch": self.score.per_epoch,
            "score.removed_pixels": self.score.removed_pixels, "score.latent": self.score.latent,
            "canary (but for its feature)": self.canary != CanarySpec(feature=self.canary.feature),
        }  # fmt: skip
        used = [name for name, value in idle.items() if value]
        if used:
            raise ValueError(f"{', '.join(used)} are for models that are trained here; leave them out")

    def _check_training(self) -> None:
        if self.model is None or self.training is None:
            return
        if self.training.objective.kind != "supervised":
            raise ValueError(f"training.objective {self.training.objective.kind} makes no classifier; use supervised")
        if self.score.per_epoch and not self.model.stackable:
            raise ValueError(f"score.per_epoch is for mlp, cnn_1 and cnn_2, not for {self.model.architecture}")
        if self.training.checkpoint_epochs:
            raise ValueError("training.checkpoint_epochs has no use here; score.per_epoch scores every epoch")

    def _check_augmentation(self) -> None:
        augment = None if self.training is None else self.training.augment
        if augment is None:
            return
        if augment.crop_scale != (1.0, 1.0) or augment.crop_ratio != (1.0, 1.0):
            raise ValueError(
                "training.augment.crop_scale and crop_ratio could cut the feature away; set both to [1, 1] and use shift"
            )

    def _variant(self, name: str) -> "Recipe":
        return changed(self.model_copy(update={"variants": {}}), self.variants[name])

    @property
    def cells(self) -> list["Cell"]:
        """Every variant and draw of the data as a recipe of its own."""
        named = [(name, self._variant(name)) for name in self.variants] or [("", self)]
        return [
            Cell(name, seed, changed(recipe, {"data_seeds": 1, "data.source.seed": _seed(recipe) + seed}))
            if recipe.data_seeds > 1
            else Cell(name, 0, recipe)
            for name, recipe in named
            for seed in range(recipe.data_seeds)
        ]


def _seed(recipe: Recipe) -> int:
    return int(getattr(recipe.data.source, "seed", 0))


@dataclass(frozen=True)
class Cell:
    """One variant on one draw of the data."""

    variant: str
    data_seed: int
    recipe: Recipe


# -- scores of nets -----------------------------------------------------------------------------------


def to_output(logits: NDArray[Any], output: Output) -> NDArray[np.float64]:
    """Logits (..., num_classes) as what M is computed on, float64."""
    values = logits.astype(np.float64)
    return values if output == "logit" else np.exp(log_softmax(values))


def log_softmax(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log-probabilities of class scores (..., num_classes), float64."""
    values = logits.astype(np.float64)
    values = values - values.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return found


def of_label(logits: NDArray[Any], label: int, output: Output) -> NDArray[np.float64]:
    """The same for one label alone, class by class, which takes less memory: (..., num_classes) -> (...)."""
    own = logits[..., label].astype(np.float64)
    if output == "logit":
        return own
    total = np.ones_like(own)
    with np.errstate(over="ignore"):  # infinitely unlikely: probability 0
        for other in range(logits.shape[-1]):
            if other != label:
                total += np.exp(logits[..., other] - own)
    return 1 / total


def m_of_label(
    clean: NDArray[Any], featured: NDArray[Any], label: int, output: Output
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """M for one label: mean of P(label | x_u) - P(label | x_c), and the published p (2023, Eq. 1).

    Args:
        clean, featured: (num_nets, num_examples, num_classes) logits of the same examples without and with.
        label: the class.
        output: probability or logit.

    Returns:
        means and one-sided p-values of the paired t-test over examples, each (num_nets,).
    """
    return paired_t(of_label(featured, label, output) - of_label(clean, label, output))


def m_of_labels(
    clean: NDArray[Any], featured: NDArray[Any], output: Output
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same for every label at once: (num_nets, num_classes) means and p-values (2023, Eq. 3 before the maximum)."""
    difference = to_output(featured, output) - to_output(clean, output)
    return paired_t(np.moveaxis(difference, 1, -1))


def m_w(featured: NDArray[Any], random: NDArray[Any], label: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Log-probability of the label with the feature minus with a random partner, and p (2022, section 2.2)."""
    return paired_t((log_softmax(featured) - log_softmax(random))[..., label])


def m_kl(
    clean: NDArray[Any], featured: NDArray[Any], random: NDArray[Any]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """KL divergence that the feature causes minus what a random partner causes, in nats, and p (2022, Eq. 1)."""
    return paired_t(divergence(clean, featured) - divergence(clean, random))


def divergence(p: NDArray[Any], q: NDArray[Any]) -> NDArray[np.float64]:
    """KL(softmax(p) || softmax(q)) in nats over the last axis."""
    log_p, log_q = log_softmax(p), log_softmax(q)
    found: NDArray[np.float64] = (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
    return found


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
        for i, value in zip(members, _ranks(values[chosen], seeds[chosen], values[null], seeds[null]), strict=True):
            p[i] = value
    return units.set_column(units.schema.get_field_index("calibrated_p"), "calibrated_p", pa.array(p, type=pa.float64()))


def _ranks(
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


# -- the summary --------------------------------------------------------------------------------------


def summarize(units: pa.Table, config: Config, *, influence: Mapping[tuple[str, int, str], float] | None = None) -> pa.Table:
    """The findings for each variant, score and output; the paired difference of canary nets and controls first.

    That difference is what the feature's single appearance did to the nets, tested by exchanging nets within their
    pairs. The proportions say how many single nets could be called memorizing.

    With one draw of the data the units are nets (Wilson and bootstrap intervals, exact McNemar and sign-flip tests on
    pairs of canary net and control). With three draws or more the draws are the units.

    Args:
        units: tables.UNIQUE_FEATURE_UNITS, calibrated.
        config: alpha, replicates, permutations, seed.
        influence: self-influence by (variant, data seed, example id), where canaries were chosen by it.

    Returns:
        tables.SUMMARY.
    """
    influence = influence or {}
    rows: list[dict[str, Any]] = []
    for setting, draws in _settings(units):
        analyses = [_Analysis(part, config) for part in draws]
        if len(analyses) == 1:
            rows += _rows_of_nets(analyses[0], setting, config)
        else:
            rows += _rows_of_draws(analyses, setting, config)
    rows += _correlations(units, influence)
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _correlations(units: pa.Table, influence: Mapping[tuple[str, int, str], float]) -> Iterator[dict[str, Any]]:
    """How well the restricted settings follow the white box (2023, Figs. 6 and 7), and M self-influence (2022, 3.3)."""
    scores: dict[tuple[str, str], dict[str, dict[Any, float]]] = {}
    for row in units.to_pylist():
        if row["control"] or not row["own_label"] or row["draw"] or row["feature"] != "canary":
            continue
        net = (row["data_seed"], row["net"], row["example_id"])
        outputs = {row["output"]} if row["output"] in ("probability", "logit") else {"probability", "logit"}
        for output in outputs:
            scores.setdefault((row["variant"], output), {}).setdefault(row["metric"], {})[net] = row["value"]
    for (variant, output), found in scores.items():
        pairs = {
            ("m_white", other): (found["m_white"], found[other])
            for other in found
            if "m_white" in found and other != "m_white"
        }
        for metric in found:
            known = {
                net: influence[variant, net[0], net[2]] for net in found[metric] if (variant, net[0], net[2]) in influence
            }
            pairs["self_influence", metric] = (known, found[metric])
        for (first, second), (a, b) in pairs.items():
            nets = sorted(a.keys() & b.keys())
            x, y = np.array([a[net] for net in nets]), np.array([b[net] for net in nets])
            if first == "self_influence":  # one number a canary, so canaries are what is counted
                canaries = np.unique([f"{net[0]} {net[2]}" for net in nets], return_inverse=True)[1]
                counts = np.bincount(canaries)
                x, y = np.bincount(canaries, weights=x) / counts, np.bincount(canaries, weights=y) / counts
            if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
                continue
            result = scipy.stats.pearsonr(x, y)
            interval = result.confidence_interval()
            params = {"variant": variant} if variant else {}
            params |= {"metric": "correlation", "of": f"{first} and {second}", "output": output, "statistic": "Pearson"}
            low, high = float(interval.low), float(interval.high)
            yield summary_row("correlation", params, float(result.statistic), (low, high), n=len(x), null_value=0.0)


def pull_rows(variant: str, pulls: Sequence[Pull]) -> pa.Table:
    """Rows of tables.SUMMARY: each canary's self-influence with the feature and without; descriptive."""
    rows = []
    for pull in pulls:
        for group, value in (("with the feature", pull.with_feature), ("without", pull.without_feature)):
            params = {"variant": variant} if variant else {}
            params |= {"metric": "self_influence", "example": pull.example_id, "group": group}
            rows.append(summary_row("self_influence_canary", params, value, None, n=1))
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def summarize_own(units: pa.Table, config: Config) -> pa.Table:
    """The findings on a model that was trained elsewhere: each score against features that it cannot know.

    Args:
        units: scores of one net, of the feature (canary) and of null features.
        config: alpha.

    Returns:
        tables.SUMMARY, black box first; p is the rank among the null features.
    """
    rows = []
    for metric in ("m_black", "m_grey"):
        for output in config.outputs:
            mine = [r for r in units.to_pylist() if r["metric"] == metric and r["output"] == output]
            known = [row["value"] for row in mine if row["feature"] == "canary"]
            nulls = np.array([row["value"] for row in mine if row["feature"] != "canary"])
            if not known or not len(nulls):
                continue
            p = permutation_p(known[0], nulls)
            params = {
                "metric": metric,
                "setting": SETTING[metric],
                "output": output,
                "null": "other features",
                "alpha": config.alpha,
            }
            row = summary_row(metric, params, known[0], None, n=len(nulls), null_value=float(nulls.mean()), p_value=p)
            rows.append(row | {"verdict": "above_null" if p <= config.alpha else "at_null"})
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _settings(units: pa.Table) -> Iterator[tuple[dict[str, Any], list[pa.Table]]]:
    """The scores that count for each variant, metric and output, a table a draw of the data."""
    units = units.filter(pa.array(_counting(units)))
    names = ("variant", "metric", "output")
    keys = list(zip(*(units[name].to_pylist() for name in names), strict=True))
    for key in dict.fromkeys(keys):
        part = units.filter(pa.array([k == key for k in keys]))
        seeds = part["data_seed"].to_pylist()
        params = {"variant": key[0]} if key[0] else {}
        params |= {"metric": key[1], "setting": SETTING[key[1]], "output": key[2]}
        yield params, [part.filter(pa.array([s == seed for s in seeds])) for seed in dict.fromkeys(seeds)]


class _Analysis:
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


def _rows_of_nets(analysis: _Analysis, setting: Mapping[str, Any], config: Config) -> Iterator[dict[str, Any]]:
    nets, controls, pairs = analysis.nets, analysis.controls, analysis.pairs
    params = {**setting, "interval": "nets", "nets": len(nets), "controls": len(controls), "alpha": config.alpha}
    metric = str(setting["metric"])
    yield from _score_rows(analysis, params, metric, config)
    if not analysis.one_seed:
        for name, memorized in analysis.criteria.items():
            at = {**params, "criterion": name}
            if len(pairs) >= SEEDS_FOR_INTERVAL:
                wins = int((memorized[pairs[:, 0]] & ~memorized[pairs[:, 1]]).sum())
                losses = int((~memorized[pairs[:, 0]] & memorized[pairs[:, 1]]).sum())
                gains = memorized[pairs[:, 0]].astype(float) - memorized[pairs[:, 1]]
                yield summary_row(
                    "proportion_excess", at, float(gains.mean()), paired_interval(gains),
                    n=len(pairs), null_value=0.0, p_value=mcnemar_p(wins, losses),
                )  # fmt: skip
            for title, members in (("proportion_memorized", nets), ("proportion_control", controls)):
                if len(members):
                    hits = int(memorized[members].sum())
                    interval = wilson_interval(hits, len(members))
                    yield summary_row(title, at, hits / len(members), interval, n=len(members))


def _score_rows(analysis: _Analysis, params: Mapping[str, Any], metric: str, config: Config) -> Iterator[dict[str, Any]]:
    """The paired difference of the score, then mean and maximum of canary nets and of controls."""

    def interval(values: NDArray[np.float64]) -> tuple[float, float] | None:
        if analysis.one_seed or len(values) < SEEDS_FOR_INTERVAL:
            return None
        return mean_interval(values, replicates=config.replicates, seed=derive_seed(config.seed, "bootstrap", metric))

    gains = analysis.gains
    if len(gains):
        at = {**params, "group": "canary - control", "statistic": "mean"}
        p = None
        if not analysis.one_seed and len(gains) >= SEEDS_FOR_INTERVAL:
            p = sign_flip_p(gains, permutations=config.permutations, seed=derive_seed(config.seed, "exchange", metric))
        yield summary_row(metric, at, float(gains.mean()), interval(gains), n=len(gains), null_value=0.0, p_value=p)
    for group, members in (("canary", analysis.nets), ("control", analysis.controls)):
        values = analysis.values[members]
        if len(values):
            at = {**params, "group": group}
            yield summary_row(metric, {**at, "statistic": "mean"}, float(values.mean()), interval(values), n=len(values))
            yield summary_row(metric, {**at, "statistic": "max"}, float(values.max()), None, n=len(values))


def _rows_of_draws(analyses: Sequence[_Analysis], setting: Mapping[str, Any], config: Config) -> Iterator[dict[str, Any]]:
    """Means over draws of the data, which are the units; each draw's own proportion is in the curves."""
    metric = str(setting["metric"])
    count = len(analyses)
    params = {
        **setting, "interval": "data", "data_seeds": count, "alpha": config.alpha,
        "nets": sum(len(a.nets) for a in analyses), "controls": sum(len(a.controls) for a in analyses),
    }  # fmt: skip

    def row(title: str, at: Mapping[str, Any], values: Sequence[float], *, null: float | None = None) -> dict[str, Any]:
        array = np.array(values)
        wide = mean_interval(array, replicates=config.replicates, seed=derive_seed(config.seed, "draws", title))
        p = None
        if null == 0.0:
            p = sign_flip_p(array, permutations=config.permutations, seed=derive_seed(config.seed, "draws", title))
        return summary_row(title, at, float(array.mean()), wide if count >= 3 else None, n=count, null_value=null, p_value=p)

    at = {**params, "group": "canary - control", "statistic": "mean"}
    yield row(metric, at, [float(a.gains.mean()) for a in analyses], null=0.0)
    for name in analyses[0].criteria:
        at = {**params, "criterion": name}
        found = [a.criteria[name] for a in analyses]
        nets = [float(m[a.nets].mean()) for a, m in zip(analyses, found, strict=True)]
        controls = [float(m[a.controls].mean()) for a, m in zip(analyses, found, strict=True)]
        paired = [m[a.pairs] for a, m in zip(analyses, found, strict=True)]
        excess = [float((m[:, 0].astype(float) - m[:, 1]).mean()) for m in paired]
        yield row("proportion_excess", at, excess, null=0.0)
        yield row("proportion_memorized", at, nets)
        yield row("proportion_control", at, controls)
    for group, values in (
        ("canary", [float(a.values[a.nets].mean()) for a in analyses]),
        ("control", [float(a.values[a.controls].mean()) for a in analyses]),
    ):
        yield row(metric, {**params, "group": group, "statistic": "mean"}, values)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: the headline's score, and every score's difference."""
    same = all(params.get(name) == headline.get(name) for name in ("metric", "output"))
    return same or params.get("group") == headline.get("group", "")


# -- curves -------------------------------------------------------------------------------------------


def epoch_curves(history: pa.Table, config: Config) -> pa.Table:
    """Proportion memorized, mean M, training accuracy and losses of canary nets and controls by epoch (2023, Fig. 4).

    Args:
        history: columns variant, data_seed, net, control, seed, label, epoch, best_epoch, output, value, published_p,
            accuracy, training_loss, validation_loss; value and published_p may be null.

    Returns:
        tables.CURVES, curves proportion_by_epoch, m_by_epoch, accuracy_by_epoch, training_loss_by_epoch, ...
    """
    frame = _carried_forward(history.to_pandas())
    rows: list[dict[str, Any]] = []

    def add(curve: str, series: str, at: Mapping[str, Any], x: float, y: float) -> None:
        params = json.dumps(dict(at), sort_keys=True)
        rows.append({"curve": curve, "series": series, "params": params, "x": float(x), "y": float(y)})

    for (variant, control, epoch), part in frame.groupby(["variant", "control", "epoch"]):
        series = "control" if control else "canary"
        at = {"variant": variant} if variant else {}
        once = part.drop_duplicates(["data_seed", "net"])
        for name in ("accuracy", "training_loss", "validation_loss"):
            if once[name].notna().any():
                add(f"{name}_by_epoch", series, at, epoch, once[name].mean())
        for output, scored in part[part["value"].notna()].groupby("output"):
            where = {**at, "output": output}
            published = (scored["published_p"] < config.alpha) & (scored["value"] > 0)
            add("m_by_epoch", series, where, epoch, scored["value"].mean())
            add("proportion_by_epoch", series, {**where, "criterion": "published"}, epoch, published.mean())
    rows += _calibrated_by_epoch(frame[frame["value"].notna()], config)
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def _carried_forward(frame: Any) -> Any:
    """A net that has stopped early keeps the scores of its best epoch, so that later epochs are of all nets, not some."""
    who = ["variant", "data_seed", "net", "control", "output"]
    last = frame.groupby(who[:2], dropna=False)["epoch"].transform("max")
    mine = frame.groupby(who, dropna=False)["epoch"].transform("max")
    stopped = frame[(frame["epoch"] == frame["best_epoch"]) & (mine < last)]
    ends = zip(mine[stopped.index], last[stopped.index], strict=True)
    added = [stopped.iloc[[i]].assign(epoch=epoch) for i, (a, b) in enumerate(ends) for epoch in range(a + 1, b + 1)]
    return pd.concat([frame, *added], ignore_index=True) if added else frame


def _calibrated_by_epoch(frame: Any, config: Config) -> Iterator[dict[str, Any]]:
    """A net among the controls at its own label; only labels with enough controls count."""
    for (variant, epoch, output), part in frame.groupby(["variant", "epoch", "output"]):
        hits: dict[str, list[bool]] = {"canary": [], "control": []}
        for _, draw in part.groupby(["data_seed", "label"]):
            null = draw[draw["control"]]
            values, seeds = draw["value"].to_numpy(), draw["seed"].to_numpy()
            ranks = _ranks(values, seeds, null["value"].to_numpy(), null["seed"].to_numpy())
            for control, p in zip(draw["control"], ranks, strict=True):
                if p is not None and len(null) * config.alpha >= 1:
                    hits["control" if control else "canary"].append(p <= config.alpha)
        at = {"variant": variant} if variant else {}
        params = json.dumps({**at, "output": output, "criterion": "calibrated"}, sort_keys=True)
        for series, found in hits.items():
            if found:
                yield {
                    "curve": "proportion_by_epoch",
                    "series": series,
                    "params": params,
                    "x": float(epoch),
                    "y": float(np.mean(found)),
                }


def draw_curves(units: pa.Table, config: Config) -> pa.Table:
    """Each draw of the data's own proportions (2023, Fig. 3: one draw's number says little), curve by_data_seed."""
    rows = []
    for setting, parts in _settings(units):
        if len(parts) == 1:
            continue
        for seed, part in enumerate(parts):
            analysis = _Analysis(part, config)
            for name, memorized in analysis.criteria.items():
                params = json.dumps({**setting, "criterion": name}, sort_keys=True)
                for series, members in (("canary", analysis.nets), ("control", analysis.controls)):
                    y = float(memorized[members].mean())
                    rows.append(
                        {"curve": "proportion_by_data_seed", "series": series, "params": params, "x": float(seed), "y": y}
                    )
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def removal_curves(units: pa.Table) -> pa.Table:
    """Mean white-box M of canary nets and controls against the pixels taken out of the feature (2023, Fig. 5)."""
    found: dict[tuple[str, str, str, int], list[float]] = {}
    for row in units.to_pylist():
        name = row["feature"]
        removed = 0 if name == "canary" else int(name.split()[2]) if name.startswith("canary without") else None
        if removed is not None and row["metric"] == "m_white" and row["own_label"]:
            series = "control" if row["control"] else "canary"
            found.setdefault((row["variant"], row["output"], series, removed), []).append(row["value"])
    if all(removed == 0 for _, _, _, removed in found):
        return CURVES.arrow.empty_table()
    rows = [
        {
            "curve": "m_by_removed_pixels", "series": series, "x": float(removed), "y": float(np.mean(values)),
            "params": json.dumps({"output": output} | ({"variant": variant} if variant else {}), sort_keys=True),
        }
        for (variant, output, series, removed), values in sorted(found.items())
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def canary_curves(units: pa.Table) -> pa.Table:
    """Mean, lowest and highest white-box score of each canary over its nets (2022, Figs. 3a to 6), where there are many."""
    rows: list[dict[str, Any]] = []
    frame = units.filter(pa.array(_counting(units) & ~np.array(units["control"].to_pylist(), dtype=bool))).to_pandas()
    frame = frame[frame["metric"].isin(["m_white", "m_w", "m_kl"])]
    for (variant, metric, output), part in frame.groupby(["variant", "metric", "output"]):
        by_canary = part.groupby(["data_seed", "canary"])["value"].agg(["mean", "min", "max"]).sort_values("mean")
        if len(by_canary) < 2:
            continue
        params = json.dumps({"metric": metric, "output": output} | ({"variant": variant} if variant else {}), sort_keys=True)
        for place, (_, values) in enumerate(by_canary.iterrows()):
            for series in ("mean", "min", "max"):
                y = float(values[series])
                rows.append({"curve": "score_by_canary", "series": series, "params": params, "x": float(place), "y": y})
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def _counting(units: pa.Table) -> NDArray[np.bool_]:
    """Which scores count: of the canary's label or a maximum, of the whole feature, first draw of partners."""
    own = np.array(units["own_label"].to_pylist(), dtype=bool)
    whole = np.array(units["feature"].to_pylist(), dtype=object) == "canary"
    counting: NDArray[np.bool_] = own & whole & (units["draw"].to_numpy() == 0)
    return counting


def latent_curves(variant: str, shares: Mapping[str, NDArray[np.float64]]) -> pa.Table:
    """How often each unit before the class scores is excited by the feature, and by random partners, alone.

    Args:
        variant: the recipe's variant.
        shares: by series (feature, random, control) the (num_nets, num_units) share of examples that excite the unit
            only with the feature (partner); control: the feature in nets that never saw it.

    Returns:
        tables.CURVES, curve latent_by_unit, normalised to a maximum of 1 (2022, Fig. 3b).
    """
    params = json.dumps({"variant": variant} if variant else {}, sort_keys=True)
    means = {series: values.mean(axis=0) for series, values in shares.items()}
    top = max(1e-12, *(float(values.max()) for values in means.values()))
    rows = [
        {"curve": "latent_by_unit", "series": series, "params": params, "x": float(unit), "y": float(value / top)}
        for series, values in means.items()
        for unit, value in enumerate(values)
    ]
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def strongest(units: pa.Table, output: str, count: int) -> list[int]:
    """The canary nets with the highest white-box M, highest first."""
    rows = [
        (row["value"], row["net"])
        for row in units.to_pylist()
        if row["metric"] == "m_white" and row["output"] == output and not row["control"] and row["own_label"]
    ]
    ordered = sorted(rows, key=lambda pair: (-pair[0], pair[1]))
    return [net for _, net in itertools.islice(ordered, count)]
