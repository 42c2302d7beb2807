"""memlib: memorization audits of neural networks.

The library half of the project: data, models, training, observation, statistics and the audits themselves. It depends
on neither Prefect nor Ray, and every part can be used from a notebook:

    run = memlib.run("smoke")               run an audit in this process
    plan = memlib.plan("smoke")             list what that run would compute
    memlib.list_runs()                      list the finished runs of a store
    run = memlib.open("3f2a")               open a finished run
    run.verdict, run.summary, run.units, run.report
    memlib.diff("3f2a", "91c0")             compare the recipes and findings of two runs
    memlib.check(run, fail_on="shown")      decide whether a build passes
    memlib.verify()                         check that nothing in a store has changed

The functions are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memlib.running.api import check, diff, list_runs, plan, run, verify
    from memlib.runs.run import open

__version__ = "0.1.0"
__all__ = ["__version__", "check", "diff", "list_runs", "open", "plan", "run", "verify"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("memlib.runs.run" if name == "open" else "memlib.running.api"), name)
    raise AttributeError(f"module 'memlib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
