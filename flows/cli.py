"""The `memlib` command."""

import contextlib
import json
import os
import secrets
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter
from rich.console import Console
from rich.table import Table

import memlib
from flows import first_steps, store_commands
from flows.audits import check_stages, resolved
from flows.first_steps import check_prefect
from flows.gate import check
from flows.owner import export, ids
from flows.recipes import load_recipe, origin_of, overridden, printed_recipe, shipped_recipes, validate
from flows.store_commands import DEFAULT_STORE, JsonOption, StoreOption, find_asked, opened_store, print_run
from flows.supervised import TRY_AGAIN
from memlib import code
from memlib.audits import AUDITS, PACKAGES, audit_of, published_tables
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError
from memlib.journal import log_as_asked
from memlib.plain import brief
from memlib.specs import Resources, Spec
from memlib.store import Store


def _questions() -> str:
    """Return what each audit asks, for --help alone: nothing else waits for the audits to be imported."""
    if not {"-h", "--help"} & set(sys.argv):
        return ""
    return " ".join(["Which audit.", *(f"{name}: {audit.question}" for name, audit in AUDITS.items())])


if TYPE_CHECKING:
    AuditName = str
else:
    AuditName = Annotated[Literal[tuple(PACKAGES)], Parameter(help=_questions())]
SetOption = Annotated[Sequence[str], Parameter(name="--set", negative="")]
CascadeOption = Annotated[bool, Parameter(negative="")]
ForceOption = Annotated[Sequence[str], Parameter(name="--force-stage", negative="")]

app = App(
    name="memlib",
    help="Memorization audits of neural networks: what does a model remember of its training data?",
    version=memlib.__version__,
    version_flags=["--version"],
    result_action="return_value",
)
console = Console(highlight=False, markup=False)


COMMANDS: dict[str, Callable[..., Any]] = {
    **store_commands.COMMANDS,
    **first_steps.COMMANDS,
    "check": check,
    "ids": ids,
    "export": export,
}
for name, function in COMMANDS.items():
    app.command(function, name=name)


@app.command
def run(
    audit: AuditName,
    /,
    *,
    recipe: str,
    set_: SetOption = (),
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    cascade: CascadeOption = False,
    rehash: Annotated[bool, Parameter(negative="")] = False,
    quiet: bool = False,
    json_: JsonOption = False,
) -> None:
    """Run an audit: split, train, observe, score, report. What the store holds already is not done again.

    Killed or failed, run the same command: finished stages are reused and training resumes where it was saved.

    Parameters
    ----------
    recipe
        The name of a shipped recipe (see `memlib recipes`) or the path of a YAML file.
    set_
        Change a value of the recipe, as in --set training.epochs=50; may be given several times.
        Machines are set as in --set resources.workers_per_model=2.
    store
        Folder or s3:// prefix for artifacts, results and reports.
    force_stage
        Compute a stage again though it is there, by its name in `memlib plan`; may be given several times.
    cascade
        Train models again whose inputs were made again and came out otherwise. Cheaper stages need no such word.
    rehash
        Read every file of the data again, whatever its size and times say of a change.
    quiet
        No progress, only the result.
    json_
        Print the run's manifest as JSON.
    """
    if rehash:
        from memlib.data.examples import REHASH  # loads Pillow

        os.environ[REHASH] = "1"
    spec, resources = _asked(audit, recipe, set_)
    code.allow(code.modules_in(spec.model_dump(mode="json")))  # whoever gives a recipe to this command may run its code
    _carry_out(audit, spec, resources, store, quiet=quiet or json_, force=force_stage, cascade=cascade, as_json=json_)


def _asked(audit: str, recipe: str, settings: Sequence[str]) -> tuple[Spec, Resources]:
    """Return the recipe, which must be for the audit, and the resources."""
    content, machines = load_recipe(recipe, settings)
    named = audit_of(str(content.get("audit", audit)))
    if named != audit:
        raise UserError(f"recipe {recipe} is for the {named} audit, not {audit}")
    spec = validate(AUDITS[audit].recipe, resolved(AUDITS[audit], content), origin=partial(origin_of, recipe, settings))
    return spec, validate(Resources, machines, origin=lambda place: origin_of(recipe, settings, ["resources", *place]))


