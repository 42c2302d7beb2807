"""Requests for an audit: a recipe, changes to it and machine settings, validated alike for programs and deployments."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import Any

from memlib.audits import AUDITS, PACKAGES, audit_of
from memlib.audits.arrangement import resolved
from memlib.audits.base import Audit
from memlib.errors import UserError
from memlib.recipes.files import load_recipe, origin_of, overridden, shipped_recipes, validate
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


def find_recipe(what: str, recipe: str | None) -> tuple[str, str]:
    """Return the audit and the recipe that a command line names.

    A word is an audit, in either spelling, or else a shipped recipe; a path has a suffix or a slash.

    Args:
        what: the first argument.
        recipe: the value of --recipe, if given; the first argument is then the name of the audit.

    Returns:
        the audit's name, or "" if only the recipe itself names it; and the name or path of the recipe.

    Raises:
        UserError: if the word names neither an audit nor a recipe, or an audit has no recipe.
    """
    word, is_path = audit_of(what), "/" in what or os.sep in what or PurePath(what).suffix != ""
    if recipe is not None:
        if word not in PACKAGES:
            raise UserError(f"there is no audit {what!r}; choose from {', '.join(PACKAGES)}, or leave out --recipe")
        return word, recipe
    if is_path or (word not in PACKAGES and what in shipped_recipes()):
        return "", what
    if word in PACKAGES:
        named = what if what in shipped_recipes() else "NAME_OR_FILE"
        raise UserError(
            f"{what} is an audit and needs a recipe: {word} --recipe {named} (memlib recipes lists the shipped ones)"
        )
    hint = f"; for the file, write ./{what}" if Path(what).is_file() else ""
    raise UserError(f"there is no audit and no shipped recipe {what!r}; see memlib recipes, or give a YAML file{hint}")


def command_for(audit: str, recipe: str) -> str:
    """Return the arguments that name a recipe on the command line: the recipe alone, unless an audit has the same name."""
    return f"{audit} --recipe {recipe}" if audit_of(recipe) in PACKAGES else recipe


def read_named(what: str, recipe: str | None, settings: Sequence[str]) -> Asked:
    """Read and validate the request of a command line, see `find_recipe`.

    Raises:
        UserError: if the recipe does not exist, is invalid, or is for another audit.
    """
    expected, named = find_recipe(what, recipe)
    return read_file(named, settings, expected)


def read_file(named: str, settings: Sequence[str], expected: str = "") -> Asked:
    """Read and validate the request of a recipe.

    Args:
        named: name of a shipped recipe or path of a YAML file.
        settings: values to change, each as KEY=VALUE.
        expected: name of the audit that the recipe must be for; "" for any.

    Raises:
        UserError: if the recipe does not exist, is invalid, or is for another audit; the message names the file and line.
    """
    content, machines = load_recipe(named, settings)
    name = audit_of(str(content.get("audit", expected)))
    if expected and name != expected:
        raise UserError(f"recipe {named} is for the {name} audit, not {expected}")
    if name not in PACKAGES:
        raise UserError(f"{named} does not name its audit; set audit to one of {', '.join(PACKAGES)}")
    audit = AUDITS[name]
    spec = validate(audit.recipe, resolved(audit, content), origin=partial(origin_of, named, settings))
    resources = validate(Resources, machines, origin=lambda place: origin_of(named, settings, ["resources", *place]))
    return Asked(audit, spec, resources)


def _content(recipe: AnyRecipe, settings: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a recipe and its resources, with settings applied."""
    if isinstance(recipe, str | PathLike):
        return load_recipe(fspath(recipe), settings)
    content = overridden(recipe.model_dump(mode="json") if isinstance(recipe, Spec) else recipe, settings)
    if "extends" in content:
        raise UserError("a recipe given as a mapping cannot extend another recipe; pass that recipe's name, and `changes`")
    return content, content.pop("resources", None) or {}
