"""Flows of the audits, each reading like its paper's method, and the `memlib` command.

`flows.run` runs an audit on Prefect and Ray.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.api import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    if name == "run":  # loads Prefect only when it is used
        return importlib.import_module("flows.api").run
    raise AttributeError(f"module 'flows' has no attribute {name!r}")
