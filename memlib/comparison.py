"""Differences between two runs: recipes, findings, and artifacts."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from memlib.records import Finding, RunRecord


class RecipeChange(TypedDict):
    """A dotted recipe key and its two different values; a value is None if that recipe lacks the key."""

    key: str
    first: Any
    second: Any


class FindingChange(TypedDict):
    """The values of one finding in two runs, None if a run lacks it; `apart` is true if the intervals do not overlap."""

    metric: str
    params: str
    first: float | None
    second: float | None
    difference: float | None
    apart: bool


def recipe_changes(first: RunRecord, second: RunRecord) -> list[RecipeChange]:
    """Return the dotted recipe keys whose values differ, with both values; None if a recipe lacks the key."""
    a, b = (dict(flat(run.recipe)) for run in (first, second))
    names = dict.fromkeys([*a, *b])
    return [{"key": name, "first": a.get(name), "second": b.get(name)} for name in names if a.get(name) != b.get(name)]


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted keys and the values of nested mappings; lists are treated as values."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def finding_changes(first: RunRecord, second: RunRecord) -> list[FindingChange]:
    """Return the findings of either run, matched by metric and params, with both values and their difference.

    Intervals that do not overlap are marked: the difference exceeds the uncertainty of either run. Runs share data and
    seeds, so overlapping intervals do not mean that nothing changed.
    """
    a, b = (_by_setting(run) for run in (first, second))
    changes: list[FindingChange] = []
    for key in dict.fromkeys([*a, *b]):
        metric, params = key
        first_row, second_row = a.get(key), b.get(key)
        before, after = _value(first_row), _value(second_row)
        difference = None if before is None or after is None else after - before
        apart = difference is not None and _apart(first_row, second_row)
        changes.append(
            {"metric": metric, "params": params, "first": before, "second": after, "difference": difference, "apart": apart}
        )
    return changes


def _by_setting(run: RunRecord) -> dict[tuple[str, str], Finding]:
    """Index a run's findings by metric and params; params are canonical JSON, as the order of their keys may differ."""
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
    """Return artifact names in four groups: same in both runs, different, only in the first, only in the second."""
    a, b = first.artifacts, second.artifacts
    return {
        "same": sorted(name for name in a if a[name] == b.get(name)),
        "differ": sorted(name for name in a if name in b and a[name] != b[name]),
        "first only": sorted(a.keys() - b.keys()),
        "second only": sorted(b.keys() - a.keys()),
    }
