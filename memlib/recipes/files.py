"""Recipes: YAML files, shipped with memlib or written by users, with overrides from the command line."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from memlib.errors import UserError
from memlib.recipes import RecipeError
from memlib.recipes.yaml import Removed, Replaced, inherited, inherited_commented, print_yaml, read_commented, read_yaml
from memlib.sanitize import is_plain, plain
from memlib.specs.observing import NAMED
from memlib.store.permissions import read_plain

SHIPPED = Path(__file__).parents[2] / "deployments"  # by its place: a user's project may have a folder of this name, too
MOST_BYTES = 10 * 2**20  # maximum size of a recipe
EMBEDDED = ("scenes", "digits", "breast_cancer", "two_moons")  # of known size, to which recipes' split or sets are fitted
BUDGETS = ("split", "sets")
Model = TypeVar("Model", bound=BaseModel)


def shipped_recipes() -> dict[str, Path]:
    """Return the paths of the shipped recipes by name, grouped by audit (one folder each)."""
    return {path.stem: path for path in sorted(SHIPPED.glob("recipes/*/*.yaml"))}


def load_recipe(name_or_file: str, overrides: Sequence[str] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe and the resources in a YAML file, with `key=value` overrides applied.

    Args:
        name_or_file: name of a shipped recipe, or path of a YAML file.
        overrides: dotted keys of the recipe, or of resources (resources.gpu=false); values are YAML.

    Raises:
        UserError: if there is no such recipe, or it is not valid YAML.
    """
    content: dict[str, Any] = {}
    dropped: dict[str, str] = {}
    before = ""
    for part in reversed(_parts(name_or_file)):
        unfit = _unfit(content, part.content)
        dropped |= dict.fromkeys(unfit, before)
        content, before = inherited(_without(content, unfit), part.content, part.name), part.name
    content = overridden(content, overrides)
    for section, base in dropped.items():
        if section not in content:
            raise UserError(
                f"{name_or_file} replaces the data of {base}, whose {section} section applies only to its embedded "
                f"examples; set {section} as well (see memlib recipes {base})"
            )
    resources = content.pop("resources", None) or {}
    if not isinstance(resources, dict):
        raise UserError(f"resources is {resources!r}, but must be a section, as in resources.gpu=false")
    if isinstance(content.get("recipe"), str):  # the resources of all its cells
        resources = inherited(load_recipe(content["recipe"])[1], resources, name_or_file)
    return content, resources


def _unfit(base: Mapping[str, Any], change: Mapping[str, Any]) -> list[str]:
    """Return the sections of `base` that assign its embedded examples to roles, if `change` replaces these examples."""
    kinds = [_kind_of_source(content) for content in (base, change)]
    return [name for name in BUDGETS if name in base] if kinds[0] in EMBEDDED and kinds[1] not in (None, kinds[0]) else []


def _kind_of_source(content: Mapping[str, Any]) -> Any:
    for name in ("data", "source", "kind"):
        content = content.get(name) if isinstance(content, Mapping) else None  # type: ignore[assignment]
    return content


