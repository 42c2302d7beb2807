"""Reuse of artifacts that are committed, intact, and computed from the present content of their inputs; their eviction."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import TypeVar

from memlib.errors import CorruptArtifact, MissingArtifact, RunError
from memlib.pipeline.stage import AnyArtifact, AnyStage, Known, in_words
from memlib.runs.garbage import under_way
from memlib.specs import Resources
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store

MOST_TIMES = 5  # that a run goes on after other drivers have discarded what it reads
Done = TypeVar("Done")


@dataclass(frozen=True)
class Reuse:
    """The rules by which artifacts of a store are reused; artifacts that are not are discarded."""

    store: Store  #: store of the artifacts.
    known: Known  #: artifacts of the run so far.
    options: RunOptions  #: stages to recompute, and whether models are retrained whose inputs have changed.
    warn: Callable[[str], None]  #: called with a warning for each artifact that is computed again.
    #: artifacts of forced stages that were already discarded; each is discarded once per run.
    renewed: set[Ref] = field(default_factory=set)

    def holds(self, ref: Ref, kind: type[AnyStage]) -> bool:
        """Return whether an artifact is reused; if it is damaged, outdated or of a forced stage, discard it.

        Raises:
            RunError: for a trained model whose inputs were recomputed with different content, unless the run may cascade.
        """
        if ref.stage_name in self.options.force and ref not in self.renewed:
            self.renewed.add(ref)
            self._discard(ref)
            return False
        try:
            manifest = self.store.artifacts.lookup(ref.stage, ref.key)
        except CorruptArtifact as damage:
            if not is_damaged(self.store, ref):  # another driver has recomputed it, or the store's listing is behind
                return self.store.artifacts.has(ref)
            self.warn(f"{damage}; computing it again")
            self.known.discard(self.store, ref)
            return False
        if manifest is None:
            return False
        try:
            changed = self.known.changed_since(self.store, self.store.artifacts.manifest(ref))
        except MissingArtifact:  # another driver has discarded it since
            return False
        if not changed:
            return True
        reason = in_words(ref, changed)
        if kind.place == "fleet" and not self.options.cascade:
            raise RunError(f"{reason}; --cascade trains the model again and recomputes what depends on it")
        self.warn(f"{reason}; computing the artifact again")
        self._discard(ref)
        return False

    def _discard(self, ref: Ref) -> None:
        """Discard an artifact, and the state of an interrupted attempt."""
        self.known.discard(self.store, ref)
        self.store.resume.drop(ref.key)


def going_on(work: Callable[[], Done], store: Store, known: Known, say: Callable[[str], None]) -> Done:
    """Carry out an audit, and go on where an artifact that it reads was discarded, recomputed or damaged meanwhile.

    What was computed is found in the store; damaged artifacts are discarded, and those that are gone are computed again.

    Args:
        work: the audit from its beginning.
        store: store of the artifacts.
        known: artifacts of the run, whose content is looked up anew.
        say: called with a line each time.

    Raises:
        CorruptArtifact: when this has happened MOST_TIMES.
    """
    for _ in range(MOST_TIMES):
        try:
            return work()
        except CorruptArtifact as error:
            if error.ref is None:
                raise
            if is_damaged(store, error.ref):
                known.discard(store, error.ref)
            known.look_again()
            say(f"{error}; going on with what the store holds now")
    return work()


def is_damaged(store: Store, ref: Ref) -> bool:
    """Return whether an artifact is still damaged: another cell or driver may have recomputed it since it was read."""
    try:
        return bool(store.artifacts.problems(ref))
    except MissingArtifact:
        return False
    except CorruptArtifact:
        return True
    except (RunError, OSError):  # the store does not answer; the next run checks again
        return False


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
