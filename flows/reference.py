"""Reference pages, generated from the code: every column of the results, every key of a recipe, every stage, every term."""

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, get_args, get_origin
from unittest import mock

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from memlib.audits import AUDITS, published_tables
from memlib.audits.arrangement import stages_of
from memlib.audits.policy import Policy
from memlib.recipes.files import models_in
from memlib.report.glossary import terms
from memlib.specs import Resources, base
from memlib.tables import Table

FOLDER = "docs/reference"
SHARED = {
    "memlib.specs.data": "data", "memlib.specs.text": "data", "memlib.specs.training": "training",
    "memlib.specs.models": "models", "memlib.specs.encoders": "models", "memlib.specs.observing": "models",
}  # fmt: skip
"""Pages of settings that the recipes of several audits have in common, by the module that declares them."""
ABOUT = {
    "data": "Sources of images, tables and text, and how examples are read and divided, in the recipes of several audits.",
    "models": "Models that are trained or given, in the recipes of several audits.",
    "training": "How models are trained, in the recipes of several audits.",
}


def table_pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of the published tables: those of every audit, and those of each audit."""
    lines = [
        "# Result tables",
        "",
        "Results are Parquet files, `<store>/results/table=<table>/audit=<audit>/run=<run>/part-0.parquet`; large tables",
        "continue in `part-1.parquet` and so on. One glob per table (`*.parquet`) reads all audits and runs, with `table`,",
        "`audit` and `run` as hive partitions. Each file's metadata give its table and version, the run, and the key of the",
        "stage that wrote it; each column's metadata give its unit and meaning. `memlib schema` prints the same.",
        "",
        "The tables below are published by every audit; those of each audit have a page of their own:",
        "",
    ]
    own = dict[str, list[str]]()
    common = list[str]()
    for name, tables in published_tables().items():
        for audit, table in tables.items():
            place = own.setdefault(audit, []) if audit else common
            place += _table_lines(name, table)
    links = [f"- [{audit}](tables/{audit}.md)" for audit in own]
    yield f"{FOLDER}/tables.md", _text_of([*lines, *links, "", _toc("tables", own), *common])
    for audit, content in own.items():
        yield f"{FOLDER}/tables/{audit}.md", _text_of([f"# Tables of {audit}", "", *content])


def _table_lines(name: str, table: Table) -> list[str]:
    rows = [f"| `{c.name}` | {c.type} | {c.unit} | {c.meaning} |" for c in table.columns]
    return [
        f"## {name}, version {table.version}",
        "",
        f"{table.meaning} Key: {', '.join(f'`{key}`' for key in table.keys)}.",
        "",
        "| column | type | unit | meaning |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


def _toc(folder: str, names: Iterable[str]) -> str:
    return "\n".join(["```{toctree}", ":maxdepth: 1", ":hidden:", "", *(f"{folder}/{name}" for name in names), "```", ""])


def _text_of(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def recipe_pages() -> Iterator[tuple[str, str]]:
    """Yield the pages of recipes: one per audit, what audits have in common, resources, and the policy of gates."""
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
    book = _Book(_shared())
    for name, about in ABOUT.items():
        book.open(name, name.capitalize(), about)
    for audit in AUDITS.values():
        page = book.open(audit.name, f"Recipes of {audit.name}", audit.question)
        page += book.section(audit.name, "", audit.recipe)
        for name, variant in audit.variants.items():
            page += [f"## {audit.name} of {name}", "", variant.__doc__ or "", "", *book.section(audit.name, "", variant)]
    page = book.open("resources", "Resources", "How the work of a run is carried out; part of no key.")
    page += book.section("resources", "resources", Resources)
    page = book.open("policy", "Policy", "A policy of `memlib gate` is a YAML file of its own, read as strictly as a recipe.")
    page += book.section("policy", "", Policy)
    links = [f"- [{content[0].removeprefix('# ')}](recipes/{name}.md): {content[2]}" for name, content in book.pages.items()]
    yield f"{FOLDER}/recipes.md", _text_of([*lines, *links, "", _toc("recipes", book.pages)])
    for name, content in book.pages.items():
        yield f"{FOLDER}/recipes/{name}.md", _text_of(content)


def _shared() -> dict[type[BaseModel], str]:
    """Return the page of each inner model that the recipes of several audits have in common."""
    users = defaultdict[type[BaseModel], set[str]](set)

    def look(model: type[BaseModel], audit: str) -> None:
        if audit not in users[model]:
            users[model].add(audit)
            for name, field in model.model_fields.items():
                for member in _members(name, field)[1]:
                    look(member, audit)

    for audit in AUDITS.values():
        for recipe in (audit.recipe, *audit.variants.values()):
            look(recipe, audit.name)
    return {
        model: SHARED[model.__module__] for model, names in users.items() if len(names) > 1 and model.__module__ in SHARED
    }


def _members(name: str, field: FieldInfo) -> tuple[str, list[type[BaseModel]]]:
    """Return the key of a field below which its inner models stand, and these models."""
    members = list(models_in(field.annotation))
    if members or name == "parts":  # whose sources have sections of their own
        return name, members
    members = list(models_in(field.annotation, mappings=True))
    return f"{name}.NAME" if members else name, members


class _Book:
    """Pages of recipes, and where each inner model is described; equal headings are numbered as MyST numbers them."""

    def __init__(self, shared: Mapping[type[BaseModel], str]) -> None:
        self.pages: dict[str, list[str]] = {}
        self._shared = shared
        self._places: dict[type[BaseModel], tuple[str, str, str]] = {}
        self._times = Counter[tuple[str, str]]()

    def open(self, name: str, title: str, about: str) -> list[str]:
        """Begin a page, and return its lines."""
        page = self.pages[name] = [f"# {title}", "", about, ""]
        return page

    def section(self, page: str, place: str, model: type[BaseModel]) -> list[str]:
        """Return the table of a model's keys, and the sections of inner models, or links to those that have one."""
        rows, inner, known = [], list[str](), list[str]()
        for name, field in model.model_fields.items():
            if name == "kind" or (name == "audit" and not place):  # already in the heading
                continue
            below, members = _members(name, field)
            key = f"{place}.{below}" if place else below
            if not members:
                rows.append(f"| `{key}` | {_type(field)} | {_default(field)} | {_text(field.description)} |")
            for member in members:
                kind = _kind(member)
                heading = f"{key}{f', kind: {kind}' if kind else ''}"
                if member in self._places:
                    known.append(f"- `{heading}`: as {self._link(member, page)}")
                    continue
                there = self._shared.get(member, page)
                self._note(member, there, heading)
                described = [f"## {heading}", "", _text(member.__doc__), "", *self.section(there, key, member)]
                if there == page:
                    inner += described
                else:
                    self.pages[there] += described
                    known.append(f"- `{heading}`: {self._link(member, page)}")
        table = ["| key | type | default | meaning |", "|---|---|---|---|", *rows, ""] if rows else []
        return table + ([*known, ""] if known else []) + inner

    def _note(self, model: type[BaseModel], page: str, heading: str) -> None:
        anchor = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        times = self._times[page, anchor]
        self._times[page, anchor] += 1
        self._places[model] = page, f"{anchor}{f'-{times}' if times else ''}", heading

    def _link(self, model: type[BaseModel], page: str) -> str:
        there, anchor, heading = self._places[model]
        return f"[{heading}]({'' if there == page else f'{there}.md'}#{anchor})"


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


