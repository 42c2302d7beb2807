"""A stage: key -> committed? -> compute -> commit -> reference. The store alone says what is done."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

import torch
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from memlib.errors import CorruptArtifact
from memlib.identity import content_key
from memlib.store import Attempt, Ref, Store
from tasks.runtime import Context, run_on_cluster

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
        run_on_cluster(context, _compute_there, context.store, ref, record, on_cluster)
    else:
        with context.store.write(ref, **record) as attempt:
            compute(attempt)
    context.computed.append(str(ref))
    return ref


def _compute_there(
    store: Store, ref: Ref, record: Mapping[str, Any], compute: Callable[[Attempt, torch.device], None]
) -> None:
    """A stage in a Ray task: what it makes goes to the store from there."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with store.write(ref, **record) as attempt:
        compute(attempt, device)


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
