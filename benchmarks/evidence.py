"""Measurements as data: what a command printed, in blocks of text, output and tables, in files below evidence/.

A record has a title, a subject (an audit, or what was measured), the command, when and where it was made, what it showed, and
remarks by hand, which survive when the command writes the record anew.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

EVIDENCE = Path(__file__).parents[1] / "evidence"
FENCES = {"commands": "```sh", "output": "```"}
Record = dict[str, Any]


def blocks(lines: Iterable[str]) -> Iterator[Record]:
    """Yield lines of Markdown as blocks: `text`, `commands`, `output`, or `table` with its columns and rows."""
    for kind, found in _runs(lines):
        if kind == "table":
            head, _, *rows = [[cell.strip() for cell in _cells(line)] for line in found]
            yield {"table": {"columns": head, "rows": rows}}
        elif text := "\n".join(found).strip("\n"):
            yield {kind: text}


def _runs(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield neighbouring lines of one kind."""
    kind, found, fenced = "text", list[str](), False
    for line in lines:
        if line.startswith("```"):
            yield kind, found
            fenced = not fenced
            kind, found = ("text" if not fenced else "commands" if line == "```sh" else "output"), []
            continue
        of = kind if fenced else "table" if line.startswith(("| ", "|---")) else "text"
        if of != kind:
            yield kind, found
            kind, found = of, []
        found.append(line)
    yield kind, found


def _cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


def markdown(shown: Iterable[Record]) -> Iterator[str]:
    """Yield the lines of Markdown of blocks; the inverse of `blocks`."""
    for block in shown:
        ((kind, content),) = block.items()
        if kind == "table":
            yield f"| {' | '.join(content['columns'])} |"
            yield f"|{'---|' * len(content['columns'])}"
            yield from (f"| {' | '.join(row)} |" for row in content["rows"])
        elif kind in FENCES:
            yield from (FENCES[kind], *content.splitlines(), "```")
        else:
            yield from content.splitlines()
        yield ""


def write(path: Path, record: Record) -> None:
    """Write what a command measured; the remarks of a record that it replaces are kept."""
    if path.exists():
        record = record | {name: text for name, text in yaml.safe_load(path.read_text()).items() if name == "remark"}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_yaml(record))


def as_yaml(content: Any) -> str:
    """Return YAML in which texts of several lines are blocks, and a row of a table is a line."""
    return yaml.dump(content, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=1000)


class _Plain(yaml.SafeDumper):
    """YAML as a person would write it."""


def _text(dumper: _Plain, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _list(dumper: _Plain, items: list[Any]) -> yaml.Node:
    of_texts = all(isinstance(item, str) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=of_texts)


_Plain.add_representer(str, _text)
_Plain.add_representer(list, _list)
