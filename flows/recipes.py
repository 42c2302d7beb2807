"""Recipes: YAML files, shipped or the user's own, with overrides from the command line."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from flows.yaml_text import Removed, Replaced, inherited, inherited_commented, print_yaml, read_commented, read_yaml
from memlib.errors import UserError
from memlib.plain import is_plain, plain
from memlib.private import read_plain

MOST_BYTES = 10 * 2**20  # of a recipe
EMBEDDED = ("scenes", "digits", "two_moons")  # sources whose size is known, and that budgets of examples are made for
BUDGETS = ("split", "sets")
Model = TypeVar("Model", bound=BaseModel)


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with the package by name, those of an audit (a folder) together."""
    folder = Path(str(files("deployments").joinpath("recipes")))
    return {path.stem: path for path in sorted(folder.glob("*/*.yaml"))}


def load_recipe(name_or_file: str, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe and the resources of a YAML file, with `key=value` overrides applied.

    Args:
        name_or_file: a shipped recipe's name, or a path to a YAML file.
        overrides: dotted keys of the recipe, or of resources (resources.gpu=false); values are YAML.

    Raises:
        UserError: when there is no such recipe or it is not YAML.
    """
    content: dict[str, Any] = {}
    left: dict[str, str] = {}
    before = ""
    for part in reversed(_parts(name_or_file)):
        unfit = _unfit(content, part.content)
        left |= dict.fromkeys(unfit, before)
        content, before = inherited(_without(content, unfit), part.content, part.name), part.name
    content = overridden(content, overrides)
    for section, base in left.items():
        if section not in content:
            raise UserError(
                f"{name_or_file} names other data than {base}, whose {section} was made for its own embedded examples; say "
                f"{section} yourself (memlib recipes {base} shows how)"
            )
    resources = content.pop("resources", None) or {}
    if not isinstance(resources, dict):
        raise UserError(f"resources is {resources!r}; it is a section, as in resources.gpu=false")
    if content.get("audit") == "sweep" and isinstance(content.get("recipe"), str):  # its machines hold for the sweep
        resources = inherited(load_recipe(content["recipe"])[1], resources, name_or_file)
    return content, resources


def _unfit(base: Mapping[str, Any], change: Mapping[str, Any]) -> list[str]:
    """Return sections that say how many examples have which role, of embedded data that a change replaces by others."""
    kinds = [_kind_of_source(content) for content in (base, change)]
    return [name for name in BUDGETS if name in base] if kinds[0] in EMBEDDED and kinds[1] not in (None, kinds[0]) else []


def _kind_of_source(content: Mapping[str, Any]) -> Any:
    for name in ("data", "source", "kind"):
        content = content.get(name) if isinstance(content, Mapping) else None  # type: ignore[assignment]
    return content


def _without(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


def printed_recipe(name_or_file: str) -> str:
    """Return a recipe as YAML with what it extends filled in, and with the comments of all its files.

    Raises:
        UserError: when there is no such recipe or it is not YAML.
    """
    *own, base = _parts(name_or_file)
    if not own:
        return base.text
    found = read_commented(base.text)
    for part in reversed(own):
        for name in _unfit(found, part.content):
            found.pop(name)
        found = inherited_commented(found, read_commented(part.text))
    found.pop("extends", None)
    return print_yaml(found)


def origin_of(name_or_file: str, overrides: Sequence[str], place: Sequence[str]) -> str:
    """Return who says what stands at a place of a recipe: a setting, the recipe, one that it extends; "" where nobody does.

    Args:
        name_or_file: the recipe.
        overrides: of the command line.
        place: keys from the outside in.
    """
    for override in reversed(overrides):
        key = override.partition("=")[0].split(".")
        if key[: len(place)] == list(place[: len(key)]):
            return f"--set {override.partition('=')[0]}"
    named = [(_depth(part.content, place), -position, part.name) for position, part in enumerate(_parts(name_or_file))]
    depth, position, name = max(named)
    if not depth:
        return ""
    return name if not position else f"{name}, which {named[0][2]} extends"


def _depth(content: Any, place: Sequence[str]) -> int:
    """Return how many keys of a place are there."""
    for depth, key in enumerate(place):
        if not isinstance(content, Mapping) or key not in content:
            return depth
        content = content[key]
    return len(place)


def overridden(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the content, changed by `key=value` settings with dotted keys.

    Raises:
        UserError: for a setting that is none.
    """
    found = dict(content)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise UserError(f"--set {override!r} is not key=value")
        value = read_yaml(text, f"--set {override}")
        _check_plain(value, f"--set {key}")
        *sections, _ = names = key.split(".")
        at: Any = found
        for section in sections:
            at = at.get(section, {})
            if not isinstance(at, Mapping):
                raise UserError(f"--set {override!r}: {section} is a value, not a section")
        for name in reversed(names):
            value = {name: value}
        found = inherited(found, value, f"--set {key}")
    return found


@dataclass(frozen=True)
class _Part:
    """One file of a recipe.

    Attributes:
        name: as it was asked for.
        text, content: what it holds; its content is without what it extends.
    """

    name: str
    text: str
    content: dict[str, Any]


def _parts(name_or_file: str) -> list[_Part]:
    """Return the files of a recipe: its own, the one that this extends, and so on."""
    found: list[_Part] = []
    named: str | None = name_or_file
    while named is not None:
        if any(part.name == named for part in found):
            raise UserError(f"recipes extend each other in a circle: {' -> '.join([*(part.name for part in found), named])}")
        part, named = _part(named)
        found.append(part)
    return found


def _part(name_or_file: str) -> tuple[_Part, str | None]:
    """Return a file of a recipe, and the name of what it extends."""
    known = shipped_recipes()
    path = known.get(name_or_file) or Path(name_or_file).expanduser()
    if not name_or_file or not path.is_file():
        near = difflib.get_close_matches(name_or_file, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else "; memlib recipes lists those that are shipped"
        raise UserError(f"no recipe {name_or_file!r}{hint}")
    try:
        text = read_plain(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UserError(f"cannot read the recipe {path} ({error})") from error
    content = read_yaml(text, str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a recipe (a YAML mapping)")
    _check_plain(content, str(path))
    cells = content.get("cells")
    for naming in (content, *(cell for cell in (cells if isinstance(cells, list) else ()) if isinstance(cell, dict))):
        if isinstance(naming.get("recipe"), str):
            naming["recipe"] = _beside(path, naming["recipe"])
    base = content.pop("extends", None)
    return _Part(name_or_file, text, content), None if base is None else _beside(path, str(base))


def _beside(path: Path, named: str) -> str:
    """Return a recipe that another one names: a file is meant relative to the one that names it."""
    beside = path.parent / named
    return str(beside) if named not in shipped_recipes() and beside.is_file() else named


def _check_plain(content: Any, where: str) -> None:
    """Refuses characters that terminals obey or that nothing can write: what a recipe says is shown in many places."""
    if isinstance(content, str) and not is_plain(content):
        raise UserError(f"{where}: {plain(content)[:60]!r} holds a control character, or half a character")
    inner = [*content, *content.values()] if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    if isinstance(content, list) and any(isinstance(value, Removed | Replaced) for value in content):
        raise UserError(f"{where}: !remove and !replace are for the value of a key, not in a list")
    for value in inner:
        _check_plain(value, where)


def validate(
    model: type[Model], content: Mapping[str, Any], *, origin: Callable[[Sequence[str]], str] = lambda place: ""
) -> Model:
    """Return the content as a spec.

    Args:
        model: its class.
        content: plain values; audits are called by their name on the command line or by that in recipes.
        origin: who says what stands at a place, see `origin_of`.

    Raises:
        UserError: naming the first problems in words, unknown keys with the nearest right one, and who says so.
    """
    named = content.get("audit")
    try:
        return model.model_validate({**content, "audit": named.replace("-", "_")} if isinstance(named, str) else content)
    except ValidationError as error:
        problems = []
        for problem in error.errors(include_url=False):
            place = list(_without_tags(model, [str(part) for part in problem["loc"]]))
            said = origin(place)
            problems.append(_in_words(model, problem) + (f" (in {said})" if said else ""))
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
