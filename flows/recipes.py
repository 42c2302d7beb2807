"""Recipes: YAML files, shipped or the user's own, with overrides from the command line."""

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from memlib.errors import UserError
from memlib.plain import is_plain, plain
from memlib.private import read_plain
from memlib.specs import merged

QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
MOST_BYTES, MOST_VALUES = 10 * 2**20, 100_000  # of a recipe
Model = TypeVar("Model", bound=BaseModel)


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with the package by name, those of an audit (a folder) together."""
    folder = Path(str(files("deployments").joinpath("recipes")))
    return {path.stem: path for path in sorted(folder.glob("*/*.yaml"))}


def load_recipe(name_or_file: str, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """The recipe and the resources of a YAML file, with `key=value` overrides applied.

    Args:
        name_or_file: a shipped recipe's name, or a path to a YAML file.
        overrides: dotted keys of the recipe, or of resources (resources.gpu=false); values are YAML.

    Raises:
        UserError: when there is no such recipe or it is not YAML.
    """
    content = overridden(_read(name_or_file, seen=()), overrides)
    resources = content.pop("resources", None) or {}
    if not isinstance(resources, dict):
        raise UserError(f"resources is {resources!r}; it is a section, as in resources.gpu=false")
    if content.get("audit") == "sweep" and isinstance(content.get("recipe"), str):  # its machines hold for the sweep
        resources = merged(load_recipe(content["recipe"])[1], resources)
    return content, resources


def overridden(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """The content, changed in place by `key=value` settings with dotted keys.

    Raises:
        UserError: for a setting that is none.
    """
    for override in overrides:
        key, separator, value = override.partition("=")
        if not separator or not key:
            raise UserError(f"--set {override!r} is not key=value")
        said = _yaml(value, f"--set {override}")
        _check_plain(said, f"--set {key}")
        _put(content, key.split("."), said, override)
    return content


def _read(name_or_file: str, seen: tuple[str, ...]) -> dict[str, Any]:
    if name_or_file in seen:
        raise UserError(f"recipes extend each other in a circle: {' -> '.join((*seen, name_or_file))}")
    known = shipped_recipes()
    path = known.get(name_or_file) or Path(name_or_file)
    if not path.is_file():
        near = difflib.get_close_matches(name_or_file, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; shipped are {', '.join(known)}"
        raise UserError(f"no recipe {name_or_file!r}{hint}")
    try:
        text = read_plain(path, MOST_BYTES).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UserError(f"cannot read the recipe {path} ({error})") from error
    content = _yaml(text, str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a recipe (a YAML mapping)")
    _check_plain(content, str(path))
    cells = content.get("cells")
    for naming in (content, *(cell for cell in (cells if isinstance(cells, list) else ()) if isinstance(cell, dict))):
        if isinstance(naming.get("recipe"), str):
            naming["recipe"] = _beside(path, naming["recipe"])
    base = content.pop("extends", None)
    return content if base is None else merged(_read(_beside(path, str(base)), (*seen, name_or_file)), content)


def _beside(path: Path, named: str) -> str:
    """A recipe that another one names: a file is meant relative to the one that names it."""
    beside = path.parent / named
    return str(beside) if named not in shipped_recipes() and beside.is_file() else named


def _yaml(text: str, where: str) -> Any:
    try:
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:  # of what stands there it says nothing: it may be anybody's password
        mark = error.problem_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        problem = QUOTED.sub("...", " ".join(str(error.problem).split()))
        raise UserError(f"{where} is not valid YAML: {problem}{place}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{where} is not valid YAML ({type(error).__name__})") from error
    if _unfolded(content, {}) > MOST_VALUES:
        raise UserError(f"{where} unfolds to more than {MOST_VALUES} values; use fewer aliases (*name)")
    return content


def _unfolded(content: Any, known: dict[int, int]) -> int:
    """How many values there are, those that aliases repeat counted each time; too many where something holds itself."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) not in known:
        known[id(content)] = MOST_VALUES + 1
        inner = content.values() if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_unfolded(value, known) for value in inner)
    return known[id(content)]


def _check_plain(content: Any, where: str) -> None:
    """Refuses characters that terminals obey or that nothing can write: what a recipe says is shown in many places."""
    if isinstance(content, str) and not is_plain(content):
        raise UserError(f"{where}: {plain(content)[:60]!r} holds a control character, or half a character")
    inner = [*content, *content.values()] if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    for value in inner:
        _check_plain(value, where)


def _put(content: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for key in keys[:-1]:
        content = content.setdefault(key, {})
        if not isinstance(content, dict):
            raise UserError(f"--set {override!r}: {key} is a value, not a section")
    old = content.get(keys[-1])
    if isinstance(old, dict) and isinstance(value, dict):
        value = merged({keys[-1]: old}, {keys[-1]: value})[keys[-1]]
    content[keys[-1]] = value


def validate(model: type[Model], content: Mapping[str, Any]) -> Model:
    """The content as a spec.

    Raises:
        UserError: naming the first problems in words, unknown keys with the nearest right one.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        problems = [_in_words(model, problem) for problem in error.errors(include_url=False)]
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        raise UserError("; ".join(problems[:2]) + more) from error


def _in_words(model: type[BaseModel], problem: Mapping[str, Any]) -> str:
    place = [str(part) for part in problem["loc"]]
    shown = ".".join(part for part in _without_tags(model, place))
    if problem["type"] == "extra_forbidden":
        known = list(_fields_at(model, place[:-1]))
        near = difflib.get_close_matches(place[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
        return f"unknown recipe key {shown}; {hint}"
    if problem["type"] == "missing":
        return f"the recipe lacks {shown}"
    message = problem["msg"].removeprefix("Value error, ")
    seen = "" if isinstance(problem["input"], dict) else f" (seen: {problem['input']!r})"
    return f"{shown or 'recipe'}: {message[0].lower() + message[1:]}{seen}"


def _without_tags(model: type[BaseModel], place: Sequence[str]) -> Iterator[str]:
    """The place of a problem without the names of union members that pydantic puts in."""
    for position, part in enumerate(place):
        if position == 0 or part.isdigit() or part in _fields_at(model, place[:position]):
            yield part
        elif position == len(place) - 1:
            members = _members_at(model, place[:position])
            if not any(part in _tags(member) for member in members):
                yield part


def _fields_at(model: type[BaseModel], place: Sequence[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for member in _members_at(model, place):
        fields |= member.model_fields
    return fields


def _members_at(model: type[BaseModel], place: Sequence[str]) -> list[type[BaseModel]]:
    members = [model]
    for part in place:
        inner = [m.model_fields[part].annotation for m in members if part in m.model_fields]
        if inner:
            members = [found for annotation in inner for found in models_in(annotation, mappings=True)]
        else:
            members = [member for member in members if part in _tags(member)] or members
    return members


def models_in(annotation: Any, *, mappings: bool = False) -> Iterator[type[BaseModel]]:
    """The specs that a field can hold, also by name in a mapping."""
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple, list, *((dict, Mapping) if mappings else ())):
        for part in get_args(annotation):
            yield from models_in(part, mappings=mappings)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind is not None else ()
