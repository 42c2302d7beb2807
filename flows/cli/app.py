"""The `memlib` command."""

import _thread
import contextlib
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console
from rich.table import Table

import memlib
from flows.cli import dossier as dossiers
from flows.cli import start
from flows.cli import store as stored
from flows.cli.canaries import canaries
from flows.cli.forget import forget
from flows.cli.gate import check, gate, margins_of
from flows.cli.hooks import NO_HOOKS, Event, Hooks, reported
from flows.cli.overlap import overlap
from flows.cli.owner import export, ids
from flows.cli.scan import scan
from flows.cli.sharing import card, croissant, mlflow
from flows.cli.store import JsonOption, StoreOption, find_requested, opened_store, print_run
from flows.cli.supervisor import STOPPED, STOPPED_LINE, TRY_AGAIN, heedless
from flows.environment import prepare_environment
from flows.interrupts import interrupt, keep_interrupts
from memlib.audits import AUDITS, PACKAGES, audit_of, published_tables
from memlib.audits.arrangement import check_stages
from memlib.errors import EngineLost, RunError, StoreUnreachable, UserError
from memlib.recipes.files import load_recipe, overridden, printed_recipe, shipped_recipes, validate
from memlib.recipes.request import AuditRequest
from memlib.running.planning import Plan
from memlib.runs.erasures import check_recipe, erased_part
from memlib.runs.journal import log_as_asked
from memlib.runs.plans import content_of, read_plan, recipe_of, with_signature, write_plan
from memlib.runs.records import PlanFile, RunRecord
from memlib.sanitize import brief, plain
from memlib.specs import Resources
from memlib.specs.cores import cores
from memlib.specs.options import RunOptions
from memlib.store import DEFAULT_STORE, Store


def _what() -> str:
    """Return the help text of the first argument; only --help needs it, so that other commands do not import the audits."""
    if not {"-h", "--help"} & set(sys.argv):
        return ""
    audits = " ".join(f"{name}: {audit.question}" for name, audit in AUDITS.items())
    return f"A recipe: the name of a shipped one (memlib recipes) or a YAML file; or an audit, with --recipe. {audits}"


if TYPE_CHECKING:
    What = str
else:
    What = Annotated[Literal[tuple(PACKAGES)] | str, Parameter(help=_what(), show_choices=False)]  # audits are completed
RecipeOption = Annotated[str | None, Parameter(help="The recipe, if the first argument is an audit.")]
SetOption = Annotated[Sequence[str], Parameter(name="--set", negative="", show_default=False)]
CascadeOption = Annotated[bool, Parameter(negative="")]
VerboseOption = Annotated[bool, Parameter(name=("--verbose", "-v"), negative="")]
HooksOption = Annotated[Hooks, Parameter(name="*")]  # one option per hook
ForceOption = Annotated[Sequence[str], Parameter(name="--force-stage", negative="", show_default=False)]

MOMENT_SECONDS = 0.01

app = App(
    name="memlib",
    help="Memorization audits of neural networks: what does a model remember of its training data?",
    version=memlib.__version__,
    version_flags=["--version"],
    result_action="return_value",
)
console = Console(highlight=False, markup=False)


def run(
    what: What | None = None,
    /,
    *,
    recipe: RecipeOption = None,
    set_: SetOption = (),
    plan: Path | None = None,
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    cascade: CascadeOption = False,
    rehash: Annotated[bool, Parameter(negative="")] = False,
    quiet: bool = False,
    verbose: VerboseOption = False,
    json_: JsonOption = False,
    hooks: HooksOption = NO_HOOKS,
) -> None:
    """Run an audit: split, train, observe, score, report. Results that the store already holds are reused.

    After a crash or a failure, run the same command again: finished stages are reused, and training resumes from its last
    saved state.

    Parameters
    ----------
    set_
        Override a value of the recipe, as in --set training.epochs=50; may be given several times.
        Machine settings are overridden likewise, as in --set resources.workers_per_model=2.
    plan
        A plan that was frozen before (memlib plan --freeze): the run's manifest and page say whether the run follows it or
        where it departs. Without a recipe, that of the plan is run; locations of data are not part of it (use --set).
    store
        Folder or s3:// prefix for artifacts, results and reports.
    force_stage
        Recompute a stage even if the store holds its result; `memlib plan` names the stages; may be given several times.
    cascade
        Retrain models whose inputs were recomputed with a different result. Cheaper stages are recomputed in any case.
    rehash
        Read every data file again, even if its size and modification time are unchanged.
    quiet
        Print only the result, no progress.
    verbose
        Show the keys of artifacts, and details of the progress.
    json_
        Print the run's manifest as JSON.
    """
    if rehash:
        from memlib.data.examples import REHASH  # loads Pillow

        os.environ[REHASH] = "1"
    file = None if plan is None else read_plan(plan)
    if what is None:
        if file is None:
            raise UserError("name a recipe (memlib recipes lists the shipped ones), or a frozen plan with --plan")
        request = AuditRequest.read(recipe_of(file), set_)
    else:
        request = AuditRequest.of_command(what, recipe, set_)
    request.allow_code()
    given = "" if file is None else content_of(file).decode()
    options = RunOptions(quiet or json_, verbose, tuple(force_stage), cascade, given)
    _carry_out(request, store, options, hooks, as_json=json_)


