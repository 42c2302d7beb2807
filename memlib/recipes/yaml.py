"""Strict YAML 1.2 with two tags, as used by recipes; recipes are printed with their authors' comments."""

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
CLOSED = re.compile(r"!remove[}\],]")  # YAML parses the bracket as part of the tag
MOST_VALUES = 100_000  # values in a recipe; those repeated by aliases count each time
WIDTH = 120


class Removed:
    """The value of a `!remove` tag: the key is not inherited."""


class Replaced(dict[str, Any]):
    """The value of a `!replace {...}` tag: a mapping that replaces the inherited one as a whole."""


class _Constructor(SafeConstructor):
    """Constructor of plain YAML values and the two tags."""


def _remove(constructor: Any, node: Any) -> Removed:
    if not isinstance(node, ScalarNode) or node.value:
        raise MarkedYAMLError(None, None, "!remove takes no value", node.start_mark)
    return Removed()


def _replace(constructor: Any, node: Any) -> Replaced:
    if not isinstance(node, MappingNode):
        raise MarkedYAMLError(None, None, "!replace must precede a mapping", node.start_mark)
    return Replaced(constructor.construct_mapping(node, deep=True))


_Constructor.add_constructor("!remove", _remove)
_Constructor.add_constructor("!replace", _replace)


def read_yaml(text: str, where: str) -> Any:
    """Parse a YAML text into plain values, `Removed` and `Replaced`.

    By YAML 1.2, `12:30` is a string, not a number of seconds, `yes` is a string, and duplicate keys are errors.

    Args:
        text: text of a file or of a setting.
        where: the origin of the text, for error messages. They do not quote the text itself, as it may hold a password.

    Raises:
        UserError: if the text is not valid, or its aliases expand to too many values.
    """
    loader = YAML(typ="safe", pure=True)
    loader.Constructor = _Constructor
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about anchors that are set twice quote the text
            content = loader.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        if isinstance(error, DuplicateKeyError):
            twice = TWICE.search(str(error.problem))
            raise UserError(f"{where} has the key {twice[1] if twice else '...'} twice{place}") from error
        problem = QUOTED.sub("...", " ".join(str(error.problem).split()))
        hint = "; put a space after !remove" if CLOSED.search(text) else ""
        raise UserError(f"{where} is not valid YAML: {problem}{place}{hint}") from error
    except (YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"{where} is not valid YAML ({type(error).__name__})") from error
    if _unfolded(content, {}) > MOST_VALUES:
        raise UserError(f"{where} expands to more than {MOST_VALUES} values; use fewer aliases (*name)")
    return content


def _unfolded(content: Any, known: dict[int, int]) -> int:
    """Return the number of values, with aliases expanded; more than MOST_VALUES if a value contains itself."""
    if not isinstance(content, dict | list):
        return 1
    if id(content) not in known:
        known[id(content)] = MOST_VALUES + 1
        inner = content.values() if isinstance(content, dict) else content
        known[id(content)] = 1 + sum(_unfolded(value, known) for value in inner)
    return known[id(content)]


def inherited(base: Mapping[str, Any], change: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return `base` with `change` merged into it: mappings merge key by key, unless they name different `kind`s.

    Args:
        change: a recipe's own values.
        where: the origin of `change`, for error messages.

    Raises:
        UserError: for a !remove of a key that does not exist.
    """
    result = dict(base)
    for name, value in change.items():
        old = result.get(name)
        if isinstance(value, Removed):
            if name not in result:
                raise UserError(f"{where}: cannot remove {name}, because there is no such key")
            del result[name]
        elif not isinstance(value, dict):
            result[name] = value
        elif isinstance(old, dict) and not isinstance(value, Replaced) and _is_alike(old, value):
            result[name] = inherited(old, value, where)
        else:
            result[name] = inherited({}, value, where)
    return result


def _is_alike(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether two mappings have the same `kind`; a change that names none counts as the same."""
    return bool(new.get("kind", old.get("kind")) == old.get("kind"))


def print_yaml(content: Any) -> str:
    """Return plain values, or the result of `read_commented`, as YAML text."""
    writer = YAML()
    writer.width, writer.default_flow_style = WIDTH, False
    text = StringIO()
    writer.dump(content, text)
    return text.getvalue()


def read_commented(text: str) -> CommentedMap:
    """Return the mapping in a valid YAML text, with its comments."""
    reader = YAML()
    reader.preserve_quotes = True
    mapping: CommentedMap = reader.load(text)
    return mapping


def inherited_commented(base: CommentedMap, change: CommentedMap) -> CommentedMap:
    """Merge `change` into `base` in place, as `inherited` does; comments of both stay with their keys."""
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
