"""Candidates for words that a shell completes: recipes, and the runs of a store.

A shell waits for them, so they need neither the library of the command line nor any other outside Python's own.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from memlib.sanitize import one_line

ASK = "__complete"  # how the scripts of cyclopts ask for candidates; the words up to the cursor follow
BEGIN = "\n\x1fbegin"  # their first line: what was printed before is ignored
RECIPES = Path(__file__).parents[2] / "deployments/recipes"
NAME = re.compile(r"\w[\w.-]{0,199}")

Candidates = dict[str, str]  # values with their descriptions, which zsh and fish show


def shipped(context: object = None) -> Candidates:
    """Return the shipped recipes, with their audits."""
    return {path.stem: path.parent.name.replace("_", "-") for path in sorted(RECIPES.glob("*/*.yaml"))}


def recipes(context: object = None) -> Candidates:
    """Return the shipped recipes, and the YAML files whose path begins with the last word of the command line."""
    start = sys.argv[-1].partition("=")[2] if sys.argv[-1].startswith("-") else sys.argv[-1]
    folder = start[: start.rfind("/") + 1]
    files = sorted(path.name for path in Path(os.path.expanduser(folder) or ".").glob("*.y*ml"))
    return {**shipped(), **{f"{folder}{name}": "file" for name in files}}


def audits_and_recipes(context: object = None) -> Candidates:
    """Return the audits, the shipped recipes and YAML files."""
    return {path.name.replace("_", "-"): "audit" for path in sorted(RECIPES.glob("*/"))} | recipes()


def finished(context: object = None) -> Candidates:
    """Return the finished runs of the store that the command line names, with their titles; none of a store on S3."""
    folder = _store(sys.argv)
    names = sorted(path.parent.name for path in folder.glob("runs/*/manifest.json") if NAME.fullmatch(path.parent.name))
    titles = _titles(folder)
    return {name: titles.get(name, "") for name in names}


def all_runs(context: object = None) -> Candidates:
    """Return the finished runs, and those that have not ended."""
    names = sorted(path.stem.rpartition("-")[0] for path in _store(sys.argv).glob("requests/*-*.json"))
    return {name: "not ended" for name in names if NAME.fullmatch(name)} | finished()


def _store(words: Sequence[str]) -> Path:
    """Return the folder of the store that the words of a command line name, or MEMLIB_STORE, or else the default one."""
    words = [word for word in words if word != "="]  # bash parts --store=FOLDER
    given = [after for word, after in pairwise(words) if word == "--store"]
    given += [word.removeprefix("--store=") for word in words if word.startswith("--store=")]
    written = shlex.split(given[-1]) if given else [os.environ.get("MEMLIB_STORE") or "memlib-store"]
    return Path(os.path.expanduser(written[0]))


def _titles(folder: Path) -> Mapping[str, str]:
    """Return the titles of runs from the store's index, which may be missing or older than the runs."""
    try:
        entries = json.loads((folder / "index/runs.json").read_text(encoding="utf-8"))["entries"]
        return {name: one_line(str(entry.get("title", ""))) for name, entry in entries.items()}
    except (OSError, ValueError, LookupError, AttributeError, TypeError):
        return {}


Completer = Callable[[object], Candidates]
OF_OPTIONS: Mapping[str, Completer] = {"--recipe": recipes, "--baseline": finished, "--keep": finished}
OF_COMMANDS: Mapping[str, Completer] = {
    "run": audits_and_recipes, "plan": audits_and_recipes, "validate": recipes, "overlap": recipes, "recipes": shipped,
    "resume": all_runs, "status": all_runs,
}  # fmt: skip
"""Completers of the arguments of commands; other commands take finished runs.

Parameters name the same ones, as the scripts ask only where a parameter has a completer."""


def completer_of(words: Sequence[str]) -> Completer:
    """Return the completer of the last word of a command line.

    Args:
        words: the words after `memlib`.
    """
    *before, last = [word for word in words if word != "="] or [""]
    option = last.partition("=")[0] if last.startswith("--") else before[-1] if before else ""
    return OF_OPTIONS.get(option) or OF_COMMANDS.get(words[0] if words else "", finished)


def answer(words: Sequence[str]) -> int:
    """Print the candidates for the last word of a command line, one per line, and return the exit status.

    Args:
        words: the words after `memlib`.
    """
    try:
        found = completer_of(words)(None)
    except (OSError, ValueError, IndexError):  # a folder that cannot be read, a quotation without its end, an empty word
        found = {}
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    print(BEGIN)
    for value, description in found.items():
        if value.isprintable():
            print(f"{value}\t{description}".rstrip())
    return 0
