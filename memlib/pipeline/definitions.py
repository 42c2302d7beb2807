"""The definitions of memlib that a stage's results can depend on, found in the source without running it.

A stage's code is all that its class reaches by name: functions, classes and constants, in annotations and in imports inside
functions, too. A class that is named other than as a base of another class stands for its subclasses as well, and a protocol
for the classes that have its members; a registry from which modules are imported stands for all that these modules define.
Another stage is reached through its `open` alone, by its own name or by the type that `open` returns; stages that draw pages
also reach `described` of every stage. Modules that only keep, list and run stages are left out, and so is `memlib.report`,
except for stages that draw pages and for the formats of numbers, which verdicts use.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlib.errors import UserError
from memlib.pipeline.user_code import imported_from
from memlib.version import ROOT, source_files
from memlib.version import digest_of as digest_of_files

LEFT_OUT = (
    "memlib.store",
    "memlib.runs",
    "memlib.recipes",
    "memlib.running",
    "memlib.pipeline.definitions",
    "memlib.pipeline.provenance",
    "memlib.specs.question",
)
WITHIN = (
    "memlib.store.records",
    "memlib.store.permissions",
    "memlib.runs.records",
    "memlib.runs.run",
    "memlib.report.format",
)  # covered all the same
PAGES = "memlib.report"
STAGE, ARTIFACT = ("memlib.pipeline.stage", "Stage"), ("memlib.pipeline.stage", "Artifact")
PAGE_STAGE = ("memlib.audits.last_stages", "PageStage")
DIGEST_LENGTH = 32
MOST_KEPT = 8  # files of digests in the cache folder, which installations of memlib share
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
EFFECTS = ""  # name of a module's statements that define nothing

Name = tuple[str, str]
"""A module, and a name that is defined in it."""


@dataclass
class Module:
    """The names that a module defines and imports."""

    name: str  #: name of the module.
    folder: Path  #: folder of its file.
    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)  #: statements that define each name.
    #: module and name of each import; the name is empty for a module.
    imported: dict[str, Name] = field(default_factory=dict)


@functools.cache
def code_of(module: str, name: str) -> str:
    """Return a digest (from sha256) of the definitions that a stage's class reaches.

    It does not depend on the modules that hold them, nor on comments, docstrings and layout. Of a class outside memlib, it
    covers the whole file.
    """
    if module not in _paths():
        return hashlib.sha256(Path(sys.modules[module].__file__ or "").read_bytes()).hexdigest()[:DIGEST_LENGTH]
    saved, stage = _saved(), f"{module}.{name}"
    if stage not in saved:
        places = reached(module, name)
        texts = {_text(node) for place in places for node in _nodes(place)}
        texts |= {hashlib.sha256(file.read_bytes()).hexdigest() for file in _files(places)}
        saved[stage] = hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:DIGEST_LENGTH]
        _save(saved)
    return saved[stage]


def equal_codes(module: str, name: str) -> frozenset[str]:
    """Return the digests of code that gives the same results as the code of a stage's class, this one included.

    They are those that `make pins` recorded for the class within its version (pins.json); code that was changed since equals
    only itself.
    """
    current = code_of(module, name)
    _, _, *pinned = _pins().get(f"{module.removeprefix('memlib.')}.{name}", [name, 0])
    return frozenset(pinned) if pinned[:1] == [current] else frozenset({current})


@functools.cache
def _pins() -> dict[str, list[Any]]:
    """Return name, version and digests of code, the current one first, by class."""
    pins: dict[str, list[Any]] = json.loads(Path(__file__).with_name("pins.json").read_text())
    return pins


def pinned_codes() -> dict[str, set[tuple[int, str]]]:
    """Return the version, and the digests of code that gives the same results, of each stage by name; see `equal_codes`."""
    found: dict[str, set[tuple[int, str]]] = {}
    for name, version, *digests in _pins().values():
        found.setdefault(name.rpartition("/")[2], set()).update((version, digest) for digest in digests)
    return found


@functools.cache
def _saved_at() -> tuple[Path, ...]:
    """Return the files in which digests are kept, named after the content of all files of memlib.

    The first is beside Python's bytecode. The second is in the user's cache folder, for processes that must not or cannot
    write the first; there is none for users without a home folder.
    """
    from memlib.store.permissions import user_folder

    name, folders = f"definitions-{digest_of_files(source_files(ROOT))}.json", [ROOT / "memlib/__pycache__"]
    with contextlib.suppress(UserError):
        folders.append(user_folder("cache") / "definitions")
    return tuple(folder / name for folder in folders)


@functools.cache
def _saved() -> dict[str, str]:
    """Return the digests of stages that were computed for exactly these files, by class; damaged files are ignored."""
    digests: dict[str, str] = {}
    for path in _saved_at():
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["sha256"] == _sealed(kept["digests"])["sha256"]:
                digests |= kept["digests"]
    return digests


def _sealed(digests: dict[str, str]) -> dict[str, Any]:
    """Return digests with their sha256."""
    text = json.dumps(digests, sort_keys=True)
    return {"digests": digests, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _save(digests: dict[str, str]) -> None:
    """Keep digests for later processes: beside the bytecode, or in the cache folder; the oldest files are removed."""
    from memlib.store.permissions import replace_file

    for path, most in tuple(zip(_saved_at(), (1, MOST_KEPT), strict=False))[int(sys.dont_write_bytecode) :]:
        with contextlib.suppress(OSError, UserError):
            replace_file(path, json.dumps(_sealed(digests)).encode())
            kept = sorted(path.parent.glob("definitions-*.json"), key=lambda file: (file == path, file.stat().st_mtime))
            for other in kept[:-most]:
                other.unlink()
            return


@functools.cache
def reached(module: str, name: str) -> frozenset[Name]:
    """Return all definitions that a stage's class reaches, as (module, name); a stage's `open` is named `Stage.open`."""
    found: set[Name] = set()
    own = (module, name)
    above = list(_stages_above(own))
    waiting, pages = [own, *above], PAGE_STAGE in above
    if pages:
        waiting += [(kind[0], f"{kind[1]}.described") for kind in subclasses(STAGE)]
    while waiting:
        place = waiting.pop()
        if place in found or not _is_covered(place[0], pages):
            continue
        found.add(place)
        waiting += _steps(place)
    return frozenset(place for place in found if _nodes(place))


@functools.cache
def _steps(place: Name) -> tuple[Name, ...]:
    """Return the definitions that one definition names, and the statements of its module that define nothing."""
    steps: dict[Name, None] = {(place[0], EFFECTS): None}
    for node in _nodes(place):
        inner = list(_walk(node))
        named = list(_references(inner, place[0]))
        for other, as_base in named:
            steps |= dict.fromkeys(_followed(other, as_base))
        if any(isinstance(one, ast.Attribute) and one.attr == "import_module" for one in inner):
            steps |= dict.fromkeys(_imported_by_name([place, *(other for other, _ in named)]))
        for kind in _opened_types(inner, place[0]):
            steps |= dict.fromkeys(_openings().get(kind, ()))
    return tuple(steps)


def _imported_by_name(places: list[Name]) -> Iterator[Name]:
    """Yield all definitions of the modules that definitions name in texts, as a registry does."""
    for place in places:
        for node in _nodes(place):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and inner.value in _paths():
                    yield from ((inner.value, name) for name in _module(inner.value).defined)


def _is_covered(module: str, pages: bool) -> bool:
    out = LEFT_OUT if pages else (*LEFT_OUT, PAGES)
    return module in WITHIN or not any(module == one or module.startswith(f"{one}.") for one in out)


def _followed(place: Name, as_base: bool) -> Iterator[Name]:
    """Yield the definitions that a name stands for: a definition and its subclasses, or the `open` of a stage."""
    if place == STAGE:
        yield place
    elif _is_stage(place):
        yield from _opening(place)
    else:
        yield place
        if not as_base and _is_class(place):
            yield from subclasses(place)


# -- reading modules ----------------------------------------------------------------------------------


@functools.cache
def _paths() -> dict[str, Path]:
    """Return the file of each module of memlib."""
    files = {}
    for path in sorted((ROOT / "memlib").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return files


@functools.cache
def _source(module: str) -> str:
    return _paths()[module].read_text(encoding="utf-8")


@functools.cache
def _module(name: str) -> Module:
    path = _paths()[name]
    module = Module(name, path.parent)
    _collect(module, ast.parse(_source(name)).body)
    return module


def _collect(module: Module, body: list[ast.stmt]) -> None:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                module.defined.setdefault(node.name, []).append(node)
            case ast.Import() | ast.ImportFrom():
                module.imported |= _imports(node, module.name)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    names = [inner.id for inner in ast.walk(target) if isinstance(inner, ast.Name)]
                    for name in names or [EFFECTS]:
                        module.defined.setdefault(name, []).append(node)
            case ast.If() | ast.Try() | ast.With():
                _collect(module, [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])])
                for handler in getattr(node, "handlers", []):
                    _collect(module, handler.body)
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                module.defined.setdefault(EFFECTS, []).append(node)


def _imports(node: ast.Import | ast.ImportFrom, inside: str) -> dict[str, Name]:
    """Return, by bound name, the module of an import and the name imported from it, which is empty for a module."""
    if isinstance(node, ast.Import):
        return {
            alias.asname or alias.name.partition(".")[0]: (alias.name if alias.asname else alias.name.partition(".")[0], "")
            for alias in node.names
        }
    package = inside if _paths()[inside].name == "__init__.py" else inside.rpartition(".")[0]
    base = imported_from(node, package)
    return {alias.asname or alias.name: (base, alias.name) for alias in node.names}


def _nodes(place: Name) -> list[ast.stmt]:
    """Return the statements behind a definition; a name such as `Stage.open` is one method of a class."""
    module, name = place
    if module not in _paths():
        return []
    owner, _, method = name.partition(".")
    nodes = _module(module).defined.get(owner, [])
    if not method:
        return nodes
    return [inner for node in nodes if isinstance(node, ast.ClassDef) for inner in node.body if _is_named(inner, method)]


def _is_named(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


# -- names -----------------------------------------------------------------------------------------------


def _references(nodes: list[ast.AST], inside: str) -> Iterator[tuple[Name, bool]]:
    """Yield the definitions of memlib that nodes name, and whether the name is the base of a class."""
    local: dict[str, Name] = {}
    for inner in nodes:
        if isinstance(inner, ast.Import | ast.ImportFrom):
            local |= _imports(inner, inside)
    bases = {id(base) for inner in nodes if isinstance(inner, ast.ClassDef) for base in inner.bases}
    for inner in nodes:
        if isinstance(inner, ast.Name | ast.Attribute):
            place = _resolved(inner, inside, local)
            if place is not None:
                yield place, id(inner) in bases


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes of a syntax tree, those of quoted annotations included."""
    for inner in ast.walk(node):
        yield inner
        for annotation in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            for quoted in ast.walk(annotation) if annotation is not None else ():
                if isinstance(quoted, ast.Constant) and isinstance(quoted.value, str):
                    try:
                        yield from ast.walk(ast.parse(quoted.value, mode="eval"))
                    except SyntaxError:  # a text, as in Literal["mean"]
                        continue


