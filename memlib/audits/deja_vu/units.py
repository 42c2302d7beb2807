"""The units (audited examples) of one setting as arrays, with their bootstrap and redraws of the sides A and B."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.audits.deja_vu.recipe import DIRECTIONS, Config
from memlib.audits.deja_vu.scores import categorize
from memlib.audits.sides import PAIRS_FOR_TRAINING, numbers_of_groups, sampled_units
from memlib.findings import Interval
from memlib.identity import derive_seed
from memlib.stats.inference import (
    CutOff,
    TopShare,
    exact_interval,
    widened_interval,
)
from memlib.stats.randomization import Design
from memlib.stats.totals import (
    effective_groups,
    freedom_of,
    grouped_interval,
    redrawn_totals,
    resampled_by_group,
    resampled_differences,
)

Found = TypeVar("Found")


def settings(units: pa.Table) -> Iterator[tuple[dict[str, Any], pa.Table]]:
    """Yield the units of each layer, epoch, crop and k, in order of appearance."""
    names = ("layer", "epoch", "crop", "k")
    for key, rows in split_by(units, names):
        yield dict(zip(names, key, strict=True)), units.take(rows)


def split_by(units: pa.Table, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], NDArray[np.int64]]]:
    """Yield each combination of the columns' values, in order of appearance, with the rows in which it occurs."""
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


SIDES = ("target", "reference")
SHARES = ("memorized", "misrepresented", "correlated")  # the fourth category is the remainder
WIDTHS = (7.0, 30.0, math.inf)  # ranges of confidence levels around a cut-off (see TopShare), tried in turn
MOST_TOTALS = 2**26  # totals held in memory at a time
Weigh = Callable[[scipy.sparse.csr_array], NDArray[np.float64]]  # sums columns under many weightings of the units


