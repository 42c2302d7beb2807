"""Run every command of the documents: `make docs-test` (pytest -p commands README.md docs/...).

Blocks of sh and python run, blocks of yaml are parsed, blocks of text are written where a name is given, in order, each document in
a folder of its own. Commands of memlib and blocks of python run in this process (MEMLIB_ENGINE=process); what needs a shell or another
program is given to bash. The documents of PROCESSES run as a reader runs them, on Prefect and Ray. An HTML comment before a block
says what is special about it:

    <!-- docs-test: skip: REASON -->            the block is skipped, and counted with its reason
    <!-- docs-test: with KEY=VALUE, ... -->     every `memlib run` and `memlib plan` gets these --set, so that it ends soon
    <!-- docs-test: file NAME -->               the block is written to a file instead of being run
    <!-- docs-test: make THING -->              a folder of sample data or a finished run is made first, see MAKERS
    <!-- docs-test: needs NAME -->              a file of MEMLIB_DATA is linked here; without it the block is skipped
    <!-- docs-test: status 0, 1 -->             exit statuses other than 0 that the commands may have
    <!-- docs-test: replace OLD -> NEW -->      a text of the block is replaced

RUN stands for the run that a command named last: one that is requested again is not published again.
"""

import contextlib
import json
import lzma
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from in_process import call, execute, split
from PIL import Image
from sybil import Sybil
from sybil.example import Example
from sybil.parsers.markdown import CodeBlockParser

os.environ.setdefault("OMP_NUM_THREADS", "1")  # small models: threads that wait for each other cost more than they give
ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("MEMLIB_DATA", ROOT.parent / "shared/data"))
BIN = Path(sys.executable).parent
DOCUMENTS = ("README.md", "docs/quick-start.md", "docs/tutorials/*.md", "docs/how-to/*.md")
PROCESSES = ("README.md", "docs/how-to/share.md")
DIRECTIVE = re.compile(r"<!-- docs-test: (\w+)(?::? (.*?))? -->\n")
SECONDS = 900


def directives(text: str) -> Iterator[tuple[str, str]]:
    """Yield the directives in the lines just before a block.

    Args:
        text: the document up to the block.
    """
    for line in reversed(text.splitlines(keepends=True)):
        found = DIRECTIVE.fullmatch(line)
        if found is None:
            return
        yield found[1], found[2] or ""


def settings_of(text: str) -> list[str]:
    """Split `a=1, b=[2, 3]` at the commas that are outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{(") - (character in ")}]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def commands_of(block: str) -> list[str]:
    """Return the commands of a block, continued lines joined, comments removed."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [command for line in lines if (command := re.sub(r"(^|\s)#.*$", "", line).strip())]


def shrunk(command: str, settings: list[str]) -> str:
    """Return a command with settings added where it runs or plans an audit."""
    if not re.search(r"\bmemlib (run|plan) ", command):
        return command
    return " ".join([command, *(f"--set {shlex.quote(setting)}" for setting in settings)])


def last_run(folder: Path) -> str:
    """Return the name of the run that a command named last, or of the newest one."""
    if _named:
        return _named[-1]
    listed = call(["runs", "--json"], folder, _environment())
    assert listed.returncode == 0, listed.stderr
    return str(json.loads(listed.stdout)[0]["run"])


def evaluate(example: Example, language: str) -> None:
    """Run, write or parse a block, as its language and directives say."""
    folder, said = _folder(example), list(directives(example.document.text[: example.region.start]))
    block, settings, statuses = str(example.parsed), [], {0}
    for name, value in reversed(said):
        match name:
            case "skip":
                pytest.skip(value)
            case "with":
                settings += settings_of(value)
            case "file":
                (folder / value).write_text(block)
            case "make":
                MAKERS[value](folder)
            case "needs":
                _link(folder, value)
            case "status":
                statuses |= {int(status) for status in value.split(", ")}
            case "replace":
                old, new = value.split(" -> ")
                assert old in block, f"{old!r} is not in the block"
                block = block.replace(old, new)
            case _:
                raise ValueError(f"unknown directive {name}")
    if language == "yaml":
        assert isinstance(yaml.safe_load(block), dict)
    elif language != "text" and all(name != "file" for name, _ in said):
        commands = [block] if language == "python" else [shrunk(command, settings) for command in commands_of(block)]
        apart = Path(example.path).relative_to(ROOT).as_posix() in PROCESSES
        for command in commands:
            _run(command, folder, statuses, python=language == "python", apart=apart)


