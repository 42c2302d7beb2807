"""A runner that follows a flow and carries nothing out: the base of those that plan a run, and that price it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from memlib.pipeline.stage import NO_CELLS, AnyArtifact, Artifact, Ended, Out, Stage
from memlib.pipeline.tables import Tables
from memlib.runs.records import RunRecord
from memlib.specs import Resources, Spec
from memlib.store import Store


class FollowingRunner(ABC):
    """A runner that computes, evicts and publishes nothing.

    Args:
        store: the store of the run.
        resources: machines and limits of the run.
    """

    def __init__(self, store: Store, resources: Resources) -> None:
        self._store, self._resources = store, resources

    @property
    def store(self) -> Store:
        """The store of the run."""
        return self._store

    @property
    def resources(self) -> Resources:
        """The machines and limits, which do not affect results."""
        return self._resources

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Follow a step of one part, and return its artifact, which may not exist."""
        return self.run_all([stage])[0]

    @abstractmethod
    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Follow the parts of a step, and return their artifacts, which may not exist."""

    def evict(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Evict nothing."""
        return

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord | None:
        """Publish nothing."""
        return None
