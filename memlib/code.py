"""Code that recipes name: which of it this machine imports, and what can be said of it without running it.

Recipes and stores are code: a recipe names functions that are imported and called. Who writes one decides what runs. So the
machine decides which modules may be named: MEMLIB_CODE holds their names, or the beginnings of them up to a dot, separated by
commas. See docs/security.md.
"""

import ast
import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from memlib.errors import UnknownUntilRun, UserError

VARIABLE = "MEMLIB_CODE"
NAMED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):[A-Za-z_]\w*", re.ASCII)
_planning: ContextVar[bool] = ContextVar("planning", default=False)


def modules_in(content: Any) -> Iterator[str]:
    """The modules that a recipe's content names as package.module:function, wherever they stand in it."""
    if isinstance(content, str):
        if found := NAMED.fullmatch(content):
            yield found[1]
    elif isinstance(content, Mapping):
        yield from (name for value in content.values() for name in modules_in(value))
    elif isinstance(content, Sequence):
        yield from (name for value in content for name in modules_in(value))


def allow(modules: Iterable[str]) -> None:
    """Allows modules in this process and those that it starts, beside what MEMLIB_CODE says."""
    said = os.environ.get(VARIABLE, "")
    os.environ[VARIABLE] = ",".join(dict.fromkeys([*filter(None, said.split(",")), *modules]))


def is_allowed(module: str) -> bool:
    """Whether this machine lets recipes name code of a module."""
    said = [name.strip() for name in os.environ.get(VARIABLE, "").split(",")]
    return any(name and (module == name or module.startswith(f"{name}.")) for name in said)


@contextlib.contextmanager
def planning() -> Iterator[None]:
    """Within it, no code that a recipe names is run."""
    token = _planning.set(True)
    try:
        yield
    finally:
        _planning.reset(token)


def load(named: str) -> Any:
    """The function `package.module:function`.

    Raises:
        UserError: when this machine does not allow it, or it cannot be imported or called.
        UnknownUntilRun: while a run is only planned.
    """
    module, name = named.split(":")
    if _planning.get():
        raise UnknownUntilRun(f"what {named} makes: planning runs no code of recipes")
    if not is_allowed(module):
        raise UserError(
            f"the recipe names code, {named}, that this machine does not run: if you trust it, say {VARIABLE}={module}, or "
            "give the recipe's file to memlib run; see docs/security.md"
        )
    try:
        found = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise UserError(f"cannot import {module!r} ({problem}); is its folder on PYTHONPATH?") from error
    if not callable(found):
        raise UserError(f"{module} has no function {name!r}")
    return found


def source_file(named: str) -> Path | None:
    """The file that defines `package.module:function`, found without running any of it; None where that takes more.

    A function that is wrapped, or imported from elsewhere, is known only once it is imported.
    """
    module, name = named.split(":")
    path: list[str] | None = sys.path
    origin = None
    parts = module.split(".")
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        if spec is None:
            return None
        path, origin = list(spec.submodule_search_locations or []), spec.origin
    if origin is None or not origin.endswith(".py"):
        return None
    try:
        body = ast.parse(Path(origin).read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return None
    kinds = (ast.FunctionDef, ast.ClassDef)
    defined = [node for node in body if isinstance(node, kinds) and node.name == name and not node.decorator_list]
    return Path(origin) if len(defined) == 1 else None