def _resolved(node: ast.AST, inside: str, local: dict[str, Name]) -> Name | None:
    """Return the definition that a name, or an attribute of a module, stands for; None if it is not of memlib."""
    if isinstance(node, ast.Name):
        if node.id in local:
            return _target(local[node.id])
        module = _module(inside)
        if node.id in module.defined:
            return inside, node.id
        return _target(module.imported[node.id]) if node.id in module.imported else None
    if isinstance(node, ast.Attribute):
        owner = _resolved(node.value, inside, local)
        return _target((owner[0], node.attr)) if owner is not None and not owner[1] else None
    return None


def _target(place: Name) -> Name | None:
    """Follow an import to the definition itself, (module, "") for a module; None if it is not of memlib."""
    module, name = place
    if module not in _paths():
        return None
    if not name:
        return module, ""
    known = _module(module)
    if name in known.defined:
        return module, name
    if f"{module}.{name}" in _paths():
        return f"{module}.{name}", ""
    return _target(known.imported[name]) if name in known.imported else None


# -- classes ---------------------------------------------------------------------------------------------


def _is_class(place: Name) -> bool:
    return any(isinstance(node, ast.ClassDef) for node in _nodes(place))


@functools.cache
def _bases(place: Name) -> tuple[Name, ...]:
    """Return the classes of memlib from which a class derives directly."""
    found = []
    for node in _nodes(place):
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            plain = base.value if isinstance(base, ast.Subscript) else base
            resolved = _resolved(plain, place[0], {})
            if resolved is not None and resolved[1]:
                found.append(resolved)
    return tuple(found)


