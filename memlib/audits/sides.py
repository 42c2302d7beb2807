"""The audited examples of one finding, with intervals and tests of how models trained on them differ from other models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import scipy
from numpy.typing import NDArray

from memlib.data.splits import TARGET
from memlib.findings import Finding, Interval, diagnostic, tested
from memlib.identity import derive_seed
from memlib.stats.inference import exact_interval, permutation_p, widened_interval
from memlib.stats.power import detectable_shift
from memlib.stats.randomization import Design
from memlib.stats.totals import effective_groups, freedom_of, grouped_interval, resampled_by_group, resampled_differences

ALIKE = 1e-9  # range of values that are equal but for rounding
PAIRS_FOR_TRAINING = 3  # pairs of models needed for an interval over training runs


class Redraws(Protocol):
    """Settings of intervals and of tests that redraw the sides."""

    @property
    def replicates(self) -> int:
        """Number of bootstrap replicates."""

    @property
    def permutations(self) -> int:
        """Number of redraws of the sides."""

    @property
    def seed(self) -> int:
        """Seed of both."""


class Audited:
    """The audited images of one finding: their design, and intervals and tests over them.

    Args:
        members: rows of the splits.
        config: replicates, permutations and seed.
        use: purpose of the random draws.
    """

    def __init__(self, members: pa.Table, config: Redraws, *, use: str = "beyond") -> None:
        self.config, self.count, self.seed = config, members.num_rows, derive_seed(config.seed, use)
        self.of_a: NDArray[np.bool_] = pc.equal(members["role"], TARGET).to_numpy()
        self.design = Design.of(self.of_a, members["label"].to_numpy(), numbers_of_groups(members))

    @cached_property
    def params(self) -> dict[str, Any]:
        """Number of groups, and number of equal groups that would be as precise; empty without groups."""
        if not self.design.has_groups:
            return {}
        return {"groups": self.design.num_groups, "effective_groups": round(effective_groups(self.design), 1)}

    def own(self, by_model: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the values under the model trained on each image, and under the other model, (num_pairs, num_images) each.

        Args:
            by_model: (num_pairs, 2, num_images), under the models trained on A and on B.
        """
        of_a, of_b = by_model[:, 0], by_model[:, 1]
        return np.where(self.of_a, of_a, of_b), np.where(self.of_a, of_b, of_a)

    def of_difference(self, gains: NDArray[np.float64]) -> Interval:
        """Return the interval of half the difference of the gains between the sides.

        The interval is over images or groups; with at least PAIRS_FOR_TRAINING pairs, also over trainings.

        Args:
            gains: (num_pairs, num_images), in [-1, 1].
        """
        over, mean = sampled_units(self.design), gains.mean(axis=0)
        replicates = resampled_differences(mean[:, None], self.design, self.config.replicates, seed=self.seed)[:, 0] / 2
        low, high = grouped_interval(replicates, self.design)
        if len(gains) >= PAIRS_FOR_TRAINING:
            repeats = np.array([self.design.difference(one) / 2 for one in gains])
            low, high = widened_interval(replicates, repeats, freedom=freedom_of(self.design))
            over = f"{over} and trainings"
        if np.ptp(mean) < ALIKE:  # all images alike: no resample differs, though other images might
            reach = exact_interval(0, self.design.num_groups)[1]
            low, high = low - reach, high + reach
        return Interval(max(-1.0, low), min(1.0, high), over)

    def of_mean(self, values: NDArray[np.float64], *, least: float = 0.0) -> Interval:
        """Return the interval of a mean over the images, in [least, 1], over images or groups.

        Args:
            values: (num_images,).
            least: the smallest possible value.
        """
        columns = scipy.sparse.csr_array(np.stack([values, np.ones(self.count)], axis=1).astype(np.float32))
        totals = resampled_by_group(columns, self.design, self.config.replicates, seed=self.seed)
        low, high = grouped_interval(totals[:, 0] / totals[:, 1], self.design, of_mean=True)
        if np.ptp(values) < ALIKE:
            reach = exact_interval(0, self.design.num_groups)[1]
            low, high = low - reach, high + reach
        return Interval(max(least, low), min(1.0, high), sampled_units(self.design))

    def diagnostics(self, metric: str, params: Mapping[str, Any], values: Mapping[str, NDArray[Any]]) -> Iterator[Finding]:
        """Yield one finding per model or guesser: the mean of its values, with an interval over images or groups.

        Args:
            metric, params: of the findings, whose params also hold the name in `values` as `by`.
            values: (num_pairs, num_images) each, by name of the model, or "guessing"; guesses have a single pair.
        """
        for by, one in values.items():
            mean = one.astype(np.float64).mean(axis=0)
            at = {**params, "by": by}
            yield diagnostic(metric, at, float(mean.mean()), n=self.count, interval=self.of_mean(mean))

    def tested(
        self,
        metric: str,
        params: Mapping[str, Any],
        gains: NDArray[np.float64],
        null: NDArray[np.float64],
        *,
        family: str,
        level: float,
        seed: int,
    ) -> Finding:
        """Return the test of half the difference of the gains between the sides.

        Args:
            metric, params, family: of the finding.
            gains: (num_pairs, num_images), by how much the model trained on A is better than the model trained on B.
            null: the same statistic under redraws of the sides, (num_draws,).
            level: level at which power is stated.
        """
        mean = gains.mean(axis=0)
        value, enough = self.design.difference(mean) / 2, detectable_shift(self.design, mean, alpha=level, seed=seed)
        return tested(
            metric, params, value, n=self.count, interval=self.of_difference(gains), family=family,
            p_value=permutation_p(value, null), detectable=None if enough is None else enough / 2,
            smallest_p=max(self.design.smallest_p(mean), 1 / (1 + len(null))),
        )  # fmt: skip

    def redrawn(self, gains: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
        """Return half the difference between redrawn sides of fixed gains (num_images,): (num_draws,)."""
        return self.design.redrawn_differences(gains, self.config.permutations, seed=seed) / 2


def sampled_units(design: Design) -> str:
    """Return the units that intervals sample: examples, or groups of them."""
    return "groups" if design.has_groups else "examples"


def numbers_of_groups(rows: pa.Table) -> NDArray[np.int64]:
    """Number the groups of a table's rows by their names, (num_rows,); a row without a group is a group of its own.

    The redraws depend on this numbering. Older tables have no column of groups.
    """
    keys = np.arange(rows.num_rows).astype(str)
    names = rows["group"] if "group" in rows.column_names else None
    if names is not None and names.null_count < rows.num_rows:
        named = pc.is_valid(names).to_numpy()
        keys = np.where(named, np.char.add("group ", pc.fill_null(names, "").to_numpy().astype(str)), keys)
    numbers: NDArray[np.int64] = np.unique(keys, return_inverse=True)[1]
    return numbers
