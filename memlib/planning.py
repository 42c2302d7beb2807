"""What a run would do: every stage with its key, whether it is there, and what it may cost; nothing is computed."""

import contextlib
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memlib.comparison import flat
from memlib.errors import CorruptArtifact, MissingArtifact, UnknownUntilRun
from memlib.results import Tables
from memlib.specs import Resources, Spec
from memlib.stage import AnyArtifact, AnyStage, Artifact, Known, Out, Stage, has_changed_code, in_words
from memlib.store import Ref, Store

SAMPLE, NEIGHBORS = 50, 5


@dataclass(frozen=True)
class Planned:
    """A part of a stage.

    Attributes:
        ref: its artifact.
        hit: whether that is committed.
        seconds: what computing it may take on one worker, from artifacts of the same stage; None when there are none.
        after: stages before it that will be computed: it is computed again if what they make is not what it was made from.
    """

    ref: Ref
    hit: bool
    seconds: float | None
    after: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """Whether it is there and stays as it is."""
        return self.hit and not self.after


class Costs:
    """Seconds a unit of a stage's work took, by the artifacts in a store that are most alike."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, list[tuple[dict[str, Any], float]]] = {}

    def estimate(self, stage: str, spec: Any, units: float) -> float | None:
        """Seconds of one worker.

        Args:
            stage: whose.
            spec: of the work; what agrees in most keys is taken as an example.
            units: how much work it is, in what the stage counts.
        """
        if stage not in self._known:
            manifests = self._store.artifacts.manifests(stage, limit=SAMPLE)
            self._known[stage] = [(dict(flat(m.spec)), m.metrics.seconds / max(m.metrics.units, 1e-9)) for m in manifests]
        known, mine = self._known[stage], dict(flat(spec))
        if not known:
            return None
        alike = sorted(known, key=lambda other: -sum(mine.get(name) == value for name, value in other[0].items()))
        return float(statistics.median(rate for _, rate in alike[:NEIGHBORS]) * units)


@dataclass
class Plan:
    """What a flow would do, noted while it runs without computing anything.

    Attributes:
        parts: what was found so far, each artifact once.
        blocked: artifacts without which nothing more can be said, and the stages that come after.
        problems: cells of a sweep that cannot run, and why.
        limits: what the recipe cannot show, whatever the data.
        read: lines about what the data hold, or seem to hold, by stage.
        old_code: stages that are reused though their code has changed since, their version not.
    """

    store: Store
    parts: dict[Ref, Planned] = field(default_factory=dict)
    blocked: dict[Ref, tuple[str, ...]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    read: dict[str, list[str]] = field(default_factory=dict)
    old_code: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._costs = Costs(self.store)
        self._seen: set[str] = set()

    def note(self, ref: Ref, spec: Any, units: float, *, before: Sequence[Ref] = (), forced: bool = False) -> None:
        """Adds a part of a stage.

        Args:
            ref: its artifact.
            spec, units: of the work.
            before: the artifacts that it reads.
            forced: whether it is computed again though it is there.
        """
        self._seen.add(ref.stage)
        if ref not in self.parts:
            hit = self.store.artifacts.has(ref) and not forced
            seconds = None if hit else self._costs.estimate(ref.stage, spec, units)
            again = [other for other in before if other in self.parts and not self.parts[other].is_settled]
            self.parts[ref] = Planned(ref, hit, seconds, tuple(dict.fromkeys(other.stage for other in again)) if hit else ())

    def again(self, ref: Ref, spec: Any, units: float) -> None:
        """Note that an artifact is made again, as somebody reads what was let go of it."""
        self.parts[ref] = Planned(ref, False, self._costs.estimate(ref.stage, spec, units))

    def saw(self, stage: str) -> None:
        """Note that a flow has come to a stage."""
        self._seen.add(stage)

    @contextlib.contextmanager
    def following(self, stages: Sequence[str]) -> Iterator[None]:
        """Follows one flow, whose stages these are in order, to its end or to what it cannot do without."""
        self._seen = set()
        try:
            yield
        except MissingArtifact as missing:
            self.blocked[missing.ref] = self._after(stages)
        except UnknownUntilRun as unknown:
            said = f"not known before it runs: {unknown}"
            later = self._after(stages)
            self.limits.append(f"{said}; after it come {', '.join(later)}" if later else said)

    def _after(self, stages: Sequence[str]) -> tuple[str, ...]:
        """Stages of a flow after the last one that was reached."""
        reached = max((n for n, stage in enumerate(stages) if stage in self._seen), default=-1)
        return tuple(stages[reached + 1 :])

    def by_stage(self) -> Iterator[tuple[str, list[Planned]]]:
        """The parts of every stage, in order of their first appearance."""
        for stage in dict.fromkeys(ref.stage for ref in self.parts):
            yield stage, [part for part in self.parts.values() if part.ref.stage == stage]

    @property
    def all_limits(self) -> list[str]:
        """What the recipe cannot show, and what is reused though its code has changed."""
        return [*self.limits, in_words(self.old_code)] if self.old_code else self.limits

    def cascade(self) -> dict[str, list[str]]:
        """Stages that are there and are computed again if stages before them come out otherwise, with these."""
        found: dict[str, dict[str, None]] = {}
        for part in self.parts.values():
            if part.after:
                found.setdefault(part.ref.stage, {}).update(dict.fromkeys(part.after))
        return {stage: list(after) for stage, after in found.items()}

    def as_json(self) -> Mapping[str, Any]:
        """The whole plan, plain."""
        parts = [
            {
                "stage": part.ref.stage,
                "key": part.ref.key,
                "hit": part.hit,
                "seconds": part.seconds,
                "after": list(part.after),
            }
            for part in self.parts.values()
        ]
        blocked = {str(ref): list(stages) for ref, stages in self.blocked.items()}
        said = {"blocked": blocked, "problems": self.problems, "limits": self.all_limits, "read": self.read}
        return {"parts": parts, **said}


class PlanRunner:
    """Notes what the stages of an audit would do, instead of running them.

    Args:
        plan: where it is noted.
        resources: machines.
        forced: stages that would be computed again though they are there.
    """

    def __init__(self, plan: Plan, resources: Resources | None = None, forced: Collection[str] = ()) -> None:
        self.plan, self._resources, self._forced = plan, resources or Resources(), forced
        self._known = Known()
        self._artifacts: dict[Ref, AnyArtifact] = {}
        self._stages: dict[Ref, AnyStage] = {}

    @property
    def store(self) -> Store:
        """Where artifacts are."""
        return self.plan.store

    @property
    def resources(self) -> Resources:
        """Machines, which change no result."""
        return self._resources

    def run(self, stage: Stage[Out]) -> Artifact[Out]:
        """Note a stage, and return its artifact, which may not be there."""
        return self.run_all([stage])[0]

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Note the parts of a step."""
        for stage in stages:
            self._known.add(stage.identity.ref)
        for stage in stages:
            self._note(stage)
        return [self._artifact(stage) for stage in stages]

    def _artifact(self, stage: Stage[Out]) -> Artifact[Out]:
        """The artifact of a stage, one for all cells of a sweep: what was read of it is read once."""
        found: Artifact[Out] = self._artifacts.setdefault(
            stage.identity.ref, Artifact(self.store, stage.identity.ref, type(stage))
        )
        return found

    def let_go(self, artifacts: Sequence[AnyArtifact]) -> None:
        """Let nothing go."""

    def warn(self, text: str) -> None:
        """Note a line among the limits of the plan."""
        self.plan.limits.append(text)

    def publish(
        self, recipe: Spec, scores: Artifact[Tables], report: Artifact[Path], artifacts: Mapping[str, AnyArtifact]
    ) -> None:
        """Publish nothing."""

    def _note(self, stage: AnyStage) -> None:
        ref, plan = stage.identity.ref, self.plan
        if ref in plan.parts:  # another cell of a sweep has it, too
            plan.saw(ref.stage)
            return
        stale = False
        with contextlib.suppress(CorruptArtifact):
            stale = bool(self._known.changed_since(self.store, self.store.artifacts.manifest(ref)))
        before = self._known.named_in(stage.identity.inputs)
        plan.note(ref, stage.identity.spec, stage.units, before=before, forced=ref.stage_name in self._forced or stale)
        if stage.passing:
            self._stages[ref] = stage
        for artifact in () if plan.parts[ref].hit else stage.reads_passing:
            if plan.parts[artifact.ref].hit and self.store.artifacts.let_go_of(artifact.ref):
                gone = self._stages[artifact.ref]
                plan.again(artifact.ref, gone.identity.spec, gone.units)
        with contextlib.suppress(CorruptArtifact):
            there = self._artifact(stage) if plan.parts[ref].hit else None
            plan.read.setdefault(stage.title, []).extend(stage.preview() if there is None else stage.described(there))
        if not stale and ref.stage_name not in plan.old_code and has_changed_code(self.store, ref, stage.declared):
            plan.old_code.append(ref.stage_name)
