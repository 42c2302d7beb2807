"""The flows that deployments run: one per audit, and one for any audit. Their signature is the form in Prefect's UI.

Prefect's runner, when it is sent SIGTERM, neither ends nor stops taking runs, and each run that it takes crashes at once;
here it ends. A script that serves a flow outside of `if __name__ == "__main__":` is imported again by each run.
"""

import ast
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import Flow, flow, runtime, tags
from prefect.context import FlowRunContext
from prefect.states import Completed, Crashed, Failed

from flows.engine import TAG, flow_of
from memlib.audits import AUDITS, audit_of
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError
from memlib.pricing.beside import beside_plan, cost_table
from memlib.recipes.request import AuditRequest
from memlib.runs.garbage import metrics_by_stage
from memlib.runs.records import RunRecord
from memlib.specs import Resources
from memlib.specs.resources import RunOptions
from memlib.store import DEFAULT_STORE, STORE_VARIABLE, Store
from tasks.display import quietly
from tasks.reporting import show_costs


@flow(name="audit", validate_parameters=True)
def audit(
    recipe: str = "smoke",
    changes: dict[str, Any] = {},  # noqa: B006 - the form needs a JSON default, and it is never modified
    store: str = "",
    resources: Resources = Resources(),
) -> Any:
    """Run the audit that a recipe describes. Results that the store already holds are reused, so a rerun resumes.

    Args:
        recipe: The name of a shipped recipe, as listed by `memlib recipes`, or the path of a YAML file that the worker can
            read. It determines the audit.
        changes: Values of the recipe to override, by dotted key, as in {"training.epochs": 50}.
        store: An absolute folder or an s3:// prefix for artifacts, results and reports; by default MEMLIB_STORE in the
            worker's environment, from which credentials come, too.
        resources: Machine settings. Those that differ from the defaults override the recipe's. They do not affect results.

    Returns:
        The run's manifest or, after an error, a state with a one-line message: Crashed if a machine or the store was lost (an
        automation then starts the run again), else Failed.
    """
    return _run(recipe, changes, store, resources)


@functools.cache
def audit_flow(module: str) -> Flow[Any, Any]:
    """Return the Prefect flow of one audit, `flows.<audit>.<audit>`, which refuses recipes of other audits.

    Args:
        module: name of the audit's module in flows/.
    """
    named = AUDITS[audit_of(module)]

    def run(
        recipe: str,
        changes: dict[str, Any] = {},  # noqa: B006
        store: str = "",
        resources: Resources = Resources(),
    ) -> Any:
        return _run(recipe, changes, store, resources, named.name)

    run.__name__ = run.__qualname__ = module
    run.__module__ = f"flows.{run.__name__}"  # the place from which workers load it
    _, _, parameters = (audit.fn.__doc__ or "").partition("\n")
    run.__doc__ = f"{named.question}\n{parameters}"
    return AuditFlow(run, name=named.name, validate_parameters=True)


def check_guarded(main: Any = None) -> None:
    """Refuse to serve from a script without a guard, which each run that it starts would import and serve again.

    Args:
        main: the module of the script; by default the one that this process runs.

    Raises:
        UserError: for such a script.
    """
    message = 'put the call of serve below `if __name__ == "__main__":`, as each run imports this script'
    if multiprocessing.parent_process() is not None:
        raise UserError(message)
    path = getattr(main or sys.modules.get("__main__"), "__file__", None)
    if path is None or Path(path).suffix != ".py" or not Path(path).is_file():  # python -c, -m, or a notebook
        return
    tests = [node.test for node in ast.parse(Path(path).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    if not any("__name__" in ast.dump(test) for test in tests):
        raise UserError(f"{Path(path).name}: {message}")


@contextlib.contextmanager
def ending_on_sigterm() -> Iterator[None]:
    """Let Prefect's runner end on SIGTERM as on Ctrl-C in the block."""
    from prefect.runner import Runner

    handle = Runner.handle_sigterm
    Runner.handle_sigterm = lambda self, *_, **__: signal.raise_signal(signal.SIGINT)
    try:
        yield
    finally:
        Runner.handle_sigterm = handle


class AuditFlow(Flow[Any, Any]):
    """A flow that refuses to be served by a script that its runs would serve again, and whose runner ends on SIGTERM."""

    def serve(self, *arguments: Any, **named: Any) -> None:
        """Serve the flow as a deployment of its own, see Prefect's `Flow.serve`."""
        check_guarded()
        with ending_on_sigterm():
            super().serve(*arguments, **named)


def _run(recipe: str, changes: dict[str, Any], store: str, resources: Resources, expected: str = "") -> Any:
    try:
        store = store or os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
        request = AuditRequest.read(recipe, changes, resources, expected=expected)
        _check_lasting(store)
        with tags(TAG):
            own = flow_of(request.audit)
            record = (own.fn if expected else own)(request.recipe, store, request.resources, RunOptions(quiet=True))
            if FlowRunContext.get() is not None:
                quietly(show_costs, record, [*cost_table(_costs(Store(store), record))])
            return Completed(message=_sentence(record), data=record)
    except (EngineLost, StoreUnreachable) as error:
        return Crashed(message=str(error), data=error)
    except (UserError, RunError) as error:
        return Failed(message=str(error), data=error)
    except OSError as error:  # a full disk, a folder that is a file
        return Failed(message=f"{type(error).__name__}: {error}", data=error)


def _costs(store: Store, record: RunRecord) -> list[dict[str, Any]]:
    """Return what a run's stages took, beside the plan where one can be made."""
    try:
        return beside_plan(store, record)
    except Exception:  # whatever data or user code do in a plan: the run has ended well
        return metrics_by_stage(store, record)


def _sentence(record: RunRecord) -> str:
    """Say which run ended, and with which verdict."""
    verdict = "" if record.verdict is None else f" {record.verdict.sentence}"
    return f"{record.title}:{verdict} (memlib show {record.run})"


def _check_lasting(store: str) -> None:
    """Refuse a store in the worker's temporary folder, which is deleted after the run."""
    if runtime.deployment.id is not None and "://" not in store and not Path(store).is_absolute():
        raise UserError(f"store {store!r} lies in a folder that is deleted after the run; use an absolute path or s3://")
