"""Runners for one process, without Prefect and Ray: one computes an audit, the other only republishes a finished one."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of
from memlib.audits.last_stages import run_id
from memlib.errors import RunError, UserError
from memlib.pipeline.old_code import OldCode
from memlib.pipeline.stage import (
    NO_CELLS,
    AnyArtifact,
    AnyStage,
    Artifact,
    CellRequest,
    Ended,
    Known,
    Out,
    Stage,
)
from memlib.pipeline.tables import Tables
from memlib.running.cells import finished_cells, forced_in, problem_of
from memlib.running.publishing import Work, publish_again, publish_audit, said_of_erased
from memlib.running.reuse import Reuse, going_on
from memlib.running.threads import threads_of
from memlib.runs.records import PlanFile, RunRecord
from memlib.specs import Resources, Spec
from memlib.specs.resources import RunOptions
from memlib.store import Ref, Store

if TYPE_CHECKING:
    import torch


class PlainRunner:
    """A runner that executes stages one by one in this process, for notebooks and tests; committed artifacts are reused.

    Args:
        store: store of the artifacts.
        device: device to compute on; the CPU by default.
        resources: machines and limits, recorded in the run's manifest.
        plan: the frozen plan that the run was given, if any.
        options: stages to recompute, and whether models are retrained whose inputs have changed.

    Attributes:
        warnings: warnings for the user.
        transient: artifacts with files that may be evicted, see `memlib.running.reuse.evict`.
        known: artifacts of the run so far.
        old_code: stages whose artifacts were reused although their code has changed.
    """

    def __init__(
        self,
        store: Store,
        device: torch.device | None = None,
        resources: Resources = Resources(),
        plan: PlanFile | None = None,
        options: RunOptions = RunOptions(),
    ) -> None:
        self._store, self._device, self._options = store, device, options
        self.known, self._work = Known(), Work(resources, plan=plan, look=options.look)
        self._reuse = Reuse(store, self.known, options, lambda text: self.warn(text))
        self._stages: dict[Ref, tuple[AnyStage, int]] = {}
        self.warnings: list[str] = []
        self.old_code = OldCode()
        self.transient: list[AnyArtifact] = []

    @property
    def store(self) -> Store:
        """The store of the artifacts."""
        return self._store

    @property
    def resources(self) -> Resources:
        """The machines and limits, which do not affect results."""
        return self._work.resources

    @property
    def computed(self) -> Sequence[str]:
        """The addresses of the artifacts computed so far."""
        return self._work.computed

    @property
    def reused(self) -> Sequence[str]:
        """The addresses of the artifacts found in the store so far."""
        return self._work.reused

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Run a stage unless its artifact is committed and intact, see `Reuse`.

        Raises:
            RunError: for a trained model whose inputs were recomputed with different content.
        """
        return self._run(stage, 1)

    def _run(self, stage: Stage[Out], parts: int) -> Artifact[Out]:
        """Run one of the parts of a step."""
        ref = stage.identity.ref
        self.known.add(ref)
        self._stages[ref] = stage, parts
        if self._is_current(stage, ref):
            self._work.reused.append(str(ref))
            self.old_code.note(self._store, ref, stage)
        else:
            self._make(stage, ref, parts)
            self._work.computed.append(str(ref))
        return Artifact(self._store, ref, type(stage))

    def _is_current(self, stage: AnyStage, ref: Ref) -> bool:
        """Return whether the artifact exists and was computed from the current content of its inputs; else discard it."""
        return self._reuse.holds(ref, type(stage))

    def _make(self, stage: AnyStage, ref: Ref, parts: int) -> None:
        """Compute one of the parts of a step, with the threads that every other runner would give it."""
        for artifact in stage.reads_transient:
            if not self._store.artifacts.is_complete(artifact.ref):
                self.known.discard(self._store, artifact.ref, evicted=True)
                self._make(self._stages[artifact.ref][0], artifact.ref, self._stages[artifact.ref][1])
        self._compute(stage, ref, threads_of(self.resources, stage, parts))

    def _compute(self, stage: AnyStage, ref: Ref, threads: int) -> None:
        """Compute an artifact that is not in the store."""
        import torch

        with self._store.artifacts.write(ref, **self.known.record(self._store, stage)) as attempt:
            attempt.warn, attempt.progress = self.warn, functools.partial(self.progress, stage)
            attempt.resume_seconds = self.resources.resume_seconds
            with naming(stage):
                stage.fill(attempt, self._device or torch.device("cpu"), threads)

    def progress(self, stage: AnyStage, done: float, total: float) -> None:
        """Show how far the computation of a stage has come; a plain runner shows nothing."""

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Run the parts of a step in the given order."""
        assert len({type(stage) for stage in stages}) <= 1, "parts of one step are of one class"  # as on a cluster
        parts = len({stage.identity.ref for stage in stages})
        return [self._run(stage, parts) for stage in stages]

    def evict(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Append artifacts to `transient`."""
        self.transient += artifacts

    def warn(self, text: str) -> None:
        """Append a warning to `warnings`."""
        self.warnings.append(text)

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord:
        """Publish a run's tables and page, and return its manifest."""
        if said := said_of_erased(self._store, artifacts.values()):
            self.warn(said)
        return publish_audit(self._store, self._work, recipe, scores, report, artifacts, cells=cells)

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> Ended:
        """Run cells one after another, except those that are already finished."""
        done: dict[str, RunRecord | str] = {}
        unforced = {name: cell for name, cell in cells.items() if not forced_in(cell, self._options)}
        done |= finished_cells(unforced, self._store, self.resources, say=self.warn, transient=self.transient)
        for name, cell in cells.items():
            if name not in done:
                inner = copy.copy(self)  # shares what is known of artifacts
                inner._work = Work(self.resources, look=look)
                self.warnings += AUDITS[cell.audit].limits(cell.recipe)
                try:
                    body = functools.partial(body_of(AUDITS[cell.audit]), inner, cell.recipe)
                    run = going_on(body, self._store, self.known, self.warn)
                    assert run is not None
                    done[name] = run
                except Exception as error:
                    done[name] = problem_of(name, error)
                self._work.computed += inner.computed
        return {name: done[name] for name in cells}


