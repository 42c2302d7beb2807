"""Commands that plan, run and resume audits."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from flows.cli import store as stored
from flows.cli.completing import all_runs, audits_and_recipes, finished, recipes
from flows.cli.gate import margins_of
from flows.cli.hooks import NO_HOOKS, Event, Hooks, reported
from flows.cli.messages import say
from flows.cli.store import AllOption, JsonOption, StoreOption, find_requested, opened_store, print_run
from memlib.audits import AUDITS, audit_of
from memlib.audits.arrangement import check_stages
from memlib.console import console, show_json
from memlib.errors import UserError
from memlib.recipes.files import overridden, validate
from memlib.recipes.named_files import check_files
from memlib.recipes.request import AuditRequest
from memlib.running.planning import Plan
from memlib.runs.erasures import check_recipe, erased_part
from memlib.runs.journal import log_as_asked
from memlib.runs.plans import content_of, read_plan, recipe_of, with_signature, write_plan
from memlib.runs.records import PlanFile, RequestRecord, RunRecord
from memlib.specs import Resources
from memlib.specs.cores import cores, memory
from memlib.specs.resources import RunOptions
from memlib.store import DEFAULT_STORE, Store


def _what() -> str:
    """Return the help text of the first argument; only --help needs it, so that other commands do not import the audits."""
    if not {"-h", "--help"} & set(sys.argv):
        return ""
    audits = " ".join(f"{name}: {audit.question}" for name, audit in AUDITS.items())
    return f"A recipe: the name of a shipped one (memlib recipes) or a YAML file; or an audit, with --recipe. {audits}"


ENGINE = "MEMLIB_ENGINE"  # environment variable: process or ray

What = Annotated[str, Parameter(help=_what(), completer=audits_and_recipes)]
RecipeOption = Annotated[str | None, Parameter(help="The recipe, if the first argument is an audit.", completer=recipes)]
SetOption = Annotated[Sequence[str], Parameter(name="--set", negative="", show_default=False)]
CascadeOption = Annotated[bool, Parameter(negative="")]
VerboseOption = Annotated[bool, Parameter(name=("--verbose", "-v"), negative="")]
InProcessOption = Annotated[bool, Parameter(name="--in-process", negative="")]
HooksOption = Annotated[Hooks, Parameter(name="*")]  # one option per hook
ForceOption = Annotated[Sequence[str], Parameter(name="--force-stage", negative="", show_default=False)]


def run(
    what: What | None = None,
    /,
    *,
    recipe: RecipeOption = None,
    set_: SetOption = (),
    plan: Path | None = None,
    cell: int | None = None,
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    cascade: CascadeOption = False,
    rehash: Annotated[bool, Parameter(negative="")] = False,
    quiet: bool = False,
    verbose: VerboseOption = False,
    all_: AllOption = False,
    json_: JsonOption = False,
    in_process: InProcessOption = False,
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
    cell
        Run only one cell of a sweep, by its number (memlib validate lists them), as each job of a job array does. Once all
        cells are finished, the same command without --cell compares them.
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
    all_
        Print all findings, not only the main ones.
    json_
        Print the run's manifest as JSON.
    in_process
        Compute in this process, one part after another, without Prefect and Ray: faster for small audits, with the same
        results. MEMLIB_ENGINE=process makes it the default.
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
    given, look = "" if file is None else content_of(file).decode(), ""
    if cell is not None:
        from memlib.running.cells import cell_of  # loads the audits

        if file is not None:
            raise UserError("a frozen plan is of the whole sweep, which follows it; leave out --plan with --cell, or --cell")
        request, look = cell_of(request, cell, Store(store))
        say(f"cell {cell} of sweep {look}: its cells are one look at the data once the sweep compares them (without --cell)")
    options = RunOptions(quiet or json_, verbose, tuple(force_stage), cascade, given, look)
    _carry_out(request, store, options, hooks, every_row=all_, as_json=json_, in_process=in_process)


def _carry_out(
    request: AuditRequest,
    store: str,
    options: RunOptions,
    hooks: Hooks,
    *,
    every_row: bool,
    as_json: bool,
    in_process: bool,
) -> None:
    carry_out: Callable[..., RunRecord]
    if _is_in_process(request.resources, asked=in_process):
        from memlib.running.in_process import carry_out_here as carry_out  # loads the audits
    else:
        from flows.api import carry_out

    hooks.check()
    log_as_asked()
    opened = Store(store)
    event = Event(request.audit.name, str(getattr(request.recipe, "title", "")), opened.uri)
    with reported(hooks, event) as ending, contextlib.redirect_stdout(sys.stderr):  # code of a recipe may print
        run = carry_out(request, opened, options, say=lambda line: say(f"warning: {line}"))
        ending.learn(run=run.run)
        if run.verdict is not None:
            ending.learn(verdict=run.verdict.word, sentence=run.verdict.sentence)
    if as_json:
        show_json(run.model_dump())
    else:
        print_run(opened, run, every_row=every_row)


def _is_in_process(resources: Resources, *, asked: bool) -> bool:
    """Return whether a run computes in this process, as an option or MEMLIB_ENGINE says.

    Raises:
        UserError: if the variable has another value than process or ray, or the run needs a cluster or groups of workers.
    """
    named = os.environ.get(ENGINE, "")
    if named not in ("", "process", "ray"):
        raise UserError(f"{ENGINE} is {named!r}; set it to process or ray, or leave it unset")
    if not asked and named != "process":
        return False
    how = "--in-process" if asked else f"{ENGINE}=process"
    if resources.ray_address is not None or resources.workers_per_model > 1:
        setting = "ray_address" if resources.ray_address is not None else "workers_per_model"
        raise UserError(
            f"resources.{setting} is {getattr(resources, setting)}, but {how} computes in one process; leave out one of them"
        )
    return True


def plan(
    what: What,
    /,
    *,
    recipe: RecipeOption = None,
    set_: SetOption = (),
    policy: Path | None = None,
    baseline: Annotated[str | None, Parameter(completer=finished)] = None,
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    freeze: Path | None = None,
    key: Path | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    json_: JsonOption = False,
) -> int:
    """Show what a run would do: each stage with its key, whether the store already holds it, and its estimated cost.

    With --freeze, also write it down before the run, for memlib run --plan: recipe, thresholds, looks, digests of data and
    code, and the date. Give the file's digest to somebody else, or let them sign it (memlib sign --plan), before you run.

    Models, outputs and lists of members that a recipe names are then opened, with its data: do they fit, and does anything
    contradict a declared draw?

    Costs are estimated from the most similar artifacts in the store. Keys that depend on artifacts not yet computed cannot
    be shown. Nothing is computed, and nothing is written to the store; a data set that the recipe says to download is
    downloaded, and a missing secret file for canaries is created. Exits with status 2 if a cell cannot run.

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
    quick
        Leave models, outputs and lists unopened.
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
        show_json(steps.as_json() if file is None else file.model_dump())
    else:
        stored.print_plan(steps)
        if file is not None:
            stored.print_frozen(file, named=f"frozen in {freeze}")
    if not (quick or json_ or steps.is_finished):
        _open(request)
    return 2 if steps.problems else 0


