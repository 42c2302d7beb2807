"""Base of all specs, and how a recipe's content is changed by name."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict


class Spec(BaseModel):
    """Base of all specs: immutable, no unknown fields, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


Changed = TypeVar("Changed", bound=Spec)


def changed(spec: Changed, changes: Mapping[str, Any]) -> Changed:
    """A copy of a spec with some keys changed, validated; keys may be dotted (training.patience)."""
    return type(spec).model_validate(changed_content(spec.model_dump(mode="json"), changes))


def changed_content(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a spec with some keys changed, not validated; keys may be dotted."""
    found = dict(content)
    for key, value in changes.items():
        for name in reversed(key.split(".")):
            value = {name: value}
        found = merged(found, value)
    return found


def merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """`change` over `base`; mappings merge key by key unless they name another `kind`."""
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("kind", old.get("kind")) == old.get("kind"):
            value = merged(old, value)
        result[name] = value
    return result
