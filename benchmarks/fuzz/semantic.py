"""Recipes that are valid YAML and mean something odd: settings drawn from each recipe's own schema are planned.

Whatever a recipe says, `memlib plan` plans it or refuses it in a line; a traceback is a defect.
"""

import contextlib
import copy
import io
import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutants import VALUES

from flows.cli.app import main
from memlib.audits import AUDITS
from memlib.recipes.files import load_recipe

RECIPES = ("smoke", "two_moons", "forgetting_smoke", "exposure_smoke", "self_influence", "sweep_smoke")
NUMBERS = (-1, 0, 1, 2, 3, 5, 10, 17, 100, 999, 10_000, 10**6, 2**31, 2**63)
FRACTIONS = (-0.1, 0.0, 1e-9, 0.05, 0.3, 0.5, 1.0, 1.5, 10.0, 1e6, 1e300)
WORDS = ("", "x", "a b", "é", "all", "last", "label", "0", "{d6}", "my pin is {x4}.", "{w}", "../x", "score", "train", "null")
MOST_CHANGES, DEEPEST = 4, 4
PLANNED, REFUSED = 0, 2
SECONDS = 30.0  # for one plan, of which most take a twentieth of a second
Schema = Mapping[str, Any]


@st.composite
def recipes(draw: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """Draw the name of an audit, and one of its shipped recipes with some settings changed."""
    content, _ = load_recipe(draw(st.sampled_from(RECIPES)))
    audit = str(content["audit"]).replace("_", "-")
    schema = AUDITS[audit].recipe.model_json_schema()
    recipe = copy.deepcopy(content)
    for _ in range(draw(st.integers(1, MOST_CHANGES))):
        _change(draw, recipe, schema, schema.get("$defs", {}))
    return audit, recipe


def _change(draw: Callable[..., Any], content: dict[str, Any], schema: Schema, defined: Mapping[str, Schema]) -> None:
    """Set one key at a random depth to a value that its schema describes, or to anything."""
    node = _chosen(draw, schema, defined)
    names = sorted(node.get("properties", {}))
    if not names:
        return
    name = draw(st.sampled_from(names))
    inner = content.get(name)
    if isinstance(inner, dict) and inner and draw(st.booleans()):
        _change(draw, inner, _alike(node["properties"][name], inner, defined), defined)
    elif draw(st.integers(0, 19)) == 0:
        content[name] = draw(st.sampled_from(VALUES))
    else:
        content[name] = _value(draw, node["properties"][name], defined, 0)


def _alike(schema: Schema, content: Mapping[str, Any], defined: Mapping[str, Schema]) -> Schema:
    """Return the alternative of a schema that knows most of the keys of some content."""
    return max(_alternatives(schema, defined), key=lambda node: len(node.get("properties", {}).keys() & content.keys()))


def _alternatives(schema: Schema, defined: Mapping[str, Schema]) -> list[Schema]:
    if "$ref" in schema:
        return _alternatives(defined[schema["$ref"].rpartition("/")[2]], defined)
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return [node for part in schema[name] for node in _alternatives(part, defined)]
    return [schema]


def _chosen(draw: Callable[..., Any], schema: Schema, defined: Mapping[str, Schema]) -> Schema:
    chosen: Schema = draw(st.sampled_from(_alternatives(schema, defined)))
    return chosen


def _value(draw: Callable[..., Any], schema: Schema, defined: Mapping[str, Schema], depth: int) -> Any:
    node = _chosen(draw, schema, defined)
    if "const" in node or "enum" in node:
        return draw(st.sampled_from(node.get("enum", [node.get("const")])))
    limits = [node[name] for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if name in node]
    match node.get("type"):
        case "integer":
            return draw(st.sampled_from([*NUMBERS, *limits]))
        case "number":
            return draw(st.sampled_from([*FRACTIONS, *limits]))
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
        case "array":
            parts = node.get("prefixItems") or [node.get("items", {})] * draw(st.integers(0, 3))
            return [_value(draw, part, defined, depth + 1) for part in parts] if depth < DEEPEST else []
        case "object" if "properties" in node:
            required = set(node.get("required", ()))
            names = [name for name in sorted(node["properties"]) if name in required or draw(st.integers(0, 3)) == 0]
            return {name: _value(draw, node["properties"][name], defined, depth + 1) for name in names}
        case "object":
            of = node.get("additionalProperties")
            keys = draw(st.lists(st.sampled_from(WORDS), max_size=2))
            return {key: _value(draw, of, defined, depth + 1) if isinstance(of, dict) else draw(st.sampled_from(VALUES)) for key in keys}  # fmt: skip
        case _:
            return draw(st.sampled_from([*WORDS, *NUMBERS[:4]]))


def check(audit: str, recipe: Mapping[str, Any], folder: Path) -> int:
    """Plan a recipe; return the status.

    Raises:
        AssertionError: for another status than of a plan or of a refusal in a few lines.
    """
    path = folder / "r.yaml"
    try:
        path.write_text(yaml.safe_dump(recipe, allow_unicode=True))
    except (yaml.YAMLError, UnicodeEncodeError):  # not a recipe that a file could hold
        return REFUSED
    said = io.StringIO()
    signal.signal(signal.SIGALRM, _hung)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        status = main(["plan", audit, "--recipe", str(path), "--store", str(folder / "none"), "--json"])
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert status in (PLANNED, REFUSED), (status, said.getvalue())
    assert status == PLANNED or said.getvalue().startswith("memlib: "), said.getvalue()
    return status


class Hung(BaseException):
    """A plan takes too long."""


def _hung(*_: object) -> None:
    raise Hung


def fuzz(folder: Path, count: int) -> dict[int, int]:
    """Plan this many recipes, always the same; return how often each status was seen."""
    seen: dict[int, int] = {}

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(recipes())
    def plan(drawn: tuple[str, dict[str, Any]]) -> None:
        try:
            status = check(*drawn, folder)
        except BaseException:
            print(json.dumps(drawn[1], default=str)[:2000])
            raise
        seen[status] = seen.get(status, 0) + 1

    plan()
    return seen
