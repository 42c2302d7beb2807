"""A stage: key -> committed? -> compute -> commit -> reference. The store alone says what is done."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, Protocol

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from memlib.errors import CorruptArtifact
from memlib.identity import content_key
from memlib.store import Attempt, Ref, Store
from tasks.remote import compute_there
from tasks.runtime import Context, map_on_ray, run_on_cluster

P = ParamSpec("P")


def stage_task(name: str) -> Callable[[Callable[P, Any]], Callable[P, Any]]:
    """A Prefect task whose result is the artifact's reference, also when it ends in the state Cached.

    Prefect's own caching is off: its records know nothing of the store, so they could vouch for what is gone.
    """

    def decorate(function: Callable[P, Any]) -> Callable[P, Any]:
        wrapped = task(name=name, cache_policy=NO_CACHE)(function)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return wrapped(*args, **kwargs, return_state=True).result()

        return call

    return decorate


def committed(context: Context, ref: Ref) -> bool:
    """Whether the artifact is there and sound; a damaged one is named and taken out, so that it is made again."""
    try:
        return context.store.lookup(ref.stage, ref.key) is not None
    except CorruptArtifact as damage:
        context.warn(f"{damage}; computing it again")
        context.store.discard(ref)
        return False


def run_stage(
    context: Context,
    stage: str,
    *,
    version: int,
    spec: Any,
    inputs: Mapping[str, Any],
    compute: Callable[[Attempt], None],
    on_cluster: Callable[[Attempt, torch.device], None] | None = None,
    secret: bool = False,
) -> Any:
    """Runs a stage unless its result is committed.

    Args:
        context: the run's store and display.
        stage: the stage's name.
        version: the declared version of its code.
        spec: only what this stage is configured by.
        inputs: keys of what it reads, by role.
        compute: fills the attempt's folder, in this process.
        on_cluster: does the same in a Ray task, for runs on a cluster; it travels, so it holds no context.
        secret: whether the files hold private content.

    Returns:
        the artifact's reference, or the Prefect state Cached with it when there was nothing to do.
    """
    ref = Ref(stage, content_key(stage, version=version, spec=spec, inputs=inputs))
    if committed(context, ref):
        return cached(context, ref)
    context.say(f"{stage} {ref.key[:8]}: computing")
    record = {"spec": spec, "inputs": dict(inputs), "secret": secret}
    if on_cluster is not None and context.resources.ray_address is not None:
        run_on_cluster(context, compute_there, context.store, ref, record, on_cluster)
    else:
        with context.store.write(ref, **record) as attempt:
            compute(attempt)
    context.computed.append(str(ref))
    return ref


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

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Fills the artifact."""
        ...


def run_jobs(context: Context, stage: str, jobs: Sequence[Job], *, version: int, secret: bool = False) -> Any:
    """Runs the parts of a stage that are not committed, several on Ray at once, a single one here.

    Each part commits when it is done, so an interrupted run loses at most the parts under way. A part that fails does
    not stop the others.

    Returns:
        the artifacts' references in the order of the jobs, or the Prefect state Cached with them.

    Raises:
        UserError, RunError: the first failure, and how many there were.
    """
    refs = [Ref(stage, content_key(stage, version=version, spec=job.spec, inputs=job.inputs)) for job in jobs]
    missing = {ref: job for ref, job in zip(refs, jobs, strict=True) if not committed(context, ref)}
    if not missing:
        return cached(context, refs)
    context.say(f"{stage}: {len(missing)} of {len(set(refs))} to compute")
    calls = {
        ref: (context.store, ref, {"spec": job.spec, "inputs": job.inputs, "secret": secret}, job.write)
        for ref, job in missing.items()
    }
    if len(missing) == 1 and context.resources.ray_address is None:
        ((store, ref, record, write),) = calls.values()
        with store.write(ref, **record) as attempt:
            write(attempt, context.device)
    else:
        with context.counter(stage) as progress:
            map_on_ray(context, compute_there, list(calls.values()), progress)
    context.computed += [str(ref) for ref in missing]
    context.reused += [str(ref) for ref in dict.fromkeys(refs) if ref not in missing]
    return refs


def cached(context: Context, data: Ref | list[Ref]) -> Any:
    """The Prefect state of a task whose result was there."""
    for ref in [data] if isinstance(data, Ref) else data:
        context.reused.append(str(ref))
    return Completed(name="Cached", message="found in the store", data=data)


def open_store(uri: str) -> Store:
    """The run's store, known to be writable."""
    store = Store(uri)
    store.check_writable()
    return store
