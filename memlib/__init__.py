"""memlib: memorization audits of neural networks.

The library half of the project: data, models, training, observation, statistics and the audits themselves. It depends
on neither Prefect nor Ray, and every part can be used from a notebook:

    run = memlib.run("smoke")               run an audit in this process
    plan = memlib.plan("smoke")             list what that run would compute
    run = memlib.open("3f2a")               open a finished run
    run.verdict, run.summary, run.units, run.report

The order of each audit's stages is defined in `flows`, one layer above; `run` and `plan` are therefore imported from there
when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.in_process import plan, run
    from memlib.opened import open

__version__ = "0.1.0"
__all__ = ["__version__", "open", "plan", "run"]

_LAZY = {"run": "flows.in_process", "plan": "flows.in_process", "open": "memlib.opened"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'memlib' has no attribute {name!r}")
