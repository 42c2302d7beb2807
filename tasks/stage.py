"""A stage: key -> committed? -> compute -> commit -> reference. The store alone says what is done."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, Protocol

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import TagsContext
from prefect.states import Completed, State

from memlib.errors import CorruptArtifact, MissingArtifact, RunError, UserError
from memlib.identity import content_key
from memlib.provenance import Declared
from memlib.store import Attempt, Ref, Store
from memlib.training.fit import TRAIN
from tasks.cluster import map_on_ray, run_on_cluster
from tasks.display import shown
from tasks.remote import compute_there
from tasks.runtime import Context

P = ParamSpec("P")


def stage_task(name: str) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """A Prefect task whose result is the artifact's reference, also when it ends in the state Cached.

    Prefect's own caching is off: its records know nothing of the store, so they could vouch for what is gone. A run that is
    only planned is no business of Prefect's.
    """

    def decorate(function: Callable[P, Any]) -> Callable[P, Any]:
        def carry_out(work: Callable[[], Any]) -> Any:
            return work()

        carry_out.__qualname__ = function.__qualname__  # by which Prefect tells tasks apart
        wrapped = task(name=name, cache_policy=NO_CACHE)(carry_out)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            context = args[0]
            assert isinstance(context, Context)
            if context.plan is not None:
                return function(*args, **kwargs)
            with TagsContext(current_tags=set()):  # each tag of a task costs two calls
                found = shown(lambda work: wrapped(work, return_state=True).result(), lambda: function(*args, **kwargs))
            return found.data if isinstance(found, State) else found

        return call

    return decorate


def committed(context: Context, ref: Ref) -> bool:
    """Whether the artifact is there, sound, and made from what its inputs are now.

    What is not is named and taken out, so that it is made again. Of a stage that is forced, what is there is taken out too,
    once a run.

    Raises:
        RunError: for a trained model whose inputs were made again with another content, unless the run may cascade.
    """
    if ref.stage_name in context.forced and ref not in context.shared.renewed:
        context.shared.renewed.add(ref)
        context.discard(ref)
        context.store.drop_resume(ref.key)
        return False
    try:
        found = context.store.lookup(ref.stage, ref.key)
    except CorruptArtifact as damage:
        if not _is_damaged(context.store, ref):
            return context.store.lookup(ref.stage, ref.key) is not None  # another driver has made it anew meanwhile
        context.warn(f"{damage}; computing it again")
        context.discard(ref)
        return False
    if found is None:
        return False
    changed = context.changed_inputs(context.store.manifest(ref))
    if not changed:
        return True
    said = f"{ref.stage} {ref.key[:8]} was made from another {' and '.join(sorted({other.stage for other in changed}))}"
    if ref.stage == TRAIN.name and not context.cascade:
        raise RunError(f"{said}, which was made again since; --cascade trains it again, and all that comes after")
    context.warn(f"{said}, which was made again since; computing it again")
    context.discard(ref)
    context.store.drop_resume(ref.key)
    return False


def run_stage(
    context: Context,
    declared: Declared,
    *,
    spec: Any,
    inputs: Mapping[str, Any],
    compute: Callable[[Attempt], None],
    on_cluster: Callable[[Attempt, torch.device], None] | None = None,
    units: float = 1.0,
) -> Any:
    """Runs a stage unless its result is committed.

    Args:
        context: the run's store and display.
        declared: the stage's name, version and code.
        spec: only what this stage is configured by.
        inputs: keys of what it reads, by role.
        compute: fills the attempt's folder, in this process.
        on_cluster: does the same in a Ray task, for runs on a cluster; it travels, so it holds no context.
        units: how much work it is, in what the stage counts, for estimates of cost.

    Returns:
        the artifact's reference, or the Prefect state Cached with it when there was nothing to do.
    """
    stage = declared.name
    ref = context.knows(Ref(stage, content_key(stage, version=declared.version, spec=spec, inputs=inputs)))
    if context.plan is not None:
        note_planned(context, declared, ref, spec, inputs, units)
        return ref
    with context.turn(stage):
        if committed(context, ref):
            note_code(context, declared, ref)
            return cached(context, ref)
        context.say(f"{stage} {ref.key[:8]}: computing")
        with at_work(context, [ref]):
            record = record_of(context, declared, spec, inputs, units)
            if on_cluster is not None and context.resources.ray_address is not None:
                run_on_cluster(context, stage, compute_there, context.store, ref, record, on_cluster)
            else:
                with context.store.write(ref, **record) as attempt:
                    compute(attempt)
    return ref


def record_of(context: Context, declared: Declared, spec: Any, inputs: Mapping[str, Any], units: float) -> dict[str, Any]:
    """What an artifact's manifest says of its making, as arguments of Store.write."""
    reads = context.contents_of(inputs)
    return {"spec": spec, "inputs": dict(inputs), "units": units, "provenance": declared.provenance(reads)}


def note_planned(context: Context, declared: Declared, ref: Ref, spec: Any, inputs: Mapping[str, Any], units: float) -> None:
    """Adds a part of a stage to the plan."""
    assert context.plan is not None
    stale = False
    with contextlib.suppress(CorruptArtifact):
        stale = bool(context.changed_inputs(context.store.manifest(ref)))
    before = context.refs_in(inputs)
    context.plan.note(ref, spec, units, before=before, forced=ref.stage_name in context.forced or stale)
    if not stale:
        note_code(context, declared, ref)