class Analysis:
    """The units of one setting as arrays (num_pairs, num_units), and their bootstrap.

    Args:
        units: tables.UNITS of the setting.
        config: p, replicates, seed.
        alone: True if there is no second model. "both" is then the value for training images minus that for held-out images;
            with two models, it is the mean of both directions.
    """

    def __init__(self, units: pa.Table, config: Config, *, alone: bool = False) -> None:
        self.alone = alone
        units = units.sort_by([("pair", "ascending"), ("direction", "ascending"), ("example_id", "ascending")])
        self.num_pairs = len(pc.unique(units["pair"]))
        self.num_units = units.num_rows // self.num_pairs
        first = units.slice(0, self.num_units)
        for start in range(0, units.num_rows, self.num_units):
            ids = units["example_id"].slice(start, self.num_units)
            assert ids.equals(first["example_id"]), "pairs audit different examples"

        def shaped(name: str) -> NDArray[Any]:
            values: NDArray[Any] = units[name].to_numpy()
            return values.reshape(self.num_pairs, -1)

        self.of_a: NDArray[np.bool_] = pc.equal(first["direction"], "A").to_numpy()
        self.label: NDArray[np.int64] = first["label"].to_numpy()
        labels, places = np.unique(self.label, return_index=True)
        self.class_names = dict(zip(labels.tolist(), first["class_name"].take(places).to_pylist(), strict=True))
        self.groups = numbers_of_groups(first)
        self.right = {side: shaped(f"{side}_prediction") == shaped("label") for side in SIDES}
        self.confidence = {side: shaped(f"{side}_confidence") for side in SIDES}
        self.config = config
        self.observed = self._statistics(lambda columns: columns.sum(axis=0, dtype=np.float64)[None])
        seed = derive_seed(config.seed, "bootstrap")
        self.replicates = self._statistics(
            lambda columns: resampled_by_group(columns, self.design, config.replicates, seed=seed)
        )
        if not self.is_balanced:
            own = self.scale * self.num_pairs * self.own_gains
            self.observed["share_excess/both"] = np.array([[self.design.difference(gains)] for gains in own])
            self.replicates["share_excess/both"] = resampled_differences(own.T, self.design, config.replicates, seed=seed).T

    def units_of(self, direction: str) -> NDArray[np.bool_]:
        """Return a mask of the units of a direction, or of both, (num_units,)."""
        return {"A": self.of_a, "B": ~self.of_a, "both": np.ones_like(self.of_a)}[direction]

    def _statistics(self, weigh: Weigh) -> dict[str, NDArray[np.float64]]:
        """Return every statistic by name, (num_pairs, num_weightings), under the weightings of the units by `weigh`."""

        def within(width: float) -> dict[str, NDArray[np.float64]]:
            parts = [self._of_pair(pair, direction, width) for pair in range(self.num_pairs) for direction in DIRECTIONS]
            totals = _totals([part.columns for part in parts], weigh, self.config.replicates)
            statistics = [part.statistics(sums) for part, sums in zip(parts, totals, strict=True)]
            result: dict[str, NDArray[np.float64]] = {}
            for name in statistics[0]:
                a, b = (np.stack([part[name] for part in statistics[side::2]]) for side in (0, 1))
                result |= {f"{name}/A": a, f"{name}/B": b, f"{name}/both": a - b if self.alone else (a + b) / 2}
            return result

        return _wide_enough(within)

    def _of_pair(self, pair: int, direction: str, width: float) -> _Direction:
        members = self.units_of(direction)
        right = {side: values[pair, members] for side, values in self.right.items()}
        top = {
            side: TopShare(values[pair, members], right[side], self.config.p, weight=int(members.sum()), width=width)
            for side, values in self.confidence.items()
        }
        return _Direction(members, right, top, self.config.p, resized=self.design.has_groups)

    @cached_property
    def design(self) -> Design:
        """The random draw of the sides: the images on which model A was trained and those on which model B was trained."""
        return Design.of(self.of_a, self.label, self.groups)

    @property
    def comparison(self) -> dict[str, Any]:
        """Params of the headline on its design: within, groups and effective_groups.

        within is "classes" unless the sides are balanced. With groups, effective_groups is the number of equally large groups
        that would be as precise.
        """
        within = {} if self.is_balanced else {"within": "classes"}
        if not self.design.has_groups:
            return within
        return within | {"groups": self.design.num_groups, "effective_groups": round(effective_groups(self.design), 1)}

    @cached_property
    def is_balanced(self) -> bool:
        """True if each class has equally many images on both sides, in every draw."""
        halves = 2 * self.design.chosen_by_stratum == np.bincount(self.design.strata_of_groups)
        even: bool = self.design.is_even
        return even and bool(np.all(halves))

    @property
    def own_gains(self) -> NDArray[np.int64]:
        """Gains, (num_pairs, num_units): 1 where only the model trained on A is right, -1 where only model B is, else 0.

        With a single model, the classifier that replaces the second model takes the place of the model trained on B. If
        nothing is memorized, the gains do not depend on the side of the image.
        """
        own = self.right["target"].astype(np.int64) - self.right["reference"]
        gains: NDArray[np.int64] = np.where(self.of_a | self.alone, own, -own)
        return gains

    @property
    def gains(self) -> NDArray[np.int64]:
        """Sum of `own_gains` over pairs, (num_units,)."""
        return np.asarray(self.own_gains.sum(axis=0), dtype=np.int64)

    @property
    def wrong(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Number of pairs whose model trained on A, and whose model trained on B, is wrong on each image, (num_units,) each.

        With single models, the second array is 0.
        """
        target, reference = (np.asarray((~self.right[side]).sum(axis=0), dtype=np.int64) for side in SIDES)
        if self.alone:
            return target, np.zeros_like(target)
        return np.where(self.of_a, target, reference), np.where(self.of_a, reference, target)

    @property
    def scale(self) -> float:
        """Share excess per unit of `Design.difference` of the gains."""
        return (1.0 if self.alone else 0.5) / self.num_pairs

    @property
    def trained_on(self) -> NDArray[np.bool_]:
        """Mask of the images on which at least one model was trained, (num_units,)."""
        return self.of_a | (not self.alone)

    def redrawn_scores(self, count: int, *, seed: int) -> NDArray[np.float64]:
        """Return the déjà vu scores at p under redraws of the sides, (count,), averaged over pairs and directions."""

        def weigh(columns: scipy.sparse.csr_array) -> NDArray[np.float64]:
            return redrawn_totals(columns, self.design, count, seed=seed)

        whole = scipy.sparse.csr_array(np.ones((self.num_units, 1), dtype=np.float32))
        first = weigh(whole)[:, 0] if self.design.has_groups else np.full(count, float(self.of_a.sum()))

        def within(width: float) -> NDArray[np.float64]:
            models = [model for pair in range(self.num_pairs) for model in self._by_model(pair, width)]
            totals = _totals([model.columns for model in models], weigh, count)
            score = np.zeros(count)
            for place, (model, on_first) in enumerate(zip(models, totals, strict=True)):
                on_second = model.columns.sum(axis=0, dtype=np.float64) - on_first
                gain = model.accuracy(on_first, first) - model.accuracy(on_second, self.num_units - first)
                score += gain if place % 2 == 0 else -gain  # model A was trained on the first side, model B on the second
            return score / self.num_pairs / (1 if self.alone else 2)

        return _wide_enough(within)

    def _by_model(self, pair: int, width: float) -> tuple[TopShare, TopShare]:
        """Return the `TopShare` of the images of both sides for the model trained on A and for the other model."""
        smaller = float(min(self.of_a.sum(), (~self.of_a).sum()))
        models = []
        for own in (self.of_a | self.alone, ~self.of_a & (not self.alone)):
            confidence = np.where(own, self.confidence["target"][pair], self.confidence["reference"][pair])
            right = np.where(own, self.right["target"][pair], self.right["reference"][pair])
            models.append(TopShare(confidence, right, self.config.p, weight=smaller, width=width))
        return models[0], models[1]

    def interval(self, name: str) -> Interval:
        """Return the interval of a statistic over examples or groups.

        For both directions and enough pairs of models, it is over training runs, too. It does not enter the verdict.
        """
        mean = self.replicates[name].mean(axis=0)
        if self.speaks_of_training and name.endswith("/both"):
            ends = widened_interval(mean, self.observed[name][:, 0], freedom=freedom_of(self.design))
            sampled = f"{self.sampled} and trainings"
        else:
            ends, sampled = grouped_interval(mean, self.design), self.sampled
        if ends[1] - ends[0] < 1e-9:  # all images alike, as at 0 or 1: no resample differs, though other images might
            reach = exact_interval(0, self._counted(name))[1]
            ends = ends[0] - reach, ends[1] + reach
        floor = -1.0 if name.startswith(("share_excess", "deja_vu_score")) else 0.0
        return Interval(max(floor, ends[0]), min(1.0, ends[1]), sampled)

    def _counted(self, name: str) -> int:
        """Return the number of groups or images behind a statistic: those of its direction, times the share p if given."""
        statistic, direction = name.rsplit("/", 1)
        units = np.unique(self.groups[self.units_of(direction)])
        share = float(statistic.partition("@")[2] or 1)
        return max(1, round(share * len(units)))

    @property
    def sampled(self) -> str:
        """The units that intervals sample besides training runs: examples or groups."""
        return sampled_units(self.design)

    @property
    def speaks_of_training(self) -> bool:
        """True if there are enough pairs of models for an interval over training runs."""
        return self.num_pairs >= PAIRS_FOR_TRAINING

    def value(self, name: str) -> float:
        """Return the mean of a statistic over pairs."""
        return float(self.observed[name].mean())


class _Direction:
    """Columns to sum over the units of one direction of a pair, and the statistics computed from the sums."""

    def __init__(
        self,
        mine: NDArray[np.bool_],
        right: Mapping[str, NDArray[np.bool_]],
        top: Mapping[str, TopShare],
        p: float,
        *,
        resized: bool,
    ) -> None:
        self._weight, self._p, self._top, self._resized = float(mine.sum()), p, top, resized
        target, reference = right["target"], right["reference"]
        category = categorize(target, reference)
        known = np.flatnonzero(category < len(SHARES))
        ones = np.ones(len(known), dtype=np.float32)
        shares = scipy.sparse.csr_array((ones, (known, category[known])), shape=(len(target), len(SHARES)))
        size = [scipy.sparse.csr_array(np.ones((len(target), 1), dtype=np.float32))] if resized else []
        joint = scipy.sparse.hstack([shares, *(one.columns for one in top.values()), *size], format="coo")
        entries = (joint.data, (np.flatnonzero(mine)[joint.coords[0]], joint.coords[1]))
        self.columns = scipy.sparse.csr_array(entries, shape=(len(mine), joint.shape[1]))

    def statistics(self, totals: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Return every statistic by name, (num_weightings,), from totals (num_weightings, num_columns)."""
        weight: NDArray[np.float64] | float = totals[:, -1] if self._resized else self._weight
        shares = {name: totals[:, place] / weight for place, name in enumerate(SHARES)}
        values = {f"share_{name}": share for name, share in shares.items()}
        values["share_unassociated"] = 1 - np.sum(list(shares.values()), axis=0)
        values["share_excess"] = shares["memorized"] - shares["misrepresented"]
        values["accuracy_target@1"] = shares["memorized"] + shares["correlated"]
        values["accuracy_reference@1"] = shares["misrepresented"] + shares["correlated"]
        start = len(SHARES)
        if self._p < 1:
            for side, top in self._top.items():
                end = start + top.columns.shape[1]
                values[f"accuracy_{side}@{self._p:g}"] = top.accuracy(totals[:, start:end], weight)
                start = end
        for p in {1.0, self._p}:
            values[f"deja_vu_score@{p:g}"] = values[f"accuracy_target@{p:g}"] - values[f"accuracy_reference@{p:g}"]
        return values


def _totals(parts: Sequence[scipy.sparse.csr_array], weigh: Weigh, weightings: int) -> Iterator[NDArray[np.float64]]:
    """Yield the column totals of each part under the same weightings, as many parts at a time as fit in memory."""
    start = 0
    while start < len(parts):
        widths = np.cumsum([part.shape[1] for part in parts[start:]])
        end = start + max(1, int(np.searchsorted(widths, MOST_TOTALS // weightings, side="right")))
        totals = weigh(scipy.sparse.hstack(parts[start:end], format="csr"))
        yield from np.split(totals, widths[: end - start - 1], axis=1)
        start = end


def _wide_enough(within: Callable[[float], Found]) -> Found:
    """Return the result at the smallest width for which every cut-off falls within the distinguished confidence levels."""
    for width in WIDTHS[:-1]:
        with contextlib.suppress(CutOff):
            return within(width)
    return within(WIDTHS[-1])
