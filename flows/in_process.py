"""`memlib.run` and `memlib.plan`: audits in the calling process, without Prefect and Ray."""

import sys
import warnings
from collections.abc import Mapping
from typing import Any

from flows.asked import AnyRecipe, read
from flows.audits import body_of
from flows.planned import finished
from flows.planned import plan as planned
from flows.requests import announced
from memlib import code
from memlib.errors import UserError
from memlib.opened import Run
from memlib.planning import Plan
from memlib.running import PlainRunner
from memlib.stage import AnyStage
from memlib.store import Ref, Store, chosen_store
from memlib.upkeep import let_go


def run(
    recipe: AnyRecipe,
    *,
    store: str | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str = "cpu",
    quiet: bool = False,
) -> Run:
    """Run an audit in this process, or continue one that was interrupted. Artifacts in the store are reused.

    Stages run one after another on one device; `flows.run` is the same call on Prefect and Ray. Limits of the recipe and
    peculiarities of the data are reported as Python warnings. A recipe that names code (`package.module:function`) runs that
    code.

    Args:
        recipe: name of a shipped recipe, path of a YAML file, or the recipe itself as a mapping or a spec.
        store: folder or s3:// prefix for artifacts, results and reports; by default MEMLIB_STORE, or memlib-store in
            the current folder.
        changes: values of the recipe to change, by dotted key, as in {"training.epochs": 50}.
        device: device on which PyTorch computes, such as "cpu" or "cuda".
        quiet: do not print a line to standard error for each computed stage.

    Returns:
        the finished run, with its verdict, tables and page.

    Raises:
        UserError: if the recipe, the data or the store cannot be used as they are.
        RunError: if a stage fails.
    """
    asked = read(recipe, changes)
    audit, spec, resources = asked.audit, asked.recipe, asked.resources
    if audit.holds_others:
        raise UserError(f"a {audit.name} runs its cells on Prefect and Ray: use flows.run")
    code.allow(code.modules_in(spec.model_dump(mode="json")))
    opened = Store(chosen_store(store))
    opened.check_writable()
    record = finished(audit, spec, opened, resources, say=_warn)
    if record is None:
        import torch

        if device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"device is {device!r}, but PyTorch finds no GPU on this machine; use 'cpu'")
        runner = _Announcing(opened, torch.device(device), resources, quiet=quiet)
        with announced(opened, audit.name, spec, resources, runner.computed, say=_warn):
            record = body_of(audit)(runner, spec)
        assert record is not None  # only plans return None
        for line in dict.fromkeys((*audit.limits(spec), *runner.warnings)):
            _warn(line)
        let_go(opened, runner.passing, resources, say=_warn)
    return Run(opened, record)


def plan(recipe: AnyRecipe, *, store: str | None = None, changes: Mapping[str, Any] | None = None) -> Plan:
    """List what an audit would compute: its stages, their keys, which of them the store holds, and estimated costs.

    Nothing is computed or written to the store, and no code of the recipe runs. A data set that the recipe says to download
    is downloaded, and a missing secret file for canaries is created.

    Args:
        recipe, store, changes: as for `memlib.run`.

    Raises:
        UserError: if the recipe or the store cannot be used as they are.
    """
    asked = read(recipe, changes)
    return planned(asked.audit, asked.recipe, chosen_store(store), asked.resources)


class _Announcing(PlainRunner):
    """A runner that prints the title of each stage that it computes."""

    def __init__(self, *arguments: Any, quiet: bool) -> None:
        super().__init__(*arguments)
        self._quiet = quiet

    def _make(self, stage: AnyStage, ref: Ref) -> None:
        if not self._quiet:
            print(f"{stage.title} ({ref})", file=sys.stderr, flush=True)
        super()._make(stage, ref)


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)
