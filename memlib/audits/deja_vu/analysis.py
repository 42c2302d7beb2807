"""The units of one setting as arrays, their bootstrap, and redraws of the sides."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import Config
from memlib.audits.deja_vu.scores import DIRECTIONS
from memlib.findings import Interval
from memlib.identity import derive_seed
from memlib.stats.inference import (
    ConfidenceLevels,
    bootstrap_weights,
    confidence_levels,
    percentile_interval,
    top_share_accuracy,
    widened_interval,
)
from memlib.stats.randomization import Design

PAIRS_FOR_TRAINING = 3  # pairs of models from which an interval can speak of training itself


def settings(units: pa.Table) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """The units of each layer, epoch, crop and k, in order of appearance."""
    names = ("layer", "epoch", "crop", "k")
    for key, rows in split_by(units, names):
        yield dict(zip(names, key, strict=True)), units.take(rows)


def split_by(units: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], NDArray[np.int64]]]:
    """The values of some columns that occur together, in order of appearance, and the rows that have them."""
    if not units.num_rows:
        return
    codes = np.zeros(units.num_rows, dtype=np.int64)
    for name in names:
        encoded = pc.dictionary_encode(units[name].combine_chunks())
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    _, first, group = np.unique(codes, return_index=True, return_inverse=True)
    rows = np.split(np.argsort(group, kind="stable"), np.cumsum(np.bincount(group))[:-1])
    for number in np.argsort(first):
        place = int(first[number])
        yield tuple(units[name][place].as_py() for name in names), rows[number]


class Analysis:
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
        names = units["group"].slice(0, len(self.label)) if "group" in units.column_names else None
        self.groups = _groups(names, len(self.label))
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

    @property
    def design(self) -> Design:
        """The draw of sides: which images the model of A was trained on, and which that of B."""
        return Design.of(self.direction == "A", self.label, self.groups)

    @property
    def gains(self) -> NDArray[np.int64]:
        """(num_units,) over pairs: right answers under the model trained on A minus those under the model trained on B.

        Which side an image is on changes none of them, if nothing is memorized.
        """
        own = (self.right["target"].astype(np.int64) - self.right["reference"]).sum(axis=0)
        found: NDArray[np.int64] = np.where(self.direction == "A", own, -own)
        return found

    def redrawn_scores(self, count: int, *, seed: int) -> NDArray[np.float64]:
        """Déjà vu scores at p under redraws of the sides: (count,), mean over pairs and directions."""
        pooled = [self._by_model(pair) for pair in range(self.num_pairs)]
        found = []
        for sides in self.design.redraws(count, seed=seed):
            first, second = sides.astype(np.float32), (~sides).astype(np.float32)
            total = np.zeros(len(sides))
            for a, b in pooled:
                for mine, own, other in ((first, a, b), (second, b, a)):
                    hits = (top_share_accuracy(*model.totals(mine), self.config.p) for model in (own, other))
                    total += next(hits) - next(hits)
            found.append(total / 2 / self.num_pairs)
        return np.concatenate(found)

    def _by_model(self, pair: int) -> tuple[ConfidenceLevels, ConfidenceLevels]:
        """All images under the model trained on A and under the one trained on B, whichever side they are on."""
        of_a = self.direction == "A"
        models = []
        for own in (of_a, ~of_a):
            confidence = np.where(own, self.confidence["target"][pair], self.confidence["reference"][pair])
            right = np.where(own, self.right["target"][pair], self.right["reference"][pair])
            models.append((confidence, right))
        levels = confidence_levels(*(confidence for confidence, _ in models))
        a, b = (ConfidenceLevels(confidence, right, levels=levels) for confidence, right in models)
        return a, b

    def interval(self, name: str) -> Interval:
        """Over examples; over trainings too for both directions when there are pairs enough. It enters no verdict."""
        mean = self.replicates[name].mean(axis=0)
        if self.speaks_of_training and name.endswith("/both"):
            low, high = widened_interval(mean, self.observed[name][:, 0])
            floor = -1.0 if name.startswith(("share_excess", "deja_vu_score")) else 0.0
            return Interval(max(floor, low), min(1.0, high), "examples and trainings")
        return Interval(*percentile_interval(mean), "examples")

    @property
    def speaks_of_training(self) -> bool:
        """Whether there are pairs enough for an interval over trainings."""
        return self.num_pairs >= PAIRS_FOR_TRAINING

    def value(self, name: str) -> float:
        """The mean over pairs."""
        return float(self.observed[name].mean())


def _groups(names: pa.ChunkedArray | None, count: int) -> NDArray[np.int64]:
    """Numbers of groups (num_units,), which redraws follow, in order of their names; a unit without one is one by itself."""
    found = np.arange(count).astype(str)
    if names is not None and names.null_count < count:
        named = pc.is_valid(names).to_numpy()
        found = np.where(named, np.char.add("group ", pc.fill_null(names, "").to_numpy().astype(str)), found)
    numbers: NDArray[np.int64] = np.unique(found, return_inverse=True)[1]
    return numbers


def _strata(label: NDArray[np.int64], direction: NDArray[Any]) -> NDArray[np.int64]:
    """Class and direction; classes with a single unit in a direction share a stratum, as one cannot be resampled."""
    side = (direction == "B").astype(np.int64)
    strata = label * 2 + side
    alone = np.bincount(strata)[strata] == 1
    merged: NDArray[np.int64] = np.where(alone, -1 - side, strata)
    return merged