@functools.cache
def _is_stage(place: Name) -> bool:
    return any(base == STAGE or _is_stage(base) for base in _bases(place))


def _stages_above(place: Name) -> Iterator[Name]:
    """Yield the classes from which a stage derives; they are part of its own code."""
    for base in _bases(place):
        yield base
        yield from _stages_above(base)


@functools.cache
def subclasses(place: Name) -> tuple[Name, ...]:
    """Return the classes of memlib that derive from a class, directly or not, or that have all members of a protocol."""
    found: list[Name] = []
    members = _members(place) if _is_protocol(place) else frozenset()
    for module in _paths():
        source = _source(module)
        if place[1] not in source and not (members and all(member in source for member in members)):
            continue
        for name in _module(module).defined:
            other = (module, name)
            if place in _bases(other):
                found += [other, *subclasses(other)]
            elif members and _is_class(other) and not _is_protocol(other) and members <= _all_members(other):
                found.append(other)
    return tuple(dict.fromkeys(found))


def _is_protocol(place: Name) -> bool:
    names = (ast.unparse(base) for node in _nodes(place) if isinstance(node, ast.ClassDef) for base in node.bases)
    return any(name.partition("[")[0] in ("Protocol", "typing.Protocol") for name in names)


def _members(place: Name) -> frozenset[str]:
    """Return the names of the methods and annotated attributes of a class itself, without dunder methods."""
    names = set()
    for node in _nodes(place):
        for inner in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) and not inner.name.startswith("__"):
                names.add(inner.name)
            elif isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
                names.add(inner.target.id)
    return frozenset(names)


