"""Stages of a forgetting audit: sets, mixes, scores and page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from memlib.audits.forgetting.distances import Distances, Observed, score, score_examples
from memlib.audits.forgetting.findings import curves, summarize
from memlib.audits.forgetting.recipe import NULL, Recipe
from memlib.audits.forgetting.sets import draw_sets, mix_members
from memlib.audits.forgetting.tables import EXAMPLES, UNITS
from memlib.audits.forgetting.trace import Pool, follows
from memlib.audits.last_stages import CURVES_FILE, SUMMARY_FILE, UNITS_FILE, PageStage, ScoresStage
from memlib.data.given_sets import Difference
from memlib.data.groups import groups_digest, groups_in
from memlib.data.splits import LEFT_OUT, SPLITS_FILE, select
from memlib.data.stages import Shard, SplitsStage, TrainingData
from memlib.errors import UserError
from memlib.identity import canonical_json
from memlib.observe.supplied_outputs import SuppliedOutputs
from memlib.pipeline.provenance import Declared
from memlib.pipeline.stage import AnyArtifact, Artifact
from memlib.pipeline.tables import Tables
from memlib.specs.data import POOL, QUERY
from memlib.stats.likelihood import decimals_of, log_odds, odds_of
from memlib.store import Attempt
from memlib.tables import CURVES, SPLITS, SUMMARY, write_table

if TYPE_CHECKING:
    import torch

    from memlib.report.page import Content

EXAMPLES_FILE = "examples.parquet"
NAMED = 3  # first examples of D_Q that the description of the sets names
STRANGERS = 0.01  # supplied outputs are refused if the p-value of "unrelated to the examples" exceeds this


@dataclass(frozen=True)
class DrawSets(SplitsStage):
    """Assign every example to a set, and remove copies of D_Q's pool from the other sets."""

    declared: ClassVar[Declared] = Declared("sets", 2)
    title: ClassVar[str] = "draw sets"

    recipe: Recipe
    shard: Artifact[Shard]

    @property
    def spec(self) -> Mapping[str, Any]:
        """The sets in order, the seed, and the definition of a copy."""
        recipe = self.recipe
        described = [[name, spec.model_dump(mode="json")] for name, spec in recipe.sets.items()]
        group = {} if recipe.group is None else {"group": recipe.group}
        return {"sets": described, "seed": recipe.split_seed, "near": recipe.near_duplicates} | group

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The shard, and the file of groups if there is one."""
        return {"shard": self.shard.key} | groups_digest(self.recipe.group)

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write splits.parquet, whose roles are the sets."""
        recipe, shard = self.recipe, self.shard.content
        near = recipe.near_duplicates if shard.has_images else None  # of points, equal ones alone are copies
        drawn = draw_sets(shard.index, shard.images, recipe.sets, seed=recipe.split_seed, near=near, group=recipe.group)
        write_table(drawn, SPLITS, attempt.path(SPLITS_FILE))

    @classmethod
    def described(cls, artifact: Artifact[pa.Table]) -> list[str]:
        """Describe the sizes of the sets, and the first and last examples of D_Q."""
        members = select(artifact.content, QUERY)["example_id"].to_pylist()
        more = f", ... {members[-1]}" if len(members) > NAMED else ""
        return [*super().described(artifact), f"D_Q: {len(members):,} examples, {', '.join(members[:NAMED])}{more}"]


@dataclass(frozen=True)
class DrawMixes(SplitsStage):
    """Draw every model's training set into one table of splits, whose roles are the models' names."""

    declared: ClassVar[Declared] = Declared("mixes", 1)
    title: ClassVar[str] = "draw mixes"

    data: TrainingData  #: the sets.
    wanted: Mapping[str, tuple[Mapping[str, float], int]]  #: share of each set and seed of the draw, by model name.

    @property
    def spec(self) -> Mapping[str, Any]:
        """The mixes."""
        return {"wanted": {name: [dict(shares), seed] for name, (shares, seed) in self.wanted.items()}}

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The sets."""
        return {"splits": self.data.splits.key}

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write splits.parquet."""
        parts = []
        for name, (shares, seed) in self.wanted.items():
            members = mix_members(self.data.table, shares, seed=seed)
            roles = pa.array([name] * members.num_rows, type=pa.string())
            parts.append(members.set_column(members.schema.get_field_index("role"), "role", roles))
        write_table(pa.concat_tables(parts), SPLITS, attempt.path(SPLITS_FILE))


@dataclass(frozen=True)
class Shown:
    """A model with its outputs on the pool."""

    group: str  #: group, target, number: identity of the model, see `Observed`.
    target: str
    number: int
    name: str | None  #: role of the model in the mixes; None if memlib did not train it.
    outputs: Artifact[NDArray[np.float32]] | SuppliedOutputs  #: an artifact, or outputs that the model's owner supplied.
    #: place of the model among small models whose outputs are one artifact; None if the artifact is of one model.
    place: int | None = None

    @property
    def identity(self) -> Any:
        """The digest of supplied outputs, or the key of the artifact, and the place in it if there is one."""
        if isinstance(self.outputs, SuppliedOutputs):
            return self.outputs.digest
        return self.outputs.key if self.place is None else [self.outputs.key, self.place]


