"""Plan of a run: the stages with their keys, whether each is already committed, and estimated costs; nothing is computed."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from memlib.audits import AUDITS
from memlib.audits.arrangement import body_of, stage_names
from memlib.errors import CorruptArtifact, MissingArtifact, RunError, UnknownUntilRun, UserError
from memlib.pipeline.following import FollowingRunner
from memlib.pipeline.old_code import OldCode
from memlib.pipeline.stage import (
    AnyArtifact,
    AnyStage,
    Artifact,
    CellRequest,
    Identity,
    Known,
    Out,
    Stage,
)
from memlib.specs import Resources
from memlib.store import Ref, Store

if TYPE_CHECKING:
    from memlib.pricing.price import Price

MEASURABLE = 0.5  # seconds


def in_time(seconds: float) -> str:
    """Return a duration as text, in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= MEASURABLE else "less than 1 s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def in_bytes(size: float) -> str:
    """Return a number of bytes as text, in MiB, GiB or TiB."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 2**20:.1f} MiB"


@dataclass(frozen=True)
class Planned:
    """One part of a stage in a plan.

    Attributes:
        ref: address of the part's artifact.
        hit: whether the artifact is committed.
        after: earlier stages that will be computed; if their outputs differ from the ones that this part was computed from,
            the part is recomputed as well.
    """

    ref: Ref
    hit: bool
    after: tuple[str, ...] = ()

    @property
    def is_settled(self) -> bool:
        """True if the artifact is committed and no earlier stage can invalidate it."""
        return self.hit and not self.after


@dataclass
class Plan:
    """The work that a flow would do, recorded by running it with a `PlanRunner`, which computes nothing.

    Attributes:
        store: the store in which artifacts are looked up.
        parts: the parts recorded so far, one per artifact.
        blocked: missing artifacts without which the plan cannot continue, each with the stages after that point.
        problems: cells of a sweep that cannot run, with the reasons.
        limits: limitations of the recipe, including values that are unknown before the run.
        read: lines that describe the content of the data, or its likely content before decoding, by stage.
        old_code: stages whose artifacts are reused although their code has changed.
        identities: the identity of each part that was reached.
        unreached: names of the stages that a flow could not be followed to.
        is_partial: whether stages are missing from the plan, because a flow could not be followed to its end.
        pricing: function that follows the flow once more for the price of what is missing; None if nobody asks for it.

    Example:
        >>> import memlib
        >>> plan = memlib.plan("moons.yaml")
        >>> plan.cost  # after a run
        'nothing to compute: all stages are in the store'
        >>> {stage: len(parts) for stage, parts in plan.by_stage()}["gradient_norms"]  # one part per checkpoint
        2
    """

    store: Store
    parts: dict[Ref, Planned] = field(default_factory=dict)
    blocked: dict[Ref, tuple[str, ...]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    read: dict[str, list[str]] = field(default_factory=dict)
    old_code: OldCode = field(default_factory=OldCode)
    identities: dict[Ref, Identity] = field(default_factory=dict)
    unreached: dict[str, None] = field(default_factory=dict)
    is_partial: bool = False
    pricing: "Callable[[], Price] | None" = None

    def __str__(self) -> str:
        lines = [
            f"{stage}: {sum(part.hit for part in parts)} of {len(parts)} in the store" for stage, parts in self.by_stage()
        ]
        return "\n".join([*lines, *self.unknown, *self.all_limits, self.cost])

    @property
    def is_finished(self) -> bool:
        """True if all stages are in the store."""
        return bool(self.parts) and not self.is_partial and all(part.is_settled for part in self.parts.values())

    @property
    def is_lower_bound(self) -> bool:
        """True if more may have to be computed than the price accounts for."""
        without = self.price is None or bool(self.price.stopped)
        return not self.is_finished and (without or bool(self.problems) or bool(self.cascade()))

    @cached_property
    def price(self) -> "Price | None":
        """The price of what is missing; None if nothing is, or if nobody can say."""
        return None if self.is_finished or self.pricing is None else self.pricing()

    @property
    def seconds(self) -> float | None:
        """Estimated compute time in seconds of one core or GPU; None if only that of some stages is known, and too short."""
        if self.is_finished:
            return 0.0
        spent = 0.0 if self.price is None else self.price.total("cpu_seconds")
        return None if self.is_lower_bound and spent < MEASURABLE else spent

    @property
    def cost(self) -> str:
        """One line with the price of the missing stages, or with the reason why there is none."""
        if self.is_finished:
            return "nothing to compute: all stages are in the store"
        if self.price is None or self.seconds is None:
            return "no cost estimate: the stages to compute are not known before the run"
        price, least = self.price, "at least " if self.is_lower_bound else ""
        gpu, factor = price.total("gpu_seconds"), price.factor
        alone = price.total("cpu_seconds") - gpu  # beside each GPU there is a core
        spent = f"{in_time(alone)} of one core" + (f" and {in_time(gpu)} of one GPU" if gpu else "")
        return (
            f"to compute: {least}{spent}, give or take a factor of {factor:.2g}; {in_time(price.total('wall_seconds'))} with "
            f"{'all GPUs that it asks for' if gpu else 'this machine'}; a worker needs {in_bytes(price.total('memory'))} of "
            f"memory; {in_bytes(price.total('written'))} are written, of which {in_bytes(price.total('kept'))} stay"
        )

    @property
    def unknown(self) -> list[str]:
        """Lines on the stages whose keys depend on artifacts that are not computed yet."""
        return [
            f"unknown until {ref.stage} {ref.key[:12]} is computed: {', '.join(later)}" for ref, later in self.blocked.items()
        ]

    def __post_init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, ref: Ref, *, before: Sequence[Ref] = (), forced: bool = False) -> None:
        """Record one part of a stage.

        Args:
            ref: address of the part's artifact.
            before: addresses of the artifacts that the part reads.
            forced: whether the part is recomputed even if its artifact is committed.
        """
        self._seen.add(ref.stage)
        if ref not in self.parts:
            hit = self.store.artifacts.has(ref) and not forced
            again = [other for other in before if other in self.parts and not self.parts[other].is_settled]
            self.parts[ref] = Planned(ref, hit, tuple(dict.fromkeys(other.stage for other in again)) if hit else ())

    def again(self, ref: Ref) -> None:
        """Record that an artifact is recomputed because a later stage reads files that were evicted from it."""
        self.parts[ref] = Planned(ref, False)

    def saw(self, stage: str) -> None:
        """Record that a flow has reached a stage."""
        self._seen.add(stage)

    @contextlib.contextmanager
    def following(self, stages: Sequence[str]) -> Iterator[None]:
        """Follow one flow to its end, or to the first missing artifact or value that it needs.

        Args:
            stages: the stages of the flow, in order.
        """
        self._seen = set()
        try:
            yield
        except MissingArtifact as missing:
            self.blocked[missing.ref] = self._left_out(stages)
        except UnknownUntilRun as unknown:
            message = f"not known before the run: {unknown}"
            later = self._left_out(stages)
            self.limits.append(f"{message}; stages after it: {', '.join(later)}" if later else message)

    def _left_out(self, stages: Sequence[str]) -> tuple[str, ...]:
        """Record and return the stages of a flow after the last one that was reached."""
        reached = max((n for n, stage in enumerate(stages) if stage in self._seen), default=-1)
        later = tuple(stages[reached + 1 :])
        self.is_partial, self.unreached = True, self.unreached | dict.fromkeys(later)
        return later

    def by_stage(self) -> Iterator[tuple[str, list[Planned]]]:
        """Yield each stage with its parts, in order of first appearance."""
        for stage in dict.fromkeys(ref.stage for ref in self.parts):
            yield stage, [part for part in self.parts.values() if part.ref.stage == stage]

    @property
    def all_limits(self) -> list[str]:
        """The limits of the recipe, and lines about stages that are reused although their code has changed."""
        return [*self.limits, *self.old_code.lines]

    def cascade(self) -> dict[str, list[str]]:
        """Return the earlier stages whose new outputs may invalidate a committed stage, by name of the committed stage."""
        stages: dict[str, dict[str, None]] = {}
        for part in self.parts.values():
            if part.after:
                stages.setdefault(part.ref.stage, {}).update(dict.fromkeys(part.after))
        return {stage: list(after) for stage, after in stages.items()}

    def as_json(self) -> Mapping[str, Any]:
        """Return the whole plan as plain JSON."""
        parts = [
            {
                "stage": part.ref.stage,
                "key": part.ref.key,
                "hit": part.hit,
                "after": list(part.after),
            }
            for part in self.parts.values()
        ]
        blocked = {str(ref): list(stages) for ref, stages in self.blocked.items()}
        rest = {"blocked": blocked, "problems": self.problems, "limits": self.all_limits, "read": self.read}
        price = None if self.price is None else self.price.as_json()
        return {"parts": parts, **rest, "price": price, "seconds": self.seconds, "is_lower_bound": self.is_lower_bound}


class PlanRunner(FollowingRunner):
    """A runner that records the stages of an audit in a plan instead of running them.

    Args:
        plan: the plan to fill.
        resources: machines and limits of the run.
        forced: stages that would be recomputed even if they are committed.
    """

    def __init__(self, plan: Plan, resources: Resources | None = None, forced: Collection[str] = ()) -> None:
        super().__init__(plan.store, resources or Resources())
        self.plan, self._forced = plan, forced
        self._known = Known()
        self._artifacts: dict[Ref, AnyArtifact] = {}

    def run_all(self, stages: Sequence[Stage[Out]]) -> list[Artifact[Out]]:
        """Record the parts of a step, and return their artifacts, which may not exist."""
        for stage in stages:
            self._known.add(stage.identity.ref)
        for stage in stages:
            self._note(stage)
        return [self._artifact(stage) for stage in stages]

    def _artifact(self, stage: Stage[Out]) -> Artifact[Out]:
        """Return the artifact of a stage, shared by all cells of a sweep so that its content is read once."""
        artifact: Artifact[Out] = self._artifacts.setdefault(
            stage.identity.ref, Artifact(self.store, stage.identity.ref, type(stage))
        )
        return artifact

    def warn(self, text: str) -> None:
        """Add a line to the limits of the plan."""
        self.plan.limits.append(text)

    def run_cells(self, cells: Mapping[str, CellRequest], *, look: str, at_once: int) -> None:
        """Follow each cell as far as it can be known."""
        for name, cell in cells.items():
            audit = AUDITS[cell.audit]
            try:
                with self.plan.following(stage_names(audit, cell.recipe)):
                    body_of(audit)(self, cell.recipe)
            except (UserError, RunError) as error:
                self.plan.problems[name] = str(error)

    def _note(self, stage: AnyStage) -> None:
        ref, plan = stage.identity.ref, self.plan
        if ref in plan.parts:  # shared with another cell of the sweep
            plan.saw(ref.stage)
            return
        plan.identities[ref] = stage.identity
        stale = False
        with contextlib.suppress(CorruptArtifact):
            stale = bool(self._known.changed_since(self.store, self.store.artifacts.manifest(ref)))
        before = self._known.named_in(stage.identity.inputs)
        plan.note(ref, before=before, forced=ref.stage_name in self._forced or stale)
        for artifact in () if plan.parts[ref].hit else stage.reads_transient:
            if plan.parts[artifact.ref].hit and self.store.artifacts.evicted_files(artifact.ref):
                plan.again(artifact.ref)
        with contextlib.suppress(CorruptArtifact):
            committed = self._artifact(stage) if plan.parts[ref].hit else None
            plan.read.setdefault(stage.title, []).extend(stage.preview() if committed is None else stage.described(committed))
        if not stale:
            plan.old_code.note(self.store, ref, stage)
