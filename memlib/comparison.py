"""What differs between two runs: their recipes, their findings, the artifacts they are made of."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from memlib.records import Finding, RunRecord


class RecipeChange(TypedDict):
    """A dotted key whose values differ; None where a recipe has no such key."""

    key: str
    first: Any
    second: Any


class FindingChange(TypedDict):
    """A finding in both runs, or in one; `apart` says that the intervals do not overlap."""

    metric: str
    params: str
    first: float | None
    second: float | None
    difference: float | None
    apart: bool


def recipe_changes(first: RunRecord, second: RunRecord) -> list[RecipeChange]:
    """Keys of the recipes, dotted, with the values of both where they differ; None where one has no such key."""
    a, b = (dict(flat(run.recipe)) for run in (first, second))
    names = dict.fromkeys([*a, *b])
    return [{"key": name, "first": a.get(name), "second": b.get(name)} for name in names if a.get(name) != b.get(name)]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested mappings; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def finding_changes(first: RunRecord, second: RunRecord) -> list[FindingChange]:
    """Findings of either run by metric and params: both values, and how the second differs where it has both.

    Intervals that do not overlap are marked: the difference is more than either run's own uncertainty. Runs share data and
    seeds, so overlapping intervals do not say that nothing changed.
    """
    a, b = (_by_setting(run) for run in (first, second))
    found: list[FindingChange] = []
    for key in dict.fromkeys([*a, *b]):
        metric, params = key
        mine, other = a.get(key), b.get(key)
        before, after = _value(mine), _value(other)
        difference = None if before is None or after is None else after - before
        apart = difference is not None and _apart(mine, other)
        found.append(
            {"metric": metric, "params": params, "first": before, "second": after, "difference": difference, "apart": apart}
        )
    return found


def _by_setting(run: RunRecord) -> dict[tuple[str, str], Finding]:
    """Params are compared as canonical JSON, whatever order their keys were written in."""
    return {(row.metric, json.dumps(json.loads(row.params), sort_keys=True)): row for row in run.findings}


def _value(row: Finding | None) -> float | None:
    return None if row is None else row.value


def _apart(mine: Finding | None, other: Finding | None) -> bool:
    if mine is None or other is None or mine.ci_low is None or other.ci_low is None:
        return False
    if mine.ci_high is None or other.ci_high is None:
        return False
    return mine.ci_high < other.ci_low or other.ci_high < mine.ci_low


def shared_artifacts(first: RunRecord, second: RunRecord) -> dict[str, list[str]]:
    """Names of the artifacts that both runs have, in the same version or in another, or that only one has."""
    a, b = first.artifacts, second.artifacts
    return {
        "same": sorted(name for name in a if a[name] == b.get(name)),
        "differ": sorted(name for name in a if name in b and a[name] != b[name]),
        "first only": sorted(a.keys() - b.keys()),
        "second only": sorted(b.keys() - a.keys()),
    }
