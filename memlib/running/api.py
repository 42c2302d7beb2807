"""The functions of `memlib`: audits in the calling process, without Prefect and Ray, and operations on finished runs."""

import time
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from memlib.audits.judging import Decision, decide
from memlib.errors import UserError
from memlib.recipes.request import AnyRecipe, AuditRequest
from memlib.running.comparison import Comparison, compare
from memlib.running.finished import plan as planned
from memlib.running.gate import GateDecision, read_policy
from memlib.running.gate import gate as decide_by
from memlib.running.in_process import carry_out_here
from memlib.running.planning import Plan
from memlib.runs.index import list_runs as listed_runs
from memlib.runs.plans import content_of, read_plan
from memlib.runs.run import ListedRun, Run, open
from memlib.specs.resources import RunOptions
from memlib.store import Store, chosen_store

if TYPE_CHECKING:
    from memlib.running.erasing import Survey
    from memlib.running.overview import WrittenOverview
    from memlib.running.verification import Verification

Key = str | PathLike[str] | None
"""File with a public key."""


def run(
    recipe: AnyRecipe,
    *,
    store: str | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str = "cpu",
    quiet: bool = False,
    plan: str | PathLike[str] | None = None,
    trust: Key = None,
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
        plan: file with a plan that was frozen before the run (`memlib plan --freeze`); the manifest and the page say whether
            the run follows it.
        trust: file with the public key that must have signed the runs that a dossier joins; see `memlib.list_runs`.

    Returns:
        the finished run, with its verdict, tables and page.

    Raises:
        UserError: if the recipe, the data or the store cannot be used as they are.
        RunError: if a stage fails.

    Example:
        >>> import memlib
        >>> moons = {
        ...     "audit": "self_influence", "title": "moons", "data": {"source": {"kind": "two_moons", "num_examples": 60}},
        ...     "split": {"train_per_class": 20}, "model": {"architecture": "mlp", "widths": [8]},
        ...     "training": {"objective": {"kind": "supervised"}, "epochs": 4, "batch_size": 5, "augment": None},
        ... } | {"influence": {"checkpoints": 2}}
        >>> memlib.run(moons, quiet=True).verdict.word
        'descriptive'
    """
    request = AuditRequest.read(recipe, changes or {})
    request.allow_code()
    opened = Store(chosen_store(store), trust=None if trust is None else Path(trust))
    file = None if plan is None else read_plan(Path(plan))
    options = RunOptions(quiet=quiet, plan="" if file is None else content_of(file).decode())
    return Run(opened, carry_out_here(request, opened, options, device=device, say=_warn))


def plan(recipe: AnyRecipe, *, store: str | None = None, changes: Mapping[str, Any] | None = None) -> Plan:
    """List what an audit would compute: its stages, their keys, which of them the store holds, and estimated costs.

    Nothing is computed or written to the store, and no code of the recipe runs. A data set that the recipe says to download
    is downloaded, and a missing secret file for canaries is created.

    Args:
        recipe, store, changes: as for `memlib.run`.

    Raises:
        UserError: if the recipe or the store cannot be used as they are.

    Example:
        >>> import memlib
        >>> plan = memlib.plan("moons.yaml", changes={"training.epochs": 8})  # after a run with 4 epochs
        >>> [stage for stage, parts in plan.by_stage() if all(part.hit for part in parts)]
        ['decode', 'hold_out']
    """
    request = AuditRequest.read(recipe, changes or {})
    return planned(request.audit, request.recipe, chosen_store(store), request.resources)


def list_runs(*, store: str | None = None, trust: Key = None) -> list[ListedRun]:
    """List the finished runs of a store, newest first.

    Runs whose manifests cannot be read, or which a trusted key has not signed, are left out, with a Python warning.

    Args:
        store: folder or s3:// prefix; by default MEMLIB_STORE, or memlib-store in the current folder.
        trust: file with a public key (Ed25519, PEM) from outside the store that must have signed every run that is read; by
            default MEMLIB_TRUST.

    Raises:
        UserError: if there is no store.

    Example:
        >>> import memlib
        >>> [(run.audit, run.verdict, run.headline) for run in memlib.list_runs()]
        [('self_influence', 'descriptive', 'influence_share')]
    """
    listed = listed_runs(_existing(store, trust))
    if listed.damaged:
        _warn(listed.warning())
    return [ListedRun.of(entry) for entry in listed.entries]


def diff(first: Run | str, second: Run | str, *, store: str | None = None, trust: Key = None) -> Comparison:
    """Compare the recipes, findings and artifacts of two finished runs of the same audit.

    Findings are matched by metric and by those params that do not differ with the recipes. Only the difference of the
    headlines is tested, as between two cells of a sweep, where the audit and the design allow it (`headlines`).

    Args:
        first, second: runs, or names of runs or unique prefixes of the names.
        store, trust: store of runs that are given by name, and the key that must have signed them; see `memlib.list_runs`.

    Raises:
        UserError: for runs of different audits, or when no run or more than one matches.

    Example:
        >>> import memlib
        >>> run = memlib.list_runs()[0].id
        >>> comparison = memlib.diff(run, run)
        >>> comparison.recipe, max(abs(change.difference) for change in comparison.findings)
        ([], 0.0)
    """
    return compare(_run_of(first, store, trust), _run_of(second, store, trust))


def check(
    run: Run | str,
    *,
    fail_above: Mapping[str, float] | None = None,
    fail_on: Literal["shown"] | None = None,
    store: str | None = None,
    trust: Key = None,
) -> Decision:
    """Decide from a finished run whether a build passes: by its verdict, or by limits on its findings.

    Only a test can pass or fail a gate; for a run that tests nothing, or cannot tell, the decision is undecided.

    Args:
        run: a run, its name, or a unique prefix of the name.
        fail_above: largest accepted values, as in {"share_excess": 0.05}: the headline of that metric decides.
            "METRIC[KEY=VALUE,...]" asks for the findings with these params instead.
        fail_on: "shown": fail if the run shows memorization, pass only if its verdict is bounded.
        store, trust: store of a run that is given by name, and the key that must have signed it; see `memlib.list_runs`.

    Returns:
        the decision: its `outcome` is passed, failed or undecided, and `findings` gives the reasons.

    Raises:
        UserError: without a limit and `fail_on`, or if a limit matches no finding of the run.

    Example:
        >>> import memlib
        >>> memlib.check(memlib.list_runs()[0].id, fail_on="shown").outcome  # the run tests nothing, so that it cannot tell
        'undecided'
    """
    gates = [f"{metric}={limit}" for metric, limit in (fail_above or {}).items()]
    return decide(_run_of(run, store, trust), fail_above=gates, fail_on=fail_on)


def gate(
    policy: str | PathLike[str],
    *,
    runs: Sequence[Run | str] = (),
    baseline: Run | str | None = None,
    data: str | None = None,
    store: str | None = None,
    trust: Key = None,
) -> GateDecision:
    """Decide by a policy whether a build passes: required audits and their power, ceilings, no more memory than a baseline.

    An audit that is missing, stale or underpowered is undecided. Only manifests and published tables are read.

    Args:
        policy: the policy, a YAML file.
        runs: runs to judge, or names or unique prefixes; by default the newest run of each audit that the policy requires.
        baseline: the run, or its name or a unique prefix, with which the policy's non_inferiority rules compare.
        data: digest of the data, or its first digits, on which the newest runs are looked for; by default the policy's.
        store, trust: store of the runs, and the key that must have signed them; see `memlib.list_runs`.

    Returns:
        the decision: its `outcome` is passed, failed or undecided, and `audits` gives the decision and reasons for each run.

    Raises:
        UserError: if the policy is not valid, has no rule for a given run, or asks for a comparison without a baseline.

    Example:
        >>> import memlib
        >>> from pathlib import Path
        >>> _ = Path("policy.yaml").write_text("audits: [{audit: self-influence, verdicts: [descriptive]}]")
        >>> memlib.gate("policy.yaml").outcome
        'passed'
    """
    opened, names = _existing(store, trust), [_name_of(run) for run in runs]
    before = None if baseline is None else _name_of(baseline)
    return decide_by(read_policy(Path(policy)), opened, now=time.time(), runs=names, data=data, baseline=before)


def index(*, folder: str | PathLike[str] | None = None, store: str | None = None, trust: Key = None) -> "WrittenOverview":
    """Write one page over all runs of a store: by data and model, with their verdicts over time and a filter.

    Args:
        folder: folder of the page; by default index/ below the store, or memlib-index/ in the current folder for S3.
        store, trust: the store, and the key that must have signed its runs; see `memlib.list_runs`.

    Raises:
        UserError: if there is no store, or the page cannot be written.

    Example:
        >>> import memlib
        >>> page = memlib.index()
        >>> page.address[-29:], page.runs, page.problems
        ('memlib-store/index/index.html', 1, 0)
    """
    from memlib.running.overview import write_overview  # loads Jinja

    return write_overview(_existing(store, trust), None if folder is None else Path(folder))


def forget(
    *,
    person: str | None = None,
    example: str | None = None,
    models: bool = False,
    delete: bool = False,
    store: str | None = None,
) -> "Survey":
    """List all that a store holds of a person or an example, and what was computed from it; with `delete`, erase it.

    Runs of the command line leave their recipes in Prefect's database, too, which only `memlib forget` searches.

    Args:
        person: id of a person: the name that groups of a recipe or a person column give, or the id of one of the examples.
        example: id of a single example, as in tables of units.
        models: delete models that were trained on the examples, too, and unfinished work, whose origin no file records.
        delete: delete the listed items; models and unfinished work only with `models`.
        store: the store; see `memlib.list_runs`.

    Returns:
        what was found: `items`; with `delete`, those of `doomed(models=...)` are gone. `unknown` cannot be searched.

    Raises:
        UserError: unless exactly one of person and example is given, and something in the store concerns it.
        RunError: if a run is under way.

    Example:
        >>> import memlib
        >>> found = memlib.forget(example=memlib.open(memlib.list_runs()[0].id).units["example_id"][0].as_py())
        >>> found.unknown, len(found.runs)
        ([], 1)
    """
    from memlib.running import erasing

    names = [name for name in (person, example) if name]
    if len(names) != 1:
        raise UserError("give the id either of a person or of an example")
    opened, asked = _existing(store), erasing.Asked(names[0], is_person=bool(person))
    return erasing.erase(opened, asked, models=models) if delete else erasing.survey(opened, asked)


def verify(
    run: Run | str | None = None, *, trust: Key = None, store: str | None = None, recompute: bool = False
) -> "Verification":
    """Check that a store, or one run in it, is unchanged since it was committed: every byte, digest and number.

    Args:
        run: a run, its name, or a unique prefix of the name; by default all runs and artifacts are checked.
        trust: file with a public key (Ed25519, PEM) from outside the store; runs must be signed with its private key.
        store: the store; see `memlib.list_runs`. A run that is given as an object is checked in its own store.
        recompute: compute the run again from its recipe and data, in this process, and compare all that it computed. What is
            computed lies in the user's cache folder meanwhile.

    Returns:
        the result: its `outcome` is unchanged, changed, or unchecked if something cannot be checked; `problems` names what.

    Raises:
        UserError: if there is nothing to verify, no run or more than one matches, or the key, or data to recompute from,
            cannot be used.

    Example:
        >>> import memlib
        >>> memlib.verify().outcome
        'unchanged'
        >>> memlib.verify(memlib.list_runs()[0].id, recompute=True).recomputed
        'recomputed here: 7 of 7 artifacts came out equal byte for byte'
    """
    from memlib.running.verification import verified  # loads scipy

    opened = run.store if isinstance(run, Run) else _existing(store)
    name = run.id if isinstance(run, Run) else run
    if recompute and name is None:
        raise UserError("name the run that is to be recomputed")
    found = verified(opened, name, trust=None if trust is None else Path(trust))
    if not recompute or name is None:
        return found
    from memlib.running.recomputing import with_recomputed

    return with_recomputed(found, opened, name, quiet=True, say=_warn)


def _existing(store: str | None, trust: Key = None) -> Store:
    opened = Store(chosen_store(store), trust=None if trust is None else Path(trust))
    opened.check_known()
    return opened


def _name_of(run: Run | str) -> str:
    return run.id if isinstance(run, Run) else run


def _run_of(run: Run | str, store: str | None, trust: Key) -> Run:
    return run if isinstance(run, Run) else open(run, store=store, trust=trust)


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=3)
