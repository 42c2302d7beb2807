"""Ranking of canaries: which model scores which canaries, the walks for exact ranks, and the fit of the skew-normal law."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from memlib.audits.exposure.models import SubjectModel
from memlib.audits.exposure.observing import Costs, Ranks
from memlib.audits.exposure.recipe import Config
from memlib.errors import RunError
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import Artifact, Place, Stage
from memlib.specs.text import UNSEEN
from memlib.store import Attempt

if TYPE_CHECKING:
    import torch

FIT = "fit.json"
Exact = dict[int, tuple[str, int, int]]  # by canary: method, rank and evaluations


@dataclass(frozen=True)
class ScoredModel:
    """A model at a checkpoint, and the canaries that it scores."""

    variant: str  #: variant, seed: identity of the training run.
    seed: int
    at: SubjectModel  #: the model at its checkpoint.
    config: Config  #: scoring settings.
    canaries: tuple[int, ...]  #: canaries, insertions: ids, and occurrences of each canary in the model's training data.
    insertions: tuple[int, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kind of each canary."""
        return self.at.data.kinds(self.canaries)


def rank_stages(models: Sequence[ScoredModel], costs: Sequence[Artifact[Costs]]) -> list[tuple[int, tuple[int, ...], Ranks]]:
    """Return (position of the model, ids of the canaries, stage) for every part of every walk through the space."""
    parts: list[tuple[int, tuple[int, ...], Ranks]] = []
    for number, (model, of_model) in enumerate(zip(models, costs, strict=True)):
        config, space, measured = model.config, model.at.data.space, of_model.content
        methods = _methods(model, measured)
        if not space.has_tree:
            methods = ["sampled" if method == "pruned" else method for method in methods]
        by_id = dict(zip(model.canaries, measured.canaries.tolist(), strict=True))
        pruned = [
            canary
            for canary, kind, method in zip(model.canaries, model.kinds, methods, strict=True)
            if method == "pruned" and kind != UNSEEN  # unseen secrets: only their costs are compared, not their ranks
        ]
        for canary in pruned:
            stage = Ranks(model.at, (canary,), (by_id[canary],), 0, 1, True, config.max_evaluations)
            parts.append((number, (canary,), stage))
        whole = tuple(canary for canary, method in zip(model.canaries, methods, strict=True) if method == "enumerated")
        shards = range(len(list(space.shards(config.shards)))) if whole else ()
        for shard in shards:
            canary_costs = tuple(by_id[canary] for canary in whole)
            parts.append((number, whole, Ranks(model.at, whole, canary_costs, shard, config.shards, False, None)))
    return parts


def _methods(model: ScoredModel, seen: Costs) -> list[str]:
    """Return the ranking method of each canary: the recipe's or, for auto, the one chosen for the canary."""
    from memlib.audits.exposure.scores import choose_method

    below = np.searchsorted(np.sort(seen.references), seen.canaries, side="right")
    return [choose_method(model.config, at_or_below=int(b), size=model.at.data.space.size) for b in below]


def exact_ranks(
    models: Sequence[ScoredModel], costs: Sequence[Artifact[Costs]], counts: Sequence[Artifact[NDArray[np.int64]]]
) -> list[Exact]:
    """Add up the counts of all parts of each completed walk.

    Args:
        models, costs: as for `rank_stages`.
        counts: counts of each part, in the order of `rank_stages`.

    Returns:
        the exact ranks of each model, in the order of `models`.

    Raises:
        RunError: if a walk missed the canary itself.
    """
    ranks: list[Exact] = [{} for _ in models]
    unfinished: set[tuple[int, int]] = set()
    for (number, canaries, stage), counted in zip(rank_stages(models, costs), counts, strict=True):
        facts, method, own_ranks = counted.facts, "pruned" if stage.pruned else "enumerated", ranks[number]
        for canary, count in zip(canaries, counted.content.tolist(), strict=True):
            if not facts["ended"]:
                unfinished.add((number, canary))
                continue
            _, rank, evaluations = own_ranks.get(canary, (method, 0, 0))
            own_ranks[canary] = (method, rank + count, evaluations + facts["evaluations"])
    for number, canary in unfinished:
        ranks[number].pop(canary, None)
    for model, own_ranks in zip(models, ranks, strict=True):
        for canary, (method, rank, evaluations) in own_ranks.items():
            if rank < 1 and model.at.precision == "float64":
                raise RunError(
                    f"the {method} search of all candidates does not find canary {canary}: the model scores the same text "
                    "differently each time; make the model deterministic, or set score.method to sampled"
                )
            own_ranks[canary] = (method, max(1, rank), evaluations)
    return ranks


@dataclass(frozen=True)
class FitLaw(Stage[float]):
    """Test whether the costs of random references follow a skew-normal law: fit.json (Carlini 2019, section 4.3)."""

    declared: ClassVar[Declared] = Declared("fit_law", 1)
    title: ClassVar[str] = "fit skew-normal law"
    place: ClassVar[Place] = "cores"

    costs: Artifact[Costs]  #: costs of the references under one model.
    replicates: int  #: number of parametric-bootstrap replicates.
    seed: int  #: seed of the bootstrap.

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write the p-value."""
        from memlib.observe.likelihoods import UNITS_PER_BIT
        from memlib.stats.tails import goodness_of_fit

        bits = np.sort(self.costs.content.references) / UNITS_PER_BIT
        p = goodness_of_fit(bits, replicates=self.replicates, seed=self.seed)
        attempt.path(FIT).write_text(json.dumps({"p": p}))

    @classmethod
    def open(cls, artifact: Artifact[float]) -> float:
        """Return the p-value."""
        return float(json.loads(artifact.path(FIT).read_text())["p"])


def law_stages(
    models: Sequence[ScoredModel], costs: Sequence[Artifact[Costs]], counts: Sequence[Artifact[NDArray[np.int64]]]
) -> dict[int, FitLaw]:
    """Return the stages that fit the skew-normal law, by position of the model.

    Models of which every canary has an exact or a sampled rank, or whose references all cost the same, have no such stage.
    """
    fits: dict[int, FitLaw] = {}
    for number, (model, exact) in enumerate(zip(models, exact_ranks(models, costs, counts), strict=True)):
        measured, config = costs[number].content, model.config
        methods = zip(model.canaries, _methods(model, measured), strict=True)
        if np.ptp(measured.references) and any(method != "sampled" and canary not in exact for canary, method in methods):
            fits[number] = FitLaw(costs[number], config.replicates, config.seed)
    return fits