def _without(content: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


def printed_recipe(name_or_file: str) -> str:
    """Return a recipe as YAML, including inherited values and the comments of all its files.

    Raises:
        UserError: if there is no such recipe, or it is not valid YAML.
    """
    *own, base = _parts(name_or_file)
    if not own:
        return base.text
    recipe = read_commented(base.text)
    for part in reversed(own):
        for name in _unfit(recipe, part.content):
            recipe.pop(name)
        recipe = inherited_commented(recipe, read_commented(part.text))
    recipe.pop("extends", None)
    return print_yaml(recipe)


def origin_of(name_or_file: str, overrides: Sequence[str], place: Sequence[str]) -> str:
    """Return the origin of a value: an override, the recipe, or a recipe that it extends; "" if none of them sets it.

    Args:
        name_or_file: name of a shipped recipe, or path of a YAML file; "" for a recipe that is in no file.
        overrides: overrides from the command line, or changes of a program.
        place: the keys that lead to the value, outermost first.
    """
    wanted = ".".join(["", *place, ""])
    for override in reversed(overrides):
        key = override.partition("=")[0]
        if wanted.startswith(f".{key}.") or f".{key}.".startswith(wanted):
            return f"--set {key}"
    if not name_or_file:
        return ""
    named = [(_depth(part.content, place), -position, part.name) for position, part in enumerate(_parts(name_or_file))]
    depth, position, name = max(named)
    if not depth:
        return ""
    return name if not position else f"{name}, which {named[0][2]} extends"


def _depth(content: Any, place: Sequence[str]) -> int:
    """Return the number of leading keys of a place that exist in the content."""
    for depth, key in enumerate(place):
        if not isinstance(content, Mapping) or key not in content:
            return depth
        content = content[key]
    return len(place)


def overridden(content: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the content with `key=value` overrides applied; keys are dotted, and names in them may contain dots themselves.

    Raises:
        UserError: for a malformed override.
    """
    result = dict(content)
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise UserError(f"--set {override!r} does not have the form key=value")
        value = read_yaml(text, f"--set {override}")
        _check_plain(value, f"--set {key}")
        *sections, _ = names = _names(key, result)
        inner: Any = result
        for section in sections:
            inner = inner.get(section, {})
            if not isinstance(inner, Mapping):
                raise UserError(f"--set {override!r}: {section} is a value, not a section")
        for name in reversed(names):
            value = {name: value}
        result = inherited(result, value, f"--set {key}")
    return result


def _names(key: str, content: Any) -> list[str]:
    """Return the names of a dotted key; at each place a name that the content has is preferred, as it may have dots."""
    known = content if isinstance(content, Mapping) else {}
    fitting = [name for name in known if isinstance(name, str) and f"{key}.".startswith(f"{name}.")]
    name = max(fitting, key=len, default=key.partition(".")[0])
    return [name, *(_names(key[len(name) + 1 :], known.get(name)) if len(key) > len(name) else [])]


def suggestion(word: str, known: Iterable[str], otherwise: str, *, cutoff: float = 0.6) -> str:
    """Return the question whether the known word that is nearest to another was meant; if none is near, the given text."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else otherwise


def keys_ending_in(name: str) -> list[str]:
    """Return the dotted keys of the shipped recipes whose last name is this one, those of most recipes first."""
    found: Counter[str] = Counter()
    waiting: list[tuple[str, Any]] = [("", load_recipe(recipe)[0]) for recipe in shipped_recipes()]
    while waiting:
        key, content = waiting.pop()
        if isinstance(content, Mapping):
            waiting += [(f"{key}.{inner}" if key else str(inner), content[inner]) for inner in content]
        elif key.rpartition(".")[2] == name:
            found[key] += 1
    return [key for key, _ in found.most_common()]


@dataclass(frozen=True)
class _Part:
    """One file of a recipe."""

    name: str  #: the name or path by which it was requested.
    text: str  #: the YAML text.
    content: dict[str, Any]  #: the parsed text, without `extends` and inherited values.


def _parts(name_or_file: str) -> list[_Part]:
    """Return the files of a recipe: its own, then the one that it extends, and so on."""
    parts: list[_Part] = []
    named: str | None = name_or_file
    while named is not None:
        if any(part.name == named for part in parts):
            raise UserError(f"recipes extend each other in a circle: {' -> '.join([*(part.name for part in parts), named])}")
        part, named = _part(named)
        parts.append(part)
    return parts


def _part(name_or_file: str) -> tuple[_Part, str | None]:
    """Return one file of a recipe, and the name of the recipe that it extends, if any."""
    known = shipped_recipes()
    path = known.get(name_or_file) or Path(name_or_file).expanduser()
    if not name_or_file or not path.is_file():
        if Path(name_or_file).suffix in (".yaml", ".yml"):
            raise UserError(f"there is no file {name_or_file}; memlib recipes lists the shipped recipes")
        hint = suggestion(name_or_file, known, "memlib recipes lists the shipped recipes")
        raise UserError(f"no recipe {name_or_file!r}; {hint}")
    text, content = _read(path, "recipe")
    cells = content.get("cells")
    for naming in (content, *(cell for cell in (cells if isinstance(cells, list) else ()) if isinstance(cell, dict))):
        if isinstance(naming.get("recipe"), str):
            naming["recipe"] = beside(path, naming["recipe"])
    base = content.pop("extends", None)
    return _Part(name_or_file, text, content), None if base is None else beside(path, str(base))


def _read(path: Path, what: str) -> tuple[str, dict[str, Any]]:
    """Return the text of a YAML file, and the mapping that it holds, which must be plain; `what` names it in messages."""
    try:
        text = read_plain(path, MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise UserError(f"cannot read the {what} {path} ({error})") from error
    content = read_yaml(text, str(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a {what} (a YAML mapping)")
    _check_plain(content, str(path))
    return text, content


def read_spec(path: Path, model: type[Model], what: str) -> Model:
    """Read and validate a YAML file that is no recipe, such as a policy.

    Args:
        what: name of this kind of file in messages.

    Raises:
        UserError: if there is no such file, or its content is not valid.
    """
    if not path.is_file():
        raise UserError(f"there is no {what} {path}; give the path of a YAML file")
    content = inherited({}, _read(path, what)[1], str(path))
    return validate(model, content, origin=lambda place: str(path), what=what)


def beside(path: Path, named: str) -> str:
    """Return the recipe named in a file; a path is relative to the folder of that file."""
    beside = path.parent / named
    return str(beside) if named not in shipped_recipes() and beside.is_file() else named


def _check_plain(content: Any, where: str) -> None:
    """Refuse control characters and unpaired surrogates, as texts of recipes are shown in terminals and pages."""
    if isinstance(content, str) and not is_plain(content):
        raise UserError(f"{where}: {plain(content)[:60]!r} contains a control character or an unpaired surrogate")
    inner = [*content, *content.values()] if isinstance(content, Mapping) else content if isinstance(content, list) else ()
    if isinstance(content, list) and any(isinstance(value, Removed | Replaced) for value in content):
        raise UserError(f"{where}: !remove and !replace can only be values of a key, not items of a list")
    for value in inner:
        _check_plain(value, where)


SIGNED = ("X-Amz-Signature", "X-Amz-Security-Token", "Signature", "sig", "token")  # of URLs that grant access
CREDENTIALS = re.compile(rf"[A-Za-z][\w+.-]*://[^/?#]*@|://.*[?&]({'|'.join(SIGNED)})=", re.DOTALL)


def _with_credentials(content: Any, key: str = "") -> str:
    """Return the key of a URL that contains a password or a signature, or an empty string if there is none."""
    if isinstance(content, str):
        return key if CREDENTIALS.search(content) else ""
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, Mapping):
        inner = content.items()
    elif isinstance(content, list | tuple):
        inner = enumerate(content)
    keys = (_with_credentials(value, f"{key}.{name}" if key else str(name)) for name, value in inner)
    return next(filter(None, keys), "")


def validate(
    model: type[Model],
    content: Mapping[str, Any],
    *,
    origin: Callable[[Sequence[str]], str] = lambda place: "",
    what: str = "recipe",
) -> Model:
    """Validate the content as a spec.

    Args:
        content: plain values; `audit` may be the name on the command line or the name in recipes.
        origin: function that returns the origin of a value, see `origin_of`.
        what: name of the file's kind in messages.

    Raises:
        UserError: with the first two problems and their origins, and the most similar valid key for an unknown key.
    """
    if key := _with_credentials(content):
        raise UserError(
            f"{key} contains credentials, which would be stored in manifests; remove them, and set them in the environment"
        )
    named = content.get("audit")
    try:
        return model.model_validate({**content, "audit": named.replace("-", "_")} if isinstance(named, str) else content)
    except ValidationError as error:
        problems, places = [], []
        for problem in error.errors(include_url=False):
            place = list(_without_tags(model, [str(part) for part in problem["loc"]]))
            source = origin(place)
            places.append((".".join(place), source))
            problems.append(_in_words(model, problem, what) + (f" (in {source})" if source else ""))
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        raise RecipeError("; ".join(problems[:2]) + more, *places[0]) from error


FORMS: Mapping[str, tuple[str, str]] = {
    NAMED: ("must be MODULE:NAME, a function that Python can import, or a file or folder of a model", "my_models:build"),
    r"^\w+(\.\w+)*:\w+$": ("must be MODULE:NAME, a function or class that Python can import", "my_models:build"),
    r"^[a-z_]+$": ("must be lower-case letters and underscores", "bases"),
    r"^[\w./-]+$": ("must be letters, digits, _ . / and - without spaces", "facebook/vit-mae-base"),
    r"^[A-Za-z_][A-Za-z0-9_]*$": ("must be the name of an environment variable, not its value", "SERVICE_KEY"),
    r"^\w[\w-]*$": ("must be a name of letters, digits, _ and -, without spaces and not beginning with -", "ward-2"),
    r"^\w[\w -]{0,63}$": ("must be a name of at most 64 letters, digits, _, - and spaces", "beak colour"),
    r"^([0-9a-f]{64})?$": (
        "must be a sha256 in lower case (memlib verify --digest)",
        "0123456789abcdef" * 4,
    ),
    r"[0-9a-f]{6,64}": ("must be a digest in lower case, or its first six digits or more", "3f2a91"),
}
"""What is said, with an example, of a text that does not match the pattern of its field, by pattern."""


def _in_words(model: type[BaseModel], problem: Mapping[str, Any], what: str) -> str:
    place = [str(part) for part in problem["loc"]]
    shown = ".".join(part for part in _without_tags(model, place))
    if problem["type"] == "extra_forbidden":
        known = list(_fields_at(model, place[:-1]))
        hint = suggestion(place[-1], known, f"known here: {', '.join(known)}", cutoff=0.5)
        return f"unknown {what} key {shown}; {hint}"
    if problem["type"] == "missing":
        return f"the {what} lacks {shown}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        words = FORMS.get(problem["ctx"]["pattern"])  # None in an audit outside memlib
        message = "does not have the form of this setting" if words is None else ", as in ".join(words)
        shown = shown.removesuffix(".[key]")
    seen = "" if isinstance(problem["input"], dict) else f" (seen: {problem['input']!r})"
    return f"{shown or what}: {message[0].lower() + message[1:]}{seen}"


def _without_tags(model: type[BaseModel], place: Sequence[str]) -> Iterator[str]:
    """Yield the keys of a problem's place without the tags of union members that pydantic inserts."""
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
    """Yield the classes of the specs that a field can hold; with `mappings`, also as values of a mapping."""
    if get_origin(annotation) in (Union, UnionType, Annotated, tuple, list, *((dict, Mapping) if mappings else ())):
        for part in get_args(annotation):
            yield from models_in(part, mappings=mappings)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    kind = model.model_fields.get("kind")
    return get_args(kind.annotation) if kind is not None else ()
