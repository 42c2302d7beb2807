"""Around every audit that Prefect arranges: its store, who asked for what, how far it is, the end of Ray."""

import functools
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from rich.console import Console

from flows.audits import Body, body_of, check_stages
from flows.requests import announced
from memlib import upkeep
from memlib.audit import Audit
from memlib.audits import AUDITS
from memlib.errors import RunError, UserError
from memlib.records import RunRecord
from memlib.specs import Resources, Spec
from memlib.store import Store
from tasks.cluster import as_lost, stop_ray
from tasks.display import is_gone
from tasks.runtime import Context, Shared
from tasks.stage import StageRunner

LONGEST_NAME = 120  # characters
TAG = "memlib"  # of runs on a Prefect server; deployments/automations.yaml looks after these
_finished: ContextVar[list[RunRecord] | None] = ContextVar("finished", default=None)
_shared: ContextVar[Shared | None] = ContextVar("shared", default=None)


@functools.cache
def flow_of(audit: Audit) -> Any:
    """Return the Prefect flow of an audit: its signature is the form in Prefect's UI, its parameters are plain JSON."""

    def run(
        recipe: Any,
        store: str,
        resources: Resources = Resources(),
        quiet: bool = False,
        force: tuple[str, ...] = (),
        cascade: bool = False,
    ) -> RunRecord:
        """Args:
            recipe: what is asked for; `memlib schema` shows its keys.
            store: folder or s3:// prefix for artifacts, results and reports.
            resources: machines; changes no result.
            quiet: no progress.
            force: stages that are computed again, though they are there.
            cascade: train models again whose inputs were made again and came out otherwise.

        Returns:
            the run's manifest.
        """
        return carry_out(audit.name, body_of(audit), recipe, store, resources, quiet=quiet, force=force, cascade=cascade)

    run.__name__ = run.__qualname__ = audit.name.replace("-", "_")
    run.__annotations__["recipe"] = audit.recipe
    run.__doc__ = f"{audit.question}\n\n{inspect.cleandoc(run.__doc__ or '')}"
    return flow(name=audit.name, flow_run_name=_title, validate_parameters=True)(run)


def _title() -> str:
    """What Prefect calls a run: as its recipe does."""
    recipe = flow_run.parameters.get("recipe")
    return str(getattr(recipe, "title", recipe))[:LONGEST_NAME]


def carry_out(
    audit: str,
    body: Body,
    recipe: Spec,
    store: str,
    resources: Resources,
    *,
    quiet: bool,
    force: Sequence[str],
    cascade: bool,
) -> RunRecord:
    """Runs an audit's body in a store, and returns the run's manifest.

    Args:
        audit: its name on the command line.
        body: takes a runner and the recipe, returns the run's manifest.
        recipe, resources: what is asked for.
        store: folder or s3:// prefix.
        quiet: no progress.
        force: stages that are computed again, though they are there.
        cascade: train models again whose inputs were made again and came out otherwise.
    """
    opened = Store(store)
    check_stages(AUDITS[audit], force)
    within = _shared.get()
    if within is None:
        opened.check_writable()
        check_stages(AUDITS[audit], resources.stages)  # of a sweep, other cells may have the stage
    computed: list[str] = []
    console = Console(stderr=True, markup=False, highlight=False)
    with announced(opened, audit, recipe, resources, computed, say=console.print) as run:
        title = str(getattr(recipe, "title", ""))
        shared = within or Shared()
        context = Context(
            opened,
            resources,
            quiet,
            run=run,
            title=title,
            forced=frozenset(force),
            cascade=cascade,
            shared=shared,
            computed=computed,
        )
        for line in AUDITS[audit].limits(recipe):
            context.warn(line)
        try:
            manifest = _run_of(body(StageRunner(context), recipe))
        except BaseException as caught:
            error = as_lost(caught)
            said = str(error) if isinstance(error, UserError | RunError | OSError) else type(error).__name__
            context.journal.end("failed" if isinstance(error, Exception) else "stopped", said)
            if error is caught:
                raise
            raise error from caught
        finally:
            if within is None:
                stop_ray()
        context.journal.end("completed")
    if within is None:
        upkeep.let_go(opened, shared.passing, resources, say=context.note)
    if (finished := _finished.get()) is not None:
        finished.append(manifest)
    return manifest


@contextmanager
def sharing(shared: Shared) -> Iterator[None]:
    """What is carried out within goes by the turns of one sweep, which itself ends Ray."""
    token = _shared.set(shared)
    try:
        yield
    finally:
        _shared.reset(token)


def through_prefect(flow: Any, *arguments: Any) -> RunRecord:
    """Runs an audit's flow; where Prefect's server goes away, what is left of it runs without, and is not done twice."""
    if is_gone():
        return _run_of(flow.fn(*arguments))
    finished: list[RunRecord] = []
    token = _finished.set(finished)
    try:
        return _run_of(flow(*arguments))
    except Exception as error:
        if isinstance(error, UserError | RunError) or not is_gone(error):
            raise
        return finished[-1] if finished else _run_of(flow.fn(*arguments))
    finally:
        _finished.reset(token)


def _run_of(found: Any) -> RunRecord:
    """What carries out an audit returns its run; Prefect's flows have no types, and a body returns None in a plan."""
    assert isinstance(found, RunRecord)
    return found
