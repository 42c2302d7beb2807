"""Code named by recipes: allowing modules, importing functions, and finding source files without running them.

Recipes and stores are code: a recipe names functions that are imported and called, so the author of a recipe decides
what runs. Each machine therefore decides which modules may be named: MEMLIB_CODE lists module names or
dotted prefixes, separated by commas. See docs/security.md.
"""

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from memlib.errors import UnknownUntilRun, UserError
from memlib.identity import file_digest
from memlib.version import PACKAGES, ROOT

VARIABLE = "MEMLIB_CODE"
NAMED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*", re.ASCII)
MEMLIBS = [ROOT / package for package in PACKAGES]
_planning: ContextVar[bool] = ContextVar("planning", default=False)


def modules_in(content: Any, *, in_json: bool = False) -> Iterator[str]:
    """Yield the modules that a recipe's content names as package.module:function, at any depth.

    Args:
        content: a recipe, or the spec and the inputs of a stage.
        in_json: whether to look into texts of JSON, as inputs that describe external models are.
    """
    if isinstance(content, str):
        if match := NAMED.fullmatch(content):
            yield match[1]
        elif in_json and content.startswith(("[", "{")):
            with contextlib.suppress(ValueError, RecursionError):
                yield from modules_in(json.loads(content))
    elif isinstance(content, Mapping):
        yield from (name for value in content.values() for name in modules_in(value, in_json=in_json))
    elif isinstance(content, Sequence):
        yield from (name for value in content for name in modules_in(value, in_json=in_json))


def allow(modules: Iterable[str]) -> None:
    """Allow modules and all of their top-level packages in this process and its children, in addition to MEMLIB_CODE.

    Modules that are found nowhere else are looked for in the current folder, too.
    """
    allowed, packages = os.environ.get(VARIABLE, ""), [module.partition(".")[0] for module in modules]
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*filter(None, allowed.split(",")), *packages]))
    here = Path.cwd()
    if any(_is_here(package, here) for package in packages if package not in sys.modules and _origin(package) is None):
        sys.path.append(str(here))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(here)]))


def _is_here(package: str, folder: Path) -> bool:
    return (folder / f"{package}.py").is_file() or (folder / package).is_dir()


def is_allowed(module: str) -> bool:
    """Return whether recipes may name code of a module on this machine."""
    allowed = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return any(name and (module == name or module.startswith(f"{name}.")) for name in allowed)


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Make `load` raise inside the block instead of importing code that a recipe names."""
    token = _planning.set(True)
    try:
        yield
    finally:
        _planning.reset(token)


def load(named: str) -> Any:
    """Import and return the function `package.module:function`.

    Raises:
        UserError: when this machine does not allow the module, it cannot be imported, or it has no such function.
        UnknownUntilRun: inside `planning`.
    """
    module, name = named.split(":")
    if _planning.get():
        raise UnknownUntilRun(f"the result of {named} (a plan does not run code named by recipes)")
    if not is_allowed(module):
        raise UserError(
            f"the recipe names {named}, which this machine does not allow; if you trust that code, set {VARIABLE}={module}, "
            "or pass the recipe's file to memlib run; see docs/security.md"
        )
    identity_of(module)  # before the import, so that later changes are noticed
    try:
        with _noting_files(module):
            function = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"cannot import {module!r} ({problem}); is its folder on PYTHONPATH?") from error
    if not callable(function):
        raise UserError(f"{module} has no function {name!r}")
    _check_origin(named, function)
    return function


def _check_origin(named: str, function: Any) -> None:
    """Refuse a function that an allowed module merely imported from one that is not allowed, such as os.system."""
    while isinstance(function, functools.partial):
        function = function.func
    origin = getattr(function, "__module__", None) or ""
    if origin and not is_allowed(origin):
        raise UserError(
            f"the recipe names {named}, which is defined in {origin}, and this machine does not allow that; if you trust "
            f"that code, add {origin} to {VARIABLE}; see docs/security.md"
        )


def source_file(named: str) -> Path | None:
    """Return the file that defines `package.module:function` without running any code; None where that is impossible.

    A function that is decorated, or imported from another module, is known only once its module is imported.
    """
    module, name = named.split(":")
    origin = _origin(module)
    if origin is None:
        return None
    try:
        body = ast.parse(origin.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return None
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = [node for node in body if isinstance(node, kinds) and node.name == name and not node.decorator_list]
    return origin if len(defined) == 1 else None


_ran: dict[str, dict[str, str]] = {}  # by module that was imported: digests of files by path
_opened: set[str] | None = None  # files opened since the import of a module began; None outside of imports


@contextlib.contextmanager
def _noting_files(module: str) -> Iterator[None]:
    """Note the files that are imported or opened while a module is imported, of which its source alone does not tell."""
    global _opened
    _hook()
    outer, before = _opened, set(sys.modules)
    _opened = set()
    try:
        yield
    finally:
        found, _opened = _opened, outer
        origins = {getattr(sys.modules[name], "__file__", None) for name in sys.modules.keys() - before}
        for file in map(Path, filter(None, found | origins)):
            if _is_users(file):
                with contextlib.suppress(OSError):
                    _ran.setdefault(module, {})[str(file)] = file_digest(file)


@functools.cache
def _hook() -> None:
    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if _opened is not None and event == "open" and isinstance(arguments[0], str) and arguments[1] in ("r", "rb", None):
            _opened.add(os.path.abspath(arguments[0]))

    sys.addaudithook(note)


def _is_users(file: Path) -> bool:
    """Return whether a file is neither Python's, nor of an installed package, nor memlib's own."""
    standard = Path(os.__file__).parent
    return (
        file.suffix not in (".pyc", ".so")
        and file.is_file()
        and not (_is_installed(file) or file.is_relative_to(standard) or any(map(file.is_relative_to, MEMLIBS)))
        and not str(file).startswith(("/proc/", "/sys/", "/dev/", "/etc/"))
    )


def files_run(modules: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each file that this process imported or read when it imported modules, by path."""
    return dict(sorted(file for module in modules for file in _ran.get(module, {}).items()))


