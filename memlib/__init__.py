"""memlib: memorization audits of neural networks.

The library half of the project: data, models, training, observation, statistics and the audits themselves. It depends
on neither Prefect nor Ray, and every part can be used from a notebook:

    memlib.look("photos", "model.pt")       what can be asked of a model and data, with a first answer
    run = memlib.run("smoke")               run an audit in this process
    plan = memlib.plan("smoke")             list what that run would compute
    memlib.list_runs()                      list the finished runs of a store
    run = memlib.open("3f2a")               open a finished run
    run.verdict, run.summary, run.units, run.report
    memlib.diff("3f2a", "91c0")             compare the recipes and findings of two runs
    memlib.check(run, fail_on="shown")      decide whether a build passes
    memlib.gate("policy.yaml")              the same by a policy, for all runs that it requires
    memlib.index()                          write a page over all runs of a store
    memlib.forget(person="p17")             list what a store holds of a person, and erase it
    memlib.verify()                         check that nothing in a store has changed

The functions are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from memlib.version import VERSION as __version__

if TYPE_CHECKING:
    from memlib.audits.base import Audit
    from memlib.looking.api import look
    from memlib.objectives import Objective
    from memlib.pipeline.stage import Artifact, Stage
    from memlib.running.api import check, diff, forget, gate, index, list_runs, plan, run, verify
    from memlib.running.planning import Plan
    from memlib.runs.run import Run, open
    from memlib.specs import Spec
    from memlib.specs.base import Source
    from memlib.store import Store

_PLACES = {
    "memlib.audits.base": ("Audit",),
    "memlib.looking.api": ("look",),
    "memlib.objectives": ("Objective",),
    "memlib.pipeline.stage": ("Artifact", "Stage"),
    "memlib.running.api": ("check", "diff", "forget", "gate", "index", "list_runs", "plan", "run", "verify"),
    "memlib.running.planning": ("Plan",),
    "memlib.runs.run": ("Run", "open"),
    "memlib.specs": ("Spec",),
    "memlib.specs.base": ("Source",),
    "memlib.store": ("Store",),
}
__all__ = [
    "Artifact", "Audit", "Objective", "Plan", "Run", "Source", "Spec", "Stage", "Store", "__version__", "check", "diff",
    "forget", "gate", "index", "list_runs", "look", "open", "plan", "run", "verify",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'memlib' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