def _carry_out(request: AuditRequest, store: str, options: RunOptions, hooks: Hooks, *, as_json: bool) -> None:
    from flows.api import carry_out  # loads the audits

    hooks.check()
    log_as_asked()
    opened = Store(store)
    event = Event(request.audit.name, str(getattr(request.recipe, "title", "")), opened.uri)
    with reported(hooks, event) as ending:
        run = carry_out(request, opened, options, say=lambda line: _say(f"warning: {line}"))
        ending.learn(run=run.run)
        if run.verdict is not None:
            ending.learn(verdict=run.verdict.word, sentence=run.verdict.sentence)
    if as_json:
        print(json.dumps(run.model_dump(), indent=1))
    else:
        print_run(opened, run)


def plan(
    what: What,
    /,
    *,
    recipe: RecipeOption = None,
    set_: SetOption = (),
    policy: Path | None = None,
    baseline: str | None = None,
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    freeze: Path | None = None,
    key: Path | None = None,
    json_: JsonOption = False,
) -> None:
    """Show what a run would do: each stage with its key, whether the store already holds it, and its estimated cost.

    With --freeze, also write it down before the run, for memlib run --plan: recipe, thresholds, looks, digests of data and
    code, and the date. Give the file's digest to somebody else, or let them sign it (memlib sign --plan), before you run.

    Costs are estimated from the most similar artifacts in the store. Keys that depend on artifacts not yet computed cannot
    be shown. Nothing is computed, and nothing is written to the store; a data set that the recipe says to download is
    downloaded, and a missing secret file for canaries is created.

    Parameters
    ----------
    set_
        Override a value of the recipe, as in --set training.epochs=50.
    policy
        A policy of memlib gate: show, for its comparisons with the baseline, which margins the planned number of trainings
        can decide.
    baseline
        Id of the baseline's run, or a unique prefix of it.
    store
        Folder or s3:// prefix.
    force_stage
        A stage to recompute even if the store holds its result.
    freeze
        A new file for the frozen plan.
    key
        A file with your private key (see memlib sign), to sign the frozen plan.
    json_
        Print the plan as JSON; with --freeze, the frozen one.
    """
    if key is not None and freeze is None:
        raise UserError("--key signs a frozen plan: name its file with --freeze")
    request = AuditRequest.of_command(what, recipe, set_)
    if (policy is None) != (baseline is None):
        raise UserError("give --policy and --baseline together: the baseline shows by how much trainings differ")
    check_stages(request.audit, [*force_stage, *request.resources.stages])
    from memlib.running.finished import plan as planned

    steps = planned(request.audit, request.recipe, store, request.resources, force=force_stage)
    if policy is not None and baseline is not None:
        steps.limits += margins_of(request, policy, opened_store(store), baseline)
    file = None if freeze is None else _frozen(request, steps, freeze, key)
    if json_:
        print(json.dumps(steps.as_json() if file is None else file.model_dump(), indent=1))
        return
    stored.print_plan(steps)
    if file is not None:
        stored.print_frozen(file, named=f"frozen in {freeze}")


def _frozen(request: AuditRequest, steps: Plan, path: Path, key: Path | None) -> PlanFile:
    """Write a frozen plan, signed if there is a key, and return it."""
    from memlib.running.freezing import freeze as frozen

    file = frozen(request.audit, request.recipe, steps)
    file = file if key is None else with_signature(file, key)
    write_plan(path, file)
    return file