@functools.cache
def identity_of(module: str) -> str:
    """Return an identifier of the code of a module that a recipe names, as it was when this process first asked for it.

    For an installed package, it is the name and version; for other code, a digest (from sha256) of the module's file and of
    `imported_files`; "unknown" if the module's file cannot be found. No code is run.
    """
    return identity_now(module)


def identity_now(module: str) -> str:
    """Return the identifier of a module's code as it is now, see `identity_of`."""
    origin = _origin(module)
    if origin is None:
        return "unknown"
    if _is_installed(origin):
        found = importlib.metadata.packages_distributions().get(module.partition(".")[0])
        return f"{found[0]} {importlib.metadata.version(found[0])}" if found else "unknown"
    return _digest_of([origin, *imported_files(module)])


def imported_files(module: str) -> list[Path]:
    """Return the files that a module of the user's imports, directly or not, from its own folder and its packages.

    The folder is the one in which Python finds the module, so that the files depend neither on what else is on Python's path
    nor on what has been imported. No code is run; a file that cannot be read or parsed imports nothing.
    """
    origin = _origin(module)
    if origin is None or _is_installed(origin):
        return []
    folder = origin.parents[module.count(".") + (origin.name == "__init__.py")]
    files: dict[str, Path] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        found = None if name in files else _file_of(name, folder)
        if found is not None and not any(map(found.is_relative_to, MEMLIBS)):
            files[name] = found
            with contextlib.suppress(OSError, ValueError, SyntaxError):
                waiting += _imported(name, found)
    return [file for name, file in files.items() if name != module]


def _file_of(module: str, folder: Path) -> Path | None:
    """Return the file of a module below a folder; None if there is none."""
    place = folder.joinpath(*module.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def version_of(module: str, file: Path) -> str:
    """Return the digest of a module's file and, if it imports other files of the user's, of all of them, for use in keys."""
    others = imported_files(module)
    return file_digest(file) if not others else f"{file_digest(file)} {_digest_of(others)}"


def _digest_of(files: Iterable[Path]) -> str:
    try:
        digests = sorted(file_digest(file) for file in files)
    except OSError:
        return "unknown"
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:32]


def _is_installed(file: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def _origin(module: str) -> Path | None:
    """Return the source file of a module without importing its packages; None if there is none."""
    path: list[str] | None = sys.path
    origin = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path, origin = list(spec.submodule_search_locations or []), spec.origin
    return None if origin is None or not origin.endswith(".py") else Path(origin)


def imported_from(node: ast.ImportFrom, package: str) -> str:
    """Return the module that a `from` statement in a package's module imports from."""
    parts = package.split(".")
    above = parts[: len(parts) - node.level + 1] if node.level else []
    return ".".join([*above, *filter(None, [node.module])])


def _imported(module: str, file: Path) -> Iterator[str]:
    """Yield the modules that a file may import, with the packages that contain them."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = imported_from(node, package)
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
