"""Recipes as text: YAML 1.2, strict, with two tags; and printed again with the comments that their authors wrote."""

import re
import warnings
from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.constructor import DuplicateKeyError, SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.tag import Tag

from memlib.errors import UserError

QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
TWICE = re.compile(r'found duplicate key "([\w.-]{1,60})"')
CLOSED = re.compile(r"!remove[}\],]")  # YAML takes the bracket for a part of the tag
MOST_VALUES = 100_000  # of a recipe, those that aliases repeat counted each time
WIDTH = 120


class Removed:
    """What `!remove` stands for: the key is not inherited."""


class Replaced(dict[str, Any]):
    """What `!replace {...}` stands for: a mapping that takes the place of the inherited one as a whole."""


class _Constructor(SafeConstructor):
    """YAML's plain values, and the two tags."""


def _remove(constructor: Any, node: Any) -> Removed:
    if not isinstance(node, ScalarNode) or node.value:
        raise MarkedYAMLError(None, None, "!remove stands alone", node.start_mark)
    return Removed()


def _replace(constructor: Any, node: Any) -> Replaced:
    if not isinstance(node, MappingNode):
        raise MarkedYAMLError(None, None, "!replace stands before a mapping", node.start_mark)
    return Replaced(constructor.construct_mapping(node, deep=True))


_Constructor.add_constructor("!remove", _remove)
_Constructor.add_constructor("!replace", _replace)


def read_yaml(text: str, where: str) -> Any:
    """Return what a YAML text holds, as plain values, `Removed` and `Replaced`.

    YAML 1.2: `12:30` is a text and no number of seconds, `yes` is a text, and no key is given twice.

    Args:
        text: of a file, or of a setting.
        where: it stands, for messages; of what stands there they say nothing, as it may be anybody's password.

    Raises:
        UserError: when it is not valid, or unfolds without end.
    """
    loader = YAML(typ="safe", pure=True)
    loader.Constructor = _Constructor
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor that is set twice; they quote the text
            content = loader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        if isinstance(error, DuplicateKeyError):
            twice = TWICE.search(str(error.problem))
            raise UserError(f"{where} gives the key {twice[1] if twice else '...'} twice{place}") from error
        problem = QUOTED.sub("...", " ".join(str(error.problem).split()))
        hint = "; leave a space behind !remove" if CLOSED.search(text) else ""
        raise UserError(f"{where} is not valid YAML: {problem}{place}{hint}") from error
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{where} is not valid YAML ({type(error).__name__})") from error
    if _unfolded(content, {}) > MOST_VALUES:
        raise UserError(f"{where} unfolds to more than {MOST_VALUES} values; use fewer aliases (*name)")
    return content


def _unfolded(content: Any, known: dict[int, int]) -> int:
    """Return how many values there are; too many where something holds itself."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) not in known:
        known[id(content)] = MOST_VALUES + 1
        inner = content.values() if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_unfolded(value, known) for value in inner)
    return known[id(content)]


def inherited(base: Mapping[str, Any], change: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `change` over `base`: mappings merge key by key unless they name another `kind`.

    Args:
        base: what is inherited.
        change: what a recipe says itself.
        where: it says so, for messages.

    Raises:
        UserError: for a !remove of what is not there.
    """
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(value, Removed):
            if name not in result:
                raise UserError(f"{where}: !remove of {name}, which nothing before it gives")
            del result[name]
        elif not isinstance(value, dict):
            result[name] = value
        elif isinstance(old, dict) and not isinstance(value, Replaced) and _is_alike(old, value):
            result[name] = inherited(old, value, where)
        else:
            result[name] = inherited({}, value, where)
    return result


def _is_alike(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether two mappings name one `kind`, where they name any."""
    return bool(new.get("kind", old.get("kind")) == old.get("kind"))


def print_yaml(content: Any) -> str:
    """Return plain values, or what `read_commented` returns, as YAML text."""
    writer = YAML()
    writer.width, writer.default_flow_style = WIDTH, False
    text = StringIO()
    writer.dump(content, text)
    return text.getvalue()


def read_commented(text: str) -> CommentedMap:
    """Return the mapping that a valid YAML text holds, with its comments."""
    reader = YAML()
    reader.preserve_quotes = True
    found: CommentedMap = reader.load(text)
    return found


def inherited_commented(base: CommentedMap, change: CommentedMap) -> CommentedMap:
    """Put `change` over `base`, which is changed in place, as `inherited` does; comments of either stay with their keys."""
    for name, value in change.items():
        old, tag = base.get(name), str(getattr(getattr(value, "tag", None), "value", "") or "")
        if tag == "!remove":
            base.pop(name, None)
            continue
        both = isinstance(old, CommentedMap) and isinstance(value, CommentedMap)
        if both and tag != "!replace" and _is_alike(old, value):
            inherited_commented(old, value)
        else:
            if tag == "!replace":
                delattr(value, Tag.attrib)
            base[name] = value
        if name in change.ca.items:
            base.ca.items[name] = change.ca.items[name]
    return base