def resume(
    run_id: str,
    /,
    *,
    set_: SetOption = (),
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    cascade: CascadeOption = False,
    quiet: bool = False,
    verbose: VerboseOption = False,
    json_: JsonOption = False,
    hooks: HooksOption = NO_HOOKS,
) -> None:
    """Resume a run that was killed or failed, or rebuild the missing and damaged artifacts of a finished one.

    Parameters
    ----------
    run_id
        Id of the run, or a unique prefix of it, as listed by `memlib runs`.
    set_
        Override machine settings, as in --set resources.workers_per_model=2; the recipe cannot be changed.
    store
        Folder or s3:// prefix in which the run was started.
    force_stage
        Recompute a stage even if the store holds its result.
    cascade
        Retrain models whose inputs were recomputed with a different result. Cheaper stages are recomputed in any case.
    quiet
        Print only the result, no progress.
    verbose
        Show the keys of artifacts, and details of the progress.
    json_
        Print the run's manifest as JSON.
    """
    recipe_settings = [setting for setting in set_ if not setting.startswith("resources.")]
    if recipe_settings:
        raise UserError(
            f"--set {recipe_settings[0]} changes the recipe; resume can change only resources. Use memlib run instead"
        )
    opened = opened_store(store)
    record = find_requested(opened, run_id)
    if isinstance(record, RunRecord):
        check_recipe(erased_part(opened, record.run), record)
    elsewhere = any(setting.startswith("resources.ray_address=") for setting in set_)
    machines = overridden({"resources": _taken_over(record.resources, here=not elsewhere)}, set_)["resources"]
    request = AuditRequest.read(record.recipe, (), machines, expected=audit_of(record.audit))
    given = "" if not isinstance(record.plan, PlanFile) else content_of(record.plan).decode()  # a finished run keeps its own
    options = RunOptions(quiet or json_, verbose, tuple(force_stage), cascade, given)
    _carry_out(request, store, options, hooks, as_json=json_)


def _taken_over(recorded: Mapping[str, Any], *, here: bool) -> dict[str, Any]:
    """Return the resources that a store records for a run, as far as a store may choose them.

    Stores choose no cluster: whoever controls a Ray cluster runs code as the user who connects to it. Numbers of workers and
    threads are limited to this machine's cores, and what a part of a stage needs to what this machine has.

    Args:
        recorded: resources of the run, as recorded.
        here: whether stages run on this machine, and not on a cluster that the user named.
    """
    kept = {name: value for name, value in recorded.items() if name != "ray_address"}
    if recorded.get("ray_address"):
        address = plain(str(recorded["ray_address"]))
        print(
            f"the run used the Ray cluster at {address}; if you trust this address, connect to it again with --set "
            f"resources.ray_address={address}",
            file=sys.stderr,
        )
    validated = validate(Resources, kept).model_dump(mode="json")  # "64" and 64.0 are numbers, too
    for name in ("workers_per_model", "threads_per_worker"):
        if name in kept and validated[name] is not None:
            kept[name] = min(validated[name], cores())
    if here and kept.get("stages"):
        kept["stages"] = {name: _granted(needs) for name, needs in validated["stages"].items()}
    defaults = Resources().model_dump(mode="json")
    changed = {name: value for name, value in kept.items() if name in defaults and value != defaults[name]}
    if changed:
        print(f"resources of the run: {', '.join(f'{k} {plain(str(v))}' for k, v in changed.items())}", file=sys.stderr)
    return kept