def _all_members(place: Name) -> frozenset[str]:
    return _members(place).union(*map(_all_members, _bases(place)))


# -- what other stages wrote -------------------------------------------------------------------------------


@functools.cache
def _openings() -> dict[str, tuple[Name, ...]]:
    """Return the `open` methods of all stages by the type of the content that they return."""
    found: dict[str, list[Name]] = {}
    for place in subclasses(STAGE):
        for opening in _opening(place):
            for node in _nodes(opening):
                for kind in _opened_types(list(_walk(node)), opening[0]):
                    found.setdefault(kind, []).append(opening)
    return {kind: tuple(dict.fromkeys(places)) for kind, places in found.items()}


def _opening(place: Name) -> Iterator[Name]:
    """Yield a stage's `open`, its own or that of the class from which it inherits it."""
    opening = (place[0], f"{place[1]}.open")
    if _nodes(opening):
        yield opening
    else:
        for base in _bases(place):
            if base != STAGE:
                yield from _opening(base)


def _opened_types(nodes: list[ast.AST], inside: str) -> Iterator[str]:
    """Yield the types T for which nodes name Artifact[T]."""
    for inner in nodes:
        if isinstance(inner, ast.Subscript) and _resolved(inner.value, inside, {}) == ARTIFACT:
            yield ast.unparse(inner.slice)


# -- texts ----------------------------------------------------------------------------------------------


def _files(places: frozenset[Name]) -> set[Path]:
    """Return the files beside the code, such as templates, that definitions name."""
    files = set()
    for place in places:
        for node in _nodes(place):
            for inner in ast.walk(node):
                if (
                    isinstance(inner, ast.Constant)
                    and isinstance(inner.value, str)
                    and re.fullmatch(r"[\w.-]+\.\w+", inner.value)
                ):
                    path = _module(place[0]).folder / inner.value
                    if path.suffix != ".py" and path.is_file():
                        files.add(path)
    return files


_TEXTS: dict[int, str] = {}


def _text(node: ast.AST) -> str:
    """Return the sha256 of a syntax tree without imports, docstrings and layout, the same in all versions of Python."""
    if id(node) not in _TEXTS:
        _TEXTS[id(node)] = hashlib.sha256(json.dumps(_plain(node), sort_keys=True).encode()).hexdigest()
    return _TEXTS[id(node)]


def _plain(node: Any) -> Any:
    """Return a syntax tree as plain data that is the same in all versions of Python: empty fields are omitted."""
    if not isinstance(node, ast.AST):
        return node if isinstance(node, str | int | bool) else repr(node)
    kept = {}
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            inner = _without_texts(node, value) if name == "body" else value
            inner = [item for item in inner if not isinstance(item, ast.Import | ast.ImportFrom)]
            if inner:
                kept[name] = [_plain(item) for item in inner]
        elif value is not None and name not in ("kind", "type_comment"):
            kept[name] = _plain(value)
    return [type(node).__name__, kept]


def _without_texts(node: ast.AST, body: list[ast.stmt]) -> list[ast.stmt]:
    """Return a body without its docstring and without attribute docstrings."""
    if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
        body = body[1:]
    return [inner for inner in body if not _is_text(inner)] if isinstance(node, ast.Module | ast.ClassDef) else body


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
