"""Déjà vu: does the model name the object of a training image from its background alone? (Meehan 2023)

A background crop of a training image is embedded; its k nearest public images vote on the object's class. The
target model has trained on the image, the reference model has not, so what the target knows beyond the reference
is memory and not correlation (sections 3.1 and 4):

    score(p) = accuracy of the target on its p % most confident crops - accuracy of the reference on its own

Each example falls into one of four categories (section 4.2): memorized (only the target is right),
misrepresented (only the reference), correlated (both), unassociated (neither). Chance produces memorized and
misrepresented examples alike, so the honest share is memorized - misrepresented. A and B are exchangeable: every
number is taken from both directions together, (A on A + B on B) / 2 against (B on A + A on B) / 2.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from memlib.identity import derive_seed
from memlib.models.encoder import layer_names
from memlib.objectives import needs_classifier
from memlib.specs import CropMode, CropSpec, DataSpec, ModelSpec, Spec, SplitSpec, TrainingSpec
from memlib.stats.neighbors import Tie, vote
from memlib.stats.tests import (
    ConfidenceLevels,
    accuracy_curve,
    bootstrap_weights,
    confidence_levels,
    mcnemar_p,
    paired_interval,
    percentile_interval,
    permutation_p,
    sign_flips,
    top_share_accuracy,
    widened_interval,
)
from memlib.tables import CURVES, DEJA_VU_UNITS, SUMMARY, summary_row

CATEGORIES = ("memorized", "misrepresented", "correlated", "unassociated")
Direction = Literal["A", "B"]
DIRECTIONS: tuple[Direction, ...] = ("A", "B")
PAIRS_FOR_TRAINING = 3  # pairs of models from which an interval can speak of training itself
CURVE_POINTS = 200
SETTING = ("layer", "epoch", "crop", "k", "direction")


class Config(Spec):
    """How the embeddings are decoded and scored."""

    layers: tuple[str, ...] = ("last",)
    """Embeddings to decode: last, backbone, projector_1, ..., classifier; the first is the headline."""
    k: tuple[int, ...] = (30,)
    """Public neighbours that vote; the first is the headline. Each must be at most the public set's size."""
    epochs: tuple[int, ...] = ()
    """Checkpoints to decode besides the last one, which is the headline."""
    crops: tuple[CropMode, ...] = ()
    """Crop modes to decode; the first is the headline. By default the split's own."""
    p: float = Field(default=0.2, gt=0, le=1)
    """Share of most confident examples at which the déjà vu score is taken."""
    tie: Tie = "nearest"
    """Which of several classes with equally many votes wins."""
    replicates: int = Field(default=2000, ge=100)
    """Bootstrap replicates."""
    permutations: int = Field(default=2000, ge=100)
    """Exchanges of target and reference for the p-value."""
    seed: int = Field(default=0, ge=0)
    """Of the bootstrap and the permutations."""

    @field_validator("k")
    @classmethod
    def _positive(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value or min(value) < 1:
            raise ValueError(f"k must name at least one positive number, not {list(value)}")
        return tuple(dict.fromkeys(value))

    @field_validator("layers")
    @classmethod
    def _some(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value:
            raise ValueError("layers must name at least one layer")
        return value


class ReportSpec(Spec):
    """What the page shows."""

    gallery: int = Field(default=10, ge=0)
    """Examples in each gallery."""
    neighbors: int = Field(default=8, ge=1)
    """Public neighbours shown beside each."""


class Recipe(Spec):
    """A déjà vu audit from data to report."""

    audit: Literal["deja_vu"] = "deja_vu"
    title: str = "Déjà vu audit"
    """Heading of the report."""
    data: DataSpec
    split: SplitSpec
    model: ModelSpec = ModelSpec()
    training: TrainingSpec
    pairs: int = Field(default=1, ge=1)
    """Pairs of target and reference models, each from seeds of its own."""
    decode: Config = Config()
    report: ReportSpec = ReportSpec()

    @model_validator(mode="after")
    def _decodes_what_there_is(self) -> "Recipe":
        names = self.model_layers
        unknown = [layer for layer in self.decode.layers if layer not in (*names, "last")]
        if unknown:
            raise ValueError(f"decode.layers names {unknown[0]!r}; this model has {', '.join(names)}")
        unkept = [epoch for epoch in self.decode.epochs if epoch not in self.training.kept_epochs]
        if unkept:
            raise ValueError(f"decode.epochs names {unkept[0]}; training keeps {list(self.training.kept_epochs)}")
        return self

    @property
    def model_layers(self) -> tuple[str, ...]:
        """Every layer the trained models have, in order of depth."""
        return tuple(layer_names(self.model, classifier=needs_classifier(self.training.objective)))

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to decode, `last` replaced by its name, each once."""
        names = self.model_layers
        return tuple(dict.fromkeys(names[-1] if layer == "last" else layer for layer in self.decode.layers))

    @property
    def epochs(self) -> tuple[int, ...]:
        """The checkpoints to decode, the last one first."""
        return tuple(dict.fromkeys((self.training.epochs, *self.decode.epochs)))

    @property
    def crops(self) -> tuple[CropSpec, ...]:
        """The crops to decode, the headline's first."""
        modes = self.decode.crops or (self.split.crop.mode,)
        return tuple(self.split.crop.of_mode(mode) for mode in dict.fromkeys(modes))


@dataclass(frozen=True)
class Decoding:
    """The neighbours' classes for one direction of one pair of models, at one layer and epoch.

    Attributes:
        direction: A or B, the set whose crops were decoded.
        pair, layer, epoch: which models.
        crop: the crop mode.
        example_ids: (num_examples,) str.
        labels: (num_examples,) int64.
        target, reference: (num_examples, k_max) int64 classes of the neighbours, nearest first.
    """

    direction: Direction
    pair: int
    layer: str
    epoch: int
    crop: str
    example_ids: Sequence[str]
    labels: NDArray[np.int64]
    target: NDArray[np.int64]
    reference: NDArray[np.int64]


def score(decodings: Iterable[Decoding], class_names: Sequence[str], config: Config) -> pa.Table:
    """Votes on every audited example.

    Returns:
        tables.DEJA_VU_UNITS, a row an example, direction, pair, layer, epoch, crop and k.
    """
    names = np.asarray(class_names, dtype=object)
    parts = []
    for found in decodings:
        for k in config.k:
            target, target_confidence = vote(found.target[:, :k], len(class_names), tie=config.tie)
            reference, reference_confidence = vote(found.reference[:, :k], len(class_names), tie=config.tie)
            count = len(found.labels)
            columns: dict[str, Any] = {
                "example_id": list(found.example_ids),
                "direction": [found.direction] * count,
                "pair": [found.pair] * count,
                "layer": [found.layer] * count,
                "epoch": [found.epoch] * count,
                "crop": [found.crop] * count,
                "k": [k] * count,
                "label": found.labels,
                "class_name": list(names[found.labels]),
                "target_prediction": target,
                "reference_prediction": reference,
                "target_confidence": target_confidence,
                "reference_confidence": reference_confidence,
                "category": categorize(target == found.labels, reference == found.labels),
            }
            parts.append(pa.table(columns, schema=DEJA_VU_UNITS.arrow))
    return pa.concat_tables(parts)


def in_brief(params: Mapping[str, Any], headline: Mapping[str, Any]) -> bool:
    """Whether a finding with these params is shown in brief: those of the headline's setting."""
    return all(params.get(name, headline[name]) == headline[name] for name in SETTING)


def categorize(target_right: NDArray[np.bool_], reference_right: NDArray[np.bool_]) -> list[str]:
    """The category of each example (section 4.2)."""
    place = np.where(target_right, np.where(reference_right, 2, 0), np.where(reference_right, 1, 3))
    return [CATEGORIES[i] for i in place]


# -- the summary --------------------------------------------------------------------------------------


def summarize(units: pa.Table, config: Config, *, num_classes: int, probes: pa.Table | None = None) -> pa.Table:
    """The findings: a row a metric, the share of excess (which uses every example) first.

    Intervals are 95 %, from a bootstrap over examples, stratified by direction and class, in which the p % most
    confident are chosen anew in each replicate; they hold for the trained models at hand. With three pairs of
    models or more, the rows of both directions are widened to training itself (params: interval = training).

    Args:
        units: tables.DEJA_VU_UNITS.
        config: p, replicates, permutations, seed.
        num_classes: chance is 1 / num_classes.
        probes: columns layer, direction, pair, train_accuracy, test_accuracy, n; adds the probe gaps.

    Returns:
        tables.SUMMARY.
    """
    rows: list[dict[str, Any]] = []
    for setting, part in _settings(units):
        analysis = _Analysis(part, config)
        rows += _headline_rows(analysis, setting, config, num_classes)
        rows += _class_rows(analysis, setting)
    if probes is not None:
        rows += _probe_rows(probes)
    return pa.Table.from_pylist(rows, schema=SUMMARY.arrow)


def _settings(units: pa.Table) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The units of each layer, epoch, crop and k, in order of appearance."""
    names = ("layer", "epoch", "crop", "k")
    keys = list(zip(*(units[name].to_pylist() for name in names), strict=True))
    for key in dict.fromkeys(keys):
        yield dict(zip(names, key, strict=True)), units.filter(pa.array([k == key for k in keys]))


class _Analysis:
    """The units of one setting as arrays (num_pairs, num_units), and what the bootstrap says of them."""

    def __init__(self, units: pa.Table, config: Config) -> None:
        units = units.sort_by([("pair", "ascending"), ("direction", "ascending"), ("example_id", "ascending")])
        self.num_pairs = len(set(units["pair"].to_pylist()))

        def shaped(name: str) -> NDArray[Any]:
            values: NDArray[Any] = units[name].to_numpy(zero_copy_only=False)
            return values.reshape(self.num_pairs, -1)

        assert (shaped("example_id") == shaped("example_id")[:1]).all(), "pairs audit different examples"
        self.direction: NDArray[Any] = shaped("direction")[0]
        self.label: NDArray[np.int64] = shaped("label")[0]
        self.class_name: NDArray[Any] = shaped("class_name")[0]
        self.right = {side: shaped(f"{side}_prediction") == shaped("label") for side in ("target", "reference")}
        self.confidence = {side: shaped(f"{side}_confidence") for side in ("target", "reference")}
        self.config = config
        self.num_units = self.right["target"].shape[1]
        self._levels = {
            (pair, direction): self._group(pair, direction) for pair in range(self.num_pairs) for direction in DIRECTIONS
        }
        self.observed = self.statistics(np.ones((1, self.num_units), dtype=np.float32))
        strata = _strata(self.label, self.direction)
        seed = derive_seed(config.seed, "bootstrap")
        drawn = [self.statistics(w) for w in bootstrap_weights(strata, config.replicates, seed=seed)]
        self.replicates = {name: np.concatenate([part[name] for part in drawn], axis=1) for name in self.observed}

    def _group(self, pair: int, direction: str) -> dict[str, ConfidenceLevels]:
        mine = self.direction == direction
        confidence = {side: values[pair, mine] for side, values in self.confidence.items()}
        levels = confidence_levels(*confidence.values())
        return {side: ConfidenceLevels(confidence[side], self.right[side][pair, mine], levels=levels) for side in confidence}

    def statistics(self, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        """Every statistic under unit weights: name -> (num_pairs, num_replicates)."""
        found: dict[str, list[NDArray[np.float64]]] = {}
        for pair in range(self.num_pairs):
            for name, values in self._of_pair(pair, weights).items():
                found.setdefault(name, []).append(values)
        return {name: np.stack(values) for name, values in found.items()}

    def _of_pair(self, pair: int, weights: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        target, reference = self.right["target"][pair], self.right["reference"][pair]
        shares = {
            "share_memorized": target & ~reference,
            "share_misrepresented": ~target & reference,
            "share_correlated": target & reference,
            "share_unassociated": ~target & ~reference,
        }
        result: dict[str, NDArray[np.float64]] = {}
        for direction in DIRECTIONS:
            mine = self.direction == direction
            part = weights[:, mine]
            total = part.sum(axis=1, dtype=np.float64)
            for name, member in shares.items():
                result[f"{name}/{direction}"] = (part @ member[mine].astype(np.float32)) / total
            result[f"share_excess/{direction}"] = (
                result[f"share_memorized/{direction}"] - result[f"share_misrepresented/{direction}"]
            )
            for side, levels in self._levels[pair, direction].items():
                count, right = levels.totals(part)
                for share in {1.0, self.config.p}:
                    result[f"accuracy_{side}@{share:g}/{direction}"] = top_share_accuracy(count, right, share)
            for share in {1.0, self.config.p}:
                result[f"deja_vu_score@{share:g}/{direction}"] = (
                    result[f"accuracy_target@{share:g}/{direction}"] - result[f"accuracy_reference@{share:g}/{direction}"]
                )
        for name in {name.split("/")[0] for name in result}:
            result[f"{name}/both"] = (result[f"{name}/A"] + result[f"{name}/B"]) / 2
        return result

    def exchanged(self, flips: NDArray[np.float32]) -> dict[str, NDArray[np.float64]]:
        """Score at p and excess with target and reference exchanged where `flips` is 1; mean over pairs."""
        kept = 1 - flips
        score = np.zeros(len(flips))
        excess = np.zeros(len(flips))
        for pair in range(self.num_pairs):
            gain = self.right["target"][pair].astype(np.float32) - self.right["reference"][pair]
            for direction in DIRECTIONS:
                mine = self.direction == direction
                levels = self._levels[pair, direction]
                accuracy = {}
                for side, other in (("target", "reference"), ("reference", "target")):
                    own, borrowed = levels[side].totals(kept[:, mine]), levels[other].totals(flips[:, mine])
                    accuracy[side] = top_share_accuracy(own[0] + borrowed[0], own[1] + borrowed[1], self.config.p)
                score += (accuracy["target"] - accuracy["reference"]) / 2
                excess += ((kept - flips)[:, mine] @ gain[mine]) / mine.sum() / 2
        return {"deja_vu_score": score / self.num_pairs, "share_excess": excess / self.num_pairs}

    def interval(self, name: str) -> tuple[float, float]:
        """Over examples; over training too for both directions when there are pairs enough."""
        mean = self.replicates[name].mean(axis=0)
        if self.speaks_of_training and name.endswith("/both"):
            low, high = widened_interval(mean, self.observed[name][:, 0])
            floor = -1.0 if name.startswith(("share_excess", "deja_vu_score")) else 0.0
            return max(floor, low), min(1.0, high)
        return percentile_interval(mean)

    @property
    def speaks_of_training(self) -> bool:
        return self.num_pairs >= PAIRS_FOR_TRAINING

    def value(self, name: str) -> float:
        return float(self.observed[name].mean())


def _strata(label: NDArray[np.int64], direction: NDArray[Any]) -> NDArray[np.int64]:
    """Class and direction; classes with a single unit in a direction share a stratum, as one cannot be resampled."""
    side = (direction == "B").astype(np.int64)
    strata = label * 2 + side
    alone = np.bincount(strata)[strata] == 1
    merged: NDArray[np.int64] = np.where(alone, -1 - side, strata)
    return merged


def _headline_rows(
    analysis: _Analysis, setting: Mapping[str, Any], config: Config, num_classes: int
) -> Iterator[dict[str, Any]]:
    chance = 1 / num_classes
    flips = sign_flips(analysis.num_units, config.permutations, seed=derive_seed(config.seed, "permutation"))
    drawn = [analysis.exchanged(f) for f in flips]
    null = {name: np.concatenate([part[name] for part in drawn]) for name in drawn[0]}

    def row(name: str, direction: str = "both", *, p: float | None = None, **rest: Any) -> dict[str, Any]:
        key = f"{name}@{p:g}/{direction}" if p is not None else f"{name}/{direction}"
        params = {**setting, "direction": direction, "pairs": analysis.num_pairs}
        if p is not None:
            params["p"] = p
        if direction == "both":
            params["interval"] = "training" if analysis.speaks_of_training else "these models"
        n = analysis.num_units if direction == "both" else int((analysis.direction == direction).sum())
        return summary_row(name, params, analysis.value(key), analysis.interval(key), n=n, **rest)

    yield row("share_excess", null_value=0.0, p_value=_excess_p(analysis, null["share_excess"]))
    score = analysis.value(f"deja_vu_score@{config.p:g}/both")
    yield row("deja_vu_score", p=config.p, null_value=0.0, p_value=permutation_p(score, null["deja_vu_score"]))
    for share in sorted({config.p, 1.0}):
        yield row("accuracy_target", p=share, null_value=chance)
        yield row("accuracy_reference", p=share, null_value=chance)
    for name in CATEGORIES:
        yield row(f"share_{name}")
    for direction in DIRECTIONS:
        yield row("share_excess", direction, null_value=0.0)
        yield row("deja_vu_score", direction, p=config.p, null_value=0.0)
        yield row("accuracy_target", direction, p=config.p, null_value=chance)
        yield row("accuracy_reference", direction, p=config.p, null_value=chance)


def _excess_p(analysis: _Analysis, null: NDArray[np.float64]) -> float:
    """Exact McNemar for one pair; with more, examples are exchanged in all pairs at once, as they are the unit."""
    target, reference = analysis.right["target"], analysis.right["reference"]
    if analysis.num_pairs == 1:
        return mcnemar_p(int((target & ~reference).sum()), int((~target & reference).sum()))
    return permutation_p(analysis.value("share_excess/both"), null)


def _class_rows(analysis: _Analysis, setting: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Memorized minus misrepresented within each class; p-values are not corrected for the number of classes."""
    gain = analysis.right["target"].astype(float) - analysis.right["reference"]
    for label in np.unique(analysis.label):
        mine = analysis.label == label
        name = str(analysis.class_name[mine][0])
        per_unit = gain[:, mine].mean(axis=0)
        value = float(per_unit.mean())
        wins, losses = int((gain[0, mine] > 0).sum()), int((gain[0, mine] < 0).sum())
        p_value = mcnemar_p(wins, losses) if analysis.num_pairs == 1 else None
        interval = paired_interval(per_unit)
        params = {**setting, "direction": "both", "pairs": analysis.num_pairs, "class": name, "label": int(label)}
        yield summary_row("share_excess", params, value, interval, n=int(mine.sum()), p_value=p_value)


def _probe_rows(probes: pa.Table) -> Iterator[dict[str, Any]]:
    """Train minus test accuracy of a linear probe, mean of the directions and pairs; it does not see déjà vu."""
    found = probes.to_pylist()
    for layer in dict.fromkeys(row["layer"] for row in found):
        mine = [row for row in found if row["layer"] == layer]
        train = float(np.mean([row["train_accuracy"] for row in mine]))
        test = float(np.mean([row["test_accuracy"] for row in mine]))
        name = "probe_gap_backbone" if layer == "backbone" else "probe_gap_projector"
        params = {"probe_layer": layer, "train_accuracy": round(train, 4), "test_accuracy": round(test, 4)}
        yield summary_row(name, params, train - test, None, n=sum(row["n"] for row in mine))


# -- curves and galleries -----------------------------------------------------------------------------


def curves(units: pa.Table) -> pa.Table:
    """Label-inference accuracy against the share of most confident examples (Figure 3), mean of the directions.

    Returns:
        tables.CURVES, curve accuracy_by_confidence, series target and reference.
    """
    shares = np.unique(np.concatenate([np.geomspace(0.01, 1, CURVE_POINTS // 2), np.linspace(0.01, 1, CURVE_POINTS // 2)]))
    rows = []
    for setting, part in _settings(units):
        for side in ("target", "reference"):
            lines = []
            groups = list(zip(part["pair"].to_pylist(), part["direction"].to_pylist(), strict=True))
            for group in dict.fromkeys(groups):
                mine = part.filter(pa.array([g == group for g in groups]))
                right = mine[f"{side}_prediction"].to_numpy() == mine["label"].to_numpy()
                x, y = accuracy_curve(mine[f"{side}_confidence"].to_numpy(), right)
                chosen = np.maximum(1, np.round(shares * len(x))).astype(int)
                lines.append(y[chosen - 1])
            params = json.dumps(setting, sort_keys=True)
            rows += [
                {"curve": "accuracy_by_confidence", "series": side, "params": params, "x": float(x_), "y": float(y_)}
                for x_, y_ in zip(shares, np.mean(lines, axis=0), strict=True)
            ]
    return pa.Table.from_pylist(rows, schema=CURVES.arrow)


def most_memorized(units: pa.Table, count: int) -> pa.Table:
    """The memorized examples on which the target's confidence exceeds the reference's most (A.1)."""
    return _chosen(units, "memorized", count, lambda target, reference: target - reference)


def most_correlated(units: pa.Table, count: int) -> pa.Table:
    """The correlated examples with the highest confidence that both models share (A.1): the lesser of the two."""
    return _chosen(units, "correlated", count, np.minimum)


def _chosen(units: pa.Table, category: str, count: int, merit: Any) -> pa.Table:
    mine = units.filter(pa.array([c == category for c in units["category"].to_pylist()], type=pa.bool_()))
    value = merit(mine["target_confidence"].to_numpy(), mine["reference_confidence"].to_numpy())
    order = sorted(range(len(value)), key=lambda i: (-value[i], mine["example_id"][i].as_py()))
    return mine.take(pa.array(order[:count], type=pa.int64()))
