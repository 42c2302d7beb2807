"""Eviction of files that only the next stage reads."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatch

from memlib.pipeline.stage import AnyArtifact
from memlib.runs.garbage import under_way
from memlib.specs import Resources
from memlib.store import Store


def evict(store: Store, artifacts: Sequence[AnyArtifact], resources: Resources, *, say: Callable[[str], None]) -> None:
    """Evict the transient files of artifacts, if the resources allow it and no run in progress may read them.

    Args:
        artifacts: artifacts of a run that has ended; the attribute `transient` of their stages selects the transient files.
        resources: resources of that run; keep_embeddings prevents eviction.
        say: called with a message for the user.
    """
    if resources.keep_embeddings or not artifacts:
        return
    if under_way(store, days=1):
        say("embeddings are kept, as other runs are in progress (resources.keep_embeddings)")
        return
    freed = 0
    for artifact in dict.fromkeys(artifacts):
        names = [name for name in artifact.files if artifact.stage.transient and fnmatch(name, artifact.stage.transient)]
        freed += store.artifacts.evict(artifact.ref, names)
    if freed:
        say(f"{freed / 2**20:.1f} MiB of embeddings were evicted (resources.keep_embeddings)")
