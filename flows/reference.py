"""Reference pages, generated from the code: every column of the results, every key of a recipe, every term."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin
from unittest import mock

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from memlib.audits import AUDITS, published_tables
from memlib.audits.policy import Policy
from memlib.recipes.files import models_in
from memlib.report.glossary import terms
from memlib.specs import Resources, base
from memlib.tables import Table


def schema_page() -> str:
    """Return docs/schema.md: the published tables."""
    lines = [
        "# Result tables",
        "",
        "Results are Parquet files, `<store>/results/table=<table>/audit=<audit>/run=<run>/part-0.parquet`; large tables",
        "continue in `part-1.parquet` and so on. One glob per table (`*.parquet`) reads all audits and runs, with `table`,",
        "`audit` and `run` as hive partitions. Each file's metadata give its table and version, the run, and the key of the",
        "stage that wrote it; each column's metadata give its unit and meaning. `memlib schema` prints the same.",
        "",
    ]
    for name, tables in published_tables().items():
        for audit, table in tables.items():
            lines += _table_lines(name, audit, table)
    return "\n".join(lines).rstrip() + "\n"


def _table_lines(name: str, audit: str, table: Table) -> list[str]:
    rows = [f"| `{c.name}` | {c.type} | {c.unit} | {c.meaning} |" for c in table.columns]
    return [
        f"## {name}{f' ({audit})' if audit else ''}, version {table.version}",
        "",
        f"{table.meaning} Key: {', '.join(f'`{key}`' for key in table.keys)}.",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


def recipe_page() -> str:
    """Return docs/recipes.md: every key of every audit's recipe, and of the resources."""
    lines = [
        "# Recipes",
        "",
        "A recipe is a YAML file (1.2); `memlib recipes` lists the shipped ones and `memlib recipes NAME` prints one, with",
        "its comments. `extends: NAME_OR_FILE` inherits from another recipe: mappings are merged key by key, unless they",
        "have different `kind`s; `null` is a value like any other. `key: !remove` drops an inherited key, and",
        "`key: !replace {...}` replaces an inherited mapping as a whole. A recipe that replaces the embedded data of the",
        "recipe it extends does not inherit `split` and `sets`, and has to set its own. Any key can be set on the command",
        "line, as in `--set training.epochs=50`. Unknown keys, duplicate keys and numbers out of bounds are refused, and the",
        "message names the file or option at fault. A recipe determines the result and is part of every content key;",
        "`resources` determines how the work is carried out and is not part of any key.",
        "",
    ]
    seen = _Seen()
    for audit in AUDITS.values():
        lines += [f"## {audit.name}", "", audit.question, ""]
        lines += _section("", audit.recipe, seen)
        for name, variant in audit.variants.items():
            lines += [f"## {audit.name} of {name}", "", variant.__doc__ or "", "", *_section("", variant, seen)]
    lines += ["## resources", "", *_section("resources", Resources, seen)]
    lines += ["## policy", "", "A policy of `memlib gate` is a YAML file of its own, read as strictly as a recipe.", ""]
    lines += _section("", Policy, seen)
    return "\n".join(lines).rstrip() + "\n"


class _Seen:
    """The inner models that have a section, by link to its heading; equal headings are numbered as MyST numbers them."""

    def __init__(self) -> None:
        self.links: dict[type[BaseModel], str] = {}
        self._times = Counter[str]()

    def add(self, model: type[BaseModel], heading: str) -> None:
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        times = self._times[anchor]
        self._times[anchor] += 1
        self.links[model] = f"[{heading}](#{anchor}{f'-{times}' if times else ''})"


def _section(place: str, model: type[BaseModel], seen: _Seen) -> list[str]:
    """Return the table of a model's keys, and the sections of inner models, or links to those that have one."""
    rows, inner, known = [], list[str](), list[str]()
    for name, field in model.model_fields.items():
        key = f"{place}.{name}" if place else name
        if name == "kind" or (name == "audit" and not place):  # already in the heading
            continue
        members = list(models_in(field.annotation))
        if not members and name != "parts":  # whose sources have sections of their own
            key, members = f"{key}.NAME", list(models_in(field.annotation, mappings=True))
        if not members:
            key = key.removesuffix(".NAME")
            rows.append(f"| `{key}` | {_type(field)} | {_default(field)} | {_text(field.description)} |")
        for member in members:
            kind = _kind(member)
            heading = f"{key}{f', kind: {kind}' if kind else ''}"
            if member in seen.links:
                known.append(f"- `{heading}`: as {seen.links[member]}")
                continue
            seen.add(member, heading)
            inner += [f"### {heading}", "", _text(member.__doc__), "", *_section(key, member, seen)]
    table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""] if rows else []
    return table + ([*known, ""] if known else []) + inner


def _kind(model: type[BaseModel]) -> str:
    field = model.model_fields.get("kind")
    return str(get_args(field.annotation)[0]) if field is not None else ""


def _type(field: FieldInfo) -> str:
    marked = [(name, getattr(limit, mark)) for limit in field.metadata for mark, name in _BOUNDS if hasattr(limit, mark)]
    bounds = [f"{name} {value}" for name, value in marked if name != "at most" or value not in _SLIPS]
    return "".join([_name(field.annotation), *(f", {bound}" for bound in bounds)])


_SLIPS = {value for name, value in vars(base).items() if name.startswith("MOST_")}  # they only catch typing errors
_BOUNDS = (("ge", "at least"), ("gt", "above"), ("le", "at most"), ("lt", "below"))


def _name(annotation: Any) -> str:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is None:
        return {"NoneType": "null"}.get(getattr(annotation, "__name__", str(annotation)), getattr(annotation, "__name__", ""))
    if origin is Annotated:
        return _name(parts[0])
    if origin is tuple:
        inner = [_name(part) for part in parts if part is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in parts else f"[{', '.join(inner)}]"
    if origin in (dict, Mapping):
        return "mapping"
    if str(origin) == "typing.Literal":
        return " or ".join(f"`{part}`" for part in parts)
    return " or ".join(_name(part) for part in parts)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"`{list(value) if isinstance(value, tuple) else 'null' if value is None else value}`"


def _text(text: str | None) -> str:
    return " ".join((text or "").split())


def glossary_page() -> str:
    """Return docs/glossary.md: the terms used in reports and documents."""
    lines = ["# Glossary", "", "Terms used in reports and documents, each explained in a sentence or two.", ""]
    return "\n".join([*lines, *(f"- **{term}**: {text}" for term, text in terms().items())]) + "\n"


def command_page() -> str:
    """Return docs/cli.md: every command with its arguments and options."""
    from flows.cli.app import app  # imports every command

    with mock.patch.object(sys, "argv", ["memlib"]):  # its name would else show how Python was started
        _, start, commands = app.generate_docs().partition("**Start**:\n")
    return f"# Commands\n\n`memlib COMMAND --help` prints the same.\n\n{start}{commands.rstrip()}\n"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every page."""
    yield "docs/cli.md", command_page()
    yield "docs/glossary.md", glossary_page()
    yield "docs/schema.md", schema_page()
    yield "docs/recipes.md", recipe_page()


if __name__ == "__main__":
    from pathlib import Path

    for path, text in pages():
        Path(path).write_text(text)
