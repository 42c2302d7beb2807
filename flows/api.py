"""`flows.run`, and the command line's run: an audit as a Prefect flow whose stages are computed on Ray."""

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from flows.cli.messages import say
from flows.environment import prepare_environment
from flows.prefect_server import check_prefect, ready_database
from memlib.audits.arrangement import check_stages
from memlib.errors import RunError, UserError
from memlib.recipes.named_files import require_files
from memlib.recipes.request import AnyRecipe, AuditRequest
from memlib.running.finished import finished, has_server, needs_workers
from memlib.runs.plans import given_plan, unrecorded
from memlib.runs.records import RunRecord
from memlib.runs.run import Run
from memlib.specs import Resources
from memlib.specs.resources import RunOptions
from memlib.store import Store, chosen_store


def run(
    recipe: AnyRecipe,
    *,
    store: str | None = None,
    changes: Mapping[str, Any] | None = None,
    resources: Resources | Mapping[str, Any] | None = None,
    force: Sequence[str] = (),
    cascade: bool = False,
    quiet: bool = False,
) -> Run:
    """Run an audit on Prefect and Ray, or continue one that was interrupted. Artifacts in the store are reused.

    Ray and Prefect's API are started for the run unless `resources["ray_address"]` or PREFECT_API_URL name running servers. A
    recipe that names code (`package.module:function`) runs that code.

    Args:
        recipe: name of a shipped recipe, path of a YAML file, or the recipe itself as a mapping or a spec.
        store: folder or s3:// prefix for artifacts, results and reports; by default MEMLIB_STORE, or memlib-store in
            the current folder.
        changes: values of the recipe to change, by dotted key, as in {"training.epochs": 50}.
        resources: machine settings, as in {"workers_per_model": 2}; they do not affect results.
        force: stages to recompute even if the store holds their artifacts.
        cascade: retrain models whose inputs were recomputed with a different result.
        quiet: do not show progress.

    Returns:
        the finished run, with its verdict, tables and page.

    Raises:
        UserError: if the recipe, the data or the store cannot be used as they are.
        RunError: if a stage fails, or Ray or the store is lost.
    """
    request = AuditRequest.read(recipe, changes or {}, resources)
    request.allow_code()
    prepare_environment()
    opened = Store(chosen_store(store))
    options = RunOptions(quiet=quiet, force=tuple(force), cascade=cascade)
    record = carry_out(request, opened, options, say=say)
    return Run(opened, record)


def carry_out(request: AuditRequest, store: Store, options: RunOptions, *, say: Callable[[str], None]) -> RunRecord:
    """Run an audit's flow in a store; if nothing is left to compute, publish the run again without Prefect.

    Args:
        request: the audit, its recipe and the machine settings.
        store: store for artifacts, results and reports.
        options: what the run prints and recomputes.
        say: called with the warnings of a run in which nothing is left to compute, and with one about its plan.
    """
    store.check_writable()
    check_stages(request.audit, [*options.force, *request.resources.stages])
    plan = given_plan(options)
    if not options.force and not has_server():
        record = finished(request.audit, request.recipe, store, request.resources, say=say, plan=plan)
        if record is not None:
            return record
    require_files(request.recipe)
    is_here = request.resources.ray_address is None  # a cluster runs already: there is nothing to start, and no plan to make
    early = is_here and needs_workers(request.audit, request.recipe, store, request.resources, force=options.force)
    with contextlib.ExitStack() as running:
        with _server_starting():
            check_prefect()
            from prefect import tags

            from flows.engine import TAG, flow_of, through_prefect  # loads the audits, while the server starts
            from tasks.cluster import ray_started

            flow = flow_of(request.audit)
            if early:
                running.enter_context(ray_started(request.resources))
        with tags(TAG):
            run = through_prefect(flow, request.recipe, store.uri, request.resources, options)
    for line in unrecorded(run, plan):
        say(line)
    return run


@contextlib.contextmanager
def _server_starting() -> Iterator[None]:
    """Start Prefect's local API server in a thread while torch and the recipe load, unless a server is configured.

    Prefect would start the same server later. The thread is always joined: Python kills threads that outlive the main
    thread, and C++ code killed in this way aborts the process.
    """
    unwanted, loaded = threading.Event(), threading.Event()
    servers: list[Any] = []
    problems: list[Exception] = []

    def start() -> None:
        with contextlib.suppress(Exception), contextlib.ExitStack() as loading:  # if it cannot start, the flow reports it
            loading.callback(loaded.set)
            if os.environ.get("PREFECT_API_URL"):
                return
            from prefect.context import refresh_global_settings_context
            from prefect.server.api.server import SubprocessASGIServer
            from prefect.settings import PREFECT_API_URL

            loading.close()
            if not PREFECT_API_URL.value() and not unwanted.is_set():
                password = f"memlib:{secrets.token_hex(32)}"  # else any user of this machine could read and cancel the run
                os.environ |= {"PREFECT_SERVER_API_AUTH_STRING": password, "PREFECT_API_AUTH_STRING": password}
                os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "1")  # a local server either answers or is gone
                refresh_global_settings_context()
                try:
                    with ready_database():
                        servers.append(SubprocessASGIServer())
                        servers[0].start()
                except (UserError, RunError) as error:
                    problems.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    try:
        loaded.wait()  # the server starts meanwhile; and of two threads that load Prefect at once, one finds it half done
        import torch  # noqa: F401

        yield
    except BaseException:
        unwanted.set()
        while thread.is_alive():
            for server in servers:
                server.stop()
            thread.join(timeout=0.1)
        raise
    thread.join()
    if problems:
        raise problems[0]
