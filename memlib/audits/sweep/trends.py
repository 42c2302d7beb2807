"""Trends of the headline along a numeric key of the grid: a permutation test over independently trained cells."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from memlib.audits.outcomes import Outcome, models_of
from memlib.findings import Finding, diagnostic, settle, tested
from memlib.identity import derive_seed

SHARED_MODELS = "the cells share their models"
FEWEST, EXACT, DRAWS = 3, 10_000, 10_000

Point = tuple[float, str, Finding]
"""Value of the key, name of the cell and its headline."""


@dataclass(frozen=True)
class Trend:
    """The headlines along one key of a grid."""

    audit: str  #: audit of the cells.
    key: str  #: dotted key of the recipe.
    strata: Sequence[Sequence[Point]]  #: groups of cells that agree in all other keys, each in the order of the key's values.
    row: Finding  #: row of the sweep's table.


def trends(outcomes: Sequence[Outcome], *, alpha: float = 0.05) -> list[Trend]:
    """Return a trend for each numeric key in which cells differ; all trends are tested together (Holm 1979).

    The statistic is the correlation of the headline with the rank of the key's value among cells that agree in all other
    keys. Under the null hypothesis the key has no effect, so that any cell could have had any of the key's values. Cells are
    therefore permuted within strata. This requires independently trained models and the same number of audited examples in
    all cells: cells of other precision would not be exchangeable without an effect, either. Other trends are shown, but not
    tested.
    """
    done = [outcome for outcome in outcomes if outcome.run is not None]
    candidates = []
    for audit in dict.fromkeys(outcome.audit for outcome in done):
        cells = [outcome for outcome in done if outcome.audit == audit]
        for key in dict.fromkeys(key for outcome in cells for key in outcome.changes):
            strata = _strata(cells, key)
            if max(map(len, strata), default=0) >= FEWEST:
                candidates.append((audit, key, strata, _row(audit, key, strata, cells)))
    rows = settle([row for *_, row in candidates], alpha=alpha)
    return [Trend(audit, key, strata, row) for (audit, key, strata, _), row in zip(candidates, rows, strict=True)]


def _strata(outcomes: Sequence[Outcome], key: str) -> list[list[Point]]:
    strata: dict[str, dict[float, Point]] = {}
    for outcome in outcomes:
        value = outcome.changes.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or outcome.run is None:
            continue
        first = outcome.headline
        if math.isnan(first.value):
            continue
        others = json.dumps({name: v for name, v in outcome.changes.items() if name != key}, sort_keys=True, default=str)
        strata.setdefault(f"{first.metric} {others}", {}).setdefault(float(value), (float(value), outcome.cell, first))
    return [[points[value] for value in sorted(points)] for points in strata.values() if len(points) > 1]


def _row(audit: str, key: str, strata: Sequence[Sequence[Point]], outcomes: Sequence[Outcome]) -> Finding:
    values = [np.array([first.value for _, _, first in points], dtype=np.float64) for points in strata]
    metric = f"trend in {strata[0][0][2].metric}"
    count = sum(map(len, values))
    named = {cell for points in strata for _, cell, _ in points}
    params = {"audit": audit, "along": key, "cells": count, "from": strata[0][0][0], "to": strata[0][-1][0]}
    null = np.concatenate(list(_null(values)))
    observed, scale = _statistic(values), _scale(values)
    untested = ""
    if _share_models([o for o in outcomes if o.cell in named]):
        untested = SHARED_MODELS
    elif any(len({first.n for _, _, first in points}) > 1 for points in strata):
        untested = f"{key} changes the number of audited examples, and with it the precision of each cell"
    if untested:
        return diagnostic(metric, params | {"not_tested": untested}, observed / scale, n=count)
    extreme = float((np.abs(null) >= abs(observed) - 1e-9 * scale).mean())
    smallest = float((np.abs(null) >= np.abs(null).max() - 1e-9 * scale).mean())
    return tested(
        metric,
        params,
        observed / scale,
        n=count,
        p_value=max(extreme, 1 / len(null)),
        family="trends",
        smallest_p=smallest,
        either_direction=True,
    )


def _ranks(count: int) -> NDArray[np.float64]:
    return np.arange(count, dtype=np.float64) - (count - 1) / 2


def _statistic(values: Sequence[NDArray[np.float64]]) -> float:
    return float(sum(_ranks(len(part)) @ part for part in values))


def _scale(values: Sequence[NDArray[np.float64]]) -> float:
    """Return the divisor that turns the statistic into a correlation within strata."""
    ranks = math.sqrt(sum(float(np.square(_ranks(len(part))).sum()) for part in values))
    spread = math.sqrt(sum(float(np.square(part - part.mean()).sum()) for part in values))
    return ranks * spread or 1.0


def _null(values: Sequence[NDArray[np.float64]]) -> Iterator[NDArray[np.float64]]:
    """Yield the statistic under permutations within strata: all permutations if there are few, else a random sample."""
    if math.prod(math.factorial(len(part)) for part in values) <= EXACT:
        sums = [np.array([_ranks(len(p)) @ p[list(o)] for o in itertools.permutations(range(len(p)))]) for p in values]
        total = np.zeros(1)
        for part in sums:
            total = (total[:, None] + part[None]).ravel()
        yield total
        return
    rng = np.random.default_rng(derive_seed(0, "trend"))
    statistics = np.zeros(DRAWS)
    for part in values:
        statistics += rng.permuted(np.broadcast_to(part, (DRAWS, len(part))), axis=1) @ _ranks(len(part))
    yield np.append(statistics, _statistic(values))  # the observed order counts as one of the draws


def _share_models(outcomes: Sequence[Outcome]) -> bool:
    """Return whether two cells share a model, or a cell has no models that memlib trained."""
    seen: set[str] = set()
    for outcome in outcomes:
        assert outcome.run is not None
        models = models_of(outcome.run)
        if models & seen or not models:
            return True
        seen |= models
    return False
