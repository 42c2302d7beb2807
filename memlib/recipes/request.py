"""Requests for an audit: a recipe, changes to it and machine settings, validated alike for programs and deployments."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import Any

from memlib.audits import AUDITS, PACKAGES, audit_of
from memlib.audits.arrangement import resolved
from memlib.audits.attacks import IDS, not_for
from memlib.audits.base import Audit
from memlib.errors import UserError
from memlib.models.external.served import allow_services, services_in
from memlib.pipeline import user_code
from memlib.recipes import RecipeError
from memlib.recipes.files import load_recipe, origin_of, overridden, shipped_recipes, suggestion, validate
from memlib.specs import Resources, Spec, merged
from memlib.specs.base import Source

AnyRecipe = str | PathLike[str] | Mapping[str, Any] | Spec
"""Name of a shipped recipe, path of a YAML file, or a recipe itself."""


@dataclass(frozen=True)
class AuditRequest:
    """A validated request for an audit."""

    audit: Audit  #: the audit that the recipe is for.
    recipe: Spec  #: the recipe, with all defaults filled in.
    resources: Resources  #: machine settings; they do not affect results.

    @classmethod
    def read(
        cls,
        recipe: AnyRecipe,
        changes: Mapping[str, Any] | Sequence[str] = (),
        resources: Resources | Mapping[str, Any] | None = None,
        *,
        expected: str = "",
    ) -> "AuditRequest":
        """Read and validate a request; every command, function and deployed flow does so here.

        Args:
            recipe: name of a shipped recipe, path of a YAML file, or the recipe itself as a mapping or a spec.
            changes: values to change, by dotted key, as in {"training.epochs": 50}; or as texts of the form KEY=VALUE, whose
                values are YAML.
            resources: machine settings; values that differ from the defaults take precedence over the recipe's own.
            expected: name of the audit that the recipe must be for, and is for if it names none; "" for any.

        Raises:
            RecipeError: if the recipe does not exist, is invalid or is for another audit, or if a change does not fit it; the
                message names the key, and the file or change from which its value comes.
        """
        if isinstance(changes, Mapping):
            changes = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
        named = fspath(recipe) if isinstance(recipe, str | PathLike) else ""
        content, machines = _content(named or recipe, changes)
        source = partial(origin_of, named, changes)
        audit = _audit_of(content, f"recipe {named}" if named else "the recipe", expected, source)
        spec = validate(audit.schema(content), resolved(audit, content), origin=source)
        _check_kind(audit, spec)
        if isinstance(resources, Resources):
            resources = resources.model_dump(mode="json", exclude_defaults=True)
        machines = merged(machines, dict(resources or {}))
        return cls(audit, spec, validate(Resources, machines, origin=lambda place: source(["resources", *place])))

    @classmethod
    def of_command(cls, what: str, recipe: str | None, settings: Sequence[str]) -> "AuditRequest":
        """Read and validate the request of a command line, see `find_recipe`."""
        expected, named = find_recipe(what, recipe)
        return cls.read(named, settings, expected=expected)

    def allow_code(self) -> None:
        """Allow the code and the services of the recipe, which the user, and no store or server, has given."""
        content = self.recipe.model_dump(mode="json")
        user_code.allow(user_code.modules_in(content))
        if hosts := list(services_in(content)):
            allow_services(hosts)


def _check_kind(audit: Audit, recipe: Spec) -> None:
    """Raise RecipeError if examples have no content, without which the audit cannot do."""
    source = getattr(getattr(recipe, "data", None), "source", None)
    if isinstance(source, Source) and {source.holds} == IDS and not audit.kinds >= IDS:
        raise RecipeError(f"the {audit.name} audit is {not_for(audit.kinds, {source.holds})}", "data.source.kind", "")


def _audit_of(content: Mapping[str, Any], named: str, expected: str, source: Callable[[Sequence[str]], str]) -> Audit:
    """Return the audit that a recipe's content is for."""
    stated = content.get("audit", expected)
    name = audit_of(str(stated))
    if name not in PACKAGES:
        where = source(["audit"])
        problem = (
            f"{named} names no audit" if not stated else f"there is no audit {stated!r}{f' (in {where})' if where else ''}"
        )
        raise RecipeError(f"{problem}; set audit to one of {', '.join(PACKAGES)}", "audit", where)
    if expected and name != expected:
        raise RecipeError(f"{named} is for the {name} audit, not {expected}", "audit", source(["audit"]))
    return AUDITS[name]


def find_recipe(what: str, recipe: str | None) -> tuple[str, str]:
    """Return the audit and the recipe that a command line names.

    A word is an audit, in either spelling, or else a shipped recipe; a path has a suffix or a slash.

    Args:
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
    otherwise = "see memlib recipes, or give a YAML file"
    is_file, known = Path(what).is_file(), (*shipped_recipes(), *PACKAGES)
    hint = f"to use the file, write ./{what}" if is_file else suggestion(what, known, otherwise)
    raise UserError(f"there is no audit and no shipped recipe {what!r}; {hint}")


def command_for(audit: str, recipe: str) -> str:
    """Return the arguments that name a recipe on the command line: the recipe alone, unless an audit has the same name."""
    return f"{audit} --recipe {recipe}" if audit_of(recipe) in PACKAGES else recipe


def _content(recipe: AnyRecipe, settings: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the content of a recipe and its resources, with settings applied."""
    if isinstance(recipe, str):
        return load_recipe(recipe, settings)
    assert not isinstance(recipe, PathLike)
    content = overridden(recipe.model_dump(mode="json") if isinstance(recipe, Spec) else recipe, settings)
    if "extends" in content:
        raise UserError("a recipe given as a mapping cannot extend another recipe; pass that recipe's name, and `changes`")
    return content, content.pop("resources", None) or {}
