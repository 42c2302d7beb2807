"""Running an audit in one process, without Prefect and without Ray; or only publishing again what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memlib.errors import RunError
from memlib.exact import be_exact
from memlib.publishing import Work, publish_again, publish_audit
from memlib.records import RunRecord
from memlib.results import Tables
from memlib.specs import Resources, Spec
from memlib.stage import AnyArtifact, AnyStage, Artifact, Known, Out, Stage, has_changed_code
from memlib.store import Ref, Store

if TYPE_CHECKING:
    import torch


class PlainRunner:
    """Runs stages one after another in this process, for notebooks and tests; what is in the store is not computed again.

    Args:
        store: where artifacts are.
        device: where to compute; the CPU by default.

    Attributes:
        warnings: lines that must be seen.
        passing: artifacts whose files may be let go, see `memlib.upkeep.let_go`.
        old_code: stages that were reused though their code has changed since, their version not.
    """

    def __init__(self, store: Store, device: torch.device | None = None) -> None:
        self._store, self._device = store, device
        self._known, self._work = Known(), Work()
        self._stages: dict[Ref, AnyStage] = {}
        self.warnings: list[str] = []
        self.old_code: list[str] = []
        self.passing: list[AnyArtifact] = []

    @property
    def store(self) -> Store:
        """Where artifacts are."""
        return self._store

    @property
    def resources(self) -> Resources:
        """Machines, which change no result."""
        return self._work.resources

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a stage unless its artifact is there.

        Raises:
            CorruptArtifact: when it is there and damaged.
            RunError: when it was made from inputs that hold something else by now.
        """
        ref = stage.identity.ref
        self._known.add(ref)
        self._stages[ref] = stage
        if self._store.artifacts.lookup(ref.stage, ref.key) is None:
            self._make(stage, ref)
            self._work.computed.append(str(ref))
            return Artifact(self._store, ref, type(stage))
        if changed := self._known.changed_since(self._store, self._store.artifacts.manifest(ref)):
            raise RunError(f"{ref} was made from another {changed[0]}, which was made again since; discard it in the store")
        self._reuse(stage, ref)
        return Artifact(self._store, ref, type(stage))

    def _make(self, stage: AnyStage, ref: Ref) -> None:
        import torch

        for artifact in stage.reads_passing:
            if not self._store.artifacts.is_whole(artifact.ref):
                self._store.artifacts.discard(artifact.ref)
                self._known.forget_content(artifact.ref)
                self._make(self._stages[artifact.ref], artifact.ref)
        be_exact()
        record = stage.record(self._known.contents_of(self._store, stage.identity.inputs))
        with self._store.artifacts.write(ref, **record) as attempt:
            attempt.warn = self.warn
            stage.write(attempt, self._device or torch.device("cpu"))

    def _reuse(self, stage: AnyStage, ref: Ref) -> None:
        self._work.reused.append(str(ref))
        if ref.stage_name not in self.old_code and has_changed_code(self._store, ref, stage.declared):
            self.old_code.append(ref.stage_name)

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run the parts of a step in the order given."""
        return [self.run(stage) for stage in stages]

    def let_go(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Keep them in `passing`."""
        self.passing += artifacts

    def warn(self, text: str) -> None:
        """Keep a line that must be seen in `warnings`."""
        self.warnings.append(text)

    def publish(
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> RunRecord:
        """Publish a run's tables and page, and return its manifest."""
        return publish_audit(self._store, self._work, recipe, scores, report, artifacts)


class Unfinished(RunError):
    """An artifact of the run has to be made."""


class FinishedRunner(PlainRunner):
    """Goes through an audit whose artifacts are all there and publishes it again; it computes nothing.

    Args:
        store: where artifacts are.
        resources: machines, for the run's manifest.
    """

    def __init__(self, store: Store, resources: Resources) -> None:
        super().__init__(store)
        self._work = Work(resources)

    @property
    def reused(self) -> Sequence[str]:
        """The artifacts that were found, as text."""
        return self._work.reused

    def publish(
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> RunRecord:
        """Note that the run was found finished, or publish again what is not there."""
        found = publish_again(self._store, self._work, recipe, scores)
        return super().publish(recipe, scores, report, artifacts) if found is None else found

    def _make(self, stage: AnyStage, ref: Ref) -> None:
        raise Unfinished(f"{ref} is not there")