def note_code(context: Context, declared: Declared, ref: Ref) -> None:
    """Says once a stage that an artifact is reused though the code that made it was another of the same version."""
    if declared.name in context.shared.old_code:
        return
    with contextlib.suppress(CorruptArtifact):
        code = context.store.manifest(ref).get("code")
        if code is None or code == declared.code:
            return
        context.shared.old_code.add(declared.name)
        said = f"{declared.name}: its code has changed since what is there was made, its version has not"
        if context.plan is not None:
            context.plan.limits.append(f"{said}; --force-stage {ref.stage_name} computes it again")
        else:
            context.warn(f"{said}; reused (--force-stage {ref.stage_name} computes it again)")


@contextlib.contextmanager
def at_work(context: Context, refs: Sequence[Ref]) -> Iterator[None]:
    """Tells that artifacts of a stage are being made, and that they are, or why not."""
    stage, started = refs[0].stage, time.monotonic()
    key = refs[0].key if len(refs) == 1 else ""
    context.journal.note("computing", stage, key, count=len(refs))
    try:
        yield
    except BaseException as error:
        said = str(error) if isinstance(error, UserError | RunError) else type(error).__name__
        context.journal.note("failed", stage, key, problem=said)
        if isinstance(error, CorruptArtifact) and error.ref is not None and _is_damaged(context.store, error.ref):
            context.discard(error.ref)  # found by who read it; the next run makes it anew
        raise
    context.computed += [str(ref) for ref in refs]
    context.journal.note("computed", stage, key, count=len(refs), seconds=round(time.monotonic() - started, 2))


def _is_damaged(store: Store, ref: Ref) -> bool:
    """Whether it still is: another cell or driver may have made it anew since it was read."""
    try:
        return bool(store.problems(ref))
    except MissingArtifact:
        return False
    except CorruptArtifact:
        return True
    except (RunError, OSError):  # the store cannot be asked; the next run looks again
        return False


class Job(Protocol):
    """A part of a stage that fills an artifact of its own; it travels, so it holds no context."""

    @property
    def spec(self) -> dict[str, Any]:
        """What the part is configured by."""
        ...

    @property
    def inputs(self) -> dict[str, Any]:
        """The keys of what it reads."""
        ...

    @property
    def units(self) -> float:
        """How much work it is, in what the stage counts."""
        ...

    @property
    def near(self) -> Ref | None:
        """The largest artifact that it reads of its own; the node that made it has a copy."""
        ...

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fills the artifact."""
        ...


def run_jobs(context: Context, declared: Declared, jobs: Sequence[Job]) -> Any:
    """Runs the parts of a stage that are not committed, several on Ray at once, a single one here.

    Each part commits when it is done, so an interrupted run loses at most the parts under way. A part that fails does
    not stop the others.

    Returns:
        the artifacts' references in the order of the jobs, or the Prefect state Cached with them.

    Raises:
        UserError, RunError: the first failure, and how many there were.
    """
    stage, version = declared.name, declared.version
    keys = [content_key(stage, version=version, spec=job.spec, inputs=job.inputs) for job in jobs]
    refs = [context.knows(Ref(stage, key)) for key in keys]
    if context.plan is not None:
        for ref, job in zip(refs, jobs, strict=True):
            note_planned(context, declared, ref, job.spec, job.inputs, job.units)
        return refs
    with context.turn(stage):
        missing = {ref: job for ref, job in zip(refs, jobs, strict=True) if not committed(context, ref)}
        if reused := [ref for ref in dict.fromkeys(refs) if ref not in missing]:
            note_code(context, declared, reused[0])
        if not missing:
            return cached(context, refs)
        context.say(f"{stage}: {len(missing)} of {len(set(refs))} to compute")
        with at_work(context, list(missing)):
            _compute_jobs(context, declared, missing)
    note_reused(context, reused)
    return refs


def _compute_jobs(context: Context, declared: Declared, missing: Mapping[Ref, Job]) -> None:
    stage = declared.name
    calls: list[tuple[Store, Ref, dict[str, Any], Any]] = [
        (context.store, ref, record_of(context, declared, job.spec, job.inputs, job.units), job.write)
        for ref, job in missing.items()
    ]
    if len(calls) == 1 and context.resources.ray_address is None:
        ((store, ref, record, write),) = calls
        with store.write(ref, **record) as attempt:
            write(attempt, context.device)
    else:
        with context.counter(stage) as progress:
            map_on_ray(context, stage, compute_there, calls, progress, _nodes_near(context, list(missing.values())))


def _nodes_near(context: Context, jobs: Sequence[Job]) -> list[str | None]:
    """Ids of the nodes that have copies of what jobs read; on one machine, or with a shared folder, all have."""
    if context.store.is_local or context.resources.ray_address is None:
        return [None] * len(jobs)
    made = {
        ref: context.store.manifest(ref)["facts"].get("worker", {}) for ref in {job.near for job in jobs} if ref is not None
    }
    return [None if job.near is None else made[job.near].get("node_id") for job in jobs]


def cached(context: Context, data: Ref | list[Ref]) -> Any:
    """The Prefect state of a task whose result was there."""
    note_reused(context, [data] if isinstance(data, Ref) else data)
    return Completed(name="Cached", message="found in the store", data=data)


def note_reused(context: Context, refs: Sequence[Ref]) -> None:
    """Artifacts that were there."""
    context.reused += [str(ref) for ref in refs]
    for ref in refs:
        context.journal.note("cached", ref.stage, ref.key)
