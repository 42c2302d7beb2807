"""Requests for an audit: a recipe, changes to it and machine settings, validated alike for programs and deployments."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

from flows.audits import resolved
from flows.recipes import load_recipe, overridden, validate
from memlib.audit import Audit
from memlib.audits import AUDITS, audit_of
from memlib.errors import UserError
from memlib.specs import Resources, Spec, merged

AnyRecipe = str | PathLike[str] | Mapping[str, Any] | Spec
"""Name of a shipped recipe, path of a YAML file, or a recipe itself."""


@dataclass(frozen=True)
class Asked:
    """A validated request.

    Attributes:
        audit: the audit that the recipe is for.
        recipe: the recipe, with all defaults filled in.
        resources: machine settings; they do not affect results.
    """

    audit: Audit
    recipe: Spec
    resources: Resources


def read(
    recipe: AnyRecipe, changes: Mapping[str, Any] | None = None, resources: Resources | Mapping[str, Any] | None = None
) -> Asked:
    """Read and validate a request.

    Args:
        recipe: name of a shipped recipe, path of a YAML file, or the recipe itself as a mapping or a spec.
        changes: values to change, by dotted key, as in {"training.epochs": 50}.
        resources: machine settings; values that differ from the defaults take precedence over the recipe's own.

    Raises:
        UserError: if the recipe does not exist or is invalid, or a change does not fit it.
    """
    settings = [f"{key}={json.dumps(value)}" for key, value in (changes or {}).items()]
    content, machines = _content(recipe, settings)
    name = audit_of(str(content.get("audit", "")))
    if name not in AUDITS:
        named = f"recipe {recipe}" if isinstance(recipe, str) else "the recipe"
        raise UserError(f"{named} does not name its audit; set audit to one of {', '.join(AUDITS)}")
    if isinstance(resources, Resources):
        resources = resources.model_dump(mode="json", exclude_defaults=True)
    audit = AUDITS[name]
    spec = validate(audit.recipe, resolved(audit, content))
    return Asked(audit, spec, validate(Resources, merged(machines, dict(resources or {}))))


def _content(recipe: AnyRecipe, settings: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a recipe and its resources, with settings applied."""
    if isinstance(recipe, str | PathLike):
        return load_recipe(fspath(recipe), settings)
    content = overridden(recipe.model_dump(mode="json") if isinstance(recipe, Spec) else recipe, settings)
    if "extends" in content:
        raise UserError("a recipe given as a mapping cannot extend another recipe; pass that recipe's name, and `changes`")
    return content, content.pop("resources", None) or {}
