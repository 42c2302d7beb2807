"""The question that a recipe asks, without the places of its data and its presentation, and the run's name; its figures."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from memlib.identity import canonical_json, content_key
from memlib.specs.base import Spec, source_of

PRESENTATION = ("title", "report")  # keys of a recipe that affect no numbers
NAME_LENGTH = 12


class PageSpec(Spec):
    """Contents of the page."""

    added_later: ClassVar[frozenset[str]] = frozenset({"png", "author"})

    author: str = ""
    """Who ran the audit, for the head of the page."""
    png: bool = False
    """Write the figures as PNG files, too; of a finished run, only the page is drawn again."""


def without_whereabouts(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data section of a recipe without the locations and the expected size of its files."""
    described: dict[str, Any] = json.loads(json.dumps(data))
    described.pop("expected", None)
    for source in (described["source"], *(part["source"] for part in described["source"].get("parts", {}).values())):
        for name in source_of(source["kind"]).whereabouts:
            source.pop(name, None)
    return described


def asks(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe (plain JSON) without data locations and presentation: the part that determines the results."""
    kept = {key: value for key, value in recipe.items() if key not in PRESENTATION}
    return kept | ({"data": without_whereabouts(recipe["data"])} if "data" in recipe else {})


def asks_digest(recipe: Mapping[str, Any]) -> str:
    """Return a digest of `asks`, equal for recipes that differ only in titles, report settings and data locations.

    Raises:
        ValueError: when the data are not described as in a recipe.
    """
    try:
        return hashlib.sha256(canonical_json(asks(recipe)).encode()).hexdigest()
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"its data are not described as in a recipe ({type(error).__name__}: {error})") from error


def asks_but_seeds(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return `asks` of a recipe without its seeds: equal for recipes that ask the same of other trainings or draws."""
    without: dict[str, Any] = _without_seeds(asks(recipe))
    return without


def _without_seeds(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_seeds(inner) for key, inner in value.items() if key != "seed" and not key.endswith("_seed")}
    return [_without_seeds(inner) for inner in value] if isinstance(value, list) else value


def run_name(recipe: Mapping[str, Any], scores: str) -> str:
    """Return the id of a run, derived from `asks` of its recipe and the key of its scores."""
    return content_key("run", version=2, spec=asks(recipe), inputs={"scores": scores})[:NAME_LENGTH]