def _open(request: AuditRequest) -> None:
    """Open what a recipe names, before anything is trained, and print what was found."""
    lines: Iterable[str] = check_files(request.recipe)
    if not lines:
        from memlib.running.opening import is_named, opened  # loads scipy

        lines = (f"opened: {line}" for line in opened(request)) if is_named(request) else ()
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)


def _frozen(request: AuditRequest, steps: Plan, path: Path, key: Path | None) -> PlanFile:
    """Write a frozen plan, signed if there is a key, and return it."""
    from memlib.running.freezing import freeze as frozen

    file = frozen(request.audit, request.recipe, steps)
    file = file if key is None else with_signature(file, key)
    write_plan(path, file)
    return file


def resume(
    run_id: Annotated[str, Parameter(completer=all_runs)],
    /,
    *,
    set_: SetOption = (),
    store: StoreOption = DEFAULT_STORE,
    force_stage: ForceOption = (),
    cascade: CascadeOption = False,
    quiet: bool = False,
    verbose: VerboseOption = False,
    all_: AllOption = False,
    json_: JsonOption = False,
    in_process: InProcessOption = False,
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
    all_
        Print all findings, not only the main ones.
    json_
        Print the run's manifest as JSON.
    in_process
        Compute in this process, without Prefect and Ray; see memlib run.
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
    look = record.look if isinstance(record, RequestRecord) else ""  # a finished run keeps its own
    options = RunOptions(quiet or json_, verbose, tuple(force_stage), cascade, given, look)
    _carry_out(request, store, options, hooks, every_row=all_, as_json=json_, in_process=in_process)


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
        address = str(recorded["ray_address"])
        say(
            f"the run used the Ray cluster at {address}; if you trust this address, connect to it again with --set "
            f"resources.ray_address={address}"
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
        say(f"resources of the run: {', '.join(f'{k} {v}' for k, v in changed.items())}")
    return kept


def _granted(needs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a part of a stage needs, limited to what this machine has; settings that are not set are left out."""
    stated = {name: value for name, value in needs.items() if value is not None and value != {}}
    limits: dict[str, Callable[[], float]] = {
        "cpus": cores,
        "parallel": cores,
        "gpus": _gpus,
        "memory_gb": lambda: memory() / 2**30,
    }
    return stated | {name: min(stated[name], most()) for name, most in limits.items() if name in stated}


def _gpus() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