@dataclass(frozen=True)
class Score(ScoresStage):
    """Compute distances, likelihood ratios, traces and the verdict; also write examples.parquet."""

    declared: ClassVar[Declared] = Declared("score_forgetting", 7)
    title: ClassVar[str] = "score forgetting"

    recipe: Recipe  #: targets, verdict, config.
    data: TrainingData  #: the sets.
    mixes: Artifact[pa.Table]  #: training sets of the models that memlib trained.
    models: Sequence[Shown]  #: all models.
    checks: Artifact[Difference] | None = None  #: comparison of D_Q with withheld examples that others drew.

    @property
    def spec(self) -> Mapping[str, Any]:
        """Scoring settings, the targets and the models."""
        recipe = self.recipe
        mixes = {name: dict(target.mix) if target.mix is not None else None for name, target in recipe.targets.items()}
        return {
            "config": recipe.score.model_dump(mode="json"),
            "verdict": recipe.verdict.model_dump(mode="json"),
            "targets": mixes,
            "supplied": sorted(name for name, target in recipe.targets.items() if target.outputs is not None),
            "compare": recipe.compare,
            "models": [[model.group, model.target, model.number, model.name] for model in self.models],
        }

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Outputs, mixes and the pool."""
        outputs = [model.identity for model in self.models]
        checks = {} if self.checks is None else {"checks": self.checks.key}
        return {"outputs": outputs, "mixes": self.mixes.key, "query": pool_digest(self.data.members(*POOL))} | checks

    def write(self, attempt: Attempt, device: torch.device) -> None:
        """Write units, examples, summary and curves."""
        recipe, members = self.recipe, self.data.members(*POOL)
        trained = self.mixes.content.select(["role", "example_id"])
        observed = [_observed(members, trained, model) for model in self.models]
        pool = Pool(np.array(members["role"].to_pylist()), members["label"].to_numpy(), groups_in(members))
        _refuse_strangers(observed, pool, self.models, recipe)
        distances = Distances(observed, pool, recipe.score)
        names = members["example_id"].to_pylist()
        examples = score_examples(observed, pool, names, members["class_name"].to_pylist())
        write_table(score(distances), UNITS, attempt.path(UNITS_FILE))
        write_table(examples, EXAMPLES, attempt.path(EXAMPLES_FILE))
        checks = None if self.checks is None else self.checks.content
        write_table(summarize(distances, recipe, checks), SUMMARY, attempt.path(SUMMARY_FILE))
        write_table(curves(distances, recipe), CURVES, attempt.path(CURVES_FILE))


@dataclass(frozen=True)
class Report(PageStage):
    """Draw the page of a forgetting audit."""

    declared: ClassVar[Declared] = Declared("report", 11)
    title: ClassVar[str] = "report forgetting"

    recipe: Recipe
    run: str
    scores: Artifact[Tables]
    data: TrainingData

    @property
    def inputs(self) -> Mapping[str, Any]:
        """Scores, the pool, and the images that are shown."""
        query = pool_digest(self.data.members(*POOL))
        return {"scores": self.scores.key, "query": query, "shard": self.data.shard.key}

    @property
    def read(self) -> Sequence[AnyArtifact]:
        """Images and sets."""
        return (self.data.shard, self.data.splits)

    def compose(self, attempt: Attempt) -> Content:
        """Draw the figures and compose the page."""
        from memlib.audits.forgetting.report import compose

        data, recipe = self.data, self.recipe
        tables = {name: self.scores.content[name] for name in ("examples", "summary", "curves")}
        rows = data.table.to_pylist()
        removed = [
            (row["example_id"], row["reason"])
            for row in rows
            if row["role"] == LEFT_OUT and str(row["reason"]).startswith("in ")
        ]
        sizes = {name: data.members(name).num_rows for name in recipe.sets}
        return compose(recipe, tables, sizes, removed, data.pictures(*POOL), attempt.path("figures"))


def pool_digest(members: pa.Table) -> str:
    """Compute the digest that identifies the pool in keys: ids, labels, sets and groups of its examples."""
    rows = [members[name].to_pylist() for name in ("example_id", "label", "role", "group")]
    return hashlib.sha256(canonical_json(rows).encode()).hexdigest()


def _refuse_strangers(observed: Sequence[Observed], pool: Pool, models: Sequence[Shown], recipe: Recipe) -> None:
    """Raise UserError for supplied outputs that are unrelated to the examples: shuffled, or taken from another file."""
    unseen = np.stack([model.log_odds for model in observed if model.group == NULL])
    for model, shown in zip(observed, models, strict=True):
        if isinstance(shown.outputs, SuppliedOutputs):
            p = follows(model.log_odds, unseen, pool.labels, seed=recipe.score.seed)
            if p > STRANGERS:
                raise UserError(
                    f"the outputs of {model.target} bear no relation to the examples, not even to how easy or hard other "
                    f"models find them (p = {p:.2g}); check that the scores belong to these example ids"
                )


def _observed(members: pa.Table, trained: pa.Table, model: Shown) -> Observed:
    labels = members["label"].to_numpy()
    decimals, known = None, None
    if isinstance(model.outputs, SuppliedOutputs):
        probabilities = model.outputs.probabilities
        decimals = None if probabilities is None else decimals_of(probabilities)
        odds = log_odds(model.outputs.scores, labels)
        if probabilities is not None and decimals is not None:  # rounded rows do not sum to 1
            odds = odds_of(probabilities[np.arange(len(labels)), labels])
    else:
        scores = model.outputs.open()
        odds = log_odds(scores if model.place is None else scores[model.place], labels)
    if model.name is not None:
        trained_on = set(trained.filter(pc.equal(trained["role"], model.name))["example_id"].to_pylist())
        known = np.array([name in trained_on for name in members["example_id"].to_pylist()])
    return Observed(model.group, model.target, model.number, odds, decimals, known)