def _run(command: str, folder: Path, statuses: set[int], *, python: bool = False, apart: bool = False) -> None:
    """Run a command or a block of Python, which must end with one of the statuses.

    Args:
        command: the command, in which RUN stands for a run.
        folder: where it runs.
        statuses: the exit statuses that it may have.
        python: whether it is a block of Python.
        apart: whether it has a process of its own, whatever it is.
    """
    if not python and re.search(r"\bRUN\b", command):
        command = re.sub(r"\bRUN\b", last_run(folder), command)
    environment = _environment() | ({} if apart else {"MEMLIB_ENGINE": "process"})
    if python and not apart:
        ended = execute(command, folder, environment)
    elif not apart and not python and (parts := split(command)) is not None:
        ended = call(parts[1], folder, environment | parts[0])
    else:
        arguments = [sys.executable, "-c", command] if python else ["bash", "-c", command]
        ended = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)
    if ended.returncode not in statuses:
        said = f"{ended.stdout[-2000:]}\n{ended.stderr[-3000:]}"
        pytest.fail(f"{command}\nended with {ended.returncode}\n{said}", pytrace=False)
    _named.extend(re.findall(r"^run ([0-9a-f]{12}):", ended.stdout, re.MULTILINE))


def _environment() -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    homes = {"XDG_CONFIG_HOME": str(_shared() / "config"), "PREFECT_HOME": str(_shared() / "prefect")}
    return {**os.environ, "PATH": path, **homes, "BROWSER": "true"}


def _shared() -> Path:
    """The folder of this process, which its documents share: their runs are in one store."""
    if not _made:
        _made.append(Path(tempfile.mkdtemp(prefix="docs-test-")))
        for name in (".venv", "benchmarks", "docs"):
            (_made[0] / name).symlink_to(ROOT / name if name != ".venv" else BIN.parent)
    return _made[0]


_made: list[Path] = []
_named: list[str] = []


def _folder(example: Example) -> Path:
    """The working folder of a document, made with its first block."""
    if "folder" not in example.namespace:
        shared = _shared()
        folder = shared / Path(example.path).relative_to(ROOT).with_suffix("").as_posix().replace("/", "-")
        folder.mkdir()
        (shared / "memlib-store").mkdir(exist_ok=True)
        for name in (".venv", "benchmarks", "memlib-store"):
            (folder / name).symlink_to(shared / name)
        example.namespace["folder"] = folder
    return Path(example.namespace["folder"])


def make_photos(folder: Path) -> None:
    """Write four classes of 60 pictures of 48 px, each a coloured square on noise, with its box in Pascal VOC."""
    rng = np.random.default_rng(0)
    for label, colour in enumerate(((220, 40, 40), (40, 200, 60), (50, 80, 230), (230, 210, 50))):
        (folder / "photos" / f"class{label}").mkdir(parents=True, exist_ok=True)
        for number in range(60):
            pixels = rng.integers(60, 190, size=(48, 48, 3), dtype=np.uint8)
            top, left = (int(place) for place in rng.integers(0, 30, size=2))
            pixels[top : top + 16, left : left + 16] = colour
            path = folder / "photos" / f"class{label}" / f"{number:03}.png"
            Image.fromarray(pixels).save(path)
            box = f"<xmin>{left + 1}</xmin><ymin>{top + 1}</ymin><xmax>{left + 16}</xmax><ymax>{top + 16}</ymax>"
            path.with_suffix(".xml").write_text(
                f"<annotation><size><width>48</width><height>48</height></size><object><name>class{label}</name>"
                f"<bndbox>{box}</bndbox></object></annotation>"
            )


def make_run(folder: Path) -> None:
    """Run the smallest déjà vu audit."""
    settings = ["split.train_per_class=12", "split.public_per_class=40", "training.epochs=3", "decode.k=[10]"]
    _run(shrunk("memlib run deja-vu --recipe smoke", settings), folder, {0})


def make_language_model(folder: Path) -> None:
    """Save a small GPT-2 and a few training documents."""
    from small_models import TEXT, save_trainable

    save_trainable(folder / "my-model")
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"{part}."}) + "\n" for part in TEXT.split(". ") * 10))


def start_service(folder: Path) -> None:
    """Serve a small model until this process ends, where the documents say."""
    from small_service import serving

    _open.enter_context(serving(port=8321))


_open = contextlib.ExitStack()
MAKERS: dict[str, Callable[[Path], None]] = {
    "photos": make_photos, "run": make_run, "language model": make_language_model, "service": start_service,
}  # fmt: skip
SOURCES = {
    "data": "",
    "tiny-imagenet-50.tar.xz": "tiny-imagenet-50.tar.xz",
    "pneumoniamnist.npz": "pneumoniamnist_rebuilt.npz",
    "ptb.train.txt": "ptb/ptb.train.txt.xz",
}


def _link(folder: Path, name: str) -> None:
    source = DATA / SOURCES[name]
    if not source.exists():
        pytest.skip(f"needs {name} (MEMLIB_DATA)")
    if (folder / name).exists():
        return
    if source.suffix == ".xz" and not name.endswith(".xz"):
        (folder / name).write_bytes(lzma.decompress(source.read_bytes()))
    else:
        (folder / name).symlink_to(source)


def _parser(language: str) -> CodeBlockParser:
    def run(example: Example) -> Any:
        evaluate(example, language)

    return CodeBlockParser(language, run)


pytest_collect_file = Sybil(
    parsers=[_parser(language) for language in ("sh", "python", "yaml", "text")], patterns=DOCUMENTS, path=str(ROOT)
).pytest()
