"""What a run would do: every stage with its key, whether it is there, and what it may cost."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from memlib.comparison import flat
from memlib.errors import MissingArtifact
from memlib.store import Ref, Store

SAMPLE, NEIGHBORS = 50, 5


@dataclass(frozen=True)
class Planned:
    """A part of a stage.

    Attributes:
        ref: its artifact.
        hit: whether that is committed.
        seconds: what computing it may take on one worker, from artifacts of the same stage; None when there are none.
    """

    ref: Ref
    hit: bool
    seconds: float | None


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
            manifests = self._store.manifests(stage, limit=SAMPLE)
            self._known[stage] = [
                (dict(flat(m["spec"])), m["metrics"]["seconds"] / max(m["metrics"]["units"], 1e-9)) for m in manifests
            ]
        known, mine = self._known[stage], dict(flat(spec))
        if not known:
            return None
        alike = sorted(known, key=lambda other: -sum(mine.get(name) == value for name, value in other[0].items()))
        return float(statistics.median(rate for _, rate in alike[:NEIGHBORS]) * units)


@dataclass
class Plan:
    """What a flow would do, noted while it runs without computing anything.

    Attributes:
        stages: names of the stages that the flow can have, in order.
        parts: what was found so far, each artifact once.
        blocked: the artifact without which nothing more can be said.
    """

    store: Store
    stages: tuple[str, ...]
    parts: dict[Ref, Planned] = field(default_factory=dict)
    blocked: Ref | None = None

    def __post_init__(self) -> None:
        self._costs = Costs(self.store)

    def note(self, ref: Ref, spec: Any, units: float, *, forced: bool = False) -> None:
        """Adds a part of a stage."""
        if ref not in self.parts:
            hit = self.store.has(ref) and not forced
            self.parts[ref] = Planned(ref, hit, None if hit else self._costs.estimate(ref.stage, spec, units))

    def stop_at(self, missing: MissingArtifact) -> None:
        """Notes that the flow needs what is not there yet."""
        self.blocked = missing.ref

    @property
    def open_stages(self) -> list[str]:
        """Stages of which nothing is known yet."""
        if self.blocked is None:
            return []
        seen = {ref.stage for ref in self.parts}
        reached = max((n for n, stage in enumerate(self.stages) if stage in seen), default=-1)
        return list(self.stages[reached + 1 :])

    def by_stage(self) -> Iterator[tuple[str, list[Planned]]]:
        """The parts of every stage, in order of their first appearance."""
        for stage in dict.fromkeys(ref.stage for ref in self.parts):
            yield stage, [part for part in self.parts.values() if part.ref.stage == stage]

    def as_json(self) -> Mapping[str, Any]:
        """The whole plan, plain."""
        parts = [
            {"stage": part.ref.stage, "key": part.ref.key, "hit": part.hit, "seconds": part.seconds}
            for part in self.parts.values()
        ]
        blocked = None if self.blocked is None else str(self.blocked)
        return {"parts": parts, "blocked_by": blocked, "open_stages": self.open_stages}
