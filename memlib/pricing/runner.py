"""The price of a run: its flow is followed to the end, with stand-ins for what is not computed yet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of, stage_names
from memlib.audits.base import Audit
from memlib.errors import MissingArtifact, RunError, UnknownUntilRun, UserError
from memlib.pipeline import user_code
from memlib.pipeline.following import FollowingRunner
from memlib.pipeline.stage import AnyArtifact, AnyStage, Artifact, CellRequest, Out, Stage
from memlib.pricing.expected import declared, expect
from memlib.pricing.stages import work_of
from memlib.pricing.work import Work
from memlib.specs import Resources, Spec
from memlib.store import Attempt, Ref, Store


@dataclass(frozen=True)
class Part:
    """One part of a stage that has yet to be computed."""

    stage: AnyStage
    ref: Ref
    work: Work | None  #: None if it is not known.


@dataclass
class Following:
    """The parts that a flow has yet to compute, and where it could not be followed."""

    parts: list[Part] = field(default_factory=list)
    stopped: dict[str, str] = field(default_factory=dict)  #: why stages could not be reached, by stage.


@contextlib.contextmanager
def followed(
    audit: Audit, recipe: Spec, store: Store, resources: Resources, *, forced: Collection[str] = ()
) -> Iterator[Following]:
    """Follow a run's flow, with the work of all parts that are not in the store."""
    found = Following()
    with tempfile.TemporaryDirectory(prefix="memlib-price-") as folder, user_code.planning():
        runner = PricingRunner(store, Store(str(Path(folder) / "expected")), resources, found, forced)
        with declared(recipe):
            runner.follow(audit, recipe)
            yield found


class PricingRunner(FollowingRunner):
    """A runner that notes the work of each stage, and computes none.

    Args:
        store: the store of the run.
        scratch: a store for stand-ins, which is deleted afterwards.
        resources: machines and limits of the run.
        found: filled with what is found.
        forced: stages that are computed even if the store holds them.
    """

    def __init__(
        self, store: Store, scratch: Store, resources: Resources, found: Following, forced: Collection[str] = ()
    ) -> None:
        super().__init__(store, resources)
        self._scratch, self._found, self._forced = scratch, found, forced
        self._artifacts: dict[Ref, AnyArtifact] = {}
        self._seen: set[str] = set()

    def follow(self, audit: Audit, recipe: Spec) -> None:
        """Follow a flow to its end, or to the first value that nothing can stand for."""
        names, self._seen = stage_names(audit, recipe), set()
        try:
            body_of(audit)(self, recipe)
        except Exception as error:  # a stand-in is not all that its artifact will be
            known = isinstance(error, UnknownUntilRun | UserError | RunError | OSError)
            reason = str(error) if known else f"no stand-in for what it reads ({type(error).__name__})"
            if isinstance(error, MissingArtifact):
                reason = f"{error.ref.stage} decides"
            reached = max((place for place, name in enumerate(names) if name in self._seen), default=-1)
            self._found.stopped |= dict.fromkeys(names[reached + 1 :], reason)

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Note the work of the parts of a step, and return their artifacts or stand-ins."""
        return [self._noted(stage) for stage in stages]

    def _noted(self, stage: Stage[Out]) -> Artifact[Out]:
        ref = stage.identity.ref
        self._seen.add(ref.stage)
        if ref not in self._artifacts:
            if self._store.artifacts.has(ref) and ref.stage_name not in self._forced:
                self._artifacts[ref] = Artifact(self._store, ref, type(stage))
            else:
                self._artifacts[ref] = expected = Artifact(self._scratch, ref, type(stage))
                with contextlib.suppress(MissingArtifact), self._writing(stage) as attempt:
                    attempt.warn = lambda text: None
                    expect(stage, attempt)
                self._found.parts.append(Part(stage, ref, self._work(stage, expected)))
        artifact: Artifact[Out] = self._artifacts[ref]
        return artifact

    def _work(self, stage: AnyStage, expected: AnyArtifact) -> Work | None:
        """Return a stage's work; a plan is shown even where it cannot be counted."""
        try:
            work: Work | None = work_of(stage, expected)
        except Exception as error:  # whatever an unusual model does on the meta device
            self._found.stopped[stage.declared.name] = f"its work could not be counted ({type(error).__name__})"
            return None
        return work

    def _writing(self, stage: AnyStage) -> contextlib.AbstractContextManager[Attempt]:
        identity = stage.identity
        return self._scratch.artifacts.write(identity.ref, spec=identity.spec, inputs=identity.inputs, units=stage.units)

    def warn(self, text: str) -> None:
        """Say nothing: the plan does."""

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> None:
        """Follow each cell; what cells share is noted once."""
        for cell in cells.values():
            self.follow(AUDITS[cell.audit], cell.recipe)