def _granted(needs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a part of a stage needs, limited to what this machine has; settings that are not set are left out."""
    stated = {name: value for name, value in needs.items() if value is not None and value != {}}
    limits: dict[str, Callable[[], float]] = {"cpus": cores, "parallel": cores, "gpus": _gpus, "memory_gb": _memory}
    return stated | {name: min(stated[name], most()) for name, most in limits.items() if name in stated}


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _memory() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def recipes(name: str | None = None, /, *, json_: JsonOption = False) -> None:
    """List the shipped recipes, or print one.

    Parameters
    ----------
    name
        A recipe to print in full, including the values that it inherits.
    json_
        Print JSON instead of YAML or a table.
    """
    if json_:
        contents = {key: load_recipe(key)[0] for key in ([name] if name is not None else shipped_recipes())}
        print(json.dumps(contents, indent=1))
        return
    if name is not None:
        print(printed_recipe(name), end="")
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    current = ""
    for key in shipped_recipes():
        content, _ = load_recipe(key)
        if content["audit"] != current:
            current = content["audit"]
            if table.row_count:
                table.add_row()
            table.add_row(audit_of(current), AUDITS[audit_of(current)].question, style="bold")
        table.add_row(f"  {key}", content.get("title", ""))
    console.print(table)


def schema(what: str | None = None, /, *, json_: JsonOption = False) -> None:
    """Print the meaning of every column of the results, or the JSON schema of a recipe.

    Parameters
    ----------
    what
        summary, units or curves (by default all of them), or the name of an audit for the schema of its recipe.
    json_
        Print the columns as JSON; the schema of a recipe is always JSON.
    """
    if what is not None and what in AUDITS:
        print(json.dumps(AUDITS[what].recipe.model_json_schema(), indent=1))
        return
    published = published_tables()
    if what is not None and what not in published:
        raise UserError(f"no table or audit {what!r}; choose from {', '.join([*published, *AUDITS])}")
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


def completion(shell: Literal["bash", "zsh", "fish"], /) -> None:
    """Print the script that completes memlib commands in a shell.

    For the current session: eval "$(memlib completion bash)", likewise for zsh, or memlib completion fish | source. To keep
    it, save the script where your shell looks for completions.
    """
    print(app.generate_completion(shell=shell))


COMMANDS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "Start": {
        **start.COMMANDS, "recipes": recipes, "schema": schema, "scan": scan, "overlap": overlap,
    },
    "Run": {"plan": plan, "run": run, "resume": resume, "status": stored.status},
    "Read": {
        "runs": stored.runs, "index": stored.index, "show": stored.show, "open": stored.open_page,
        "diff": stored.diff, "check": check, "gate": gate, **dossiers.COMMANDS,
    },
    "Share": {
        "card": card, "mlflow": mlflow, "croissant": croissant, "export": export, "ids": ids, "canaries": canaries,
        "sign": stored.sign, "verify": stored.verify,
    },
    "Operate": {"gc": stored.gc, "forget": forget, "completion": completion},
}  # fmt: skip
"""The commands by group, in the order in which a user needs them."""
for number, (title, commands) in enumerate(COMMANDS.items()):
    group = Group(title, sort_key=number)
    for place, (name, function) in enumerate(commands.items()):
        if isinstance(function, App):  # which has commands of its own
            function.group, function.sort_key = group, place
            app.command(function)
        else:
            app.command(function, name=name, group=group, sort_key=place)


def _interrupt(*_: object) -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, so that Ray and the Prefect server that this run started end with it.

    Later signals are ignored: timeout(1) sends two, and the second would interrupt the shutdown. If Ray's servers were sent
    the same signal, Ray's library prints its backtrace to descriptor 2, from which Python's own stderr is separated here.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, heedless)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
        sys.stderr = open(os.dup(2), "w", buffering=1)  # noqa: SIM115
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    interrupt()


def _raise_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raise an interrupt again that arrived in a callback or destructor, where Python would print and drop it.

    It is raised a moment later, as within this hook Python would print and drop it, too.
    """
    if lost.exc_type is KeyboardInterrupt:
        later = threading.Timer(MOMENT_SECONDS, _thread.interrupt_main)
        later.daemon = True
        later.start()
    else:
        sys.__unraisablehook__(lost)


def _say(text: str) -> None:
    """Print a last line to stderr, ignoring errors, as the terminal may have been closed."""
    with contextlib.suppress(OSError):
        print(brief(text), file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    User errors and expected failures print one or two lines and return 2, or 75 if running the same command again resumes the
    work. Signals return 130.
    """
    sys.unraisablehook = _raise_again
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # ignored under nohup
        signal.signal(signal.SIGHUP, _interrupt)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: interrupt())
    os.umask(0o077)  # files of libraries are private to the user; the store sets its own permissions
    prepare_environment()
    warnings.filterwarnings("ignore", module=r"torch\b")  # meant for developers, and printed in the middle of the output
    try:
        with keep_interrupts():
            status = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:  # an unknown option, or one without its value
        _say(f"memlib: {' '.join(str(error).split())} (see memlib --help)")
        return 2
    except (EngineLost, StoreUnreachable) as error:
        _say(f"memlib: {error}")
        return TRY_AGAIN
    except (UserError, RunError) as error:
        _say(f"memlib: {error}")
        return 2
    except BrokenPipeError:  # the reader closed the pipe, as in memlib runs --json | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:  # a full disk, a lost network, a folder that is a file
        _say(f"memlib: {type(error).__name__}: {error}")
        return 2
    except (KeyboardInterrupt, SystemExit) as error:
        if isinstance(error, SystemExit) and not (isinstance(error.code, int) and error.code > 128):  # no signal of Ray
            raise
        _say(STOPPED_LINE)
        return STOPPED
    return status if isinstance(status, int) else 0


if __name__ == "__main__":
    sys.exit(main())
