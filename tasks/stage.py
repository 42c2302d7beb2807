"""A stage: key -> committed? -> compute -> commit -> reference. The store alone says what is done."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from memlib.errors import CorruptArtifact
from memlib.identity import content_key
from memlib.store import Attempt, Ref, Store
from tasks.runtime import Context

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
    secret: bool = False,
) -> Any:
    """Runs a stage unless its result is committed.

    Args:
        context: the run's store and display.
        stage: the stage's name.
        version: the declared version of its code.
        spec: only what this stage is configured by.
        inputs: keys of what it reads, by role.
        compute: fills the attempt's folder.
        secret: whether the files hold private content.

    Returns:
        the artifact's reference, or the Prefect state Cached with it when there was nothing to do.
    """
    ref = Ref(stage, content_key(stage, version=version, spec=spec, inputs=inputs))
    if committed(context, ref):
        return cached(context, ref)
    context.say(f"{stage} {ref.key[:8]}: computing")
    with context.store.write(ref, spec=spec, inputs=inputs, secret=secret) as attempt:
        compute(attempt)
    context.computed.append(str(ref))
    return ref


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