@contextlib.contextmanager
def naming(stage: AnyStage) -> Iterator[None]:
    """Name the model in an error that its training raises in the block."""
    try:
        yield
    except (RunError, UserError) as error:
        if stage.place != "fleet" or type(error) not in (RunError, UserError):  # others are not the model's own fault
            raise
        raise type(error)(f"{stage.label}: {error}") from error


class Unfinished(RunError):
    """A run that cannot be republished because one of its artifacts has yet to be computed."""


class FinishedRunner(PlainRunner):
    """A runner that republishes an audit whose artifacts are all committed; it computes nothing."""

    def publish(
        self,
        recipe: Spec,
        scores: Artifact[Tables],
        report: Artifact[Path],
        artifacts: Mapping[str, AnyArtifact],
        *,
        cells: Ended = NO_CELLS,
    ) -> RunRecord:
        """Record that the run was already finished; publish it in full if it has changed or lacks files."""
        manifest = publish_again(self._store, self._work, run_id(recipe, scores), recipe, cells)
        return super().publish(recipe, scores, report, artifacts, cells=cells) if manifest is None else manifest

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> Ended:
        """Return the finished runs of all cells."""
        runs = finished_cells(cells, self._store, self.resources, say=self.warn, transient=self.transient)
        if missing := cells.keys() - runs.keys():
            raise Unfinished(f"cells are not finished: {', '.join(sorted(missing))}")
        return runs

    def _is_current(self, stage: AnyStage, ref: Ref) -> bool:
        """Return whether the artifact is committed; what is not current is left to a runner that reports and computes it."""
        artifacts = self._store.artifacts
        return artifacts.lookup(ref.stage, ref.key) is not None and not self.known.changed_since(
            self._store, artifacts.manifest(ref)
        )

    def _make(self, stage: AnyStage, ref: Ref, parts: int) -> None:
        raise Unfinished(f"{ref} is not committed")
