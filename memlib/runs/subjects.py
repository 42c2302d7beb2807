"""Short names of the data and the model that a run audits, from its recipe, for headings and lists."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from memlib.sanitize import plain

FILES = ("weights", "path")  # keys of files; only the last part of a path is shown
KINDS = ("architecture", "backbone", "model", "kind")
MOST_NAMES = 3


def data_name(recipe: Mapping[str, Any]) -> str:
    """Return a name for the data of a recipe: the kind of source, and the name of its file or data set; "" for a sweep.

    Args:
        recipe: the recipe as plain JSON, which may be of any version.
    """
    data = recipe.get("data")
    source = data.get("source") if isinstance(data, Mapping) else None
    if not isinstance(source, Mapping):
        return ""
    return " ".join(filter(None, (_text(source, "kind"), _file_name(source) or _text(source, "name"))))


def model_name(recipe: Mapping[str, Any]) -> str:
    """Return a name for the model of a recipe: the file of an external model, or else the architecture; "" for a sweep.

    Args:
        recipe: the recipe as plain JSON, which may be of any version.
    """
    names = list(dict.fromkeys(filter(None, map(_model, _external(recipe)))))
    if not names:
        model = recipe.get("model")
        return _model(model) if isinstance(model, Mapping) else ""
    return ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else "")


def _external(recipe: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the external models, outputs and encoders of a recipe."""
    targets, encoders, checkpoints = recipe.get("targets"), recipe.get("encoders"), recipe.get("checkpoints")
    holders = [recipe, recipe.get("target"), *(targets.values() if isinstance(targets, Mapping) else ())]
    places = [(holder, name) for holder in holders for name in ("trained", "outputs")]
    places += [(pair, side) for pair in (encoders if isinstance(encoders, list) else ()) for side in ("a", "b")]
    found = [holder.get(name) for holder, name in places if isinstance(holder, Mapping)]
    found += checkpoints if isinstance(checkpoints, list) else []
    yield from (one for one in found if isinstance(one, Mapping))


def _model(spec: Mapping[str, Any]) -> str:
    return _file_name(spec) or next(filter(None, (_text(spec, name) for name in KINDS)), "")


def _file_name(spec: Mapping[str, Any]) -> str:
    return PurePath(next(filter(None, (_text(spec, name) for name in FILES)), "")).name


def _text(spec: Mapping[str, Any], name: str) -> str:
    value = spec.get(name)
    return plain(value) if isinstance(value, str) else ""