def _carry_out(
    audit: str,
    spec: Spec,
    resources: Resources,
    store: str,
    *,
    quiet: bool,
    force: Sequence[str] = (),
    cascade: bool = False,
    as_json: bool = False,
) -> None:
    log_as_asked()
    opened = Store(store)
    opened.check_writable()
    check_stages(AUDITS[audit], [*force, *resources.stages])
    from flows.planned import finished, has_server  # loads the audits

    run = None
    if not force and not has_server():
        run = finished(AUDITS[audit], spec, opened, resources, say=lambda line: _say(f"warning: {line}"))
    if run is None:
        with _server_starting():
            check_prefect()
            from prefect import tags

            from flows.running import TAG, flow_of, through_prefect  # loads torch, while the server starts

            flow = flow_of(AUDITS[audit])
        with tags(TAG):
            run = through_prefect(flow, spec, opened.uri, resources, quiet, tuple(force), cascade)
    if as_json:
        print(json.dumps(run.model_dump(), indent=1))
    else:
        print_run(opened, run)


@app.command
def plan(
    audit: AuditName,
    /,
    *,
    recipe: str,
    set_: SetOption = (),
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    json_: JsonOption = False,
) -> None:
    """Say what a run would do: every stage with its key, whether the store has it, and what it may cost.

    Costs are estimated from the artifacts in the store that are most alike. Keys that depend on what is not there yet are
    not known before it is. Nothing is computed or written.

    Parameters
    ----------
    audit
        Which audit; see `memlib run`.
    recipe
        The name of a shipped recipe or the path of a YAML file.
    set_
        Change a value of the recipe, as in --set training.epochs=50.
    store
        Folder or s3:// prefix.
    force_stage
        A stage that would be computed again though it is there.
    json_
        Print the plan as JSON.
    """
    spec, resources = _asked(audit, recipe, set_)
    check_stages(AUDITS[audit], [*force_stage, *resources.stages])
    from flows.planned import plan as planned

    found = planned(AUDITS[audit], spec, store, resources, force=force_stage)
    if json_:
        print(json.dumps(found.as_json(), indent=1))
    else:
        store_commands.print_plan(found)


@app.command
def resume(
    run_id: str,
    /,
    *,
    set_: SetOption = (),
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    cascade: CascadeOption = False,
    quiet: bool = False,
    json_: JsonOption = False,
) -> None:
    """Resume a run that was killed or failed, or rebuild the missing and damaged artifacts of a finished one.

    Parameters
    ----------
    run_id
        The run's id, or enough of its beginning, as `memlib runs` lists it.
    set_
        Change the machines, as in --set resources.workers_per_model=2; the recipe stays.
    store
        Folder or s3:// prefix that the run was started in.
    force_stage
        Compute a stage again though it is there.
    cascade
        Train models again whose inputs were made again and came out otherwise. Cheaper stages need no such word.
    quiet
        No progress, only the result.
    json_
        Print the run's manifest as JSON.
    """
    other = [setting for setting in set_ if not setting.startswith("resources.")]
    if other:
        raise UserError(f"--set {other[0]} would make it another run; only resources can be changed, see memlib run")
    opened = opened_store(store)
    found = find_asked(opened, run_id)
    machines = overridden({"resources": found.resources}, set_)["resources"]
    audit = audit_of(found.audit)
    spec, resources = validate(AUDITS[audit].recipe, found.recipe), validate(Resources, machines)
    _carry_out(audit, spec, resources, store, quiet=quiet or json_, force=force_stage, cascade=cascade, as_json=json_)


@app.command
def recipes(name: str | None = None, /, *, json_: JsonOption = False) -> None:
    """List the shipped recipes, or print one.

    Parameters
    ----------
    name
        A recipe to print in full, with what it extends filled in.
    json_
        Print as JSON instead of YAML or a table.
    """
    if json_:
        found = {key: load_recipe(key)[0] for key in ([name] if name is not None else shipped_recipes())}
        print(json.dumps(found, indent=1))
        return
    if name is not None:
        print(printed_recipe(name), end="")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    shown = ""
    for key in shipped_recipes():
        content, _ = load_recipe(key)
        if content["audit"] != shown:
            shown = content["audit"]
            if table.row_count:
                table.add_row()
            table.add_row(audit_of(shown), AUDITS[audit_of(shown)].question, style="bold")
        table.add_row(f"  {key}", content.get("title", ""))
    console.print(table)


@app.command
def schema(what: str | None = None, /, *, json_: JsonOption = False) -> None:
    """Print the meaning of every column of the results, or the JSON schema of a recipe.

    Parameters
    ----------
    what
        summary, units, curves (all of them by default), or an audit's name for its recipe.
    json_
        Print the columns as JSON; a recipe's schema always is.
    """
    if what is not None and what in AUDITS:
        print(json.dumps(AUDITS[what].recipe.model_json_schema(), indent=1))
        return
    published = published_tables()
    if what is not None and what not in published:
        raise UserError(f"no table or audit {what!r}; there are {', '.join([*published, *AUDITS])}")
    if json_:
        tables = {name: list(published[name].items()) for name in ([what] if what else published)}
        print(json.dumps({name: [_described(audit, t) for audit, t in of] for name, of in tables.items()}, indent=1))
        return
    for name in [what] if what else published:
        for audit, table in published[name].items():
            of = f", audit {audit}" if audit else ""
            console.print(f"{name} (version {table.version}{of}): {table.meaning}", style="bold")
            console.print(f"results/table={name}/audit={audit or '*'}/run=*/part-*.parquet", style="dim")
            grid = Table(box=None, pad_edge=False)
            for heading in ("column", "type", "unit", "meaning"):
                grid.add_column(heading)
            for column in table.columns:
                grid.add_row(column.name, str(column.type), column.unit, column.meaning)
            console.print(grid)
            console.print()