def stage_page() -> str:
    """Return the page of the stages of every audit, in order."""
    lines = [
        "# Stages",
        "",
        "What each audit can compute, in order; a recipe leaves out the stages that its settings do not need. A name is",
        "that of the folder below `artifacts/` of a store, and of `resources.stages`.",
        "",
    ]
    for name, audit in AUDITS.items():
        lines += [f"## {name}", "", "| stage | name | class | what it makes |", "|---|---|---|---|"]
        for stage in stages_of(audit):
            place = f"`{stage.__qualname__}`, `{stage.__module__.replace('.', '/')}.py`"
            summary = " ".join((stage.__doc__ or "").partition("\n\n")[0].split())
            lines.append(f"| {stage.title} | `{stage.declared.name}` | {place} | {summary} |")
        lines.append("")
    return _text_of(lines)


def command_page() -> str:
    """Return the page of every command, with its arguments and options."""
    from flows.cli.app import app  # imports every command

    with mock.patch.object(sys, "argv", ["memlib"]):  # its name would else show how Python was started
        _, start, commands = app.generate_docs().partition("**Start**:\n")
    return f"# Commands\n\n`memlib COMMAND --help` prints the same.\n\n{start}{commands.rstrip()}\n"


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of every page."""
    yield f"{FOLDER}/commands.md", command_page()
    yield f"{FOLDER}/stages.md", stage_page()
    yield "docs/glossary.md", glossary_page()
    yield from table_pages()
    yield from recipe_pages()


if __name__ == "__main__":
    from pathlib import Path

    for path, text in pages():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
