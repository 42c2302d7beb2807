"""The part of a run that may leave its store by default: findings about groups, and the recipe without locations."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from memlib.findings import Findings
from memlib.runs.records import RunRecord
from memlib.specs.question import asks

Extra = Literal["page", "tables"]
"""The parts of a run that are shared only on request, as they may show examples."""
OF_RECORDS = frozenset({"canary", "class", "document", "example", "label", "person", "word"})
"""Params of findings about a single record, class, or word of a text; the name of a class may be that of a person."""
WITHHELD = frozenset({
    "adapter", "annotations", "attributes", "example_ids", "file", "files", "font", "function", "mask", "members", "model",
    "nulls", "path", "pattern", "prefix", "recipe", "root", "sets", "state", "text", "unseen", "weights",
})  # fmt: skip
"""Keys of recipes whose texts locate files or code, or may quote data; a mapping under such a key is searched instead."""
OPAQUE = frozenset({"canaries", "class_names", "classes", "options", "report", "title", "where"})
"""Keys of recipes that are withheld whole: they may hold anything, describe secrets, name persons, or present results."""


def shared_findings(run: RunRecord) -> Findings:
    """Return the findings of a run without those about single records, classes and words."""
    return Findings(row for row in Findings.of_run(run) if not OF_RECORDS & row.params.keys())


def shared_recipe(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a recipe by dotted key, as text, without titles, locations of files and code, and quoted data.

    Args:
        recipe: the recipe as plain JSON.
    """
    return dict(_flat(asks(recipe), ""))


def _flat(value: Any, place: str) -> Iterator[tuple[str, str]]:
    name = place.rpartition(".")[2]
    if name in OPAQUE:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(inner, f"{place}.{key}" if place else str(key))
    elif isinstance(value, list) and any(isinstance(inner, Mapping | list) for inner in value):
        for number, inner in enumerate(value):
            yield from _flat(inner, f"{place}.{number}")
    elif name not in WITHHELD or isinstance(value, bool | int | float | None):
        yield place, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def names_of(findings: Findings) -> list[str]:
    """Return a name for each finding: its metric, and a few params where a metric has several findings."""
    names: list[str] = []
    settings = {metric: _distinguishing(findings.all(metric)) for metric in dict.fromkeys(row.metric for row in findings)}
    for row in findings:
        name = " ".join([row.metric, *(_setting(key, row.params[key]) for key in settings[row.metric] if key in row.params)])
        same = sum(other == name or other.startswith(f"{name} #") for other in names)
        names.append(f"{name} #{same + 1}" if same else name)
    return names


def _distinguishing(rows: Findings) -> list[str]:
    """Return as few params as tell the findings apart; names and counts come before numbers, most of which are results."""
    keys = sorted(dict.fromkeys(key for row in rows for key in row.params), key=lambda key: (_is_result(rows, key), key))
    chosen: list[str] = []
    for key in keys:
        if _distinct(rows, [*chosen, key]) > _distinct(rows, chosen):
            chosen.append(key)
    return chosen


def _is_result(rows: Findings, key: str) -> int:
    """Return 0 for a param of texts and truth values, 1 for one of counts, 2 for one with other values."""
    values = [row.params.get(key) for row in rows]
    if all(isinstance(value, str | bool | None) for value in values):
        return 0
    return 1 if all(isinstance(value, int | None) for value in values) else 2


def _distinct(rows: Findings, keys: list[str]) -> int:
    return len({tuple(_brief(row.params.get(key)) for key in keys) for row in rows})


def _setting(key: str, value: Any) -> str:
    """Return a param as it is part of a name: a text alone, other values with their key."""
    return value.replace("=", " ") if isinstance(value, str) else f"{key} {_brief(value)}"


def _brief(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