def _described(audit: str, table: Any) -> dict[str, Any]:
    columns = [{"name": c.name, "type": str(c.type), "unit": c.unit, "meaning": c.meaning} for c in table.columns]
    return {"audit": audit, "version": table.version, "meaning": table.meaning, "keys": list(table.keys), "columns": columns}


@app.command
def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print what completes memlib's commands in a shell.

    For this shell alone: eval "$(memlib completion bash)", or zsh; memlib completion fish | source. To keep it, write it to
    where your shell looks for completions.
    """
    print(app.generate_completion(shell=shell))


@contextlib.contextmanager
def _server_starting() -> Iterator[None]:
    """Has Prefect start the API it would start anyway, when none is configured, while we load torch and the recipe.

    The thread is always waited for: Python kills those that outlive it, and C++ that is being killed aborts.
    """
    unwanted = threading.Event()
    servers = []

    def start() -> None:
        if os.environ.get("PREFECT_API_URL"):
            return
        with contextlib.suppress(Exception):  # if it cannot start, the flow will say so
            from prefect.context import refresh_global_settings_context
            from prefect.server.api.server import SubprocessASGIServer
            from prefect.settings import PREFECT_API_URL

            if not PREFECT_API_URL.value() and not unwanted.is_set():
                password = f"memlib:{secrets.token_hex(32)}"  # or anybody on this machine could read and cancel the run
                os.environ |= {"PREFECT_SERVER_API_AUTH_STRING": password, "PREFECT_API_AUTH_STRING": password}
                os.environ.setdefault("PREFECT_CLIENT_MAX_RETRIES", "1")  # it is on this machine: it answers, or is gone
                refresh_global_settings_context()
                servers.append(SubprocessASGIServer())
                servers[0].start()

    thread = threading.Thread(target=start)
    thread.start()
    try:
        yield
    except BaseException:
        unwanted.set()
        while thread.is_alive():
            for server in servers:
                server.stop()
            thread.join(timeout=0.1)
        raise
    thread.join()


def _quiet_prefect() -> None:
    """Prefect without its chatter, with time enough to start its own API when no server is configured, and beating."""
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")  # what deployments/automations.yaml waits for


def _reach_this_machine_directly() -> None:
    """Exempt this machine from proxies, which do not lead to the servers that Ray and Prefect start on it."""
    said = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in said.split(",") if host.strip()]
    if "*" not in hosts:
        hosts += [host for host in ("127.0.0.1", "localhost", "::1") if host not in hosts]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def _interrupt(*_: object) -> None:
    """SIGTERM and SIGHUP as Ctrl-C: Ray and the Prefect API that this run started end with it.

    Once: timeout(1) sends two, and the second would end what the first has begun.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _say(text: str) -> None:
    """A last line, for whoever is still there: the terminal may be what has gone away."""
    with contextlib.suppress(OSError):
        print(brief(text), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status.

    A user's mistake and an expected fault end in one or two lines and status 2, or 75 where the same command, run again, goes
    on; a signal in 130.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, _interrupt)
    os.umask(0o077)  # what any library writes is ours alone; the store says for itself who may read it
    _quiet_prefect()
    _reach_this_machine_directly()
    warnings.filterwarnings("ignore", module=r"torch\b")  # they speak to developers, between our own lines
    try:
        status = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:  # an option that is none, or lacks its value
        _say(f"memlib: {' '.join(str(error).split())} (see memlib --help)")
        return 2
    except (EngineLost, StoreUnreachable) as error:
        _say(f"memlib: {error}")
        return TRY_AGAIN
    except (UserError, RunError) as error:
        _say(f"memlib: {error}")
        return 2
    except BrokenPipeError:  # whoever reads our output has seen enough, as in memlib runs --json | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a lost network, a folder that is a file
        _say(f"memlib: {type(error).__name__}: {error}")
        return 2
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not (isinstance(error.code, int) and error.code > 128):  # no signal of Ray's
            raise
        _say("memlib: stopped; run the same command to go on, or memlib resume")
        return 130
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
